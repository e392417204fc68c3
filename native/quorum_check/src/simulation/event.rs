//! Events: what happens to a node at a moment.

use crate::simulation::clock::Real;
use quorum::message::{Fence, Frame};
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Agent,
    Voter,
}

impl Role {
    pub fn of_receiver(frame: &Frame) -> Role {
        match frame {
            Frame::Batch(_) | Frame::Floor(_) => Role::Voter,
            Frame::Ack(_) | Frame::Notice(_) => Role::Agent,
        }
    }
}

/// An event for a node carries the version or lifetime that it was scheduled for. If that has changed, it is ignored.
#[derive(Clone, Debug)]
pub enum Event {
    Frame {
        from: usize,
        to: usize,
        role: Role,
        bytes: Rc<[u8]>,
    },
    /// The deadline of a machine.
    Timer {
        node: usize,
        role: Role,
        version: u64,
    },
    /// The agent's mailbox is empty: it flushes.
    Flush {
        node: usize,
        lifetime: u64,
    },
    Stored {
        node: usize,
        lifetime: u64,
        fence: Fence,
    },
    /// What the voter stores next of guests is on its disk.
    GuestsStored {
        node: usize,
        lifetime: u64,
    },
    Client {
        node: usize,
        client: usize,
        version: u64,
    },
    Connection {
        node: usize,
        about: usize,
        up: bool,
    },
    /// The voter is informed that the node of an agent is disconnected.
    Closed {
        voter: usize,
        node: usize,
    },
    Fault,
    /// These links are cut for this long.
    Cut(Vec<(usize, usize)>, Real),
    Recovery(Recovery),
    /// All faults end, and clients send no new requests.
    Heal,
    /// All voters must vote, unless one of them has started since this was scheduled.
    Voting,
    /// All tables must be empty, unless probes are running.
    Empty,
    /// All tables must be empty, and each node locks once more.
    Probe,
    End,
}

impl Event {
    pub fn machine(&self) -> Option<(usize, Role)> {
        match self {
            Event::Frame { to, role, .. } => Some((*to, *role)),
            Event::Timer { node, role, .. } => Some((*node, *role)),
            Event::Stored { node, .. } | Event::GuestsStored { node, .. } => {
                Some((*node, Role::Voter))
            }
            Event::Closed { voter, .. } => Some((*voter, Role::Voter)),
            Event::Flush { node, .. }
            | Event::Client { node, .. }
            | Event::Connection { node, .. } => Some((*node, Role::Agent)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Recovery {
    Start(usize, Role),
    Resume(usize, Role),
    /// These links are no longer cut.
    Links(Vec<(usize, usize)>),
    /// This link is as good as the others.
    Link(usize, usize),
    /// This node's clocks run at a normal rate.
    Clock(usize),
}
