//! Votes that voters give unasked: lost and late notices, many of them, and links with a long round trip.

use super::cluster::{at, rules, Cluster, NEW, SECOND};
use quorum::agent::Agent;
use quorum::message::{Frame, Op, Send};
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::voter::Voter;
use std::collections::VecDeque;
use std::time::Duration;

/// A node stops while it waits, and the notices of two voters that give it their votes are lost. The voters take the
/// votes back. When the node goes on, it waits as before, also if it was disconnected before all that.
#[test]
fn a_request_whose_votes_were_taken_back_still_waits() {
    for was_disconnected in [false, true] {
        let mut cluster = Cluster::new(3);
        let (now, node) = (cluster.now, cluster.node(1));
        for voter in [0, 2].into_iter().filter(|_| was_disconnected) {
            cluster.voters[voter].down(now, node);
            cluster.agents[1].down(now, at(voter));
            cluster.agents[1].up(now, at(voter));
        }
        cluster.run();
        let lock = cluster.locked(0, "x");
        let next = cluster.lock(1, "x", Duration::MAX);
        cluster.pass(cluster.rules.wait / 3);
        [0, 2].into_iter().for_each(|voter| cluster.cut(voter, 1));
        cluster.unlock_async(&lock);
        [0, 2].into_iter().for_each(|voter| cluster.mend(voter, 1));
        assert!(!cluster.is_granted(next));
        cluster.now = cluster.now + cluster.rules.wait * 2;
        for voter in [0, 2] {
            cluster.voters[voter].tick(cluster.now);
            assert_eq!(cluster.voters[voter].queued(), 1);
        }
        cluster.run();
        cluster.pass(cluster.rules.heartbeat);
        cluster.unlock_last([cluster.granted(next)]);
    }
}

/// Unasked votes are confirmed soon after the grant, so that the lock survives when its node cannot reach the voters
/// for a time. A lock that is unlocked before confirms nothing.
#[test]
fn unasked_votes_are_confirmed_soon() {
    for is_short in [false, true] {
        let mut cluster = Cluster::new(3);
        let (patience, wait) = (cluster.rules.patience, cluster.rules.wait);
        let lock = cluster.locked(0, "x");
        let next = cluster.lock(1, "x", Duration::MAX);
        cluster.unlock_async(&lock);
        let lock = cluster.granted(next);
        let confirms = |op: &Op| matches!(op, Op::Confirm { .. });
        assert!(!cluster.ops().iter().any(confirms));
        cluster.pass(patience - Duration::from_millis(1));
        assert_eq!(cluster.ops(), []);
        if is_short {
            cluster.unlock_last([lock]);
            assert!(!cluster.ops().iter().any(confirms));
            continue;
        }
        cluster.pass(Duration::from_millis(1));
        [0, 1].into_iter().for_each(|voter| cluster.cut(1, voter));
        cluster.pass(wait);
        assert!(cluster.held(&lock) && cluster.lost.is_empty());
        cluster.heal();
        cluster.pass(cluster.rules.heartbeat);
        cluster.unlock_last([lock]);
    }
}

/// With the shortest lease, too, a lock that was just granted by unasked votes survives when the frames of its node are
/// late for a third of a second.
#[test]
fn unasked_votes_of_a_short_lease_survive_a_pause() {
    let mut cluster = Cluster::with(3, Rules::of(SECOND), NEW);
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", Duration::MAX);
    cluster.unlock_async(&lock);
    let lock = cluster.granted(next);
    [0, 1].into_iter().for_each(|voter| cluster.hold(1, voter));
    cluster.pass(SECOND / 3);
    cluster.release();
    cluster.pass(SECOND * 2);
    assert!(cluster.held(&lock) && cluster.lost.is_empty());
    cluster.unlock_last([lock]);
}

/// A lease with many locks ends, and the next node dies silently. The voter gives many votes and takes them back, in
/// steps that are due at once.
#[test]
fn many_votes_are_given_and_taken_back_in_steps() {
    const COUNT: usize = 40;
    let mut cluster = Cluster::with(3, rules(|rules| rules.batch = 4), NEW);
    let wait = cluster.rules.wait;
    cluster.locked_many(0, "x", COUNT);
    for i in 0..COUNT {
        cluster.lock(1, &format!("x{i}"), Duration::MAX);
    }
    cluster.pass(SECOND);
    cluster.locked(0, "y");
    cluster.isolate(0);
    cluster.pass(cluster.rules.voter_lease - wait / 3);
    let (node, mut now) = (cluster.node(1), cluster.now);
    let voter = &mut cluster.voters[2];
    for (later, votes, queued) in [(wait / 3, COUNT, 0), (wait * 2, 0, COUNT)] {
        now = now + later;
        let mut steps = 0;
        while voter.deadline().is_some_and(|at| at <= now) {
            voter.tick(now);
            steps += 1;
            assert!(steps < 10 * COUNT);
        }
        let mut agents = voter.agents();
        let has = agents.find(|agent| agent.0 == node).map(|agent| agent.1);
        drop(agents);
        assert_eq!((has, voter.queued()), (Some(votes), queued));
        assert!(steps >= COUNT / 4, "{steps} steps");
    }
}

/// Q9: the same, and the node is disconnected. It has no position until it asks again.
#[test]
fn a_vote_that_was_taken_back_from_a_disconnected_node_leaves_no_position() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", Duration::MAX);
    cluster.pass(cluster.rules.wait / 3);
    [0, 2]
        .into_iter()
        .for_each(|voter| cluster.cut_both(voter, 1));
    cluster.unlock_async(&lock);
    let (now, node) = (cluster.now, cluster.node(1));
    cluster.now = now + cluster.rules.wait * 2;
    for voter in [0, 2] {
        cluster.voters[voter].down(now, node);
        cluster.agents[1].down(now, at(voter));
        cluster.voters[voter].tick(cluster.now);
        assert_eq!(cluster.voters[voter].queued(), 0);
    }
    cluster.heal();
    [0, 2]
        .into_iter()
        .for_each(|voter| cluster.agents[1].up(now, at(voter)));
    cluster.run();
    cluster.pass(cluster.rules.heartbeat);
    cluster.unlock_last([cluster.granted(next)]);
}

/// Two voters give a lock its votes, and the notice of the third one, which gave its vote before, arrives when that
/// vote does not count any more.
#[test]
fn a_late_vote_ends_no_other_vote() {
    let mut cluster = Cluster::new(3);
    let wait = cluster.rules.wait;
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", Duration::MAX);
    cluster.pass(wait / 3);
    cluster.pass(wait / 15);
    [(0, 0), (0, 1), (2, 1)]
        .into_iter()
        .for_each(|(from, to)| cluster.hold(from, to));
    cluster.unlock_async(&lock);
    cluster.pass(wait * 19 / 30);
    cluster.release_link(0, 0);
    cluster.release_link(0, 1);
    let lock = cluster.granted(next);
    cluster.pass(wait * 4 / 30);
    cluster.release();
    assert_eq!(cluster.lost, []);
    cluster.pass(cluster.rules.voter_lease * 2);
    assert!(cluster.held(&lock) && cluster.lost.is_empty());
    cluster.unlock_last([lock]);
}

/// Voter 0 gives a request its vote, does not hear its node, and takes the vote back. Another writer has the lock in
/// the meantime. Then voter 0 gives its vote again, and that notice is lost: the request learns the new fence from the
/// answer to the next batch, which confirms the vote, or lists it after a batch without an answer.
#[test]
fn a_vote_that_is_given_again_has_a_new_fence() {
    for is_unanswered in [false, true] {
        let mut cluster = Cluster::new(3);
        let wait = cluster.rules.wait;
        let first = cluster.locked(0, "x");
        let next = cluster.lock(1, "x", Duration::MAX);
        // From here on, voter 1 hears node 1 only, and a batch of node 1 is on its way to voter 0.
        cluster.cut_both(1, 2);
        cluster.hold(1, 0);
        cluster.hold(0, 1);
        cluster.pass(wait / 3);
        cluster.unlock_async(&first);
        let notice = given(&mut cluster.wire, 1);
        cluster.deliver(0, notice);
        cluster.run();
        // Node 1 stops for a while.
        cluster.now = cluster.now + wait;
        let now = cluster.now;
        [0, 2]
            .into_iter()
            .for_each(|voter| cluster.voters[voter].tick(now));
        let other = cluster.locked(2, "x");
        cluster.unlock(&other);
        assert!(!cluster.is_granted(next));
        cluster.release_link(1, 0);
        cluster.voters[0].tick(now);
        cluster.run();
        given(&mut cluster.wire, 1);
        if is_unanswered {
            cluster.agents[1].tick(now);
        }
        cluster.release_link(0, 1);
        let lock = cluster.granted(next);
        assert!(lock.fence > other.fence, "{lock:?} {other:?}");
        cluster.heal();
        cluster.unlock_last([lock]);
    }
}

/// A voter gives a vote unasked, and answers nothing any more. When the next vote arrives, the first one counts hardly
/// any longer. It grants no lock: another voter is about to give its vote.
#[test]
fn a_vote_that_ends_soon_grants_no_lock() {
    let mut cluster = Cluster::new(3);
    let wait = cluster.rules.wait;
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", Duration::MAX);
    cluster.pass(wait / 3);
    [(0, 1), (0, 2), (2, 1)]
        .into_iter()
        .for_each(|(from, to)| cluster.hold(from, to));
    cluster.unlock_async(&lock);
    let notice = given(&mut cluster.wire, 1);
    cluster.deliver(0, notice);
    cluster.cut(1, 0);
    cluster.pass(wait * 11 / 15);
    cluster.release_link(0, 2);
    cluster.release_link(0, 1);
    cluster.pass(wait * 2 / 15);
    cluster.release();
    cluster.pass(cluster.rules.voter_lease);
    assert_eq!(cluster.lost, []);
    cluster.unlock_last([cluster.granted(next)]);
}

/// Nor is a lock passed on that needs such a vote: the next holder would lose it soon.
#[test]
fn a_lock_whose_vote_ends_soon_is_not_passed_on() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.run = 16), NEW);
    let wait = cluster.rules.wait;
    let lock = cluster.locked(0, "x");
    let next = [(); 2].map(|()| cluster.lock(1, "x", Duration::MAX));
    cluster.pass(wait / 3);
    cluster.hold(0, 2);
    cluster.unlock_async(&lock);
    cluster.cut(1, 0);
    cluster.pass(wait * 11 / 15);
    cluster.unlock_granted(next[0]);
    cluster.pass(wait * 2 / 15);
    cluster.release();
    cluster.pass(cluster.rules.voter_lease);
    assert_eq!(cluster.lost, []);
    cluster.heal();
    cluster.unlock_last([cluster.granted(next[1])]);
}

/// Takes a notice of a vote from the frames that are on their way to a node.
fn given(wire: &mut VecDeque<(usize, Send)>, node: usize) -> Send {
    let is_given = |(_, send): &(usize, Send)| match &send.frame {
        Frame::Notice(notice) => send.to == at(node).into() && !notice.given.is_empty(),
        _ => false,
    };
    let place = wire.iter().position(is_given).expect("a notice");
    wire.remove(place).expect("it is there").1
}

/// One unlock frees more names than a batch can confirm. All votes are confirmed in time, also over a slow link.
#[test]
fn many_votes_are_confirmed_in_time() {
    for latency_ms in [0, 100] {
        let cluster = Cluster::with(3, rules(|rules| rules.batch = 4), NEW);
        let mut slow = Slow::new(cluster, Duration::from_millis(latency_ms));
        slow.pass(SECOND);
        let names: Vec<String> = (0..40).map(|i| format!("x{i}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let first = slow.cluster.lock_many(0, &all, Duration::MAX);
        slow.pass(SECOND);
        let next = names.iter();
        let next = next.map(|name| slow.cluster.lock(1, name, Duration::MAX));
        let next: Vec<_> = next.collect();
        slow.pass(SECOND * 10);
        let first = slow.cluster.granted(first);
        slow.cluster.unlock_async(&first);
        // Ten batches, one after the other.
        slow.pass(SECOND * 3);
        let locks: Vec<_> = next.iter().map(|one| slow.cluster.granted(*one)).collect();
        slow.pass(SECOND * 20);
        assert_eq!(slow.cluster.lost, []);
        assert!(locks.iter().all(|lock| slow.cluster.held(lock)));
    }
}

/// Each frame arrives `latency` after it was sent.
struct Slow {
    cluster: Cluster,
    latency: Duration,
    wire: Vec<(Time, usize, Send)>,
}

impl Slow {
    fn new(mut cluster: Cluster, latency: Duration) -> Slow {
        (0..9).for_each(|link| cluster.hold(link / 3, link % 3));
        Slow {
            cluster,
            latency,
            wire: Vec::new(),
        }
    }

    fn collect(&mut self) {
        self.cluster.run();
        let now = self.cluster.now;
        for (from, send) in std::mem::take(&mut self.cluster.wire) {
            // Voter and agent of a node.
            let is_far = self.cluster.place(send.to) != from;
            let latency = if is_far { self.latency } else { Duration::ZERO };
            self.wire.push((now + latency, from, send));
        }
    }

    fn pass(&mut self, span: Duration) {
        let end = self.cluster.now + span;
        self.collect();
        while self.cluster.now < end {
            let agents = self.cluster.agents.iter().filter_map(Agent::deadline);
            let voters = self.cluster.voters.iter().filter_map(Voter::deadline);
            let frames = self.wire.iter().map(|frame| frame.0);
            let next = agents.chain(voters).chain(frames).min().unwrap_or(end);
            let now = next.clamp(self.cluster.now + Duration::from_nanos(1), end);
            self.cluster.now = now;
            let is_due = |frame: &(Time, usize, Send)| frame.0 <= now;
            let (due, later) = std::mem::take(&mut self.wire).into_iter().partition(is_due);
            self.wire = later;
            let due: Vec<_> = due;
            due.into_iter()
                .for_each(|(_, from, send)| self.cluster.deliver(from, send));
            self.cluster
                .agents
                .iter_mut()
                .for_each(|agent| agent.tick(now));
            self.cluster
                .voters
                .iter_mut()
                .for_each(|voter| voter.tick(now));
            self.collect();
        }
    }
}

/// A lock that was granted by unasked votes is not lost, whatever the round trip, and whenever it was granted between
/// two batches.
#[test]
fn unasked_votes_are_confirmed_in_time_over_long_links() {
    for round_trip_ms in [50, 150, 250, 400, 700] {
        for unlock_ms in (0..500).step_by(25) {
            let mut slow = Slow::new(Cluster::new(3), Duration::from_millis(round_trip_ms / 2));
            let lock = slow.cluster.lock(0, "x", SECOND * 60);
            slow.pass(SECOND * 3);
            let lock = slow.cluster.granted(lock);
            let next = slow.cluster.lock(1, "x", SECOND * 60);
            slow.pass(SECOND * 3 + Duration::from_millis(unlock_ms));
            slow.cluster.unlock_async(&lock);
            slow.pass(SECOND * 10);
            let lock = slow.cluster.granted(next);
            assert_eq!(slow.cluster.lost, [], "{round_trip_ms} {unlock_ms}");
            assert!(slow.cluster.held(&lock));
        }
    }
}
