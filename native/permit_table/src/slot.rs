//! The slot of a process: the record of the permits that it holds.
//!
//! ```text
//!   [ holder | displaced | entry | entry | further | released_by_holder ]     64 bytes, a cache line
//!                            |              |          '-> number of releases, a statistic
//!                            |              '-> further keys: the list of this process (`sorted_list.rs`)
//!                            '-> key's node, permits of it
//! ```
//!
//! # States of a slot
//!
//! ```text
//!         occupy                  death                                no                       vacate
//!   FREE ------> identity word ----------> RETIRING: is the word reused? ----> RELEASING permits ----------> FREE
//!                      ^                              |
//!                      '------------------------------'
//!                       yes: the new process keeps the slot
//! ```
//!
//! The head of `holder.rs` defines *identity word* and *alive*, that of `holders.rs` *place*. The word of a dead
//! process can already be that of a new one. So the callback of a death first replaces the word: a call that looks for
//! the slot now waits. Then the callback asks whether a process with the word is alive, and decides. That takes
//! microseconds. The callback holds no lock during that time, so a call may hold one while it waits.
//!
//! # Invariants
//!
//! - **H1** One thread at a time changes the record in a slot, and each change happens before the next. So plain stores
//!   are enough. A process changes the slot that has its word, inside its own calls. A callback changes a slot that it
//!   has made RELEASING, until it vacates it. The two never overlap. No call finds a slot that is RELEASING, and no
//!   call that found it before is still running: the VM has answered the callback that no process with the word is
//!   alive. That leaves two cases for each process with the word:
//!   - It has made its last call. Its calls happen before the answer, so the fence after the answer orders them before
//!     the changes by the callback.
//!   - Its entry in the VM's process table was not visible yet. Its first call finds the word replaced. The callback
//!     executes a SeqCst fence between the replacement and the question, the process between its entry and its first
//!     call. So at least one of the two sees what the other has written.
//! - **H2** An entry with permits > 0 names a node whose count includes them (K6: so it is alive). Permits are added to
//!   the entry after the count has gone up, and subtracted before it goes down. An entry with 0 permits may name memory
//!   that has been reused: its pointer is never followed. A key can be in an entry and in the list: the process holds
//!   the sum. Permits move from an entry to the list under the list's lock, so a reader that has the lock sees them in
//!   one of the two.
//! - **H5** While its process is in no call, the sum beside the list equals the permits in the list. So the total of a
//!   process is read without a walk and without a lock, and the process does not wait for its readers.
//!
//! # Reading slots of other processes
//!
//! Inspection reads the slots of other processes ([`Slot::snapshot`]), and needs H2 across threads. A pinned reader
//! reads permits > 0 (Acquire), and then the node. Let M be the node that it reads: the one that was stored before
//! these permits (Release), or a later one. The reader may follow M while it is pinned.
//!
//! Proof by contradiction. Suppose that M has been freed.
//! 1. M died before that (K6: with no permit in use). So this entry was set to 0 permits after M was stored in it (its
//!    permits were released or moved).
//! 2. The free did not wait for the pin. So that store of 0 happened before the first read under the pin: by E3 if the
//!    pin entered a later epoch, by E2 if the barrier of the sweep came before the pin.
//! 3. So the reader has read permits that were stored after that 0. Their node was stored after M, and the reader,
//!    which reads the node last, cannot read M.
//!
//! [`Slot::permits`] only adds up and follows no pointer, so it needs none of this.

use crate::holder::RESERVED;
use crate::ledger::{Ledger, Permits};
use crate::memory::{allocate, free, reserve, OutOfMemory};
use crate::sorted_list::{Ordered, SortedList};
use crate::sync::{
    fence, ordering, seeded, yield_now, AtomicPtr, AtomicU32, AtomicU64, Mutex, OneWriter, Ordering,
};
use crate::{epochs::Pin, inject, keys::Node};
use equivalent::Equivalent;
use std::num::NonZeroU64;
use std::ptr::{self, NonNull};

/// Instead of an identity word: no process has the slot.
const FREE: u64 = 0;

/// Instead of an identity word: a process with the word has died, and the callback has not decided yet whether another
/// one is alive.
pub(crate) const RETIRING: u64 = u64::MAX;

/// Instead of an identity word: the process is dead, and its permits are being released.
pub(crate) const RELEASING: u64 = u64::MAX - 1;

const _: () = assert!(FREE < RESERVED && RELEASING == RESERVED && RELEASING < RETIRING);

/// Entries in the slot itself. With two it fills a cache line.
const INLINE: usize = 2;

/// How often an entry is read while its key changes during the read. After that the entry is left out: its process
/// acquires and releases without a pause, and holds none of these keys all the time.
const READ_ATTEMPTS: usize = 8;

/// Keys of one holder's list that are copied while its lock is held: about 50 µs.
const KEYS_PER_PIECE: usize = 1024;

/// A release by a process that does not hold the key. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld;

pub(crate) struct Entry<K> {
    node: AtomicPtr<Node<K>>,
    permits: AtomicU64,
}

impl<K> Default for Entry<K> {
    fn default() -> Self {
        Self {
            node: AtomicPtr::new(ptr::null_mut()),
            permits: AtomicU64::new(0),
        }
    }
}

impl<K> Entry<K> {
    /// Node and permits at one instant, if there are permits.
    fn snapshot<'a>(&self, _pin: &'a Pin) -> Option<(&'a Node<K>, u64)> {
        for _ in 0..READ_ATTEMPTS {
            let before = self.node.load(Ordering::Acquire);
            // Acquire: H2.
            let permits = self.permits.load(Ordering::Acquire);
            if permits == 0 {
                return None;
            }
            let node = self.node.load(Ordering::Acquire);
            // Otherwise permits of one key could be reported for the next.
            if ptr::eq(before, node) || seeded("h2_permits_reported_for_wrong_key") {
                // SAFETY: read under the pin, after permits > 0: see "Reading slots of other processes".
                return Some((unsafe { &*node }, permits));
            }
        }
        None
    }
}

/// A key in the list of a process.
struct FurtherKey<K> {
    node: NonNull<Node<K>>,
    /// The order of the node.
    order: u64,
    permits: u64,
}

impl<K> FurtherKey<K> {
    fn is_of(&self, node: &Node<K>) -> bool {
        ptr::eq(self.node.as_ptr(), node)
    }
}

impl<K> Ordered for FurtherKey<K> {
    fn order(&self) -> u64 {
        self.order
    }
}

// SAFETY: it points to a node that is alive while permits > 0 (H2), and nodes are shared between threads.
unsafe impl<K: Send + Sync> Send for FurtherKey<K> {}

/// The list of a process: its keys beyond the two entries.
///
/// A panic inside the lock (a bug, in a hash or in a comparison) unlocks it and leaves the list intact. Searching and
/// copying change nothing. An insertion or a removal is one step together with the count and the sum, and nothing in
/// between can panic.
struct FurtherKeys<K> {
    keys: Mutex<SortedList<FurtherKey<K>>>,
    /// The sum of the permits of all these keys (H5). Changed under the lock, so a load and a store are enough.
    /// Relaxed: it is a statistic, and no pointer is followed because of it.
    permits: AtomicU64,
}

/// Adds permits of the ledger to the rows of their holder, which begin at `start`.
pub(crate) fn add_credits<'a, K>(
    holder: u64,
    credits: impl Iterator<Item = (&'a Node<K>, u64)>,
    start: usize,
    rows: &mut Vec<Permits<'a, K>>,
) -> Result<(), OutOfMemory> {
    for (node, permits) in credits {
        let key = &node.key;
        match rows[start..].iter_mut().find(|row| ptr::eq(row.key, key)) {
            Some(row) => row.permits += permits,
            None => {
                reserve(rows, 1)?;
                rows.push(Permits {
                    holder,
                    key,
                    permits,
                });
            }
        }
    }
    Ok(())
}

impl<K> FurtherKeys<K> {
    fn new() -> Self {
        Self {
            keys: Mutex::new(SortedList::default()),
            permits: AtomicU64::new(0),
        }
    }

    fn permits(&self) -> u64 {
        self.permits.load(Ordering::Relaxed)
    }

    fn add(&self, permits: u64) {
        self.permits
            .store(self.permits() + permits, Ordering::Relaxed);
    }

    fn subtract(&self, permits: u64) {
        self.permits
            .store(self.permits() - permits, Ordering::Relaxed);
    }

    /// Removes up to `permits` permits of a node. Returns how many.
    fn take(&self, node: &Node<K>, permits: u64) -> u64 {
        let mut keys = self.keys.lock();
        let Some(held) = keys.find_mut(node.order(), |held| held.is_of(node)) else {
            return 0;
        };
        let taken = held.permits.min(permits);
        held.permits -= taken;
        if held.permits == 0 {
            keys.remove(node.order(), |held| held.is_of(node));
        }
        self.subtract(taken);
        taken
    }
}

#[repr(C, align(64))]
pub(crate) struct Slot<K> {
    /// The identity word of its process, or [`FREE`], [`RETIRING`] or [`RELEASING`].
    holder: AtomicU64,
    /// The number of processes with this place whose slots are displaced (H4).
    displaced: AtomicU32,
    entries: [Entry<K>; INLINE],
    further: AtomicPtr<FurtherKeys<K>>,
    /// Permits that the processes of this slot have released themselves. Counted here because a release has this cache
    /// line anyway. Relaxed, and not through `sync.rs`, for the reasons in `counters.rs`.
    released_by_holder: std::sync::atomic::AtomicU64,
    /// Checks H1: one writer of the entries and the list at a time.
    writer: OneWriter,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot<u64>>() == 64);

impl<K> Default for Slot<K> {
    fn default() -> Self {
        Self {
            holder: AtomicU64::new(FREE),
            displaced: AtomicU32::new(0),
            entries: Default::default(),
            further: AtomicPtr::new(ptr::null_mut()),
            released_by_holder: Default::default(),
            writer: Default::default(),
        }
    }
}

/// A slot in state [`RETIRING`]. On drop its word becomes `next`.
struct Retiring<'a> {
    holder: &'a AtomicU64,
    next: u64,
}

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        // Relaxed: the fence of `retire` precedes it.
        self.holder.store(self.next, Ordering::Relaxed);
    }
}

impl<K> Slot<K> {
    /// The identity word of its process, or [`FREE`], [`RETIRING`] or [`RELEASING`].
    #[inline(always)]
    pub(crate) fn holder(&self) -> u64 {
        self.holder.load(Ordering::Acquire)
    }

    /// The identity word of its process, if it has one. Waits while the slot is RETIRING.
    fn settled_holder(&self) -> Option<u64> {
        loop {
            match self.holder() {
                RETIRING if !seeded("h1_reader_takes_retiring_for_free") => yield_now(),
                FREE | RELEASING | RETIRING => return None,
                word => return Some(word),
            }
        }
    }

    /// Gives the slot to a process. Returns false if it is not free.
    pub(crate) fn occupy(&self, word: NonZeroU64) -> bool {
        // Acquire: everything that the death of the last holder did to the slot is visible.
        let ordering = ordering("h1_taken_relaxed", Ordering::AcqRel);
        self.holder
            .compare_exchange(FREE, word.get(), ordering, Ordering::Relaxed)
            .is_ok()
    }

    /// Replaces the identity word `word` by `next`. Returns the previous value. If several threads try, one succeeds.
    pub(crate) fn replace_word(&self, word: u64, next: u64) -> u64 {
        // Relaxed: the fence of `retire` follows it, or the caller is the process itself.
        let (Ok(was) | Err(was)) =
            self.holder
                .compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed);
        was
    }

    /// Decides about a slot that the caller has made RETIRING. Returns true if the slot is now RELEASING and the
    /// caller's (H1). Otherwise the word is reused and restored. It is also restored if `is_reused` panics.
    pub(crate) fn retire(&self, word: u64, is_reused: impl FnOnce() -> bool) -> bool {
        let mut retiring = Retiring {
            holder: &self.holder,
            next: word,
        };
        // One of two sides (H1): the word is replaced before this fence, and the VM's process table is read after it.
        if !seeded("h1_reuse_checked_without_fence") {
            fence(Ordering::SeqCst);
        }
        if is_reused() && !seeded("h1_reuse_ignored") {
            return false;
        }
        // All calls of processes that had the word happen before what the caller does (H1).
        if !seeded("h1_no_fence_after_reuse_check") {
            fence(Ordering::Acquire);
        }
        if !seeded("h1_released_with_its_word") {
            retiring.next = RELEASING;
        }
        true
    }

    /// Makes the slot free. Its process holds nothing and makes no further call.
    pub(crate) fn vacate(&self) {
        self.writer.check();
        if let Some(further) = self.further() {
            // The lock stays with the slot, because a reader may be using it.
            further.keys.lock().shrink_to_fit();
        }
        // Release: the next process that gets the slot finds it empty.
        let ordering = ordering("h1_vacated_relaxed", Ordering::Release);
        self.holder.store(FREE, ordering);
    }

    #[inline(always)]
    pub(crate) fn displaced(&self) -> &AtomicU32 {
        &self.displaced
    }

    /// Reserves an entry for one more permit of `node`, or of a key that has no node yet. Recording the permit then
    /// cannot fail.
    #[inline(always)]
    pub(crate) fn reserve(&self, node: Option<&Node<K>>) -> Result<&Entry<K>, OutOfMemory> {
        self.writer.check();
        let wanted = node.map_or(ptr::null(), ptr::from_ref);
        let mut free = None;
        for entry in &self.entries {
            if entry.permits.load(Ordering::Relaxed) == 0 {
                free = free.or(Some(entry));
            } else if ptr::eq(entry.node.load(Ordering::Relaxed), wanted) {
                return Ok(entry);
            }
        }
        match free {
            Some(entry) => Ok(entry),
            None => self.free_entry(),
        }
    }

    /// Records permits of `node`, which the count already includes, in the reserved entry. Cannot fail.
    #[inline(always)]
    pub(crate) fn record(&self, entry: &Entry<K>, node: &Node<K>, more: u64) {
        self.writer.check();
        entry
            .node
            .store(ptr::from_ref(node).cast_mut(), Ordering::Release);
        let permits = entry.permits.load(Ordering::Relaxed);
        // Release: a reader that sees the permits sees the node (H2).
        let ordering = ordering("h2_recorded_relaxed", Ordering::Release);
        entry.permits.store(permits + more, ordering);
    }

    /// Removes one permit of the key from the record, if it is in an entry. Then `lower` lowers the count.
    #[inline(always)]
    pub(crate) fn release_inline<Q: Equivalent<K>>(
        &self,
        query: &Q,
        lower: impl Fn(&Node<K>),
    ) -> Result<(), NotHeld> {
        self.writer.check();
        // Not a loop, because the compiler does not unroll it.
        let [first, second] = &self.entries;
        if self.release_entry(first, query, &lower) || self.release_entry(second, query, &lower) {
            return Ok(());
        }
        Err(NotHeld)
    }

    #[inline(always)]
    fn release_entry<Q: Equivalent<K>>(
        &self,
        entry: &Entry<K>,
        query: &Q,
        lower: &impl Fn(&Node<K>),
    ) -> bool {
        let permits = entry.permits.load(Ordering::Relaxed);
        if permits == 0 {
            return false;
        }
        // SAFETY: permits > 0 (H2), and only this thread changes that (H1).
        let node = unsafe { &*entry.node.load(Ordering::Relaxed) };
        if !query.equivalent(&node.key) {
            return false;
        }
        let too_soon = seeded("h2_count_lowered_before_record");
        if too_soon {
            lower(node);
        }
        // Release, as in `record`: a reader can see the remaining permits before it has seen those that were recorded.
        let ordering = ordering("h2_released_relaxed", Ordering::Release);
        entry.permits.store(permits - 1, ordering);
        // Before the count is lowered, because a panic in there must not leave it out.
        self.count_releases(1);
        if !too_soon {
            lower(node);
        }
        true
    }

    /// Removes the permits of all keys from the record, one key after the other, and calls `lower` with each, to lower
    /// the count. A panic can occur between two keys or in `lower`, but not between the removal of a key and the call.
    pub(crate) fn release_all(&self, mut lower: impl FnMut(&Node<K>, u64)) {
        self.writer.check();
        // SAFETY: permits > 0 (H2), and only this thread changes that (H1).
        let mut lower = |node: NonNull<Node<K>>, permits| lower(unsafe { node.as_ref() }, permits);
        for entry in &self.entries {
            inject::panic();
            let permits = if seeded("p4_released_and_left_on_record") {
                entry.permits.load(Ordering::Acquire)
            } else {
                entry.permits.swap(0, Ordering::AcqRel)
            };
            if let Some(node) = NonNull::new(entry.node.load(Ordering::Relaxed)) {
                if permits > 0 {
                    lower(node, permits);
                }
            }
        }
        let pop = |further: &FurtherKeys<K>| {
            let held = further.keys.lock().pop()?;
            if !seeded("h5_released_and_left_in_sum") {
                further.subtract(held.permits);
            }
            Some(held)
        };
        while let Some(held) = self.further().and_then(pop) {
            // The list is not locked any more (LG3).
            lower(held.node, held.permits);
            inject::panic();
        }
    }

    /// The permits of a key on the record, and its node.
    pub(crate) fn held<Q: Equivalent<K>>(
        &self,
        query: &Q,
        order: u64,
    ) -> Option<(NonNull<Node<K>>, u64)> {
        self.writer.check();
        // SAFETY: both have permits (H2), and only this thread changes that (H1).
        let is_of = |node: NonNull<Node<K>>| query.equivalent(unsafe { &node.as_ref().key });
        let inline = self.entries.iter().filter_map(|entry| {
            let permits = entry.permits.load(Ordering::Relaxed);
            let node = NonNull::new(entry.node.load(Ordering::Relaxed))?;
            (permits > 0 && is_of(node)).then_some((node, permits))
        });
        let further = self.further().and_then(|further| {
            let keys = further.keys.lock();
            let held = keys.find(order, |held| is_of(held.node))?;
            Some((held.node, held.permits))
        });
        let held = inline.chain(further);
        held.reduce(|(node, permits), (_, more)| (node, permits + more))
    }

    /// Removes up to `permits` permits of a node from the record. Returns how many it has removed. The count still
    /// includes them.
    pub(crate) fn take(&self, node: &Node<K>, permits: u64) -> u64 {
        self.writer.check();
        let mut left = permits;
        for entry in &self.entries {
            let held = entry.permits.load(Ordering::Relaxed);
            let taken = held.min(left);
            if taken > 0 && ptr::eq(entry.node.load(Ordering::Relaxed), node) {
                entry.permits.store(held - taken, Ordering::Release);
                left -= taken;
            }
        }
        let further = self.further().filter(|_| left > 0);
        permits - further.map_or(left, |further| left - further.take(node, left))
    }

    /// The permits of its process, of all keys together: the number at some instant, unless a call of the process is
    /// running. Relaxed: no pointer is followed because of it. The process does not wait for it.
    pub(crate) fn permits(&self) -> u64 {
        let inline = self.entries.iter();
        let inline = inline.map(|entry| entry.permits.load(Ordering::Relaxed));
        inline.sum::<u64>() + self.further().map_or(0, FurtherKeys::permits)
    }

    /// Appends a row for each key of its process: only for the key `only`, or for one piece of the keys whose order is
    /// at least `from`. Returns the order at which the next piece begins, if there is one. While the list is copied, a
    /// call of the process that needs the list waits for its lock.
    ///
    /// A piece covers a range of orders, in the entries and in the list. So a key that moves within the record between
    /// two pieces is reported once. The rows include what the process has in the ledger. If its entry there is apart,
    /// and `beside_slot` is set, there are no rows.
    pub(crate) fn snapshot<'a>(
        &self,
        pin: &'a Pin,
        ledger: &Ledger<K>,
        only: Option<&Node<K>>,
        beside_slot: bool,
        from: u64,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let matches = |node: &Node<K>| only.is_none_or(|only| ptr::eq(node, only));
        let (from, all) = only.map_or((from, u64::MAX), |only| (only.order(), only.order()));
        let start = rows.len();
        let mut credits = Vec::new();
        loop {
            let Some(holder) = self.settled_holder() else {
                return Ok(None);
            };
            credits.clear();
            let copied = ledger.copy(pin, holder, from, only, beside_slot, &mut credits)?;
            let Some(mut next) = copied else {
                return Ok(None);
            };
            let to = next.map_or(all, |next| next - 1);
            let further = self.further().map(|further| further.keys.lock());
            // A key that is released and acquired again can move from the first entry to the second during this. It
            // must not be reported twice: the later read counts.
            let [first, second] = self.entries.each_ref().map(|entry| entry.snapshot(pin));
            let moved = |(node, _): &(&Node<K>, u64)| {
                second.is_some_and(|(other, _)| ptr::eq(other, *node))
                    && !seeded("h2_moved_key_reported_twice")
            };
            let mut inline = [first.filter(|first| !moved(first)), second];
            let list_is_new = further.is_none() && self.further().is_some();
            if list_is_new && !seeded("h2_new_list_not_read") {
                // A key can have moved from an entry to the new list.
                continue;
            }
            let mut add_row = |node: &'a Node<K>, permits| {
                reserve(rows, 1)?;
                rows.push(Permits {
                    holder,
                    key: &node.key,
                    permits,
                });
                Ok(())
            };
            let mut last = from;
            let listed = further.iter().flat_map(|further| further.from(from));
            for (copied, held) in listed.take_while(|held| held.order <= to).enumerate() {
                if copied >= KEYS_PER_PIECE && held.order > last {
                    next = Some(held.order);
                    break;
                }
                last = held.order;
                // SAFETY: on record while this thread has the lock (H2), so it is alive while the pin lasts.
                let node = unsafe { &*held.node.as_ptr().cast_const() };
                let here = inline
                    .iter_mut()
                    .filter_map(|entry| entry.take_if(|(other, _)| held.is_of(other)));
                let permits = held.permits + here.map(|(_, permits)| permits).sum::<u64>();
                if matches(node) {
                    add_row(node, permits)?;
                }
            }
            let end = next.map_or(to, |next| next - 1);
            for (node, permits) in inline.into_iter().flatten() {
                if matches(node) && (from..=end).contains(&node.order()) {
                    add_row(node, permits)?;
                }
            }
            drop(further);
            let in_piece = |(node, _): &(&Node<K>, _)| node.order() <= end;
            add_credits(holder, credits.drain(..).filter(in_piece), start, rows)?;
            if holder == self.holder() || seeded("h1_holder_not_rechecked") {
                return Ok(next);
            }
            // Read again: its process has died. Another process may have the slot now, or the slot is RETIRING and may
            // keep its word.
            if seeded("h1_retry_drops_other_holders") {
                rows.clear();
            }
            rows.truncate(start);
        }
    }

    fn further(&self) -> Option<&FurtherKeys<K>> {
        // SAFETY: freed together with its slot.
        unsafe { self.further.load(Ordering::Acquire).as_ref() }
    }

    /// Frees the last entry by moving its permits to the list. So a process that holds many keys for long, and acquires
    /// and releases others, does the latter in its entries.
    #[cold]
    fn free_entry(&self) -> Result<&Entry<K>, OutOfMemory> {
        let further = match self.further() {
            Some(further) => further,
            None => {
                let fresh = allocate(FurtherKeys::new())?;
                self.further.store(fresh.as_ptr(), Ordering::Release);
                // SAFETY: as in `further`.
                unsafe { fresh.as_ref() }
            }
        };
        let [.., entry] = &self.entries;
        let permits = entry.permits.load(Ordering::Relaxed);
        if seeded("h2_moved_without_lock") {
            entry.permits.store(0, Ordering::Release);
            drop(further.keys.lock());
        }
        let mut keys = further.keys.lock();
        if let Some(node) = NonNull::new(entry.node.load(Ordering::Relaxed)) {
            // SAFETY: permits > 0 (H2), because no entry is free.
            let order = unsafe { node.as_ref() }.order();
            match keys.find_mut(order, |held| held.node == node) {
                Some(held) => held.permits += permits,
                None => keys.reserve(order)?.insert(FurtherKey {
                    node,
                    order,
                    permits,
                }),
            }
            further.add(permits);
        }
        // Under the lock: a reader sees the permits in the entry or in the list.
        entry.permits.store(0, Ordering::Release);
        Ok(entry)
    }

    /// As [`Slot::release_inline`], if the key is in the list.
    #[cold]
    pub(crate) fn release_further<Q: Equivalent<K>>(
        &self,
        query: &Q,
        order: impl FnOnce() -> u64,
        lower: impl Fn(&Node<K>),
    ) -> Result<(), NotHeld> {
        self.writer.check();
        let further = self.further().ok_or(NotHeld)?;
        inject::panic();
        let order = order();
        // SAFETY: a key on record has permits (H2), and only this thread changes that (H1).
        let is_of = |held: &FurtherKey<K>| query.equivalent(unsafe { &held.node.as_ref().key });
        let held = further.keys.lock().find(order, is_of).map(|held| held.node);
        // SAFETY: as above.
        let node = unsafe { held.ok_or(NotHeld)?.as_ref() };
        further.take(node, 1);
        self.count_releases(1);
        // The list is not locked any more (LG3).
        lower(node);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn count_releases(&self, permits: u64) {
        // Only this thread writes it (H1).
        let released = self.released_by_holder.load(Ordering::Relaxed);
        self.released_by_holder
            .store(released + permits, Ordering::Relaxed);
    }

    pub(crate) fn released_by_holder(&self) -> u64 {
        self.released_by_holder.load(Ordering::Relaxed)
    }
}

impl<K> Drop for Slot<K> {
    fn drop(&mut self) {
        if let Some(further) = NonNull::new(self.further.load(Ordering::Relaxed)) {
            // SAFETY: `free_entry` allocated it, and no thread uses the slot any more.
            unsafe { free(further) };
        }
    }
}
