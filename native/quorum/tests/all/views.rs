//! The voters of nodes, with an agent that the tests write: first starts, changes, lost files, resets.

use crate::common::bugs::bugs;
use quorum::envelope::{Content, Envelope, Post};
use quorum::message::{
    Ack, Batch, Fence, Frame, Lifetime, Mode, Name, Op, Reply, Session, Token, Verdict,
};
use quorum::node_voter::{
    Awaits, ChangeAnswer, NodeVoter, NodeVoterOutput, NodeVoterSetup, Phase, State, Why,
};
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::view::{Ballot, NodeName, Peer, Record, Role, ViewId};
use quorum::view_message::{Report, ViewMessage};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::time::Duration;

const LEASE_MS: u64 = 1000;
/// The node of the agent. It is no member.
const AGENT: &str = "x";

/// Messages arrive at once, and writes are complete at once.
#[derive(Default)]
struct Nodes {
    now: Time,
    voters: BTreeMap<NodeName, NodeVoter>,
    files: BTreeMap<NodeName, State>,
    answers: Vec<ChangeAnswer>,
    cut: BTreeSet<NodeName>,
    /// The writes of these nodes do not end, and the last one.
    full: BTreeMap<NodeName, Option<(u64, State)>>,
    /// Whether a message is lost.
    loses: Option<fn(&ViewMessage) -> bool>,
    starts: u64,
    wire: VecDeque<(NodeName, Post)>,
    /// What the agent received.
    acks: BTreeMap<NodeName, Ack>,
    sessions: BTreeMap<NodeName, Session>,
    seq: u64,
    /// What voters answered to its node, as if it had a voter.
    heard: Vec<ViewMessage>,
}

fn name(node: &str) -> NodeName {
    NodeName::new(node).unwrap()
}

fn list(nodes: &str) -> Vec<NodeName> {
    nodes.chars().map(|node| name(&node.to_string())).collect()
}

/// The first batch of an agent, in a view.
fn hello(view: ViewId) -> Envelope {
    let batch = Batch {
        agent: Lifetime(77),
        session: None,
        seq: 1,
        stamp: Time(0),
        clock: 0,
        ops: vec![],
    };
    let content = Content::Frame(Frame::Batch(batch));
    Envelope { view, content }
}

impl Nodes {
    /// Nodes with one-letter names, which start with the list of `seeds`.
    fn start(nodes: &str, seeds: &str) -> Nodes {
        let mut started = Nodes::default();
        started.start_nodes(nodes, seeds);
        started
    }

    /// Members that vote.
    fn voting(nodes: &str, seeds: &str) -> Nodes {
        let mut nodes = Nodes::start(nodes, seeds);
        nodes.wait(2000);
        assert!(nodes.all_vote(seeds));
        nodes
    }

    fn start_nodes(&mut self, nodes: &str, seeds: &str) {
        for node in list(nodes) {
            self.starts += 1;
            let setup = NodeVoterSetup {
                node: node.clone(),
                seeds: list(seeds),
                lease_ms: LEASE_MS,
                rules: Rules::of(Duration::from_millis(LEASE_MS)),
                bugs: bugs(),
                durable: true,
                clients: true,
                random: self.starts,
            };
            let file = self.files.get(&node).cloned();
            let voter = NodeVoter::new(setup, file, self.now);
            self.voters.insert(node, voter);
        }
        self.settle();
    }

    fn stop(&mut self, nodes: &str) {
        list(nodes)
            .iter()
            .for_each(|node| drop(self.voters.remove(node)));
    }

    fn lose(&mut self, nodes: &str) {
        self.stop(nodes);
        list(nodes)
            .iter()
            .for_each(|node| drop(self.files.remove(node)));
    }

    fn fill(&mut self, node: &str) {
        self.full.insert(name(node), None);
    }

    /// The last write of a full disk ends.
    fn free(&mut self, node: &str) {
        if let Some((number, state)) = self.full.remove(&name(node)).flatten() {
            self.store(&name(node), number, state);
        }
        self.settle();
    }

    fn store(&mut self, node: &NodeName, number: u64, state: State) {
        assert_eq!(State::decode(&state.encode()).as_ref(), Ok(&state));
        self.files.insert(node.clone(), state);
        let now = self.now;
        self.voters.get_mut(node).unwrap().stored(now, number);
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            let names: Vec<NodeName> = self.voters.keys().cloned().collect();
            let mut is_quiet = true;
            for node in names {
                for output in self.voters.get_mut(&node).unwrap().outputs() {
                    self.output(&node, output);
                    is_quiet = false;
                }
            }
            match self.wire.pop_front() {
                Some((from, post)) => self.arrive(&from, post),
                None if is_quiet => return,
                None => {}
            }
        }
        panic!("the nodes send messages for ever");
    }

    fn arrive(&mut self, from: &NodeName, post: Post) {
        let is_cut = *from != post.to && (self.cut.contains(from) || self.cut.contains(&post.to));
        let is_lost = match (&post.envelope.content, self.loses) {
            (Content::View(message), Some(loses)) => loses(message),
            _ => false,
        };
        if is_cut || is_lost {
            return;
        }
        match (post.role, post.envelope.content) {
            (Role::Voter, Content::View(message)) if post.to == name(AGENT) => {
                self.heard.push(message);
            }
            (Role::Voter, content) => {
                let envelope = Envelope {
                    view: post.envelope.view,
                    content,
                };
                if let Some(voter) = self.voters.get_mut(&post.to) {
                    voter.receive(self.now, from, envelope);
                }
            }
            (Role::Agent, Content::Frame(Frame::Ack(ack))) if post.to == name(AGENT) => {
                self.sessions.insert(from.clone(), ack.session);
                self.acks.insert(from.clone(), ack);
            }
            (Role::Agent, _) => {}
        }
    }

    fn output(&mut self, node: &NodeName, output: NodeVoterOutput) {
        match output {
            NodeVoterOutput::Post(post) => {
                self.is_stored(node, &post.envelope);
                self.wire.push_back((node.clone(), post));
            }
            NodeVoterOutput::Store(number, state) => match self.full.get_mut(node) {
                Some(last) => *last = Some((number, *state)),
                None => self.store(node, number, *state),
            },
            NodeVoterOutput::Answer(_, answer) => self.answers.push(answer),
            _ => {}
        }
    }

    /// M4: the file has what a message shows.
    fn is_stored(&self, node: &NodeName, envelope: &Envelope) {
        let file = self.files.get(node).expect("the identity is stored first");
        let view = file.record.as_ref().map(|record| record.id);
        let shows_none = envelope.view == ViewId::NONE;
        assert!(shows_none || view == Some(envelope.view), "{envelope:?}");
        match &envelope.content {
            Content::View(ViewMessage::Promise { ballot, .. }) => {
                assert!(file.promised >= *ballot);
            }
            Content::View(ViewMessage::Accepted(ballot)) => {
                let accepted = file.accepted.as_ref().map(|(accepted, _)| *accepted);
                assert!(accepted >= Some(*ballot));
            }
            Content::View(ViewMessage::Report(report)) => {
                assert!(file.has_voted || !report.votes);
            }
            _ => {}
        }
    }

    /// Lets time pass in steps of 10 ms.
    fn wait(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now = self.now + Duration::from_millis(10);
            let now = self.now;
            self.voters.values_mut().for_each(|voter| voter.tick(now));
            self.settle();
        }
    }

    fn ask_to_change(&mut self, at: &str, to: &str) {
        let now = self.now;
        let voter = self.voters.get_mut(&name(at)).unwrap();
        voter.change(now, 1, list(to));
        self.settle();
    }

    fn change(&mut self, at: &str, to: &str) -> ChangeAnswer {
        self.ask_to_change(at, to);
        self.answer()
    }

    fn reset(&mut self, at: &str, to: &str) -> ChangeAnswer {
        let now = self.now;
        let voter = self.voters.get_mut(&name(at)).unwrap();
        voter.reset(now, 1, list(to));
        self.answer()
    }

    fn answer(&mut self) -> ChangeAnswer {
        self.settle();
        for _ in 0..500 {
            if let Some(answer) = self.answers.pop() {
                return answer;
            }
            self.wait(10);
        }
        panic!("no answer");
    }

    fn record(&self, node: &str) -> Option<&Record> {
        self.voters[&name(node)].state().record.as_ref()
    }

    fn number(&self, node: &str) -> u64 {
        self.record(node).unwrap().id.number
    }

    fn phases(&self, nodes: &str) -> Vec<Phase> {
        list(nodes)
            .iter()
            .map(|node| self.voters[node].status().phase)
            .collect()
    }

    fn all_vote(&self, nodes: &str) -> bool {
        self.phases(nodes)
            .iter()
            .all(|phase| *phase == Phase::Voting)
    }

    fn waits_for(&self, node: &str) -> Vec<(NodeName, Awaits)> {
        self.voters[&name(node)].status().waits_for
    }

    /// The agent sends a batch to a voter, as one of the view of that voter, and gets the answer.
    fn batch(&mut self, to: &str, ops: Vec<Op>) -> Verdict {
        let to = name(to);
        self.seq += 1;
        let batch = Batch {
            agent: Lifetime(77),
            session: self.sessions.get(&to).copied(),
            seq: self.seq,
            stamp: Time(0),
            clock: 0,
            ops,
        };
        let envelope = Envelope {
            view: self.voters[&to].view(),
            content: Content::Frame(Frame::Batch(batch)),
        };
        self.acks.remove(&to);
        let now = self.now;
        let voter = self.voters.get_mut(&to).unwrap();
        voter.receive(now, &name(AGENT), envelope);
        self.settle();
        self.acks.remove(&to).expect("an answer").verdict
    }

    /// The agent gets a new session.
    fn begin(&mut self, at: &str) {
        self.sessions.remove(&name(at));
        let verdict = self.batch(at, vec![]);
        assert!(matches!(verdict, Verdict::Mismatch { .. }));
    }

    /// The agent gets votes for the name of token 1.
    fn vote(&mut self, voters: &str) {
        for voter in voters.chars() {
            let voter = voter.to_string();
            self.begin(&voter);
            // The first answer waits for the disk: the agent is a guest.
            let _ = self.ask(&voter, 1, Mode::Write);
            assert!(self.ask(&voter, 1, Mode::Write).is_some(), "{voter}");
        }
    }

    /// The agent asks for a vote. Each token has a name of its own. Returns the fence, if it gets the vote.
    fn ask(&mut self, voter: &str, token: u64, mode: Mode) -> Option<Fence> {
        let lock = Op::Lock {
            token: Token(token),
            mode,
            clock: 1,
            first: Token(token),
            wait: true,
            run: NonZeroU16::MIN,
            names: Name::new(&token.to_be_bytes()).unwrap().into(),
        };
        match self.batch(voter, vec![lock]) {
            Verdict::Done { replies, .. } => match replies[..] {
                [Reply::Yes { fence, .. }] => Some(fence),
                _ => None,
            },
            other => panic!("{voter}: {other:?}"),
        }
    }

    /// The voter has stored that there are guests, and has given no fence. From now on its disk is full.
    fn first_fence_without_disk(&mut self, voter: &str) -> Fence {
        self.begin(voter);
        let _ = self.ask(voter, 9, Mode::Read);
        assert!(self.ask(voter, 9, Mode::Read).is_some(), "{voter}");
        self.fill(voter);
        let fence = self.ask(voter, 1, Mode::Write);
        fence.expect("a fence below the mark")
    }

    /// A voter receives a message of its own view. Returns what it answers.
    fn tell(&mut self, to: &str, message: ViewMessage) -> Vec<ViewMessage> {
        let voter = &self.voters[&name(to)];
        let envelope = Envelope {
            view: voter.view(),
            content: Content::View(message),
        };
        self.deliver(to, AGENT, envelope);
        std::mem::take(&mut self.heard)
    }

    fn deliver(&mut self, to: &str, from: &str, envelope: Envelope) {
        let now = self.now;
        let voter = self.voters.get_mut(&name(to)).unwrap();
        voter.receive(now, &name(from), envelope);
        self.settle();
    }

    fn unlock(&mut self, at: &str, token: u64) {
        let (token, fence) = (Token(token), Fence(0));
        self.batch(at, vec![Op::Unlock { token, fence }]);
    }

    fn settled(&mut self, at: &str, kept: bool) {
        self.batch(at, vec![Op::Settled { kept }]);
    }
}

#[test]
fn nodes_with_the_same_list_form_view_0() {
    let mut nodes = Nodes::start("ab", "abc");
    nodes.wait(2000);
    assert_eq!(nodes.phases("ab"), [Phase::NoView; 2]);
    nodes.start_nodes("c", "abc");
    nodes.wait(2000);
    assert!(nodes.all_vote("abc"));
    assert_eq!(nodes.record("a"), nodes.record("c"));
    // A node with another list forms none with them.
    let mut nodes = Nodes::start("abc", "abc");
    nodes.stop("c");
    nodes.files.clear();
    let mut nodes = Nodes::start("ab", "ab");
    nodes.start_nodes("c", "abc");
    nodes.wait(2000);
    assert!(nodes.all_vote("ab"));
    assert_eq!(nodes.phases("c"), [Phase::Client]);
}

#[test]
fn members_are_replaced_added_and_removed() {
    let mut nodes = Nodes::start("abcde", "abc");
    nodes.wait(2000);
    let steps = [
        ("a", "abd"),
        ("b", "abcde"),
        ("c", "abc"),
        ("a", "d"),
        ("d", "de"),
        ("e", "abc"),
    ];
    for (number, (at, to)) in steps.into_iter().enumerate() {
        assert_eq!(
            nodes.change(at, to),
            ChangeAnswer::Done(number as u64 + 1),
            "{to}"
        );
        assert!(nodes.record(&to[..1]).unwrap().is_list(&list(to)));
        nodes.wait(1500);
        assert!(nodes.all_vote(to), "{to}");
    }
    // The same list again.
    assert_eq!(nodes.change("a", "abc"), ChangeAnswer::Done(6));
}

#[test]
fn a_change_that_is_not_ready_proposes_nothing() {
    let mut nodes = Nodes::start("abc", "abc");
    nodes.wait(2000);
    assert_eq!(
        nodes.change("a", "abcd"),
        ChangeAnswer::NotReady(vec![(name("d"), Why::Down)])
    );
    assert_eq!(nodes.record("a").unwrap().id.number, 0);
    // A member that is down may stay in the list.
    nodes.start_nodes("d", "abc");
    nodes.stop("c");
    assert_eq!(nodes.change("a", "abcd"), ChangeAnswer::Done(1));
}

#[test]
fn a_lost_file_is_a_lost_member_that_comes_back() {
    let mut nodes = Nodes::start("abc", "abc");
    nodes.wait(2000);
    for (number, node) in ["a", "b", "c"].into_iter().enumerate() {
        nodes.lose(node);
        nodes.start_nodes(node, "abc");
        nodes.wait(3000);
        assert!(nodes.all_vote("abc"), "{node} {:#?}", nodes.voters);
        assert_eq!(nodes.record("a").unwrap().id.number, number as u64 + 1);
    }
}

/// Without a quorum of the other members it stays out: it may have given any vote, and any fence.
#[test]
pub fn a_lost_member_does_not_vote() {
    let mut nodes = Nodes::voting("abc", "abc");
    nodes.stop("ab");
    nodes.lose("c");
    nodes.start_nodes("ac", "abc");
    nodes.wait(5 * LEASE_MS);
    assert!(nodes.all_vote("a"));
    assert_eq!(nodes.number("c"), 0);
    assert_eq!(nodes.phases("c"), [Phase::Client]);
}

#[test]
fn a_member_that_left_returns_with_its_old_file() {
    let mut nodes = Nodes::start("abcde", "abcde");
    nodes.wait(2000);
    nodes.stop("de");
    assert_eq!(nodes.change("a", "abc"), ChangeAnswer::Done(1));
    // Those that left form no quorum of their list, also if they hear nobody.
    nodes.cut = ["a", "b", "c"].map(name).into();
    nodes.start_nodes("de", "abcde");
    nodes.wait(3000);
    assert!(!nodes.all_vote("d") || nodes.record("d").unwrap().id.number == 0);
    nodes.cut.clear();
    nodes.wait(1000);
    assert_eq!(nodes.change("a", "abcde"), ChangeAnswer::Done(2));
    nodes.wait(2000);
    assert!(nodes.all_vote("abcde"));
}

#[test]
fn a_reset_needs_all_survivors_and_no_other_member() {
    let mut nodes = Nodes::start("abcde", "abcde");
    nodes.wait(2000);
    assert_eq!(
        nodes.reset("a", "abcd"),
        ChangeAnswer::Running(vec![name("e")])
    );
    nodes.stop("cde");
    nodes.fill("b");
    let voter = nodes.voters.get_mut(&name("b")).unwrap();
    voter.not_stored("no space left");
    let unready = vec![
        (name("b"), Why::StateFile("no space left".into())),
        (name("c"), Why::Down),
    ];
    assert_eq!(nodes.reset("a", "abc"), ChangeAnswer::NotReady(unready));
    assert!(nodes.record("a").unwrap().is_list(&list("abcde")));
    nodes.free("b");
    nodes.stop("b");
    nodes.start_nodes("b", "abcde");
    assert_eq!(nodes.reset("a", "ab"), ChangeAnswer::Done(0));
    let record = nodes.record("a").unwrap().clone();
    assert!(record.fence > Fence(1 << 39) && record.is_list(&list("ab")));
    assert!(!nodes.all_vote("ab"));
    nodes.wait(2000);
    assert!(nodes.all_vote("ab"));
    // Again, and a late message of the first reset.
    assert_eq!(nodes.reset("a", "ab"), ChangeAnswer::Done(0));
    nodes.wait(2000);
    nodes.tell("b", ViewMessage::Reset(record.clone()));
    assert!(nodes.record("b").unwrap().fence > record.fence);
    let record = nodes.record("a").unwrap().clone();
    // A node that knows the view tells no lower fence, although it has given none.
    nodes.start_nodes("z", "ab");
    nodes.wait(500);
    let (nonce, agents) = (1, false);
    let answers = nodes.tell("z", ViewMessage::Ready { nonce, agents });
    assert!(
        matches!(&answers[..], [ViewMessage::Readiness(readiness)] if readiness.fence >= record.fence)
    );
    // The others are the old cluster, and are refused.
    nodes.start_nodes("cd", "abcde");
    nodes.wait(3000);
    assert_ne!(nodes.record("c").unwrap().id.cluster, record.id.cluster);
    assert_eq!(nodes.change("b", "b"), ChangeAnswer::Done(1));
}

/// Two records of the old cluster can lead an agent back to it after a reset, where its node is listed as well.
#[test]
fn a_voter_calls_its_agent_back_from_another_cluster() {
    let mut nodes = Nodes::voting("ab", "ab");
    let record = nodes.record("a").unwrap().clone();
    let mut frame_from = |from: &str| {
        let mut view = record.id;
        view.cluster += 1;
        let now = nodes.now;
        let voter = nodes.voters.get_mut(&name("a")).unwrap();
        voter.receive(now, &name(from), hello(view));
        let posts = voter
            .outputs()
            .into_iter()
            .filter_map(|output| match output {
                NodeVoterOutput::Post(post) => Some((post.to, post.role, post.envelope.content)),
                _ => None,
            });
        posts.collect::<Vec<_>>()
    };
    let back = Content::View(ViewMessage::Record(record.clone()));
    assert_eq!(frame_from("a"), [(name("a"), Role::Agent, back)]);
    assert_eq!(frame_from("b"), []);
}

/// M1, M2: the voters of a new view wait for the agents that the old ones report, and the change for `kept`.
#[test]
pub fn a_change_waits_for_the_agents_with_votes() {
    let mut nodes = Nodes::voting("abcd", "abc");
    nodes.vote("ab");
    nodes.wait(10);
    nodes.ask_to_change("c", "abd");
    nodes.wait(300);
    // Not before the agent has sent a batch: it may be dead.
    assert_eq!(nodes.number("c"), 0);
    nodes.batch("a", vec![]);
    nodes.batch("b", vec![]);
    nodes.wait(300);
    assert_eq!(nodes.number("c"), 1);
    assert_eq!(nodes.phases("abd"), [Phase::Starting; 3]);
    assert_eq!(nodes.waits_for("d"), [(name(AGENT), Awaits::Settled)]);
    for voter in ["a", "b", "d"] {
        nodes.begin(voter);
        nodes.settled(voter, false);
    }
    assert!(nodes.all_vote("abd"));
    assert_eq!(nodes.waits_for("d"), [(name(AGENT), Awaits::Kept)]);
    // M3: it cannot be changed again before.
    let ballot = Ballot {
        round: 9,
        proposer: 9,
    };
    assert_eq!(nodes.tell("a", ViewMessage::Prepare(ballot)), []);
    nodes.wait(200);
    assert_eq!(nodes.answers, []);
    nodes.settled("a", true);
    let answers = nodes.tell("a", ViewMessage::Prepare(ballot));
    assert!(matches!(answers[..], [ViewMessage::Promise { .. }]));
    nodes.wait(200);
    assert_eq!(nodes.answers, []);
    nodes.settled("d", true);
    assert_eq!(nodes.answer(), ChangeAnswer::Done(1));
}

/// M2: an agent that does not settle costs a lease.
#[test]
fn a_dead_agent_costs_a_lease() {
    let mut nodes = Nodes::voting("abcd", "abc");
    nodes.vote("ab");
    nodes.ask_to_change("c", "abd");
    nodes.batch("a", vec![]);
    nodes.batch("b", vec![]);
    nodes.wait(150);
    assert_eq!(nodes.number("d"), 1);
    nodes.wait(LEASE_MS - 200);
    assert_eq!(nodes.phases("abd"), [Phase::Starting; 3]);
    nodes.wait(300);
    assert!(nodes.all_vote("abd"));
}

/// M2: a voter that restarts before it has voted in the view has forgotten the assertions of agents that had settled.
#[test]
pub fn a_voter_that_restarts_before_it_votes_waits_for_a_lease() {
    let mut nodes = Nodes::voting("abcd", "abc");
    nodes.loses = Some(|message| matches!(message, ViewMessage::Report(_)));
    nodes.ask_to_change("a", "abd");
    nodes.wait(200);
    assert_eq!(
        (nodes.number("d"), nodes.phases("d")),
        (1, vec![Phase::Starting])
    );
    nodes.stop("d");
    nodes.start_nodes("d", "abc");
    nodes.loses = None;
    nodes.wait(LEASE_MS - 50);
    assert!(nodes.all_vote("ab"));
    assert_eq!(nodes.phases("d"), [Phase::Starting]);
    assert_eq!(nodes.waits_for("d"), [(name("d"), Awaits::Lease)]);
    nodes.wait(200);
    assert!(nodes.all_vote("d"));
}

/// M5: it could have voted for any request, and does not know.
#[test]
pub fn a_node_that_lost_its_file_reports_nothing() {
    let mut nodes = Nodes::voting("abcde", "abc");
    nodes.loses = Some(|message| matches!(message, ViewMessage::Report(_)));
    nodes.ask_to_change("a", "de");
    nodes.wait(200);
    assert_eq!(nodes.number("b"), 1);
    nodes.stop("b");
    nodes.lose("c");
    nodes.start_nodes("c", "abc");
    nodes.loses = None;
    nodes.wait(3000);
    assert_eq!(nodes.number("c"), 1);
    assert_eq!(nodes.phases("de"), [Phase::Starting; 2]);
    assert_eq!(
        nodes.waits_for("d"),
        [(name("b"), Awaits::Report), (name("c"), Awaits::Report)]
    );
    nodes.start_nodes("b", "abc");
    nodes.wait(2000);
    assert!(nodes.all_vote("de"));
}

/// A member of the new list learns from one that votes when all of the old list are gone.
#[test]
pub fn a_late_member_learns_from_one_that_votes() {
    let mut nodes = Nodes::voting("abcd", "a");
    nodes.loses = Some(|message| matches!(message, ViewMessage::Accepted(_)));
    nodes.ask_to_change("a", "bcd");
    nodes.wait(100);
    nodes.fill("d");
    nodes.loses = None;
    assert_eq!(nodes.answer(), ChangeAnswer::Done(1));
    nodes.stop("a");
    nodes.free("d");
    nodes.wait(500);
    assert!(nodes.all_vote("bcd"));
}

/// M1: a member that reports executes nothing of the view before, and a report counts only if its sender is sealed.
#[test]
fn only_a_sealed_voter_reports() {
    let mut nodes = Nodes::voting("abcd", "abc");
    nodes.vote("ab");
    let record = nodes.record("a").unwrap().clone();
    let mut members = record.members[..2].to_vec();
    let id = nodes.voters[&name("d")].id();
    members.push(Peer {
        node: name("d"),
        id,
    });
    let next = record.next(members);
    // The other nodes do not hear of the record.
    nodes.cut = ["b", "c", "d"].map(name).into();
    let answers = nodes.tell("a", ViewMessage::Learn(next.clone()));
    let agents = |answer: &ViewMessage| match answer {
        ViewMessage::Report(report) => report.agents.as_ref().map(Vec::len),
        _ => None,
    };
    assert_eq!(answers.iter().find_map(agents), Some(1), "{answers:?}");
    assert_eq!(nodes.record("a"), Some(&next));
    for (view, is_answered) in [(record.id, false), (next.id, true)] {
        nodes.acks.clear();
        nodes.deliver("a", AGENT, hello(view));
        assert_eq!(!nodes.acks.is_empty(), is_answered, "{view:?}");
    }
    // An agent has told `d` of the record.
    nodes.tell("d", ViewMessage::Record(next.clone()));
    let missing = |nodes: &Nodes| {
        nodes
            .waits_for("d")
            .iter()
            .map(|(node, _)| node.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(missing(&nodes), list("abc"));
    let report = ViewMessage::Report(Report {
        id: record.members[1].id,
        votes: false,
        floor: Fence(0),
        agents: Some(Vec::new()),
    });
    for (view, heard) in [(record.id, "abc"), (next.id, "ac")] {
        let content = Content::View(report.clone());
        nodes.deliver("d", "b", Envelope { view, content });
        assert_eq!(missing(&nodes), list(heard));
    }
}

/// With many votes, a step that gives them up is run where it does not hold others up.
#[test]
fn a_step_that_gives_up_many_votes_is_long() {
    let mut nodes = Nodes::voting("ab", "a");
    nodes.begin("a");
    let _ = nodes.ask("a", 1, Mode::Write);
    let current = nodes.record("a").unwrap().id;
    let next = ViewId {
        number: 1,
        ..current
    };
    let is_long = |nodes: &Nodes, view| nodes.voters[&name("a")].has_long_step([view].into_iter());
    for token in 1..=1001 {
        assert!(!is_long(&nodes, next), "{token}");
        assert!(nodes.ask("a", token, Mode::Write).is_some());
    }
    assert!(is_long(&nodes, next) && !is_long(&nodes, current));
    // Its own view may end with a message of that view, if there is a change.
    let (nonce, agents) = (1, false);
    nodes.tell("a", ViewMessage::Ready { nonce, agents });
    assert!(is_long(&nodes, current));
    for _ in 0..10 {
        nodes.wait(LEASE_MS / 3);
        nodes.batch("a", vec![]);
    }
    assert!(!is_long(&nodes, current));
    let record = nodes.record("a").unwrap();
    let accept = ViewMessage::Accept(Ballot::default(), record.next(record.members.clone()));
    nodes.tell("a", accept);
    assert!(is_long(&nodes, current));
    let record = nodes.record("a").unwrap();
    let again = record.next(record.members.clone());
    nodes.tell("a", ViewMessage::Record(again));
    assert!(!is_long(&nodes, current));
}

/// A restarted voter does not know which agents may count on its votes.
#[test]
pub fn a_voter_in_quarantine_reports_any_agent() {
    let mut nodes = Nodes::voting("abc", "abc");
    let reported = |nodes: &Nodes| nodes.voters[&name("a")].voter().unwrap().reported();
    assert!(reported(&nodes).is_some());
    nodes.stop("a");
    nodes.start_nodes("a", "abc");
    assert_eq!(reported(&nodes), None);
    nodes.wait(2000);
    assert!(reported(&nodes).is_some());
}

/// The initiator dies when its record is accepted: the others neither take it at once nor forget it.
#[test]
pub fn an_accepted_record_is_proposed_again() {
    let mut nodes = Nodes::voting("abcd", "abc");
    nodes.loses = Some(|message| matches!(message, ViewMessage::Accepted(_)));
    nodes.ask_to_change("a", "bcd");
    nodes.wait(100);
    assert!(nodes.files[&name("b")].accepted.is_some());
    nodes.stop("a");
    nodes.loses = None;
    nodes.wait(2 * LEASE_MS - 200);
    assert_eq!(nodes.number("b"), 0);
    nodes.wait(3000);
    assert_eq!(nodes.number("b"), 1);
    assert!(nodes.all_vote("bcd"));
}

/// It answers no lower ballot, and accepts only what follows its record.
#[test]
fn a_member_keeps_its_promise() {
    let mut nodes = Nodes::voting("abc", "abc");
    let ballot = |round| Ballot { round, proposer: 7 };
    let record = nodes.record("a").unwrap().clone();
    let next = record.next(record.members[1..].to_vec());
    let promised = ViewMessage::Promise {
        ballot: ballot(5),
        accepted: None,
    };
    let refused = ViewMessage::Refused(ballot(5));
    let accept = |round, record: &Record| ViewMessage::Accept(ballot(round), record.clone());
    let steps = [
        (ViewMessage::Prepare(ballot(5)), vec![promised]),
        (ViewMessage::Prepare(ballot(4)), vec![refused.clone()]),
        (accept(4, &next), vec![refused]),
        (accept(5, &next.next(next.members.clone())), vec![]),
        (accept(5, &next), vec![ViewMessage::Accepted(ballot(5))]),
    ];
    for (message, answer) in steps {
        assert_eq!(nodes.tell("a", message.clone()), answer, "{message:?}");
    }
    let accepted = nodes.files[&name("a")].accepted.clone();
    assert_eq!(accepted, Some((ballot(5), next)));
}

/// A client may have got votes of the view before here, so a restart in the new one waits for a lease.
#[test]
fn a_new_view_may_have_guests() {
    let mut nodes = Nodes::voting("abcd", "abc");
    let guests = |nodes: &Nodes| nodes.files[&name("a")].guests;
    assert!(!guests(&nodes));
    assert_eq!(nodes.change("a", "abd"), ChangeAnswer::Done(1));
    assert!(guests(&nodes));
    nodes.wait(2 * LEASE_MS);
    assert!(!guests(&nodes));
}

/// The file of an identity that is lost comes back, from a backup: it knows an older floor than the lost one.
#[test]
fn a_restored_file_of_a_lost_member_does_not_count() {
    let mut nodes = Nodes::voting("abc", "abc");
    let backup = nodes.files[&name("c")].clone();
    nodes.lose("c");
    nodes.loses = Some(|message| matches!(message, ViewMessage::Report(_)));
    nodes.start_nodes("c", "abc");
    nodes.wait(2000);
    assert_eq!((nodes.number("a"), nodes.number("c")), (1, 1));
    nodes.stop("bc");
    nodes.files.insert(name("c"), backup);
    nodes.start_nodes("c", "abc");
    nodes.loses = None;
    nodes.wait(3 * LEASE_MS);
    assert_eq!(nodes.number("c"), 1);
    assert_eq!(nodes.phases("a"), [Phase::Starting]);
    nodes.start_nodes("b", "abc");
    nodes.wait(2 * LEASE_MS);
    assert!(nodes.all_vote("ab"));
}

/// Q5: a voter has stored a mark before it votes, so its first fence waits for no write. A later life begins above that
/// mark, and a voter of the next view above those of the view before.
#[test]
fn fences_grow_and_wait_for_no_disk() {
    let mut nodes = Nodes::voting("abcd", "abc");
    let first = nodes.first_fence_without_disk("a");
    nodes.free("a");
    // Each life has a mark of its own, so the fences of `a` are above the first mark of `d`.
    for _ in 0..3 {
        nodes.stop("a");
        nodes.start_nodes("a", "abc");
    }
    nodes.wait(2 * LEASE_MS);
    let next = nodes.first_fence_without_disk("a");
    assert!(next > first, "{next:?} after {first:?}");
    nodes.free("a");
    nodes.unlock("a", 1);
    nodes.unlock("a", 9);
    assert_eq!(nodes.change("b", "abd"), ChangeAnswer::Done(1));
    let last = nodes.first_fence_without_disk("d");
    assert!(last > next, "{last:?} after {next:?}");
}

/// Of two initiators one is answered that another change was made.
#[test]
fn two_initiators_make_one_view() {
    let mut nodes = Nodes::voting("abcde", "abc");
    let now = nodes.now;
    for (node, to) in [("a", "abd"), ("b", "abe")] {
        nodes
            .voters
            .get_mut(&name(node))
            .unwrap()
            .change(now, 1, list(to));
    }
    let answers = [nodes.answer(), nodes.answer()];
    let is_done = |answer: &&ChangeAnswer| **answer == ChangeAnswer::Done(1);
    let other = answers.iter().find(|answer| !is_done(answer));
    assert_eq!(answers.iter().filter(is_done).count(), 1, "{answers:?}");
    assert!(matches!(other, Some(ChangeAnswer::Changing(record)) if record.id.number == 1));
}

/// M4: a member whose disk is full takes no part, and says why.
#[test]
fn a_full_disk_is_no_obstacle_for_a_member_that_stays() {
    let mut nodes = Nodes::voting("abcde", "abc");
    nodes.fill("c");
    assert_eq!(nodes.change("a", "abcd"), ChangeAnswer::Done(1));
    assert_eq!(
        nodes.phases("abcd"),
        [Phase::Voting, Phase::Voting, Phase::Starting, Phase::Voting]
    );
    // A new member must be able to store what it promises.
    nodes.fill("e");
    for node in ["c", "e"] {
        let voter = nodes.voters.get_mut(&name(node)).unwrap();
        voter.not_stored("no space left");
    }
    let why = Why::StateFile("no space left".into());
    assert_eq!(
        nodes.change("a", "abde"),
        ChangeAnswer::NotReady(vec![(name("e"), why)])
    );
    nodes.free("c");
    nodes.wait(500);
    assert!(nodes.all_vote("abcd"));
}

/// None of a reset votes before all have stored that they leave the old cluster.
#[test]
pub fn a_reset_waits_for_the_disks_of_all() {
    let mut nodes = Nodes::voting("abcde", "abcde");
    nodes.stop("de");
    nodes.fill("c");
    assert!(matches!(nodes.reset("a", "abc"), ChangeAnswer::Starting(_)));
    assert!(!nodes.phases("abc").contains(&Phase::Voting));
    assert_eq!(nodes.waits_for("a"), [(name("c"), Awaits::Accepted)]);
    nodes.free("c");
    nodes.wait(LEASE_MS - 200);
    assert!(!nodes.phases("abc").contains(&Phase::Voting));
    nodes.wait(500);
    assert!(nodes.all_vote("abc"));
}

/// The answer names a node with another lease, and one of another cluster.
#[test]
fn nodes_that_cannot_be_members_are_named() {
    let mut nodes = Nodes::voting("ab", "ab");
    nodes.start_nodes("c", "c");
    nodes.wait(2000);
    let cluster = nodes.record("c").unwrap().id.cluster;
    let other = ChangeAnswer::NotReady(vec![(name("c"), Why::OtherCluster(cluster))]);
    assert_eq!(nodes.change("a", "abc"), other);
    assert_eq!(nodes.number("a"), 0);
}
