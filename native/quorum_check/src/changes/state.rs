//! A state: all machines, files and clients at one moment, and what is in flight.

use super::setting::Setting;
use crate::shared::Shared;
use quorum::envelope::Envelope;
use quorum::message::{Fence, Token};
use quorum::node_agent::NodeAgent;
use quorum::node_voter::{self, NodeVoter};
use quorum::time::Time;
use quorum::view::{Record, Role};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub now: Time,
    pub nodes: Vec<Node>,
    /// What happens next, the first one first.
    pub flights: Vec<Shared<Flight>>,
    pub clients: Vec<Client>,
    /// The fence of the last grant.
    pub fence: Fence,
    /// The records of all views that any node has taken.
    pub records: Vec<Shared<Record>>,
    /// How many faults may still happen. `None` before they may.
    pub left: Option<u8>,
    pub violation: Option<Violation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub is_alive: bool,
    /// How many voters and agents it has started.
    pub voters: u8,
    pub agents: u8,
    pub voter: Shared<NodeVoter>,
    pub agent: Shared<NodeAgent>,
    pub file: Option<Shared<node_voter::State>>,
}

/// What is in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Flight {
    Message {
        from: usize,
        to: usize,
        role: Role,
        envelope: Envelope,
    },
    /// A write of the voter that this node has started last.
    Write {
        node: usize,
        number: u64,
        content: Shared<node_voter::State>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// The index of its next step, or of the one that it waits for.
    pub next: usize,
    pub waits: bool,
    /// The number of its last request.
    pub request: u64,
    pub held: Option<Token>,
    /// When it goes on.
    pub from: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Violation {
    pub property: &'static str,
    pub text: String,
}

impl State {
    /// Whether the agents of two clients find the lock held.
    pub fn has_two_holders(&self, setting: &Setting) -> bool {
        let clients = self.clients.iter().zip(&setting.scripts);
        let holders = clients.filter(|(client, (node, _))| {
            let agent = self.nodes[*node].agent.as_agent();
            client.held.is_some_and(|token| agent.held(token, self.now))
        });
        holders.count() > 1
    }

    /// Whether a client has done all its steps, or is dead.
    pub fn is_done(&self, setting: &Setting, client: usize) -> bool {
        let (node, steps) = &setting.scripts[client];
        self.clients[client].next == steps.len() || !self.nodes[*node].is_alive
    }

    pub fn are_all_done(&self, setting: &Setting) -> bool {
        (0..self.clients.len()).all(|client| self.is_done(setting, client))
    }
}
