//! Revocation (`force_unlock`): the holder is notified, and no other request gets the name before it has lost it.

use super::cluster::{Cluster, SECOND};
use quorum::agent::Loss;

fn revoke(cluster: &mut Cluster, node: usize, what: &str) {
    let name = cluster.name(what);
    cluster.agents[node].revoke(cluster.now, name);
    cluster.run();
}

#[test]
fn the_holder_loses_the_lock_and_the_waiter_gets_it() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let kept = cluster.locked(0, "y");
    let next = cluster.lock(1, "x", SECOND * 60);
    revoke(&mut cluster, 2, "x");
    assert_eq!(cluster.lost, [(lock.token, Loss::Revoked)]);
    assert!(!cluster.held(&lock) && cluster.held(&kept));
    cluster.pass(SECOND);
    let next = cluster.granted(next);
    assert!(next.fence > lock.fence);
}

#[test]
fn all_readers_lose_their_locks() {
    let mut cluster = Cluster::new(3);
    let locks: Vec<_> = (0..3).map(|node| cluster.rlocked(node, "x")).collect();
    revoke(&mut cluster, 0, "x");
    assert_eq!(cluster.lost.len(), 3);
    assert!(locks.iter().all(|lock| !cluster.held(lock)));
    cluster.assert_empty();
}

/// Q1: a revoked holder that cannot be reached keeps the name until its lease expires.
#[test]
fn an_unreachable_holder_keeps_the_name_until_its_lease_expires() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.isolate(0);
    revoke(&mut cluster, 1, "x");
    let next = cluster.lock(1, "x", SECOND * 60);
    while !cluster.is_granted(next) {
        cluster.pass(SECOND / 10);
        assert!(!(cluster.is_granted(next) && cluster.held(&lock)));
    }
}

/// Every answer repeats the revoked tokens, so a lost frame does not matter.
#[test]
fn a_lost_revocation_is_repeated() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (1..3).for_each(|voter| cluster.cut(voter, 0));
    revoke(&mut cluster, 1, "x");
    // Its own voter has already sent the revocation. Otherwise:
    if cluster.held(&lock) {
        cluster.heal();
        cluster.pass(SECOND * 3);
    }
    assert!(!cluster.held(&lock));
    cluster.heal();
    cluster.assert_empty();
}

/// Revoking a name without a holder changes nothing.
#[test]
fn revoking_a_free_name_changes_nothing() {
    let mut cluster = Cluster::new(3);
    revoke(&mut cluster, 0, "x");
    let lock = cluster.locked(1, "x");
    assert!(cluster.held(&lock) && cluster.lost.is_empty());
}
