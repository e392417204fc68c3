//! Locks that are passed on from one of a node to the next: without a word to voters, and never without end.

use crate::cluster::{name, Answer, Cluster, Lock, NEW, SECOND};
use quorum::agent::{Refusal, Request};
use quorum::frame::MAX_FENCE;
use quorum::message::{Fence, Mode, Op};
use quorum::rules::Rules;
use quorum::voter::Fences;
use std::time::Duration;

/// Longer than all that a test does.
const LONG: Duration = Duration::from_secs(60);

/// Node 1 has x, and so many of node 0 wait for it.
fn in_line(rules: Rules, count: usize) -> (Cluster, Lock, Vec<Request>) {
    let mut cluster = Cluster::with(3, rules, NEW);
    let lock = cluster.locked(1, "x");
    let waiting = (0..count).map(|_| cluster.lock(0, "x", LONG)).collect();
    (cluster, lock, waiting)
}

/// Their turn comes: a hint tells them at once.
fn their_turn(count: usize) -> (Cluster, Vec<Request>) {
    let (mut cluster, lock, waiting) = in_line(Rules::default(), count);
    cluster.try_unlock(&lock);
    cluster.arrived.clear();
    (cluster, waiting)
}

fn runs(ops: &[Op]) -> Vec<u8> {
    let run = |op: &Op| match op {
        Op::Lock { run, .. } => Some(run.get()),
        _ => None,
    };
    ops.iter().filter_map(run).collect()
}

/// Q5, Q6: each of them has a fence of its own, higher than all before, which a quorum has written down; and the voters
/// hear nothing until the last one has given it back.
#[test]
fn locks_are_passed_on_in_silence() {
    let (mut cluster, waiting) = their_turn(3);
    let mut last = 1;
    for (place, request) in waiting.iter().enumerate() {
        let lock = cluster.granted(*request);
        assert_eq!(lock.fence, last + 1);
        last = lock.fence;
        assert!(cluster.held(&lock));
        let written = cluster
            .voters
            .iter()
            .filter(|voter| voter.fence(&name("x")).0 >= last);
        assert!(written.count() >= 2);
        assert_eq!(cluster.ops(), []);
        let request = cluster.try_unlock(&lock);
        assert!(matches!(cluster.answers[&request], Answer::Accepted));
        assert!(!cluster.held(&lock));
        let ops = cluster.ops();
        // The last fence of the run, whoever of it was the last.
        let unlocked = |op: &Op| match op {
            Op::Unlock { fence, .. } => Some(fence.0),
            _ => None,
        };
        let unlocks: Vec<u64> = ops.iter().filter_map(unlocked).collect();
        assert_eq!(unlocks, if place == 2 { vec![4; 3] } else { vec![] });
    }
    let next = cluster.locked(2, "x");
    assert_eq!(next.fence, last + 1);
    cluster.try_unlock(&next);
    cluster.assert_empty();
}

/// Q5: the one that held it first is out, and what is left of the run is nobody's.
#[test]
fn fences_that_were_not_used_are_passed_over() {
    let (mut cluster, waiting) = their_turn(3);
    waiting[1..].iter().for_each(|request| {
        cluster.agents[0].cancel(cluster.now, *request);
    });
    let lock = cluster.granted(waiting[0]);
    cluster.arrived.clear();
    cluster.try_unlock(&lock);
    let ops = cluster.ops();
    let last = |op: &Op| matches!(op, Op::Unlock { fence, .. } if fence.0 == lock.fence + 2);
    assert_eq!(ops.iter().filter(|op| last(op)).count(), 3, "{ops:?}");
    assert_eq!(cluster.locked(2, "x").fence, lock.fence + 3);
}

/// Q5: near the last number of all there is no run that has room for none.
#[test]
fn the_last_fences_are_given_once() {
    let fences = Fences {
        floor: Some(Fence(MAX_FENCE - 2)),
        ..NEW
    };
    let mut cluster = Cluster::with(3, Rules::default(), fences);
    let lock = cluster.locked(1, "x");
    assert_eq!(lock.fence, MAX_FENCE - 1);
    let [first, second] = [2, 4].map(|within| cluster.lock(0, "x", SECOND * within));
    cluster.try_unlock(&lock);
    cluster.pass(SECOND * 3);
    assert_eq!(cluster.refused(first), Refusal::Timeout);
    assert_eq!(cluster.granted(second).fence, MAX_FENCE);
}

/// What a voter has said is a guess for the next attempt, with room for its run: so all say the same.
#[test]
fn a_guess_has_room_for_the_run() {
    let mut cluster = Cluster::new(3);
    cluster.restart_voter(
        0,
        Fences {
            floor: Some(Fence(1000)),
            ..NEW
        },
    );
    cluster.pass(Rules::default().quarantine);
    (1..3).for_each(|voter| cluster.hold(0, voter));
    let waiting = [0; 3].map(|node| cluster.lock(node, "x", LONG));
    cluster.pass(SECOND * 2);
    cluster.arrived.clear();
    cluster.heal();
    cluster.pass(SECOND * 3);
    let ops = cluster.ops();
    let guess = |op: &Op| match op {
        Op::Lock { guess, run, .. } if run.get() == 3 => Some(guess.0),
        _ => None,
    };
    assert_eq!(ops.iter().find_map(guess), Some(1001 + 3), "{ops:?}");
    assert!(cluster.is_granted(waiting[0]));
}

/// Q7, Q8: each has a token of its own; with an earlier one nothing is given back.
#[test]
fn an_earlier_holder_gives_nothing_back() {
    let (mut cluster, waiting) = their_turn(3);
    let mut before: Vec<Lock> = Vec::new();
    for request in waiting {
        let lock = cluster.granted(request);
        for earlier in &before {
            assert_ne!(earlier.token, lock.token);
            assert!(!cluster.held(earlier));
            assert!(!cluster.agents[0].try_unlock(cluster.now, earlier.token, Request(1000)));
            assert!(!cluster.agents[0].unlock(cluster.now, earlier.token, Request(1001)));
        }
        assert!(cluster.held(&lock));
        let told: Vec<_> = cluster.agents[0].locks().map(|held| held.token).collect();
        assert_eq!(told, [lock.token]);
        cluster.try_unlock(&lock);
        before.push(lock);
    }
    cluster.assert_empty();
}

/// An unlock is done when the next one has it: there is no quorum to wait for.
#[test]
fn an_unlock_of_what_is_passed_on_is_done_at_once() {
    let (mut cluster, waiting) = their_turn(2);
    (0..3).for_each(|voter| cluster.hold(0, voter));
    let done = |cluster: &Cluster, request| {
        let answer = cluster.answers.get(&request);
        matches!(answer, Some(Answer::Unlocked { confirmed: true }))
    };
    let first = cluster.granted(waiting[0]);
    let request = cluster.unlock(&first);
    assert!(done(&cluster, request));
    let second = cluster.granted(waiting[1]);
    let request = cluster.unlock(&second);
    assert!(!done(&cluster, request));
    cluster.heal();
    assert!(done(&cluster, request));
}

/// A run is as long as the line was, and no longer than the rule says: then it is the turn of others.
#[test]
fn a_run_ends() {
    let rules = Rules {
        run: 4,
        ..Rules::default()
    };
    let (mut cluster, lock, waiting) = in_line(rules, 10);
    let other = cluster.lock(2, "x", LONG);
    cluster.arrived.clear();
    cluster.try_unlock(&lock);
    assert_eq!(runs(&cluster.ops()).iter().max(), Some(&4));
    for request in &waiting[..4] {
        assert!(!cluster.is_granted(other));
        let lock = cluster.granted(*request);
        cluster.try_unlock(&lock);
    }
    assert!(!cluster.is_granted(waiting[4]));
    cluster.pass(rules.retry_most);
    assert!(cluster.is_granted(other));
}

/// Who comes later than the run was asked for waits for the next one.
#[test]
fn a_run_does_not_grow() {
    let (mut cluster, waiting) = their_turn(2);
    let late = cluster.lock(0, "x", LONG);
    let other = cluster.lock(2, "x", LONG);
    for request in waiting {
        let lock = cluster.granted(request);
        cluster.try_unlock(&lock);
    }
    assert!(!cluster.is_granted(late));
    cluster.pass(SECOND);
    assert!(cluster.is_granted(other));
}

/// Holders that take their time do not keep others waiting for a whole run.
#[test]
fn a_run_has_a_time() {
    let (mut cluster, waiting) = their_turn(3);
    let other = cluster.lock(2, "x", LONG);
    cluster.pass(Rules::default().run_time);
    let lock = cluster.granted(waiting[0]);
    cluster.try_unlock(&lock);
    assert!(!cluster.is_granted(waiting[1]));
    cluster.pass(SECOND);
    assert!(cluster.is_granted(other));
}

/// Readers, and whoever wants more than one name, are no part of a run.
#[test]
fn only_writers_of_one_name_are_passed_on_to() {
    let kinds: [fn(&mut Cluster) -> Request; 2] = [
        |cluster| cluster.rlock(0, "x", LONG),
        |cluster| cluster.lock_many(0, &["x", "y"], LONG),
    ];
    for ask in kinds {
        let (mut cluster, lock, waiting) = in_line(Rules::default(), 1);
        let other = ask(&mut cluster);
        let last = cluster.lock(0, "x", LONG);
        cluster.arrived.clear();
        cluster.try_unlock(&lock);
        assert_eq!(runs(&cluster.ops()).iter().max(), Some(&1));
        let lock = cluster.granted(waiting[0]);
        cluster.try_unlock(&lock);
        cluster.pass(SECOND);
        let lock = cluster.granted(other);
        cluster.try_unlock(&lock);
        cluster.pass(SECOND);
        assert!(cluster.is_granted(last));
    }
}

/// A reader's lock, and one of more than one name, are nothing to pass on.
#[test]
fn other_locks_are_not_passed_on() {
    let mut cluster = Cluster::new(3);
    let read = cluster.rlocked(0, "x");
    let many = cluster.lock_many(0, &["y", "z"], SECOND);
    let waiting = ["x", "y"].map(|name| cluster.lock(0, name, LONG));
    cluster.arrived.clear();
    cluster.try_unlock(&read);
    let many = cluster.granted(many);
    cluster.try_unlock(&many);
    let unlocks = cluster.ops();
    let unlocks = unlocks.iter().filter(|op| matches!(op, Op::Unlock { .. }));
    assert_eq!(unlocks.count(), 6);
    cluster.pass(SECOND);
    for request in waiting {
        assert!(cluster.is_granted(request));
    }
}

/// Q9: what is lost is not passed on. Whoever holds it hears of it, by the token that is its own, and the next one asks
/// the voters.
#[test]
fn what_is_lost_is_not_passed_on() {
    let (mut cluster, waiting) = their_turn(3);
    let first = cluster.granted(waiting[0]);
    cluster.try_unlock(&first);
    let second = cluster.granted(waiting[1]);
    cluster.agents[2].revoke(cluster.now, name("x"));
    cluster.pass(SECOND);
    assert_eq!(
        cluster.lost.iter().map(|lost| lost.0).collect::<Vec<_>>(),
        [second.token]
    );
    let third = cluster.granted(waiting[2]);
    assert!(third.fence > second.fence);
    assert!(cluster.held(&third));
    cluster.try_unlock(&third);
    cluster.assert_empty();
}

/// Whoever gets a lock can count on it for a while.
#[test]
fn what_is_at_risk_is_not_passed_on() {
    let rules = Rules {
        run_time: LONG,
        ..Rules::default()
    };
    let (mut cluster, lock, waiting) = in_line(rules, 3);
    cluster.try_unlock(&lock);
    let first = cluster.granted(waiting[0]);
    cluster.try_unlock(&first);
    let second = cluster.granted(waiting[1]);
    (1..3).for_each(|voter| cluster.hold(0, voter));
    cluster.pass(rules.holder_lease - rules.at_risk + rules.heartbeat);
    assert_eq!(cluster.at_risk, [second.token]);
    assert!(cluster.held(&second));
    cluster.try_unlock(&second);
    assert!(!cluster.is_granted(waiting[2]));
    cluster.heal();
    cluster.pass(rules.voter_lease);
    assert!(cluster.is_granted(waiting[2]));
}

/// Q5, Q6: a voter that was away during the run hears of its last fence.
#[test]
fn a_voter_that_restarts_is_told_the_last_fence() {
    let (mut cluster, waiting) = their_turn(3);
    let first = cluster.granted(waiting[0]);
    cluster.restart_voter(1, NEW);
    cluster.pass(SECOND);
    assert!(cluster.held(&first));
    let highest = cluster.voters[1].fence(&name("x")).0;
    assert!(highest >= first.fence + 2, "{highest}");
}

/// Of those that wait here one may have gone, and another waited for too long.
#[test]
fn who_waits_no_longer_is_passed_over() {
    let (mut cluster, lock, _) = in_line(Rules::default(), 1);
    let [gone, late, last] = [LONG, SECOND, LONG].map(|within| cluster.lock(0, "x", within));
    cluster.pass(SECOND / 2);
    cluster.try_unlock(&lock);
    cluster.pass(SECOND / 4);
    let holder = cluster.agents[0]
        .locks()
        .map(|held| held.token)
        .collect::<Vec<_>>();
    assert_eq!(holder.len(), 1);
    cluster.agents[0].cancel(cluster.now, gone);
    cluster.pass(SECOND);
    assert_eq!(cluster.refused(late), Refusal::Timeout);
    assert!(cluster.agents[0].try_unlock(cluster.now, holder[0], Request(1000)));
    cluster.pass(SECOND);
    assert!(cluster.is_granted(last));
    assert!(!cluster.is_granted(gone));
}

/// The one that the run was asked for is gone, and a reader, or one that wants more, has come to its place.
#[test]
fn a_run_is_for_writers_of_one_name() {
    for reads in [true, false] {
        let (mut cluster, waiting) = their_turn(2);
        cluster.agents[0].cancel(cluster.now, waiting[1]);
        let other = match reads {
            true => cluster.rlock(0, "x", LONG),
            false => cluster.lock_many(0, &["x", "y"], LONG),
        };
        cluster.arrived.clear();
        let lock = cluster.granted(waiting[0]);
        cluster.try_unlock(&lock);
        let ops = cluster.ops();
        assert!(ops.iter().any(|op| matches!(op, Op::Unlock { .. })));
        cluster.pass(SECOND);
        assert!(cluster.is_granted(other));
    }
}

/// Each holder has had it since it was granted to it.
#[test]
fn each_has_it_since_its_own_grant() {
    let (mut cluster, waiting) = their_turn(2);
    let first = cluster.granted(waiting[0]);
    cluster.pass(Duration::from_millis(10));
    cluster.try_unlock(&first);
    let second = cluster.granted(waiting[1]);
    let held = cluster.agents[0].locks().next().unwrap();
    assert_eq!((held.token, held.fence.0), (second.token, second.fence));
    assert_eq!(held.since, cluster.now);
}

/// Readers of the node share a name as before, also after a run.
#[test]
fn readers_after_a_run_share_the_name() {
    let (mut cluster, waiting) = their_turn(2);
    let readers = [0, 0, 2].map(|node| cluster.rlock(node, "x", LONG));
    for request in waiting {
        let lock = cluster.granted(request);
        cluster.try_unlock(&lock);
    }
    cluster.pass(SECOND);
    for request in readers {
        let lock = cluster.granted(request);
        assert!(cluster.held(&lock));
        assert_eq!(
            cluster.agents[lock.node].locks().next().unwrap().mode,
            Mode::Read
        );
    }
}
