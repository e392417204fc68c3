//! Nodes whose members change, in one process. Each node has an agent, and a voter if its record lists it. The voters
//! do of views only what agents see: a voter that gets a higher record takes it, and begins in quarantine.

use super::cluster::{name, Answer, Lock};
use crate::common::bugs::bugs;
use quorum::agent::{AgentOutput, Loss, Request};
use quorum::envelope::{Content, Envelope, Post};
use quorum::frame;
use quorum::members::{Member, Node};
use quorum::message::{Batch, Fence, Frame, Lifetime, Mode, Op, Token, Verdict};
use quorum::node_agent::{NodeAgent, NodeAgentOutput, NodeAgentSetup};
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::view::Role;
use quorum::view::{Id, NodeName, Peer, Record, ViewId};
use quorum::view_message::ViewMessage;
use quorum::voter::{Voter, VoterOutput, VoterSetup};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub fn node(place: usize) -> NodeName {
    NodeName::new(&format!("n{place}")).unwrap()
}

pub fn peers(places: &[usize]) -> Vec<Peer> {
    let peer = |place: &usize| Peer {
        node: node(*place),
        id: Id(100 + *place as u64),
    };
    places.iter().map(peer).collect()
}

#[derive(Default)]
pub struct VoterNode {
    pub record: Option<Record>,
    pub voter: Option<Voter>,
    /// Whether it takes no record.
    pub is_deaf: bool,
}

pub struct Views {
    pub now: Time,
    pub rules: Rules,
    pub agents: Vec<NodeAgent>,
    pub voters: Vec<VoterNode>,
    pub answers: BTreeMap<Request, Answer>,
    pub lost: Vec<(Token, Loss)>,
    pub at_risk: Vec<Token>,
    /// The nodes of other clusters that agents have reported, and by whom.
    pub strangers: Vec<(usize, NodeName)>,
    /// All messages that have arrived, oldest first.
    pub arrived: Vec<(usize, Post)>,
    wire: VecDeque<(usize, Post)>,
    cut: BTreeSet<(usize, usize)>,
    /// Whether new voters have files.
    pub is_durable: bool,
    /// An agent and a voter. The voter's answers with replies are lost.
    pub replies_lost: Option<(usize, usize)>,
    requests: u64,
    lifetimes: u32,
}

impl Views {
    /// `count` nodes, of which the first `members` are those of view 0. All agents know it.
    pub fn new(count: usize, members: usize, rules: Rules) -> Views {
        let list: Vec<usize> = (0..members).collect();
        let mut views = Views::without_view(count, members, rules);
        let record = Record::first(peers(&list), rules.voter_lease.as_millis() as u64);
        for place in 0..count {
            views.take(place, &record);
        }
        views.run();
        let pause = views.rules.attempt * 2;
        views.pass(pause);
        views
    }

    /// The configuration of each agent lists the first `seeds` nodes. There is no record.
    pub fn without_view(count: usize, seeds: usize, rules: Rules) -> Views {
        let mut views = Views {
            now: Time(1_000_000_000),
            rules,
            agents: Vec::new(),
            voters: Vec::new(),
            answers: BTreeMap::new(),
            lost: Vec::new(),
            at_risk: Vec::new(),
            strangers: Vec::new(),
            arrived: Vec::new(),
            wire: VecDeque::new(),
            cut: BTreeSet::new(),
            is_durable: false,
            replies_lost: None,
            requests: 0,
            lifetimes: 0,
        };
        for place in 0..count {
            let setup = NodeAgentSetup {
                node: node(place),
                seeds: (0..seeds).map(node).collect(),
                rules,
                bugs: bugs(),
                lifetime: Lifetime(1000 + place as u64),
            };
            views.agents.push(NodeAgent::new(setup, views.now));
            views.voters.push(VoterNode::default());
        }
        for place in 0..count {
            (0..count).for_each(|other| views.agents[place].up(views.now, &node(other)));
        }
        views
    }

    pub fn record(&self, place: usize) -> Record {
        self.voters[place].record.clone().unwrap()
    }

    /// The record after that of the voter at node 0.
    pub fn next(&self, members: &[usize]) -> Record {
        self.record(0).next(peers(members))
    }

    /// The voter of a node takes a record: it executes nothing of the one before from now on.
    pub fn take(&mut self, place: usize, record: &Record) {
        self.voters[place].record = Some(record.clone());
        let me = record.place(&node(place));
        self.voters[place].voter = me.map(|me| self.voter(record, me));
    }

    /// The voter of a node crashes, and starts again in its view.
    pub fn restart_voter(&mut self, place: usize) {
        let record = self.record(place);
        self.take(place, &record);
    }

    fn voter(&mut self, record: &Record, me: Member) -> Voter {
        self.lifetimes += 1;
        let setup = VoterSetup {
            members: record.list(),
            me,
            rules: self.rules,
            bugs: bugs(),
            lifetime: Lifetime::new(self.lifetimes, 0),
            quarantine: self.rules.voter_lease,
            mark: Fence(if self.is_durable { 1 << 20 } else { 0 }),
            durable: self.is_durable,
            guests: false,
            begins: false,
        };
        Voter::new(setup, self.now)
    }

    /// The agent of a node gets a record, from a node that is no voter of it.
    pub fn tell(&mut self, place: usize, record: &Record) {
        self.tell_from(place, "elsewhere", record);
    }

    pub fn tell_from(&mut self, place: usize, from: &str, record: &Record) {
        let message = ViewMessage::Record(record.clone());
        self.receive(place, from, record.id, Content::View(message));
    }

    pub fn receive(&mut self, place: usize, from: &str, view: ViewId, content: Content) {
        let from = NodeName::new(from).unwrap();
        let envelope = Envelope { view, content };
        self.agents[place].receive(self.now, &from, envelope);
        self.run();
    }

    /// Drops all messages from one node to another from now on.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    /// Drops all messages between a node and these others from now on.
    pub fn cut_off(&mut self, place: usize, others: &[usize]) {
        for other in others {
            self.cut(place, *other);
            self.cut(*other, place);
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
        self.run();
    }

    pub fn lock(&mut self, place: usize, on: &str, timeout: Duration) -> Request {
        self.requests += 1;
        let request = Request(self.requests);
        let agent = self.agents[place].agent();
        agent.lock(self.now, request, name(on).into(), Mode::Write, timeout);
        self.run();
        request
    }

    pub fn locked(&mut self, place: usize, on: &str) -> Lock {
        let request = self.lock(place, on, Duration::from_secs(1));
        self.granted(request)
    }

    pub fn granted(&self, request: Request) -> Lock {
        match self.answers.get(&request) {
            Some(Answer::Granted(lock)) => lock.clone(),
            answer => panic!("{request:?} was not granted: {answer:?}"),
        }
    }

    pub fn is_granted(&self, request: Request) -> bool {
        matches!(self.answers.get(&request), Some(Answer::Granted(_)))
    }

    pub fn unlock(&mut self, lock: &Lock) -> Request {
        self.requests += 1;
        let request = Request(self.requests);
        let agent = self.agents[lock.node].agent();
        assert!(agent.unlock(self.now, lock.token, request));
        self.run();
        request
    }

    pub fn unlock_async(&mut self, lock: &Lock) -> Request {
        self.requests += 1;
        let request = Request(self.requests);
        let agent = self.agents[lock.node].agent();
        assert!(agent.unlock_async(self.now, lock.token, request));
        self.run();
        request
    }

    pub fn held(&self, lock: &Lock) -> bool {
        let agent = self.agents[lock.node].as_agent();
        agent.lease().holds(&lock.standing, || self.now)
    }

    /// Asserts that the lock is held until `end`, and lost at that time.
    pub fn ends_at(&mut self, lock: &Lock, end: Time) {
        let almost = (end - self.now) - Duration::from_nanos(1);
        self.pass(almost);
        assert!(self.held(lock) && self.lost.is_empty());
        self.pass(Duration::from_nanos(1));
        assert!(!self.held(lock));
        assert_eq!(self.lost, [(lock.token, Loss::Quorum)]);
    }

    /// When the leases of the voters end, as an agent knows them.
    pub fn valid(&self, place: usize) -> Vec<Time> {
        let status = self.agents[place].as_agent().status();
        status.map(|status| status.valid).collect()
    }

    /// Delivers all messages.
    pub fn run(&mut self) {
        self.collect();
        for _ in 0..100_000 {
            let Some((from, post)) = self.wire.pop_front() else {
                return;
            };
            let to = index(&post.to);
            let is_lost = self.replies_lost == Some((to, from)) && has_replies(&post);
            if !is_lost && !self.cut.contains(&(from, to)) {
                self.deliver(from, post);
            }
            self.collect();
        }
        panic!("100,000 messages did not settle the nodes");
    }

    fn deliver(&mut self, from: usize, post: Post) {
        let mut bytes = Vec::new();
        frame::encode_content(&post.envelope.content, &mut bytes);
        let content = frame::decode_content(&bytes).unwrap();
        assert_eq!(content, post.envelope.content);
        self.arrived.push((from, post.clone()));
        let to = index(&post.to);
        match post.role {
            Role::Agent => self.agents[to].receive(self.now, &node(from), post.envelope),
            Role::Voter => self.voter_receives(to, from, post.envelope),
        }
    }

    fn voter_receives(&mut self, to: usize, from: usize, envelope: Envelope) {
        let own = self.voters[to].record.clone();
        match envelope.content {
            Content::Frame(frame) => {
                let Some(record) = own.filter(|record| record.id == envelope.view) else {
                    return;
                };
                let sender = member_or_client(&record, from);
                let voter = self.voters[to].voter.as_mut().expect("a frame for a voter");
                voter.receive(self.now, sender, frame);
            }
            Content::View(ViewMessage::Ask(_)) => {
                if let Some(record) = own {
                    let answer = ViewMessage::Record(record);
                    self.voter_says(to, from, answer);
                }
            }
            Content::View(ViewMessage::Record(record)) => {
                if self.voters[to].is_deaf {
                    return;
                }
                if own.is_none_or(|own| own.id.number < record.id.number) {
                    self.take(to, &record);
                }
                let id = Id(100 + to as u64);
                self.voter_says(to, from, ViewMessage::Known { id });
            }
            content => panic!("{content:?}"),
        }
    }

    fn voter_says(&mut self, place: usize, to: usize, message: ViewMessage) {
        let view = self.record(place).id;
        let content = Content::View(message);
        self.wire.push_back((place, to_agent(to, view, content)));
    }

    fn collect(&mut self) {
        for place in 0..self.voters.len() {
            let Some(record) = self.voters[place].record.clone() else {
                continue;
            };
            let Some(voter) = &mut self.voters[place].voter else {
                continue;
            };
            for output in voter.outputs() {
                let send = match output {
                    VoterOutput::Send(send) => send,
                    VoterOutput::Store(mark) => {
                        voter.stored(self.now, mark);
                        continue;
                    }
                    VoterOutput::StoreGuests(true) => {
                        voter.guests_stored(self.now);
                        continue;
                    }
                    output => panic!("{output:?}"),
                };
                let to = match send.to.member() {
                    Some(member) => index(&record.peer(member).node),
                    None => send.to.client_number().unwrap() as usize,
                };
                let is_for_voter = matches!(send.frame, Frame::Life(_));
                let mut post = to_agent(to, record.id, Content::Frame(send.frame));
                if is_for_voter {
                    post.role = Role::Voter;
                }
                self.wire.push_back((place, post));
            }
        }
        for place in 0..self.agents.len() {
            self.agents[place].flush(self.now);
            for output in self.agents[place].outputs() {
                match output {
                    NodeAgentOutput::Post(post) => self.wire.push_back((place, post)),
                    NodeAgentOutput::Agent(output) => self.answer(place, output),
                    NodeAgentOutput::OtherCluster { node } => self.strangers.push((place, node)),
                    NodeAgentOutput::Adopted(record) => {
                        assert_eq!(self.agents[place].record(), Some(&record));
                    }
                }
            }
        }
    }

    fn answer(&mut self, node: usize, output: AgentOutput) {
        let (request, answer) = match output {
            AgentOutput::Send(send) => panic!("{send:?} without a view"),
            AgentOutput::Lost { token, why } => return self.lost.push((token, why)),
            AgentOutput::AtRisk { token } => return self.at_risk.push(token),
            AgentOutput::GaveBack => return,
            AgentOutput::Granted {
                request,
                token,
                path,
                fence,
                standing,
                ..
            } => {
                let fence = fence.0;
                let lock = Lock {
                    node,
                    token,
                    fence,
                    path,
                    standing,
                };
                (request, Answer::Granted(lock))
            }
            AgentOutput::Refused { request, why } => (request, Answer::Refused(why)),
            AgentOutput::Unlocked { request, confirmed } => {
                (request, Answer::Unlocked { confirmed })
            }
            AgentOutput::Accepted { request } => (request, Answer::Accepted),
        };
        let earlier = self.answers.insert(request, answer);
        assert!(earlier.is_none(), "{request:?} is answered twice");
    }

    /// Advances the time and fires all timers on the way.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            let agents = self.agents.iter().filter_map(NodeAgent::deadline);
            let voters = self.voters.iter().filter_map(|node| node.voter.as_ref());
            let voters = voters.filter_map(Voter::deadline);
            let next = agents.chain(voters).min().unwrap_or(end);
            self.now = next.clamp(self.now + Duration::from_nanos(1), end);
            let now = self.now;
            self.agents.iter_mut().for_each(|agent| agent.tick(now));
            let voters = self.voters.iter_mut();
            let voters = voters.filter_map(|node| node.voter.as_mut());
            voters.for_each(|voter| voter.tick(now));
            self.run();
        }
    }

    /// The batches of an agent that have arrived since the messages were last taken, and at which node.
    pub fn batches(&mut self, place: usize) -> Vec<(usize, Batch)> {
        let arrived = std::mem::take(&mut self.arrived).into_iter();
        let batch = |(from, post): (usize, Post)| match post.envelope.content {
            Content::Frame(Frame::Batch(batch)) if from == place => Some((index(&post.to), batch)),
            _ => None,
        };
        arrived.filter_map(batch).collect()
    }

    /// The operations of these batches.
    pub fn ops(&mut self, place: usize) -> Vec<(usize, Op)> {
        let batches = self.batches(place).into_iter();
        let ops = batches.map(|(to, batch)| batch.ops.into_iter().map(move |op| (to, op)));
        ops.flatten().collect()
    }
}

fn to_agent(to: usize, view: ViewId, content: Content) -> Post {
    Post {
        to: node(to),
        role: Role::Agent,
        envelope: Envelope { view, content },
    }
}

fn member_or_client(record: &Record, place: usize) -> Node {
    match record.place(&node(place)) {
        Some(member) => member.into(),
        None => Node::client(place as u32).unwrap(),
    }
}

fn has_replies(post: &Post) -> bool {
    let Content::Frame(Frame::Ack(ack)) = &post.envelope.content else {
        return false;
    };
    matches!(&ack.verdict, Verdict::Done { replies, .. } if !replies.is_empty())
}

fn index(name: &NodeName) -> usize {
    name.text()[1..].parse().unwrap()
}
