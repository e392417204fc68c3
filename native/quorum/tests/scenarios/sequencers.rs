//! The choice of the sequencer, and requests that wait for one that cannot help.

use crate::cluster::{at, unlocks, Cluster, SECOND};
use quorum::agent::Request;
use quorum::message::{Frame, Op};
use std::collections::BTreeSet;

/// The holder cannot reach the sequencer, which keeps its vote. The others are free: they are enough after a while.
#[test]
fn a_stale_vote_at_the_sequencer_is_passed_over() {
    for informed in [false, true] {
        let mut cluster = Cluster::new(3);
        let lock = cluster.locked(2, "x");
        cluster.cut(2, 0);
        cluster.cut(0, 2);
        if informed {
            let now = cluster.now;
            cluster.agents[2].down(now, at(0));
            cluster.agents[0].down(now, at(2));
        }
        let unlock = cluster.unlock(&lock);
        assert_eq!(cluster.unlocked(unlock), Some(true));
        let next = cluster.lock(1, "x", SECOND * 60);
        cluster.pass(SECOND * 3 / 2);
        assert!(cluster.is_granted(next));
    }
}

/// No voter has another request for the name, so there is no order to wait for.
#[test]
fn a_quorum_without_rivals_does_not_wait_for_the_sequencer() {
    let mut cluster = Cluster::new(3);
    cluster.hold(0, 2);
    let lock = cluster.locked(2, "x");
    cluster.release();
    assert!(cluster.held(&lock));
    cluster.unlock_last([lock]);
}

/// A voter has another request for the name: the sequencer decides, although a quorum has voted.
#[test]
fn a_quorum_with_a_rival_waits_for_the_sequencer() {
    let mut cluster = Cluster::new(7);
    let rival = with_one_vote(&mut cluster);
    cluster.hold(0, 6);
    let request = cluster.lock(6, "x", SECOND * 60);
    assert!(!cluster.is_granted(request));
    cluster.release();
    cluster.unlock_granted(request);
    cluster.unlock_granted(rival);
    cluster.assert_empty();
}

/// A request of node 5 for `x` that has the vote of voter 3 only, until frames are released.
fn with_one_vote(cluster: &mut Cluster) -> Request {
    for voter in [0, 1, 2, 4, 5, 6] {
        cluster.hold(5, voter);
    }
    cluster.lock(5, "x", SECOND * 60)
}

/// The sequencer disconnects, the next one is late, and the third was disconnected a short time ago: the third becomes
/// the sequencer, not the first.
#[test]
fn a_disconnected_voter_does_not_become_the_sequencer() {
    let mut cluster = Cluster::new(3);
    let now = cluster.now;
    cluster.agents[1].down(now, at(2));
    cluster.agents[1].up(now, at(2));
    cluster.run();
    (0..2).for_each(|voter| cluster.hold(1, voter));
    let request = cluster.lock(1, "x", SECOND * 60);
    cluster.isolate(0);
    (1..3).for_each(|node| cluster.agents[node].down(now, at(0)));
    cluster.pass(cluster.rules.hedge * 3);
    cluster.release();
    assert!(cluster.is_granted(request));
}

/// One long pause of an agent lengthens the round trips of all voters, of one after the other. None is slow because of
/// it.
#[test]
fn a_pause_of_the_agent_makes_no_voter_slow() {
    let mut cluster = Cluster::new(3);
    cluster.pass(SECOND * 5);
    (0..3).for_each(|voter| cluster.hold(voter, 1));
    let request = cluster.lock(1, "y", SECOND * 9);
    cluster.now = cluster.now + SECOND / 2;
    cluster.release();
    cluster.unlock_granted(request);
    cluster.locked(2, "x");
    cluster.batches();
    cluster.lock(1, "x", SECOND);
    let queued = |op: &Op| matches!(op, Op::Lock { wait: true, .. });
    let batches = cluster.batches().into_iter();
    let asked = batches.filter(|(from, _, batch)| *from == 1 && batch.ops.iter().any(queued));
    let asked: BTreeSet<_> = asked.map(|(_, to, _)| to).collect();
    assert_eq!(
        asked,
        BTreeSet::from([0]),
        "the first voter remains the sequencer"
    );
}

/// How many recalls have arrived.
fn recalls(cluster: &Cluster) -> usize {
    let recalls = |frame: &Frame| match frame {
        Frame::Notice(notice) => notice.recalls.len(),
        _ => 0,
    };
    let arrived = cluster.arrived.iter();
    arrived.map(|(_, send)| recalls(&send.frame)).sum()
}

/// An older writer usually unlocks soon, and gives no vote back before: it is recalled after a pause.
#[test]
fn an_older_writer_is_recalled_after_a_pause() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(1, "x");
    cluster.pass(SECOND * 2);
    let waits = cluster.lock(0, "x", SECOND * 60);
    cluster.pass(cluster.rules.keep / 2);
    assert_eq!(recalls(&cluster), 0);
    cluster.pass(cluster.rules.keep);
    assert_eq!(recalls(&cluster), 1);
    cluster.unlock(&lock);
    cluster.unlock_granted(waits);
    cluster.assert_empty();
}

/// A waiting writer recalls no votes of older readers: they would not give them back.
#[test]
fn older_readers_are_not_recalled() {
    let mut cluster = Cluster::new(3);
    let readers: Vec<_> = (0..10).map(|i| cluster.rlocked(1 + i % 2, "x")).collect();
    // The clock of node 0 passes those of the readers.
    cluster.pass(SECOND * 2);
    let writer = cluster.lock(0, "x", SECOND * 60);
    cluster.pass(SECOND * 5);
    assert_eq!(recalls(&cluster), 0);
    for reader in readers {
        cluster.unlock(&reader);
    }
    cluster.unlock_granted(writer);
    cluster.assert_empty();
}

/// A reader that releases its lock does not make the voters recall the other readers again.
#[test]
fn a_reader_that_leaves_repeats_no_recall() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|voter| cluster.hold(2, voter));
    let writer = cluster.lock(2, "x", SECOND * 60);
    let readers: Vec<_> = (0..3).map(|_| cluster.rlocked(1, "x")).collect();
    cluster.release();
    // The writer is older, and arrived late.
    let sent = recalls(&cluster);
    assert_eq!(sent, 3);
    cluster.unlock(&readers[0]);
    assert_eq!(recalls(&cluster), sent);
    cluster.unlock(&readers[1]);
    cluster.unlock(&readers[2]);
    cluster.unlock_granted(writer);
    cluster.assert_empty();
}

/// All voters are late. No other one is better than the sequencer, so a request keeps its position there.
#[test]
fn a_request_stays_if_all_voters_are_late() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let waits = cluster.lock(1, "x", SECOND * 60);
    cluster.batches();
    (1..3).for_each(|voter| cluster.hold(1, voter));
    let y = cluster.lock(1, "y", SECOND * 60);
    cluster.pass(cluster.rules.hedge * 3);
    cluster.hold(1, 0);
    let z = cluster.lock(1, "z", SECOND * 60);
    cluster.pass(cluster.rules.hedge * 3);
    cluster.release();
    assert_eq!(unlocks(&cluster.ops()), 0);
    cluster.unlock_granted(y);
    cluster.unlock_granted(z);
    cluster.unlock(&lock);
    cluster.unlock_granted(waits);
    cluster.assert_empty();
}

/// The sequencer stops voting: requests that wait there ask another one, which tells them when the name is free.
#[test]
fn requests_leave_a_voter_that_stops_voting() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(1, "x");
    let waits = cluster.lock(2, "x", SECOND * 60);
    let now = cluster.now;
    cluster.voters[0].conflict(now, true);
    cluster.run();
    cluster.hold(1, 0);
    cluster.try_unlock(&lock);
    assert!(cluster.is_granted(waits));
    cluster.release();
    cluster.voters[0].conflict(now, false);
    cluster.unlock_last([cluster.granted(waits)]);
}

/// No voter answers in time, and a request pauses. It asks as soon as a voter answers again.
#[test]
fn a_voter_that_answers_again_is_asked_at_once() {
    let mut cluster = Cluster::new(3);
    (1..3).for_each(|voter| cluster.hold(voter, 0));
    cluster.pass(SECOND * 4);
    let request = cluster.lock(0, "x", SECOND * 60);
    cluster.pass(SECOND * 3);
    assert!(!cluster.is_granted(request));
    let now = cluster.now;
    cluster.release();
    assert_eq!(cluster.now, now);
    cluster.unlock_last([cluster.granted(request)]);
}

/// The sequencer is late, and the others were disconnected a short time ago, but answer: one of them becomes the
/// sequencer.
#[test]
fn a_late_voter_is_asked_after_those_that_answer() {
    let mut cluster = Cluster::new(7);
    let now = cluster.now;
    for voter in 1..7 {
        cluster.agents[6].down(now, at(voter));
        cluster.agents[6].up(now, at(voter));
    }
    cluster.run();
    let rival = with_one_vote(&mut cluster);
    cluster.hold(0, 6);
    let request = cluster.lock(6, "x", SECOND * 60);
    assert!(!cluster.is_granted(request));
    cluster.pass(cluster.rules.hedge * 3);
    assert!(cluster.is_granted(request));
    cluster.release();
    cluster.unlock_granted(request);
    cluster.unlock_granted(rival);
}
