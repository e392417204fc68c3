//! The order of waiting requests, and hints.

use super::cluster::{at, rules, unlocks, Cluster, NEW, SECOND};
use quorum::agent::{Agent, AgentOutput, AgentSetup, Count, Path, Refusal, Request};
use quorum::members::{Member, Members};
use quorum::message::{Frame, Lifetime, Mode, Name, Names, Op, Send};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::time::Time;
use std::time::Duration;

/// A hint starts the next request: no time passes between the unlock and the next grant.
#[test]
fn a_hint_starts_the_next_request() {
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
        seed: 1,
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

/// A request with the vote of the sequencer waits for the other votes, while their unlocks are late. Those voters send
/// hints when they receive them.
#[test]
fn the_vote_of_the_sequencer_is_kept() {
    let mut cluster = Cluster::new(4);
    let lock = cluster.locked(3, "x");
    let next = cluster.lock(2, "x", SECOND * 60);
    cluster.pass(SECOND * 2);
    (1..4).for_each(|voter| cluster.hold(3, voter));
    cluster.arrived.clear();
    cluster.try_unlock(&lock);
    cluster.pass(SECOND / 4);
    assert!(!cluster.is_granted(next));
    let ops = cluster.ops();
    assert_eq!(unlocks(&ops), 1, "only the unlock of node 3: {ops:?}");
    let now = cluster.now;
    cluster.heal();
    assert_eq!(cluster.now, now);
    cluster.unlock_last([cluster.granted(next)]);
}

/// A held lock may lack the vote of the first voter: node 2 got x while it could not reach that voter. When it can,
/// it gets the vote although other requests wait for it. One more voter may then fail.
#[test]
fn a_held_lock_gets_the_missing_first_vote() {
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

/// Two requests that treat different voters as the first, and have half of the votes each, do not wait for each other
/// for long.
#[test]
fn a_tie_with_different_first_voters_is_broken() {
    for count in [4, 6] {
        let mut cluster = Cluster::new(count);
        let last = count - 1;
        cluster.cut(last, 0);
        cluster.cut(0, last);
        cluster.pass(SECOND * 3);
        for voter in 1..count {
            cluster.hold(if voter % 2 == 1 { 1 } else { last }, voter);
        }
        let requests = [1, last].map(|node| cluster.lock(node, "x", SECOND * 60));
        cluster.release();
        cluster.pass(SECOND / 4);
        let mut granted = requests.into_iter();
        let granted = granted.find(|request| cluster.is_granted(*request));
        cluster.unlock_granted(granted.expect("one request is granted"));
        cluster.pass(SECOND / 4);
        assert!(requests.iter().all(|request| cluster.is_granted(*request)));
        let recalled = |(_, what): &(usize, Count)| *what == Count::RestartedRecalled;
        assert!(cluster.counted.iter().any(recalled));
    }
}

/// Of two requests that wait, the older one is the next at all voters, although the other one arrived earlier.
#[test]
fn the_oldest_request_is_the_next() {
    let mut cluster = Cluster::new(4);
    let lock = cluster.locked(3, "x");
    // The request of node 1 is older, and reaches the sequencer late.
    cluster.hold(1, 0);
    let older = cluster.lock(1, "x", SECOND * 60);
    let younger = cluster.lock(2, "x", SECOND * 60);
    cluster.heal();
    cluster.try_unlock(&lock);
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
    cluster.try_unlock(&writer);
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
    cluster.try_unlock(&writer);
    assert_eq!(cluster.now, now);
    cluster.unlock_granted(reader);
    cluster.assert_empty();
}

/// If a node had to wait the last time, its next request asks the sequencer first. After an uncontended lock, it asks
/// all voters at once.
#[test]
fn a_contended_request_asks_the_sequencer_first() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", SECOND * 60);
    // The sequencer has queued the wide attempt of node 1.
    assert_eq!(cluster.counted, [(1, Count::RestartedQueued)]);
    cluster.try_unlock(&lock);
    let lock = cluster.granted(next);
    assert_eq!(lock.path, Path::Ordered);
    let other = cluster.lock(2, "x", SECOND * 60);
    let again = cluster.lock(1, "x", SECOND * 60);
    cluster.pass(Duration::from_millis(100));
    cluster.arrived.clear();
    // How many voters node 1 has asked, with and without a queue position.
    let asked = |cluster: &mut Cluster| {
        let batches = cluster.batches().into_iter();
        let ops = batches.filter(|(from, ..)| *from == 1);
        let ops: Vec<Op> = ops.flat_map(|(_, _, batch)| batch.ops).collect();
        [true, false].map(|queues| {
            let asks = |op: &&Op| matches!(op, Op::Lock { wait, .. } if *wait == queues);
            ops.iter().filter(asks).count()
        })
    };
    cluster.try_unlock(&lock);
    assert!(cluster.is_granted(other) && !cluster.is_granted(again));
    assert_eq!(asked(&mut cluster), [1, 0]);
    cluster.unlock_granted(other);
    let mut lock = cluster.granted(again);
    // From here on no other node asks. The first request does not know it: it asks the sequencer, then the others.
    for expected in [[2, 0], [1, 2]] {
        let next = cluster.lock(1, "x", SECOND * 60);
        cluster.pass(Duration::from_millis(100));
        cluster.arrived.clear();
        cluster.try_unlock(&lock);
        assert_eq!(asked(&mut cluster), expected);
        lock = cluster.granted(next);
    }
    cluster.try_unlock(&lock);
    cluster.assert_empty();
}

/// Requests for several names wait in the partition of each.
#[test]
fn a_voter_counts_the_requests_that_wait() {
    let mut cluster = Cluster::new(4);
    let locks = ["x", "y"].map(|name| cluster.locked(0, name));
    assert_eq!(cluster.voters[0].queues(), (0, 0));
    let long = SECOND * 60;
    let mut waiting = [1, 2, 3].map(|node| cluster.lock(node, "x", long)).to_vec();
    waiting.push(cluster.lock(1, "y", long));
    waiting.push(cluster.lock_many(2, &["y", "z"], long));
    assert_eq!(cluster.voters[0].queues(), (5, 3));
    let now = cluster.now;
    cluster.agents[3].cancel(now, waiting[2]);
    cluster.run();
    assert_eq!(cluster.voters[0].queues(), (4, 2));
    for lock in &locks {
        cluster.try_unlock(lock);
    }
    cluster.pass(SECOND);
    for request in [0, 1, 3, 4] {
        cluster.unlock_granted(waiting[request]);
        cluster.pass(SECOND);
    }
    assert_eq!(cluster.voters[0].queues(), (0, 0));
    cluster.assert_empty();
}

/// Two nodes with one caller each: no request waits behind another of its node. Each knows from its last one that the
/// name is contended.
#[test]
fn a_node_remembers_a_contended_name() {
    let mut cluster = Cluster::new(3);
    let mut lock = cluster.locked(0, "x");
    let mut waits = cluster.lock(1, "x", SECOND * 60);
    for turn in 0..6 {
        cluster.arrived.clear();
        cluster.try_unlock(&lock);
        lock = cluster.granted(waits);
        waits = cluster.lock(turn % 2, "x", SECOND * 60);
        cluster.pass(Duration::from_millis(100));
        let ops = cluster
            .batches()
            .into_iter()
            .flat_map(|(_, _, batch)| batch.ops);
        let wide = |op: &Op| matches!(op, Op::Lock { wait: false, .. });
        assert_eq!(ops.filter(wide).count(), 0, "turn {turn}");
    }
    cluster.try_unlock(&lock);
    cluster.unlock_granted(waits);
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

/// Nor does a writer whose node is dead, once its position expires.
#[test]
fn the_position_of_a_dead_node_expires() {
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
    let buries = |op: &Op| matches!(op, Op::Bury { .. });
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
    cluster.try_unlock(&lock);
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
    cluster.try_unlock(&lock);
    assert!(cluster.is_granted(run[0]));
    cluster.pass(cluster.rules.keep + cluster.rules.run_time);
    cluster.unlock_granted(run[0]);
    assert!(!cluster.is_granted(run[1]) && cluster.is_granted(other));
}

/// If the oldest request does not follow its hint, because its node is dead, the next one is granted soon.
#[test]
fn a_dead_request_is_passed_over() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.lock(2, "x", SECOND * 60);
    // The clock of node 1 passes that of node 2.
    cluster.pass(cluster.rules.heartbeat);
    let next = cluster.lock(1, "x", SECOND * 60);
    cluster.isolate(2);
    cluster.try_unlock(&lock);
    assert!(!cluster.is_granted(next));
    cluster.pass(cluster.rules.keep);
    cluster.unlock_granted(next);
}

/// A lost hint costs less than two seconds: the request asks again.
#[test]
fn a_lost_hint_is_repeated() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", SECOND * 60);
    // The voters' frames to node 1 are lost, those of node 1 are not.
    (0..3).for_each(|voter| cluster.cut(voter, 1));
    cluster.try_unlock(&lock);
    cluster.pass(SECOND / 2);
    assert!(!cluster.is_granted(next));
    cluster.heal();
    cluster.pass(SECOND * 3 / 2);
    cluster.unlock_last([cluster.granted(next)]);
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

/// A writer that missed its hints and then asks again waits as before: later readers wait behind it.
#[test]
fn a_request_that_asks_again_is_not_passed_over() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let writer = cluster.lock(1, "x", SECOND * 60);
    cluster.pass(SECOND * 2);
    let reader = cluster.rlock(2, "x", SECOND * 60);
    // From here on, all voters know both.
    cluster.pass(SECOND * 5 / 4);
    (0..3).for_each(|voter| cluster.cut(voter, 1));
    cluster.try_unlock(&lock);
    cluster.pass(cluster.rules.keep * 2);
    assert!(cluster.is_granted(reader) && !cluster.is_granted(writer));
    cluster.heal();
    cluster.pass(SECOND * 5 / 4);
    let late = cluster.rlock(0, "x", SECOND * 60);
    cluster.pass(SECOND / 10);
    assert!(!cluster.is_granted(late) && !cluster.is_granted(writer));
    for request in [reader, writer, late] {
        cluster.unlock_granted(request);
    }
    cluster.assert_empty();
}

/// A name is kept longer for a request of a node with a long round trip.
#[test]
fn a_name_is_kept_for_four_round_trips() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (0..3).for_each(|voter| cluster.hold(1, voter));
    let far = cluster.lock(1, "x", SECOND * 60);
    let from_far = |(from, _): &(usize, Send)| *from == 1;
    while let Some(place) = cluster.wire.iter().position(from_far) {
        let (from, mut send) = cluster.wire.remove(place).unwrap();
        if let Frame::Batch(batch) = &mut send.frame {
            batch.srtt_us = 100_000;
        }
        cluster.deliver(from, send);
        cluster.run();
    }
    let near = cluster.lock(2, "x", SECOND * 60);
    cluster.try_unlock(&lock);
    cluster.pass(cluster.rules.keep * 2);
    assert!(!cluster.is_granted(far) && !cluster.is_granted(near));
    cluster.release();
    cluster.unlock_granted(far);
    cluster.unlock_granted(near);
    cluster.assert_empty();
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

/// A dead node delays two unlocks, not each one: its position ends after two hints that it did not follow.
#[test]
fn a_position_ends_after_two_missed_hints() {
    let mut cluster = Cluster::new(3);
    let mut lock = cluster.locked(0, "x");
    cluster.lock(2, "x", SECOND * 60);
    // The clocks of the others pass that of node 2.
    cluster.pass(cluster.rules.heartbeat);
    cluster.isolate(2);
    for (turn, delayed) in [true, true, false].into_iter().enumerate() {
        let next = cluster.lock([1, 0][turn % 2], "x", SECOND * 60);
        cluster.try_unlock(&lock);
        assert_eq!(cluster.is_granted(next), !delayed, "turn {turn}");
        cluster.pass(cluster.rules.keep);
        lock = cluster.granted(next);
    }
}

/// A sync in several parts does not remove the positions of the parts that follow: while they are on their way, no
/// younger request gets a hint.
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
    cluster.try_unlock(&y);
    let syncs = |(_, send): &&(usize, Send)| match &send.frame {
        Frame::Batch(batch) => batch.ops.iter().any(|op| matches!(op, Op::Sync { .. })),
        _ => false,
    };
    assert_eq!(cluster.arrived.iter().filter(syncs).count(), 1);
    let hints = |(from, send): &(usize, Send)| match &send.frame {
        Frame::Notice(notice) => *from == 2 && !notice.hints.is_empty(),
        _ => false,
    };
    assert!(!cluster.arrived.iter().any(hints));
    cluster.release();
    cluster.unlock_granted(older);
    cluster.unlock_granted(younger);
    cluster.unlock(&x);
    cluster.unlock_granted(first);
    cluster.assert_empty();
}
