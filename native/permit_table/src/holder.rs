//! A process that can hold permits.
//!
//! # Identity
//!
//! A process is *alive* from its entry in the VM's process table to its last call. At most one process with a given
//! identity word is alive at a time. But words are reused. The VM removes a process from its table before it reports
//! the death (the *callback*, [`Table::release_all`](crate::Table::release_all)). A VM whose pids have few bits can
//! start a process with the same word in between. Until the callback runs, the two processes cannot be distinguished.
//! The new process *inherits*: it holds what the dead one held, and its calls use the same slot. The callback asks the
//! VM whether a process with the word is alive. If so, the slot stays with that process until its own death. If not,
//! the slot loses the word, and its permits are released. A process that starts with the word after that holds nothing.

use std::num::NonZeroU64;

/// This number and the greater one are states of a slot, not words (`slot.rs`).
pub(crate) const RESERVED: u64 = u64::MAX - 1;

/// A process that can hold permits: its identity word, and the place of its slot.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub(crate) id: NonZeroU64,
    pub(crate) place: u64,
}

impl Holder {
    /// `word` is the identity word of a process. `place` must always be the same for a word. For speed, places should
    /// be dense, and distinct for processes that are alive at the same time. Correctness does not depend on that.
    ///
    /// # Safety
    /// A holder's record is changed without a lock, and its pointers are followed without a check (H1, H2). So, in one
    /// table:
    /// - No process has one of the two greatest numbers as its word.
    /// - Calls that acquire, wait, release, give or cancel on behalf of processes with the same word do not overlap,
    ///   and each happens before the next. This holds for the calls of one process, and from one process to the next
    ///   with that word.
    /// - Between the entry of a process in the VM's process table and its first call there is a sequentially consistent
    ///   fence.
    /// - [`Table::release_all`](crate::Table::release_all) is called for a process that is no longer alive. The next
    ///   process with its word may be alive by then. `is_reused` reads the VM's process table during the call, and
    ///   returns false only if it finds no living process with the word.
    ///
    /// Calls that only read can run at any time. So can calls of `release_all`, also several at a time for one word.
    #[inline(always)]
    pub unsafe fn new(id: NonZeroU64, place: u64) -> Self {
        debug_assert!(id.get() < RESERVED);
        Self { id, place }
    }

    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        self.id.get()
    }
}
