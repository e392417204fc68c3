//! Voters that start with an old state file.

use super::cluster::{at, known, rules, Cluster, SECOND};
use quorum::members::Members;
use quorum::message::{Fence, Frame, Life, Lifetime, Send};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::voter::{Voter, VoterSetup};
use std::time::Duration;

/// A cluster of three in which voter 1 has just restarted with `lifetime`, and with a mark that is too low. All voters
/// had lifetimes with a random part of 0.
fn stale(change: fn(Lifetime) -> Lifetime) -> (Cluster, Lifetime) {
    let mut cluster = Cluster::with(3, rules(|_| ()), known(100));
    cluster.lock_and_unlock(0, "x");
    let last = cluster.voters[1].lifetime();
    cluster.restart_voter_as(1, change(last), known(10));
    (cluster, last)
}

fn lower(last: Lifetime) -> Lifetime {
    Lifetime::new(last.life() - 1, 7)
}

#[test]
fn a_voter_with_an_earlier_life_stops_at_once() {
    let (mut cluster, last) = stale(lower);
    cluster.run();
    assert_eq!(cluster.superseded, [(1, last)]);
    cluster.pass(SECOND * 60);
    assert!(!cluster.voters[1].is_voting());
    assert_eq!(cluster.superseded.len(), 1);
}

#[test]
fn of_two_voters_with_the_same_life_the_second_stops() {
    let (mut cluster, last) = stale(|last| Lifetime::new(last.life(), 7));
    cluster.run();
    assert_eq!(cluster.superseded, [(1, last)]);
}

#[test]
fn a_voter_with_a_higher_life_is_believed() {
    let (mut cluster, _) = stale(|last| Lifetime::new(last.life() + 1, 7));
    cluster.run();
    assert_eq!(cluster.superseded, []);
    assert!(cluster.voters[1].is_voting());
}

/// The answers also tell the life of the voter that answers.
#[test]
fn a_restarted_voter_knows_the_lives_of_the_others() {
    let mut cluster = Cluster::with(3, rules(|_| ()), known(100));
    cluster.restart_voter(0, known(100));
    cluster.run();
    cluster.isolate(2);
    let last = cluster.voters[1].lifetime();
    cluster.restart_voter_as(1, lower(last), known(10));
    // No agent has a session of the later life.
    (0..2).for_each(|agent| cluster.restart_agent(agent));
    cluster.run();
    assert_eq!(cluster.superseded, [(1, last)]);
}

/// The quarantine of the setup may be longer than that of the rules, which may be new.
#[test]
fn a_quarantine_covers_the_leases_of_earlier_lives() {
    let rules = Rules::default();
    let setup = VoterSetup {
        members: Members::new(3).unwrap(),
        me: at(0),
        guests: false,
        rules,
        bugs: ProtocolBugs::NONE,
        lifetime: Lifetime::new(2, 1),
        quarantine: rules.voter_lease * 3,
        mark: Fence(10),
        durable: false,
        begins: false,
    };
    let mut voter = Voter::new(setup, Time(0));
    voter.tick(Time(0) + (setup.quarantine - Duration::from_nanos(1)));
    assert!(!voter.is_voting());
    voter.tick(Time(0) + setup.quarantine);
    assert!(voter.is_voting());
}

/// A voter asks again until it is answered.
#[test]
fn a_late_answer_shows_the_later_life() {
    let (mut cluster, last) = stale(lower);
    // The agent of its own node has no session either.
    cluster.restart_agent(1);
    cluster.isolate(1);
    cluster.pass(SECOND * 5);
    assert_eq!(cluster.superseded, []);
    cluster.heal();
    cluster.pass(SECOND);
    assert_eq!(cluster.superseded, [(1, last)]);
}

/// If no other voter could answer, an agent that had a session of the later life shows it.
#[test]
fn an_agents_session_shows_the_later_life() {
    let (mut cluster, last) = stale(lower);
    (0..3).for_each(|other| {
        cluster.cut(1, other);
        cluster.cut(other, 1);
    });
    cluster.pass(SECOND * 60);
    assert!(cluster.voters[1].is_voting(), "no voter could answer");
    cluster.heal();
    cluster.pass(SECOND * 5);
    assert_eq!(cluster.superseded, [(1, last)]);
}

/// All agents may have restarted, and settle at once. The voter still waits for the other voters.
#[test]
fn a_quarantine_does_not_end_before_the_answers() {
    let (mut cluster, last) = stale(lower);
    (0..3).for_each(|agent| cluster.restart_agent(agent));
    for from in [0, 2] {
        cluster.lose_answers(from, 1);
    }
    cluster.pass(SECOND * 5);
    assert!(!cluster.voters[1].is_voting());
    cluster.heal();
    cluster.pass(SECOND * 2);
    assert_eq!(cluster.superseded, [(1, last)]);
}

/// An answer counts for the lifetime that asked. Otherwise a late one could end the quarantine of the next lifetime.
#[test]
fn an_answer_to_an_earlier_lifetime_does_not_count() {
    let (mut cluster, last) = stale(|last| Lifetime::new(last.life() + 1, 7));
    (0..3).for_each(|agent| cluster.restart_agent(agent));
    for from in [0, 2] {
        cluster.lose_answers(from, 1);
    }
    cluster.run();
    let answer = |cluster: &mut Cluster, from: usize, asker, seen| {
        let voter = cluster.voters[from].lifetime();
        let answer = Life::Answer { asker, voter, seen };
        let send = Send {
            to: at(1).into(),
            frame: Frame::Life(answer),
        };
        cluster.deliver(from, send);
        cluster.run();
    };
    let later = Lifetime::new(last.life() + 9, 0);
    for from in [0, 2] {
        answer(&mut cluster, from, last, later);
    }
    assert_eq!(cluster.superseded, []);
    assert!(!cluster.voters[1].is_voting());
    let asker = cluster.voters[1].lifetime();
    (0..2).for_each(|_| answer(&mut cluster, 0, asker, asker));
    assert!(!cluster.voters[1].is_voting(), "one member has answered");
    answer(&mut cluster, 2, asker, asker);
    assert!(cluster.voters[1].is_voting());
}
