//! Who goes first, and how those that wait hear of it.

use crate::cluster::{Cluster, SECOND};
use std::time::Duration;

/// A hint wakes the one that waits: no time passes between the unlock and the next lock.
#[test]
fn a_hint_wakes_the_next() {
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
    cluster.unlock(&lock);
    cluster.assert_empty();
}

/// Writers of several nodes come in the order in which they asked.
#[test]
fn writers_take_turns() {
    let mut cluster = Cluster::new(5);
    let mut lock = cluster.locked(0, "x");
    let waiting: Vec<_> = (1..5)
        .map(|node| cluster.lock(node, "x", SECOND * 60))
        .collect();
    cluster.pass(SECOND * 2);
    // Whoever comes back at once comes last.
    for request in waiting {
        let node = lock.node;
        cluster.unlock(&lock);
        let again = cluster.lock(node, "x", SECOND * 60);
        cluster.pass(Duration::from_millis(1));
        assert!(!cluster.is_granted(again));
        lock = cluster.granted(request);
    }
}

/// On one node, too.
#[test]
fn requests_of_a_node_come_in_order() {
    let mut cluster = Cluster::new(3);
    let mut lock = cluster.locked(0, "x");
    let waiting: Vec<_> = (0..10).map(|_| cluster.lock(0, "x", SECOND * 60)).collect();
    cluster.batches();
    for (i, request) in waiting.iter().enumerate() {
        assert!(waiting[i..].iter().all(|later| !cluster.is_granted(*later)));
        cluster.unlock(&lock);
        lock = cluster.granted(*request);
    }
    cluster.unlock(&lock);
    cluster.assert_empty();
}

/// Readers that come one after the other do not keep a writer out: it has a place, and later readers wait behind it.
#[test]
fn readers_do_not_starve_a_writer() {
    let mut cluster = Cluster::new(3);
    let mut reading = vec![cluster.rlock(0, "x", SECOND * 60)];
    let writer = cluster.lock(1, "x", SECOND * 60);
    let mut rounds = 0;
    while !cluster.is_granted(writer) {
        rounds += 1;
        assert!(rounds < 30, "the writer starves");
        // Before one reader goes, the next has come.
        let next = cluster.rlock(rounds % 3, "x", SECOND * 60);
        cluster.pass(SECOND / 5);
        let granted = reading
            .iter()
            .position(|request| cluster.is_granted(*request));
        if let Some(lock) = granted.map(|place| cluster.granted(reading.remove(place))) {
            cluster.unlock(&lock);
        }
        reading.push(next);
    }
    let writer = cluster.granted(writer);
    let late: Vec<_> = reading
        .into_iter()
        .filter(|request| !cluster.is_granted(*request))
        .collect();
    cluster.unlock(&writer);
    cluster.pass(SECOND * 2);
    assert!(
        late.iter().all(|request| cluster.is_granted(*request)),
        "all readers come after it"
    );
}

/// Two that want the same names, and others that want one of them, do not wait for each other in a circle: places are
/// in the same order in all lines.
#[test]
fn several_names_are_waited_for_in_one_order() {
    let mut cluster = Cluster::new(4);
    let [a, b] = ["a", "b"].map(|name| cluster.locked(0, name));
    let singles = [
        cluster.lock(1, "a", SECOND * 60),
        cluster.lock(2, "b", SECOND * 60),
    ];
    let both = [2, 1, 3].map(|node| cluster.lock_many(node, &["a", "b"], SECOND * 60));
    cluster.unlock(&b);
    cluster.unlock(&a);
    let mut left: Vec<_> = singles.into_iter().chain(both).collect();
    for _ in 0..20 {
        cluster.pass(SECOND / 2);
        for request in std::mem::take(&mut left) {
            if cluster.is_granted(request) {
                let lock = cluster.granted(request);
                cluster.unlock(&lock);
            } else {
                left.push(request);
            }
        }
    }
    assert!(left.is_empty(), "{left:?}");
    cluster.assert_empty();
}

/// The gate of a writer that has given up falls.
#[test]
fn a_writer_that_gives_up_keeps_nobody_out() {
    let mut cluster = Cluster::new(3);
    let reader = cluster.rlocked(0, "x");
    let writer = cluster.lock(1, "x", SECOND);
    let late = cluster.rlock(2, "x", SECOND * 60);
    assert!(!cluster.is_granted(late), "behind the writer");
    cluster.pass(SECOND);
    cluster.refused(writer);
    cluster.pass(SECOND);
    let late = cluster.granted(late);
    for lock in [reader, late] {
        cluster.unlock(&lock);
    }
    cluster.assert_empty();
}

/// And that of one whose node is gone falls, too.
#[test]
fn the_place_of_a_dead_agent_expires() {
    let mut cluster = Cluster::new(3);
    let reader = cluster.rlocked(0, "x");
    cluster.lock(1, "x", SECOND * 60);
    cluster.restart_agent(1);
    let late = cluster.rlock(2, "x", SECOND * 60);
    assert!(!cluster.is_granted(late));
    cluster.pass(cluster.rules.wait + SECOND);
    let late = cluster.granted(late);
    for lock in [reader, late] {
        cluster.unlock(&lock);
    }
    cluster.assert_empty();
}

/// Two that split the votes come one after the other, soon: n/2 to n/2.
#[test]
fn a_tie_is_broken() {
    for count in [2, 4, 6] {
        let mut cluster = Cluster::new(count);
        let half = count / 2;
        // Each is first at its half of the voters.
        (half..count).for_each(|voter| cluster.hold(0, voter));
        (0..half).for_each(|voter| cluster.hold(1, voter));
        let requests = [
            cluster.lock(0, "x", SECOND * 60),
            cluster.lock(1, "x", SECOND * 60),
        ];
        cluster.heal();
        let mut done = 0;
        for _ in 0..100 {
            cluster.pass(Duration::from_millis(10));
            for request in requests {
                let lock = cluster
                    .is_granted(request)
                    .then(|| cluster.granted(request));
                if let Some(lock) = lock.filter(|lock| cluster.held(lock)) {
                    cluster.unlock(&lock);
                    done += 1;
                }
            }
        }
        assert_eq!(done, 2, "of {count} nodes");
        cluster.assert_empty();
    }
}
