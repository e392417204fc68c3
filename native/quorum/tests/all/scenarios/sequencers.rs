//! The choice of the sequencer, and requests that wait for one that cannot help.

use super::cluster::{at, known, unlocks, Cluster, SECOND};
use quorum::agent::{Count, Request};
use quorum::message::{Batch, Frame, Op};
use std::time::Duration;

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

/// No voter has another request for the name, so there is no order to wait for. The sequencer is late, and the third
/// voter replaces it.
#[test]
fn a_quorum_without_rivals_does_not_wait_for_the_sequencer() {
    let mut cluster = Cluster::new(3);
    cluster.hold(0, 2);
    let request = cluster.lock(2, "x", SECOND);
    cluster.pass(cluster.rules.hedge * 2);
    let lock = cluster.granted(request);
    cluster.release();
    // Its answer is so late that it is asked last.
    assert_eq!(cluster.counted, [(2, Count::AskedLast)]);
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

/// The sequencer disconnects, and the next voter is late: the third becomes the sequencer, not the first.
#[test]
fn a_disconnected_voter_does_not_become_the_sequencer() {
    let mut cluster = Cluster::new(3);
    (0..2).for_each(|voter| cluster.hold(1, voter));
    let request = cluster.lock(1, "x", SECOND * 60);
    cluster.isolate(0);
    let now = cluster.now;
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
    assert_eq!(sequencer(&mut cluster, 1), 0);
}

/// The voter that a contended request of this node asks first.
fn sequencer(cluster: &mut Cluster, node: usize) -> usize {
    let lock = cluster.locked((node + 1) % cluster.agents.len(), "contended");
    cluster.batches();
    let request = cluster.lock(node, "contended", SECOND * 60);
    let queued = |op: &Op| matches!(op, Op::Lock { wait: true, .. });
    let asks = |from: usize, batch: &Batch| from == node && batch.ops.iter().any(queued);
    let asked: Vec<_> = cluster
        .batches()
        .into_iter()
        .filter(|(from, _, batch)| asks(*from, batch))
        .map(|(_, to, _)| to)
        .collect();
    cluster.unlock(&lock);
    cluster.unlock_granted(request);
    // In its wide attempt, and in the ordered one.
    assert!(asked.iter().all(|to| *to == asked[0]), "{asked:?}");
    asked[0]
}

/// The first voter answers node 1 after this time.
fn answer_after(cluster: &mut Cluster, time: Duration) {
    cluster.hold(0, 1);
    let request = cluster.lock(1, "y", SECOND * 60);
    cluster.pass(time);
    cluster.release();
    cluster.unlock_granted(request);
}

/// On a busy machine, a long round trip is usual.
#[test]
fn an_answer_is_late_later_if_round_trips_vary() {
    let mut cluster = Cluster::new(3);
    let hedge = cluster.rules.hedge;
    // Each unlock is answered at once.
    (0..8).for_each(|_| answer_after(&mut cluster, hedge * 3 / 2));
    answer_after(&mut cluster, hedge * 3);
    assert_eq!(sequencer(&mut cluster, 1), 0);
}

/// For ten times as long as its answer took, at most for `demotion`.
#[test]
fn a_late_voter_is_asked_last_for_a_while() {
    for late_ms in [75, 600] {
        let mut cluster = Cluster::new(3);
        let late = Duration::from_millis(late_ms);
        let time = (late * 10).min(cluster.rules.demotion);
        answer_after(&mut cluster, late);
        assert_eq!(sequencer(&mut cluster, 1), 1);
        cluster.pass(time * 9 / 10);
        assert_eq!(sequencer(&mut cluster, 1), 1);
        cluster.pass(time / 5);
        assert_eq!(sequencer(&mut cluster, 1), 0);
    }
}

/// A late answer does not shorten the time for which a voter is asked last that did not answer.
#[test]
fn a_voter_that_did_not_answer_is_asked_last_for_the_demotion() {
    let mut cluster = Cluster::new(3);
    let (attempt, demotion) = (cluster.rules.attempt, cluster.rules.demotion);
    cluster.cut(0, 1);
    let request = cluster.lock(1, "y", SECOND * 60);
    cluster.pass(attempt * 3 / 2);
    cluster.unlock_granted(request);
    cluster.mend(0, 1);
    // Its next answer, also missed, was due now.
    cluster.pass(attempt / 2);
    let late = cluster.rules.hedge * 3;
    answer_after(&mut cluster, late);
    cluster.pass(demotion - late * 2);
    assert_eq!(sequencer(&mut cluster, 1), 1);
    cluster.pass(late * 2);
    assert_eq!(sequencer(&mut cluster, 1), 0);
}

/// All answers to node 1 take this time: those of the first voter, and those of the others.
fn answer_slowly(cluster: &mut Cluster, first: Duration, others: Duration) {
    for _ in 0..8 {
        (0..3).for_each(|voter| cluster.hold(voter, 1));
        let request = cluster.lock(1, "y", SECOND * 60);
        answer(cluster, first, others);
        (0..3).for_each(|voter| cluster.hold(voter, 1));
        cluster.unlock_granted(request);
        answer(cluster, first, others);
    }
}

fn answer(cluster: &mut Cluster, first: Duration, others: Duration) {
    cluster.pass(others);
    (1..3).for_each(|voter| cluster.release_link(voter, 1));
    cluster.pass(first - others);
    cluster.release();
}

/// It is not late. But it takes more than 10 ms, and more than four times as long as the others.
#[test]
fn a_slow_voter_is_asked_last() {
    for (first_ms, others_ms, expected) in [(9, 0, 0), (30, 0, 1), (30, 9, 0), (30, 6, 1)] {
        let [first, others] = [first_ms, others_ms].map(Duration::from_millis);
        let mut cluster = Cluster::new(3);
        // All voters were measured.
        cluster.pass(SECOND * 5);
        answer_slowly(&mut cluster, first, others);
        let chosen = sequencer(&mut cluster, 1);
        assert_eq!(chosen, expected, "{first:?} {others:?}");
    }
}

/// A request that waits at the sequencer asks another voter when the sequencer becomes slow.
#[test]
fn requests_leave_a_voter_that_becomes_slow() {
    let mut cluster = Cluster::new(3);
    // All voters were measured.
    cluster.pass(SECOND * 5);
    let lock = cluster.locked(2, "x");
    let waits = cluster.lock(1, "x", SECOND * 60);
    answer_slowly(&mut cluster, Duration::from_millis(30), Duration::ZERO);
    cluster.hold(0, 1);
    cluster.try_unlock(&lock);
    assert!(cluster.is_granted(waits));
    cluster.release();
    cluster.unlock_last([cluster.granted(waits)]);
}

/// Its last lifetime was slow, and asked last for a while.
#[test]
fn a_restarted_voter_is_as_good_as_the_others() {
    let mut cluster = Cluster::new(3);
    answer_slowly(&mut cluster, SECOND / 2, Duration::ZERO);
    assert_eq!(sequencer(&mut cluster, 1), 1);
    cluster.restart_voter(0, known(1000));
    let heartbeat = cluster.rules.heartbeat;
    cluster.pass(heartbeat);
    assert_eq!(sequencer(&mut cluster, 1), 0);
}

/// If agents used different sequencers after each start of a node, all of them would be slower for a while.
#[test]
fn a_voter_that_was_disconnected_is_as_good_as_before() {
    let mut cluster = Cluster::new(3);
    let now = cluster.now;
    cluster.agents[1].down(now, at(0));
    assert_eq!(sequencer(&mut cluster, 1), 1);
    cluster.agents[1].up(now, at(0));
    cluster.run();
    assert_eq!(sequencer(&mut cluster, 1), 0);
}

/// Nodes start one after the other, and the first frames to a node that has not started yet are lost.
#[test]
fn a_voter_that_has_just_started_is_as_good_as_the_others() {
    let mut cluster = Cluster::new(3);
    cluster.cut(1, 0);
    cluster.restart_agent(1);
    cluster.pass(cluster.rules.attempt * 2);
    assert_eq!(sequencer(&mut cluster, 1), 1);
    cluster.heal();
    cluster.pass(cluster.rules.heartbeat);
    assert_eq!(sequencer(&mut cluster, 1), 0);
}

/// A voter answers that it is busy after it was asked again, which the agent has sent already. The second question must
/// be withdrawn with the request.
#[test]
fn a_voter_that_was_asked_twice_keeps_no_vote() {
    let mut cluster = Cluster::new(5);
    // The rival gets the votes of 1 and 3. The answers of 0 and 3 arrive, and that of 1 after the second question.
    for voter in [0, 2, 4] {
        cluster.hold(1, voter);
    }
    let rival = cluster.lock(1, "x", SECOND * 60);
    for voter in [2, 4] {
        cluster.hold(voter, 4);
    }
    let request = cluster.lock(4, "x", SECOND * 60);
    cluster.hold(4, 1);
    cluster.release_link(1, 4);
    let now = cluster.now;
    cluster.agents[4].cancel(now, request);
    cluster.agents[1].cancel(now, rival);
    cluster.run();
    cluster.batches();
    cluster.release();
    let repairs = |op: &Op| matches!(op, Op::Sync { .. });
    assert!(!cluster.ops().iter().any(repairs));
    cluster.assert_empty();
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

/// The sequencer is late, and the others were late a short time ago, but answer: one of them becomes the sequencer.
#[test]
fn a_late_voter_is_asked_after_those_that_answer() {
    let mut cluster = Cluster::new(7);
    (1..7).for_each(|voter| cluster.hold(voter, 6));
    cluster.lock(6, "y", SECOND * 60);
    cluster.pass(cluster.rules.hedge * 3);
    cluster.release();
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
