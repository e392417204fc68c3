//! The process of a voter dies, and another process continues with the same voter. The outputs that the first process
//! had taken were not executed.

use super::cluster::{at, durable, lost, Cluster, SECOND};
use quorum::agent::Loss;
use quorum::rules::Rules;

fn take_over(cluster: &mut Cluster, voter: usize) {
    cluster.voters[voter].interrupted(cluster.now);
    cluster.run();
}

/// A mark that was being stored is stored again. Otherwise the voter would wait for it forever.
#[test]
fn a_pending_mark_is_stored_again() {
    let mut cluster = Cluster::with(3, Rules::default(), durable(0));
    let asked = std::mem::take(&mut cluster.store);
    assert_eq!(asked.len(), 3);
    let lock = cluster.lock(0, "x", SECOND * 60);
    cluster.pass(SECOND);
    assert!(!cluster.is_granted(lock));
    assert!(cluster.store.is_empty(), "each store is requested once");
    (0..3).for_each(|voter| take_over(&mut cluster, voter));
    assert_eq!(cluster.store, asked);
    cluster.store_pending();
    cluster.store.clear();
    cluster.pass(SECOND);
    assert!(cluster.is_granted(lock));
    (0..3).for_each(|voter| take_over(&mut cluster, voter));
    // A stored mark is not stored again.
    assert!(cluster.store.is_empty());
}

/// During recovery it asks for the fences again, before its retry timer fires.
#[test]
fn recovery_asks_again() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(0);
    cluster.restart_voter(0, lost(0));
    // Its questions at the end of the quarantine are lost.
    cluster.pass(cluster.rules.quarantine);
    cluster.heal();
    assert!(!cluster.voters[0].is_voting());
    take_over(&mut cluster, 0);
    assert!(cluster.voters[0].is_voting());
}

/// The agents fetch lost messages immediately: here, a revocation.
#[test]
fn agents_send_a_batch() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (0..3).for_each(|voter| cluster.hold(1, voter));
    let now = cluster.now;
    let name = cluster.name("x");
    cluster.agents[1].revoke(now, name);
    cluster.run();
    for (from, send) in cluster.wire.drain(..).collect::<Vec<_>>() {
        let voter = cluster.place(send.to);
        cluster.voters[voter].receive(now, at(from).into(), send.frame);
        drop(cluster.voters[voter].outputs());
    }
    cluster.heal();
    assert!(cluster.lost.is_empty() && cluster.held(&lock));
    take_over(&mut cluster, 0);
    assert_eq!(cluster.lost, [(lock.token, Loss::Revoked)]);
    assert!(!cluster.held(&lock));
}

/// The voter keeps its votes and sessions.
#[test]
fn votes_and_sessions_survive() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let sessions = |cluster: &Cluster| -> Vec<_> {
        let status = cluster.agents[0].status();
        status.map(|status| status.session).collect()
    };
    let before = sessions(&cluster);
    (0..3).for_each(|voter| take_over(&mut cluster, voter));
    assert!(cluster.held(&lock));
    assert_eq!(before, sessions(&cluster));
    let other = cluster.lock(1, "x", SECOND);
    cluster.pass(SECOND * 2);
    assert!(!cluster.is_granted(other));
    cluster.unlock_last([lock]);
}
