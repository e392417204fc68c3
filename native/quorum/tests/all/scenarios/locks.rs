//! Tests of writers, readers, locks of several names, and fences.

use super::cluster::{at, known, rules, Cluster, NEW, SECOND};
use quorum::agent::{Path, Refusal};
use quorum::message::Op;
use quorum::voter::Voter;

/// Q1: while one node holds a name, no other node gets it. After the unlock, a waiting node gets it.
#[test]
fn a_writer_excludes_others() {
    let mut cluster = Cluster::new(3);
    let first = cluster.locked(0, "x");
    let second = cluster.lock(1, "x", SECOND * 60);
    cluster.pass(SECOND * 30);
    assert!(cluster.held(&first));
    assert!(!cluster.is_granted(second));
    cluster.unlock(&first);
    assert!(cluster.is_granted(second));
    assert!(!cluster.held(&first));
    cluster.unlock_last([cluster.granted(second)]);
}

/// A lock takes one batch to each member. There is no second round if they return the same fence.
#[test]
fn a_lock_takes_one_round() {
    for members in [1, 5, 6] {
        let mut cluster = Cluster::new(members);
        for turn in 0..10 {
            cluster.arrived.clear();
            let lock = cluster.locked(turn % members, "x");
            assert_eq!(lock.path, Path::Asked);
            assert_eq!(cluster.batches().len(), members);
            cluster.unlock(&lock);
            assert_eq!(cluster.batches().len(), members);
        }
        cluster.assert_empty();
    }
}

/// Q1: readers share a name. A writer gets it after the last reader has unlocked it.
#[test]
fn readers_share() {
    let mut cluster = Cluster::new(4);
    let readers = [0, 1, 1, 3].map(|node| cluster.rlocked(node, "x"));
    assert!(readers.iter().all(|lock| cluster.held(lock)));
    let writer = cluster.lock(2, "x", SECOND * 60);
    for lock in &readers {
        assert!(!cluster.is_granted(writer));
        cluster.unlock(lock);
    }
    let writer = cluster.granted(writer);
    assert!(cluster.held(&writer));
    cluster.unlock_last([writer]);
}

/// Q11: a request gets all names or none.
#[test]
fn several_names_are_one_lock() {
    let mut cluster = Cluster::new(3);
    let [b, c] = [cluster.locked(0, "b"), cluster.locked(2, "c")];
    let all = cluster.lock_many(1, &["c", "a", "b"], SECOND * 60);
    assert!(!cluster.is_granted(all));
    cluster.unlock(&b);
    cluster.pass(SECOND * 2);
    assert!(!cluster.is_granted(all), "c is held");
    cluster.unlock(&c);
    cluster.pass(SECOND * 2);
    let all = cluster.granted(all);
    for name in ["a", "b", "c"] {
        let other = cluster.lock(2, name, SECOND / 10);
        cluster.pass(SECOND);
        assert_eq!(cluster.refused(other), Refusal::Timeout);
    }
    cluster.unlock(&all);
    for name in ["a", "b", "c"] {
        cluster.locked(2, name);
    }
}

/// Q5: a name's fences grow, also if the voters forget the name between two locks, and for requests of any node.
#[test]
fn fences_grow() {
    let mut cluster = Cluster::new(3);
    let mut last = 0;
    for turn in 0..20 {
        let fence = cluster.lock_and_unlock(turn % 3, "x");
        assert!(fence > last);
        last = fence;
        assert!(cluster.voters.iter().all(Voter::is_empty));
        let reader = cluster.rlocked(0, "x");
        // A reader gets the last writer's fence.
        assert!(reader.fence >= last);
        cluster.unlock(&reader);
    }
}

/// Q6: two of three voters know different fences, and the third cannot be reached. The voter with the lower one records
/// the higher one before the lock is granted.
#[test]
fn a_quorum_records_the_fence_before_the_grant() {
    let mut cluster = Cluster::new(3);
    cluster.restart_voter(1, known(1000));
    cluster.pass(SECOND * 11);
    cluster.isolate(2);
    cluster.hold(1, 0);
    let request = cluster.lock(0, "x", SECOND);
    assert!(!cluster.is_granted(request));
    cluster.arrived.clear();
    cluster.heal();
    let confirms = |op: &Op| matches!(op, Op::Confirm { .. });
    let mut batches = cluster.batches();
    batches.retain(|(_, to, batch)| *to == 0 && batch.ops.iter().any(confirms));
    let lock = cluster.granted(request);
    assert!(lock.fence > 1000);
    assert!(!batches.is_empty() || cluster.voters[2].fence(&cluster.name("x")).0 >= lock.fence);
    let wrote = |voter: &&Voter| voter.fence(&cluster.name("x")).0 >= lock.fence;
    assert!(cluster.voters.iter().filter(wrote).count() >= 2);
}

/// The fences of three voters differ. That of the middle one is agreed without another message: two voters have
/// recorded it or a higher one, and each quorum of votes has it or a higher one.
#[test]
fn votes_of_all_voters_agree_on_the_middle_fence() {
    let mut cluster = Cluster::new(3);
    for (voter, fence) in [(0, 1000), (1, 3000), (2, 2000)] {
        cluster.restart_voter(voter, known(fence));
        cluster.pass(SECOND * 11);
    }
    let client = cluster.add_client();
    (0..3).for_each(|voter| cluster.hold(voter, client));
    let request = cluster.lock(client, "x", SECOND);
    // The first answer to arrive is that of the highest fence.
    (0..3).for_each(|voter| cluster.hold(client, voter));
    [1, 0, 2]
        .into_iter()
        .for_each(|voter| cluster.release_link(voter, client));
    let lock = cluster.granted(request);
    assert_eq!(lock.fence, 2001);
    cluster.heal();
    cluster.unlock(&lock);
    let next = cluster.locked(1, "x");
    assert!(next.fence > lock.fence);
}

/// Two names with one floor still get growing fences.
#[test]
fn fences_of_names_with_one_floor_grow() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.floors = 1), NEW);
    let mut last = 0;
    for turn in 0..10 {
        let fence = cluster.lock_and_unlock(turn % 3, ["x", "y"][turn % 2]);
        assert!(fence > last);
        last = fence;
    }
}

#[test]
fn one_node_locks_and_refuses_by_timeout() {
    let mut cluster = Cluster::new(1);
    let lock = cluster.locked(0, "x");
    let other = cluster.lock(0, "x", SECOND);
    cluster.pass(SECOND * 20);
    assert!(cluster.held(&lock));
    assert_eq!(cluster.refused(other), Refusal::Timeout);
    cluster.unlock_last([lock]);
}

#[test]
fn without_a_quorum_a_request_is_refused_immediately() {
    let mut cluster = Cluster::new(3);
    for other in [1, 2] {
        cluster.agents[0].down(cluster.now, at(other));
    }
    let request = cluster.lock(0, "x", SECOND);
    assert_eq!(cluster.refused(request), Refusal::NoQuorum);
    cluster.assert_empty();
}

/// Q10: a failed request leaves no state, at any stage.
#[test]
fn a_refused_request_leaves_nothing() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let local = cluster.lock(0, "x", SECOND * 3);
    let remote = cluster.lock(1, "x", SECOND * 3);
    let many = cluster.lock_many(2, &["x", "y"], SECOND * 3);
    let canceled = cluster.lock(2, "x", SECOND * 3);
    cluster.agents[2].cancel(cluster.now, canceled);
    cluster.pass(SECOND * 4);
    for request in [local, remote, many] {
        assert_eq!(cluster.refused(request), Refusal::Timeout);
    }
    assert!(
        !cluster.answers.contains_key(&canceled),
        "a canceled request gets no answer"
    );
    cluster.unlock_last([lock]);
}

/// A waiting request of a node is refused when too few members are left, and blocks no later request.
#[test]
fn a_waiting_request_is_refused_without_a_quorum() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let waiting = cluster.lock(0, "x", SECOND * 60);
    for other in [1, 2] {
        cluster.agents[0].down(cluster.now, at(other));
    }
    cluster.pass(SECOND / 1000);
    assert_eq!(cluster.refused(waiting), Refusal::NoQuorum);
    cluster.unlock_async(&lock);
    for other in [1, 2] {
        cluster.agents[0].up(cluster.now, at(other));
    }
    cluster.run();
    let lock = cluster.locked(0, "x");
    cluster.unlock_last([lock]);
}
