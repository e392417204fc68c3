//! `force_unlock`: a name is taken from its holder, who is told, and nobody else has it before.

use crate::cluster::{name, Cluster, SECOND};
use quorum::agent::Loss;

fn revoke(cluster: &mut Cluster, node: usize, what: &str) {
    cluster.agents[node].revoke(cluster.now, name(what));
    cluster.run();
}

#[test]
fn the_holder_is_told_and_the_next_has_it() {
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
fn all_readers_are_told() {
    let mut cluster = Cluster::new(3);
    let locks: Vec<_> = (0..3).map(|node| cluster.rlocked(node, "x")).collect();
    revoke(&mut cluster, 0, "x");
    assert_eq!(cluster.lost.len(), 3);
    assert!(locks.iter().all(|lock| !cluster.held(lock)));
    cluster.assert_empty();
}

/// Q1: a holder that cannot be reached keeps it from others until its lease is over.
#[test]
fn an_unreachable_holder_is_waited_for() {
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

/// A message that is lost is said again with every answer.
#[test]
fn a_lost_word_is_repeated() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (1..3).for_each(|voter| cluster.cut(voter, 0));
    revoke(&mut cluster, 1, "x");
    // Its own voter has told it already. Without that one:
    if cluster.held(&lock) {
        cluster.heal();
        cluster.pass(SECOND * 3);
    }
    assert!(!cluster.held(&lock));
    cluster.heal();
    cluster.assert_empty();
}

/// A name that nobody has is left as it is.
#[test]
fn nothing_to_revoke() {
    let mut cluster = Cluster::new(3);
    revoke(&mut cluster, 0, "x");
    let lock = cluster.locked(1, "x");
    assert!(cluster.held(&lock) && cluster.lost.is_empty());
}
