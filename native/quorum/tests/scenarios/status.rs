//! The state that an agent reports for operators and logs.

use crate::cluster::{at, Cluster, SECOND};
use quorum::members::MemberSet;

fn set(places: &[usize]) -> MemberSet {
    places.iter().map(|place| at(*place)).collect()
}

/// A connected member that misses an answer is silent until it answers in time or disconnects.
#[test]
fn members_that_do_not_answer_are_silent() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.agents[0].silent(), MemberSet::EMPTY);
    cluster.hold(2, 0);
    cluster.pass(SECOND * 2);
    assert_eq!(
        cluster.agents[0].silent(),
        MemberSet::EMPTY,
        "the heartbeat was sent only now"
    );
    cluster.pass(SECOND);
    assert_eq!(cluster.agents[0].silent(), set(&[2]));
    cluster.isolate(1);
    cluster.pass(SECOND * 4);
    assert_eq!(cluster.agents[0].silent(), set(&[1, 2]));
    assert_eq!(cluster.agents[1].silent(), set(&[0, 2]));
    cluster.agents[0].down(cluster.now, at(1));
    assert_eq!(
        cluster.agents[0].silent(),
        set(&[2]),
        "a disconnected member is not silent"
    );
    cluster.agents[0].up(cluster.now, at(1));
    assert_eq!(
        cluster.agents[0].silent(),
        set(&[2]),
        "nor is a member that has just connected"
    );
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
    assert_eq!(cluster.agents[0].silent(), set(&[2]));
    cluster.restart_voter(2, crate::cluster::NEW);
    cluster.heal();
    cluster.pass(SECOND * 2);
    assert_eq!(cluster.agents[0].silent(), MemberSet::EMPTY);
}

/// An unlock is pending until a quorum has executed it.
#[test]
fn pending_unlocks_are_counted() {
    let mut cluster = Cluster::new(3);
    let locks = cluster.locked_many(0, "x", 5);
    assert_eq!(cluster.agents[0].pending_unlocks(), 0);
    [1, 2].iter().for_each(|voter| cluster.hold(0, *voter));
    for (count, lock) in locks.iter().enumerate() {
        cluster.try_unlock(lock);
        assert_eq!(cluster.agents[0].pending_unlocks(), count as u64 + 1);
    }
    cluster.heal();
    assert_eq!(cluster.agents[0].pending_unlocks(), 0);
}
