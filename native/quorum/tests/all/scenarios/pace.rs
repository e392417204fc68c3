//! Fences never outrun the clock, so the clock is above all of them if they are lost.

use super::cluster::{at, known, lost, rules, Cluster, SECOND};
use quorum::message::Fence;
use quorum::voter::Fences;
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);

/// What wall clocks show, in units of 16 ns, when `now` is 0.
const CLOCK: u64 = 1 << 40;

fn clock(cluster: &Cluster) -> u64 {
    CLOCK + cluster.now.0 as u64 / 16
}

fn paced(fences: Fences) -> Fences {
    Fences {
        paced: true,
        ..fences
    }
}

/// Half a second, in which each requested mark is stored. A request is repeated after a pause.
fn store_and_pass(cluster: &mut Cluster) {
    for _ in 0..50 {
        cluster.store_pending();
        cluster.pass(MILLISECOND * 10);
    }
}

#[test]
fn a_voter_gives_no_fence_faster_than_its_clock() {
    let fences = paced(lost(1000));
    let mut cluster = Cluster::with(1, rules(|_| ()), fences);
    let request = cluster.lock(0, "x", SECOND);
    assert!(!cluster.is_granted(request));
    cluster.pass(SECOND);
    assert_eq!(cluster.granted(request).fence, 1001);
    // All that was not used since the start may be used.
    for place in 0..100 {
        // A few of these names share a partition.
        assert!(cluster.lock_and_unlock(0, &format!("{place}")) < 1010);
    }
}

/// Each start finds the mark of the last one, and one lock is granted in each life. The blocks are far larger than what
/// the clock advances in a life.
#[test]
fn a_crash_loop_does_not_outrun_the_clock() {
    let rules = rules(|rules| rules.fence_block = 1 << 36);
    let start = |floor, origin| {
        paced(Fences {
            floor,
            origin: Fence(origin),
            durable: true,
            ..known(0)
        })
    };
    let mut cluster = Cluster::with(1, rules, start(None, CLOCK));
    let mut last = 0;
    for _ in 0..100 {
        let request = cluster.lock(0, "x", SECOND);
        store_and_pass(&mut cluster);
        let lock = cluster.unlock_granted(request);
        assert!(lock.fence > last);
        last = lock.fence;
        let mark = cluster.store[&0];
        assert!(mark.0 <= clock(&cluster), "{mark:?}");
        let fences = start(Some(mark), clock(&cluster));
        cluster.restart_voter(0, fences);
        cluster.run();
    }
    // All is lost. The clock is above all fences.
    let fences = start(None, clock(&cluster));
    cluster.restart_voter(0, fences);
    cluster.pass(MILLISECOND);
    cluster.store_pending();
    assert!(cluster.locked(0, "x").fence > last);
}

/// The mark is above the clock, which was set back. A restart stores nothing more, and fences grow with time.
#[test]
fn a_voter_whose_clock_was_set_back_continues_from_its_mark() {
    let fences = Fences {
        durable: true,
        ..paced(known(1 << 50))
    };
    let mut cluster = Cluster::with(1, rules(|_| ()), fences);
    assert!(cluster.store.is_empty());
    let request = cluster.lock(0, "x", SECOND);
    store_and_pass(&mut cluster);
    assert_eq!(cluster.granted(request).fence, (1 << 50) + 1);
}

/// The clock of voter 0 is ahead. The others record its fences, and do not refuse them.
#[test]
fn fences_of_a_voter_whose_clock_is_ahead_are_recorded() {
    let mut cluster = Cluster::with(3, rules(|_| ()), paced(known(10)));
    cluster.restart_voter(0, paced(known(1 << 50)));
    cluster.run();
    cluster.pass(SECOND);
    for turn in 0..5 {
        for node in 0..3 {
            cluster.pass(MILLISECOND);
            let fence = cluster.lock_and_unlock(node, "x");
            assert!(fence > 1 << 50, "{turn} {node} {fence}");
        }
    }
    for voter in &cluster.voters[..2] {
        assert!(voter.fence(&cluster.name("x")) > Fence(1 << 50));
    }
    // Without voter 0, the others continue from there, also one that does not know its fences yet: it cannot give the
    // fence that the agent guesses, and agrees to it.
    cluster.pass(MILLISECOND);
    let last = cluster.lock_and_unlock(1, "x");
    cluster.restart_voter(2, paced(known(10)));
    cluster.run();
    assert!(cluster.voters[2].is_voting());
    for node in 0..3 {
        cluster.agents[node].down(cluster.now, at(0));
    }
    cluster.isolate(0);
    cluster.pass(MILLISECOND);
    assert!(cluster.lock_and_unlock(1, "x") > last);
}
