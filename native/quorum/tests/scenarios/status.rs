//! What an agent tells of itself, for people and logs.

use crate::cluster::{at, Cluster, SECOND};
use quorum::members::MemberSet;

fn set(places: &[usize]) -> MemberSet {
    places.iter().map(|place| at(*place)).collect()
}

/// Who is connected and lets an answer be late is silent, until it answers in time or is gone.
#[test]
fn who_does_not_answer_is_told() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.agents[0].silent(), MemberSet::EMPTY);
    cluster.hold(2, 0);
    cluster.pass(SECOND * 2);
    assert_eq!(
        cluster.agents[0].silent(),
        MemberSet::EMPTY,
        "asked only now"
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
        "who is gone is not silent"
    );
    cluster.agents[0].up(cluster.now, at(1));
    assert_eq!(
        cluster.agents[0].silent(),
        set(&[2]),
        "nor who has just come"
    );
    cluster.heal();
    cluster.pass(SECOND * 3);
    assert!(cluster.agents.iter().all(|agent| agent.silent().is_empty()));
}

/// A voter that has started anew answers what it is asked, though its quarantine lasts.
#[test]
fn who_has_restarted_is_not_silent() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(2);
    cluster.pass(SECOND * 4);
    assert_eq!(cluster.agents[0].silent(), set(&[2]));
    cluster.restart_voter(2, crate::cluster::NEW);
    cluster.heal();
    cluster.pass(SECOND * 2);
    assert_eq!(cluster.agents[0].silent(), MemberSet::EMPTY);
}

/// An unlock is pending until a quorum has it.
#[test]
fn unlocks_that_wait_are_counted() {
    let mut cluster = Cluster::new(3);
    let locks: Vec<_> = (0..5)
        .map(|i| cluster.locked(0, &format!("x{i}")))
        .collect();
    assert_eq!(cluster.agents[0].pending_unlocks(), 0);
    [1, 2].iter().for_each(|voter| cluster.hold(0, *voter));
    for (count, lock) in locks.iter().enumerate() {
        cluster.try_unlock(lock);
        assert_eq!(cluster.agents[0].pending_unlocks(), count as u64 + 1);
    }
    cluster.heal();
    assert_eq!(cluster.agents[0].pending_unlocks(), 0);
}
