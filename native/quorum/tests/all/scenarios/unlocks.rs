//! Unlocks: confirmed or not, batched, and without answers. After ADR 15 of AtlasDB.

use super::cluster::{at, durable, rules, unlocks, Answer, Cluster, NEW, SECOND};
use quorum::agent::{Held, Request};
use quorum::message::{Fence, Frame, Mode, Op, Send};

/// Q8: a released lock is not held, whether or not its unlock arrives.
#[test]
fn a_released_lock_is_not_held() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (0..3).for_each(|voter| cluster.hold(0, voter));
    let request = cluster.unlock_async(&lock);
    assert!(!cluster.held(&lock));
    assert!(matches!(cluster.answers[&request], Answer::Accepted));
    assert!(
        !cluster.agents[0].unlock_async(cluster.now, lock.token, Request(1000)),
        "a second release finds no lock"
    );
    cluster.heal();
    cluster.assert_empty();
}

/// Q7: an unlock removes only the vote of its own token: not that of a later lock of the same name, nor that of
/// another agent's lock with the same token.
#[test]
fn an_unlock_affects_only_its_own_token() {
    let mut cluster = Cluster::new(3);
    let first = cluster.locked(0, "x");
    cluster.arrived.clear();
    cluster.unlock(&first);
    let unlock = |(_, send): &&(usize, Send)| matches!(&send.frame, Frame::Batch(batch) if !batch.ops.is_empty());
    let old: Vec<(usize, Send)> = cluster.arrived.iter().filter(unlock).cloned().collect();
    assert_eq!(old.len(), 3);
    let again = cluster.locked(0, "x");
    let other = cluster.locked(1, "y");
    assert_eq!(other.token, first.token);
    for (from, mut send) in old {
        // Makes the frame look new.
        if let Frame::Batch(batch) = &mut send.frame {
            batch.seq += 1_000_000;
        }
        cluster.deliver(from, send);
    }
    for (name, lock) in [("x", again), ("y", other)] {
        assert!(cluster.held(&lock));
        let request = cluster.lock(2, name, SECOND);
        cluster.pass(SECOND * 2);
        assert!(!cluster.is_granted(request));
    }
}

/// `unlock` is answered after a quorum has confirmed it; `unlock_async` does not wait.
#[test]
fn unlock_waits_for_a_quorum() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (0..2).for_each(|voter| cluster.hold(0, voter));
    let request = cluster.unlock(&lock);
    assert!(!cluster.answers.contains_key(&request));
    cluster.heal();
    assert_eq!(cluster.unlocked(request), Some(true));
}

/// A voter that could not be asked has no vote, so it counts for the quorum that has none.
#[test]
fn an_unlock_counts_a_voter_that_was_never_asked() {
    let mut cluster = Cluster::new(4);
    cluster.isolate(0);
    let lock = cluster.locked(3, "x");
    let request = cluster.unlock(&lock);
    assert_eq!(cluster.unlocked(request), Some(true));
    cluster.heal();
    cluster.assert_empty();
}

/// One hanging member of three delays no other.
#[test]
fn a_hanging_member_delays_no_unlock() {
    let mut cluster = Cluster::new(3);
    cluster.hold(0, 2);
    for _ in 0..100 {
        let lock = cluster.locked(0, "x");
        let request = cluster.unlock(&lock);
        assert_eq!(cluster.unlocked(request), Some(true));
    }
    cluster.heal();
    cluster.assert_empty();
}

/// An unlock that reaches no quorum is answered when the lease has expired.
#[test]
fn unlock_has_a_deadline() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    (0..2).for_each(|voter| cluster.cut(0, voter));
    let request = cluster.unlock(&lock);
    cluster.pass(cluster.rules.voter_lease);
    assert_eq!(cluster.unlocked(request), Some(false));
    cluster.lock_and_unlock(1, "x");
}

/// Locks released while a batch is in flight share the next batch: 1,000 locks, released one by one and in groups.
#[test]
fn unlocks_are_batched() {
    for group in [1, 7] {
        let mut cluster = Cluster::new(3);
        let locks = cluster.locked_many(0, "x", 1000);
        cluster.batches();
        for (i, lock) in locks.iter().enumerate() {
            let request = Request(10_000 + i as u64);
            assert!(cluster.agents[0].unlock_async(cluster.now, lock.token, request));
            if i % group == group - 1 {
                // The mailbox is empty, but the answer to the first batch has not arrived.
                cluster.agents[0].flush(cluster.now);
            }
        }
        cluster.run();
        let batches = cluster.batches();
        let count = batches.len();
        assert!(count <= 6, "{count} batches for 1000 unlocks at 3 voters");
        let sent = batches.iter().map(|(_, _, batch)| unlocks(&batch.ops));
        assert_eq!(sent.sum::<usize>(), 3 * 1000);
        assert!(cluster.voters.iter().all(quorum::voter::Voter::is_empty));
        let accepted = |answer: &&Answer| matches!(answer, Answer::Accepted);
        assert_eq!(cluster.answers.values().filter(accepted).count(), 1000);
    }
}

/// A voter never has two batches in flight.
#[test]
fn a_voter_has_one_batch_in_flight() {
    let mut cluster = Cluster::new(3);
    let locks = cluster.locked_many(0, "x", 10);
    // Each of them has a vote of this voter.
    cluster.pass(SECOND * 2);
    cluster.hold(0, 1);
    let to_one = |(from, send): &&(usize, Send)| *from == 0 && send.to == at(1).into();
    for lock in &locks {
        cluster.unlock_async(lock);
        assert_eq!(cluster.wire.iter().filter(to_one).count(), 1);
    }
}

/// A new lock of the same name is never rejected because of the node's own earlier unlock.
#[test]
fn a_lock_does_not_wait_for_its_own_unlock() {
    let mut cluster = Cluster::new(3);
    for turn in 0..100 {
        let lock = cluster.locked(0, "x");
        let unlock = Request(10_000 + turn);
        assert!(cluster.agents[0].unlock_async(cluster.now, lock.token, unlock));
        let names = cluster.name("x").into();
        let request = Request(20_000 + turn);
        cluster.agents[0].lock(cluster.now, request, names, Mode::Write, SECOND);
        cluster.run();
        cluster.unlock_granted(request);
    }
    assert_eq!(cluster.now, Cluster::new(3).now, "no lock had to wait");
}

/// Above the limit of pending unlocks, callers wait in a FIFO queue until a quorum has caught up, or until a deadline.
#[test]
fn too_many_pending_unlocks_make_callers_wait() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.pending_unlocks = 5), NEW);
    let locks = cluster.locked_many(0, "x", 20);
    (0..3).for_each(|voter| cluster.hold(0, voter));
    let requests: Vec<Request> = locks
        .iter()
        .map(|lock| cluster.unlock_async(lock))
        .collect();
    let accepted = |cluster: &Cluster| {
        let accepted = |request: &&Request| cluster.answers.contains_key(request);
        requests.iter().filter(accepted).count()
    };
    assert_eq!(accepted(&cluster), 5);
    assert!(
        locks.iter().all(|lock| !cluster.held(lock)),
        "a lock is released even if its caller waits"
    );
    cluster.heal();
    assert_eq!(accepted(&cluster), 20);
    cluster.assert_empty();

    let locks = cluster.locked_many(0, "x", 20);
    cluster.isolate(0);
    let requests: Vec<Request> = locks
        .iter()
        .map(|lock| cluster.unlock_async(lock))
        .collect();
    cluster.pass(cluster.rules.voter_lease);
    let answered = |request: &Request| cluster.answers.contains_key(request);
    assert!(requests.iter().all(answered));
}

/// An unreachable member costs no memory, and receives the state it missed when it is back.
#[test]
fn an_unreachable_member_is_synced_later() {
    let mut cluster = Cluster::new(3);
    let kept = cluster.locked_many(0, "kept", 2000);
    let released = cluster.locked_many(0, "released", 2000);
    cluster.hold(0, 2);
    cluster.pass(SECOND / 2);
    for lock in &released {
        cluster.unlock_async(lock);
    }
    // The batch is considered lost only once, so few frames queue up for the member.
    cluster.pass(SECOND * 3 / 2);
    let bytes = |(_, send): &(usize, Send)| quorum::frame::encode(&send.frame).len();
    let listed: usize = cluster.wire.iter().map(bytes).sum();
    assert!(listed < 200_000, "{listed} bytes are queued for the member");
    cluster.wire.clear();
    cluster.batches();
    cluster.heal();
    cluster.pass(SECOND * 5);
    let mut to_it = cluster.batches();
    to_it.retain(|(from, to, _)| (*from, *to) == (0, 2));
    let to_it = to_it.into_iter();
    let received: Vec<Op> = to_it.flat_map(|(_, _, batch)| batch.ops).collect();
    assert!(received.iter().any(|op| matches!(op, Op::Sync { .. })));
    assert_eq!(unlocks(&received), 0, "no operation was queued for it");
    assert!(kept.iter().all(|lock| cluster.held(lock)));
    for lock in &kept {
        let has_vote = |held: Held<'_>| held.token == lock.token && held.votes.contains(at(2));
        assert!(cluster.agents[0].locks().any(has_vote));
        cluster.unlock_async(lock);
    }
    cluster.assert_empty();
}

/// An unlock names the fence of its lock. A voter does not record one above its stored mark, which a crash would lose.
#[test]
fn an_unlock_records_no_fence_above_the_mark() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.fence_block = 10), durable(0));
    cluster.store_first_marks();
    let lock = cluster.locked(0, "x");
    cluster.hold(0, 1);
    cluster.unlock_async(&lock);
    let mut changed = 0;
    for (_, send) in &mut cluster.wire {
        if let Frame::Batch(batch) = &mut send.frame {
            for op in &mut batch.ops {
                if let Op::Unlock { fence, .. } = op {
                    *fence = Fence(1000);
                    changed += 1;
                }
            }
        }
    }
    assert_eq!(changed, 1);
    cluster.release();
    assert_eq!(
        cluster.voters[1].fence(&cluster.name("x")),
        Fence(lock.fence)
    );
    cluster.assert_empty();
}

/// A batch that buries its own agent is executed: the agent is alive.
#[test]
fn an_agent_cannot_bury_itself() {
    let mut cluster = Cluster::new(3);
    let [kept, lock] = ["x", "y"].map(|name| cluster.locked(0, name));
    (0..3).for_each(|voter| cluster.hold(0, voter));
    cluster.unlock_async(&lock);
    for (_, send) in &mut cluster.wire {
        if let Frame::Batch(batch) = &mut send.frame {
            let agent = batch.agent;
            batch.ops.insert(0, Op::EndAgent { agent });
        }
    }
    cluster.release();
    let other = cluster.lock(1, "x", SECOND);
    cluster.pass(SECOND);
    assert!(cluster.held(&kept) && !cluster.is_granted(other));
    cluster.unlock_last([kept]);
}
