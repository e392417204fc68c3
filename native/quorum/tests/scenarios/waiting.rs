//! Who goes first, and how those that wait hear of it.

use crate::cluster::{at, Cluster, NEW, SECOND};
use quorum::agent::Request;
use quorum::message::{Batch, Op, Turn};
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

/// Node 3 gives x back, and the first voter alone hears of it; node 2 waits.
fn given_back_to_the_first() -> (Cluster, Request) {
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

/// Whoever has the vote of the first, and not yet those of others that are late, keeps it and waits for them: they hint
/// at it when they have theirs back.
#[test]
fn the_vote_of_the_first_is_kept() {
    let (mut cluster, next) = given_back_to_the_first();
    cluster.pass(cluster.rules.keep / 2);
    let ops = cluster.ops();
    let unlocks = ops.iter().filter(|op| matches!(op, Op::Unlock { .. }));
    assert_eq!(unlocks.count(), 1, "that of node 3: {ops:?}");
    let now = cluster.now;
    cluster.heal();
    assert_eq!(cluster.now, now);
    let next = cluster.granted(next);
    cluster.unlock(&next);
    cluster.assert_empty();
}

/// But not for long.
#[test]
fn the_vote_of_the_first_is_kept_for_a_moment() {
    let (mut cluster, next) = given_back_to_the_first();
    cluster.pass(cluster.rules.keep * 2);
    let of_two = |(from, _, batch): &(usize, usize, Batch)| {
        *from == 2 && batch.ops.iter().any(|op| matches!(op, Op::Unlock { .. }))
    };
    assert!(cluster.batches().iter().any(of_two));
    cluster.heal();
    cluster.pass(SECOND);
    assert!(cluster.is_granted(next));
}

/// It may be the one that a lock lacks: node 2 has x without the vote of the first, which it could not reach, and gets
/// it when it can, though others want it, too. So one more voter may fail.
#[test]
fn a_held_lock_gets_the_vote_of_the_first() {
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

/// Nor do two wait for each other for long who take different voters for the first, and have the votes of a half each.
#[test]
fn different_firsts_break_a_tie() {
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
        let granted = requests
            .into_iter()
            .find(|request| cluster.is_granted(*request));
        let lock = cluster.granted(granted.expect("one of them"));
        cluster.try_unlock(&lock);
        cluster.pass(SECOND / 4);
        assert!(requests.iter().all(|request| cluster.is_granted(*request)));
    }
}

/// Places at the front are in one order, too: node 2 leaves one behind at y, and then one at x, and node 3 the other
/// way round. Were they one place each, for both names, they would wait for each other.
#[test]
fn places_at_the_front_are_in_one_order() {
    let mut cluster = Cluster::new(5);
    let [x, y] = ["x", "y"].map(|name| cluster.locked(4, name));
    let mut asked = [(2, "x"), (3, "y")].map(|(node, name)| cluster.lock(node, name, SECOND * 60));
    // Node 4 gives back what the first has; others hear of it late.
    (1..5).for_each(|voter| cluster.hold(4, voter));
    cluster.try_unlock(&x);
    cluster.try_unlock(&y);
    for again in [Some([(2, "y"), (3, "x")]), None] {
        // They give up, and voter 1 does not hear of it.
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
    // The first is gone, and then what was late arrives.
    for node in 0..5 {
        cluster.agents[node].down(cluster.now, at(0));
    }
    let mut both = [2, 3]
        .map(|node| cluster.lock_many(node, &["x", "y"], SECOND * 60))
        .to_vec();
    cluster.release();
    for _ in 0..1000 {
        let done = both.iter().position(|request| cluster.is_granted(*request));
        if let Some(place) = done {
            let lock = cluster.granted(both.remove(place));
            cluster.try_unlock(&lock);
        }
        cluster.pass(Duration::from_millis(10));
    }
    assert!(both.is_empty(), "{both:?}");
}

/// Whose turn it is at the first is the next everywhere, also where others came earlier.
#[test]
fn the_one_of_the_first_is_the_next_of_all() {
    let mut cluster = Cluster::new(4);
    let lock = cluster.locked(3, "x");
    // Node 1 comes late to the first, and node 2 to the others.
    cluster.hold(1, 0);
    (1..4).for_each(|voter| cluster.hold(2, voter));
    let second = cluster.lock(1, "x", SECOND * 60);
    let first = cluster.lock(2, "x", SECOND * 60);
    cluster.heal();
    (1..4).for_each(|voter| cluster.hold(3, voter));
    cluster.try_unlock(&lock);
    assert!(!cluster.is_granted(first) && !cluster.is_granted(second));
    cluster.heal();
    let lock = cluster.granted(first);
    cluster.try_unlock(&lock);
    let lock = cluster.granted(second);
    cluster.try_unlock(&lock);
    cluster.assert_empty();
}

/// Readers of a node that come with each other are in time with each other, though a writer waits behind them.
#[test]
fn readers_of_a_batch_are_in_time_together() {
    let mut cluster = Cluster::new(3);
    let writer = cluster.locked(0, "x");
    let readers = [1, 1, 1].map(|node| cluster.rlock(node, "x", SECOND * 60));
    let late = cluster.lock(2, "x", SECOND * 60);
    cluster.pass(SECOND * 2);
    cluster.try_unlock(&writer);
    for request in readers {
        assert!(cluster.is_granted(request));
    }
    // Who comes now has to wait for the writer.
    let next = cluster.rlock(1, "x", SECOND * 60);
    cluster.pass(SECOND);
    assert!(!cluster.is_granted(next) && !cluster.is_granted(late));
    for request in readers {
        let lock = cluster.granted(request);
        cluster.try_unlock(&lock);
    }
    let lock = cluster.granted(late);
    cluster.try_unlock(&lock);
    let lock = cluster.granted(next);
    cluster.try_unlock(&lock);
    cluster.assert_empty();
}

/// A reader that has its lock, or gives up, does not take away the place of another one of its node.
#[test]
fn readers_of_a_node_share_their_place() {
    let mut cluster = Cluster::new(3);
    let writer = cluster.locked(0, "x");
    let impatient = cluster.rlock(1, "x", SECOND);
    let reader = cluster.rlock(1, "x", SECOND * 60);
    cluster.pass(SECOND * 3 / 2);
    cluster.refused(impatient);
    let now = cluster.now;
    cluster.try_unlock(&writer);
    assert_eq!(cluster.now, now);
    let reader = cluster.granted(reader);
    cluster.try_unlock(&reader);
    cluster.assert_empty();
}

/// Where others came earlier the last time they are likely to do so again: the next one of the node asks the first
/// alone. Not for longer than that is so.
#[test]
fn where_others_wait_the_first_is_asked_alone() {
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
        let locks = ops.filter(|op| matches!(op, Op::Lock { turn: told, .. } if *told == turn));
        locks.count()
    };
    cluster.try_unlock(&lock);
    assert!(cluster.is_granted(other) && !cluster.is_granted(again));
    assert_eq!(asked(&mut cluster, Turn::Earlier), 1);
    assert_eq!(asked(&mut cluster, Turn::Unknown), 0);
    let lock = cluster.granted(other);
    cluster.try_unlock(&lock);
    let mut lock = cluster.granted(again);
    // From here on nobody else wants it.
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
