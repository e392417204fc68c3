//! The state that an agent reports for operators and logs.

use super::cluster::{at, Cluster, SECOND};
use quorum::members::MemberSet;

#[track_caller]
fn assert_silent(cluster: &Cluster, node: usize, places: &[usize]) {
    let silent: MemberSet = places.iter().map(|place| at(*place)).collect();
    assert_eq!(cluster.agents[node].silent(), silent);
}

/// A connected member that misses an answer is silent until it answers in time or disconnects.
#[test]
fn members_that_do_not_answer_are_silent() {
    let mut cluster = Cluster::new(3);
    assert_silent(&cluster, 0, &[]);
    cluster.hold(2, 0);
    cluster.pass(SECOND * 2);
    // The heartbeat was sent only now.
    assert_silent(&cluster, 0, &[]);
    cluster.pass(SECOND);
    assert_silent(&cluster, 0, &[2]);
    cluster.isolate(1);
    cluster.pass(SECOND * 4);
    assert_silent(&cluster, 0, &[1, 2]);
    assert_silent(&cluster, 1, &[0, 2]);
    cluster.agents[0].down(cluster.now, at(1));
    // A disconnected member is not silent.
    assert_silent(&cluster, 0, &[2]);
    cluster.agents[0].up(cluster.now, at(1));
    // A member that has just connected is not silent either.
    assert_silent(&cluster, 0, &[2]);
    cluster.heal();
    cluster.pass(SECOND * 3);
    assert!(cluster.agents.iter().all(|agent| agent.silent().is_empty()));
}

/// A restarted voter answers batches during its quarantine.
#[test]
fn a_restarted_voter_is_not_silent() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(2);
    cluster.pass(SECOND * 4);
    assert_silent(&cluster, 0, &[2]);
    cluster.restart_voter(2, super::cluster::NEW);
    cluster.heal();
    cluster.pass(SECOND * 2);
    assert_silent(&cluster, 0, &[]);
}

/// An unlock is pending until more than half of the members have executed it.
#[test]
fn pending_unlocks_are_counted() {
    let mut cluster = Cluster::new(3);
    let locks = cluster.locked_many(0, "x", 5);
    assert_eq!(cluster.agents[0].pending_unlocks(), 0);
    (0..3).for_each(|voter| cluster.hold(0, voter));
    for (count, lock) in locks.iter().enumerate() {
        cluster.try_unlock(lock);
        assert_eq!(cluster.agents[0].pending_unlocks(), count as u64 + 1);
    }
    cluster.heal();
    assert_eq!(cluster.agents[0].pending_unlocks(), 0);
}
