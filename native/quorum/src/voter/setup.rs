//! Inputs and outputs of a voter, except frames.

use crate::members::Members;
use crate::message::{Fence, Lifetime, Send};
use crate::protocol_bug::ProtocolBugs;
use crate::rules::Rules;

/// The setup of a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VoterSetup {
    /// The member list.
    pub members: Members,
    /// The constants of the protocol.
    pub rules: Rules,
    /// Enabled protocol bugs: none outside models.
    pub bugs: ProtocolBugs,
    /// The voter's lifetime: a random number.
    pub lifetime: Lifetime,
    /// The known fences of earlier lifetimes.
    pub fences: Fences,
}

/// What is known about the fences of earlier lifetimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fences {
    /// The mark that was stored last: no higher fence was given. `None` if it is lost or there was no earlier
    /// lifetime. The voter then asks the other voters before it votes.
    pub floor: Option<Fence>,
    /// An upper bound of all fences of earlier lifetimes if wall clocks are right: the wall-clock time of the start,
    /// in microseconds. (Fences grow by one run per attempt to lock, and by less than a million per second.) It only
    /// counts if too many voters have lost their fences for the others to know them all: see `voter/learning.rs`.
    /// A value above [`MAX_FENCE`](crate::frame::MAX_FENCE) is lowered to it.
    pub origin: Fence,
    /// Whether fences are stored. If so, the voter gives no fence until a mark that covers it is stored
    /// ([`VoterOutput::Store`], [`stored`](super::Voter::stored)).
    pub durable: bool,
}

/// An action that a voter requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VoterOutput {
    /// Send this frame.
    Send(Send),
    /// Store this mark in place of the earlier one so that it survives a crash, then call
    /// [`stored`](super::Voter::stored).
    Store(Fence),
}
