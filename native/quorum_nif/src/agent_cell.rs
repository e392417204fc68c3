//! The state that the agent's process and the holders of its locks share.

use crate::machine::{Current, Running};
use quorum::agent::Agent;
use quorum::lease::Lease;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The agent, with the state that other processes read.
pub(crate) struct AgentCell {
    pub(crate) running: Mutex<Running<Agent>>,
    pub(crate) lease: Arc<Lease>,
    /// Unlocks that are not applied by the agent yet.
    pub(crate) unlocking: AtomicU64,
    /// Applied unlocks that waited for a quorum after the last step.
    pub(crate) pending: AtomicU64,
    pub(crate) most_unlocking: u64,
}

pub(crate) static CURRENT: Current<AgentCell> = Current::none();

impl AgentCell {
    pub(crate) fn is_current(&self) -> bool {
        CURRENT
            .lock()
            .as_deref()
            .is_some_and(|current| ptr::eq(current, self))
    }

    /// Whether one more lock may be released without waiting.
    pub(crate) fn can_enqueue(&self) -> bool {
        let unlocking = self.unlocking.load(Ordering::Relaxed);
        unlocking + self.pending.load(Ordering::Relaxed) < self.most_unlocking
    }

    /// Counts one more unlock that the agent has not applied yet.
    pub(crate) fn enqueue(&self) {
        self.unlocking.fetch_add(1, Ordering::Relaxed);
    }
}
