//! Finds the slot of a process.
//!
//! Every process that has acquired has a slot (`slot.rs`), found by its identity word. Some bits of the word *select* a
//! place; equality of the whole word *decides*. If living processes have distinct places, as in a VM that numbers its
//! processes by a table, a slot is one array access away. Any other distribution is slower, and just as correct.
//!
//! # Time
//!
//! A slot says since when its process holds permits (`slot.rs`). To read the clock of the machine would cost as much as
//! an acquire. So a tick at each sweep publishes the time of the *next* tick, and processes that begin to hold permits
//! take that: it is never too early, and at most one interval too late. (If a tick is late, it is too early by as
//! much.) Before the first tick it is infinite.
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
//!   RELEASING: a slot is inserted in front, after its maker has waited until the others are RELEASING.
//! - **H5** A process has one slot, also if it makes its first call while another one gives it a permit. A giver makes
//!   a displaced slot, and then looks at the place; the process takes the place, and then looks at the count of
//!   displaced slots. At least one of the two sees what the other has done, because each changes the count by a
//!   read-modify-write. A giver that sees that the place changes withdraws its slot and looks again. A process that
//!   finds a slot made for it leaves its place.

use crate::holder::Holder;
use crate::inject;
use crate::lazy_array::LazyArray;
use crate::memory::{allocate, free, OutOfMemory};
use crate::slot::{Slot, RELEASING, RETIRING};
use crate::sorted_list::SortedList;
use crate::sync::{ordering, sized, yield_now, Mutex, MutexGuard, Ordering};
use std::mem;
use std::ptr::{self, NonNull};

/// Slots per chunk: 64 KiB.
pub(crate) const CHUNK: usize = sized(2, 64, 1024);

/// The distance between the slots of neighboring places. A processor that fetches a cache line fetches its neighbor
/// too. So slots on neighboring lines slow each other down when their processes run at the same time, as successive
/// processes often do. Therefore every second process has its slot half a chunk away. (A model has no cache, and its
/// chunks are too short.)
const NEIGHBOR_OFFSET: u64 = if cfg!(loom) { 0 } else { CHUNK as u64 / 2 };

/// The unit of the times in slots, in microseconds. With it, four bytes are enough for 13 years.
pub(crate) const TIME_UNIT_US: u64 = 100_000;

/// A time as in slots, rounded up.
pub(crate) fn coarse(us: u64) -> u32 {
    u32::try_from(us.div_ceil(TIME_UNIT_US)).unwrap_or(u32::MAX)
}

pub(crate) struct Holders<K> {
    pub(crate) slots: LazyArray<Slot<K>, CHUNK>,
    mask: u64,
    /// The time that a process gets which begins to hold permits. Only the tick writes it. Relaxed, and not through
    /// `sync.rs`, for the reasons in `counters.rs`.
    clock: std::sync::atomic::AtomicU32,
    /// A panic inside the lock (a bug) unlocks it and leaves the list intact: everything that can fail precedes an
    /// insertion, and a removal is one step that cannot panic. By the words of the processes.
    pub(crate) displaced: Mutex<SortedList<Displaced<K>>>,
    /// Permits released from slots that have been freed since. Changed under the lock.
    released: std::sync::atomic::AtomicU64,
}

/// The slot of a process whose place in the array is taken.
pub(crate) struct Displaced<K>(pub(crate) NonNull<Slot<K>>);

// SAFETY: the slot is on the heap and consists of atomics.
unsafe impl<K: Send + Sync> Send for Displaced<K> {}

/// A slot of another process. A displaced one with the lock under which these are freed.
pub(crate) type Found<'a, K> = (
    &'a Slot<K>,
    Option<MutexGuard<'a, SortedList<Displaced<K>>>>,
);

/// The displaced slots are locked, and none of them is that of the process.
type NotFound<'a, K> = MutexGuard<'a, SortedList<Displaced<K>>>;

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
            clock: std::sync::atomic::AtomicU32::new(u32::MAX),
            displaced: Mutex::new(SortedList::default()),
            released: Default::default(),
        })
    }

    /// The time at which a process begins to hold permits that begins now: at the next tick.
    #[inline(always)]
    pub(crate) fn now(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Tells the time of the next tick.
    pub(crate) fn advance_clock(&self, next_tick_us: u64) {
        self.clock.store(coarse(next_tick_us), Ordering::Relaxed);
    }

    /// The slot of a process, or `None` if it has none. Only for calls of that process: a displaced slot is freed at
    /// its death.
    #[inline(always)]
    pub(crate) fn find(&self, holder: Holder) -> Option<&Slot<K>> {
        let home = self.home(holder)?;
        let home_word = home.holder();
        if home_word == holder.id() {
            return Some(home);
        }
        // Relaxed: a process must see only its own addition, and that of a giver that has told it.
        if home_word != RETIRING && home.displaced.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find_slow(holder)
    }

    /// The slot of a process that is about to acquire. At the first call of a process, `watch` is called. It must
    /// ensure that the callback of its death is called (H3).
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
        let home = self.home_or_new(holder)?;
        let slot = if home.occupy() {
            home
        } else {
            let displaced = match self.search_displaced(holder) {
                Ok(given) => return Ok(given),
                Err(displaced) => displaced,
            };
            self.displace(home, holder, displaced)?.0
        };
        let unwatched = Unwatched {
            holders: self,
            holder,
            slot,
            displaced: None,
        };
        // AcqRel: H5.
        let ordering = ordering("h5_count_read_relaxed", Ordering::AcqRel);
        if ptr::eq(slot, home) && home.displaced.fetch_add(0, ordering) > 0 {
            if let Ok(given) = self.search_displaced(holder) {
                return Ok(given);
            }
        }
        inject::panic();
        watch()?;
        Ok(unwatched.assign().0)
    }

    /// The slot of a process that is given a permit, for the giver. `watch` is called if it has none. It must ensure
    /// that the callback of its death is called, and returns false if the process is not alive. Then there is no slot.
    ///
    /// The process can die at any time: the giver asks for its word under the lock of the overflow (O2).
    pub(crate) fn slot_of_other<E: From<OutOfMemory>>(
        &self,
        holder: Holder,
        watch: &mut impl FnMut() -> Result<bool, E>,
    ) -> Result<Option<Found<'_, K>>, E> {
        let home = self.home_or_new(holder)?;
        loop {
            let displaced = match self.search(holder, Slot::holder) {
                Ok(found) => return Ok(Some(found)),
                Err(displaced) => displaced,
            };
            let (slot, displaced) = self.displace(home, holder, displaced)?;
            let unwatched = Unwatched {
                holders: self,
                holder,
                slot,
                displaced: Some(displaced),
            };
            let home_word = home.holder();
            if home_word == holder.id() || home_word == RETIRING {
                // H5.
                drop(unwatched);
                yield_now();
                continue;
            }
            if !watch()? {
                return Ok(None);
            }
            return Ok(Some(unwatched.assign()));
        }
    }

    /// Replaces the word of a dead process, and makes its slot RELEASING, and so the caller's (H1), unless the word is
    /// reused.
    pub(crate) fn retire(
        &self,
        holder: Holder,
        is_reused: impl FnOnce() -> bool,
    ) -> Option<&Slot<K>> {
        let word = holder.id();
        let (slot, _) = self.search(holder, |slot| slot.replace_word(word)).ok()?;
        slot.retire(word, is_reused).then_some(slot)
    }

    /// Vacates a slot that is RELEASING and has nothing on record. The slot may be freed.
    pub(crate) fn vacate(&self, holder: Holder, slot: *const Slot<K>) {
        let home = self.home(holder).expect("older than the slot");
        if ptr::eq(home, slot) {
            home.vacate();
        } else {
            self.remove_displaced(&mut self.displaced.lock(), holder, slot);
        }
    }

    /// The number of processes that hold permits, these permits, and the permits released so far, also by processes
    /// that have died since. Walks over the slots, one cache line each. Exact if no call is running.
    pub(crate) fn sums(&self) -> (usize, u64, u64) {
        let (mut holders, mut permits, mut released) = (0, 0_u64, 0_u64);
        let mut add = |slot: &Slot<K>| {
            let held = slot.permits();
            holders += usize::from(held > 0);
            permits = permits.saturating_add(held);
            released = released.saturating_add(slot.released_by_holder.load(Ordering::Relaxed));
        };
        self.slots.values().for_each(&mut add);
        let displaced = self.displaced.lock();
        for (_, displaced) in displaced.from(0) {
            // SAFETY: slots are freed under this lock.
            add(unsafe { displaced.0.as_ref() });
        }
        // Under the same lock: a release is counted either in a slot or here.
        let freed = self.released.load(Ordering::Relaxed);
        (holders, permits, released.saturating_add(freed))
    }

    /// The slot at the place of a process, which may belong to another one.
    #[inline(always)]
    fn home(&self, holder: Holder) -> Option<&Slot<K>> {
        self.slots.get(self.index(holder.place))
    }

    fn home_or_new(&self, holder: Holder) -> Result<&Slot<K>, OutOfMemory> {
        let index = self.index(holder.place);
        self.slots.get_or_create(index, |_| Slot::default())
    }

    #[inline(always)]
    fn index(&self, place: u64) -> usize {
        // One slot per place, for all masks: the lowest bit is kept, and determines whether another bit is flipped.
        ((place ^ ((place & 1) * NEIGHBOR_OFFSET)) & self.mask) as usize
    }

    /// As [`Holders::find`], if the home slot is RETIRING, or if displaced slots belong there.
    #[cold]
    fn find_slow(&self, holder: Holder) -> Option<&Slot<K>> {
        self.search(holder, Slot::holder).ok().map(|(slot, _)| slot)
    }

    /// The slot at which `read_word` returns the holder's word. Waits while a slot is RETIRING that can get the word.
    ///
    /// If the caller is neither the process itself nor has replaced the word, it may use the slot only while it keeps
    /// the result.
    pub(crate) fn search(
        &self,
        holder: Holder,
        read_word: impl Fn(&Slot<K>) -> u64,
    ) -> Result<Found<'_, K>, NotFound<'_, K>> {
        let word = holder.id();
        loop {
            let home = self.home(holder);
            let mut seen = home.map_or(0, &read_word);
            if let Some(home) = home.filter(|_| seen == word) {
                return Ok((home, None));
            }
            if seen != RETIRING {
                let displaced = self.displaced.lock();
                let Some(found) = displaced.find(word, |_| true) else {
                    return Err(displaced);
                };
                // SAFETY: slots are freed under this lock, so the lock is returned with the slot.
                let slot = unsafe { found.0.as_ref() };
                seen = read_word(slot);
                if seen == word {
                    return Ok((slot, Some(displaced)));
                }
                if seen != RETIRING {
                    return Err(displaced);
                }
            }
            yield_now();
        }
    }

    /// The displaced slot of the calling process, if a giver has made one. Waits while one is RETIRING that can have
    /// its word.
    fn search_displaced(&self, holder: Holder) -> Result<&Slot<K>, NotFound<'_, K>> {
        loop {
            let displaced = self.displaced.lock();
            let Some(found) = displaced.find(holder.id(), |_| true) else {
                return Err(displaced);
            };
            // SAFETY: slots are freed under this lock. That of the calling process is freed at its death.
            let slot = unsafe { found.0.as_ref() };
            match slot.holder() {
                RETIRING => yield_now(),
                RELEASING => return Err(displaced),
                _ => return Ok(slot),
            }
        }
    }

    /// Makes a displaced slot for a process. It is RETIRING.
    fn displace<'a>(
        &self,
        home: &Slot<K>,
        holder: Holder,
        mut displaced: NotFound<'a, K>,
    ) -> Result<(&Slot<K>, NotFound<'a, K>), OutOfMemory> {
        let word = holder.id();
        let vacancy = displaced.reserve(word)?;
        let slot = allocate(Slot::default())?;
        vacancy.insert(Displaced(slot));
        // SAFETY: just allocated. Only the death of this process frees it, or the end of the table.
        let slot = unsafe { slot.as_ref() };
        slot.occupy();
        // AcqRel: H5.
        let ordering = ordering("h5_count_changed_relaxed", Ordering::AcqRel);
        home.displaced.fetch_add(1, ordering);
        Ok((slot, displaced))
    }

    /// Removes and frees a displaced slot that is RELEASING and has nothing on record.
    fn remove_displaced(
        &self,
        displaced: &mut SortedList<Displaced<K>>,
        holder: Holder,
        slot: *const Slot<K>,
    ) {
        let home = self.home(holder).expect("older than the slot");
        let is_it = |displaced: &Displaced<K>| ptr::eq(displaced.0.as_ptr(), slot);
        let removed = displaced.remove(holder.id(), is_it);
        let Displaced(removed) = removed.expect("a slot that is not at home");
        home.displaced.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: `displace` allocated it. No call finds it any more (H1), and readers hold this lock.
        unsafe {
            let released = removed.as_ref().released_by_holder.load(Ordering::Relaxed);
            self.released.fetch_add(released, Ordering::Relaxed);
            free(removed);
        }
    }
}

impl<K> Drop for Holders<K> {
    fn drop(&mut self) {
        let mut displaced = self.displaced.lock();
        while let Some(Displaced(slot)) = displaced.pop() {
            // SAFETY: `displace` allocated it, and no thread is inside.
            unsafe { free(slot) };
        }
    }
}

/// A slot that is RETIRING, because its process is not watched yet. On drop, the process loses it: if `watch` fails or
/// panics, or if the process has another slot. If it kept the slot, nothing would release its permits after its death
/// (H3).
struct Unwatched<'a, K> {
    holders: &'a Holders<K>,
    holder: Holder,
    slot: &'a Slot<K>,
    /// The displaced slots are still locked, because a giver makes the slot.
    displaced: Option<NotFound<'a, K>>,
}

impl<'a, K> Unwatched<'a, K> {
    /// The process is watched: the slot gets its word.
    fn assign(mut self) -> Found<'a, K> {
        self.slot.assign(self.holder.id());
        let found = (self.slot, self.displaced.take());
        mem::forget(self);
        found
    }
}

impl<K> Drop for Unwatched<'_, K> {
    fn drop(&mut self) {
        // First, because readers that have the displaced slots locked wait while it is RETIRING.
        self.slot.assign(RELEASING);
        let (holders, holder) = (self.holders, self.holder);
        match &mut self.displaced {
            Some(displaced) => holders.remove_displaced(displaced, holder, self.slot),
            None => holders.vacate(holder, self.slot),
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
