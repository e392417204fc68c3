//! The order of waiting requests, and hints.

use crate::cluster::{at, unlocks, Cluster, NEW, SECOND};
use quorum::agent::Request;
use quorum::message::{Batch, Op, Turn};
use std::time::Duration;

/// A hint starts the next request: no time passes between the unlock and the next grant.
#[test]
fn a_hint_starts_the_next_request() {
    let mut cluster = Cluster::new(3);
    let mut lock = cluster.locked(0, "x");
    for turn in 1..20 {
        let next = cluster.lock(turn % 3, "x", SECOND * 60);
        cluster.pass(SECOND * 5);
        assert!(!cluster.is_granted(next));
        let now = cluster.now;
        cluster.unlock(&lock);
        assert_eq!(cluster.now, now);
        lock = cluster.granted(next);
    }
    cluster.unlock_last([lock]);
}

/// Writers of several nodes get the lock in the order of their requests.
#[test]
fn writers_are_granted_in_order() {
    let mut cluster = Cluster::new(5);
    let mut lock = cluster.locked(0, "x");
    let waiting = [1, 2, 3, 4].map(|node| cluster.lock(node, "x", SECOND * 60));
    cluster.pass(SECOND * 2);
    // A node that asks again immediately goes to the end of the queue.
    for request in waiting {
        let node = lock.node;
        cluster.unlock(&lock);
        let again = cluster.lock(node, "x", SECOND * 60);
        cluster.pass(Duration::from_millis(1));
        assert!(!cluster.is_granted(again));
        lock = cluster.granted(request);
    }
}

/// The same holds on one node.
#[test]
fn requests_of_a_node_are_granted_in_order() {
    let mut cluster = Cluster::new(3);
    let mut lock = cluster.locked(0, "x");
    let waiting: Vec<_> = (0..10).map(|_| cluster.lock(0, "x", SECOND * 60)).collect();
    cluster.batches();
    for (i, request) in waiting.iter().enumerate() {
        assert!(waiting[i..].iter().all(|later| !cluster.is_granted(*later)));
        cluster.unlock(&lock);
        lock = cluster.granted(*request);
    }
    cluster.unlock_last([lock]);
}

/// Node 3 releases x, and only the first voter receives the unlock. Node 2 waits.
fn released_at_the_first_voter() -> (Cluster, Request) {
    let mut cluster = Cluster::new(4);
    let lock = cluster.locked(3, "x");
    let next = cluster.lock(2, "x", SECOND * 60);
    cluster.pass(SECOND * 2);
    (1..4).for_each(|voter| cluster.hold(3, voter));
    cluster.arrived.clear();
    cluster.try_unlock(&lock);
    assert!(!cluster.is_granted(next));
    (cluster, next)
}

/// A request with the vote of the first voter keeps it while the unlocks of the other voters are late. Those voters
/// send hints when they receive them.
#[test]
fn the_first_vote_is_kept() {
    let (mut cluster, next) = released_at_the_first_voter();
    cluster.pass(cluster.rules.keep / 2);
    let ops = cluster.ops();
    assert_eq!(unlocks(&ops), 1, "only the unlock of node 3: {ops:?}");
    let now = cluster.now;
    cluster.heal();
    assert_eq!(cluster.now, now);
    cluster.unlock_last([cluster.granted(next)]);
}

/// It keeps that vote only for the time `keep`.
#[test]
fn the_first_vote_is_kept_for_a_limited_time() {
    let (mut cluster, next) = released_at_the_first_voter();
    cluster.pass(cluster.rules.keep * 2);
    let of_two = |(from, _, batch): &(usize, usize, Batch)| *from == 2 && unlocks(&batch.ops) > 0;
    assert!(cluster.batches().iter().any(of_two));
    cluster.heal();
    cluster.pass(SECOND);
    assert!(cluster.is_granted(next));
}

/// A held lock may lack the vote of the first voter: node 2 got x while it could not reach that voter. When it can,
/// it gets the vote although other requests wait for it. One more voter may then fail.
#[test]
fn a_held_lock_gets_the_missing_first_vote() {
    for others in [&[][..], &[1], &[0], &[0, 1]] {
        let mut cluster = Cluster::new(3);
        cluster.cut(2, 0);
        cluster.cut(0, 2);
        let request = cluster.lock(2, "x", SECOND * 60);
        cluster.pass(SECOND * 5);
        let lock = cluster.granted(request);
        for node in others {
            cluster.lock(*node, "x", SECOND * 60);
        }
        cluster.heal();
        cluster.pass(SECOND * 6);
        let held = cluster.agents[2].locks().next().unwrap();
        assert_eq!(held.votes.len(), 3, "{others:?}");
        cluster.restart_voter(1, NEW);
        cluster.pass(SECOND);
        assert!(cluster.held(&lock), "{others:?}");
    }
}

/// Two requests that treat different voters as the first, and have half of the votes each, do not wait for each other
/// for long.
#[test]
fn a_tie_with_different_first_voters_is_broken() {
    for count in [4, 6] {
        let mut cluster = Cluster::new(count);
        let last = count - 1;
        cluster.cut(last, 0);
        cluster.cut(0, last);
        cluster.pass(SECOND * 3);
        for voter in 1..count {
            cluster.hold(if voter % 2 == 1 { 1 } else { last }, voter);
        }
        let requests = [1, last].map(|node| cluster.lock(node, "x", SECOND * 60));
        cluster.release();
        cluster.pass(SECOND / 4);
        let mut granted = requests.into_iter();
        let granted = granted.find(|request| cluster.is_granted(*request));
        cluster.unlock_granted(granted.expect("one request is granted"));
        cluster.pass(SECOND / 4);
        assert!(requests.iter().all(|request| cluster.is_granted(*request)));
    }
}

/// Positions at the front of the queues are in one order. Node 2 leaves one at y and then one at x, node 3 in the
/// opposite order. With separate orders, the two later requests for both names would wait for each other.
#[test]
fn positions_at_the_front_are_in_one_order() {
    let mut cluster = Cluster::new(5);
    let [x, y] = ["x", "y"].map(|name| cluster.locked(4, name));
    let mut asked = [(2, "x"), (3, "y")].map(|(node, name)| cluster.lock(node, name, SECOND * 60));
    // Node 4 releases both names. The first voter receives the unlocks; the others receive them late.
    (1..5).for_each(|voter| cluster.hold(4, voter));
    cluster.try_unlock(&x);
    cluster.try_unlock(&y);
    for again in [Some([(2, "y"), (3, "x")]), None] {
        // Both requests are canceled, and voter 1 does not receive it.
        [2, 3].iter().for_each(|node| cluster.cut(*node, 1));
        for (node, request) in [2, 3].into_iter().zip(asked) {
            cluster.agents[node].cancel(cluster.now, request);
        }
        cluster.run();
        [2, 3].iter().for_each(|node| cluster.mend(*node, 1));
        cluster.pass(SECOND * 101 / 100);
        if let Some(again) = again {
            asked = again.map(|(node, name)| cluster.lock(node, name, SECOND * 60));
        }
    }
    // The first voter is disconnected, then the late frames arrive.
    for node in 0..5 {
        cluster.agents[node].down(cluster.now, at(0));
    }
    let both = [2, 3].map(|node| cluster.lock_many(node, &["x", "y"], SECOND * 60));
    let mut both = both.to_vec();
    cluster.release();
    for _ in 0..1000 {
        let done = both.iter().position(|request| cluster.is_granted(*request));
        if let Some(place) = done {
            cluster.unlock_granted(both.remove(place));
        }
        cluster.pass(Duration::from_millis(10));
    }
    assert!(both.is_empty(), "{both:?}");
}

/// The request that the first voter chooses is the next at all voters, even if others arrived earlier there.
#[test]
fn the_first_voter_decides_the_next_request() {
    let mut cluster = Cluster::new(4);
    let lock = cluster.locked(3, "x");
    // The request of node 1 reaches the first voter late, that of node 2 the other voters.
    cluster.hold(1, 0);
    (1..4).for_each(|voter| cluster.hold(2, voter));
    let second = cluster.lock(1, "x", SECOND * 60);
    let first = cluster.lock(2, "x", SECOND * 60);
    cluster.heal();
    (1..4).for_each(|voter| cluster.hold(3, voter));
    cluster.try_unlock(&lock);
    assert!(!cluster.is_granted(first) && !cluster.is_granted(second));
    cluster.heal();
    cluster.unlock_granted(first);
    cluster.unlock_granted(second);
    cluster.assert_empty();
}

/// Readers of one batch share a queue position, although a writer waits behind it.
#[test]
fn readers_of_a_batch_share_a_position() {
    let mut cluster = Cluster::new(3);
    let writer = cluster.locked(0, "x");
    let readers = [1, 1, 1].map(|node| cluster.rlock(node, "x", SECOND * 60));
    let late = cluster.lock(2, "x", SECOND * 60);
    cluster.pass(SECOND * 2);
    cluster.try_unlock(&writer);
    assert!(readers.iter().all(|request| cluster.is_granted(*request)));
    // A later reader waits for the writer.
    let next = cluster.rlock(1, "x", SECOND * 60);
    cluster.pass(SECOND);
    assert!(!cluster.is_granted(next) && !cluster.is_granted(late));
    for request in readers.into_iter().chain([late, next]) {
        cluster.unlock_granted(request);
    }
    cluster.assert_empty();
}

/// A reader that is granted or gives up does not remove the queue position of other readers of its node.
#[test]
fn readers_of_a_node_share_a_position() {
    let mut cluster = Cluster::new(3);
    let writer = cluster.locked(0, "x");
    let impatient = cluster.rlock(1, "x", SECOND);
    let reader = cluster.rlock(1, "x", SECOND * 60);
    cluster.pass(SECOND * 3 / 2);
    cluster.refused(impatient);
    let now = cluster.now;
    cluster.try_unlock(&writer);
    assert_eq!(cluster.now, now);
    cluster.unlock_granted(reader);
    cluster.assert_empty();
}

/// If a node had to wait the last time, its next request asks only the first voter. After an uncontended lock, it
/// asks all voters again.
#[test]
fn a_contended_request_asks_the_first_voter_only() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    let next = cluster.lock(1, "x", SECOND * 60);
    cluster.try_unlock(&lock);
    let lock = cluster.granted(next);
    let other = cluster.lock(2, "x", SECOND * 60);
    let again = cluster.lock(1, "x", SECOND * 60);
    cluster.pass(Duration::from_millis(100));
    cluster.arrived.clear();
    let asked = |cluster: &mut Cluster, turn| {
        let batches = cluster.batches().into_iter();
        let of_one = batches.filter(|(from, ..)| *from == 1);
        let ops = of_one.flat_map(|(_, _, batch)| batch.ops);
        let locks = ops.filter(|op| matches!(op, Op::Lock { turn: sent, .. } if *sent == turn));
        locks.count()
    };
    cluster.try_unlock(&lock);
    assert!(cluster.is_granted(other) && !cluster.is_granted(again));
    assert_eq!(asked(&mut cluster, Turn::Earlier), 1);
    assert_eq!(asked(&mut cluster, Turn::Unknown), 0);
    cluster.unlock_granted(other);
    let mut lock = cluster.granted(again);
    // From here on no other node asks.
    for others in [0, 2] {
        let next = cluster.lock(1, "x", SECOND * 60);
        cluster.pass(Duration::from_millis(100));
        cluster.arrived.clear();
        cluster.try_unlock(&lock);
        assert_eq!(asked(&mut cluster, Turn::Unknown), others);
        lock = cluster.granted(next);
    }
    cluster.try_unlock(&lock);
    cluster.assert_empty();
}

/// A stream of readers does not starve a writer: the writer has a queue position, and later readers wait behind it.
#[test]
fn readers_do_not_starve_a_writer() {
    let mut cluster = Cluster::new(3);
    let mut reading = vec![cluster.rlock(0, "x", SECOND * 60)];
    let writer = cluster.lock(1, "x", SECOND * 60);
    let mut rounds = 0;
    while !cluster.is_granted(writer) {
        rounds += 1;
        assert!(rounds < 30, "the writer starves");
        // The next reader asks before one releases.
        let next = cluster.rlock(rounds % 3, "x", SECOND * 60);
        cluster.pass(SECOND / 5);
        let mut requests = reading.iter();
        if let Some(place) = requests.position(|request| cluster.is_granted(*request)) {
            cluster.unlock(&cluster.granted(reading.remove(place)));
        }
        reading.push(next);
    }
    cluster.unlock(&cluster.granted(writer));
    cluster.pass(SECOND * 2);
    // The readers behind the writer are granted.
    assert!(reading.iter().all(|request| cluster.is_granted(*request)));
}

/// Requests for the same names, and for one of them, do not wait for each other in a circle: all queues of a voter
/// have the same order.
#[test]
fn queues_of_several_names_have_one_order() {
    let mut cluster = Cluster::new(4);
    let [a, b] = ["a", "b"].map(|name| cluster.locked(0, name));
    let singles = [(1, "a"), (2, "b")].map(|(node, name)| cluster.lock(node, name, SECOND * 60));
    let both = [2, 1, 3].map(|node| cluster.lock_many(node, &["a", "b"], SECOND * 60));
    cluster.unlock(&b);
    cluster.unlock(&a);
    let mut left: Vec<_> = singles.into_iter().chain(both).collect();
    for _ in 0..20 {
        cluster.pass(SECOND / 2);
        for request in std::mem::take(&mut left) {
            if cluster.is_granted(request) {
                cluster.unlock(&cluster.granted(request));
            } else {
                left.push(request);
            }
        }
    }
    assert!(left.is_empty(), "{left:?}");
    cluster.assert_empty();
}

/// A writer that gave up no longer blocks readers.
#[test]
fn a_writer_that_gives_up_does_not_block_readers() {
    let mut cluster = Cluster::new(3);
    let reader = cluster.rlocked(0, "x");
    let writer = cluster.lock(1, "x", SECOND);
    let late = cluster.rlock(2, "x", SECOND * 60);
    assert!(!cluster.is_granted(late), "behind the writer");
    cluster.pass(SECOND);
    cluster.refused(writer);
    cluster.pass(SECOND);
    cluster.unlock_last([reader, cluster.granted(late)]);
}

/// Nor does a writer whose agent is dead, once its position expires.
#[test]
fn the_position_of_a_dead_agent_expires() {
    let mut cluster = Cluster::new(3);
    let reader = cluster.rlocked(0, "x");
    cluster.lock(1, "x", SECOND * 60);
    cluster.restart_agent(1);
    let late = cluster.rlock(2, "x", SECOND * 60);
    assert!(!cluster.is_granted(late));
    cluster.pass(cluster.rules.wait + SECOND);
    cluster.unlock_last([reader, cluster.granted(late)]);
}

/// Two requests that split the votes evenly are both granted soon, one after the other.
#[test]
fn a_tie_is_broken() {
    for count in [2, 4, 6] {
        let mut cluster = Cluster::new(count);
        let half = count / 2;
        // Each request is the first at half of the voters.
        (half..count).for_each(|voter| cluster.hold(0, voter));
        (0..half).for_each(|voter| cluster.hold(1, voter));
        let requests = [0, 1].map(|node| cluster.lock(node, "x", SECOND * 60));
        cluster.heal();
        let mut done = 0;
        for _ in 0..100 {
            cluster.pass(Duration::from_millis(10));
            for request in requests {
                if cluster.is_granted(request) && cluster.held(&cluster.granted(request)) {
                    cluster.unlock(&cluster.granted(request));
                    done += 1;
                }
            }
        }
        assert_eq!(done, 2, "of {count} nodes");
        cluster.assert_empty();
    }
}
