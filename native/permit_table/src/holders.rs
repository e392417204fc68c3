//! Finds the slot of a process.
//!
//! Every process that has acquired has a slot (`slot.rs`), found by its identity word. Some bits of the word *select* a
//! place; equality of the whole word *decides*. If living processes have distinct places, as in a VM that numbers its
//! processes by a table, a slot is one array access away. Any other distribution is slower, and just as correct.
//!
//! # Invariants
//!
//! - **H3** A process takes a slot before it is watched, and it is watched before its first permit is counted. So every
//!   counted permit is released after the holder's death (P4). A process that inherits is not watched by its first
//!   call. The callback of the earlier death has not run yet. It either finds that this process is dead too, or has it
//!   watched. A caller of the library that watches holders on its own must handle this case itself.
//! - **H4** A process whose place is taken, possibly by a dead process with the same word, has its slot in `displaced`.
//!   The slot at its place counts such processes. If that count is not 0, the process searches `displaced`, so it finds
//!   its slot even after the other process has died. If several slots there have the same word, all but the first are
//!   RELEASING: a process inserts its slot in front, after it has waited until the others are RELEASING.

use crate::holder::Holder;
use crate::ledger::{Ledger, Permits};
use crate::memory::{allocate, free, OutOfMemory};
use crate::slot::{add_credits, Slot, RELEASING, RETIRING};
use crate::sorted_list::{Ordered, SortedList};
use crate::sync::{sized, yield_now, Mutex, MutexGuard, Ordering};
use crate::{epochs::Pin, inject, keys::Node, lazy_array::LazyArray};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};

/// Slots per chunk: 64 KiB.
const CHUNK: usize = sized(2, 64, 1024);

/// The distance between the slots of neighboring places. A processor that fetches a cache line fetches its neighbor
/// too. So slots on neighboring lines slow each other down when their processes run at the same time, as successive
/// processes often do. Therefore every second process has its slot half a chunk away. (A model has no cache, and its
/// chunks are too short.)
const NEIGHBOR_OFFSET: u64 = if cfg!(loom) { 0 } else { CHUNK as u64 / 2 };

/// Slots that are read in one piece: about a millisecond. With fewer, a reader spends most of its time rescheduling.
const SLOTS_PER_PIECE: usize = 64 * CHUNK;

/// A piece ends after this many rows.
const ROWS_PER_PIECE: usize = 4096;

/// The position of a walk over the holders; [`Cursor::default`] is the start. Any value is safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The array of slots, the displaced slots, or a shard of the ledger.
    pub part: u64,
    /// The next slot: its index in the array, otherwise its word.
    pub slot: u64,
    /// The order to continue from in that slot.
    pub order: u64,
}

/// [`Cursor::part`]. The shards of the ledger follow each other.
const ARRAY: u64 = 0;
const DISPLACED: u64 = 1;
const LEDGER: u64 = 2;

impl Cursor {
    fn of_part(part: u64) -> Self {
        let (slot, order) = (0, 0);
        Self { part, slot, order }
    }
}

/// Totals over all holders of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Processes that hold at least one permit.
    pub(crate) holders: usize,
    /// Permits that they hold.
    pub(crate) permits: u64,
    /// Permits released so far, also by processes that have died since.
    pub(crate) released: u64,
}

impl Sums {
    fn add<K>(&mut self, slot: &Slot<K>) {
        let permits = slot.permits();
        self.holders += usize::from(permits > 0);
        self.permits += permits;
        self.released += slot.released_by_holder();
    }
}

pub(crate) struct Holders<K> {
    slots: LazyArray<Slot<K>, CHUNK>,
    mask: u64,
    /// A panic inside the lock (a bug) unlocks it and leaves the list intact: everything that can fail precedes an
    /// insertion, and a removal is one step that cannot panic.
    displaced: Mutex<SortedList<Displaced<K>>>,
    /// Permits released from slots that have been freed since. Changed under the lock.
    released: std::sync::atomic::AtomicU64,
}

/// The slot of a process whose place in the array is taken.
struct Displaced<K> {
    word: u64,
    slot: NonNull<Slot<K>>,
}

impl<K> Ordered for Displaced<K> {
    fn order(&self) -> u64 {
        self.word
    }
}

// SAFETY: the slot is on the heap and consists of atomics.
unsafe impl<K: Send + Sync> Send for Displaced<K> {}

/// A slot that [`Holders::search`] has found. For a displaced slot, with the lock under which these are freed.
type Found<'a, K> = (
    &'a Slot<K>,
    Option<MutexGuard<'a, SortedList<Displaced<K>>>>,
);

impl<K> Holders<K> {
    /// Slots for `processes` places.
    pub(crate) fn new(processes: usize) -> Result<Self, OutOfMemory> {
        let capacity = processes
            .max(1)
            .checked_next_power_of_two()
            .ok_or(OutOfMemory)?;
        Ok(Self {
            slots: LazyArray::new(capacity)?,
            mask: capacity as u64 - 1,
            displaced: Mutex::new(SortedList::default()),
            released: Default::default(),
        })
    }

    /// The slot of a process, or `None` if it has none. Only for calls of that process: a displaced slot is freed at
    /// its death.
    #[inline(always)]
    pub(crate) fn find(&self, holder: Holder) -> Option<&Slot<K>> {
        let home = self.home(holder)?;
        let home_word = home.holder();
        if home_word == holder.word.get() {
            return Some(home);
        }
        if home_word != RETIRING && home.displaced().load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find_slow(holder)
    }

    /// The slot of a process that is about to acquire. At the first call of a process, `watch` is called. It must
    /// ensure that [`Holders::release_all`] is called after the death of the process (H3).
    #[inline(always)]
    pub(crate) fn claim<E: From<OutOfMemory>>(
        &self,
        holder: Holder,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<&Slot<K>, E> {
        match self.find(holder) {
            Some(slot) => Ok(slot),
            None => self.claim_first(holder, watch),
        }
    }

    #[cold]
    fn claim_first<E: From<OutOfMemory>>(
        &self,
        holder: Holder,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<&Slot<K>, E> {
        let index = self.index(holder.place);
        let home = self.slots.get_or_create(index, |_| Slot::default())?;
        let slot = match home.occupy(holder.word) {
            true => home,
            false => self.displace(home, holder)?,
        };
        let unwatched = Unwatched {
            holders: self,
            holder,
        };
        inject::panic();
        watch()?;
        std::mem::forget(unwatched);
        Ok(slot)
    }

    /// Removes all permits of a dead process from its record, exactly once (P4), calls `lower` with those of each key,
    /// and vacates its slot, unless its word is reused.
    pub(crate) fn release_all(
        &self,
        holder: Holder,
        mut is_reused: impl FnMut() -> bool,
        mut lower: impl FnMut(&Node<K>, u64),
    ) {
        let mut retired = None;
        let mut release_all = || {
            if retired.is_none() {
                retired = self.retire(holder, &mut is_reused);
            }
            let Some(slot) = retired else {
                return;
            };
            slot.release_all(&mut lower);
            inject::panic();
            self.vacate(holder, slot);
        };
        // After a panic (a bug), tries once more, with the slot that it had: no word leads to that slot any more.
        if catch_unwind(AssertUnwindSafe(&mut release_all)).is_err() {
            release_all();
        }
    }

    /// Makes the slot of a dead process RELEASING, and so the caller's (H1), unless its word is reused.
    fn retire(&self, holder: Holder, is_reused: impl FnMut() -> bool) -> Option<&Slot<K>> {
        let word = holder.word.get();
        let slot = self.replace_word(holder, RETIRING)?;
        slot.retire(word, is_reused).then_some(slot)
    }

    /// Removes the holder's word from its slot. From then on other threads only read the slot.
    fn replace_word(&self, holder: Holder, next: u64) -> Option<&Slot<K>> {
        let read_word = |slot: &Slot<K>| slot.replace_word(holder.word.get(), next);
        self.search(holder, read_word).map(|(slot, _)| slot)
    }

    /// Whether a process has a slot. A process that had one and has none any more is dead, and holds nothing. Waits
    /// like [`Holders::search`].
    pub(crate) fn has(&self, holder: Holder) -> bool {
        self.search(holder, Slot::holder).is_some()
    }

    /// Whether a process has a slot with permits. Exact if no call is running.
    pub(crate) fn has_permits(&self, holder: Holder) -> bool {
        let found = self.search(holder, Slot::holder);
        found.is_some_and(|(slot, _lock)| slot.permits() > 0)
    }

    /// Totals over all processes. Walks over the slots, one cache line each. Exact if no call is running.
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.slots.values().for_each(|slot| sums.add(slot));
        let displaced = self.displaced.lock();
        for displaced in displaced.from(0) {
            // SAFETY: slots are freed under this lock.
            sums.add(unsafe { displaced.slot.as_ref() });
        }
        // Under the same lock: a release is counted either in a slot or here.
        sums.released += self.released.load(Ordering::Relaxed);
        sums
    }

    /// Appends a piece of what a process holds, from this order on. Returns the order to continue from.
    pub(crate) fn snapshot<'a>(
        &self,
        pin: &'a Pin,
        ledger: &Ledger<K>,
        holder: Holder,
        from: u64,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<u64>, OutOfMemory> {
        self.snapshot_one(pin, ledger, holder, None, from, rows)
    }

    fn snapshot_one<'a>(
        &self,
        pin: &'a Pin,
        ledger: &Ledger<K>,
        holder: Holder,
        only: Option<&Node<K>>,
        from: u64,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let start = rows.len();
        let Some((slot, _lock)) = self.search(holder, Slot::holder) else {
            let mut credits = Vec::new();
            let next = ledger.copy(pin, holder.word(), from, only, false, &mut credits)?;
            add_credits(holder.word(), credits.into_iter(), start, rows)?;
            return Ok(next.flatten());
        };
        let next = slot.snapshot(pin, ledger, only, false, from, rows)?;
        // The slot can have got another process in between.
        if rows[start..].iter().any(|row| row.holder != holder.word()) {
            rows.truncate(start);
        }
        Ok(next)
    }

    /// Appends a piece of what all processes hold, of all keys or of one, from the cursor on. Returns where to
    /// continue. After the array come the displaced slots, then the processes whose entries in the ledger are apart.
    pub(crate) fn snapshot_from<'a>(
        &self,
        pin: &'a Pin,
        ledger: &Ledger<K>,
        mut cursor: Cursor,
        only: Option<&Node<K>>,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let mut slots_read = 0;
        while cursor.part == ARRAY {
            let index = cursor.slot as usize;
            let Some(slots) = self.slots.rest_of_chunk(index) else {
                cursor = self.next_chunk(index);
                continue;
            };
            for slot in slots {
                if slots_read >= SLOTS_PER_PIECE || rows.len() >= ROWS_PER_PIECE {
                    return Ok(Some(cursor));
                }
                if let Some(order) = slot.snapshot(pin, ledger, only, true, cursor.order, rows)? {
                    return Ok(Some(Cursor { order, ..cursor }));
                }
                slots_read += 1;
                cursor.slot += 1;
                cursor.order = 0;
            }
        }
        self.snapshot_displaced(pin, ledger, cursor, only, rows)
    }

    /// The start of the next chunk that exists.
    fn next_chunk(&self, index: usize) -> Cursor {
        let mut chunks = index / CHUNK..self.slots.chunk_count();
        let next = chunks.find(|chunk| self.slots.chunk(*chunk).is_some());
        Cursor {
            part: next.map_or(DISPLACED, |_| ARRAY),
            slot: next.map_or(0, |chunk| (chunk * CHUNK) as u64),
            order: 0,
        }
    }

    fn snapshot_displaced<'a>(
        &self,
        pin: &'a Pin,
        ledger: &Ledger<K>,
        mut cursor: Cursor,
        only: Option<&Node<K>>,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        while cursor.part == DISPLACED {
            if rows.len() >= ROWS_PER_PIECE {
                return Ok(Some(cursor));
            }
            let displaced = self.displaced.lock();
            let mut slots = displaced.from(cursor.slot);
            let Some(next) = slots.next() else {
                cursor = Cursor::of_part(LEDGER);
                break;
            };
            if next.word > cursor.slot {
                cursor.slot = next.word;
                cursor.order = 0;
            }
            // SAFETY: slots are freed under this lock.
            let slot = unsafe { next.slot.as_ref() };
            if let Some(order) = slot.snapshot(pin, ledger, only, true, cursor.order, rows)? {
                return Ok(Some(Cursor { order, ..cursor }));
            }
            cursor = match cursor.slot.checked_add(1) {
                Some(slot) => Cursor {
                    slot,
                    order: 0,
                    ..cursor
                },
                None => Cursor::of_part(LEDGER),
            };
        }
        self.snapshot_ledger(pin, ledger, cursor, only, rows)
    }

    fn snapshot_ledger<'a>(
        &self,
        pin: &'a Pin,
        ledger: &Ledger<K>,
        mut cursor: Cursor,
        only: Option<&Node<K>>,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let mut holders = Vec::new();
        loop {
            holders.clear();
            let shard = (cursor.part - LEDGER) as usize;
            let Some((shard, slot)) = ledger.apart((shard, cursor.slot), &mut holders)? else {
                return Ok(None);
            };
            for holder in holders.drain(..) {
                if holder.word() > cursor.slot {
                    cursor.slot = holder.word();
                    cursor.order = 0;
                }
                if rows.len() >= ROWS_PER_PIECE {
                    return Ok(Some(cursor));
                }
                let from = cursor.order;
                if let Some(order) = self.snapshot_one(pin, ledger, holder, only, from, rows)? {
                    return Ok(Some(Cursor { order, ..cursor }));
                }
            }
            cursor = Cursor {
                part: LEDGER + shard as u64,
                slot,
                order: 0,
            };
        }
    }

    /// The slot at the place of a process, which may belong to another one.
    #[inline(always)]
    fn home(&self, holder: Holder) -> Option<&Slot<K>> {
        self.slots.get(self.index(holder.place))
    }

    #[inline(always)]
    fn index(&self, place: u64) -> usize {
        // One slot per place, for all masks: the lowest bit is kept, and determines whether another bit is flipped.
        ((place ^ ((place & 1) * NEIGHBOR_OFFSET)) & self.mask) as usize
    }

    /// As [`Holders::find`], if the home slot is RETIRING, or if displaced slots belong there.
    #[cold]
    fn find_slow(&self, holder: Holder) -> Option<&Slot<K>> {
        self.search(holder, Slot::holder).map(|(slot, _)| slot)
    }

    /// The slot at which `read_word` returns the holder's word. Waits while a slot is RETIRING that can have had the
    /// word.
    ///
    /// If the caller is neither the process itself nor has replaced the word, it may use the slot only while it keeps
    /// the result.
    fn search(&self, holder: Holder, read_word: impl Fn(&Slot<K>) -> u64) -> Option<Found<'_, K>> {
        let home = self.home(holder)?;
        let word = holder.word.get();
        loop {
            let mut seen = read_word(home);
            if seen == word {
                return Some((home, None));
            }
            if seen != RETIRING {
                let displaced = self.displaced.lock();
                let slot = displaced.find(word, |_| true)?.slot;
                // SAFETY: slots are freed under this lock, so the lock is returned with the slot.
                let slot = unsafe { slot.as_ref() };
                seen = read_word(slot);
                if seen == word {
                    return Some((slot, Some(displaced)));
                }
                if seen != RETIRING {
                    return None;
                }
            }
            yield_now();
        }
    }

    fn displace(&self, home: &Slot<K>, holder: Holder) -> Result<&Slot<K>, OutOfMemory> {
        let word = holder.word.get();
        let mut displaced = self.displaced.lock();
        let vacancy = displaced.reserve(word)?;
        let slot = allocate(Slot::default())?;
        vacancy.insert(Displaced { word, slot });
        // SAFETY: just allocated. Only the death of this process frees it, or the end of the table.
        let slot = unsafe { slot.as_ref() };
        slot.occupy(holder.word);
        home.displaced().fetch_add(1, Ordering::Relaxed);
        Ok(slot)
    }

    /// Vacates a slot that is RELEASING and has nothing on record. The slot may be freed.
    fn vacate(&self, holder: Holder, slot: *const Slot<K>) {
        let home = self.home(holder).expect("older than the slot");
        if ptr::eq(home, slot) {
            home.vacate();
            return;
        }
        let mut displaced = self.displaced.lock();
        let is_it = |displaced: &Displaced<K>| ptr::eq(displaced.slot.as_ptr(), slot);
        let removed = displaced.remove(holder.word.get(), is_it);
        let removed = removed.expect("a slot that is not at home").slot;
        home.displaced().fetch_sub(1, Ordering::Relaxed);
        // SAFETY: `displace` allocated it. No call finds it any more (H1), and readers hold this lock.
        unsafe {
            let released = removed.as_ref().released_by_holder();
            self.released.fetch_add(released, Ordering::Relaxed);
            free(removed);
        }
    }
}

impl<K> Drop for Holders<K> {
    fn drop(&mut self) {
        let mut displaced = self.displaced.lock();
        while let Some(Displaced { slot, .. }) = displaced.pop() {
            // SAFETY: `displace` allocated it, and no thread is inside.
            unsafe { free(slot) };
        }
    }
}

/// A slot whose process is not watched yet. It is vacated on drop, which happens if `watch` fails or panics. If the
/// process kept the slot, nothing would release its permits after its death (H3).
struct Unwatched<'a, K> {
    holders: &'a Holders<K>,
    holder: Holder,
}

impl<K> Drop for Unwatched<'_, K> {
    fn drop(&mut self) {
        if let Some(slot) = self.holders.replace_word(self.holder, RELEASING) {
            self.holders.vacate(self.holder, slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// H4: if two places had the same slot, one of two processes would always be displaced, and its calls would take a
    /// lock.
    #[test]
    fn h4_places_have_distinct_slots_and_neighbors_are_apart() {
        for processes in [1, 2, 16, 1024, 4096] {
            let holders = Holders::<u64>::new(processes).unwrap();
            let places = 0..processes as u64;
            let slots: BTreeSet<usize> = places.map(|place| holders.index(place)).collect();
            assert_eq!(slots.len(), processes);
            if processes > CHUNK {
                assert!(holders.index(6).abs_diff(holders.index(7)) > 1);
            }
        }
    }
}
