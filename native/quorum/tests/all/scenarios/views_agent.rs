//! What agents do when the members change while they hold locks.

use super::cluster::{rules, Answer, Lock, SECOND};
use super::views::{node, peers, Views};
use quorum::agent::{Loss, Refusal};
use quorum::envelope::Content;
use quorum::message::{Frame, Op, VoterState};
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::view::Role;
use quorum::view::{NodeName, Record, ViewId};
use quorum::view_message::ViewMessage;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Nodes 0 to 2 are the members; the agent of node 6, a client, has a lock. Returns when its lease would end without a
/// change.
fn with_lock() -> (Views, Lock, Time) {
    with_lock_of(rules(|_| ()))
}

fn with_lock_of(rules: Rules) -> (Views, Lock, Time) {
    let mut views = Views::new(7, 3, rules);
    let lock = views.locked(6, "x");
    let pause = views.rules.heartbeat * 3 / 2;
    views.pass(pause);
    let mut valid = views.valid(6);
    valid.sort_unstable();
    let end = valid[1];
    assert!(end > views.now + views.rules.heartbeat && end < views.now + views.rules.holder_lease);
    (views, lock, end)
}

/// How many votes the voter of a node has given.
fn votes_at(views: &Views, place: usize) -> usize {
    let voter = views.voters[place].voter.as_ref().unwrap();
    voter.agents().map(|(_, votes, _, _)| votes).sum()
}

fn deaf(views: &mut Views, places: &[usize]) {
    for place in places {
        views.voters[*place].is_deaf = true;
    }
}

/// Whether the agent of node 6 said `kept` in the last `Settled` to each of these nodes, with the number of these
/// operations.
fn settled(views: &mut Views, to: usize) -> Vec<bool> {
    let ops = views.ops(6).into_iter();
    let kept = |(at, op)| match op {
        Op::Settled { kept } if at == to => Some(kept),
        _ => None,
    };
    ops.filter_map(kept).collect()
}

fn take_all(views: &mut Views, record: &Record, places: &[usize]) {
    places.iter().for_each(|place| views.take(*place, record));
}

/// The new voters have its votes, but no voter of the list before is sealed. Batches to the new voters extend nothing.
#[test]
fn a_lock_that_is_not_kept_is_held_until_its_deadline() {
    let (mut views, lock, end) = with_lock();
    deaf(&mut views, &[0, 1, 2]);
    let next = views.next(&[3, 4, 5]);
    take_all(&mut views, &next, &[3, 4, 5]);
    views.tell(6, &next);
    assert_eq!(votes_at(&views, 3), 1);
    assert!(views.valid(6).iter().all(|valid| *valid > end));
    assert_eq!(views.at_risk, []);
    views.ends_at(&lock, end);
    assert_eq!(views.at_risk, [lock.token]);
    // Now no lock relies on the list before.
    assert_eq!(settled(&mut views, 3), [false, true]);
    assert!(views.agents[6].as_agent().is_kept());
    assert_eq!(views.ops(6), []);
}

/// A quorum of the voters before is sealed in time, and a quorum of the new ones votes for the lock.
#[test]
fn a_kept_lock_moves_to_the_new_list() {
    for list in [
        &[3, 4, 5][..],
        &[0, 1, 2],
        &[1, 2, 3],
        &[2],
        &[0, 1, 2, 3, 4, 5],
    ] {
        let (mut views, lock, _) = with_lock();
        let next = views.next(list);
        take_all(&mut views, &next, list);
        views.tell(6, &next);
        views.pass(LONG);
        assert!(views.held(&lock) && views.lost.is_empty(), "{list:?}");
        assert_eq!(views.at_risk, []);
        let votes = views.agents[6].as_agent().locks().next().unwrap().votes;
        assert_eq!(votes.len(), list.len());
        // Another agent gets the name, as soon as it is unlocked.
        (0..6).for_each(|place| views.tell(place, &next));
        let waiting = views.lock(4, "x", LONG);
        views.pass(SECOND);
        assert!(!views.is_granted(waiting));
        views.unlock(&lock);
        views.pass(SECOND);
        assert!(views.is_granted(waiting), "{list:?}");
    }
}

/// One of three votes of the list before is kept.
#[test]
fn fewer_kept_votes_than_a_quorum_keep_no_lock() {
    let (mut views, lock, end) = with_lock();
    deaf(&mut views, &[0, 1]);
    let next = views.next(&[3, 4, 5]);
    take_all(&mut views, &next, &[3, 4, 5]);
    views.tell(6, &next);
    assert_eq!(views.record(2), next);
    views.ends_at(&lock, end);
}

/// All votes of the list before are kept, but only one of three new voters votes for the lock.
#[test]
fn fewer_new_votes_than_a_quorum_move_no_lock() {
    let (mut views, lock, end) = with_lock();
    let next = views.next(&[3, 4, 5]);
    take_all(&mut views, &next, &[3, 4, 5]);
    views.cut_off(6, &[4, 5]);
    views.tell(6, &next);
    views.ends_at(&lock, end);
    assert_eq!(settled(&mut views, 3), [false, true]);
}

/// Two of three voters are sealed, but the lease of one of them has ended before that.
#[test]
pub fn a_vote_whose_lease_is_over_is_not_kept() {
    for is_over in [true, false] {
        let (mut views, lock, _) = with_lock();
        views.cut(6, 0);
        let pause = views.rules.heartbeat * 2;
        views.pass(pause);
        let valid = views.valid(6);
        let end = valid[1].min(valid[2]);
        assert!(valid[0] < end);
        deaf(&mut views, &[0, 1]);
        let next = views.next(&[3, 4, 5]);
        take_all(&mut views, &next, &[3, 4, 5]);
        views.tell(6, &next);
        assert_eq!(views.record(2), next);
        let last = Time(valid[0].0 - i64::from(!is_over));
        views.pass(last - views.now);
        // The answer of node 0 arrives.
        views.take(0, &next);
        views.tell_from(6, "n0", &next);
        let id = peers(&[0])[0].id;
        views.receive(6, "n0", next.id, Content::View(ViewMessage::Known { id }));
        match is_over {
            true => views.ends_at(&lock, end),
            false => views.pass(LONG),
        }
        assert_eq!(views.held(&lock), !is_over);
    }
}

/// The lock was granted with votes that were given unasked. They end before the lease.
#[test]
fn provisional_votes_end_earlier_and_can_be_kept() {
    for is_sealed in [false, true] {
        let (mut views, first, _) = with_lock();
        let waiting = views.lock(5, "x", LONG);
        views.pass(SECOND / 100);
        views.cut(5, 0);
        views.cut(5, 1);
        views.cut(5, 2);
        views.unlock(&first);
        let lock = views.granted(waiting);
        let wait = views.rules.wait;
        views.heal();
        let next = views.next(&[3, 4]);
        if !is_sealed {
            deaf(&mut views, &[0, 1, 2]);
        }
        take_all(&mut views, &next, &[3, 4]);
        views.tell(5, &next);
        views.pass(wait);
        assert_eq!(views.held(&lock), is_sealed);
        assert_eq!(views.lost.is_empty(), is_sealed);
        views.pass(LONG);
        assert_eq!(views.held(&lock), is_sealed);
    }
}

/// The lock has votes of a quorum of the second list, and the voters of both lists are sealed, but not in time.
#[test]
pub fn a_second_change_extends_nothing() {
    let (mut views, lock, end) = with_lock();
    deaf(&mut views, &[0, 1, 2]);
    let second = views.next(&[3, 4, 5]);
    take_all(&mut views, &second, &[3, 4, 5]);
    views.tell(6, &second);
    views.pass(SECOND);
    assert!(views.valid(6).iter().all(|valid| *valid > end));
    let third = second.next(peers(&[0, 3, 4]));
    views.tell(6, &third);
    take_all(&mut views, &third, &[0, 1, 2, 3, 4, 5]);
    views.pass(SECOND);
    assert!(views.valid(6).iter().all(|valid| *valid > end));
    views.ends_at(&lock, end);
}

/// With many locks, a step that changes the list is run where it does not hold others up.
#[test]
fn steps_with_many_locks_are_long() {
    for (count, is_large) in [(1000, false), (1001, true)] {
        let mut views = Views::new(7, 3, Rules::default());
        (0..count).for_each(|lock| drop(views.locked(6, &lock.to_string())));
        let next = views.next(&[3, 4, 5]);
        let is_long = |views: &Views, view| views.agents[6].has_long_step([view].into_iter());
        let current = views.record(0).id;
        assert!(!is_long(&views, current));
        assert_eq!(is_long(&views, next.id), is_large);
        deaf(&mut views, &[0, 1, 2]);
        views.tell(6, &next);
        assert_eq!(is_long(&views, next.id), is_large);
        (0..3).for_each(|place| views.voters[place].is_deaf = false);
        take_all(&mut views, &next, &[3, 4, 5]);
        views.pass(SECOND * 2);
        assert!(!is_long(&views, next.id));
    }
}

/// A lock that has moved is kept by the next change again.
#[test]
fn a_lock_moves_over_many_changes() {
    let (mut views, lock, _) = with_lock();
    for list in [&[3, 4, 5][..], &[0, 1, 2], &[0], &[5], &[1, 2, 3]] {
        let next = views.next(list);
        (0..6).for_each(|place| views.take(place, &next));
        views.tell(6, &next);
        let pause = views.rules.heartbeat;
        views.pass(pause);
        assert!(views.agents[6].as_agent().is_kept(), "{list:?}");
    }
    views.pass(LONG);
    assert!(views.held(&lock));
}

#[test]
fn a_lock_is_not_kept_over_a_record_that_was_missed() {
    for missed in [&[0, 1, 2, 3][..], &[0, 1, 2]] {
        let (mut views, lock, end) = with_lock();
        let missed = views.next(missed);
        let next = missed.next(peers(&[0, 1, 2]));
        take_all(&mut views, &next, &[0, 1, 2]);
        views.tell(6, &next);
        let known = |place: usize| {
            Content::View(ViewMessage::Known {
                id: peers(&[place])[0].id,
            })
        };
        for place in 0..3 {
            views.receive(6, &format!("n{place}"), next.id, known(place));
        }
        assert!(views.valid(6).iter().all(|valid| *valid > end));
        views.ends_at(&lock, end);
    }
}

/// The one that waited first is granted first, also in the new list.
#[test]
pub fn requests_ask_the_new_voters_with_their_old_priority() {
    let (mut views, lock, _) = with_lock();
    let first = views.lock(3, "x", LONG);
    let second = views.lock(4, "x", LONG);
    let queued = views.lock(3, "x", LONG);
    views.pass(SECOND);
    let asked = |views: &mut Views, place| {
        let ops = views.ops(place).into_iter();
        let locks = ops.filter_map(|(at, op)| match op {
            Op::Lock {
                token,
                clock,
                first,
                ..
            } => Some((at, token, clock, first)),
            _ => None,
        });
        locks.collect::<Vec<_>>()
    };
    views.arrived.clear();
    let next = views.next(&[0, 1, 5]);
    take_all(&mut views, &next, &[0, 1, 5]);
    views.tell(6, &next);
    // The younger one asks first.
    views.tell(4, &next);
    views.arrived.clear();
    views.tell(3, &next);
    let ops = asked(&mut views, 3);
    assert_eq!(ops.len(), 3);
    let (_, token, clock, oldest) = ops[0];
    assert!(token > oldest);
    let same = |op: &(usize, _, u64, _)| (op.1, op.2, op.3) == (token, clock, oldest);
    assert!(ops.iter().all(same));
    for place in [0, 1, 2, 5] {
        views.tell(place, &next);
    }
    views.pass(SECOND);
    assert!(views.held(&lock) && !views.is_granted(first));
    views.arrived.clear();
    views.unlock(&lock);
    views.pass(SECOND / 10);
    assert!(views.is_granted(first) && !views.is_granted(second));
    let granted = views.granted(first);
    views.unlock(&granted);
    views.pass(SECOND / 10);
    assert!(views.is_granted(second) && !views.is_granted(queued));
    let granted = views.granted(second);
    views.unlock(&granted);
    views.pass(SECOND / 10);
    assert!(views.is_granted(queued));
}

/// No voter of the new list has a vote for them.
#[test]
fn a_change_answers_unlocks() {
    let small = rules(|rules| rules.pending_unlocks = 1);
    let mut views = Views::new(7, 3, small);
    let locks = ["x", "y", "z"].map(|name| views.locked(6, name));
    views.cut_off(6, &[0, 1, 2]);
    let unlock = views.unlock(&locks[0]);
    let others = [&locks[1], &locks[2]].map(|lock| views.unlock_async(lock));
    assert_eq!(views.answers.len(), 3);
    let next = views.next(&[2, 3, 4]);
    views.tell(6, &next);
    let answer = views.answers.get(&unlock);
    assert!(
        matches!(answer, Some(Answer::Unlocked { confirmed: true })),
        "{answer:?}"
    );
    for other in others {
        assert!(matches!(views.answers.get(&other), Some(Answer::Accepted)));
    }
    assert_eq!(views.agents[6].as_agent().pending_unlocks(), 0);
    assert!(views.agents[6].as_agent().unlocks_arrived());
}

/// A lock in transition is unlocked, and its unlock goes to the voters that were sent its assertion.
#[test]
fn a_lock_in_transition_is_unlocked_and_not_passed_on() {
    let (mut views, lock, _) = with_lock_of(Rules::default());
    deaf(&mut views, &[0, 1, 2]);
    let next = views.next(&[3, 4, 5]);
    take_all(&mut views, &next, &[3, 4, 5]);
    let local = views.lock(6, "x", LONG);
    (0..7).for_each(|place| views.tell(place, &next));
    views.pass(SECOND / 10);
    views.arrived.clear();
    let unlock = views.unlock(&lock);
    assert!(!views.held(&lock));
    let ops = views.ops(6);
    let unlocks = ops.iter().filter(|(_, op)| matches!(op, Op::Unlock { .. }));
    assert_eq!(unlocks.count(), 3);
    assert!(matches!(
        views.answers.get(&unlock),
        Some(Answer::Unlocked { confirmed: true })
    ));
    // The next request of this node asks the new voters.
    views.pass(SECOND);
    let granted = views.granted(local);
    assert_ne!(granted.token, lock.token);
    assert!(ops.iter().any(|(_, op)| matches!(op, Op::Lock { .. })));
}

/// The agent settles while its lock is in transition. When that is over, it says so until it is answered.
#[test]
fn an_agent_says_that_its_locks_are_kept_until_it_is_answered() {
    let (mut views, lock, _) = with_lock();
    deaf(&mut views, &[0, 1, 2]);
    let next = views.next(&[3, 4, 5]);
    take_all(&mut views, &next, &[3, 4, 5]);
    views.tell(6, &next);
    views.pass(SECOND / 10);
    assert_eq!(settled(&mut views, 3), [false]);
    views.cut(3, 6);
    // The answers of two voters of the list before arrive.
    for place in 0..2 {
        views.take(place, &next);
        let id = peers(&[place])[0].id;
        let known = Content::View(ViewMessage::Known { id });
        views.receive(6, &format!("n{place}"), next.id, known);
    }
    assert!(views.agents[6].as_agent().is_kept());
    let pause = views.rules.attempt * 2;
    views.pass(pause);
    let told = settled(&mut views, 3);
    assert!(told.len() >= 2 && told.iter().all(|kept| *kept), "{told:?}");
    views.heal();
    views.pass(pause);
    assert_eq!(settled(&mut views, 3).last(), Some(&true));
    views.pass(LONG);
    assert_eq!(settled(&mut views, 3), []);
    assert!(views.held(&lock));
    // A restarted voter is told again, with the first one.
    views.restart_voter(3);
    let pause = views.rules.heartbeat * 2;
    views.pass(pause);
    assert_eq!(settled(&mut views, 3), [true]);
}

/// Without locks, an agent says at once that they are kept.
#[test]
fn an_agent_without_locks_settles_once() {
    let mut views = Views::new(7, 3, rules(|_| ()));
    let next = views.next(&[3, 4, 5]);
    take_all(&mut views, &next, &[3, 4, 5]);
    views.arrived.clear();
    views.tell(6, &next);
    views.pass(LONG);
    assert_eq!(settled(&mut views, 3), [true]);
}

/// Also those that leave. One that does not answer is sent it until the votes are over.
#[test]
fn voters_of_the_list_before_get_the_record_until_they_answer() {
    let (mut views, lock, _) = with_lock();
    let latest = *views.valid(6).iter().max().unwrap();
    deaf(&mut views, &[0, 2]);
    let next = views.next(&[2, 3, 4]);
    take_all(&mut views, &next, &[3, 4]);
    let records = |views: &mut Views| {
        let record = |(from, post): &(usize, quorum::envelope::Post)| {
            let is_record =
                post.envelope.content == Content::View(ViewMessage::Record(next.clone()));
            (*from == 6 && is_record).then(|| post.to.clone())
        };
        let arrived = std::mem::take(&mut views.arrived);
        arrived.iter().filter_map(record).collect::<Vec<NodeName>>()
    };
    views.arrived.clear();
    views.tell(6, &next);
    // And its own voter.
    assert_eq!(records(&mut views), [node(6), node(0), node(1), node(2)]);
    views.pass(SECOND);
    assert_eq!(records(&mut views), [node(0), node(2), node(0), node(2)]);
    views.voters[2].is_deaf = false;
    views.pass(SECOND);
    assert_eq!(records(&mut views), [node(0), node(2), node(0)]);
    assert!(views.agents[6].as_agent().is_kept());
    views.pass(latest - views.now);
    views.arrived.clear();
    views.pass(LONG);
    assert_eq!(records(&mut views), []);
    assert!(views.held(&lock));
}

/// Neither its answers count, nor does its record say that the other identity is sealed.
#[test]
fn another_identity_of_a_node_is_not_sealed() {
    let (mut views, lock, end) = with_lock();
    deaf(&mut views, &[0, 1, 2]);
    let mut members = peers(&[0, 1, 2]);
    members[0].id.0 += 1000;
    members[1].id.0 += 1000;
    let next = views.record(0).next(members.clone());
    views.tell(6, &next);
    for place in 0..3 {
        let id = next.members[place].id;
        let known = Content::View(ViewMessage::Known { id });
        views.receive(6, &format!("n{place}"), next.id, known);
        views.tell_from(6, &format!("n{place}"), &next);
    }
    assert_eq!(views.agents[6].as_agent().unsealed(views.now).len(), 2);
    views.ends_at(&lock, end);
}

/// Whether the agent asserted its lock as one that continues, for each time at node 3.
fn asserted(ops: &[(usize, Op)]) -> Vec<bool> {
    let continues = |(at, op): &(usize, Op)| match op {
        Op::Assert { continues, .. } if *at == 3 => Some(*continues),
        _ => None,
    };
    ops.iter().filter_map(continues).collect()
}

/// The new voter restarts before the agent has settled there. The agent asserts its lock again before it settles.
#[test]
fn a_lock_in_transition_is_asserted_again_after_a_restart_of_a_new_voter() {
    let (mut views, lock, _) = with_lock();
    deaf(&mut views, &[0, 1, 2]);
    let next = views.next(&[3, 4, 5]);
    take_all(&mut views, &next, &[3, 4, 5]);
    views.arrived.clear();
    // The first batch begins a session, and the second one asserts. Its answer is lost.
    views.replies_lost = Some((6, 3));
    views.tell(6, &next);
    let pause = views.rules.attempt;
    assert_eq!(asserted(&views.ops(6)), [true]);
    assert!(!views.agents[6].as_agent().status().next().unwrap().settled);
    views.restart_voter(3);
    views.replies_lost = None;
    views.pass(pause * 2);
    let ops = views.ops(6);
    // The first one has the session of the earlier voter.
    assert_eq!(asserted(&ops), [true, true]);
    assert!(ops
        .iter()
        .any(|(at, op)| *at == 3 && matches!(op, Op::Settled { kept: false })));
    assert_eq!(votes_at(&views, 3), 1);
    assert!(views.held(&lock));
}

/// A voter with a file rejects the first assertion of a client, because it stores that it may have guests. The votes of
/// the lock may end soon, so the agent repeats it earlier than with a heartbeat.
#[test]
pub fn a_rejected_assertion_is_repeated_soon() {
    let (mut views, lock, _) = with_lock();
    views.is_durable = true;
    // So all voters stay in quarantine.
    views.cut_off(5, &[3, 4]);
    let next = views.next(&[3, 4, 5]);
    take_all(&mut views, &next, &[3, 4, 5]);
    views.tell(6, &next);
    assert!(!views.agents[6].as_agent().is_kept());
    let pause = views.rules.recall * 5;
    views.pass(pause);
    assert!(views.agents[6].as_agent().is_kept() && views.held(&lock));
}

/// Until then its requests wait, and it sends nothing but questions.
#[test]
fn without_a_view_requests_wait() {
    let mut views = Views::without_view(4, 3, rules(|_| ()));
    let request = views.lock(3, "x", LONG);
    views.pass(SECOND * 5);
    assert!(views.answers.is_empty());
    let is_ask = |(_, post): &(usize, quorum::envelope::Post)| {
        post.envelope.content == Content::View(ViewMessage::Ask(Role::Agent))
            && post.envelope.view == ViewId::NONE
    };
    assert!(views.arrived.iter().all(is_ask));
    let asks = views.arrived.iter().filter(|(from, _)| *from == 3).count();
    assert_eq!(asks, 4 * 6, "each node, once a second");
    for place in [1, 2] {
        let now = views.now;
        views.agents[3].down(now, &node(place));
    }
    let tried = views.lock(3, "y", LONG);
    let answer = views.answers.get(&tried);
    assert!(matches!(answer, Some(Answer::Refused(Refusal::NoQuorum))));
    let now = views.now;
    views.agents[3].up(now, &node(1));
    let request = match views.answers.get(&request) {
        None => request,
        Some(_) => views.lock(3, "x", LONG),
    };
    let lease_ms = views.rules.voter_lease.as_millis() as u64;
    let record = Record::first(peers(&[0, 1, 2]), lease_ms);
    take_all(&mut views, &record, &[0, 1, 2]);
    views.pass(SECOND * 5);
    assert!(views.is_granted(request));
    let leases = views.agents[3].rules().voter_lease;
    assert_eq!(leases, views.rules.voter_lease);
}

/// The lease of the record counts, not that of the configuration.
#[test]
fn the_lease_is_that_of_the_record() {
    let mut views = Views::without_view(3, 3, rules(|_| ()));
    let record = Record::first(peers(&[0, 1, 2]), 2000);
    views.tell(0, &record);
    let used = *views.agents[0].rules();
    let expected = quorum::rules::Rules {
        run: 1,
        ..quorum::rules::Rules::of(SECOND * 2)
    };
    assert_eq!(used, expected);
}

/// A node follows another cluster if its own voter says so.
#[test]
pub fn a_record_of_another_cluster_is_believed_from_the_own_voter_only() {
    let (mut views, _, _) = with_lock();
    let lock = views.locked(1, "y");
    let mut other = Record::first(
        peers(&[0, 1, 2]),
        views.rules.voter_lease.as_millis() as u64,
    );
    other.id.cluster += 1;
    views.tell_from(1, "n2", &other);
    views.tell_from(1, "n2", &other);
    views.receive(
        1,
        "n0",
        other.id,
        Content::View(ViewMessage::Ask(Role::Agent)),
    );
    assert_eq!(views.strangers, [(1, node(2)), (1, node(0))]);
    assert!(views.held(&lock));
    assert_ne!(views.agents[1].record(), Some(&other));
    views.tell_from(1, "n1", &other);
    assert_eq!(views.agents[1].record(), Some(&other));
    assert!(!views.held(&lock));
    assert_eq!(views.lost, [(lock.token, Loss::Quorum)]);
}

/// A client has no voter. It follows another cluster when no member of its own has answered for a lease.
#[test]
fn a_client_follows_another_cluster_when_its_own_is_silent() {
    let (mut views, _, _) = with_lock();
    let mut other = Record::first(
        peers(&[0, 1, 2]),
        views.rules.voter_lease.as_millis() as u64,
    );
    other.id.cluster += 1;
    views.tell_from(6, "n0", &other);
    assert_ne!(views.agents[6].record(), Some(&other));
    // The members are those of the other cluster.
    take_all(&mut views, &other, &[0, 1, 2]);
    let almost = views.rules.voter_lease - SECOND;
    views.pass(almost);
    assert_ne!(views.agents[6].record(), Some(&other));
    views.pass(SECOND * 3);
    assert_eq!(views.agents[6].record(), Some(&other));
}

/// After a reset, other nodes may still tell the old cluster's record, which lists a node that has left it.
#[test]
fn an_agent_follows_its_own_voter_out_of_a_cluster() {
    let (mut views, _, _) = with_lock();
    let lease_ms = views.rules.voter_lease.as_millis() as u64;
    let other = |members: &[usize]| {
        let mut other = Record::first(peers(members), lease_ms);
        other.id.cluster += 1;
        other
    };
    let without = other(&[0, 2]);
    views.tell_from(1, "n1", &without);
    assert_eq!(views.agents[1].record(), Some(&without));
    // A client whose cluster is silent waits for its own voter, if it is listed.
    let with = other(&[0, 1, 6]);
    let lease = views.rules.voter_lease + SECOND;
    (0..3).for_each(|place| views.cut(6, place));
    views.pass(lease);
    views.tell_from(6, "n0", &with);
    assert_ne!(views.agents[6].record(), Some(&with));
    views.tell_from(6, "n6", &with);
    assert_eq!(views.agents[6].record(), Some(&with));
}

/// A voter with a lower number is told, and one with a higher number is asked.
#[test]
fn numbers_that_differ_are_repaired() {
    let (mut views, _, _) = with_lock();
    let next = views.next(&[0, 1, 2]);
    let notice = || {
        let status = quorum::message::VoterStatus {
            clock: 0,
            state: VoterState::Voting,
        };
        Content::Frame(Frame::Notice(quorum::message::Notice {
            status,
            voter: quorum::message::Lifetime(1),
            generation: quorum::message::Generation(0),
            seq: 0,
            given: Vec::new(),
            recalls: Vec::new(),
            wants_batch: true,
        }))
    };
    // A repeated one within `recall` is not answered.
    views.take(1, &next);
    views.receive(6, "n1", next.id, notice());
    views.receive(6, "n1", next.id, notice());
    assert_eq!(views.agents[6].record(), Some(&next));
    views.arrived.clear();
    views.receive(6, "n3", views.record(3).id, notice());
    views.receive(6, "n3", views.record(3).id, notice());
    let told = views.arrived.iter().filter(|(from, post)| {
        let content = &post.envelope.content;
        *from == 6 && *content == Content::View(ViewMessage::Record(next.clone()))
    });
    assert_eq!(told.count(), 1);
}
