//! All that there is at one moment.
//!
//! The moment is always 0. When time passes, all times are told relative to the new moment, so that two states that
//! differ only by when they are reached are one state.

use crate::model::kept::Kept;
use crate::model::setting::Budget;
use quorum::agent::Agent;
use quorum::members::{Member, MemberSet};
use quorum::message::{Fence, Frame, Lifetime, Token};
use quorum::time::Time;
use quorum::voter::Voter;

/// Now.
pub const NOW: Time = Time(0);

/// A state of the search.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Those that are there, in the order of the members.
    pub agents: Vec<AgentSeat>,
    /// One for each member.
    pub voters: Vec<VoterSeat>,
    /// One for each script.
    pub clients: Vec<Client>,
    /// Frames in flight: sorted, or in the order in which they were sent, as the setting has it.
    pub flights: Vec<Kept<Flight>>,
    /// The highest fence that a writer of each name was ever told.
    pub fences: Vec<Fence>,
    /// What may still happen.
    pub left: Budget,
    /// The first promise that an action has been seen to break, where the states before and after do not tell.
    pub broken: Option<Broken>,
    /// The number of actions before this state, in random walks; 0 in searches. A walk ends where it has been before,
    /// and it should not.
    pub steps: u32,
}

/// A place for an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentSeat {
    /// Of this member.
    pub member: Member,
    /// How many agents were here before.
    pub life: u8,
    /// The agent.
    pub machine: Kept<Agent>,
    /// Which members it believes to be connected.
    pub connected: MemberSet,
    /// Whether it is not scheduled when its time comes.
    pub late: bool,
}

/// A place for a voter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VoterSeat {
    /// How many voters were here before.
    pub life: u8,
    /// The voter; none, if it has not been started.
    pub machine: Option<Kept<Voter>>,
    /// The mark that survives.
    pub stored: Option<Fence>,
    /// What its wall clock showed when it started.
    pub origin: Fence,
    /// What is being written.
    pub storing: Option<Fence>,
    /// Whether it is not scheduled when its time comes.
    pub late: bool,
}

/// A client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its next step.
    pub next: usize,
    /// What it is doing.
    pub phase: Phase,
    /// The locks that it gave back or lost. They must never again be found held.
    pub past: Vec<Token>,
}

/// What a client is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing.
    #[default]
    Idle,
    /// It waits for the lock of this step.
    Asked {
        /// Of its script.
        step: usize,
    },
    /// It holds the lock of this step.
    Holds {
        /// Of its script.
        step: usize,
        /// The lock.
        token: Token,
    },
    /// It waits until this lock is given back.
    Returns {
        /// Of its script: the step that gave it back.
        step: usize,
        /// The lock.
        token: Token,
    },
}

/// A frame in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flight {
    /// The member that sent it.
    pub from: Member,
    /// The member it is for.
    pub to: Member,
    /// The frame.
    pub frame: Frame,
    /// Whether time has passed since it was sent.
    pub late: bool,
}

/// A promise that an action has broken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broken {
    /// Its label.
    pub promise: &'static str,
    /// What was seen.
    pub how: String,
}

/// The number that an agent's life is known by: the member and the life can be read from it.
#[must_use]
pub fn agent_lifetime(member: Member, life: u8) -> Lifetime {
    Lifetime(1000 + 10 * member.place() as u64 + u64::from(life))
}

/// The number that a voter's life is known by.
#[must_use]
pub fn voter_lifetime(member: Member, life: u8) -> Lifetime {
    Lifetime(2000 + 10 * member.place() as u64 + u64::from(life))
}

impl AgentSeat {
    /// Of the agent that sits here now.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        agent_lifetime(self.member, self.life)
    }
}

impl State {
    /// The place of the agent of `member`, if there is one.
    #[must_use]
    pub fn seat_of(&self, member: Member) -> Option<usize> {
        self.agents.iter().position(|seat| seat.member == member)
    }
}
