//! The agent of a node in the view that it knows. (A part: it takes the first view only.)

use crate::agent::{Agent, AgentOutput, AgentSetup};
use crate::members::Members;
use crate::message::{Content, Envelope, Lifetime, Post, Role};
use crate::protocol_bug::ProtocolBugs;
use crate::rules::Rules;
use crate::time::Time;
use crate::view::{NodeName, Record, ViewId};
use crate::view_message::ViewMessage;
use std::collections::BTreeSet;

/// The setup.
#[derive(Clone, Debug)]
pub struct NodeAgentSetup {
    /// This node.
    pub node: NodeName,
    /// Whom to ask.
    pub seeds: Vec<NodeName>,
    /// The constants.
    pub rules: Rules,
    /// None.
    pub bugs: ProtocolBugs,
    /// Random.
    pub lifetime: Lifetime,
}

/// An action that it requests.
#[derive(Clone, Debug)]
pub enum NodeAgentOutput {
    /// Send.
    Post(Post),
    /// Of the agent.
    Agent(AgentOutput),
    /// The node has a view of another cluster.
    OtherCluster {
        /// The node.
        node: NodeName,
        /// Its cluster.
        cluster: u64,
    },
    /// It has taken this view.
    Adopted(Record),
}

/// The agent of a node.
#[derive(Clone, Debug)]
pub struct NodeAgent {
    setup: NodeAgentSetup,
    agent: Agent,
    record: Option<Record>,
    connected: BTreeSet<NodeName>,
    ask_at: Time,
    out: Vec<NodeAgentOutput>,
}

impl NodeAgent {
    /// New.
    pub fn new(setup: NodeAgentSetup, now: Time) -> Self {
        let agent = Agent::new(
            AgentSetup {
                members: Members::new(setup.seeds.len()).expect("seeds"),
                rules: setup.rules,
                bugs: setup.bugs,
                lifetime: setup.lifetime,
            },
            now,
        );
        NodeAgent { setup, agent, record: None, connected: BTreeSet::new(), ask_at: now, out: Vec::new() }
    }

    /// The agent.
    pub fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// The nodes of the list.
    pub fn names(&self) -> Vec<NodeName> {
        match &self.record {
            Some(record) => record.members.iter().map(|peer| peer.node.clone()).collect(),
            None => self.setup.seeds.clone(),
        }
    }

    /// The view.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    fn view(&self) -> ViewId {
        self.record.as_ref().map_or(ViewId::NONE, |record| record.id)
    }

    /// A message.
    pub fn receive(&mut self, now: Time, from: &NodeName, envelope: Envelope) {
        match envelope.content {
            Content::View(ViewMessage::Record(record)) if self.record.is_none() => {
                self.drain();
                if self.names() != record.members.iter().map(|peer| peer.node.clone()).collect::<Vec<_>>() {
                    let lifetime = Lifetime(self.setup.lifetime.0 ^ 1);
                    let members = record.list();
                    let AgentSetup { rules, bugs, .. } = AgentSetup { members, rules: self.setup.rules, bugs: self.setup.bugs, lifetime };
                    self.agent = Agent::new(AgentSetup { members, rules, bugs, lifetime }, now);
                }
                self.record = Some(record.clone());
                for node in self.connected.clone() {
                    if let Some(place) = record.place(&node) {
                        self.agent.up(now, place);
                    }
                }
                self.out.push(NodeAgentOutput::Adopted(record));
            }
            Content::View(_) => {}
            Content::Frame(frame) if envelope.view == self.view() => {
                if let Some(place) = self.record.as_ref().and_then(|record| record.place(from)) {
                    self.agent.receive(now, place, frame);
                }
            }
            Content::Frame(_) => {}
        }
    }

    fn place(&self, node: &NodeName) -> Option<crate::members::Member> {
        let names = self.names();
        crate::members::Member::at(names.iter().position(|name| name == node)?)
    }

    /// Connected.
    pub fn up(&mut self, now: Time, node: &NodeName) {
        self.connected.insert(node.clone());
        if let Some(place) = self.place(node) {
            self.agent.up(now, place);
        }
    }

    /// Disconnected.
    pub fn down(&mut self, now: Time, node: &NodeName) {
        self.connected.remove(node);
        if let Some(place) = self.place(node) {
            self.agent.down(now, place);
        }
    }

    /// Time.
    pub fn tick(&mut self, now: Time) {
        self.agent.tick(now);
        if self.record.is_none() && self.ask_at <= now {
            self.ask_at = now + self.setup.rules.attempt;
            for node in self.connected.clone() {
                let content = Content::View(ViewMessage::Ask(Role::Agent));
                let envelope = Envelope { view: ViewId::NONE, content };
                self.out.push(NodeAgentOutput::Post(Post { to: node, role: Role::Voter, envelope }));
            }
        }
    }

    /// Flush.
    pub fn flush(&mut self, now: Time) {
        self.agent.flush(now);
    }

    /// Deadline.
    pub fn deadline(&self) -> Option<Time> {
        let ask = self.record.is_none().then_some(self.ask_at);
        self.agent.deadline().into_iter().chain(ask).min()
    }

    fn drain(&mut self) {
        let names = self.names();
        for output in self.agent.outputs() {
            match output {
                AgentOutput::Send(send) => {
                    if let (Some(record), Some(member)) = (&self.record, send.to.member()) {
                        let envelope = Envelope { view: record.id, content: Content::Frame(send.frame) };
                        let to = names[member.place()].clone();
                        self.out.push(NodeAgentOutput::Post(Post { to, role: Role::Voter, envelope }));
                    }
                }
                other => self.out.push(NodeAgentOutput::Agent(other)),
            }
        }
    }

    /// Outputs.
    pub fn outputs(&mut self) -> Vec<NodeAgentOutput> {
        self.drain();
        std::mem::take(&mut self.out)
    }
}
