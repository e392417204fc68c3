//! What goes into an agent and comes out of it, but for frames.

use crate::lease::Standing;
use crate::members::{Member, MemberSet, Members};
use crate::message::{Fence, Incarnation, Mode, Names, Send, Session, Token};
use crate::protocol_bug::Weaknesses;
use crate::rules::Rules;
use crate::time::Time;
use std::sync::Arc;

/// What an agent starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentSetup {
    /// The list.
    pub members: Members,
    /// The constants.
    pub rules: Rules,
    /// None, but in a model.
    pub bugs: Weaknesses,
    /// Of this life: random.
    pub incarnation: Incarnation,
    /// For the pauses between attempts: random.
    pub seed: u64,
}

/// The caller's number for something that it asked for. Each is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request(pub u64);

/// What an agent wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AgentOutput {
    /// Send it.
    Send(Send),
    /// The lock is held.
    Granted {
        /// Who asked.
        request: Request,
        /// The lock.
        token: Token,
        /// The attempt whose votes it has: the same number, unless it was passed on by another of this node.
        attempt: Token,
        /// Its fence: of a writer higher than that of any writer before; of a reader not lower.
        fence: Fence,
        /// To ask [`holds`](crate::lease::Lease::holds) about.
        standing: Arc<Standing>,
    },
    /// It was not to be had.
    Refused {
        /// Who asked.
        request: Request,
        /// Why.
        why: Refusal,
    },
    /// [`unlock`](super::Agent::unlock) is done.
    Unlocked {
        /// Who asked.
        request: Request,
        /// That a quorum has said so. Otherwise it did not in time, and the voters that could not be reached forget
        /// the lock by themselves.
        confirmed: bool,
    },
    /// [`try_unlock`](super::Agent::try_unlock) is taken.
    Accepted {
        /// Who asked.
        request: Request,
    },
    /// Less than [`Rules::at_risk`] is left of the lock's lease. Said once, until there is more again.
    AtRisk {
        /// The lock.
        token: Token,
    },
    /// The lock is not held any more, and was given up.
    Lost {
        /// The lock.
        token: Token,
        /// Why.
        why: Loss,
    },
}

/// Why a lock was not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Not in time.
    Timeout,
    /// Too few members are connected.
    NoQuorum,
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Too few votes are left that count.
    Quorum,
    /// Somebody wanted it to be given up ([`revoke`](super::Agent::revoke)).
    Revoked,
}

/// A lock that is held, as [`locks`](super::Agent::locks) tells it.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The lock.
    pub token: Token,
    /// The attempt whose votes it has: see [`AgentOutput::Granted`].
    pub attempt: Token,
    /// What it locks.
    pub names: &'a Names,
    /// How.
    pub mode: Mode,
    /// Its fence.
    pub fence: Fence,
    /// When it was granted.
    pub since: Time,
    /// Who has voted for it.
    pub votes: MemberSet,
}

/// A voter, as [`status`](super::Agent::status) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Which.
    pub member: Member,
    /// Whether its node is connected.
    pub connected: bool,
    /// Whether it answers.
    pub answers: bool,
    /// What this agent is to it.
    pub session: Option<Session>,
    /// Until when its votes count.
    pub valid: Time,
}
