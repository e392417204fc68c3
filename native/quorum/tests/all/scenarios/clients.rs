//! Clients: nodes that lock and have no voter.

use super::cluster::{at, durable, rules, Cluster, NEW, SECOND};
use quorum::agent::{Refusal, Request};
use quorum::message::{
    Batch, Fence, Frame, Lifetime, Mode, Op, Reason, Reply, Send, Token, Verdict,
};
use quorum::rules::Rules;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Three members with state files, and a client. Returns its index.
fn with_client(rules: Rules) -> (Cluster, usize) {
    let mut cluster = Cluster::with(3, rules, durable(1 << 20));
    cluster.store_pending();
    let client = cluster.add_client();
    (cluster, client)
}

fn restart(cluster: &mut Cluster, voter: usize) {
    cluster.restart_voter(voter, durable(1 << 21));
    cluster.run();
    cluster.store_pending();
}

#[test]
fn a_client_locks_like_a_member() {
    let (mut cluster, client) = with_client(Rules::default());
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
fn a_client_gets_no_vote_before_it_is_stored() {
    let mut cluster = Cluster::with(3, Rules::default(), durable(1 << 20));
    cluster.store_pending();
    cluster.slow_disks = true;
    let client = cluster.add_client();
    let request = cluster.lock(client, "x", LONG);
    let late = cluster.lock(client, "y", SECOND);
    cluster.pass(SECOND * 2);
    assert!(!cluster.is_granted(request));
    assert_eq!(cluster.refused(late), Refusal::Timeout);
    assert!(cluster.voters.iter().all(quorum::voter::Voter::is_empty));
    cluster.store_registers();
    cluster.pass(SECOND);
    let lock = cluster.granted(request);
    // Nor a vote for a lock that it holds by those of others.
    let (slow, now) = (2, cluster.now);
    cluster.registers[slow].clear();
    restart(&mut cluster, slow);
    cluster.pass(SECOND * 20);
    assert!(cluster.held(&lock));
    let voted = |cluster: &Cluster| {
        let mut agents = cluster.voters[slow].agents();
        agents.any(|agent| agent.0 == cluster.node(client) && agent.1 == 1)
    };
    assert!(!voted(&cluster) && cluster.now > now);
    cluster.store_registers();
    cluster.pass(SECOND * 2);
    assert!(voted(&cluster));
    cluster.unlock_last([lock]);
}

/// A voter whose process died stores again what it needs.
#[test]
fn a_register_that_was_not_stored_is_stored_again() {
    let mut cluster = Cluster::with(1, Rules::default(), durable(1 << 20));
    cluster.store_pending();
    cluster.slow_disks = true;
    let client = cluster.add_client();
    cluster.registering.clear();
    cluster.voters[0].interrupted(cluster.now);
    let request = cluster.lock(client, "x", LONG);
    assert!(!cluster.is_granted(request));
    cluster.store_registers();
    cluster.pass(SECOND);
    assert!(cluster.is_granted(request));
    let mut stored = cluster.voters[0].register();
    assert!(stored.any(|node| node == cluster.node(client)));
}

/// The quarantine of a voter ends when its members and its clients have settled, and not before.
#[test]
fn a_restarted_voter_waits_for_its_clients() {
    let (mut cluster, client) = with_client(Rules::default());
    let lock = cluster.locked(client, "x");
    cluster.pass(SECOND * 2);
    restart(&mut cluster, 0);
    assert!(cluster.voters[0].is_voting());
    assert!(cluster.held(&lock));
    for isolated in [true, false] {
        if isolated {
            (0..3).for_each(|voter| cluster.cut(voter, client));
        }
        restart(&mut cluster, 1);
        assert_eq!(cluster.voters[1].is_voting(), !isolated);
        cluster.heal();
        cluster.pass(cluster.rules.heartbeat);
        assert!(cluster.voters[1].is_voting());
        assert!(cluster.held(&lock));
    }
    cluster.unlock_last([lock]);
}

/// A client that is dead delays a restarted voter for the quarantine, if it had a lease a short time before.
#[test]
fn a_dead_client_leaves_the_register() {
    let (mut cluster, client) = with_client(Rules::default());
    let lock = cluster.locked(client, "x");
    let node = cluster.node(client);
    for voter in 0..3 {
        cluster.cut(client, voter);
    }
    restart(&mut cluster, 0);
    assert!(!cluster.voters[0].is_voting());
    cluster.pass(cluster.rules.quarantine);
    assert!(cluster.voters[0].is_voting());
    assert!(!cluster.held(&lock));
    cluster.pass(SECOND);
    for voter in 0..3 {
        assert!(cluster.registers[voter].is_empty(), "{voter}");
        assert!(!cluster.voters[voter].knows(node));
        restart(&mut cluster, voter);
        assert!(cluster.voters[voter].is_voting());
    }
    cluster.locked(0, "x");
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
    cluster.pass(cluster.rules.quarantine);
    assert!(cluster.voters[0].is_voting());
    assert!(cluster.held(&lock));
}

/// A client that was killed and is back gets the names of its earlier agent after a round trip.
#[test]
fn a_client_that_is_back_buries_its_earlier_agent() {
    let (mut cluster, client) = with_client(Rules::default());
    let others = cluster.locked(1, "z");
    let lock = cluster.locked(client, "x");
    cluster.restart_agent(client);
    cluster.run();
    let begin = cluster.now;
    let next = cluster.locked(0, "x");
    assert_eq!(cluster.now, begin);
    assert!(next.fence > lock.fence);
    assert!(cluster.held(&others));
    // The end of that agent's lease is not the end of the client.
    cluster.pass(SECOND);
    let node = cluster.node(client);
    assert!((0..3).all(|voter| cluster.registers[voter].contains(&node)));
    assert!(cluster.voters.iter().all(|voter| voter.knows(node)));
    cluster.unlock_last([next, others]);
}

/// A vote that exists is within the limit.
#[test]
fn a_repeated_assertion_is_no_new_vote() {
    let (mut cluster, client) = with_client(rules(|rules| rules.client_votes = 1));
    let assert = Op::Assert {
        token: Token(100),
        mode: Mode::Write,
        fence: Fence(7),
        continues: false,
        names: cluster.name("x").into(),
    };
    let replies = cluster.forge(client, 0, vec![assert.clone(), assert]);
    let yes = Reply::Yes { fence: Fence(7) };
    assert_eq!(replies, [yes.clone(), yes]);
}

/// The rules limit the votes and the waiting requests of a client at a voter. They do not limit members.
#[test]
fn a_client_has_limits() {
    let few = |rules: &mut Rules| (rules.client_votes, rules.client_positions) = (3, 2);
    let (mut cluster, client) = with_client(rules(few));
    let theirs = cluster.locked_many(0, "m", 5);
    let locks = cluster.locked_many(client, "c", 3);
    let more = cluster.lock(client, "more", LONG);
    assert_eq!(cluster.refused(more), Refusal::Limit);
    cluster.unlock(&locks[0]);
    cluster.unlock(&locks[1]);
    let again = cluster.locked(client, "more");
    cluster.unlock(&again);
    // Requests that wait.
    let held = ["p", "q", "r"].map(|name| cluster.locked(0, name));
    let waiting = ["p", "q"].map(|name| cluster.lock(client, name, LONG));
    cluster.pass(SECOND * 3);
    assert!(waiting
        .iter()
        .all(|request| !cluster.answers.contains_key(request)));
    let third = cluster.lock(client, "r", LONG);
    cluster.pass(SECOND * 3);
    assert_eq!(cluster.refused(third), Refusal::Limit);
    let member = ["p", "q", "r"].map(|name| cluster.lock(1, name, LONG));
    cluster.pass(SECOND * 3);
    assert!(member
        .iter()
        .all(|request| !cluster.answers.contains_key(request)));
    for lock in &held {
        cluster.try_unlock(lock);
    }
    cluster.pass(SECOND * 3);
    for request in waiting {
        cluster.unlock_granted(request);
    }
    cluster.pass(SECOND * 3);
    for request in member {
        cluster.unlock_granted(request);
    }
    cluster.unlock_last(
        theirs
            .into_iter()
            .chain([locks.into_iter().last().unwrap()]),
    );
}

/// A voter with as many clients as the rule allows refuses another one, until one of them has left.
#[test]
fn there_are_at_most_so_many_clients() {
    let (mut cluster, client) = with_client(rules(|rules| rules.clients = 2));
    let (second, third) = (cluster.add_client(), cluster.add_client());
    cluster.lock_and_unlock(client, "x");
    cluster.lock_and_unlock(second, "x");
    let request = cluster.lock(third, "x", LONG);
    assert_eq!(cluster.refused(request), Refusal::Limit);
    for voter in 0..3 {
        cluster.cut(second, voter);
    }
    cluster.pass(cluster.rules.voter_lease + SECOND);
    cluster.lock_and_unlock(third, "x");
}

/// While many batches wait for a voter, each agent gets a share of the usual size for its next one.
#[test]
fn a_busy_voter_takes_smaller_batches() {
    let (mut cluster, client) = with_client(Rules::default());
    cluster.voters[0].waiting(100);
    let now = cluster.now;
    cluster.pass(cluster.rules.heartbeat);
    cluster.hold(client, 0);
    cluster.batches();
    let requests = (0..50).map(|i| {
        let name = quorum::message::Name::new(format!("n{i}").as_bytes()).unwrap();
        (Request(1000 + i), name)
    });
    for (request, name) in requests.collect::<Vec<_>>() {
        cluster.agents[client].lock(cluster.now, request, name.into(), Mode::Write, SECOND);
    }
    cluster.release();
    let sizes = |cluster: &mut Cluster, voter: usize| -> Vec<usize> {
        let batches = cluster.batches().into_iter();
        let sent = batches.filter(|(from, to, _)| (*from, *to) == (client, voter));
        sent.map(|(_, _, batch)| batch.ops.len()).collect()
    };
    let sizes = sizes(&mut cluster, 0);
    assert!(cluster.now > now);
    assert!(
        sizes.len() >= 5 && sizes.iter().all(|size| *size <= 10),
        "{sizes:?}"
    );
}

/// Voters do not take a client for one of them.
#[test]
fn a_client_answers_no_question_of_a_voter() {
    use quorum::message::{Floor, Known};
    let (mut cluster, client) = with_client(Rules::default());
    let asker = Lifetime::new(1 << 20, 0);
    let answer = Floor::Answer {
        asker: cluster.voters[0].lifetime(),
        voter: asker,
        seen: asker,
        known: Known::Told {
            fence: Fence(1 << 40),
        },
    };
    let ask = Floor::Ask { asker };
    for floor in [ask, answer] {
        let send = Send {
            to: at(0).into(),
            frame: Frame::Floor(floor),
        };
        cluster.arrived.clear();
        cluster.deliver(client, send);
        cluster.run();
        assert_eq!(cluster.arrived.len(), 1);
    }
    assert_eq!(cluster.superseded, []);
    assert!(cluster.voters[0].is_voting());
}

/// The answers say why, so that the request asks other voters in the meantime.
#[test]
fn a_voter_that_stores_the_client_says_so() {
    let (mut cluster, client) = with_client(Rules::default());
    cluster.registers[0].clear();
    cluster.slow_disks = true;
    restart(&mut cluster, 0);
    cluster.pass(SECOND * 12);
    cluster.arrived.clear();
    cluster.locked(client, "x");
    let storing = |(from, send): &(usize, Send)| match &send.frame {
        Frame::Ack(ack) if *from == 0 => {
            let storing = Reply::No {
                reason: Reason::Storing,
            };
            matches!(&ack.verdict, Verdict::Done { replies, .. } if replies.contains(&storing))
        }
        _ => false,
    };
    assert!(cluster.arrived.iter().any(storing));
    let asked = |(_, _, batch): &(usize, usize, _)| {
        let batch: &Batch = batch;
        batch.ops.iter().any(|op| matches!(op, Op::Lock { .. }))
    };
    assert!(cluster.batches().iter().filter(|one| asked(one)).count() >= 3);
}
