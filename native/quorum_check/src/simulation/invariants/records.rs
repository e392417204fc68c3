//! What the checker remembers of a history: requests, locks, and batches.

use crate::simulation::clock::Real;
use quorum::lease::Standing;
use quorum::members::MemberSet;
use quorum::message::{Batch, Fence, Mode, Name, Session, Token};
use quorum::time::Time;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// What a client requests. Names are the bits of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    Lock {
        names: u32,
        mode: Mode,
    },
    /// Answered when a quorum has forgotten the votes.
    Unlock {
        token: Token,
    },
    /// Answered at once.
    UnlockAsync {
        token: Token,
    },
}

#[derive(Clone, Debug)]
pub struct Asked {
    pub node: usize,
    pub client: usize,
    pub lifetime: u64,
    pub question: Question,
    pub real: Real,
    /// The time by the agent's clock.
    pub now: Time,
    pub timeout: Duration,
    pub answered: bool,
    /// Whether no client waits for the answer anymore.
    pub canceled: bool,
    /// Whether another client requests, holds or recently held one of the names, or there is no quorum yet.
    pub contended: bool,
}

/// The owner of a lock: node, lifetime of its agent, and token.
pub(super) type Id = (usize, u64, Token);

/// A lock that is held, according to the answers.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub(super) id: Id,
    pub(super) attempt: Token,
    pub(super) names: u32,
    pub(super) mode: Mode,
    pub(super) fence: Fence,
    pub(super) standing: Arc<Standing>,
    pub(super) granted: Real,
    pub(super) revoked: Option<Real>,
}

/// A lock that was unlocked or lost.
#[derive(Clone, Debug)]
pub(super) struct PastLock {
    pub(super) lock: Lock,
    pub(super) at: Real,
    pub(super) lost: bool,
}

/// The last batch from an agent to a voter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) seq: u64,
    pub(super) at: Time,
    pub(super) lifetime: u64,
    pub(super) session: Option<Session>,
    pub(super) answered: bool,
}

#[derive(Debug)]
pub(super) struct Received {
    pub(super) from: usize,
    pub(super) voter: usize,
    pub(super) batch: Batch,
    pub(super) was_quarantined: bool,
    pub(super) answered: bool,
}

/// A question to all voters which names have votes, and the answers so far.
#[derive(Debug)]
pub struct LiveQuestion {
    /// The locks that were held when it began, and their names.
    pub held: Vec<(Id, u32)>,
    pub answered: MemberSet,
    pub names: BTreeSet<Name>,
}
