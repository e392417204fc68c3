//! The state that an agent reports for operators and logs.

use super::cluster::{at, durable, Cluster, SECOND};
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

/// Members that are connected and answer are not enough: they must vote.
#[test]
fn a_quorum_is_of_members_that_vote() {
    let mut cluster = Cluster::new(3);
    let has_quorum = |cluster: &Cluster| cluster.agents[0].has_quorum();
    assert!(has_quorum(&cluster));
    cluster.agents[0].down(cluster.now, at(1));
    assert!(has_quorum(&cluster));
    cluster.agents[0].down(cluster.now, at(2));
    assert!(!has_quorum(&cluster));
    cluster.agents[0].up(cluster.now, at(1));
    cluster.run();
    assert!(has_quorum(&cluster));
    // Member 1 is connected and silent.
    cluster.cut_both(0, 1);
    cluster.pass(SECOND * 4);
    assert!(!has_quorum(&cluster));
}

/// A voter that cannot store a mark votes for readers only.
#[test]
fn there_is_no_quorum_for_writers_while_disks_store_nothing() {
    let mut cluster = Cluster::new(3);
    (0..3).for_each(|voter| cluster.restart_voter(voter, durable(0)));
    cluster.pass(SECOND * 30);
    assert!(cluster.agents[0].has_quorum());
    let request = cluster.lock(0, "x", SECOND);
    cluster.pass(SECOND * 2);
    assert!(!cluster.is_granted(request));
    assert!(!cluster.agents[0].has_quorum());
    cluster.store_pending();
    cluster.pass(SECOND * 2);
    assert!(cluster.agents[0].has_quorum());
}

/// An unlock is pending until more than half of the members have executed it.
#[test]
fn pending_unlocks_are_counted() {
    let mut cluster = Cluster::new(3);
    let locks = cluster.locked_many(0, "x", 5);
    assert_eq!(cluster.agents[0].pending_unlocks(), 0);
    (0..3).for_each(|voter| cluster.hold(0, voter));
    for (count, lock) in locks.iter().enumerate() {
        cluster.unlock_async(lock);
        assert_eq!(cluster.agents[0].pending_unlocks(), count as u64 + 1);
    }
    cluster.heal();
    assert_eq!(cluster.agents[0].pending_unlocks(), 0);
}
