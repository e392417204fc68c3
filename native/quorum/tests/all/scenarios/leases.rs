//! Leases when answers are missing or late.

use super::cluster::{at, rules, Cluster, NEW, SECOND};
use quorum::agent::{Loss, Refusal};
use quorum::message::{Frame, Op, Send};
use quorum::time::Time;
use std::time::Duration;

/// A lock is held while a quorum answers. This takes one heartbeat every two seconds and no more.
#[test]
fn heartbeats_keep_a_lock() {
    let mut cluster = Cluster::new(3);
    let locks = cluster.locked_many(0, "x", 100);
    cluster.pass(SECOND * 2);
    cluster.isolate(2);
    cluster.batches();
    cluster.pass(SECOND * 60);
    assert!(locks.iter().all(|lock| cluster.held(lock)));
    assert!(cluster.at_risk.is_empty() && cluster.lost.is_empty());
    let mut from_holder = cluster.batches();
    from_holder.retain(|(from, to, _)| (*from, *to) == (0, 1));
    assert_eq!(from_holder.len(), 30);
    assert!(from_holder.iter().all(|(_, _, batch)| batch.ops.is_empty()));
}

/// A lock is at risk first and lost 8 s after the last answered batch was sent: never later, and permanently.
#[test]
fn without_a_quorum_a_lock_is_lost() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let other = cluster.rlocked(0, "y");
    cluster.isolate(0);
    cluster.pass(SECOND * 4);
    assert!(cluster.at_risk.is_empty());
    cluster.pass(Duration::from_nanos(1));
    assert_eq!(cluster.at_risk, [lock.token, other.token]);
    cluster.pass(Duration::from_nanos(4_000_000_000 - 2));
    assert!(cluster.held(&lock) && cluster.lost.is_empty());
    cluster.pass(Duration::from_nanos(1));
    assert!(!cluster.held(&lock));
    let lost = [lock.token, other.token].map(|token| (token, Loss::Quorum));
    assert_eq!(cluster.lost, lost);
    cluster.heal();
    cluster.pass(SECOND * 10);
    assert!(!cluster.held(&lock));
    cluster.assert_empty();
}

/// Node 0 has its own vote for a reader, and waits for that of node 1. Then its own voter is silent, so lock "x" is at
/// risk. The reader is granted with the votes that "x" has.
#[test]
fn a_lock_is_granted_at_risk() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(0);
    let writer = cluster.locked(1, "y");
    cluster.mend(0, 1);
    let lock = cluster.locked(0, "x");
    let reader = cluster.rlock(0, "y", SECOND * 60);
    cluster.hold(0, 0);
    cluster.pass(SECOND * 5);
    assert_eq!(cluster.at_risk, [lock.token]);
    cluster.unlock(&writer);
    let reader = cluster.granted(reader);
    assert_eq!(cluster.at_risk, [lock.token, reader.token]);
    assert!(cluster.held(&lock) && cluster.held(&reader));
    cluster.pass(SECOND * 5);
    let lost = [lock, reader].map(|lock| (lock.token, Loss::Quorum));
    assert_eq!(cluster.lost, lost);
}

/// L3: an agent's process may die at any point. After its lease is ended, none of its locks is held, whatever frames
/// still arrive, and it grants nothing.
#[test]
fn an_ended_lease_holds_no_lock() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.hold(1, 0);
    cluster.hold(2, 0);
    let asked = cluster.lock(0, "y", SECOND * 60);
    assert!(cluster.held(&lock));
    cluster.agents[0].lease().end();
    assert!(!cluster.held(&lock));
    cluster.heal();
    assert!(!cluster.held(&lock) && !cluster.is_granted(asked));
    cluster.pass(SECOND * 5);
    assert!(!cluster.held(&lock) && !cluster.is_granted(asked));
    cluster.restart_agent(0);
    let next = cluster.lock(0, "x", SECOND * 60);
    cluster.pass(SECOND * 11);
    assert!(cluster.held(&cluster.granted(next)));
}

/// Q2: the voters grant a name to another agent only after its holder has lost it.
#[test]
fn a_name_is_granted_after_its_holder_has_lost_it() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.isolate(0);
    let other = cluster.lock(1, "x", SECOND * 60);
    while !cluster.is_granted(other) {
        assert!(!cluster.voters[1].is_empty());
        cluster.pass(SECOND / 10);
        assert!(!(cluster.is_granted(other) && cluster.held(&lock)));
    }
    let waited = cluster.now - quorum::time::Time(1_000_000_000);
    assert!(
        waited >= cluster.rules.voter_lease && waited < cluster.rules.voter_lease + SECOND * 2,
        "{waited:?}"
    );
}

/// At risk is reported once, and again after the lease was renewed in between.
#[test]
fn at_risk_is_reported_once_each_time() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    for times in 1..=3 {
        cluster.isolate(0);
        cluster.pass(SECOND * 5);
        assert_eq!(cluster.at_risk, vec![lock.token; times]);
        cluster.heal();
        cluster.pass(SECOND * 5);
    }
    assert!(cluster.held(&lock));
}

/// Q3: an agent whose votes a voter has dropped begins a new session with it and asserts its locks again.
#[test]
fn a_lock_is_asserted_in_a_new_session() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.cut(0, 2);
    cluster.pass(cluster.rules.voter_lease);
    assert!(cluster.voters[2].is_empty(), "its lease has expired there");
    assert!(cluster.held(&lock));
    cluster.batches();
    cluster.heal();
    cluster.pass(SECOND);
    let ops = cluster.ops();
    assert!(ops.iter().any(|op| matches!(op, Op::Assert { .. })));
    assert!(!cluster.voters[2].is_empty());
    // The votes of the other quorum keep the lock now.
    cluster.cut(0, 1);
    cluster.pass(SECOND * 20);
    assert!(cluster.held(&lock));
    cluster.heal();
    cluster.unlock_last([lock]);
}

/// A late answer renews the lease from when its batch was sent.
#[test]
fn a_late_answer_renews_from_the_time_of_sending() {
    let mut cluster = Cluster::new(1);
    let lock = cluster.locked(0, "x");
    cluster.pass(SECOND);
    cluster.hold(0, 0);
    cluster.pass(SECOND * 7);
    cluster.wire.truncate(1);
    let Frame::Batch(quorum::message::Batch { stamp: sent, .. }) = cluster.wire[0].1.frame else {
        panic!("{:?}", cluster.wire)
    };
    cluster.heal();
    cluster.hold(0, 0);
    assert!(cluster.held(&lock));
    cluster.pass(sent + cluster.rules.holder_lease - cluster.now - Duration::from_nanos(1));
    assert!(cluster.held(&lock));
    cluster.pass(Duration::from_nanos(1));
    assert!(!cluster.held(&lock));
}

/// Answers that arrive in the opposite order count from the last sending.
#[test]
fn an_earlier_answer_does_not_shorten_the_lease() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.hold(1, 0);
    cluster.cut(2, 0);
    cluster.pass(SECOND * 5);
    let stamp = |(_, send): &(usize, Send)| match &send.frame {
        Frame::Ack(ack) => Some(ack.stamp),
        _ => None,
    };
    let stamps: Vec<Time> = cluster.wire.iter().filter_map(stamp).collect();
    assert!(stamps.len() > 1 && stamps.is_sorted());
    cluster.wire.make_contiguous().reverse();
    cluster.release();
    cluster.cut(1, 0);
    let until = *stamps.last().unwrap() + cluster.rules.holder_lease;
    cluster.pass(until - cluster.now - Duration::from_nanos(1));
    assert!(cluster.held(&lock));
    cluster.pass(Duration::from_nanos(1));
    assert!(!cluster.held(&lock));
}

/// The votes of an expired lease are removed in parts, without pauses. Until then they still conflict.
#[test]
fn many_votes_of_a_dead_agent_are_removed_at_once() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.batch = 4), NEW);
    cluster.locked_many(0, "x", 20);
    cluster.isolate(0);
    cluster.pass(cluster.rules.voter_lease);
    assert!(!cluster.voters[1].is_empty());
    cluster.pass(Duration::from_nanos(100));
    assert!(cluster.voters[1].is_empty());
}

/// Votes whose lease has expired when they arrive make no lock, even if the timer is late. When the lease is renewed,
/// they do: their voters have kept them.
#[test]
fn expired_votes_make_no_lock() {
    let mut cluster = Cluster::new(3);
    cluster.hold(1, 0);
    cluster.hold(2, 0);
    let request = cluster.lock(0, "x", SECOND * 60);
    cluster.now = cluster.now + cluster.rules.holder_lease;
    (0..3).for_each(|voter| cluster.cut(0, voter));
    cluster.release();
    assert!(!cluster.is_granted(request));
    cluster.heal();
    cluster.pass(cluster.rules.attempt);
    let lock = cluster.granted(request);
    assert!(cluster.held(&lock));
    cluster.unlock_last([lock]);
}

/// A voter that rejected the lock or was not reachable is asked again while the lock is held.
#[test]
fn a_held_lock_gets_missing_votes() {
    let mut cluster = Cluster::new(3);
    cluster.isolate(2);
    cluster.pass(SECOND * 2);
    let lock = cluster.locked(0, "x");
    assert_eq!(cluster.agents[0].locks().next().unwrap().votes.len(), 2);
    cluster.heal();
    cluster.pass(SECOND * 5);
    assert_eq!(cluster.agents[0].locks().next().unwrap().votes.len(), 3);
    cluster.isolate(1);
    cluster.pass(SECOND * 20);
    assert!(cluster.held(&lock));
}

/// Q9: the votes of a dead agent expire with its lease.
#[test]
fn votes_of_a_dead_agent_expire() {
    let mut cluster = Cluster::new(3);
    cluster.locked(0, "x");
    cluster.isolate(0);
    let early = cluster.lock(1, "x", SECOND * 5);
    cluster.pass(SECOND * 6);
    assert_eq!(cluster.refused(early), Refusal::Timeout);
    let late = cluster.lock(1, "x", SECOND * 10);
    cluster.pass(SECOND * 10);
    cluster.heal();
    cluster.unlock_last([cluster.granted(late)]);
}

/// Frequent disconnects of a member lose no lock.
#[test]
fn frequent_disconnects_lose_no_lock() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    for turn in 0..50 {
        let other = 1 + turn % 2;
        cluster.cut(0, other);
        cluster.agents[0].down(cluster.now, at(other));
        let extra = cluster.lock(0, &format!("y{turn}"), SECOND);
        cluster.pass(SECOND / 10);
        cluster.unlock_granted(extra);
        cluster.heal();
        cluster.agents[0].up(cluster.now, at(other));
        cluster.run();
    }
    assert!(cluster.held(&lock));
    cluster.unlock_last([lock]);
}
