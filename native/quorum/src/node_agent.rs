//! The agent of a node in the view that the node knows. It adds names and numbers to the agent, which knows places
//! only.
//!
//! ```text
//!   record k ---- a record k + 1 arrives ----> record k + 1
//!                                                 |  held locks are in transition: see `agent/transition.rs`
//!   voters of k with votes of held locks  <-------'  get the record until they answer with k + 1: they are sealed then
//! ```
//!
//! A message of a higher number makes it ask for the record; a voter with a lower number gets the agent's record.
//! Messages of another cluster are ignored. A node follows another cluster if its own voter has, or if it has no voter
//! and no member of its own cluster answers any more.
//!
//! Without a record it asks all nodes that it knows, and requests wait. A member learns it from its own voter.

use crate::agent::{Adoption, Agent, AgentOutput, AgentSetup};
use crate::envelope::{Content, Envelope, Post};
use crate::members::{Member, MemberSet, Members, MAX_MEMBERS};
use crate::message::{Frame, Lifetime};
use crate::protocol_bug::{ProtocolBug, ProtocolBugs};
use crate::rules::Rules;
use crate::time::Time;
use crate::view::Role;
use crate::view::{NodeName, Record, ViewId};
use crate::view_message::ViewMessage;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The setup of the agent of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeAgentSetup {
    /// The node of the agent.
    pub node: NodeName,
    /// The nodes of its configuration. Until it has a record, requests wait while a quorum of them is connected.
    pub seeds: Vec<NodeName>,
    /// The constants of the protocol. From the first record on, those of its lease, with the same `run`.
    pub rules: Rules,
    /// Enabled protocol bugs: none outside models.
    pub bugs: ProtocolBugs,
    /// The agent's lifetime: a random number.
    pub lifetime: Lifetime,
}

/// An action that the agent of a node requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeAgentOutput {
    /// Send this message.
    Post(Post),
    /// An output of the agent, which is no frame.
    Agent(AgentOutput),
    /// This node is in another cluster, or has sent the record of one. Reported once for each node.
    OtherCluster {
        /// The other node.
        node: NodeName,
    },
    /// The agent has adopted this record.
    Adopted(Record),
}

/// The agent of a node. See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeAgent {
    setup: NodeAgentSetup,
    now: Time,
    agent: Agent,
    record: Option<Record>,
    /// The record before, while voters of it are to be sealed, and when they are sent the new one next.
    sealing: Option<(Record, Time)>,
    connected: BTreeSet<NodeName>,
    /// When these nodes were last asked for their record, or sent the agent's.
    asked: BTreeMap<NodeName, Time>,
    told: BTreeMap<NodeName, Time>,
    /// When the last message of a member came, of this view or a later one.
    heard: Time,
    /// The nodes of other clusters.
    strangers: BTreeSet<NodeName>,
    out: Vec<NodeAgentOutput>,
}

impl NodeAgent {
    /// Creates an agent without a record. No node is connected yet, not even its own: call [`NodeAgent::up`].
    #[must_use]
    pub fn new(setup: NodeAgentSetup, now: Time) -> NodeAgent {
        let seeds = setup.seeds.len().clamp(1, MAX_MEMBERS);
        let agent = AgentSetup {
            members: Members::new(seeds).expect("1 to 16 members"),
            rules: setup.rules,
            bugs: setup.bugs,
            lifetime: setup.lifetime,
        };
        NodeAgent {
            agent: Agent::new(agent, now).without_view(),
            setup,
            now,
            record: None,
            sealing: None,
            connected: BTreeSet::new(),
            asked: BTreeMap::new(),
            told: BTreeMap::new(),
            heard: now,
            strangers: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    /// The agent, for calls of processes of this node. Not for its time and frames: those calls are below.
    pub fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// The agent, to read from.
    #[must_use]
    pub fn as_agent(&self) -> &Agent {
        &self.agent
    }

    /// The record of the agent's view, if it has one.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// The nodes of the agent's list: of its view, or of its configuration.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeName> {
        match &self.record {
            Some(record) => record
                .members
                .iter()
                .map(|peer| peer.node.clone())
                .collect(),
            None => self.setup.seeds.clone(),
        }
    }

    /// The constants of the protocol that are in use.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.setup.rules
    }

    /// A message of a voter has arrived.
    pub fn receive(&mut self, now: Time, from: &NodeName, envelope: Envelope) {
        self.advance(now);
        let Envelope { view, content } = envelope;
        let is_record = match &content {
            Content::View(ViewMessage::Record(record) | ViewMessage::Learn(record)) => {
                self.learn(from, record);
                true
            }
            _ => false,
        };
        let own = self.id();
        let asks = matches!(content, Content::View(ViewMessage::Ask(_)));
        if let (true, Some(record)) = (asks && *from == self.setup.node, &self.record) {
            let message = ViewMessage::Record(record.clone());
            return self.post(from.clone(), Content::View(message));
        }
        if view.is_foreign(own) {
            return self.is_stranger(from);
        }
        self.note(from, view, &content);
        match content {
            Content::Frame(frame) if view == own && view != ViewId::NONE => {
                let record = self.record.as_ref().expect("it has a number");
                if let (Some(member), Frame::Ack(_) | Frame::Notice(_)) =
                    (record.place(from), &frame)
                {
                    self.agent.receive(self.now, member, frame);
                }
            }
            _ if view != ViewId::NONE && !is_record && view.number >= own.number && view != own => {
                self.ask(from, self.setup.rules.recall);
            }
            Content::Frame(_) if view != own => self.tell(from),
            Content::Frame(_) | Content::View(_) => {}
        }
    }

    /// A node is connected now.
    pub fn up(&mut self, now: Time, node: &NodeName) {
        self.advance(now);
        self.connected.insert(node.clone());
        if let Some(member) = self.place(node) {
            self.agent.up(self.now, member);
        }
    }

    /// A node is disconnected now.
    pub fn down(&mut self, now: Time, node: &NodeName) {
        self.advance(now);
        self.connected.remove(node);
        self.asked.remove(node);
        self.told.remove(node);
        if let Some(member) = self.place(node) {
            self.agent.down(self.now, member);
        }
    }

    /// Time has passed. Call [`NodeAgent::flush`] afterwards: see [`Agent::tick`].
    pub fn tick(&mut self, now: Time) {
        self.advance(now);
        self.agent.tick(self.now);
    }

    /// Creates the messages that are due. Call it once when the mailbox is empty: see [`Agent::flush`].
    pub fn flush(&mut self, now: Time) {
        self.advance(now);
        self.agent.flush(self.now);
        if self.needs_record() {
            for node in self.connected.clone() {
                self.ask(&node, self.setup.rules.attempt);
            }
        }
        self.seal();
    }

    /// Whether a step that receives messages of these views may take longer than a millisecond: it adopts a record, or
    /// moves locks, and they are many.
    #[must_use]
    pub fn has_long_step(&self, mut views: impl Iterator<Item = ViewId>) -> bool {
        let own = self.id();
        self.agent.is_large() && (!self.agent.is_kept() || views.any(|view| view != own))
    }

    /// When to call [`NodeAgent::tick`] and [`NodeAgent::flush`] if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let asks = match self.is_client() && !self.connected.is_empty() {
            true if !self.needs_record() => Some(self.heard + self.setup.rules.voter_lease),
            _ => self.asks_at(),
        };
        let seals = self.sealing.as_ref();
        let seals = seals.filter(|_| !self.to_seal().is_empty());
        let own = seals.map(|(_, next)| *next).into_iter().chain(asks);
        own.chain(self.agent.deadline()).min()
    }

    /// Takes the outputs since the last call, oldest first.
    pub fn outputs(&mut self) -> Vec<NodeAgentOutput> {
        self.collect();
        std::mem::take(&mut self.out)
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    fn id(&self) -> ViewId {
        self.record
            .as_ref()
            .map_or(ViewId::NONE, |record| record.id)
    }

    /// The place of a node in the list of the agent.
    fn place(&self, node: &NodeName) -> Option<Member> {
        match &self.record {
            Some(record) => record.place(node),
            None => Member::at(self.setup.seeds.iter().position(|seed| seed == node)?),
        }
    }

    fn is_client(&self) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.place(&self.setup.node).is_none())
    }

    /// Whether it has no record, or is a client whose cluster is silent.
    fn needs_record(&self) -> bool {
        let is_silent = self.heard + self.setup.rules.voter_lease <= self.now;
        self.record.is_none() || (self.is_client() && is_silent)
    }

    /// When the next node is asked for its record, if the agent needs one.
    fn asks_at(&self) -> Option<Time> {
        if !self.needs_record() {
            return None;
        }
        let nodes = self.connected.iter();
        let at = |node| match self.asked.get(node) {
            Some(asked) => *asked + self.setup.rules.attempt,
            None => Time::LONG_AGO,
        };
        nodes.map(at).min()
    }

    /// A record, which is decided.
    fn learn(&mut self, from: &NodeName, record: &Record) {
        let is_own = *from == self.setup.node;
        let (is_new, is_other) = match &self.record {
            None => (true, false),
            Some(own) if own.id.cluster == record.id.cluster => {
                (own.id.number < record.id.number, false)
            }
            // Its own voter knows best, but only if one of the records has it: a removed node keeps its last one.
            Some(own) if is_own && own.place(from).or(record.place(from)).is_some() => (true, true),
            // As a member, it learns from its own voter.
            Some(_) => {
                let is_member = record.place(&self.setup.node).is_some();
                (self.is_client() && self.needs_record() && !is_member, true)
            }
        };
        if !is_new {
            if is_other {
                self.is_stranger(from);
            }
            return;
        }
        self.adopt(record, is_other);
        if !is_own {
            // No other node may tell its own voter.
            let message = ViewMessage::Record(record.clone());
            self.post(self.setup.node.clone(), Content::View(message));
        }
    }

    fn adopt(&mut self, record: &Record, is_other: bool) {
        self.collect();
        let lease = Duration::from_millis(record.lease_ms);
        if self.setup.rules.voter_lease != lease {
            let run = self.setup.rules.run;
            self.setup.rules = Rules {
                run,
                ..Rules::of(lease)
            };
        }
        let before = self.record.replace(record.clone());
        let before = before.filter(|before| {
            let is_next = before.id.number.checked_add(1) == Some(record.id.number);
            !is_other && is_next && before.members == record.before
        });
        let adoption = Adoption {
            members: record.list(),
            connected: record.places(&self.connected),
            rules: self.setup.rules,
            is_next: before.is_some(),
        };
        match is_other && !self.setup.bugs.have(ProtocolBug::ResetKeepsLocks) {
            true => self.agent.abandon(self.now, adoption),
            false => self.agent.adopt(self.now, adoption),
        }
        self.sealing = before.map(|before| (before, self.now));
        self.heard = self.now;
        if is_other {
            self.strangers.clear();
        }
        self.out.push(NodeAgentOutput::Adopted(record.clone()));
    }

    fn is_stranger(&mut self, node: &NodeName) {
        if self.strangers.insert(node.clone()) {
            let node = node.clone();
            self.out.push(NodeAgentOutput::OtherCluster { node });
        }
    }

    /// A message of this view or a later one shows that its sender executes nothing of the view before.
    fn note(&mut self, from: &NodeName, view: ViewId, content: &Content) {
        let Some(record) = &self.record else {
            return;
        };
        if view.cluster != record.id.cluster || view.number < record.id.number {
            return;
        }
        if record.place(from).is_some() {
            self.heard = self.now;
        }
        let Some((before, _)) = &self.sealing else {
            return;
        };
        let Some(voter) = before.place(from) else {
            return;
        };
        let peer = before.peer(voter);
        // A node that has lost its file since is another member, and knows nothing of the votes of the one before.
        let is_same = match content {
            Content::View(ViewMessage::Known { id }) => *id == peer.id,
            _ => record.has(peer),
        };
        if is_same {
            self.agent.sealed(self.now, voter);
        }
    }

    /// Sends the record to the connected voters of the view before whose votes could still be kept.
    fn seal(&mut self) {
        if self.agent.unsealed(self.now).is_empty() {
            self.sealing = None;
        }
        let to = self.to_seal();
        let (Some(record), Some((before, next))) = (&self.record, &mut self.sealing) else {
            return;
        };
        if *next > self.now || to.is_empty() {
            return;
        }
        *next = self.now + self.setup.rules.recall * 5;
        let message = ViewMessage::Record(record.clone());
        let nodes: Vec<NodeName> = to
            .iter()
            .map(|voter| before.peer(voter).node.clone())
            .collect();
        for node in nodes {
            self.post(node, Content::View(message.clone()));
        }
    }

    /// The connected voters of the view before that are not sealed.
    fn to_seal(&self) -> MemberSet {
        let Some((before, _)) = &self.sealing else {
            return MemberSet::EMPTY;
        };
        let to = before
            .places(&self.connected)
            .and(self.agent.unsealed(self.now));
        let leaves = |voter: &Member| {
            let record = self.record.as_ref();
            record.is_some_and(|record| !record.has(before.peer(*voter)))
        };
        match self.setup.bugs.have(ProtocolBug::LeaversUnasked) {
            true => to.iter().filter(|voter| !leaves(voter)).collect(),
            false => to,
        }
    }

    /// Asks a node for its record, unless it was asked within `pause`.
    fn ask(&mut self, node: &NodeName, pause: Duration) {
        let is_recent = |asked: &Time| *asked + pause > self.now;
        if self.asked.get(node).is_some_and(is_recent) {
            return;
        }
        self.asked.insert(node.clone(), self.now);
        self.post(node.clone(), Content::View(ViewMessage::Ask(Role::Agent)));
    }

    /// Sends the record to a voter that has an earlier one.
    fn tell(&mut self, node: &NodeName) {
        let is_recent = |told: &Time| *told + self.setup.rules.recall > self.now;
        let Some(record) = &self.record else {
            return;
        };
        if self.told.get(node).is_some_and(is_recent) {
            return;
        }
        let message = ViewMessage::Record(record.clone());
        self.told.insert(node.clone(), self.now);
        self.post(node.clone(), Content::View(message));
    }

    fn post(&mut self, to: NodeName, content: Content) {
        let view = self.id();
        self.out.push(NodeAgentOutput::Post(Post {
            to,
            role: Role::Voter,
            envelope: Envelope { view, content },
        }));
    }

    /// Takes the outputs of the agent. Frames are those of the current view.
    fn collect(&mut self) {
        for output in self.agent.outputs() {
            let AgentOutput::Send(send) = output else {
                self.out.push(NodeAgentOutput::Agent(output));
                continue;
            };
            let record = self.record.as_ref().expect("it sends frames");
            let member = send.to.member().expect("agents send to voters");
            let node = record.peer(member).node.clone();
            self.post(node, Content::Frame(send.frame));
        }
    }
}
