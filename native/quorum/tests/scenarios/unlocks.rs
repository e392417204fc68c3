//! Giving back: at once or not, in batches, and what happens when nobody listens. After ADR 15 of AtlasDB.

use crate::cluster::{at, name, Answer, Cluster, Lock, SECOND};
use quorum::agent::Request;
use quorum::message::{Frame, Mode, Op, Send};
use quorum::rules::Rules;

fn unlocks(ops: &[Op]) -> usize {
    ops.iter()
        .filter(|op| matches!(op, Op::Unlock { .. }))
        .count()
}

/// Q8: whoever has given a lock back does not hold it, whatever becomes of the message.
#[test]
fn what_is_given_back_is_not_held() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (0..3).for_each(|voter| cluster.hold(0, voter));
    let request = cluster.try_unlock(&lock);
    assert!(!cluster.held(&lock));
    assert!(matches!(cluster.answers[&request], Answer::Accepted));
    assert!(
        !cluster.agents[0].try_unlock(cluster.now, lock.token, Request(1000)),
        "once is enough"
    );
    cluster.heal();
    cluster.assert_empty();
}

/// Q7: an unlock takes back the vote of its own token: not of a later lock of the same name, nor of another agent's
/// lock that happens to have the same number.
#[test]
fn an_unlock_is_of_one_lock() {
    let mut cluster = Cluster::new(3);
    let first = cluster.locked(0, "x");
    cluster.arrived.clear();
    cluster.unlock(&first);
    let unlock = |(_, send): &&(usize, Send)| matches!(&send.frame, Frame::Batch(batch) if !batch.ops.is_empty());
    let old: Vec<(usize, Send)> = cluster.arrived.iter().filter(unlock).cloned().collect();
    assert_eq!(old.len(), 3);
    let again = cluster.locked(0, "x");
    let other = cluster.locked(1, "y");
    assert_eq!(other.token, first.token);
    for (from, mut send) in old {
        // As if it had come just now.
        if let Frame::Batch(batch) = &mut send.frame {
            batch.seq += 1_000_000;
        }
        cluster.deliver(from, send);
    }
    for (name, lock) in [("x", again), ("y", other)] {
        assert!(cluster.held(&lock));
        let request = cluster.lock(2, name, SECOND);
        cluster.pass(SECOND * 2);
        assert!(!cluster.is_granted(request));
    }
}

/// An unlock is answered by a quorum; a try_unlock by nobody.
#[test]
fn unlock_waits_for_a_quorum() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    [1, 2].iter().for_each(|voter| cluster.hold(0, *voter));
    let request = cluster.unlock(&lock);
    assert!(!cluster.answers.contains_key(&request));
    cluster.heal();
    assert!(matches!(
        cluster.answers[&request],
        Answer::Unlocked { confirmed: true }
    ));
}

/// One of three that hangs stops nobody.
#[test]
fn a_member_that_hangs_stops_nobody() {
    let mut cluster = Cluster::new(3);
    cluster.hold(0, 2);
    for _ in 0..100 {
        let lock = cluster.locked(0, "x");
        let request = cluster.unlock(&lock);
        assert!(matches!(
            cluster.answers[&request],
            Answer::Unlocked { confirmed: true }
        ));
    }
    cluster.heal();
    cluster.assert_empty();
}

/// An unlock that no quorum can hear is answered when the lease is over.
#[test]
fn unlock_does_not_wait_for_ever() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.isolate(0);
    let request = cluster.unlock(&lock);
    cluster.pass(cluster.rules.voter_lease);
    assert!(matches!(
        cluster.answers[&request],
        Answer::Unlocked { confirmed: false }
    ));
    let lock = cluster.locked(1, "x");
    cluster.unlock(&lock);
}

/// What is given back while a batch is under way goes with the next one, all at once: of 1000, singly and in groups.
#[test]
fn unlocks_are_batched() {
    for group in [1, 7] {
        let mut cluster = Cluster::new(3);
        let locks: Vec<Lock> = (0..1000)
            .map(|i| cluster.locked(0, &format!("x{i}")))
            .collect();
        cluster.batches();
        for (i, lock) in locks.iter().enumerate() {
            assert!(cluster.agents[0].try_unlock(
                cluster.now,
                lock.token,
                Request(10_000 + i as u64)
            ));
            if i % group == group - 1 {
                // The mailbox is empty; but the answer to the first batch has not come yet.
                cluster.agents[0].flush(cluster.now);
            }
        }
        cluster.run();
        let batches = cluster.batches();
        assert_eq!(
            batches
                .iter()
                .map(|(_, _, batch)| unlocks(&batch.ops))
                .sum::<usize>(),
            3 * 1000
        );
        assert!(
            batches.len() <= 6,
            "{} batches for 1000 unlocks at 3 voters",
            batches.len()
        );
        assert!(cluster.voters.iter().all(quorum::voter::Voter::is_empty));
        assert_eq!(
            cluster
                .answers
                .values()
                .filter(|answer| matches!(answer, Answer::Accepted))
                .count(),
            1000
        );
    }
}

/// There is never a second batch under way to the same voter.
#[test]
fn one_batch_at_a_time() {
    let mut cluster = Cluster::new(3);
    let locks: Vec<Lock> = (0..10)
        .map(|i| cluster.locked(0, &format!("x{i}")))
        .collect();
    cluster.hold(0, 1);
    for lock in &locks {
        cluster.try_unlock(lock);
        let under_way = cluster
            .wire
            .iter()
            .filter(|(from, send)| *from == 0 && send.to == at(1))
            .count();
        assert_eq!(under_way, 1);
    }
}

/// A new lock of the same name is never refused for the sake of one's own unlock before it.
#[test]
fn a_lock_does_not_wait_for_its_own_unlock() {
    let mut cluster = Cluster::new(3);
    for turn in 0..100 {
        let lock = cluster.locked(0, "x");
        let given_back = Request(10_000 + turn);
        assert!(cluster.agents[0].try_unlock(cluster.now, lock.token, given_back));
        let names = name("x").into();
        let request = Request(20_000 + turn);
        cluster.agents[0].lock(cluster.now, request, names, Mode::Write, SECOND);
        cluster.run();
        let lock = cluster.granted(request);
        cluster.try_unlock(&lock);
    }
    assert_eq!(cluster.now, Cluster::new(3).now, "nobody had to wait");
}

/// Past the bound callers wait, in order, until a quorum has caught up; and not for ever.
#[test]
fn too_many_pending_ones_make_callers_wait() {
    let rules = Rules {
        pending_unlocks: 5,
        ..Rules::default()
    };
    let mut cluster = Cluster::with(3, rules, crate::cluster::NEW);
    let locks: Vec<Lock> = (0..20)
        .map(|i| cluster.locked(0, &format!("x{i}")))
        .collect();
    [1, 2].iter().for_each(|voter| cluster.hold(0, *voter));
    let requests: Vec<Request> = locks.iter().map(|lock| cluster.try_unlock(lock)).collect();
    let accepted = |cluster: &Cluster| {
        requests
            .iter()
            .filter(|r| cluster.answers.contains_key(r))
            .count()
    };
    assert_eq!(accepted(&cluster), 5);
    assert!(
        locks.iter().all(|lock| !cluster.held(lock)),
        "waiting or not, it is given back"
    );
    cluster.heal();
    assert_eq!(accepted(&cluster), 20);
    cluster.assert_empty();

    let locks: Vec<Lock> = (0..20)
        .map(|i| cluster.locked(0, &format!("x{i}")))
        .collect();
    cluster.isolate(0);
    let requests: Vec<Request> = locks.iter().map(|lock| cluster.try_unlock(lock)).collect();
    cluster.pass(rules.voter_lease);
    assert!(requests
        .iter()
        .all(|request| cluster.answers.contains_key(request)));
}

/// A member that is away for long costs no memory, and is told what it missed when it is back.
#[test]
fn what_a_member_missed_is_told_later() {
    let mut cluster = Cluster::new(3);
    let kept: Vec<Lock> = (0..2000)
        .map(|i| cluster.locked(0, &format!("kept{i}")))
        .collect();
    let gone: Vec<Lock> = (0..2000)
        .map(|i| cluster.locked(0, &format!("gone{i}")))
        .collect();
    cluster.hold(0, 2);
    cluster.pass(SECOND / 2);
    for lock in &gone {
        cluster.try_unlock(lock);
    }
    // It is taken for lost once: not so often that batches nobody gets would have carried everything away.
    cluster.pass(SECOND * 3 / 2);
    let listed: usize = cluster
        .wire
        .iter()
        .map(|(_, send)| quorum::frame::encode(&send.frame).len())
        .sum();
    assert!(
        listed < 200_000,
        "{listed} bytes wait for a member that is away"
    );
    cluster.wire.clear();
    cluster.batches();
    cluster.heal();
    cluster.pass(SECOND * 5);
    let to_it = cluster
        .batches()
        .into_iter()
        .filter(|(from, to, _)| (*from, *to) == (0, 2));
    let told: Vec<Op> = to_it.flat_map(|(_, _, batch)| batch.ops).collect();
    assert!(told.iter().any(|op| matches!(op, Op::Sync { .. })));
    assert_eq!(unlocks(&told), 0, "nothing was kept for it meanwhile");
    assert!(kept.iter().all(|lock| cluster.held(lock)));
    for lock in &kept {
        assert!(cluster.agents[0]
            .locks()
            .any(|held| held.token == lock.token && held.votes.contains(at(2))));
        cluster.try_unlock(lock);
    }
    cluster.assert_empty();
}
