//! The mark in the state file: no fence above it was given or recorded before it was stored.

use crate::bounds::MAX_FENCE;
use crate::message::Fence;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mark {
    stored: Fence,
    /// The mark that is being stored.
    storing: Fence,
}

impl Mark {
    pub(super) fn new(stored: Fence) -> Mark {
        Mark {
            stored,
            storing: stored,
        }
    }

    /// For a voter without a file: it covers all fences.
    pub(super) fn none() -> Mark {
        Mark::new(Fence(u64::MAX))
    }

    pub(super) fn covers(&self, fence: Fence) -> bool {
        fence <= self.stored
    }

    /// The mark to store, if less than half a block is left above `fence`.
    pub(super) fn next(&mut self, fence: Fence, block: u64) -> Option<Fence> {
        let above = |more: u64| Fence(fence.0.saturating_add(more).min(MAX_FENCE));
        let is_low = above(block.div_ceil(2)) > self.storing;
        self.storing = if is_low { above(block) } else { self.storing };
        is_low.then_some(self.storing)
    }

    pub(super) fn stored(&mut self, mark: Fence) {
        self.stored = self.stored.max(mark);
        self.storing = self.storing.max(mark);
    }
}
