//! Voters that grant nothing new, because members have different lists.

use super::cluster::{at, known, lost, rules, Cluster, SECOND};
use quorum::agent::Refusal;
use quorum::members::MemberSet;
use quorum::message::{Fence, VoterState};

fn conflict(cluster: &mut Cluster, voters: &[usize], misconfigured: bool) {
    let now = cluster.now;
    voters
        .iter()
        .for_each(|voter| cluster.voters[*voter].misconfigured(now, misconfigured));
    cluster.run();
}

/// Q13: a misconfigured voter gives no new vote, and a lock is refused at once.
#[test]
fn a_lock_without_a_quorum_of_other_voters_is_refused_at_once() {
    let mut cluster = Cluster::new(3);
    conflict(&mut cluster, &[0, 1], true);
    let request = cluster.lock(0, "x", SECOND * 60);
    cluster.run();
    assert_eq!(cluster.refused(request), Refusal::Misconfigured);
    assert!(cluster.voters.iter().all(|voter| voter.is_empty()));
    assert_eq!(cluster.voters[0].state(), VoterState::Misconfigured);
    conflict(&mut cluster, &[0], false);
    cluster.locked(0, "x");
}

/// A request that waits for a holder is refused, too.
#[test]
fn a_waiting_request_is_refused() {
    let mut cluster = Cluster::new(3);
    let held = cluster.locked(0, "x");
    let request = cluster.lock(1, "x", SECOND * 60);
    cluster.run();
    conflict(&mut cluster, &[0, 1, 2], true);
    cluster.unlock(&held);
    cluster.pass(SECOND * 5);
    assert_eq!(cluster.refused(request), Refusal::Misconfigured);
    cluster.assert_empty();
}

/// Votes that were given before the conflict are renewed and released.
#[test]
fn held_locks_are_kept_and_can_be_unlocked() {
    let mut cluster = Cluster::new(3);
    let held = cluster.locked(0, "x");
    conflict(&mut cluster, &[0, 1, 2], true);
    cluster.pass(SECOND * 60);
    assert!(cluster.held(&held));
    let unlock = cluster.unlock(&held);
    cluster.run();
    assert_eq!(cluster.unlocked(unlock), Some(true));
    cluster.assert_empty();
}

/// A lock is asserted at a voter that restarts during a conflict, and stays held.
#[test]
fn held_locks_are_asserted() {
    let mut cluster = Cluster::new(3);
    let held = cluster.locked(0, "x");
    for voter in 0..3 {
        cluster.restart_voter(voter, known(100));
        conflict(&mut cluster, &[voter], true);
        cluster.pass(SECOND * 15);
    }
    assert!(cluster.held(&held));
    assert!(!cluster.voters[0].is_empty());
}

/// A voter that has lost its fences does not learn them from a misconfigured one: voters of another list may have given
/// higher ones.
#[test]
fn fences_are_not_learned_from_misconfigured_voters() {
    let mut cluster = Cluster::with(3, rules(|_| ()), known(100));
    let fence = cluster.lock_and_unlock(0, "x");
    cluster.restart_voter(2, lost(1));
    conflict(&mut cluster, &[1], true);
    cluster.pass(SECOND * 60);
    assert!(!cluster.voters[2].is_voting());
    conflict(&mut cluster, &[1], false);
    cluster.pass(SECOND * 2);
    assert!(cluster.voters[2].is_voting());
    assert_eq!(cluster.voters[2].fence(&cluster.name("x")), Fence(fence));
}

/// Members that have another list do not answer. If a quorum needs them, the conflict is the reason.
#[test]
fn members_with_another_list_count_as_misconfigured() {
    let mut cluster = Cluster::new(3);
    let now = cluster.now;
    [1, 2].iter().for_each(|voter| cluster.cut(*voter, 0));
    cluster.pass(SECOND * 4);
    let silent = cluster.lock(0, "x", SECOND);
    cluster.pass(SECOND * 2);
    assert_eq!(cluster.refused(silent), Refusal::Timeout);
    let both: MemberSet = [at(1), at(2)].into_iter().collect();
    cluster.agents[0].differing(now, both);
    let request = cluster.lock(0, "x", SECOND * 60);
    cluster.run();
    assert_eq!(cluster.refused(request), Refusal::Misconfigured);
    // One of them is not needed.
    cluster.heal();
    cluster.pass(SECOND * 4);
    cluster.agents[0].differing(now, MemberSet::EMPTY.with(at(1)));
    cluster.locked(0, "x");
}
