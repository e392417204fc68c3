//! From a process to its slot.
//!
//! Every process that has ever acquired has a slot (`slot.rs`), found from its identity word. Part of the word only
//! *chooses* a place; equality of the whole word *decides*. Where the places of living processes are distinct, as in
//! a VM that numbers its processes by a table, a slot is one array access away; any other distribution is slower, and
//! as right.
//!
//! # Identity
//!
//! A process is *alive* from its entry in the VM's process table to its last call. At most one process with a given
//! identity word is alive at a time. But words are reused: the VM removes a process from its table before it reports
//! the death (the *callback*, [`Holders::release_all`]), and a VM whose pids have few bits can start a process with the
//! same word in between. Until the callback comes, the two cannot be told apart. The new process *inherits*: it holds
//! what the dead one held, and its calls use the same slot. The callback asks the VM whether a process with the word is
//! alive. If so, the slot stays with that process until its own death. If not, the slot loses the word, and its permits
//! are given back. A process that starts with the word from then on holds nothing.
//!
//! # Invariants
//! - **H3** A slot is taken before the process is watched, and the process is watched before its first permit is
//!   counted: whatever is counted is given back (P4). A process that inherits is not watched by its first call. The
//!   callback of the death before is still to come, and either finds that process dead too, or has it watched. A
//!   caller of the library that watches a holder without being asked to has to handle that itself.
//! - **H4** A process that finds its place taken, be it by a dead process with the same word, lives in `displaced`, and
//!   the place counts how many do. It looks there if that count is not 0, so it finds its slot again after the other
//!   has gone. Of several slots there that are of one word, all but the first are GIVING: each was put before
//!   the others, by a process that had waited until they were.

use crate::epochs::Pin;
use crate::inject;
use crate::keys::Node;
use crate::lazy_array::LazyArray;
use crate::memory::Account;
use crate::out_of_memory::OutOfMemory;
use crate::slot::{Permits, Slot, GIVING, RETIRING};
use crate::sorted_list::{change, Ordered, SortedList};
use crate::sync::{seeded, sized, yield_now, Mutex, MutexGuard, Ordering};
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{self, NonNull};

/// Slots to a chunk: 64 KiB.
const CHUNK: usize = sized(2, 64, 1024);

/// A processor that fetches a cache line fetches its neighbour along with it, so two slots on neighbouring lines are in
/// each other's way when their processes run at the same time. Processes that follow one another often do: every
/// second one has its slot so many places away. (A model has no cache, and chunks that are too short for it.)
const APART: u64 = if cfg!(loom) { 0 } else { CHUNK as u64 / 2 };

/// Slots that are read in one piece: about a millisecond. With fewer, a reader spends its time in coming back to a busy
/// scheduler.
const SLOTS_PER_PIECE: usize = 64 * CHUNK;

/// A piece ends after this many keys.
const SEEN_PER_PIECE: usize = 4096;

/// Who holds: the identity word of a process, and where to look for it first.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    word: NonZeroU64,
    place: u64,
}

impl Holder {
    /// `word` is the identity word of a process. `place` is always the same for a word. It should be dense, and
    /// distinct for processes that are alive at a time, for speed; nothing else depends on it.
    ///
    /// # Safety
    /// What a holder has on record is changed without a lock, and followed without a question (H1, H2). So, in one
    /// table:
    /// - No process has one of the two greatest numbers for a word.
    /// - Calls on behalf of processes with one word that acquire or release do not overlap, and each happens before the
    ///   next: of one process, and from one process to the next with that word.
    /// - Between the entry of a process in the VM's process table and its first call there is a sequentially consistent
    ///   fence.
    /// - [`Table::release_all`](crate::Table::release_all) is called for a process that is not alive anymore. The next
    ///   one with its word may be alive by then. `is_reused` reads the VM's process table during the call, and answers
    ///   "no" only if it finds no process with the word alive there.
    ///
    /// Calls that only look may come at any time. So may those of `release_all`, also several at a time for one word.
    #[inline(always)]
    pub unsafe fn new(word: NonZeroU64, place: u64) -> Self {
        debug_assert!(word.get() < GIVING);
        Self { word, place }
    }
}

/// How far a walk over the holders has come; [`Cursor::default`] is the beginning. Any value is safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Past all slots of the array.
    pub displaced: bool,
    /// The next slot: its index in the array, or its word among the displaced.
    pub slot: u64,
    /// The order to go on from in it.
    pub order: u64,
}

/// What all holders of a table together have and had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Processes that hold at least one permit.
    pub(crate) holders: usize,
    /// Permits that they hold.
    pub(crate) permits: u64,
    /// Permits that were released, by those who have died too.
    pub(crate) released: u64,
}

impl Sums {
    fn add<K>(&mut self, slot: &Slot<K>) {
        let permits = slot.permits();
        self.holders += usize::from(permits > 0);
        self.permits += permits;
        self.released += slot.released();
    }
}

/// All slots of a table.
pub(crate) struct Holders<K> {
    slots: LazyArray<Slot<K>, CHUNK>,
    mask: u64,
    /// A panic inside the lock (a bug of ours) leaves it free and the list whole: what may fail comes before
    /// anything is put in, and what is let go goes in one step, in which nothing can panic.
    displaced: Mutex<SortedList<Displaced<K>>>,
    /// Permits released from slots that have been freed since. Changed under the lock.
    released: std::sync::atomic::AtomicU64,
}

/// The slot of a process that has none in the array.
struct Displaced<K> {
    word: u64,
    slot: NonNull<Slot<K>>,
}

impl<K> Ordered for Displaced<K> {
    fn order(&self) -> u64 {
        self.word
    }
}

// SAFETY: the slot is on the heap and made of atomics.
unsafe impl<K: Send + Sync> Send for Displaced<K> {}

/// A slot as [`Holders::search`] has found it. If it is among the displaced, with the lock under which they are freed.
type Found<'a, K> = (
    &'a Slot<K>,
    Option<MutexGuard<'a, SortedList<Displaced<K>>>>,
);

impl<K> Holders<K> {
    /// Room for `processes` with places of their own. [`Holders::free`] it with the same account.
    pub(crate) fn new(processes: usize, account: &Account) -> Result<Self, OutOfMemory> {
        let capacity = processes
            .max(1)
            .checked_next_power_of_two()
            .ok_or(OutOfMemory)?;
        Ok(Self {
            slots: LazyArray::new(capacity, account)?,
            mask: capacity as u64 - 1,
            displaced: Mutex::new(SortedList::default()),
            released: Default::default(),
        })
    }

    /// The slot of a process, if it has one. For its own calls only: a slot among the displaced goes with its process.
    #[inline(always)]
    pub(crate) fn find(&self, holder: Holder) -> Option<&Slot<K>> {
        let home = self.home(holder)?;
        let at_home = home.holder();
        if at_home == holder.word.get() {
            return Some(home);
        }
        if at_home != RETIRING && home.displaced().load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find_surely(holder)
    }

    /// The slot of a process that is about to hold something. On its first time `watch` is called, which has to see
    /// to it that [`Holders::release_all`] is called after its death (H3).
    #[inline(always)]
    pub(crate) fn claim<E: From<OutOfMemory>>(
        &self,
        holder: Holder,
        account: &Account,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<&Slot<K>, E> {
        match self.find(holder) {
            Some(slot) => Ok(slot),
            None => self.claim_first(holder, account, watch),
        }
    }

    #[cold]
    fn claim_first<E: From<OutOfMemory>>(
        &self,
        holder: Holder,
        account: &Account,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<&Slot<K>, E> {
        let index = self.index(holder.place);
        let home = self
            .slots
            .get_or_create(index, account, |_| Slot::default())?;
        let slot = match home.take(holder.word) {
            true => home,
            false => self.displace(home, holder, account)?,
        };
        let unwatched = Unwatched {
            holders: self,
            holder,
            account,
        };
        inject::panic();
        watch()?;
        std::mem::forget(unwatched);
        Ok(slot)
    }

    /// Gives back all that a dead process held, exactly once (P4), and lets its slot go; unless its word is reused.
    /// Returns how many permits that were.
    pub(crate) fn release_all(
        &self,
        pin: &Pin,
        holder: Holder,
        mut is_reused: impl FnMut() -> bool,
        account: &Account,
    ) -> u64 {
        let mut given = 0;
        let mut retired = None;
        let mut release_all = || {
            if retired.is_none() {
                retired = self.retire(holder, &mut is_reused);
            }
            let Some(slot) = retired else {
                return;
            };
            if seeded("p4_vacated_before_given_back") {
                self.vacate(holder, slot, account);
            }
            slot.release_all(pin, account, &mut given);
            inject::panic();
            self.vacate(holder, slot, account);
        };
        // If it panics (a bug of ours), it is tried once more, with the slot that it had: no word leads there anymore.
        if catch_unwind(AssertUnwindSafe(&mut release_all)).is_err() {
            release_all();
        }
        given
    }

    /// The slot of a dead process, which is GIVING from then on, and the caller's (H1); unless its word is reused.
    fn retire(&self, holder: Holder, mut is_reused: impl FnMut() -> bool) -> Option<&Slot<K>> {
        let word = holder.word.get();
        let too_soon = seeded("h1_asked_before_retiring").then(&mut is_reused);
        let slot = self.take_away(holder, RETIRING)?;
        let is_reused = || too_soon.unwrap_or_else(is_reused);
        slot.retire(word, is_reused).then_some(slot)
    }

    /// Takes the slot with the holder's word away from it. From then on other threads only look at the slot.
    fn take_away(&self, holder: Holder, next: u64) -> Option<&Slot<K>> {
        let look = |slot: &Slot<K>| slot.take_away(holder.word.get(), next);
        self.search(holder, look).map(|(slot, _)| slot)
    }

    /// Does a process have a slot? One that had one and has none anymore is dead, and holds nothing. Waits as
    /// [`Holders::search`] does.
    pub(crate) fn has(&self, holder: Holder) -> bool {
        self.search(holder, Slot::holder).is_some()
    }

    /// What all processes together have and had. One walk over the slots, a cache line each: exact at quiet points.
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.slots.values().for_each(|slot| sums.add(slot));
        let displaced = self.displaced.lock();
        for displaced in displaced.from(0) {
            // SAFETY: slots are freed under this lock.
            sums.add(unsafe { displaced.slot.as_ref() });
        }
        // Under the lock too: what was released from a slot is told by the slot or from here.
        sums.released += self.released.load(Ordering::Relaxed);
        sums
    }

    /// Notes a piece of what a process holds, from this order on; returns the order to go on from.
    pub(crate) fn gather<'a>(
        &self,
        pin: &'a Pin,
        holder: Holder,
        from: u64,
        seen: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let Some((slot, _lock)) = self.search(holder, Slot::holder) else {
            return Ok(None);
        };
        let next = slot.gather(pin, None, from, seen)?;
        // The place may have become another's in between.
        seen.retain(|seen| seen.holder == holder.word.get());
        Ok(next)
    }

    /// Notes a piece of what all processes hold, of all keys or of one, from the cursor on; returns where to go on. The
    /// displaced come last.
    pub(crate) fn gather_from<'a>(
        &self,
        pin: &'a Pin,
        mut cursor: Cursor,
        only: Option<&Node<K>>,
        seen: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let mut slots_read = 0;
        while !cursor.displaced {
            let index = cursor.slot as usize;
            let Some(slots) = self.slots.rest_of_chunk(index) else {
                cursor = self.next_chunk(index);
                continue;
            };
            for slot in slots {
                if slots_read >= SLOTS_PER_PIECE || seen.len() >= SEEN_PER_PIECE {
                    return Ok(Some(cursor));
                }
                if let Some(order) = slot.gather(pin, only, cursor.order, seen)? {
                    return Ok(Some(Cursor { order, ..cursor }));
                }
                slots_read += 1;
                cursor.slot += 1;
                cursor.order = 0;
            }
        }
        self.gather_displaced(pin, cursor, only, seen)
    }

    /// Where the next chunk that is there begins.
    fn next_chunk(&self, index: usize) -> Cursor {
        let mut chunks = index / CHUNK..self.slots.chunk_count();
        let next = chunks.find(|chunk| self.slots.chunk(*chunk).is_some());
        Cursor {
            displaced: next.is_none(),
            slot: next.map_or(0, |chunk| (chunk * CHUNK) as u64),
            order: 0,
        }
    }

    fn gather_displaced<'a>(
        &self,
        pin: &'a Pin,
        mut cursor: Cursor,
        only: Option<&Node<K>>,
        seen: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        loop {
            if seen.len() >= SEEN_PER_PIECE {
                return Ok(Some(cursor));
            }
            let displaced = self.displaced.lock();
            let mut slots = displaced.from(cursor.slot);
            let next = if seeded("h4_one_dead_hides_the_next") {
                slots.last()
            } else {
                slots.next()
            };
            let Some(next) = next else {
                return Ok(None);
            };
            if next.word > cursor.slot {
                cursor.slot = next.word;
                cursor.order = 0;
            }
            // SAFETY: slots are freed under this lock.
            let slot = unsafe { next.slot.as_ref() };
            if let Some(order) = slot.gather(pin, only, cursor.order, seen)? {
                return Ok(Some(Cursor { order, ..cursor }));
            }
            let Some(next) = cursor.slot.checked_add(1) else {
                return Ok(None);
            };
            cursor.slot = next;
            cursor.order = 0;
        }
    }

    /// Frees everything. The permits on record are not released.
    ///
    /// # Safety
    /// Made with this account, no other thread is inside, and it is not used again.
    pub(crate) unsafe fn free(&self, account: &Account) {
        let mut displaced = change(&self.displaced, account);
        while let Some(Displaced { slot, .. }) = displaced.list.pop() {
            // SAFETY: allocated with this account by `displace`, and no other thread is inside.
            unsafe {
                slot.as_ref().free_more(account);
                account.free(slot);
            }
        }
        displaced.list.shrink_to_fit();
        let slots = self.slots.values();
        slots.for_each(|slot| slot.free_more(account));
        // SAFETY: as the caller says.
        unsafe { self.slots.free(account) };
    }

    /// Where the slot of a process is, unless that is taken.
    #[inline(always)]
    fn home(&self, holder: Holder) -> Option<&Slot<K>> {
        self.slots.get(self.index(holder.place))
    }

    #[inline(always)]
    fn index(&self, place: u64) -> usize {
        // One place for each, whatever the mask: the lowest bit stays, and says whether another one is turned.
        ((place ^ ((place & 1) * APART)) & self.mask) as usize
    }

    /// As [`Holders::find`], if the home is RETIRING, or slots that belong there are among the displaced.
    #[cold]
    fn find_surely(&self, holder: Holder) -> Option<&Slot<K>> {
        self.search(holder, Slot::holder).map(|(slot, _)| slot)
    }

    /// The slot at which `look` sees the holder's word. Waits as long as a slot is RETIRING that may have had it.
    ///
    /// A caller that is not the process itself, and has not taken the slot away, uses it only as long as it keeps the
    /// answer.
    fn search(&self, holder: Holder, look: impl Fn(&Slot<K>) -> u64) -> Option<Found<'_, K>> {
        let home = self.home(holder)?;
        let word = holder.word.get();
        loop {
            let mut seen = look(home);
            if seen == word {
                return Some((home, None));
            }
            if seen != RETIRING || seeded("h1_retiring_not_waited_for") {
                let displaced = self.displaced.lock();
                let slot = displaced.find(word, |_| true)?.slot;
                // SAFETY: slots are freed under this lock. So it goes with the slot.
                let slot = unsafe { slot.as_ref() };
                seen = look(slot);
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

    fn displace(
        &self,
        home: &Slot<K>,
        holder: Holder,
        account: &Account,
    ) -> Result<&Slot<K>, OutOfMemory> {
        let word = holder.word.get();
        let mut displaced = change(&self.displaced, account);
        let vacancy = displaced.list.reserve(word)?;
        let slot = account.allocate(Slot::default())?;
        vacancy.insert(Displaced { word, slot });
        // SAFETY: just allocated; freed by this process's death only, or with the table.
        let slot = unsafe { slot.as_ref() };
        slot.take(holder.word);
        if !seeded("h4_displaced_not_counted") {
            home.displaced().fetch_add(1, Ordering::Relaxed);
        }
        Ok(slot)
    }

    /// Lets a slot go that is GIVING, and has nothing on record. It may be freed.
    fn vacate(&self, holder: Holder, slot: *const Slot<K>, account: &Account) {
        let home = self.home(holder).expect("older than the slot");
        if ptr::eq(home, slot) {
            home.vacate(account);
            return;
        }
        let mut displaced = change(&self.displaced, account);
        let is_it = |displaced: &Displaced<K>| {
            ptr::eq(displaced.slot.as_ptr(), slot) || seeded("h4_vacated_by_word")
        };
        let gone = displaced.list.remove(holder.word.get(), is_it);
        let gone = gone.expect("a slot that is not at home").slot;
        home.displaced().fetch_sub(1, Ordering::Relaxed);
        // SAFETY: allocated with this account by `displace`. No call finds it anymore (H1), and those that look hold
        // this lock.
        unsafe {
            let released = gone.as_ref().released();
            self.released.fetch_add(released, Ordering::Relaxed);
            gone.as_ref().free_more(account);
            account.free(gone);
        }
    }
}

/// A slot whose process nobody watches. When it is dropped, because the watch could not be had or panicked, the slot
/// is let go: with it the process would take permits that nobody gave back (H3).
struct Unwatched<'a, K> {
    holders: &'a Holders<K>,
    holder: Holder,
    account: &'a Account,
}

impl<K> Drop for Unwatched<'_, K> {
    fn drop(&mut self) {
        let next = if seeded("h3_let_go_before_it_is_vacated") {
            0
        } else {
            GIVING
        };
        if let Some(slot) = self.holders.take_away(self.holder, next) {
            self.holders.vacate(self.holder, slot, self.account);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// H4: with two places to one slot, one of two processes would always be displaced, and its calls take a lock.
    #[test]
    fn h4_each_place_has_a_slot_of_its_own_and_no_neighbour_next_to_it() {
        for processes in [1, 2, 16, 1024, 4096] {
            let account = Account::default();
            let holders = Holders::<u64>::new(processes, &account).unwrap();
            let places = 0..processes as u64;
            let slots: BTreeSet<usize> = places.map(|place| holders.index(place)).collect();
            assert_eq!(slots.len(), processes);
            if processes > CHUNK {
                assert!(holders.index(6).abs_diff(holders.index(7)) > 1);
            }
            // SAFETY: nobody else knows it.
            unsafe { holders.free(&account) };
        }
    }
}
