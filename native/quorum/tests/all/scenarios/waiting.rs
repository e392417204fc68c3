//! The order of waiting requests, and votes that voters give unasked.

use super::cluster::{at, rules, Cluster, NEW, SECOND};
use quorum::agent::{Agent, AgentOutput, AgentSetup, Loss, Refusal, Request};
use quorum::members::{Member, Members};
use quorum::message::{Frame, Lifetime, Mode, Name, Names, Op, Send};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::time::Time;
use std::time::Duration;

/// A vote that becomes free is given to the next request: no time passes between the unlock and the next grant.
#[test]
fn a_free_vote_is_given_to_the_next_request() {
    let mut cluster = Cluster::new(3);
    let mut lock = cluster.locked(0, "x");
    for turn in 1..20 {
        let next = cluster.lock(turn % 3, "x", SECOND * 60);
        cluster.pass(SECOND * 5);
        assert!(!cluster.is_granted(next));
        let now = cluster.now;
        cluster.unlock(&lock);
        assert_eq!(cluster.now, now);
        lock = cluster.granted(next);
    }
    cluster.unlock_last([lock]);
}

/// Writers of several nodes get the lock in the order of their requests.
#[test]
fn writers_are_granted_in_order() {
    let mut cluster = Cluster::new(5);
    let mut lock = cluster.locked(0, "x");
    let waiting = [1, 2, 3, 4].map(|node| cluster.lock(node, "x", SECOND * 60));
    cluster.pass(SECOND * 2);
    // A node that asks again immediately goes to the end of the queue.
    for request in waiting {
        let node = lock.node;
        cluster.unlock(&lock);
        let again = cluster.lock(node, "x", SECOND * 60);
        cluster.pass(Duration::from_millis(1));
        assert!(!cluster.is_granted(again));
        lock = cluster.granted(request);
    }
}

/// The same holds on one node.
#[test]
fn requests_of_a_node_are_granted_in_order() {
    let mut cluster = Cluster::new(3);
    let mut lock = cluster.locked(0, "x");
    let waiting: Vec<_> = (0..10).map(|_| cluster.lock(0, "x", SECOND * 60)).collect();
    cluster.batches();
    for (i, request) in waiting.iter().enumerate() {
        assert!(waiting[i..].iter().all(|later| !cluster.is_granted(*later)));
        cluster.unlock(&lock);
        lock = cluster.granted(*request);
    }
    cluster.unlock_last([lock]);
}

/// Many requests of a node time out together. They are refused in pieces, so that no call takes long.
#[test]
fn timeouts_are_answered_in_pieces() {
    const REQUESTS: usize = 1000;
    const MOST: usize = 128;
    let setup = AgentSetup {
        members: Members::new(1).unwrap(),
        rules: Rules::default(),
        bugs: ProtocolBugs::NONE,
        lifetime: Lifetime(1),
    };
    let mut agent = Agent::new(setup, Time(0));
    agent.up(Time(0), Member::at(0).unwrap());
    for request in 0..REQUESTS {
        // Half of them wait for the same name.
        let name = format!("{}", request.max(REQUESTS / 2));
        let names = Names::new(vec![Name::new(name.as_bytes()).unwrap()]).unwrap();
        agent.lock(Time(0), Request(request as u64), names, Mode::Write, SECOND);
    }
    let now = Time(0) + SECOND;
    let mut pieces = Vec::new();
    while agent.deadline().is_some_and(|at| at <= now) && !agent.is_empty() {
        agent.outputs();
        agent.tick(now);
        let timeout = |output: &AgentOutput| {
            matches!(
                output,
                AgentOutput::Refused {
                    why: Refusal::Timeout,
                    ..
                }
            )
        };
        pieces.push(
            agent
                .outputs()
                .iter()
                .filter(|output| timeout(output))
                .count(),
        );
    }
    assert!(pieces.iter().all(|piece| *piece <= MOST), "{pieces:?}");
    assert_eq!(pieces.iter().sum::<usize>(), REQUESTS, "{pieces:?}");
}

/// A held lock may lack the vote of a voter: node 2 got x while it could not reach that voter. When it can,
/// it gets the vote although other requests wait for it. One more voter may then fail.
#[test]
fn a_held_lock_gets_the_missing_vote() {
    for others in [&[][..], &[1], &[0], &[0, 1]] {
        let mut cluster = Cluster::new(3);
        cluster.cut(2, 0);
        cluster.cut(0, 2);
        let request = cluster.lock(2, "x", SECOND * 60);
        cluster.pass(SECOND * 5);
        let lock = cluster.granted(request);
        for node in others {
            cluster.lock(*node, "x", SECOND * 60);
        }
        cluster.heal();
        cluster.pass(SECOND * 6);
        let held = cluster.agents[2].locks().next().unwrap();
        assert_eq!(held.votes.len(), 3, "{others:?}");
        cluster.restart_voter(1, NEW);
        cluster.pass(SECOND);
        assert!(cluster.held(&lock), "{others:?}");
    }
}

/// Of two requests that wait, the older one is the next at all voters, although the other one arrived earlier.
#[test]
fn the_oldest_request_is_the_next() {
    let mut cluster = Cluster::new(4);
    let lock = cluster.locked(3, "x");
    // The request of node 1 is older, and reaches voter 0 late.
    cluster.hold(1, 0);
    let older = cluster.lock(1, "x", SECOND * 60);
    let younger = cluster.lock(2, "x", SECOND * 60);
    cluster.heal();
    cluster.unlock_async(&lock);
    assert!(cluster.is_granted(older) && !cluster.is_granted(younger));
    cluster.unlock_granted(older);
    cluster.unlock_granted(younger);
    cluster.assert_empty();
}

/// Readers that are older than a waiting writer are granted together, those that are younger after it.
#[test]
fn a_waiting_writer_separates_readers() {
    let mut cluster = Cluster::new(3);
    let writer = cluster.locked(0, "x");
    let readers = [1, 1, 1].map(|node| cluster.rlock(node, "x", SECOND * 60));
    // The clock of node 2 passes those of the readers.
    cluster.pass(SECOND * 2);
    let late = cluster.lock(2, "x", SECOND * 60);
    cluster.pass(SECOND * 2);
    cluster.unlock_async(&writer);
    assert!(readers.iter().all(|request| cluster.is_granted(*request)));
    // A later reader waits for the writer.
    let next = cluster.rlock(1, "x", SECOND * 60);
    cluster.pass(SECOND);
    assert!(!cluster.is_granted(next) && !cluster.is_granted(late));
    for request in readers.into_iter().chain([late, next]) {
        cluster.unlock_granted(request);
    }
    cluster.assert_empty();
}

/// A reader that is granted or gives up does not remove the queue position of other readers of its node.
#[test]
fn each_reader_has_a_position() {
    let mut cluster = Cluster::new(3);
    let writer = cluster.locked(0, "x");
    let impatient = cluster.rlock(1, "x", SECOND);
    let reader = cluster.rlock(1, "x", SECOND * 60);
    cluster.pass(SECOND * 3 / 2);
    cluster.refused(impatient);
    let now = cluster.now;
    cluster.unlock_async(&writer);
    assert_eq!(cluster.now, now);
    cluster.unlock_granted(reader);
    cluster.assert_empty();
}

/// A request for several names has one position.
#[test]
fn a_voter_counts_the_requests_that_wait() {
    let mut cluster = Cluster::new(4);
    let locks = ["x", "y"].map(|name| cluster.locked(0, name));
    assert_eq!(cluster.voters[0].queued(), 0);
    let long = SECOND * 60;
    let mut waiting = [1, 2, 3].map(|node| cluster.lock(node, "x", long)).to_vec();
    waiting.push(cluster.lock(1, "y", long));
    waiting.push(cluster.lock_many(2, &["y", "z"], long));
    assert_eq!(cluster.voters[0].queued(), 5);
    let now = cluster.now;
    cluster.agents[3].cancel(now, waiting[2]);
    cluster.run();
    assert_eq!(cluster.voters[0].queued(), 4);
    for lock in &locks {
        cluster.unlock_async(lock);
    }
    cluster.pass(SECOND);
    for request in [0, 1, 3, 4] {
        cluster.unlock_granted(waiting[request]);
        cluster.pass(SECOND);
    }
    assert_eq!(cluster.voters[0].queued(), 0);
    cluster.assert_empty();
}

/// A stream of readers does not starve a writer: the writer has a queue position, and later readers wait behind it.
#[test]
fn readers_do_not_starve_a_writer() {
    let mut cluster = Cluster::new(3);
    let mut reading = vec![cluster.rlock(0, "x", SECOND * 60)];
    let writer = cluster.lock(1, "x", SECOND * 60);
    let mut rounds = 0;
    while !cluster.is_granted(writer) {
        rounds += 1;
        assert!(rounds < 30, "the writer starves");
        // The next reader asks before one releases.
        let next = cluster.rlock(rounds % 3, "x", SECOND * 60);
        cluster.pass(SECOND / 5);
        let mut requests = reading.iter();
        if let Some(place) = requests.position(|request| cluster.is_granted(*request)) {
            cluster.unlock(&cluster.granted(reading.remove(place)));
        }
        reading.push(next);
    }
    cluster.unlock(&cluster.granted(writer));
    cluster.pass(SECOND * 2);
    // The readers behind the writer are granted.
    assert!(reading.iter().all(|request| cluster.is_granted(*request)));
}

/// Requests for the same names, and for one of them, do not wait for each other in a circle: all queues of a voter
/// have the same order.
#[test]
fn queues_of_several_names_have_one_order() {
    let mut cluster = Cluster::new(4);
    let [a, b] = ["a", "b"].map(|name| cluster.locked(0, name));
    let singles = [(1, "a"), (2, "b")].map(|(node, name)| cluster.lock(node, name, SECOND * 60));
    let both = [2, 1, 3].map(|node| cluster.lock_many(node, &["a", "b"], SECOND * 60));
    cluster.unlock(&b);
    cluster.unlock(&a);
    let mut left: Vec<_> = singles.into_iter().chain(both).collect();
    for _ in 0..20 {
        cluster.pass(SECOND / 2);
        for request in std::mem::take(&mut left) {
            if cluster.is_granted(request) {
                cluster.unlock(&cluster.granted(request));
            } else {
                left.push(request);
            }
        }
    }
    assert!(left.is_empty(), "{left:?}");
    cluster.assert_empty();
}

/// A writer that gave up no longer blocks readers.
#[test]
fn a_writer_that_gives_up_does_not_block_readers() {
    let mut cluster = Cluster::new(3);
    let reader = cluster.rlocked(0, "x");
    let writer = cluster.lock(1, "x", SECOND);
    let late = cluster.rlock(2, "x", SECOND * 60);
    assert!(!cluster.is_granted(late), "behind the writer");
    cluster.pass(SECOND);
    cluster.refused(writer);
    cluster.pass(SECOND);
    cluster.unlock_last([reader, cluster.granted(late)]);
}

/// Nor does a writer whose node has not been heard for a while.
#[test]
fn the_position_of_a_dead_node_does_not_count() {
    let mut cluster = Cluster::new(3);
    let reader = cluster.rlocked(0, "x");
    cluster.lock(1, "x", SECOND * 60);
    cluster.isolate(1);
    let late = cluster.rlock(2, "x", SECOND * 60);
    assert!(!cluster.is_granted(late));
    cluster.pass(cluster.rules.wait);
    assert!(cluster.is_granted(late));
    cluster.heal();
    cluster.unlock_granted(late);
    cluster.unlock(&reader);
}

/// A new agent of the node proves that the earlier one is dead: its positions and votes end at once.
#[test]
fn a_new_agent_buries_the_earlier_one() {
    let mut cluster = Cluster::new(3);
    let reader = cluster.rlocked(0, "x");
    cluster.lock(1, "x", SECOND * 60);
    let held = cluster.locked(1, "y");
    let [late, next] = [
        cluster.rlock(2, "x", SECOND * 60),
        cluster.lock(2, "y", SECOND * 60),
    ];
    assert!(!cluster.is_granted(late) && !cluster.is_granted(next));
    cluster.restart_agent(1);
    let now = cluster.now;
    cluster.run();
    assert_eq!(cluster.now, now);
    assert_eq!(held.node, 1);
    let buries = |op: &Op| matches!(op, Op::EndAgent { .. });
    assert!(cluster.ops().iter().any(buries));
    cluster.unlock_last([reader, cluster.granted(late), cluster.granted(next)]);
    // Once at each voter.
    assert!(!cluster.ops().iter().any(buries));
}

/// A reader does not wait for an older reader, which may be dead.
#[test]
fn a_reader_does_not_wait_for_another_one() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.rlock(2, "x", SECOND * 60);
    let next = cluster.rlock(1, "x", SECOND * 60);
    cluster.isolate(2);
    cluster.unlock_async(&lock);
    assert!(cluster.is_granted(next));
}

/// A recall that is repeated with long pauses does not delay the first recall of the next holder.
#[test]
fn the_next_holder_is_recalled_soon() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let run = [(); 2].map(|()| cluster.lock(1, "x", SECOND * 60));
    let other = cluster.lock(2, "x", SECOND * 60);
    cluster.pass(SECOND * 9);
    cluster.unlock_async(&lock);
    assert!(cluster.is_granted(run[0]));
    cluster.pass(cluster.rules.patience + cluster.rules.run_time);
    cluster.unlock_granted(run[0]);
    assert!(!cluster.is_granted(run[1]) && cluster.is_granted(other));
}

/// Two requests that split the votes evenly are both granted soon, one after the other.
#[test]
fn a_tie_is_broken() {
    for count in [2, 4, 6] {
        let mut cluster = Cluster::new(count);
        let half = count / 2;
        // Each request is the first at half of the voters.
        (half..count).for_each(|voter| cluster.hold(0, voter));
        (0..half).for_each(|voter| cluster.hold(1, voter));
        let requests = [0, 1].map(|node| cluster.lock(node, "x", SECOND * 60));
        cluster.heal();
        let mut done = 0;
        for _ in 0..100 {
            cluster.pass(Duration::from_millis(10));
            for request in requests {
                if cluster.is_granted(request) && cluster.held(&cluster.granted(request)) {
                    cluster.unlock(&cluster.granted(request));
                    done += 1;
                }
            }
        }
        assert_eq!(done, 2, "of {count} nodes");
        cluster.assert_empty();
    }
}

/// A writer gave up, but no voter received it. When the node is connected again, it lists its requests, and the voters
/// remove the position at once.
#[test]
fn a_sync_removes_the_position_of_a_request_that_gave_up() {
    let mut cluster = Cluster::new(3);
    let reader = cluster.rlocked(0, "x");
    let writer = cluster.lock(1, "x", SECOND * 60);
    let late = cluster.rlock(2, "x", SECOND * 60);
    // From here on, all voters know both.
    cluster.pass(SECOND * 5 / 4);
    (0..3).for_each(|voter| cluster.cut(1, voter));
    let now = cluster.now;
    cluster.agents[1].cancel(now, writer);
    cluster.run();
    cluster.heal();
    assert!(!cluster.is_granted(late));
    cluster.pass(cluster.rules.attempt);
    cluster.unlock_last([reader, cluster.granted(late)]);
}

/// A sync in several parts does not remove the positions of the parts that follow: while they are on their way, no
/// younger request gets a vote.
#[test]
fn a_part_of_a_sync_keeps_later_positions() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.batch = 1), NEW);
    let [x, y] = ["x", "y"].map(|name| cluster.locked(0, name));
    let [first, older] = ["x", "y"].map(|name| cluster.lock(1, name, SECOND * 60));
    // The clock of node 2 passes theirs.
    cluster.pass(SECOND * 2);
    let younger = cluster.lock(2, "y", SECOND * 60);
    // From here on, all voters know them.
    cluster.pass(SECOND * 5 / 4);
    cluster.hold(2, 1);
    let now = cluster.now;
    cluster.agents[1].down(now, at(2));
    cluster.agents[1].up(now, at(2));
    cluster.arrived.clear();
    cluster.unlock_async(&y);
    let syncs = |(_, send): &&(usize, Send)| match &send.frame {
        Frame::Batch(batch) => batch.ops.iter().any(|op| matches!(op, Op::Sync { .. })),
        _ => false,
    };
    assert_eq!(cluster.arrived.iter().filter(syncs).count(), 1);
    let given = |(from, send): &(usize, Send)| match &send.frame {
        Frame::Notice(notice) => *from == 2 && !notice.given.is_empty(),
        _ => false,
    };
    assert!(!cluster.arrived.iter().any(given));
    cluster.release();
    cluster.unlock_granted(older);
    cluster.unlock_granted(younger);
    cluster.unlock(&x);
    cluster.unlock_granted(first);
    cluster.assert_empty();
}

/// A node dies silently while it waits. The voters give their votes to its request, and take them back after `wait`.
/// The other nodes wait for that once, not at each turn, and not for a lease.
#[test]
fn a_waiter_that_dies_silently_costs_a_short_time_once() {
    let mut cluster = Cluster::new(3);
    let mut lock = cluster.locked(0, "x");
    cluster.lock(2, "x", SECOND * 60);
    // The clocks of the others pass that of node 2.
    cluster.pass(cluster.rules.heartbeat);
    cluster.isolate(2);
    for (turn, delayed) in [true, false, false].into_iter().enumerate() {
        let next = cluster.lock([1, 0][turn % 2], "x", SECOND * 60);
        cluster.unlock_async(&lock);
        assert_eq!(cluster.is_granted(next), !delayed, "turn {turn}");
        cluster.pass(cluster.rules.wait);
        lock = cluster.granted(next);
    }
}

/// If the connection to it ends, that costs nothing: its request does not wait any more.
#[test]
fn a_disconnected_waiter_costs_nothing() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let dead = cluster.lock(2, "x", SECOND * 60);
    cluster.pass(cluster.rules.heartbeat);
    let next = cluster.lock(1, "x", SECOND * 60);
    cluster.isolate(2);
    let now = cluster.now;
    [0, 1]
        .into_iter()
        .for_each(|voter| cluster.voters[voter].down(now, at(2).into()));
    cluster.run();
    cluster.unlock_async(&lock);
    cluster.unlock_granted(next);
    // It asks again when it is back.
    cluster.heal();
    [0, 1]
        .into_iter()
        .for_each(|voter| cluster.agents[2].down(now, at(voter)));
    [0, 1]
        .into_iter()
        .for_each(|voter| cluster.agents[2].up(now, at(voter)));
    cluster.run();
    cluster.unlock_granted(dead);
    cluster.assert_empty();
}

/// The notices of votes are lost. The digest in the next answer shows these votes, at most a third of `wait` later.
#[test]
fn lost_votes_are_noticed_soon() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", SECOND * 60);
    (0..3).for_each(|voter| cluster.cut(voter, 1));
    cluster.unlock_async(&lock);
    (0..3).for_each(|voter| cluster.mend(voter, 1));
    assert!(!cluster.is_granted(next));
    cluster.pass(cluster.rules.wait / 3);
    cluster.unlock_last([cluster.granted(next)]);
}

/// A lock that was granted by unasked votes is confirmed by the next batch, and then lasts as any other.
#[test]
fn unasked_votes_are_confirmed() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", SECOND * 60);
    cluster.unlock_async(&lock);
    let lock = cluster.granted(next);
    cluster.pass(cluster.rules.voter_lease * 3);
    assert!(cluster.held(&lock) && cluster.lost.is_empty() && cluster.at_risk.is_empty());
    cluster.unlock_last([lock]);
}

/// A node hears the voters, and they do not hear it. A lock that it gets by unasked votes ends before the voters take
/// them back.
#[test]
fn unasked_votes_that_are_not_confirmed_end_first_at_the_agent() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let deaf = cluster.lock(1, "x", SECOND * 60);
    cluster.pass(cluster.rules.heartbeat);
    let next = cluster.lock(2, "x", SECOND * 60);
    [0, 2].into_iter().for_each(|voter| cluster.cut(1, voter));
    cluster.pass(cluster.rules.wait / 4);
    cluster.unlock_async(&lock);
    let lock = cluster.granted(deaf);
    for _ in 0..100 {
        cluster.pass(cluster.rules.wait / 40);
        assert!(!(cluster.held(&lock) && cluster.is_granted(next)));
    }
    assert_eq!(cluster.lost, [(lock.token, Loss::Quorum)]);
    cluster.unlock_granted(next);
}

/// An agent that was not heard for a while and is heard again waits as before: later readers wait behind its writer.
#[test]
fn a_request_of_an_agent_that_is_heard_again_counts() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.rlocked(0, "x");
    let writer = cluster.lock(1, "x", SECOND * 60);
    cluster.pass(SECOND);
    cluster.isolate(1);
    cluster.pass(cluster.rules.wait);
    let reader = cluster.rlocked(2, "x");
    cluster.heal();
    cluster.pass(cluster.rules.wait);
    let late = cluster.rlock(2, "x", SECOND * 60);
    cluster.pass(SECOND / 10);
    assert!(!cluster.is_granted(late) && !cluster.is_granted(writer));
    cluster.unlock(&lock);
    cluster.unlock(&reader);
    cluster.unlock_granted(writer);
    cluster.unlock_granted(late);
    cluster.assert_empty();
}

/// A try is granted if the name is free, and refused as soon as too few voters are left that may vote for it.
#[test]
fn a_try_does_not_wait() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    for node in 0..3 {
        let refused = cluster.lock(node, "x", Duration::ZERO);
        assert_eq!(cluster.refused(refused), Refusal::Timeout);
    }
    cluster.unlock(&lock);
    for node in 0..3 {
        let granted = cluster.lock(node, "x", Duration::ZERO);
        cluster.unlock_granted(granted);
    }
    // An older request that waits goes first.
    let reader = cluster.rlocked(0, "x");
    let writer = cluster.lock(1, "x", SECOND * 60);
    let refused = cluster.rlock(2, "x", Duration::ZERO);
    assert_eq!(cluster.refused(refused), Refusal::Timeout);
    cluster.unlock(&reader);
    cluster.unlock_granted(writer);
    cluster.assert_empty();
}

/// Voters that do not answer a try hold it up for a short time.
#[test]
fn a_try_waits_for_late_votes() {
    let mut cluster = Cluster::new(3);
    (1..3).for_each(|voter| cluster.hold(voter, 0));
    let late = cluster.lock(0, "x", Duration::ZERO);
    cluster.pass(Duration::from_millis(99));
    cluster.release();
    cluster.unlock_granted(late);
    cluster.isolate(0);
    let alone = cluster.lock(0, "x", Duration::ZERO);
    assert!(!cluster.is_granted(alone));
    cluster.pass(Duration::from_millis(200));
    assert_eq!(cluster.refused(alone), Refusal::Timeout);
    let granted = cluster.lock(1, "x", Duration::ZERO);
    cluster.unlock_granted(granted);
    cluster.heal();
    cluster.assert_empty();
}

/// A timeout without an end.
#[test]
fn a_request_without_a_timeout_waits_for_ever() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", Duration::MAX);
    cluster.pass(SECOND * 86_400);
    assert!(!cluster.is_granted(next));
    cluster.unlock(&lock);
    cluster.unlock_last([cluster.granted(next)]);
}
