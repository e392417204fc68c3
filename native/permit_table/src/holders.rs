//! From a process to what it holds.
//!
//! Every process that has ever acquired has a slot, found from its identity word. Part of the word only *chooses* a
//! place; equality of the whole word *decides*. Where the places of living processes are distinct, as in a VM that
//! numbers its processes by a table, a slot is one array access away; any other distribution is slower, and as right.
//!
//! ```text
//!   slots  [ holder | displaced | entry | entry | more ]  64 bytes each, by place
//!                                 |               '-> keys beyond the second: a hash table of the process's own
//!                                 '-> key's node, permits of it
//! ```
//!
//! # Invariants
//! - **H1** Only the process itself changes its slot while it lives, inside its own calls; after its death only the
//!   one death callback does. So no two ever change one slot at a time, and plain stores are enough.
//! - **H2** An entry with permits > 0 names a node whose count includes them (K6: so it is alive). They are added
//!   after the count has gone up, and subtracted before it goes down. An entry with 0 permits may name memory that is
//!   something else by now: it is never followed.
//! - **H3** A slot at its own place is taken before the process is watched, and the process is watched before its
//!   first permit is counted: whatever is counted is given back (P4).
//! - **H4** A process that finds its place taken by another lives in `displaced`, and the place counts how many do.
//!   It looks there if that count is not 0, so it finds its slot again after the other has gone.

use crate::epochs::Pin;
use crate::keys::Node;
use crate::lazy_array::LazyArray;
use crate::memory::{Account, OutOfMemory};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering};
use equivalent::Equivalent;
use hashbrown::HashTable;
use std::num::NonZeroU64;
use std::ptr::{self, NonNull};

/// Slots to a chunk: 64 KiB.
const CHUNK: usize = if cfg!(loom) { 2 } else { 1024 };

/// Entries in the slot itself: with them it fills a cache line.
const INLINE: usize = 2;

/// A hash table of a holder that is empty and has room for more than this is freed.
const KEPT_ROOM: usize = 64;

/// Who holds: the identity word of a process, and where to look for it first.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    word: NonZeroU64,
    place: u64,
}

impl Holder {
    /// `word` is the holder's identity: distinct for any two that live at a time. `place` should be dense and
    /// distinct for them too, for speed; nothing else depends on it.
    ///
    /// # Safety
    /// Calls of one table on behalf of one word do not overlap, and each of them happens before the next. After
    /// `give_back` there are none before the word stands for somebody else. (What a holder has on record is kept
    /// without a lock, and followed without a question: H1, H2.)
    pub unsafe fn new(word: NonZeroU64, place: u64) -> Self {
        Self { word, place }
    }
}

/// The caller does not hold what it wants to release. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld;

/// What a process had when it died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Keys of which it held permits.
    pub keys: u64,
    /// Permits, of all keys together.
    pub permits: u64,
}

struct Entry<K> {
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

/// A key that a process holds beyond the second.
struct Held<K> {
    node: NonNull<Node<K>>,
    /// The node's: what it is hashed by.
    order: u64,
    permits: u64,
}

// SAFETY: a pointer to a node that is alive as long as permits > 0 (H2), and nodes are shared between threads anyway.
unsafe impl<K: Send + Sync> Send for Held<K> {}

/// The keys that a process holds beyond the second.
type More<K> = Mutex<HashTable<Held<K>>>;

/// What one process holds.
#[repr(C, align(64))]
pub(crate) struct Slot<K> {
    /// The identity word of its process, or 0.
    holder: AtomicU64,
    /// How many processes that belong here live in [`Holders::displaced`].
    displaced: AtomicU32,
    entries: [Entry<K>; INLINE],
    more: AtomicPtr<More<K>>,
}

impl<K> Default for Slot<K> {
    fn default() -> Self {
        Self {
            holder: AtomicU64::new(0),
            displaced: AtomicU32::new(0),
            entries: Default::default(),
            more: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

/// Where a permit is going to be recorded.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Entry(usize),
    More,
}

/// All slots of a table.
pub(crate) struct Holders<K> {
    slots: LazyArray<Slot<K>, CHUNK>,
    mask: u64,
    displaced: Mutex<HashTable<Displaced<K>>>,
}

/// The slot of a process whose place was taken.
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
        })
    }

    /// The slot of a process, if it has one.
    #[inline(always)]
    pub(crate) fn find(&self, holder: Holder) -> Option<&Slot<K>> {
        let home = self.slots.get(self.index(holder))?;
        if home.holder.load(Ordering::Acquire) == holder.word.get() {
            return Some(home);
        }
        if home.displaced.load(Ordering::Relaxed) == 0 {
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
        let home = self
            .slots
            .get_or_create(self.index(holder), account, |_| Slot::default())?;
        let slot = if home.take(holder) {
            home
        } else {
            self.displace(home, holder, account)?
        };
        match watch() {
            Ok(()) => Ok(slot),
            Err(error) => {
                // Nobody would ever clear it.
                self.vacate(holder, account);
                Err(error)
            }
        }
    }

    /// Takes one permit of the key off the process's record, and gives it back to the count.
    #[inline(always)]
    pub(crate) fn release<Q: Equivalent<K>>(
        &self,
        _pin: &Pin,
        holder: Holder,
        query: &Q,
        account: &Account,
        order: impl FnOnce() -> u64,
    ) -> Result<(), NotHeld> {
        let slot = self.find(holder).ok_or(NotHeld)?;
        for entry in &slot.entries {
            let permits = entry.permits.load(Ordering::Relaxed);
            if permits == 0 {
                continue;
            }
            // SAFETY: permits > 0 (H2), and only we change that (H1).
            let node = unsafe { &*entry.node.load(Ordering::Relaxed) };
            if query.equivalent(&node.key) {
                entry.permits.store(permits - 1, Ordering::Release);
                node.buckets.release(1);
                return Ok(());
            }
        }
        slot.release_more(query, order, account)
    }

    /// Gives back all that a dead process held, exactly once (P4), and lets its slot go.
    pub(crate) fn give_back(&self, _pin: &Pin, holder: Holder, account: &Account) -> GivenBack {
        let Some(slot) = self.find(holder) else {
            return GivenBack::default();
        };
        let mut given = GivenBack::default();
        let mut give = |node: NonNull<Node<K>>, permits: u64| {
            // SAFETY: permits > 0 (H2), and the process that could change that is dead (H1).
            unsafe { node.as_ref() }.buckets.release(permits);
            given.keys += 1;
            given.permits += permits;
        };
        for entry in &slot.entries {
            let permits = entry.permits.swap(0, Ordering::AcqRel);
            if let Some(node) = NonNull::new(entry.node.load(Ordering::Relaxed)) {
                if permits > 0 {
                    give(node, permits);
                }
            }
        }
        if let Some(more) = slot.more() {
            for held in more.lock().drain() {
                give(held.node, held.permits);
            }
        }
        self.vacate(holder, account);
        given
    }

    /// How many processes hold at least one permit. Exact at quiet points.
    pub(crate) fn count(&self, _pin: &Pin) -> usize {
        let at_home = (0..self.slots.chunk_count())
            .filter_map(|chunk| self.slots.chunk(chunk))
            .flatten()
            .filter(|slot| slot.holds_any())
            .count();
        let displaced = self.displaced.lock();
        let elsewhere = displaced
            .iter()
            // SAFETY: slots are freed under this lock.
            .filter(|displaced| unsafe { displaced.slot.as_ref() }.holds_any())
            .count();
        at_home + elsewhere
    }

    /// Frees one chunk of slots; answers whether any are left. The permits on record are not given back.
    ///
    /// # Safety
    /// Made with this account, nobody is inside, and it is not used for anything else again.
    pub(crate) unsafe fn free_some(&self, account: &Account) -> bool {
        let last = (0..self.slots.chunk_count())
            .rev()
            .find_map(|chunk| self.slots.chunk(chunk));
        for slot in last.into_iter().flatten() {
            slot.free_more(account);
        }
        // SAFETY: as the caller says.
        unsafe { self.slots.free_last(account, 0) }
    }

    /// Frees everything, after [`Holders::free_some`] has freed all chunks.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn free(&self, account: &Account) {
        let mut displaced = self.displaced.lock();
        for gone in displaced.drain() {
            // SAFETY: allocated with this account by `displace`; nobody is inside.
            unsafe {
                gone.slot.as_ref().free_more(account);
                account.free(gone.slot);
            }
        }
        free_room(&mut displaced, account);
        // SAFETY: as the caller says.
        unsafe { self.slots.free(account) };
    }

    #[inline(always)]
    fn index(&self, holder: Holder) -> usize {
        (holder.place & self.mask) as usize
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
        home: &Slot<K>,
        holder: Holder,
        account: &Account,
    ) -> Result<&Slot<K>, OutOfMemory> {
        let word = holder.word.get();
        let mut displaced = self.displaced.lock();
        reserve(&mut displaced, account, |displaced| spread(displaced.word))?;
        let slot = account.allocate(Slot::default())?;
        // SAFETY: just allocated; freed by this process's death only, or with the table.
        let slot = unsafe { slot.as_ref() };
        slot.take(holder);
        displaced.insert_unique(
            spread(word),
            Displaced {
                word,
                slot: NonNull::from(slot),
            },
            |displaced| spread(displaced.word),
        );
        home.displaced.fetch_add(1, Ordering::Relaxed);
        Ok(slot)
    }

    /// Lets the slot of a process go: it holds nothing, and will not come again.
    fn vacate(&self, holder: Holder, account: &Account) {
        let Some(home) = self.slots.get(self.index(holder)) else {
            return;
        };
        let word = holder.word.get();
        if home.holder.load(Ordering::Relaxed) == word {
            if let Some(more) = home.more() {
                // The lock itself stays with the place: somebody may just be counting (`count`).
                free_room(&mut more.lock(), account);
            }
            // Release: the next one to take it finds it clean.
            home.holder.store(0, Ordering::Release);
            return;
        }
        let mut displaced = self.displaced.lock();
        if let Ok(found) = displaced.find_entry(spread(word), |displaced| displaced.word == word) {
            let (gone, _) = found.remove();
            free_room_beyond(KEPT_ROOM, &mut displaced, account);
            home.displaced.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: allocated with this account by `displace`; only its dead process and this lock's holder ever
            // see it.
            unsafe {
                gone.slot.as_ref().free_more(account);
                account.free(gone.slot);
            }
        }
    }
}

impl<K> Slot<K> {
    /// Room for one more permit of `node`, or of a key that has no node yet: nothing can fail after this.
    #[inline(always)]
    pub(crate) fn reserve(
        &self,
        node: Option<&Node<K>>,
        account: &Account,
    ) -> Result<Place, OutOfMemory> {
        let wanted = node.map_or(ptr::null(), ptr::from_ref);
        let mut free = None;
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.permits.load(Ordering::Relaxed) == 0 {
                free = free.or(Some(index));
            } else if ptr::eq(entry.node.load(Ordering::Relaxed), wanted) {
                return Ok(Place::Entry(index));
            }
        }
        if let (Some(more), Some(node)) = (self.more(), node) {
            let held = more.lock();
            if held
                .find(node.order(), |held| ptr::eq(held.node.as_ptr(), node))
                .is_some()
            {
                return Ok(Place::More);
            }
        }
        match free {
            Some(index) => Ok(Place::Entry(index)),
            None => self.reserve_more(account),
        }
    }

    /// Records a permit of `node`, whose count includes it already, in the place reserved for it. Cannot fail.
    #[inline(always)]
    pub(crate) fn record(&self, place: Place, node: &Node<K>) {
        match place {
            Place::Entry(index) => {
                let entry = &self.entries[index];
                entry
                    .node
                    .store(ptr::from_ref(node).cast_mut(), Ordering::Release);
                let permits = entry.permits.load(Ordering::Relaxed);
                // Release: whoever looks on from elsewhere and sees the permits sees the node (H2).
                entry.permits.store(permits + 1, Ordering::Release);
            }
            Place::More => self.record_more(node),
        }
    }

    fn take(&self, holder: Holder) -> bool {
        // Acquire: what the last holder's death did to it is done.
        self.holder
            .compare_exchange(0, holder.word.get(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn holds_any(&self) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.permits.load(Ordering::Acquire) > 0)
            // Locked by its own process it is about to hold something, or did a moment ago; it must not wait for us.
            || self
                .more()
                .is_some_and(|more| more.try_lock().is_none_or(|held| !held.is_empty()))
    }

    fn more(&self) -> Option<&More<K>> {
        // SAFETY: freed with its slot, not before.
        unsafe { self.more.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn reserve_more(&self, account: &Account) -> Result<Place, OutOfMemory> {
        let more = match self.more() {
            Some(more) => more,
            None => {
                let fresh = account.allocate(Mutex::new(HashTable::new()))?;
                self.more.store(fresh.as_ptr(), Ordering::Release);
                // SAFETY: as in `more`.
                unsafe { fresh.as_ref() }
            }
        };
        reserve(&mut more.lock(), account, |held| held.order)?;
        Ok(Place::More)
    }

    #[cold]
    fn record_more(&self, node: &Node<K>) {
        let mut held = self.more().expect("reserved by `reserve`").lock();
        let order = node.order();
        // Not `entry`: that one reserves room again, and cannot say so when there is none.
        match held.find_mut(order, |held| ptr::eq(held.node.as_ptr(), node)) {
            Some(entry) => entry.permits += 1,
            None => {
                let entry = Held {
                    node: NonNull::from(node),
                    order,
                    permits: 1,
                };
                held.insert_unique(order, entry, |held| held.order);
            }
        }
    }

    #[cold]
    fn release_more<Q: Equivalent<K>>(
        &self,
        query: &Q,
        order: impl FnOnce() -> u64,
        account: &Account,
    ) -> Result<(), NotHeld> {
        let mut held = self.more().ok_or(NotHeld)?.lock();
        let order = order();
        let is_wanted = |held: &Held<K>| {
            // SAFETY: what is on record has permits (H2).
            query.equivalent(unsafe { &held.node.as_ref().key })
        };
        let mut entry = held.find_entry(order, is_wanted).map_err(|_| NotHeld)?;
        // SAFETY: as above.
        let node = unsafe { entry.get().node.as_ref() };
        if entry.get().permits > 1 {
            entry.get_mut().permits -= 1;
        } else {
            entry.remove();
            free_room_beyond(KEPT_ROOM, &mut held, account);
        }
        node.buckets.release(1);
        Ok(())
    }

    /// Frees the table of further keys, lock and all. Called where nobody else can see the slot.
    fn free_more(&self, account: &Account) {
        let more = self.more.swap(ptr::null_mut(), Ordering::AcqRel);
        if let Some(more) = NonNull::new(more) {
            // SAFETY: allocated with this account by `reserve_more`, and just taken out by us.
            unsafe {
                account.subtract(more.as_ref().lock().allocation_size());
                account.free(more);
            }
        }
    }
}

/// Room for one more in a hash table, on the table's account.
fn reserve<T>(
    table: &mut HashTable<T>,
    account: &Account,
    hash: impl Fn(&T) -> u64,
) -> Result<(), OutOfMemory> {
    #[cfg(test)]
    crate::memory::failing::check()?;
    let before = table.allocation_size();
    table.try_reserve(1, hash).map_err(|_| OutOfMemory)?;
    account.add(table.allocation_size());
    account.subtract(before);
    Ok(())
}

/// Frees what is reserved by an empty hash table.
fn free_room<T>(table: &mut HashTable<T>, account: &Account) {
    account.subtract(table.allocation_size());
    *table = HashTable::new();
}

/// The same, if it is empty and has more room than is worth keeping. (To shrink one that is not empty could fail.)
fn free_room_beyond<T>(kept: usize, table: &mut HashTable<T>, account: &Account) {
    if table.is_empty() && table.capacity() > kept {
        free_room(table, account);
    }
}

/// A word spread over all bits, as the hash table wants it (Fibonacci hashing, Knuth 6.4). Words come from the VM,
/// not from strangers.
fn spread(word: u64) -> u64 {
    word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32)
}
