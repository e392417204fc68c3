//! Locks that are passed on within a node: without messages to voters, and with a limit.

use super::cluster::{known, unlocks, Answer, Cluster, Lock, NEW, SECOND};
use quorum::agent::{Path, Refusal, Request};
use quorum::frame::MAX_FENCE;
use quorum::message::{Mode, Op};
use quorum::rules::Rules;
use quorum::voter::Voter;
use std::time::Duration;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// How many fences a run takes: the default of `Rules::run`.
const RUN: u64 = 16;

/// Node 1 holds x, and `count` requests of node 0 wait for it.
fn queued(rules: Rules, count: usize) -> (Cluster, Lock, Vec<Request>) {
    let mut cluster = Cluster::with(3, rules, NEW);
    let lock = cluster.locked(1, "x");
    let waiting = (0..count).map(|_| cluster.lock(0, "x", LONG)).collect();
    (cluster, lock, waiting)
}

/// Node 1 releases x, and the requests of node 0 get it.
fn run_started(count: usize) -> (Cluster, Vec<Request>) {
    let (mut cluster, lock, waiting) = queued(Rules::default(), count);
    cluster.unlock_async(&lock);
    cluster.arrived.clear();
    (cluster, waiting)
}

/// Q5, Q6: each lock of a run has its own fence, higher than all before, which a quorum has recorded. Voters receive
/// nothing until the last lock of the run is released.
#[test]
fn a_run_sends_no_messages_until_its_end() {
    let (mut cluster, waiting) = run_started(3);
    let mut last = RUN;
    for (place, request) in waiting.iter().enumerate() {
        let lock = cluster.granted(*request);
        assert_eq!(lock.fence, last + 1);
        assert_eq!(lock.path == Path::Passed, place > 0);
        last = lock.fence;
        assert!(cluster.held(&lock));
        let wrote = |voter: &&Voter| voter.fence(&cluster.name("x")).0 >= last;
        assert!(cluster.voters.iter().filter(wrote).count() >= 2);
        assert_eq!(cluster.ops(), []);
        let request = cluster.unlock_async(&lock);
        assert!(matches!(cluster.answers[&request], Answer::Accepted));
        assert!(!cluster.held(&lock));
        let ops = cluster.ops();
        // The unlock carries the last fence of the run.
        let unlocked = |op: &Op| match op {
            Op::Unlock { fence, .. } => Some(fence.0),
            _ => None,
        };
        let unlocks: Vec<u64> = ops.iter().filter_map(unlocked).collect();
        assert_eq!(unlocks, if place == 2 { vec![2 * RUN; 3] } else { vec![] });
    }
    let next = cluster.locked(2, "x");
    assert_eq!(next.fence, 2 * RUN + 1);
    cluster.unlock_async(&next);
    cluster.assert_empty();
}

/// Q5: the unused fences of a run are skipped.
#[test]
fn unused_fences_are_skipped() {
    let (mut cluster, waiting) = run_started(3);
    for request in &waiting[1..] {
        cluster.agents[0].cancel(cluster.now, *request);
    }
    let lock = cluster.granted(waiting[0]);
    cluster.arrived.clear();
    cluster.unlock_async(&lock);
    let ops = cluster.ops();
    let last = |op: &Op| matches!(op, Op::Unlock { fence, .. } if fence.0 == lock.fence + RUN - 1);
    assert_eq!(ops.iter().filter(|op| last(op)).count(), 3, "{ops:?}");
    assert_eq!(cluster.locked(2, "x").fence, lock.fence + RUN);
}

/// Q5: near the highest fence, a run that would have fewer fences than locks is not given.
#[test]
fn the_last_fences_are_given_once() {
    let mut cluster = Cluster::with(3, Rules::default(), known(MAX_FENCE - 2 * RUN - 1));
    for turn in [2, 1] {
        let lock = cluster.locked(1, "x");
        assert_eq!(lock.fence, MAX_FENCE - turn * RUN);
        cluster.unlock(&lock);
    }
    let last = cluster.lock(1, "x", SECOND);
    let reader = cluster.rlock(2, "x", SECOND * 3);
    cluster.pass(SECOND * 2);
    assert_eq!(cluster.refused(last), Refusal::Timeout);
    cluster.unlock_granted(reader);
}

/// Q7, Q8: each lock of a run has its own token, and an earlier token releases nothing.
#[test]
fn an_earlier_token_releases_nothing() {
    let (mut cluster, waiting) = run_started(3);
    let mut before: Vec<Lock> = Vec::new();
    for request in waiting {
        let lock = cluster.granted(request);
        for earlier in &before {
            assert_ne!(earlier.token, lock.token);
            assert!(!cluster.held(earlier));
            assert!(!cluster.agents[0].unlock_async(cluster.now, earlier.token, Request(1000)));
            assert!(!cluster.agents[0].unlock(cluster.now, earlier.token, Request(1001)));
        }
        assert!(cluster.held(&lock));
        let held: Vec<_> = cluster.agents[0].locks().map(|held| held.token).collect();
        assert_eq!(held, [lock.token]);
        cluster.unlock_async(&lock);
        before.push(lock);
    }
    cluster.assert_empty();
}

/// An unlock completes when the lock is passed on: there is no quorum to wait for.
#[test]
fn an_unlock_that_passes_the_lock_on_completes_immediately() {
    let (mut cluster, waiting) = run_started(2);
    (0..3).for_each(|voter| cluster.hold(0, voter));
    let first = cluster.granted(waiting[0]);
    let request = cluster.unlock(&first);
    assert_eq!(cluster.unlocked(request), Some(true));
    let second = cluster.granted(waiting[1]);
    let request = cluster.unlock(&second);
    assert_eq!(cluster.unlocked(request), None);
    cluster.heal();
    assert_eq!(cluster.unlocked(request), Some(true));
}

/// A run is at most as long as the limit. Then other nodes follow.
#[test]
fn a_run_has_a_length_limit() {
    let rules = Rules {
        run: 4,
        ..Rules::default()
    };
    let (mut cluster, lock, waiting) = queued(rules, 10);
    let other = cluster.lock(2, "x", LONG);
    cluster.unlock_async(&lock);
    for request in &waiting[..4] {
        assert!(!cluster.is_granted(other));
        cluster.unlock_granted(*request);
    }
    assert!(!cluster.is_granted(waiting[4]));
    cluster.pass(SECOND);
    assert!(cluster.is_granted(other));
}

/// A request that arrives during a run is part of it, although another node waits.
#[test]
fn a_late_request_joins_a_run() {
    let (mut cluster, waiting) = run_started(2);
    let other = cluster.lock(2, "x", LONG);
    let late = cluster.lock(0, "x", LONG);
    for request in waiting {
        cluster.unlock_granted(request);
    }
    cluster.unlock_granted(late);
    cluster.unlock_granted(other);
    cluster.assert_empty();
}

/// Slow holders do not keep others waiting for a whole run.
#[test]
fn a_run_has_a_time_limit() {
    let (mut cluster, waiting) = run_started(3);
    let other = cluster.lock(2, "x", LONG);
    cluster.pass(Rules::default().run_time);
    cluster.unlock_granted(waiting[0]);
    assert!(!cluster.is_granted(waiting[1]));
    cluster.pass(SECOND);
    assert!(cluster.is_granted(other));
}

/// The time limit counts from the recall, not from the grant of each lock.
#[test]
fn the_time_limit_of_a_run_does_not_restart() {
    let (mut cluster, waiting) = run_started(3);
    let other = cluster.lock(2, "x", LONG);
    cluster.pass(Rules::default().run_time / 2);
    cluster.unlock_granted(waiting[0]);
    cluster.pass(Rules::default().run_time / 2);
    cluster.unlock_granted(waiting[1]);
    assert!(!cluster.is_granted(waiting[2]));
    cluster.pass(SECOND);
    assert!(cluster.is_granted(other));
}

/// A voter repeats its recall. The time limit counts from the first one.
#[test]
fn a_repeated_recall_does_not_extend_a_run() {
    let rules = Rules::default();
    let (mut cluster, waiting) = run_started(3);
    let other = cluster.lock(2, "x", LONG);
    cluster.pass(rules.recall + rules.run_time / 2);
    cluster.unlock_granted(waiting[0]);
    assert!(!cluster.is_granted(waiting[1]));
    cluster.pass(SECOND);
    assert!(cluster.is_granted(other));
}

/// Requests of a reader and for several names.
const OTHERS: [fn(&mut Cluster) -> Request; 2] = [
    |cluster| cluster.rlock(0, "x", LONG),
    |cluster| cluster.lock_many(0, &["x", "y"], LONG),
];

/// Readers and requests for several names are not part of a run.
#[test]
fn only_writers_of_one_name_are_passed_on_to() {
    for ask in OTHERS {
        let (mut cluster, lock, waiting) = queued(Rules::default(), 1);
        let other = ask(&mut cluster);
        let last = cluster.lock(0, "x", LONG);
        cluster.unlock_async(&lock);
        cluster.unlock_granted(waiting[0]);
        cluster.pass(SECOND);
        cluster.unlock_granted(other);
        cluster.pass(SECOND);
        assert!(cluster.is_granted(last));
    }
}

/// The lock of a reader, and a lock of several names, are not passed on.
#[test]
fn other_locks_are_not_passed_on() {
    let mut cluster = Cluster::new(3);
    let read = cluster.rlocked(0, "x");
    let many = cluster.lock_many(0, &["y", "z"], SECOND);
    let waiting = ["x", "y"].map(|name| cluster.lock(0, name, LONG));
    cluster.arrived.clear();
    cluster.unlock_async(&read);
    cluster.unlock_granted(many);
    assert_eq!(unlocks(&cluster.ops()), 6);
    cluster.pass(SECOND);
    assert!(waiting.iter().all(|request| cluster.is_granted(*request)));
}

/// Q9: a lost lock is not passed on. Its current holder is notified by its own token, and the next request asks the
/// voters.
#[test]
fn a_lost_lock_is_not_passed_on() {
    let (mut cluster, waiting) = run_started(3);
    cluster.unlock_granted(waiting[0]);
    let second = cluster.granted(waiting[1]);
    let name = cluster.name("x");
    cluster.agents[2].revoke(cluster.now, name);
    cluster.pass(SECOND);
    let lost: Vec<_> = cluster.lost.iter().map(|lost| lost.0).collect();
    assert_eq!(lost, [second.token]);
    let third = cluster.granted(waiting[2]);
    assert!(third.fence > second.fence);
    assert!(cluster.held(&third));
    cluster.unlock_async(&third);
    cluster.assert_empty();
}

/// A lock at risk is not passed on, so a new holder has it for some time.
#[test]
fn a_lock_at_risk_is_not_passed_on() {
    let rules = Rules {
        run_time: LONG,
        ..Rules::default()
    };
    let (mut cluster, lock, waiting) = queued(rules, 3);
    cluster.unlock_async(&lock);
    cluster.unlock_granted(waiting[0]);
    let second = cluster.granted(waiting[1]);
    (1..3).for_each(|voter| cluster.hold(0, voter));
    cluster.pass(rules.holder_lease - rules.at_risk + rules.heartbeat);
    assert_eq!(cluster.at_risk, [second.token]);
    assert!(cluster.held(&second));
    cluster.unlock_async(&second);
    assert!(!cluster.is_granted(waiting[2]));
    cluster.heal();
    cluster.pass(rules.voter_lease);
    assert!(cluster.is_granted(waiting[2]));
}

/// Q5, Q6: a voter that restarts during the run receives its last fence.
#[test]
fn a_restarted_voter_receives_the_last_fence() {
    let (mut cluster, waiting) = run_started(3);
    let first = cluster.granted(waiting[0]);
    cluster.restart_voter(1, NEW);
    cluster.pass(SECOND);
    assert!(cluster.held(&first));
    let highest = cluster.voters[1].fence(&cluster.name("x")).0;
    assert!(highest >= first.fence + RUN - 1, "{highest}");
}

/// Canceled and timed-out requests in the queue are skipped.
#[test]
fn canceled_and_timed_out_requests_are_skipped() {
    let (mut cluster, lock, _) = queued(Rules::default(), 1);
    let [gone, late, last] = [LONG, SECOND, LONG].map(|within| cluster.lock(0, "x", within));
    cluster.pass(SECOND / 2);
    cluster.unlock_async(&lock);
    cluster.pass(SECOND / 4);
    let holder: Vec<_> = cluster.agents[0].locks().map(|held| held.token).collect();
    assert_eq!(holder.len(), 1);
    cluster.agents[0].cancel(cluster.now, gone);
    cluster.pass(SECOND);
    assert_eq!(cluster.refused(late), Refusal::Timeout);
    assert!(cluster.agents[0].unlock_async(cluster.now, holder[0], Request(1000)));
    cluster.pass(SECOND);
    assert!(cluster.is_granted(last));
    assert!(!cluster.is_granted(gone));
}

/// The second writer of a run is canceled, and a reader or a request for several names takes its position.
#[test]
fn a_run_continues_only_with_writers_of_one_name() {
    for ask in OTHERS {
        let (mut cluster, waiting) = run_started(2);
        cluster.agents[0].cancel(cluster.now, waiting[1]);
        let other = ask(&mut cluster);
        cluster.arrived.clear();
        cluster.unlock_granted(waiting[0]);
        assert!(unlocks(&cluster.ops()) > 0);
        cluster.pass(SECOND);
        assert!(cluster.is_granted(other));
    }
}

/// Each lock of a run is held since its own grant.
#[test]
fn each_lock_is_held_since_its_own_grant() {
    let (mut cluster, waiting) = run_started(2);
    let first = cluster.granted(waiting[0]);
    cluster.pass(Duration::from_millis(10));
    cluster.unlock_async(&first);
    let second = cluster.granted(waiting[1]);
    let held = cluster.agents[0].locks().next().unwrap();
    assert_eq!((held.token, held.fence.0), (second.token, second.fence));
    assert_eq!(held.since, cluster.now);
}

/// Readers of the node share a name, also after a run.
#[test]
fn readers_after_a_run_share_the_name() {
    let (mut cluster, waiting) = run_started(2);
    let readers = [0, 0, 2].map(|node| cluster.rlock(node, "x", LONG));
    for request in waiting {
        cluster.unlock_granted(request);
    }
    cluster.pass(SECOND);
    for request in readers {
        let lock = cluster.granted(request);
        assert!(cluster.held(&lock));
        let held = cluster.agents[lock.node].locks().next().unwrap();
        assert_eq!(held.mode, Mode::Read);
    }
}
