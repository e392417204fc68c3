//! Inputs and outputs of an agent, except frames.

use crate::lease::Standing;
use crate::members::{Member, MemberSet, Members};
use crate::message::{Fence, Lifetime, Mode, Names, Send, Session, Token};
use crate::protocol_bug::ProtocolBugs;
use crate::rules::Rules;
use crate::time::Time;
use std::sync::Arc;

/// The setup of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentSetup {
    /// The member list.
    pub members: Members,
    /// The constants of the protocol.
    pub rules: Rules,
    /// Enabled protocol bugs: none outside models.
    pub bugs: ProtocolBugs,
    /// The agent's lifetime: a random number.
    pub lifetime: Lifetime,
}

/// A list of members that an agent adopts: see [`adopt`](super::Agent::adopt).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adoption {
    /// The list. From now on, members are places of it.
    pub members: Members,
    /// The connected members.
    pub connected: MemberSet,
    /// The constants of the protocol.
    pub rules: Rules,
    /// Whether the list is the one after the current one. If the agent has missed one, held locks cannot be kept.
    pub is_next: bool,
}

/// The caller's number of a request or an unlock. Each number is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request(pub u64);

/// An action that an agent requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AgentOutput {
    /// Send this frame.
    Send(Send),
    /// A lock was granted.
    Granted {
        /// The request.
        request: Request,
        /// The lock's token.
        token: Token,
        /// The attempt that collected the votes. It equals `token` unless the lock was passed on within this node.
        attempt: Token,
        /// How the votes were collected.
        path: Path,
        /// The fence. A writer's fence is higher than that of any earlier writer; a reader's fence is not lower.
        fence: Fence,
        /// The argument of [`holds`](crate::lease::Lease::holds).
        standing: Arc<Standing>,
    },
    /// A request was refused.
    Refused {
        /// The request.
        request: Request,
        /// The reason.
        why: Refusal,
    },
    /// An [`unlock`](super::Agent::unlock) is complete.
    Unlocked {
        /// The request.
        request: Request,
        /// Whether a quorum has confirmed it. Otherwise it did not confirm in time, and the lease of the remaining
        /// votes expires.
        confirmed: bool,
    },
    /// A [`unlock_async`](super::Agent::unlock_async) is accepted.
    Accepted {
        /// The request.
        request: Request,
    },
    /// Less than [`Rules::at_risk`] is left of the lock's lease. Reported once, until more is left again.
    AtRisk {
        /// The lock's token.
        token: Token,
    },
    /// A request gave its votes back, because an older one of another node waits for one of them.
    GaveBack,
    /// The lock is lost, and the agent has unlocked it.
    Lost {
        /// The lock's token.
        token: Token,
        /// The reason.
        why: Loss,
    },
}

/// How a lock was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Another process of this node has passed it on, without a message.
    Passed,
    /// The voters were asked.
    Asked,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The timeout of the request passed. Of a *try*: too few voters vote for it now.
    Timeout,
    /// Too few voters are connected.
    NoQuorum,
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Fewer than a quorum of votes are valid.
    Quorum,
    /// The lock was revoked ([`revoke`](super::Agent::revoke)).
    Revoked,
}

/// A held lock, as reported by [`locks`](super::Agent::locks).
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The lock's token.
    pub token: Token,
    /// The attempt that collected the votes: see [`AgentOutput::Granted`].
    pub attempt: Token,
    /// The locked names.
    pub names: &'a Names,
    /// The mode.
    pub mode: Mode,
    /// The fence.
    pub fence: Fence,
    /// When the lock was granted.
    pub since: Time,
    /// The voters that have a vote for it.
    pub votes: MemberSet,
}

/// The state of a voter, as reported by [`status`](super::Agent::status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The voter's member.
    pub member: Member,
    /// Whether the voter's node is connected.
    pub connected: bool,
    /// Whether the voter answered its last batch in time.
    pub answers: bool,
    /// The agent's session at the voter.
    pub session: Option<Session>,
    /// Whether the agent has settled in this session: it counts no vote of an earlier one.
    pub settled: bool,
    /// When the lease of its votes expires.
    pub valid: Time,
}
