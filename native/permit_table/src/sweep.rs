//! The sweep: reclaims idle keys in bounded steps (P8).
//!
//! A pass has these phases. Each step first frees what no thread can see any more.
//!
//! ```text
//!   Walk      walk the list from where the last step stopped. A key at 0 without an acquire since the last pass
//!             dies, is marked, unlinked, and put on the list of retired memory
//!   Shrink    if there are twice as many heads as needed, halve them: close the chunks beyond, the highest first.
//!             Repeat until the number fits
//!   Drain     wait until everything unlinked has been freed
//! ```
//!
//! Only one sweep of a table runs at a time (K3): its state is behind a lock that only the sweep takes. Between two
//! steps no link is marked (K7).
//!
//! # A step that panics
//!
//! A panic is a bug. It unlocks the lock, and leaves at most one operation incomplete: a key that is dead and possibly
//! marked, but still linked; or a head that is `LEAVING`, in the same state. The phase has not advanced past that key
//! or head. So the next step visits it again, and completes the operation. Marking and unlinking it again is harmless,
//! whatever was inserted in front of it. Memory that the step had unlinked is in `unstamped`, and gets the next stamp.

use crate::epochs::{self, Pin};
use crate::inject;
use crate::keys::{
    cost_of_freeing, parent, Head, Key, Keys, Link, Node, CHUNK, LEAVING, LINKED, LINKING,
    MIN_BITS, UNITS_PER_CHUNK, UNLINKED,
};
use crate::memory::{free, reserve};
use std::collections::VecDeque;
use std::ptr::{self, NonNull};

/// The work that a step has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The caller can continue immediately.
    More,
    /// The rest must wait for a thread that is still inside. The caller should retry shortly.
    Waiting,
    /// No work is left.
    Done,
}

/// The step cannot continue: there is no memory for the list of retired memory, or a caller is linking a head. The
/// phase says where the next step continues.
struct Retry;

/// How far the pass has come.
#[derive(Clone, Copy)]
enum Phase {
    /// Past all keys up to and including this sort key.
    Walk(u64),
    /// The chunk of the next head to close, and its index there.
    Shrink(usize, usize),
    Drain,
}

/// Maximal number of keys and chunks that wait to be freed. At the limit, the sweep waits. So a growing list is copied
/// in microseconds.
const MAX_WAITING: usize = 16_384;

/// Unlinked memory that threads may still read.
enum Retired<K> {
    Node(NonNull<Node<K>>),
    Heads(NonNull<[Head]>),
}

impl<K> Drop for Retired<K> {
    /// It is dropped when no thread can see it any more.
    fn drop(&mut self) {
        // SAFETY: unlinked, and no thread that was inside then is still inside (K5).
        unsafe {
            match *self {
                Retired::Node(node) => free(node),
                Retired::Heads(heads) => free(heads),
            }
        }
    }
}

impl<K: Key> Retired<K> {
    /// The units of a budget that freeing it costs.
    fn cost(&self) -> usize {
        match self {
            // SAFETY: alive until it is dropped.
            Retired::Node(node) => cost_of_freeing(unsafe { &node.as_ref().key }),
            Retired::Heads(_) => UNITS_PER_CHUNK,
        }
    }
}

pub(crate) struct Sweep<K> {
    phase: Phase,
    /// Oldest stamp first.
    waiting: VecDeque<(u64, Retired<K>)>,
    /// Unlinked in this step, not stamped yet.
    unstamped: Vec<Retired<K>>,
    /// Units that this step may spend, and those that it has spent.
    budget: usize,
    spent: usize,
}

// SAFETY: the pointers are to keys and heads that only the sweep still refers to.
unsafe impl<K: Send> Send for Sweep<K> {}

impl<K: Key> Sweep<K> {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Walk(0),
            waiting: VecDeque::new(),
            unstamped: Vec::new(),
            budget: 0,
            spent: 0,
        }
    }

    /// One step: frees what earlier steps have unlinked, and visits keys or heads for the rest of the budget. `Done`
    /// ends a pass; the next step starts a new one. Returns the units spent, too.
    pub(crate) fn step(&mut self, keys: &Keys<K>, budget: usize) -> (Progress, usize) {
        inject::panic();
        (self.budget, self.spent) = (budget.max(1), 0);
        let is_quiet = self.free_quiet();
        let pin = epochs::pin();
        let walked = match self.phase {
            _ if self.is_spent() => Ok(()),
            Phase::Walk(after) => self.walk(&pin, keys, after),
            Phase::Shrink(chunk, index) => self.shrink(&pin, keys, chunk, index),
            Phase::Drain => Ok(()),
        };
        drop(pin);
        if !self.unstamped.is_empty() {
            let stamp = epochs::stamp();
            self.waiting
                .extend(self.unstamped.drain(..).map(|retired| (stamp, retired)));
        }
        let progress = match (walked, self.phase) {
            (Err(Retry), _) => Progress::Waiting,
            (Ok(()), Phase::Drain) if self.waiting.is_empty() => {
                self.phase = Phase::Walk(0);
                // It is empty, so this only frees.
                self.waiting.shrink_to_fit();
                Progress::Done
            }
            (Ok(()), Phase::Drain) if !is_quiet => Progress::Waiting,
            (Ok(()), _) => Progress::More,
        };
        (progress, self.spent)
    }

    fn is_spent(&self) -> bool {
        self.spent >= self.budget
    }

    fn walk(&mut self, pin: &Pin, keys: &Keys<K>, after: u64) -> Result<(), Retry> {
        // `done` is the last sort key whose keys were all visited, `last` the one being visited. One step visits all
        // keys of a sort key.
        let mut done = after;
        let mut last = after;
        let mut outcome = Ok(());
        let mut finished = true;
        keys.walk(pin, after, |node, reached| {
            if reached > last {
                done = last;
                if self.is_spent() {
                    finished = false;
                    return false;
                }
                last = reached;
            }
            self.spent += 1;
            outcome = self.reclaim(pin, keys, node);
            outcome.is_ok()
        });
        self.phase = if outcome.is_err() || !finished {
            // A key that is visited twice in a pass would lose its second chance.
            Phase::Walk(done)
        } else {
            Self::halve_heads(keys);
            Phase::Shrink(keys.heads.chunk_count(), CHUNK)
        };
        outcome
    }

    /// Kills and unlinks the key, if it is idle.
    fn reclaim(&mut self, pin: &Pin, keys: &Keys<K>, node: NonNull<Node<K>>) -> Result<(), Retry> {
        // Reserve first: a node that is unlinked but not listed would never be freed.
        self.reserve()?;
        // SAFETY: found in the list, under the pin.
        let alive = unsafe { node.as_ref() };
        if alive.count.sweep() {
            inject::panic();
            Self::unlink(pin, keys, node.as_ptr().cast::<Link>());
            keys.count_reclaimed();
            self.unstamped.push(Retired::Node(node));
        } else {
            // Since the table grew, no insertion may have linked the head of this range. Without it, lookups of this
            // key start at an ancestor.
            keys.link_head(pin, alive.sort_key());
        }
        Ok(())
    }

    /// Marks a link and removes it from the list.
    fn unlink(pin: &Pin, keys: &Keys<K>, target: *mut Link) {
        // SAFETY: in the list, and only the sweep removes links (K3).
        let link = unsafe { &*target };
        // Before the mark, its position is found by its sort key. After the mark, other threads can insert greater sort
        // keys in front of it.
        let mut before = loop {
            // A head cannot lead to itself, but its parent can. A head of smaller sort key leads to a key.
            let head = keys.entry(parent(link.sort_key));
            if let Some(gap) = keys.gap(pin, &head.link, link.sort_key) {
                break gap.before;
            }
        };
        let rest = link.mark();
        inject::panic();
        loop {
            // From here on it is found by its address. In front of it are only unmarked links (K7), or others of the
            // same sort key. Each of these can be the link before it.
            let (mut next, _) = before.next();
            while !ptr::eq(next, target) {
                // SAFETY: linked in front of the target, which is linked.
                before = unsafe { &*next };
                (next, _) = before.next();
            }
            if before.redirect(target, rest) {
                return;
            }
        }
    }

    /// Halves the number of heads if there are twice as many as needed. Returns whether it has. (They double when there
    /// are more keys than heads, so small changes of the number of keys have no effect.) It halves once, instead of
    /// removing all unneeded heads: each step doubles the number of heads between two entry points of the list, and all
    /// searches walk past them.
    fn halve_heads(keys: &Keys<K>) -> bool {
        let bits = keys.bits();
        if bits > MIN_BITS && 2 * keys.len() <= 1 << (bits - 1) {
            keys.resize(bits, bits - 1);
        }
        keys.bits() < bits
    }

    /// Closes the unneeded heads, the highest chunk first, so that each is next to its parent.
    fn shrink(
        &mut self,
        pin: &Pin,
        keys: &Keys<K>,
        mut chunk: usize,
        mut index: usize,
    ) -> Result<(), Retry> {
        while !self.is_spent() {
            self.spent += 1;
            self.phase = Phase::Shrink(chunk, index);
            if index == CHUNK {
                self.reserve()?;
                // The highest chunk that exists and is not needed.
                let mut below = ((1 << keys.bits()) / CHUNK..chunk).rev();
                match below.find(|&chunk| keys.heads.chunk(chunk).is_some()) {
                    Some(next) => (chunk, index) = (next, 0),
                    None if Self::halve_heads(keys) => chunk = keys.heads.chunk_count(),
                    None => {
                        self.phase = Phase::Drain;
                        return Ok(());
                    }
                }
                continue;
            }
            let heads = keys.heads.chunk(chunk);
            let heads = heads.expect("only the sweep takes chunks");
            Self::close(pin, keys, &heads[index])?;
            index += 1;
            if index == CHUNK {
                let heads = keys.heads.take(chunk);
                let heads = heads.expect("only the sweep takes chunks");
                self.unstamped.push(Retired::Heads(heads));
            }
        }
        self.phase = Phase::Shrink(chunk, index);
        Ok(())
    }

    /// Removes a head from the list for good. Fails if a caller is linking it.
    fn close(pin: &Pin, keys: &Keys<K>, head: &Head) -> Result<(), Retry> {
        loop {
            match head.state() {
                LINKING => return Err(Retry),
                // It is not visited again: nothing can panic before the next head.
                UNLINKED if head.change(UNLINKED, LEAVING) => return Ok(()),
                UNLINKED => {}
                state => {
                    // First block new searches from entering by it. Searches that already have entered find what was
                    // there at that time. It can be LEAVING because a step panicked.
                    if state == LINKED {
                        head.change(LINKED, LEAVING);
                    }
                    Self::unlink(pin, keys, ptr::from_ref(&head.link).cast_mut());
                    return Ok(());
                }
            }
        }
    }

    /// Reserves memory for one more entry on both lists. Without it, nothing is unlinked.
    fn reserve(&mut self) -> Result<(), Retry> {
        if self.waiting.len() + self.unstamped.len() >= MAX_WAITING {
            return Err(Retry);
        }
        reserve(&mut self.unstamped, 1).map_err(|_| Retry)?;
        inject::out_of_memory().map_err(|_| Retry)?;
        self.waiting
            .try_reserve(self.unstamped.len() + 1)
            .map_err(|_| Retry)
    }

    /// Frees what no thread can see any more. Returns whether nothing else waits, as far as the budget allowed to
    /// check.
    fn free_quiet(&mut self) -> bool {
        if self.waiting.is_empty() {
            return true;
        }
        let quiet = epochs::quiet_before();
        loop {
            match self.waiting.front() {
                None => return true,
                Some((stamp, _)) if *stamp < quiet => {}
                Some(_) => return false,
            }
            // Nothing that was unlinked before that stamp is still in use (K5).
            let freed = self.waiting.pop_front();
            self.spent += freed.map_or(0, |(_, retired)| retired.cost());
            if self.is_spent() {
                return true;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
