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
    /// The seed of the random pauses between attempts.
    pub seed: u64,
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
    /// A [`try_unlock`](super::Agent::try_unlock) is accepted.
    Accepted {
        /// The request.
        request: Request,
    },
    /// Less than [`Rules::at_risk`] is left of the lock's lease. Reported once, until more is left again.
    AtRisk {
        /// The lock's token.
        token: Token,
    },
    /// Happened once more.
    Counted(Count),
    /// The lock is lost, and the agent has released its votes.
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
    /// A quorum was asked at once.
    Wide,
    /// The sequencer was asked first, because requests of other nodes conflicted with it.
    Ordered,
}

/// What an operator wants to know, and no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Count {
    /// An attempt has released its votes, and the next one asks the sequencer first: the sequencer has queued it.
    RestartedQueued,
    /// The same: an older request has recalled a vote.
    RestartedRecalled,
    /// The same: a voter has lost its vote, or cannot vote, or does not answer.
    RestartedVoter,
    /// A voter is asked last for some time, because it was slow or late.
    AskedLast,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The timeout of the request passed.
    Timeout,
    /// Too few voters of a name are connected.
    NoQuorum,
    /// Too few voters vote, because members have different lists of members.
    Conflicted,
    /// This node is a client, and has as many locks or requests as a voter allows, or there are too many clients.
    Limit,
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
    /// When the lease of its votes expires.
    pub valid: Time,
}
