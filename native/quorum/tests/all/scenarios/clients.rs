//! Clients: nodes that lock and have no voter.

use super::cluster::{at, durable, rules, Cluster, NEW, SECOND};
use quorum::agent::Refusal;
use quorum::message::{Frame, Lifetime, Send};
use quorum::rules::Rules;
use quorum::voter::Voter;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Three members with state files, and a client. Returns its index.
fn with_client(rules: Rules) -> (Cluster, usize) {
    let mut cluster = Cluster::with(3, rules, durable(1 << 20));
    cluster.store_first_marks();
    let client = cluster.add_client();
    (cluster, client)
}

fn restart(cluster: &mut Cluster, voter: usize) {
    cluster.restart_voter(voter, durable(1 << 21));
    cluster.run();
    cluster.store_first_marks();
}

#[test]
fn a_client_locks_like_a_member() {
    let (mut cluster, client) = with_client(rules(|_| ()));
    let other = cluster.add_client();
    let first = cluster.locked(client, "x");
    let waiting = [0, other].map(|node| cluster.lock(node, "x", LONG));
    cluster.pass(cluster.rules.heartbeat);
    assert!(cluster.held(&first));
    cluster.unlock(&first);
    cluster.pass(SECOND);
    let mut last = first.fence;
    for request in waiting {
        let lock = cluster.granted(request);
        assert!(lock.fence > last);
        last = lock.fence;
        cluster.unlock(&lock);
        cluster.pass(SECOND);
    }
    let readers = [client, 1, other].map(|node| cluster.rlock(node, "y", SECOND));
    let readers = readers.map(|request| cluster.granted(request));
    cluster.unlock_last(readers);
}

/// V7.
#[test]
fn a_client_gets_no_vote_before_guests_are_stored() {
    let mut cluster = Cluster::with(3, rules(|_| ()), durable(1 << 20));
    cluster.store_first_marks();
    cluster.slow_disks = true;
    let client = cluster.add_client();
    assert_eq!(cluster.storing_guests, [], "it has not asked for a vote");
    let request = cluster.lock(client, "x", LONG);
    let late = cluster.lock(client, "y", SECOND);
    cluster.pass(SECOND * 2);
    assert!(!cluster.is_granted(request));
    assert_eq!(cluster.refused(late), Refusal::Timeout);
    let has_vote = |voter: &Voter| voter.agents().any(|(_, votes, ..)| votes > 0);
    assert!(!cluster.voters.iter().any(has_vote));
    assert_eq!(cluster.storing_guests, [0, 1, 2].map(|voter| (voter, true)));
    cluster.store_guests();
    cluster.pass(SECOND);
    let lock = cluster.granted(request);
    // Nor a vote for a lock that it holds by those of others.
    let slow = 2;
    cluster.guests[slow] = false;
    restart(&mut cluster, slow);
    cluster.pass(SECOND * 20);
    assert!(cluster.held(&lock));
    let voted = |cluster: &Cluster| {
        let mut agents = cluster.voters[slow].agents();
        agents.any(|agent| agent.0 == cluster.node(client) && agent.1 == 1)
    };
    assert!(!voted(&cluster));
    cluster.store_guests();
    cluster.pass(SECOND * 2);
    assert!(voted(&cluster));
    cluster.unlock_last([lock]);
}

/// A voter that may have guests does not know all agents that it waits for. Without guests, it votes when the agents of
/// all members have settled.
#[test]
fn a_voter_with_guests_waits_for_the_whole_quarantine() {
    let (mut cluster, client) = with_client(rules(|_| ()));
    restart(&mut cluster, 0);
    assert!(cluster.voters[0].is_voting());
    let lock = cluster.locked(client, "x");
    cluster.pass(SECOND * 2);
    cluster.restart_voter(0, durable(1 << 21));
    cluster.pass(cluster.rules.voter_lease - SECOND / 10);
    assert!(!cluster.voters[0].is_voting());
    // During its quarantine, the other members vote.
    cluster.lock_and_unlock(client, "y");
    cluster.pass(SECOND / 10);
    assert!(cluster.voters[0].is_voting() && cluster.held(&lock));
    cluster.unlock_last([lock]);
}

/// The file says that there are guests while a client has a vote, and for a lease after that.
#[test]
fn guests_end_a_lease_after_their_last_vote() {
    let (mut cluster, client) = with_client(rules(|_| ()));
    let lease = cluster.rules.voter_lease;
    let lock = cluster.locked(client, "x");
    cluster.pass(lease * 3);
    assert_eq!(cluster.guests, [true; 3]);
    cluster.unlock(&lock);
    cluster.pass(lease);
    assert_eq!(cluster.guests, [true; 3]);
    cluster.lock_and_unlock(client, "y");
    cluster.pass(lease);
    assert_eq!(cluster.guests, [true; 3]);
    cluster.pass(lease);
    assert_eq!(cluster.guests, [false; 3]);
    assert!(cluster
        .voters
        .iter()
        .all(|voter| voter.knows(cluster.node(client))));
    restart(&mut cluster, 0);
    assert!(cluster.voters[0].is_voting());
    cluster.lock_and_unlock(client, "x");
    assert_eq!(cluster.guests, [true; 3]);
}

/// Of an earlier life, the quarantine covers the votes. So a lease counts from its end.
#[test]
fn guests_of_an_earlier_life_end_a_lease_after_the_quarantine() {
    let (mut cluster, client) = with_client(rules(|_| ()));
    let lock = cluster.locked(client, "x");
    (0..3).for_each(|voter| cluster.cut_both(client, voter));
    cluster.restart_voter(0, durable(1 << 21));
    cluster.pass(cluster.rules.voter_lease * 2 - SECOND / 10);
    assert!(cluster.voters[0].is_voting() && cluster.guests[0]);
    cluster.pass(SECOND / 5);
    assert_eq!(cluster.guests, [false; 3]);
    assert!(!cluster.held(&lock) && !cluster.voters[0].knows(cluster.node(client)));
}

/// Without a file, a voter does not know which clients its earlier life had.
#[test]
fn a_voter_without_a_file_waits_for_the_whole_quarantine() {
    let mut cluster = Cluster::new(3);
    let client = cluster.add_client();
    let lock = cluster.locked(client, "x");
    cluster.pass(SECOND * 2);
    cluster.restart_voter(0, NEW);
    cluster.run();
    assert!(!cluster.voters[0].is_voting());
    cluster.pass(cluster.rules.voter_lease);
    assert!(cluster.voters[0].is_voting());
    assert!(cluster.held(&lock));
}

/// A client that was killed and is back gets the names of its earlier agent after a round trip.
#[test]
fn a_client_that_is_back_buries_its_earlier_agent() {
    let (mut cluster, client) = with_client(rules(|_| ()));
    let others = cluster.locked(1, "z");
    let lock = cluster.locked(client, "x");
    cluster.restart_agent(client);
    cluster.run();
    let begin = cluster.now;
    let next = cluster.locked(0, "x");
    assert_eq!(cluster.now, begin);
    assert!(next.fence > lock.fence);
    assert!(cluster.held(&others));
    cluster.unlock_last([next, others]);
}

/// Voters do not take a client for one of them.
#[test]
fn a_client_answers_no_question_of_a_voter() {
    use quorum::message::Life;
    let (mut cluster, client) = with_client(rules(|_| ()));
    let asker = Lifetime::new(1 << 20, 0);
    let answer = Life::Answer {
        asker: cluster.voters[0].lifetime(),
        voter: asker,
        seen: asker,
    };
    let ask = Life::Ask { asker };
    for life in [ask, answer] {
        let send = Send {
            to: at(0).into(),
            frame: Frame::Life(life),
        };
        cluster.arrived.clear();
        cluster.deliver(client, send);
        cluster.run();
        assert_eq!(cluster.arrived.len(), 1);
    }
    assert_eq!(cluster.superseded, []);
    assert!(cluster.voters[0].is_voting());
}
