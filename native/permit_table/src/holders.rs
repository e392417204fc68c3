//! From a process to its slot.
//!
//! Every process that has ever acquired has a slot (`slot.rs`), found from its identity word. Part of the word only
//! *chooses* a place; equality of the whole word *decides*. Where the places of living processes are distinct, as in
//! a VM that numbers its processes by a table, a slot is one array access away; any other distribution is slower, and
//! as right.
//!
//! # Invariants
//! - **H3** A slot is taken before the process is watched, and the process is watched before its first permit is
//!   counted: whatever is counted is given back (P4). Who watches a holder in another way than by being asked to must
//!   see to it for himself.
//! - **H4** A process that finds its place taken by another lives in `displaced`, and the place counts how many do.
//!   It looks there if that count is not 0, so it finds its slot again after the other has gone. A holder without a
//!   place always lives there.

use crate::epochs::Pin;
use crate::fault;
use crate::keys::Node;
use crate::lazy_array::LazyArray;
use crate::memory::{free_room, free_room_if_empty, reserve_one, Account, OutOfMemory};
use crate::slot::{GivenBack, Seen, Slot};
use crate::sync::{seeded, sized, Mutex, Ordering};
use hashbrown::HashTable;
use std::num::NonZeroU64;
use std::ptr::NonNull;

/// Slots to a chunk: 64 KiB.
const CHUNK: usize = sized(2, 64, 1024);

/// A processor that fetches a cache line fetches its neighbour along with it, so two slots on neighbouring lines are in
/// each other's way when their processes run at the same time. Processes that follow one another often do: every
/// second one has its slot so many places away. (A model has no cache, and chunks that are too short for it.)
const APART: u64 = if cfg!(loom) { 0 } else { CHUNK as u64 / 2 };

/// Chunks that are looked at in one piece: about a millisecond. With less, whoever looks spends its time in coming back
/// to a busy scheduler.
const CHUNKS_PER_PIECE: usize = 64;

/// A piece ends behind the chunk in which so much has been seen.
const SEEN_PER_PIECE: usize = 4096;

/// Who holds: the identity word of a process, and where to look for it first.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    word: NonZeroU64,
    place: Option<u64>,
}

impl Holder {
    /// `word` is the holder's identity: distinct for any two that live at a time. `place` should be dense and
    /// distinct for them too, for speed; nothing else depends on it.
    ///
    /// # Safety
    /// Calls of one table on behalf of one word do not overlap, and each of them happens before the next. After
    /// `give_back` there are none before the word stands for somebody else. (What a holder has on record is kept
    /// without a lock, and followed without a question: H1, H2.) Those that only look may come at any time.
    #[inline(always)]
    pub unsafe fn new(word: NonZeroU64, place: u64) -> Self {
        Self {
            word,
            place: Some(place),
        }
    }

    /// A holder without a place of its own, which takes none from others. Its calls are dearer by a lock.
    ///
    /// # Safety
    /// As [`Holder::new`].
    pub unsafe fn without_place(word: NonZeroU64) -> Self {
        Self { word, place: None }
    }
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
    /// A panic inside the lock (a bug of ours) leaves it free and the table whole: what may fail comes before
    /// anything is put in, and what is let go goes in one step, in which nothing can panic.
    displaced: Mutex<HashTable<Displaced<K>>>,
    /// Permits released from slots that have been freed since. Changed under the lock.
    released: std::sync::atomic::AtomicU64,
}

/// The slot of a process that has none in the array.
struct Displaced<K> {
    word: u64,
    slot: NonNull<Slot<K>>,
}

// SAFETY: the slot is on the heap and made of atomics.
unsafe impl<K: Send + Sync> Send for Displaced<K> {}

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
            displaced: Mutex::new(HashTable::new()),
            released: Default::default(),
        })
    }

    /// The slot of a process, if it has one. For its own calls and its death only: a slot among the displaced goes
    /// with its process.
    #[inline(always)]
    pub(crate) fn find(&self, holder: Holder) -> Option<&Slot<K>> {
        let Some(place) = holder.place else {
            return self.find_displaced(holder);
        };
        let home = self.slots.get(self.index(place))?;
        if home.holder() == holder.word.get() {
            return Some(home);
        }
        if home.displaced().load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find_displaced(holder)
    }

    /// The slot of a process that is about to hold something. On its first time `watch` is called, which has to see
    /// to it that [`Holders::give_back`] is called after its death (H3).
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
        let home = match holder.place {
            None => None,
            Some(place) => {
                let index = self.index(place);
                Some(
                    self.slots
                        .get_or_create(index, account, |_| Slot::default())?,
                )
            }
        };
        let slot = match home {
            Some(home) if home.take(holder.word) => home,
            _ => self.displace(home, holder, account)?,
        };
        let unwatched = Unwatched {
            holders: self,
            holder,
            account,
        };
        fault::point();
        watch()?;
        std::mem::forget(unwatched);
        Ok(slot)
    }

    /// Gives back all that a dead process held, exactly once (P4), and lets its slot go.
    /// Adds what it has given back, as it goes.
    pub(crate) fn give_back(
        &self,
        pin: &Pin,
        holder: Holder,
        account: &Account,
        given: &mut GivenBack,
    ) {
        let Some(slot) = self.find(holder) else {
            return;
        };
        if seeded("p4_vacated_before_given_back") {
            self.vacate(holder, account);
        }
        slot.give_back(pin, given);
        fault::point();
        self.vacate(holder, account);
    }

    /// What all processes together have and had. One walk over the slots, a cache line each: exact at quiet points.
    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for chunk in 0..self.slots.chunk_count() {
            let slots = self.slots.chunk(chunk).into_iter().flatten();
            slots.for_each(|slot| sums.add(slot));
        }
        let displaced = self.displaced.lock();
        for displaced in displaced.iter() {
            // SAFETY: slots are freed under this lock.
            sums.add(unsafe { displaced.slot.as_ref() });
        }
        // Under the lock too: what was released from a slot is told by the slot or from here.
        sums.released += self.released.load(Ordering::Relaxed);
        sums
    }

    /// Notes what a process holds. Anybody may ask.
    pub(crate) fn gather<'a>(
        &self,
        pin: &'a Pin,
        holder: Holder,
        seen: &mut Vec<Seen<'a, K>>,
    ) -> Result<(), OutOfMemory> {
        let word = holder.word.get();
        let home = holder
            .place
            .and_then(|place| self.slots.get(self.index(place)));
        if let Some(home) = home.filter(|home| home.holder() == word) {
            home.gather(pin, None, seen)?;
        } else {
            let displaced = self.displaced.lock();
            if let Some(found) = displaced.find(spread(word), |displaced| displaced.word == word) {
                // SAFETY: slots are freed under this lock.
                unsafe { found.slot.as_ref() }.gather(pin, None, seen)?;
            }
        }
        // The place may have become another's in between.
        seen.retain(|seen| seen.holder == word);
        Ok(())
    }

    /// Notes what all processes of some chunks hold, of all keys or of one, from this chunk on; answers which is next.
    /// The displaced come after the last.
    pub(crate) fn gather_from<'a>(
        &self,
        pin: &'a Pin,
        chunk: usize,
        only: Option<&Node<K>>,
        seen: &mut Vec<Seen<'a, K>>,
    ) -> Result<Option<usize>, OutOfMemory> {
        let there = |chunk: usize| Some((chunk, self.slots.chunk(chunk)?));
        let mut next = chunk;
        let mut looked_at = 0;
        while let Some((chunk, slots)) = (next..self.slots.chunk_count()).find_map(there) {
            if looked_at >= CHUNKS_PER_PIECE || seen.len() >= SEEN_PER_PIECE {
                return Ok(Some(chunk));
            }
            for slot in slots {
                slot.gather(pin, only, seen)?;
            }
            looked_at += 1;
            next = chunk + 1;
        }
        if looked_at > 0 {
            return Ok(Some(next));
        }
        for displaced in self.displaced.lock().iter() {
            // SAFETY: slots are freed under this lock.
            unsafe { displaced.slot.as_ref() }.gather(pin, only, seen)?;
        }
        Ok(None)
    }

    /// Frees up to `limit` slots of the displaced, or one chunk; answers whether any are left. The permits on record
    /// are not given back.
    ///
    /// # Safety
    /// Made with this account, nobody is inside, and it is not used for anything else again.
    pub(crate) unsafe fn free_some(&self, account: &Account, limit: usize) -> bool {
        let mut displaced = self.displaced.lock();
        if !displaced.is_empty() {
            for gone in displaced.extract_if(|_| true).take(limit) {
                // SAFETY: allocated with this account by `displace`; nobody is inside.
                unsafe {
                    gone.slot.as_ref().free_more(account);
                    account.free(gone.slot);
                }
            }
            return true;
        }
        let last = (0..self.slots.chunk_count())
            .rev()
            .find_map(|chunk| self.slots.chunk(chunk));
        for slot in last.into_iter().flatten() {
            slot.free_more(account);
        }
        // SAFETY: as the caller says.
        unsafe { self.slots.free_last(account, 0) }
    }

    /// Frees everything, after [`Holders::free_some`] has freed all slots.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn free(&self, account: &Account) {
        free_room(&mut self.displaced.lock(), account);
        // SAFETY: as the caller says.
        unsafe { self.slots.free(account) };
    }

    #[inline(always)]
    fn index(&self, place: u64) -> usize {
        // One place for each, whatever the mask: the lowest bit stays, and says whether another one is turned.
        ((place ^ ((place & 1) * APART)) & self.mask) as usize
    }

    #[cold]
    fn find_displaced(&self, holder: Holder) -> Option<&Slot<K>> {
        let word = holder.word.get();
        let displaced = self.displaced.lock();
        let found = displaced.find(spread(word), |displaced| displaced.word == word)?;
        // SAFETY: it is freed by its own process's death only, or with the table.
        Some(unsafe { found.slot.as_ref() })
    }

    fn displace(
        &self,
        home: Option<&Slot<K>>,
        holder: Holder,
        account: &Account,
    ) -> Result<&Slot<K>, OutOfMemory> {
        let word = holder.word.get();
        let mut displaced = self.displaced.lock();
        reserve_one(&mut displaced, account, |displaced| spread(displaced.word))?;
        let slot = account.allocate(Slot::default())?;
        // SAFETY: just allocated; freed by this process's death only, or with the table.
        let slot = unsafe { slot.as_ref() };
        slot.take(holder.word);
        displaced.insert_unique(
            spread(word),
            Displaced {
                word,
                slot: NonNull::from(slot),
            },
            |displaced| spread(displaced.word),
        );
        if let Some(home) = home.filter(|_| !seeded("h4_displaced_not_counted")) {
            home.displaced().fetch_add(1, Ordering::Relaxed);
        }
        Ok(slot)
    }

    /// Lets the slot of a process go: it holds nothing, and will not come again.
    fn vacate(&self, holder: Holder, account: &Account) {
        let home = holder
            .place
            .and_then(|place| self.slots.get(self.index(place)));
        let word = holder.word.get();
        if let Some(home) = home.filter(|home| home.holder() == word) {
            home.vacate(account);
            return;
        }
        let mut displaced = self.displaced.lock();
        if let Ok(found) = displaced.find_entry(spread(word), |displaced| displaced.word == word) {
            let (gone, _) = found.remove();
            free_room_if_empty(&mut displaced, account);
            if let Some(home) = home {
                home.displaced().fetch_sub(1, Ordering::Relaxed);
            }
            // SAFETY: allocated with this account by `displace`; only its dead process and this lock's holder ever
            // see it.
            unsafe {
                let released = gone.slot.as_ref().released();
                self.released.fetch_add(released, Ordering::Relaxed);
                gone.slot.as_ref().free_more(account);
                account.free(gone.slot);
            }
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
        self.holders.vacate(self.holder, self.account);
    }
}

/// A word spread over all bits, as the hash table wants it (Fibonacci hashing, Knuth 6.4). Words come from the VM,
/// not from strangers.
fn spread(word: u64) -> u64 {
    word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32)
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
