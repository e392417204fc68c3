//! Fences: how voters agree on one, and what they store before they give it.

use super::cluster::{at, durable, known, rules, Cluster, SECOND};
use quorum::frame::MAX_FENCE;
use quorum::message::Fence;
use quorum::voter::Voter;

/// The voters of a lock know different fences. The agreed one is lost on its way to a voter that the lock needs.
#[test]
fn a_lost_fence_is_sent_again() {
    let mut cluster = Cluster::new(3);
    cluster.restart_voter(0, known(1000));
    cluster.run();
    cluster.isolate(2);
    cluster.hold(1, 0);
    let request = cluster.lock(0, "x", SECOND * 60);
    cluster.cut(0, 1);
    cluster.release();
    cluster.pass(cluster.rules.attempt);
    assert!(!cluster.is_granted(request));
    cluster.mend(0, 1);
    cluster.pass(cluster.rules.attempt);
    assert!(cluster.granted(request).fence > 1000);
    cluster.heal();
    cluster.unlock_granted(request);
    cluster.assert_empty();
}

/// One of four voters votes with a low fence and stops, then another one votes with a higher fence. The two others can
/// record that one, so no request waits for the one that stopped, whether or not its end is noticed.
#[test]
fn a_voter_that_stops_does_not_have_to_record_a_fence() {
    for is_noticed in [true, false] {
        let mut cluster = Cluster::new(4);
        cluster.restart_voter(1, known(1000));
        cluster.run();
        cluster.hold(1, 3);
        cluster.hold(2, 3);
        let request = cluster.lock(3, "x", 60 * SECOND);
        cluster.cut_both(3, 0);
        if is_noticed {
            let now = cluster.now;
            cluster.agents[3].down(now, at(0));
        }
        cluster.release_link(1, 3);
        cluster.run();
        assert!(!cluster.is_granted(request));
        cluster.release_link(2, 3);
        cluster.run();
        assert!(cluster.granted(request).fence > 1000, "{is_noticed}");
    }
}

/// A voter gives no fence before it has stored a mark that covers it.
#[test]
fn a_voter_stores_a_mark_first() {
    let mut cluster = Cluster::with(3, rules(|_| ()), durable(1000));
    let request = cluster.lock(0, "x", SECOND * 60);
    cluster.pass(SECOND);
    assert!(!cluster.is_granted(request));
    assert!(cluster.store.values().all(|mark| *mark > Fence(1000)));
    cluster.store_pending();
    cluster.pass(SECOND);
    assert_eq!(cluster.granted(request).fence, 1001);
}

/// No fence exceeds the highest, and the highest is never given twice.
#[test]
fn after_the_highest_fence_no_writer_is_granted() {
    for mark in [known(MAX_FENCE), durable(MAX_FENCE)] {
        let mut cluster = Cluster::with(3, rules(|_| ()), mark);
        cluster.restart_voter(0, mark);
        cluster.run();
        assert!(cluster.voters.iter().all(Voter::is_voting));
        assert!(cluster.store.values().all(|mark| *mark == Fence(MAX_FENCE)));
        cluster.store_pending();
        cluster.store.clear();
        cluster.run();
        let request = cluster.lock(0, "x", SECOND);
        cluster.pass(SECOND * 2);
        assert!(!cluster.is_granted(request), "the fences are exhausted");
        assert!(cluster.store.is_empty(), "there is no higher mark to store");
        let reader = cluster.rlocked(0, "x");
        assert_eq!(reader.fence, MAX_FENCE);
        cluster.unlock_last([reader]);
    }
}

/// A voter has missed the last writer and gives a lower fence. Only this voter gets a second batch: the others need
/// none, and one on its way would delay the next request.
#[test]
fn only_a_voter_with_a_lower_fence_gets_a_second_batch() {
    let mut cluster = Cluster::new(3);
    cluster.cut(1, 2);
    cluster.lock_and_unlock(1, "x");
    cluster.heal();
    cluster.pass(SECOND * 5);
    cluster.arrived.clear();
    let lock = cluster.locked(0, "x");
    let batches = cluster.batches().into_iter();
    let to: Vec<usize> = batches.map(|(_, to, _)| to).collect();
    assert_eq!(to, [0, 1, 2, 2]);
    cluster.unlock_last([lock]);
}
