//! Fences at the first start of a cluster, and after their loss.

use super::cluster::{at, known, lost, rules, Cluster, SECOND};
use quorum::frame::MAX_FENCE;
use quorum::message::{Fence, Floor, Frame, Known, Send};
use quorum::voter::{Fences, Voter};
use std::time::Duration;

fn all_vote(cluster: &Cluster) -> bool {
    cluster.voters.iter().all(Voter::is_voting)
}

fn from_voter(cluster: &mut Cluster, from: usize, to: usize, floor: Floor) {
    let frame = Frame::Floor(floor);
    cluster.deliver(
        from,
        Send {
            to: at(to).into(),
            frame,
        },
    );
    cluster.run();
}

/// A first start needs no configured number and no waiting: only all members.
#[test]
fn a_first_start_needs_only_all_members() {
    for count in [1, 2, 3, 5, 16] {
        let mut cluster = Cluster::with(count, rules(|_| ()), lost(1000));
        assert!(all_vote(&cluster), "{count}");
        assert_eq!(cluster.lock_and_unlock(0, "x"), 1001, "{count}");
        assert_eq!(cluster.locked(count - 1, "x").fence, 1002);
    }
}

/// The clocks of the members differ: the highest origin counts.
#[test]
fn the_highest_origin_counts() {
    let mut cluster = Cluster::with(3, rules(|_| ()), lost(1000));
    for (voter, origin) in [2000, 1500, 3000].into_iter().enumerate() {
        cluster.restart_voter(voter, lost(origin));
    }
    cluster.run();
    assert!(all_vote(&cluster));
    for voter in &cluster.voters {
        assert_eq!(voter.fence(&cluster.name("x")), Fence(3000));
    }
}

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

/// With stored fences, no fence is given before it is stored.
#[test]
fn a_first_start_with_storage_stores_first() {
    let fences = Fences {
        durable: true,
        ..lost(1000)
    };
    let mut cluster = Cluster::with(3, rules(|_| ()), fences);
    let request = cluster.lock(0, "x", SECOND * 60);
    cluster.pass(SECOND);
    assert!(!cluster.is_granted(request));
    assert!(cluster.store.values().all(|mark| *mark > Fence(1000)));
    cluster.store_pending();
    cluster.pass(SECOND);
    assert_eq!(cluster.granted(request).fence, 1001);
}

/// While a member has never started, no member votes, although their clocks would allow it.
#[test]
fn a_first_start_waits_for_all() {
    let mut cluster = Cluster::with(3, rules(|_| ()), lost(1000));
    cluster.isolate(2);
    (0..2).for_each(|voter| cluster.restart_voter(voter, lost(1000)));
    cluster.pass(SECOND * 60);
    assert!(!cluster.voters[0].is_voting() && !cluster.voters[1].is_voting());
    cluster.heal();
    cluster.pass(SECOND * 2);
    assert!(all_vote(&cluster));
}

/// While enough members know their fences, no clock counts.
#[test]
fn a_co_quorum_of_known_fences_ignores_clocks() {
    let mut cluster = Cluster::with(5, rules(|_| ()), lost(1000));
    let fence = cluster.lock_and_unlock(0, "x");
    // Two wrong clocks, one too low and one too high.
    cluster.restart_voter(1, lost(3));
    cluster.restart_voter(2, lost(1_000_000));
    cluster.run();
    assert!(all_vote(&cluster));
    // Those that gave it, and those that have learned it.
    for voter in &cluster.voters[..3] {
        assert_eq!(voter.fence(&cluster.name("x")), Fence(fence));
    }
}

/// If too many members have lost their fences, all must answer. Then the clocks count, and so do the known fences.
#[test]
fn a_loss_of_too_many_fences_needs_all_members() {
    for (clock, next) in [(5000, 5001), (10, 1003)] {
        let mut cluster = Cluster::with(3, rules(|_| ()), lost(1000));
        for _ in 0..2 {
            // For so long that all voters know the fence.
            let lock = cluster.locked(2, "x");
            cluster.pass(SECOND * 2);
            cluster.unlock(&lock);
        }
        cluster.isolate(2);
        cluster.restart_voter(0, lost(clock));
        cluster.restart_voter(1, lost(9));
        cluster.pass(SECOND * 60);
        assert!(!cluster.voters[0].is_voting() && !cluster.voters[1].is_voting());
        cluster.heal();
        cluster.pass(SECOND * 2);
        assert!(all_vote(&cluster));
        assert_eq!(cluster.locked(0, "x").fence, next);
    }
}

/// Q5: fences grow even if all members lose them repeatedly, as long as the clocks grow.
#[test]
fn fences_grow_across_the_loss_of_all() {
    for durable in [false, true] {
        let fences = |origin| Fences {
            durable,
            ..lost(origin)
        };
        let rules = rules(|rules| rules.fence_block = 10);
        let mut cluster = Cluster::with(3, rules, fences(1000));
        let mut last = 0;
        for turn in 2..10 {
            let until = cluster.now + SECOND;
            while cluster.now < until {
                cluster.store_pending();
                cluster.store.clear();
                cluster.pass(Duration::from_millis(100));
            }
            for node in 0..3 {
                let fence = cluster.lock_and_unlock(node, "x");
                assert!(fence > last);
                last = fence;
            }
            (0..3).for_each(|voter| cluster.restart_voter(voter, fences(turn * 1000)));
            cluster.store.clear();
            cluster.run();
        }
        assert!(last > 8000, "{last}");
    }
}

/// Repeated answers and answers to an earlier lifetime do not count as further answers.
#[test]
fn answers_count_once_and_for_one_lifetime() {
    let mut cluster = Cluster::with(4, rules(|_| ()), lost(1000));
    cluster.isolate(0);
    let earlier = cluster.voters[0].lifetime();
    cluster.restart_voter(0, lost(1000));
    cluster.pass(SECOND * 11);
    let asker = cluster.voters[0].lifetime();
    let answer = |asker, known| Floor::Answer {
        asker,
        voter: asker,
        seen: asker,
        known,
    };
    let told = |asker, fence| {
        let fence = Fence(fence);
        answer(asker, Known::Told { fence })
    };
    let also_lost = |asker, origin| {
        let origin = Fence(origin);
        answer(asker, Known::Lost { origin })
    };
    for from in 1..4 {
        from_voter(&mut cluster, from, 0, told(earlier, 5000));
        from_voter(&mut cluster, from, 0, also_lost(earlier, 9000));
    }
    // Answers to an earlier lifetime do not count.
    assert!(!cluster.voters[0].is_voting());
    for _ in 0..3 {
        from_voter(&mut cluster, 1, 0, told(asker, 5000));
        from_voter(&mut cluster, 1, 0, also_lost(asker, 9000));
        from_voter(&mut cluster, 2, 0, also_lost(asker, 9000));
    }
    // Only two members have answered.
    assert!(!cluster.voters[0].is_voting());
    from_voter(&mut cluster, 3, 0, also_lost(asker, 7));
    assert!(cluster.voters[0].is_voting());
    assert_eq!(cluster.voters[0].fence(&cluster.name("x")), Fence(9000));
    // A voter that votes ignores further answers.
    from_voter(&mut cluster, 3, 0, told(asker, 1_000_000));
    from_voter(&mut cluster, 3, 0, also_lost(asker, 1_000_000));
    assert_eq!(cluster.voters[0].fence(&cluster.name("x")), Fence(9000));
}

/// A member that reported its fences lost is asked again, and counts among those that know theirs once it has
/// recovered.
#[test]
fn a_member_that_had_lost_its_fences_is_asked_again() {
    let mut cluster = Cluster::with(5, rules(|_| ()), lost(1000));
    // All members can answer 1 and 2, but 4 cannot answer 0.
    cluster.cut(4, 0);
    cluster.restart_voter(0, lost(3000));
    // 0 stays in quarantine for lack of an answer. 1 and 2 wait for its answer, and report their fences lost to it when
    // it asks. Without asking them again, it would never vote: 4 does not answer.
    cluster.pass(SECOND / 2);
    (1..3).for_each(|voter| cluster.restart_voter(voter, lost(2000)));
    cluster.pass(cluster.rules.voter_lease - SECOND);
    assert!((0..3).all(|voter| !cluster.voters[voter].is_voting()));
    cluster.pass(SECOND * 3);
    assert!(all_vote(&cluster));
    for voter in 0..3 {
        assert_eq!(cluster.voters[voter].fence(&cluster.name("x")), Fence(3000));
    }
}

/// The last member to start ends the wait of the others with its own question.
#[test]
fn the_last_member_to_start_ends_the_wait() {
    let mut cluster = Cluster::with(2, rules(|_| ()), lost(1000));
    cluster.isolate(1);
    cluster.restart_voter(0, lost(1000));
    cluster.pass(cluster.rules.voter_lease);
    cluster.restart_voter(1, lost(1000));
    assert!(!cluster.voters[0].is_voting());
    cluster.heal();
    cluster.pass(SECOND / 2);
    assert!(all_vote(&cluster));
}

/// A clock may show any time: no fence exceeds the highest, and the highest is never given twice.
#[test]
fn a_clock_above_all_fences_stops_at_the_highest() {
    for durable in [false, true] {
        let fences = Fences {
            durable,
            ..lost(u64::MAX)
        };
        let mut cluster = Cluster::with(3, rules(|_| ()), fences);
        cluster.restart_voter(0, fences);
        cluster.run();
        assert!(all_vote(&cluster));
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
