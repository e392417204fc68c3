//! Clusters in which only some members vote for each name.

use super::cluster::{at, Answer, Cluster, SECOND};
use quorum::agent::Refusal;
use quorum::groups::Groups;
use quorum::members::MemberSet;
use quorum::message::{Fence, Frame, Mode, Name, Names, Op, Reason, Reply, Send};
use std::collections::BTreeSet;

fn groups(cluster: &Cluster) -> Groups {
    Groups::new(cluster.members, cluster.rules.partitions)
}

/// The voters of a name, in the order of preference.
fn voters(cluster: &Cluster, name: &str) -> Vec<usize> {
    let (groups, name) = (groups(cluster), cluster.name(name));
    let voters = groups.voters_of(&name).iter();
    voters.map(|voter| voter.place()).collect()
}

/// Two names without a common voter.
fn apart(cluster: &Cluster) -> [String; 2] {
    let names: Vec<String> = (0..50).map(|i| format!("n{i}")).collect();
    let group = |name: &str| groups(cluster).group(&cluster.name(name));
    let other = |one: &&String| group(one).and(group(&names[0])).is_empty();
    [names[0].clone(), names.iter().find(other).unwrap().clone()]
}

/// The cost of a lock does not depend on the number of members: a quorum of its voters is asked, in one round.
#[test]
fn a_lock_asks_a_quorum_of_its_voters() {
    for (members, replicas, quorum) in [(4, 3, 2), (16, 3, 2), (16, 5, 3), (64, 5, 3)] {
        let mut cluster = Cluster::with_replicas(members, replicas);
        for turn in 0..20 {
            let name = format!("x{turn}");
            let voters = voters(&cluster, &name);
            cluster.arrived.clear();
            let lock = cluster.locked(turn % members, &name);
            let batches = cluster.batches();
            let asked: Vec<usize> = batches.iter().map(|(_, to, _)| *to).collect();
            let expected: BTreeSet<usize> = voters[..quorum].iter().copied().collect();
            assert_eq!(asked.len(), quorum);
            assert_eq!(asked.into_iter().collect::<BTreeSet<_>>(), expected);
            assert!(cluster.held(&lock));
            let unlock = cluster.unlock(&lock);
            assert_eq!(cluster.unlocked(unlock), Some(true));
            assert_eq!(cluster.batches().len(), quorum);
        }
        cluster.assert_empty();
    }
}

/// A lock that is held for a second gets the votes of all its voters, and of no other member.
#[test]
fn a_long_lock_has_all_its_voters() {
    let mut cluster = Cluster::with_replicas(8, 3);
    let lock = cluster.locked(0, "x");
    cluster.pass(SECOND / 2);
    assert_eq!(votes(&cluster).len(), 2);
    cluster.pass(SECOND);
    let expected: MemberSet = voters(&cluster, "x").into_iter().map(at).collect();
    assert_eq!(votes(&cluster), expected);
    // This needs no more messages than before: a heartbeat to each member.
    cluster.batches();
    cluster.pass(SECOND * 20);
    let batches = cluster.batches();
    assert!(batches.iter().all(|(_, _, batch)| batch.ops.is_empty()));
    assert_eq!(batches.iter().filter(|(from, ..)| *from == 0).count(), 80);
    cluster.unlock_last([lock]);
}

/// Locks at different times ask different voters. Soon after, all voters get their heartbeats at the same time.
#[test]
fn heartbeats_are_sent_together() {
    let mut cluster = Cluster::with_replicas(8, 3);
    for turn in 0..20 {
        cluster.locked(0, &format!("x{turn}"));
        cluster.pass(SECOND / 10);
    }
    cluster.pass(SECOND * 3);
    cluster.batches();
    cluster.pass(SECOND * 20);
    let batches = cluster.batches().into_iter();
    let stamps: Vec<_> = batches
        .filter(|(from, ..)| *from == 0)
        .map(|(_, _, batch)| batch.stamp)
        .collect();
    assert_eq!(stamps.len(), 80);
    assert_eq!(stamps.iter().collect::<BTreeSet<_>>().len(), 10);
    // The voters of a lock were sent a batch a short time before the next heartbeats.
    let next = *stamps.iter().max().unwrap() + cluster.rules.heartbeat;
    cluster.pass(next - cluster.now - SECOND / 10);
    cluster.locked(0, "y");
    cluster.batches();
    cluster.pass(SECOND / 5);
    let batches = cluster.batches().into_iter();
    assert_eq!(batches.filter(|(from, ..)| *from == 0).count(), 6);
}

/// The voters of the first lock of node 0.
fn votes(cluster: &Cluster) -> MemberSet {
    let mut locks = cluster.agents[0].locks();
    locks.next().map(|lock| lock.votes).unwrap_or_default()
}

/// Q11: a lock of several names has one token. Each voter votes for those names that it is a voter of.
#[test]
fn a_voter_is_asked_for_its_own_names() {
    let mut cluster = Cluster::with_replicas(16, 3);
    let names = ["a", "b", "c", "d"];
    cluster.arrived.clear();
    let request = cluster.lock_many(0, &names, SECOND);
    let lock = cluster.granted(request);
    let groups = groups(&cluster);
    let all: Vec<Name> = names.iter().map(|name| cluster.name(name)).collect();
    for (_, to, batch) in cluster.batches() {
        for op in &batch.ops {
            let Op::Lock { token, names, .. } = op else {
                continue;
            };
            assert_eq!(*token, lock.token);
            let served = groups.served(&Names::new(all.clone()).unwrap(), at(to));
            assert_eq!(Some(names), served.as_ref());
        }
    }
    // The others are asked later, for their own names too.
    cluster.pass(SECOND * 2);
    let all = all
        .iter()
        .fold(MemberSet::EMPTY, |all, name| all.or(groups.group(name)));
    assert_eq!(votes(&cluster), all);
    for name in names {
        let other = cluster.lock(1, name, SECOND / 2);
        cluster.pass(SECOND);
        assert_eq!(cluster.refused(other), Refusal::Timeout, "{name}");
    }
    let unlock = cluster.unlock(&lock);
    assert_eq!(cluster.unlocked(unlock), Some(true));
    cluster.assert_empty();
}

/// Without the quorum of one group, the whole lock is lost.
#[test]
fn a_lock_needs_a_quorum_of_each_group() {
    let mut cluster = Cluster::with_replicas(16, 3);
    let [one, other] = apart(&cluster);
    let request = cluster.lock_many(0, &[&one, &other], SECOND);
    let lock = cluster.granted(request);
    cluster.pass(SECOND * 2);
    for voter in voters(&cluster, &other) {
        cluster.cut(0, voter);
    }
    cluster.pass(SECOND * 9);
    assert!(!cluster.held(&lock));
    cluster.heal();
    cluster.assert_empty();
}

/// A request that waits asks the sequencers of all its names at once.
#[test]
fn a_request_waits_at_the_sequencer_of_each_name() {
    let mut cluster = Cluster::with_replicas(16, 3);
    let [one, other] = apart(&cluster);
    let lock = cluster.locked(0, &one);
    cluster.batches();
    let both = cluster.lock_many(1, &[&one, &other], SECOND * 60);
    let sequencers: BTreeSet<usize> = [&one, &other].map(|name| voters(&cluster, name)[0]).into();
    let batches = cluster.batches();
    let waits = |op: &Op| matches!(op, Op::Lock { wait: true, .. });
    let asked = batches
        .iter()
        .filter(|(_, _, batch)| batch.ops.iter().any(waits));
    assert_eq!(
        asked.map(|(_, to, _)| *to).collect::<BTreeSet<_>>(),
        sequencers
    );
    let last = batches.iter().filter(|(_, to, _)| sequencers.contains(to));
    let last: Vec<_> = last.map(|(_, to, batch)| (*to, batch.ops.last())).collect();
    for sequencer in sequencers {
        let (_, op) = last.iter().rfind(|(to, _)| *to == sequencer).unwrap();
        assert!(op.is_some_and(waits), "{op:?}");
    }
    cluster.unlock(&lock);
    cluster.unlock_granted(both);
    cluster.assert_empty();
}

/// An unlock that no other member was sent is not pending because these have executed nothing.
#[test]
fn members_without_an_unlock_do_not_make_it_pending() {
    let mut cluster = Cluster::with_replicas(16, 3);
    for _ in 0..10 {
        let lock = cluster.locked(0, "x");
        cluster.try_unlock(&lock);
        assert_eq!(cluster.agents[0].pending_unlocks(), 0);
    }
}

/// Two requests for the same names with different voters, in both orders, never wait for each other for long.
#[test]
fn requests_for_several_groups_do_not_deadlock() {
    let mut cluster = Cluster::with_replicas(16, 3);
    let names: Vec<String> = (0..8).map(|i| format!("x{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut done = 0;
    for _ in 0..10 {
        // Their frames cross: each is first at some voters.
        for voter in 0..16 {
            cluster.hold(voter % 4, voter);
        }
        let requests = [0, 1, 2, 3].map(|node| cluster.lock_many(node, &names, SECOND * 60));
        cluster.release();
        let mut open = requests.to_vec();
        for _ in 0..400 {
            let Some(place) = open.iter().position(|one| cluster.is_granted(*one)) else {
                cluster.pass(SECOND / 100);
                continue;
            };
            cluster.unlock_granted(open.remove(place));
            done += 1;
        }
        assert_eq!(open, []);
    }
    assert_eq!(done, 40);
    cluster.assert_empty();
}

/// `no_quorum` is decided for each name: other names have other voters.
#[test]
fn a_quorum_is_needed_for_the_names_only() {
    let mut cluster = Cluster::with_replicas(16, 3);
    let [one, other] = apart(&cluster);
    let down = voters(&cluster, &one);
    for voter in &down[..2] {
        let now = cluster.now;
        cluster.agents[0].down(now, at(*voter));
    }
    let (with, all) = cluster.agents[0].with_quorum();
    assert!(with < all && with > all * 9 / 10, "{with} of {all}");
    let refused = cluster.lock(0, &one, SECOND);
    assert_eq!(cluster.refused(refused), Refusal::NoQuorum);
    let both = cluster.lock_many(0, &[&one, &other], SECOND);
    assert_eq!(cluster.refused(both), Refusal::NoQuorum);
    let lock = cluster.locked(0, &other);
    cluster.unlock(&lock);
}

/// A voter of a sick group is replaced by the third one.
#[test]
fn a_late_voter_is_replaced_by_the_next_one_of_the_group() {
    for sick in 0..2 {
        let mut cluster = Cluster::with_replicas(16, 3);
        let voters = voters(&cluster, "x");
        let node = (0..16).find(|node| !voters.contains(node)).unwrap();
        cluster.cut(voters[sick], node);
        let request = cluster.lock(node, "x", SECOND * 5);
        assert!(!cluster.is_granted(request));
        cluster.pass(cluster.rules.hedge * 2);
        let lock = cluster.granted(request);
        let used = cluster.agents[node].locks().next().unwrap().votes;
        assert!(used.contains(at(voters[2])) && !used.contains(at(voters[sick])));
        // The next lock does not try it first.
        cluster.unlock(&lock);
        cluster.lock_and_unlock(node, "x");
        cluster.heal();
        cluster.assert_empty();
    }
}

/// A voter rejects names of which it is no voter, also for a lock that claims to be held.
#[test]
fn a_voter_does_not_vote_for_other_names() {
    let mut cluster = Cluster::with_replicas(16, 3);
    let voters = voters(&cluster, "x");
    let other = (0..16).find(|node| !voters.contains(node)).unwrap();
    let lock = cluster.locked(0, "x");
    let asked = |(from, send): &(usize, Send)| match &send.frame {
        Frame::Batch(batch) if *from == 0 => batch.ops.first().cloned(),
        _ => None,
    };
    let lock_op = cluster.arrived.iter().rev().find_map(asked).unwrap();
    assert!(matches!(lock_op, Op::Lock { .. }));
    let assert = Op::Assert {
        token: lock.token,
        mode: Mode::Write,
        fence: Fence(1),
        continues: false,
        names: cluster.name("x").into(),
    };
    let replies = cluster.forge(0, other, vec![lock_op, assert]);
    let no = Reply::No {
        reason: Reason::NotMine,
    };
    assert_eq!(replies, [no.clone(), no]);
    assert!(cluster.voters[other].is_empty());
}

/// An unlock is confirmed when no quorum of some group is left, not when any members have executed it.
#[test]
fn an_unlock_is_confirmed_for_each_group() {
    let mut cluster = Cluster::with_replicas(16, 3);
    let [one, other] = apart(&cluster);
    let request = cluster.lock_many(0, &[&one, &other], SECOND);
    let lock = cluster.granted(request);
    for voter in voters(&cluster, &other) {
        cluster.hold(0, voter);
    }
    let unlock = cluster.unlock(&lock);
    assert!(!matches!(
        cluster.answers.get(&unlock),
        Some(Answer::Unlocked { .. })
    ));
    cluster.release();
    assert_eq!(cluster.unlocked(unlock), Some(true));
    cluster.assert_empty();
}

/// Q12: agents that are connected to different members ask the same voters, so their quorums meet.
#[test]
fn the_voters_of_a_name_do_not_depend_on_connections() {
    let mut cluster = Cluster::with_replicas(6, 3);
    let voters = voters(&cluster, "x");
    let others: Vec<usize> = (0..6).filter(|node| !voters.contains(node)).collect();
    // Node A is connected to the first two voters, node B to the last two, and each to all other members.
    let (a, b) = (others[0], others[1]);
    let now = cluster.now;
    cluster.agents[a].down(now, at(voters[2]));
    cluster.agents[b].down(now, at(voters[0]));
    let lock = cluster.locked(a, "x");
    let rival = cluster.lock(b, "x", SECOND * 60);
    cluster.pass(SECOND * 10);
    assert!(cluster.held(&lock) && !cluster.is_granted(rival));
    cluster.unlock(&lock);
    cluster.pass(SECOND * 2);
    cluster.unlock_granted(rival);
    // With one voter each, they have no quorum, although three other members are connected.
    let now = cluster.now;
    cluster.agents[a].down(now, at(voters[1]));
    let refused = cluster.lock(a, "x", SECOND);
    assert_eq!(cluster.refused(refused), Refusal::NoQuorum);
}
