//! Reclaiming idle keys, a bounded step at a time (P8).
//!
//! One pass goes through these phases; every step of it begins by freeing what no thread can see any more.
//!
//! ```text
//!   Walk      along the list from where the last step stopped: a key at 0 that nobody has used since the pass
//!             before dies, is marked, unlinked, and put on the list of what waits
//!   Shrink    if there are twice as many heads as would do, halve them: close the chunks beyond, the highest first;
//!             and again, until they are few enough
//!   Drain     wait until everything unlinked has been freed
//! ```
//!
//! Only one sweep of a table runs at a time (K3): its state is behind a lock that nobody but the sweep takes. Between
//! two steps no link is marked (**S1**), so each step starts from a clean list wherever the others have taken it.
//!
//! # A step that panics
//!
//! That is a bug of ours. It leaves the lock free, and one thing half done at most: a key that is dead and maybe
//! marked, but still linked; or a head that is `LEAVING`, and the same. The phase is moved on behind what has been
//! done, so the next step comes by the same thing, and finishes it: to mark and to unlink it again does no harm,
//! whatever has been put in front of it meanwhile. What had been unlinked in the step waits in `fresh` for the next
//! stamp.

use crate::buckets::Idleness;
use crate::budget::Budget;
use crate::epochs::{self, Pin};
use crate::inject;
use crate::keys::{
    free_node, parent, Head, Key, Keys, Link, Node, CHUNK, CLOSED, LEAVING, LINKED, LINKING,
    MIN_BITS, UNITS_PER_CHUNK, UNLINKED,
};
use crate::memory::{reserve, Account};
use crate::sync::seeded;
use std::collections::VecDeque;
use std::ptr::{self, NonNull};

/// What a step of work leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to do right now.
    More,
    /// The rest has to wait for a thread that is still inside: come back in a moment.
    Waiting,
    /// Nothing is left.
    Done,
}

/// The step cannot go on now: there is no memory for the list of what waits, or somebody is just linking a head in.
/// The phase says where the next one takes it up.
struct ComeBack;

/// How far the pass has come.
#[derive(Clone, Copy)]
enum Phase {
    /// Up to and including this order.
    Walk(u64),
    /// The next head to close is this one of this chunk.
    Shrink {
        chunk: usize,
        index: usize,
    },
    Drain,
}

/// Keys and chunks that may wait to be freed. With more, the sweep waits until some have been freed, so that the list
/// of them is copied in microseconds when it grows.
const MAX_WAITING: usize = 16_384;

/// What is unlinked, but may still be seen.
enum Retired<K> {
    Node(NonNull<Node<K>>),
    Heads(NonNull<[Head]>),
}

/// The sweep's own state, kept from step to step.
pub(crate) struct Sweep<K> {
    phase: Phase,
    /// In the order of their stamps.
    waiting: VecDeque<(u64, Retired<K>)>,
    /// Unlinked in this step: not stamped yet.
    fresh: Vec<Retired<K>>,
}

// SAFETY: the pointers are to keys and heads that only the sweep still refers to.
unsafe impl<K: Send> Send for Sweep<K> {}

impl<K: Key> Sweep<K> {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Walk(0),
            waiting: VecDeque::new(),
            fresh: Vec::new(),
        }
    }

    /// One step: frees what earlier steps have unlinked, and looks at keys or heads for the rest of the budget. `Done`
    /// ends a pass; the next step begins another.
    pub(crate) fn step(
        &mut self,
        keys: &Keys<K>,
        account: &Account,
        budget: &mut Budget,
    ) -> Progress {
        inject::panic();
        let is_quiet = self.free_quiet(account, budget);
        let pin = epochs::pin();
        let walked = match self.phase {
            _ if budget.is_spent() => Ok(()),
            Phase::Walk(after) => self.walk(&pin, keys, account, after, budget),
            Phase::Shrink { chunk, index } => self.shrink(&pin, keys, chunk, index, budget),
            Phase::Drain => Ok(()),
        };
        drop(pin);
        self.stamp_fresh();
        match (walked, self.phase) {
            (Err(ComeBack), _) => Progress::Waiting,
            (Ok(()), Phase::Drain) if self.waiting.is_empty() => {
                self.phase = Phase::Walk(0);
                // It is empty: nothing is allocated for that.
                self.waiting.shrink_to_fit();
                Progress::Done
            }
            (Ok(()), Phase::Drain) if !is_quiet => Progress::Waiting,
            (Ok(()), _) => Progress::More,
        }
    }

    fn walk(
        &mut self,
        pin: &Pin,
        keys: &Keys<K>,
        account: &Account,
        after: u64,
        budget: &mut Budget,
    ) -> Result<(), ComeBack> {
        // What has been looked at as a whole, and what is being looked at: a run of one order is one step's.
        let mut done = after;
        let mut last = after;
        let mut outcome = Ok(());
        let mut finished = true;
        keys.walk(pin, after, |node, reached| {
            if reached > last {
                done = last;
                if budget.is_spent() {
                    finished = false;
                    return false;
                }
                last = reached;
            }
            budget.spend(1);
            outcome = self.reclaim(pin, keys, account, node);
            outcome.is_ok()
        });
        self.phase = if outcome.is_err() || !finished {
            // A key that was looked at twice in a pass would go without its second chance.
            Phase::Walk(done)
        } else {
            Self::halve_heads(keys);
            let chunk = keys.heads().chunk_count();
            Phase::Shrink {
                chunk,
                index: CHUNK,
            }
        };
        outcome
    }

    /// Kills and unlinks the key, if it is idle.
    fn reclaim(
        &mut self,
        pin: &Pin,
        keys: &Keys<K>,
        account: &Account,
        node: NonNull<Node<K>>,
    ) -> Result<(), ComeBack> {
        // First the room to remember it: what is unlinked and forgotten would never be freed.
        self.reserve()?;
        // SAFETY: found in the list, under the pin.
        let alive = unsafe { node.as_ref() };
        match alive.buckets.sweep() {
            Idleness::Dead => {
                inject::panic();
                Self::unlink(pin, keys, node.as_ptr().cast::<Link>());
                keys.forget_one();
                self.fresh.push(Retired::Node(node));
            }
            // A head that nobody has come by to link since the table grew: without it, this key is found from a
            // parent.
            Idleness::Kept => keys.link_head(pin, alive.order(), account),
        }
        Ok(())
    }

    /// Marks a link and takes it out of the list.
    fn unlink(pin: &Pin, keys: &Keys<K>, target: *mut Link) {
        // SAFETY: in the list, and only the sweep takes anything out (K3).
        let link = unsafe { &*target };
        // Before the mark its place is found by its order; after it, others may put greater orders in front of it.
        let mut gap = loop {
            // A head cannot lead to itself; but its parent can, and to a key leads what leads to one of smaller
            // order.
            let head = keys.entry(parent(link.order()));
            if let Some(gap) = keys.gap(pin, &head.link, link.order()) {
                break gap;
            }
        };
        let rest = if seeded("k2_unlinked_without_mark") {
            link.next().0
        } else {
            link.mark()
        };
        inject::panic();
        loop {
            // From there on it is found by its address: in front of it stand only links that are not marked (S1), or
            // others of the same order. Each of them may be the one before it.
            let mut before = gap.before;
            let (mut next, _) = before.next();
            while !ptr::eq(next, target) {
                // SAFETY: linked in front of the target, which is linked.
                before = unsafe { &*next };
                (next, _) = before.next();
            }
            if before.redirect(target, rest) {
                return;
            }
            gap.before = before;
        }
    }

    /// If there are twice as many heads as would do, lets half of them go, and answers that it has. (They double when
    /// there are more keys than heads, so a number of keys that wavers a little changes nothing.) Half, not all that
    /// are too many: each step of it leaves twice as many heads between two that lead into the list, and everybody
    /// walks past those.
    fn halve_heads(keys: &Keys<K>) -> bool {
        let bits = keys.bits();
        if bits > MIN_BITS && 2 * keys.len() <= 1 << (bits - 1) {
            keys.resize(bits, bits - 1);
        }
        keys.bits() < bits
    }

    /// Closes the heads that are not needed, the highest chunk first, so that each is next to its parent.
    fn shrink(
        &mut self,
        pin: &Pin,
        keys: &Keys<K>,
        mut chunk: usize,
        mut index: usize,
        budget: &mut Budget,
    ) -> Result<(), ComeBack> {
        while !budget.is_spent() {
            budget.spend(1);
            self.phase = Phase::Shrink { chunk, index };
            if index == CHUNK {
                match self.next_chunk(keys, chunk)? {
                    Some(next) => (chunk, index) = (next, 0),
                    None if Self::halve_heads(keys) => chunk = keys.heads().chunk_count(),
                    None => {
                        self.phase = Phase::Drain;
                        return Ok(());
                    }
                }
                continue;
            }
            let heads = keys.heads().chunk(chunk);
            let heads = heads.expect("only the sweep takes chunks");
            Self::close(pin, keys, &heads[index])?;
            index += 1;
            if index == CHUNK {
                let heads = keys.heads().take(chunk);
                let heads = heads.expect("only the sweep takes chunks");
                self.fresh.push(Retired::Heads(heads));
            }
        }
        self.phase = Phase::Shrink { chunk, index };
        Ok(())
    }

    /// The highest chunk below `above` that is there and not needed.
    fn next_chunk(&mut self, keys: &Keys<K>, above: usize) -> Result<Option<usize>, ComeBack> {
        self.reserve()?;
        let needed = (1 << keys.bits()) / CHUNK;
        Ok((needed..above)
            .rev()
            .find(|&chunk| keys.heads().chunk(chunk).is_some()))
    }

    /// Takes a head out of the list for good; not while somebody is just linking it in.
    fn close(pin: &Pin, keys: &Keys<K>, head: &Head) -> Result<(), ComeBack> {
        loop {
            match head.state() {
                CLOSED => return Ok(()),
                LINKING => return Err(ComeBack),
                UNLINKED => {
                    head.change(UNLINKED, CLOSED);
                }
                state => {
                    // First nobody may enter by it any more; who has already finds what was there then. It may be
                    // leaving since a step that panicked.
                    if state == LINKED {
                        head.change(LINKED, LEAVING);
                    }
                    Self::unlink(pin, keys, ptr::from_ref(&head.link).cast_mut());
                    return Ok(());
                }
            }
        }
    }

    /// Room for one more on both lists, or nothing is unlinked.
    fn reserve(&mut self) -> Result<(), ComeBack> {
        if self.waiting.len() + self.fresh.len() >= MAX_WAITING {
            return Err(ComeBack);
        }
        reserve(&mut self.fresh, 1).map_err(|_| ComeBack)?;
        inject::out_of_memory().map_err(|_| ComeBack)?;
        self.waiting
            .try_reserve(self.fresh.len() + 1)
            .map_err(|_| ComeBack)
    }

    fn stamp_fresh(&mut self) {
        if !self.fresh.is_empty() {
            let stamp = epochs::stamp();
            self.waiting
                .extend(self.fresh.drain(..).map(|retired| (stamp, retired)));
        }
    }

    /// Frees what no thread can see any more; returns whether that is all that waits, as far as the budget tells.
    fn free_quiet(&mut self, account: &Account, budget: &mut Budget) -> bool {
        if self.waiting.is_empty() {
            return true;
        }
        let quiet = epochs::quiet_before();
        loop {
            match self.waiting.front() {
                None => return true,
                Some((stamp, _)) if *stamp < quiet || seeded("k5_freed_without_waiting") => {}
                Some(_) => return false,
            }
            // SAFETY: unlinked before its stamp was given, and no thread that was inside then still is (K5).
            budget.spend(unsafe { self.free_first(account) });
            if budget.is_spent() {
                return true;
            }
        }
    }

    /// Frees all that waits.
    ///
    /// # Safety
    /// No thread is inside the table any more.
    pub(crate) unsafe fn free(&mut self, account: &Account) {
        self.stamp_fresh();
        while !self.waiting.is_empty() {
            // SAFETY: as the caller says.
            unsafe { self.free_first(account) };
        }
    }

    /// Frees what has waited longest; returns what that is worth of a budget.
    ///
    /// # Safety
    /// No thread can see it any more.
    unsafe fn free_first(&mut self, account: &Account) -> usize {
        match self.waiting.pop_front() {
            // SAFETY: as the caller says.
            Some((_, Retired::Node(node))) => unsafe { free_node(node, account) },
            Some((_, Retired::Heads(heads))) => {
                // SAFETY: as the caller says.
                unsafe { account.free(heads) };
                UNITS_PER_CHUNK
            }
            None => 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
