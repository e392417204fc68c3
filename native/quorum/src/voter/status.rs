//! The state of a voter, as its answers and notices report it.

use super::{Stage, Voter, VoterOutput};
use crate::members::{Member, Members, Node};
use crate::message::{Frame, Generation, Lifetime, Notice, Send, VoterState, VoterStatus};

impl Voter {
    /// Whether it grants votes, as it tells the agents.
    #[must_use]
    pub fn state(&self) -> VoterState {
        match self.stage {
            Stage::Quarantine { .. } | Stage::Ready | Stage::Superseded { .. } => {
                VoterState::Quarantined
            }
            Stage::Voting if self.lacks_fences => VoterState::NoStore,
            Stage::Voting => VoterState::Voting,
        }
    }

    /// The member of this voter.
    #[must_use]
    pub fn member(&self) -> Member {
        self.setup.me
    }

    /// This lifetime of the voter.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        self.setup.lifetime
    }

    pub(super) fn status(&self) -> VoterStatus {
        VoterStatus {
            clock: self.clock,
            state: self.state(),
        }
    }

    pub(super) fn is_quarantined(&self) -> bool {
        matches!(self.stage, Stage::Quarantine { .. } | Stage::Ready)
    }

    /// `wants_batch` asks the agent to send a batch, whose answer it needs.
    pub(super) fn notice(&self, wants_batch: bool) -> Notice {
        Notice {
            status: self.status(),
            voter: self.setup.lifetime,
            generation: Generation(0),
            seq: 0,
            given: Vec::new(),
            recalls: Vec::new(),
            wants_batch,
        }
    }

    pub(super) fn send(&mut self, to: impl Into<Node>, frame: Frame) {
        let to = to.into();
        self.out.push(VoterOutput::Send(Send { to, frame }));
    }

    pub(super) fn members(&self) -> Members {
        self.setup.members
    }
}
