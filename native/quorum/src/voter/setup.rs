//! Inputs and outputs of a voter, except frames.

use crate::members::{Member, Members};
use crate::message::{Fence, Lifetime, Send};
use crate::protocol_bug::ProtocolBugs;
use crate::rules::Rules;
use std::time::Duration;

/// The setup of a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VoterSetup {
    /// The member list.
    pub members: Members,
    /// The voter's own member.
    pub me: Member,
    /// The constants of the protocol.
    pub rules: Rules,
    /// Enabled protocol bugs: none outside models.
    pub bugs: ProtocolBugs,
    /// The voter's lifetime: its life, which was stored, and random bits.
    pub lifetime: Lifetime,
    /// How long the voter grants no new lock, unless all agents have settled: at least as long as any vote of an
    /// earlier life was promised, which may be longer than [`Rules::voter_lease`] if the rules have changed.
    pub quarantine: Duration,
    /// No higher fence was given or recorded in an earlier lifetime: the mark that was stored last.
    pub mark: Fence,
    /// Whether marks are stored. If so, the voter gives no fence until a mark that covers it is stored
    /// ([`VoterOutput::Store`], [`stored`](super::Voter::stored)).
    pub durable: bool,
    /// Whether clients may have votes of earlier lives: the file says so, or there is none, and clients are allowed.
    /// Then the quarantine does not end early.
    pub guests: bool,
    /// Whether it begins in a new view: it waits for [`Voter::learned`](super::Voter::learned) instead of a time.
    pub begins: bool,
}

/// An action that a voter requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VoterOutput {
    /// Send this frame.
    Send(Send),
    /// Store this mark in place of the earlier one so that it survives a crash, then call
    /// [`stored`](super::Voter::stored).
    Store(Fence),
    /// Store whether clients may have votes so that it survives a crash. When it is stored that they may, call
    /// [`guests_stored`](super::Voter::guests_stored).
    StoreGuests(bool),
    /// It could vote in its view from now on: store that, then call [`begin_voting`](super::Voter::begin_voting).
    Ready,
    /// Another member knows this lifetime of this voter, whose life is not lower than that of the setup. So the stored
    /// life and mark were not the last ones. The voter has stopped, and its member is lost: a lower mark than the last
    /// one would give fences twice.
    Superseded {
        /// What the other member knows.
        seen: Lifetime,
    },
}
