//! Restarts of voters, which forget their votes, and of agents.

use super::cluster::{at, durable, known, name, rules, Cluster, Lock, NEW, SECOND};
use quorum::agent::Request;
use quorum::message::{Fence, Frame, Mode, Op, Reason, Reply, Send, Token};
use std::time::Duration;

/// CE2, dsync's error with three nodes: after one restart, two nodes have the lock. Q4: a quarantine prevents it.
#[test]
fn a_restarted_voter_does_not_grant_a_held_name() {
    let mut cluster = Cluster::new(3);
    // The lock has the votes of 0 and 1. After the restart of 1, no voter that it can reach knows the lock.
    cluster.isolate(2);
    let lock = cluster.locked(0, "x");
    cluster.isolate(0);
    cluster.mend(1, 2);
    cluster.restart_voter(1, NEW);
    let other = cluster.lock(2, "x", SECOND * 60);
    while !cluster.is_granted(other) {
        cluster.pass(SECOND / 10);
        assert!(!(cluster.is_granted(other) && cluster.held(&lock)));
    }
    assert!(cluster.now >= quorum::time::Time(1_000_000_000) + cluster.rules.voter_lease);
}

/// With all agents connected, the quarantine ends after one round: the lock is asserted, then the voter votes.
#[test]
fn a_restarted_voter_receives_all_held_locks() {
    let mut cluster = Cluster::new(3);
    let lock = |i: usize| cluster.locked(i % 3, &format!("x{i}"));
    let locks: Vec<_> = (0..3000).map(lock).collect();
    // From here on, all voters have votes for them.
    cluster.pass(SECOND * 2);
    for voter in 0..3 {
        cluster.batches();
        cluster.restart_voter(voter, NEW);
        assert!(!cluster.voters[voter].is_voting());
        cluster.run();
        // Immediately, although there are thousands of locks.
        assert!(cluster.voters[voter].is_voting());
        let ops = cluster.ops();
        let asserts = ops.iter().filter(|op| matches!(op, Op::Assert { .. }));
        assert_eq!(asserts.count(), 3000);
        assert!(locks.iter().all(|lock| cluster.held(lock)));
    }
    let other = cluster.lock(0, "x1", SECOND);
    cluster.pass(SECOND);
    assert!(!cluster.is_granted(other));
    for lock in &locks {
        cluster.unlock_async(lock);
    }
    cluster.assert_empty();
}

/// A lock survives the restart of all voters, one after the other, and so does its fence.
#[test]
fn a_lock_survives_rolling_restarts() {
    let mut cluster = Cluster::new(5);
    let lock = cluster.locked(0, "x");
    for turn in 0..20 {
        cluster.restart_voter(turn % 5, NEW);
        cluster.pass(SECOND * 3);
        assert!(cluster.voters.iter().all(quorum::voter::Voter::is_voting));
        assert!(cluster.held(&lock));
    }
    cluster.unlock(&lock);
    let next = cluster.locked(1, "x");
    assert!(next.fence > lock.fence);
}

/// A lock may have the votes of a quorum only, because the third voter is dead. If one of its voters restarts, its vote
/// counts until the lock has continued it.
#[test]
fn a_lock_survives_the_restart_of_a_voter_that_it_needs() {
    for (voter, disconnected) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut cluster = Cluster::new(3);
        cluster.isolate(2);
        let lock = cluster.locked(0, "x");
        let now = cluster.now;
        if disconnected {
            cluster.agents[0].down(now, at(voter));
            cluster.run();
        }
        cluster.restart_voter(voter, NEW);
        if disconnected {
            cluster.agents[0].up(now, at(voter));
        }
        cluster.run();
        assert!(cluster.held(&lock), "{voter} {disconnected}");
        cluster.pass(SECOND * 20);
        assert!(cluster.held(&lock), "{voter} {disconnected}");
        assert!(cluster.voters[voter].is_voting());
        cluster.heal();
        cluster.unlock_last([lock]);
    }
}

/// The notice of the restart is lost: the voter's answer shows the restart.
#[test]
fn a_lock_survives_a_restart_that_no_notice_announced() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(2);
    let lock = cluster.locked(0, "x");
    cluster.cut(1, 0);
    cluster.restart_voter(1, NEW);
    cluster.run();
    cluster.mend(1, 0);
    let request = cluster.lock(0, "y", SECOND * 60);
    assert!(cluster.held(&lock));
    cluster.pass(SECOND * 20);
    assert!(cluster.held(&lock));
    cluster.heal();
    cluster.unlock_granted(request);
    cluster.unlock_last([lock]);
}

/// The restarted voter rejects the lock, which is then held by too few votes: until the agent has settled, and no
/// longer.
#[test]
fn a_lock_that_does_not_continue_its_vote_is_lost_when_the_agent_has_settled() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(2);
    let lock = cluster.locked(0, "x");
    cluster.hold(0, 1);
    cluster.restart_voter(1, known(lock.fence));
    cluster.run();
    assert!(cluster.held(&lock));
    // The batch with the assertion is lost, and the lease passes.
    cluster.cut(0, 1);
    cluster.release();
    cluster.pass(cluster.rules.holder_lease);
    assert!(!cluster.held(&lock));
    cluster.heal();
    cluster.pass(SECOND * 11);
    let other = cluster.locked(1, "x");
    assert!(!cluster.held(&lock) && other.fence > lock.fence);
    cluster.unlock_last([other]);
}

/// With stored fences, all voters may restart at once. No fence is given before it is stored.
#[test]
fn stored_fences_survive() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.fence_block = 10), durable(0));
    let mut last = 0;
    for turn in 0..100 {
        let request = cluster.lock(turn % 3, "x", SECOND * 60);
        cluster.pass(SECOND);
        if turn % 7 == 0 {
            assert!(
                !cluster.is_granted(request),
                "no mark is stored since the start"
            );
        }
        cluster.store_pending();
        cluster.run();
        let lock = cluster.granted(request);
        assert!(lock.fence > last);
        let covers = |stored: &&Fence| stored.0 >= lock.fence;
        assert!(cluster.store.values().filter(covers).count() >= 2);
        last = lock.fence;
        cluster.unlock(&lock);
        if turn % 7 == 6 {
            (0..3).for_each(|voter| cluster.restart_voter(voter, durable(cluster.store[&voter].0)));
            cluster.run();
        }
    }
    assert!(last < 1000, "fence blocks are wasted: {last}");
}

/// CE3: a vote of an earlier lifetime does not count, however late it arrives.
#[test]
fn a_vote_of_an_earlier_lifetime_does_not_count() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(2);
    cluster.pass(SECOND * 2);
    // The answers of 1 are in flight while it restarts.
    cluster.hold(1, 0);
    let first = cluster.lock(0, "x", SECOND * 60);
    cluster.restart_voter(1, NEW);
    cluster.heal();
    cluster.cut(0, 2);
    let second = cluster.lock(2, "x", SECOND * 60);
    for _ in 0..1000 {
        cluster.pass(Duration::from_millis(10));
        if cluster.is_granted(first) && cluster.is_granted(second) {
            let locks = [cluster.granted(first), cluster.granted(second)];
            assert!(!locks.iter().all(|lock| cluster.held(lock)));
        }
    }
}

/// A voter that cannot record a fence yet still has the vote, and releases it (Q10).
#[test]
fn a_vote_whose_fence_is_not_stored_is_released() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.fence_block = 10), durable(0));
    // The fences are far apart: that of voter 0 is above the marks of the others.
    cluster.restart_voter(0, durable(1000));
    cluster.run();
    cluster.store_pending();
    cluster.run();
    let request = cluster.lock(0, "x", SECOND);
    cluster.pass(SECOND * 2);
    // No other voter has stored the mark.
    assert!(!cluster.is_granted(request));
    cluster.assert_empty();
    cluster.store_pending();
    cluster.locked(0, "x");
}

/// A voter whose mark is below the fence that the others chose votes and confirms as soon as it has stored a higher
/// one, not a second later.
#[test]
fn a_lower_mark_is_raised_at_once() {
    let store = |cluster: &mut Cluster| {
        cluster.store_pending();
        cluster.store.clear();
        cluster.run();
    };
    let mut cluster = Cluster::with(3, rules(|_| ()), durable(0));
    cluster.store_first_marks();
    cluster.lock_and_unlock(0, "x");
    cluster.restart_voter(0, durable(5_000_000));
    cluster.run();
    cluster.pass(SECOND * 12);
    store(&mut cluster);
    // Voter 1 must vote, too.
    cluster.isolate(2);
    let now = cluster.now;
    (0..2).for_each(|node| cluster.agents[node].down(now, at(2)));
    let request = cluster.lock(0, "y", SECOND * 60);
    (0..5).for_each(|_| store(&mut cluster));
    assert!(cluster.is_granted(request));
}

/// An agent starts again, and its first frames after the answer of a voter are lost. It buries its predecessor later.
#[test]
fn a_lost_burial_is_repeated() {
    let mut cluster = Cluster::new(3);
    cluster.locked(1, "x");
    cluster.hold(0, 1);
    cluster.restart_agent(1);
    cluster.run();
    cluster.cut(1, 0);
    cluster.release();
    cluster.pass(SECOND * 6 / 5);
    cluster.mend(1, 0);
    let next = cluster.lock(2, "x", SECOND * 60);
    cluster.pass(SECOND * 3 / 2);
    assert!(cluster.is_granted(next));
}

/// A voter that has restarted has forgotten all votes, so it has executed all earlier unlocks.
#[test]
fn a_new_session_confirms_earlier_unlocks() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (0..2).for_each(|voter| cluster.hold(0, voter));
    let unlock = cluster.unlock(&lock);
    assert_eq!(cluster.unlocked(unlock), None);
    cluster.restart_voter(1, NEW);
    cluster.run();
    // It receives the batches of the earlier session, and none of the new one.
    let sent = |(from, send): &(usize, Send)| (*from, send.to) == (0, at(1).into());
    let wire = std::mem::take(&mut cluster.wire);
    let (early, rest) = wire.into_iter().partition::<Vec<_>, _>(sent);
    cluster.wire.extend(rest);
    for (from, send) in early {
        cluster.deliver(from, send);
    }
    cluster.run();
    assert_eq!(cluster.unlocked(unlock), Some(true));
    cluster.release();
    cluster.assert_empty();
}

/// The batch that ends the start of a session carries an unlock, which it does not confirm. The next batch confirms it,
/// and does not wait for a heartbeat.
#[test]
fn an_unlock_during_the_start_of_a_session_is_confirmed_soon() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.hold(0, 2);
    cluster.hold(1, 0);
    cluster.restart_voter(1, NEW);
    cluster.run();
    let is_ack = |send: &Send| matches!(send.frame, Frame::Ack(_));
    let sent = |(from, send): &(usize, Send)| (*from, send.to) == (1, at(0).into());
    while let Some(place) = cluster.wire.iter().position(sent) {
        let (from, send) = cluster.wire.remove(place).unwrap();
        if is_ack(&send) {
            // The agent has the new session, and sends nothing yet.
            let now = cluster.now;
            cluster.agents[0].receive(now, at(1), send.frame);
            break;
        }
        cluster.deliver(from, send);
        cluster.run();
    }
    let unlock = cluster.unlock(&lock);
    assert_eq!(cluster.unlocked(unlock), None);
    let now = cluster.now;
    while let Some(place) = cluster.wire.iter().position(sent) {
        let (from, send) = cluster.wire.remove(place).unwrap();
        cluster.deliver(from, send);
        cluster.run();
    }
    assert_eq!(cluster.now, now);
    assert_eq!(cluster.unlocked(unlock), Some(true));
    cluster.release();
    cluster.assert_empty();
}

type Ask = fn(&mut Cluster, usize) -> Request;
/// A name, the nodes that hold and wait, and how they ask.
type Row = (&'static str, (usize, usize), Ask, Ask);

const WRITE: Ask = |cluster, node| cluster.lock(node, "x", SECOND * 60);
const READ: Ask = |cluster, node| cluster.rlock(node, "x", SECOND * 60);
const WRITE_TWO: Ask = |cluster, node| cluster.lock_many(node, &["w", "x"], SECOND * 60);

/// Passes the time. At no moment the lock is held while the request is granted and held.
fn never_both(cluster: &mut Cluster, lock: &Lock, request: Request, span: Duration) {
    let end = cluster.now + span;
    while cluster.now < end {
        cluster.pass(SECOND / 10);
        let granted = cluster.is_granted(request);
        let both = granted && cluster.held(lock) && cluster.held(&cluster.granted(request));
        assert!(!both, "two nodes hold the name");
    }
}

/// Node `y`, which waits, counts a vote that voter 2 forgets now. Then node `x`, which holds the lock, reaches voter 2.
/// The last other vote for the lock, that of voter 1, ends: the request has a quorum.
fn restart_unheard(cluster: &mut Cluster, lock: &Lock, other: Request, (x, y): (usize, usize)) {
    let node = cluster.node(y);
    let votes = cluster.voters[2].agents().find(|agent| agent.0 == node);
    assert_eq!(votes.map(|agent| agent.1), Some(1));
    assert!(cluster.held(lock) && !cluster.is_granted(other));
    cluster.cut_both(y, 2);
    cluster.restart_voter(2, NEW);
    cluster.mend(x, 2);
    never_both(cluster, lock, other, SECOND * 20);
    cluster.heal();
    never_both(cluster, lock, other, SECOND * 20);
    // Its node was cut off from two voters, so the other lock has ended, too.
    let second = cluster.granted(other);
    assert!(!cluster.held(lock) && !cluster.held(&second));
    cluster.assert_empty();
}

/// Q4, CE11: a lock whose vote has ended gets none in the quarantine of its voter, because another request may count
/// the vote that the voter has forgotten. The same for readers, for locks of several names, and for clients.
#[test]
fn a_quarantine_continues_no_vote_that_had_ended() {
    let rows: [Row; 6] = [
        ("writers", (0, 1), WRITE, WRITE),
        ("a reader holds", (0, 1), READ, WRITE),
        ("a reader waits", (0, 1), WRITE, READ),
        ("two names", (0, 1), WRITE_TWO, WRITE),
        ("a client holds", (3, 1), WRITE, WRITE),
        ("a client waits", (0, 3), WRITE, WRITE),
    ];
    for (name, (x, y), hold, wait) in rows {
        println!("{name}");
        let mut cluster = Cluster::new(3);
        cluster.add_client();
        let request = hold(&mut cluster, x);
        cluster.pass(SECOND * 2);
        let lock = cluster.granted(request);
        cluster.cut_both(x, 2);
        cluster.pass(SECOND * 12);
        cluster.cut_both(x, 1);
        cluster.cut_both(y, 0);
        let other = wait(&mut cluster, y);
        cluster.pass(SECOND * 6);
        restart_unheard(&mut cluster, &lock, other, (x, y));
    }
}

/// Q4: the agent learns of the first restart, but its assertion is lost. The first quarantine ends, and voter 2 votes
/// for another request. After the second restart, the lock has no vote to continue.
#[test]
fn a_vote_is_not_continued_over_a_life_without_it() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.pass(SECOND * 2);
    cluster.hold(2, 0);
    // Its fences are higher than those of the others, so it need not record another one.
    cluster.restart_voter(2, known(1000));
    cluster.pass(SECOND * 2);
    cluster.cut(0, 2);
    cluster.release_link(2, 0);
    let lifetime = cluster.voters[2].lifetime();
    let session = cluster.agents[0].status().nth(2).unwrap().session;
    assert_eq!(session.map(|session| session.voter), Some(lifetime));
    cluster.pass(SECOND * 12);
    assert!(cluster.voters[2].is_voting());
    cluster.cut_both(0, 1);
    let other = cluster.lock(1, "x", SECOND * 60);
    cluster.pass(SECOND * 6);
    restart_unheard(&mut cluster, &lock, other, (0, 1));
}

/// Q4: voters refuse what a correct agent does not send.
#[test]
fn a_voter_in_quarantine_accepts_only_continuing_locks() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(0);
    cluster.restart_voter(2, NEW);
    cluster.run();
    let assert = |token, continues| Op::Assert {
        token: Token(token),
        mode: Mode::Write,
        fence: Fence(7),
        continues,
        names: name(&format!("{token}")).into(),
    };
    let ops = vec![assert(1, false), assert(2, true), assert(2, false)];
    let no = Reply::No {
        reason: Reason::Quarantine,
    };
    let yes = Reply::Yes { fence: Fence(7) };
    assert_eq!(cluster.forge(1, 2, ops), [no, yes.clone(), yes.clone()]);
    cluster.heal();
    cluster.pass(cluster.rules.voter_lease);
    assert!(cluster.voters[2].is_voting());
    let ops = vec![assert(3, false)];
    assert_eq!(cluster.forge(0, 2, ops), [yes]);
}

/// The stored mark of the restarted voter is below the fence of the lock. The voter has its vote when it votes.
#[test]
fn a_lock_above_the_stored_mark_continues_its_vote() {
    let mut cluster = Cluster::new(3);
    cluster.restart_voter(0, known(1000));
    cluster.restart_voter(1, known(1000));
    cluster.run();
    let lock = cluster.locked(0, "x");
    cluster.restart_voter(2, durable(100));
    cluster.run();
    assert!(lock.fence > 100 && cluster.voters[2].is_voting());
    let votes = cluster.voters[2].agents().map(|(_, votes, ..)| votes);
    assert_eq!(votes.sum::<usize>(), 1);
    let held = cluster.agents[0].locks().next().expect("it is held");
    assert_eq!(held.votes.len(), 3);
    cluster.unlock_last([lock]);
}

/// The quarantines last, because a member is dead. A vote that still counted is continued in them, so a lock survives
/// one restart after the other.
#[test]
fn a_quarantine_continues_votes_that_count() {
    let mut cluster = Cluster::new(5);
    cluster.isolate(4);
    let lock = cluster.locked(0, "x");
    cluster.pass(SECOND * 2);
    for voter in [1, 2, 3, 1] {
        cluster.restart_voter(voter, NEW);
        cluster.pass(SECOND * 2);
        assert!(!cluster.voters[voter].is_voting());
        let held = cluster.agents[0].locks().next().expect("it is held");
        assert_eq!(held.votes.len(), 4);
    }
    cluster.unlock_last([lock]);
}

/// As soon as a restarted voter votes, it votes for the held locks that had lost its vote. The next restart loses
/// nothing.
#[test]
fn a_lock_that_continues_no_vote_gets_one_after_the_quarantine() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.pass(SECOND * 2);
    for voter in 0..3 {
        cluster.cut_both(0, voter);
        cluster.pass(SECOND * 9);
        cluster.ops();
        cluster.restart_voter(voter, NEW);
        cluster.heal();
        assert!(cluster.voters[voter].is_voting());
        let ops = cluster.ops();
        let continues = ops.iter().filter_map(|op| match op {
            Op::Assert { continues, .. } => Some(*continues),
            _ => None,
        });
        assert_eq!(continues.collect::<Vec<_>>(), [false]);
        let held = cluster.agents[0].locks().next().expect("it is held");
        assert_eq!(held.votes.len(), 3);
    }
    cluster.unlock_last([lock]);
}
