//! The table: combines keys, holders and the sweep. This is where the promises are kept.
//!
//! - **P1 Exact**: a grant is one compare-and-swap on the key's word ([`Buckets::acquire`](crate::buckets)), or the
//!   insertion of a new key that has its first permit out.
//! - **P2 A refusal changes nothing**: the word is read before anything is reserved. A caller that then loses the last
//!   permit to another caller keeps what it has reserved: memory of its record, and at its first call a slot and a
//!   watch.
//! - **P3 O(1) in buckets**: the capacity is a product, and the word a sum.
//! - **P4 No leak**: a counted permit is put on the holder's record in the same call, and the report of the holder's
//!   death leads to that record (H3).
//! - **P5 Only a holder releases**: a release starts from the caller's own record.
//! - **P6 Resizing is free**: the capacity is an argument of the call and stored nowhere.
//! - **P8 Idle keys cost nothing**: [`Table::sweep_step`].
//! - **P9**: memory is reserved before the count changes. After that, nothing can fail.

use crate::buckets::{Capacity, Refusal};
use crate::counters::{Counters, Event};
use crate::holders::{Holder, Holders};
use crate::keys::{order_of_key, Inserted, Key, Keys, NewNode, Node, Query};
use crate::memory::{Account, OutOfMemory};
use crate::slot::{NotHeld, Slot};
use crate::sweep::{Progress, Sweep};
use crate::{barrier, budget::Budget, epochs::Pin, inject, sync::Mutex};
use ahash::RandomState;
use equivalent::Equivalent;
use std::hash::Hash;

/// The result of [`Table::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The caller has a permit. The number of permits of the key out, this one included.
    Permit(u64),
    /// The permits out were not below the capacity. Nothing has changed.
    Full,
}

/// Current size and cost of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Keys in the table, including idle ones that the sweep has not visited yet.
    pub keys: usize,
    /// Permits out, of all keys together.
    pub permits: u64,
    /// Processes that hold at least one permit.
    pub holders: usize,
    /// Bytes allocated.
    pub memory: usize,
    /// Memory barriers that the kernel has refused this process, for all its tables together. Each time nothing could
    /// be freed: if the number grows, so does `memory`. It stays 0 unless `membarrier(2)` is forbidden after the start.
    pub barriers_refused: u64,
    /// Events so far.
    pub totals: Totals,
}

/// Events in a table since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Permits granted: those that are out, and those that were released. Computed from the other numbers, so a grant
    /// writes no counter.
    pub granted: u64,
    /// Acquires refused with "full".
    pub refused: u64,
    /// Permits released by their holders.
    pub released: u64,
    /// Permits released because their holders died.
    pub released_by_death: u64,
    /// Releases by callers that did not hold the key.
    pub not_held: u64,
    /// Idle keys that the sweep has reclaimed.
    pub reclaimed: u64,
}

/// A table of permits by key and holder. One table is one incarnation: it starts empty, and its permits end with it.
///
/// All methods may be called from any thread at any time, under the conditions of [`Holder::new`].
pub struct Table<K: Key> {
    pub(crate) keys: Keys<K>,
    pub(crate) holders: Holders<K>,
    counters: Counters,
    /// A panic inside the lock leaves a step incomplete; `sweep.rs` says how the next one completes it.
    sweep: Mutex<Sweep<K>>,
    /// Has random seeds per table: keys can come from untrusted senders, which must not be able to compute collisions.
    hasher: RandomState,
    account: Account,
}

impl<K: Key> Table<K> {
    /// An empty table for a VM of up to `processes` processes. Allocates about 240 KB, and later 64 KiB per 1,024
    /// processes.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(processes: usize) -> Result<Self, OutOfMemory> {
        let account = Account::default();
        let counters = Counters::new(&account)?;
        let keys = Keys::new(&account).inspect_err(|_| {
            // SAFETY: created with this account, and no other thread has it.
            unsafe { counters.free(&account) };
        })?;
        let holders = Holders::new(processes, &account).inspect_err(|_| {
            // SAFETY: as above, for both.
            unsafe {
                keys.free(&account);
                counters.free(&account);
            }
        })?;
        Ok(Self {
            keys,
            holders,
            counters,
            sweep: Mutex::new(Sweep::new()),
            hasher: random_hasher(),
            account,
        })
    }

    /// Acquires a permit of a key for `holder`, if fewer than `capacity` are out.
    ///
    /// `watch` is called at the first acquire of a holder. It must ensure that [`Table::release_all`] is called after
    /// the holder's death.
    ///
    /// # Errors
    /// [`OutOfMemory`] (as an `E`), or the error of `watch`. Then nothing has changed.
    ///
    /// # Cost
    /// O(1) expected: a hash, a lookup, one compare-and-swap. It takes no lock, with one exception: if the holder has
    /// two other keys in its slot, it takes its own lock to move one of them. That takes O(log keys), and sometimes as
    /// long as copying 32 bytes per 100 keys.
    pub fn acquire<Q: Query<K>, E: From<OutOfMemory>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        capacity: Capacity,
        mut watch: impl FnMut() -> Result<(), E>,
    ) -> Result<Acquired, E> {
        match self.acquire_known(pin, holder, query, capacity, &mut watch)? {
            Some(acquired) => Ok(acquired),
            None => self.acquire_new(pin, holder, query, capacity, watch),
        }
    }

    /// As [`Table::acquire`], for a key that is in the table. If it is not, returns `None` and changes nothing. So it
    /// can be called before the caller has determined the key for certain.
    #[inline(always)]
    pub fn acquire_known<Q: Hash + Equivalent<K>, E: From<OutOfMemory>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        capacity: Capacity,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<Acquired>, E> {
        let order = self.order(query);
        let Some(node) = self.keys.get(pin, order, query) else {
            return Ok(None);
        };
        match node.buckets.admits(capacity) {
            Ok(()) => {}
            Err(Refusal::Full) => return Ok(Some(self.refuse(pin))),
            Err(Refusal::Dead) => return Ok(None),
        }
        let slot = self.holders.claim(holder, &self.account, watch)?;
        Ok(self.acquire_node(pin, slot, node, capacity)?)
    }

    /// Acquires a permit of a node for a slot. Returns `None` if the key is dead. P9 depends on the order of the steps:
    /// reserve an entry of the record, change the count, write the record. The last one cannot fail.
    #[inline(always)]
    fn acquire_node(
        &self,
        pin: &Pin,
        slot: &Slot<K>,
        node: &Node<K>,
        capacity: Capacity,
    ) -> Result<Option<Acquired>, OutOfMemory> {
        let entry = slot.reserve(Some(node), &self.account)?;
        inject::panic();
        match node.buckets.acquire(capacity) {
            Ok(out) => {
                slot.record(entry, node);
                Ok(Some(Acquired::Permit(out)))
            }
            Err(Refusal::Full) => Ok(Some(self.refuse(pin))),
            Err(Refusal::Dead) => Ok(None),
        }
    }

    #[inline(always)]
    fn refuse(&self, pin: &Pin) -> Acquired {
        self.counters.count(pin, Event::Refused, &self.account);
        Acquired::Full
    }

    /// Acquires a permit of a key that was not in the table.
    fn acquire_new<Q: Query<K>, E: From<OutOfMemory>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        capacity: Capacity,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<Acquired, E> {
        if capacity.is_zero() {
            return Ok(self.refuse(pin));
        }
        let order = self.order(query);
        let slot = self.holders.claim(holder, &self.account, watch)?;
        let mut new = NewNode::with_one_permit(query, order, &self.account)?;
        loop {
            let entry = slot.reserve(None, &self.account)?;
            inject::panic();
            match self.keys.insert(pin, query, new) {
                Inserted::New(node) => {
                    slot.record(entry, node);
                    return Ok(Acquired::Permit(1));
                }
                Inserted::Present(returned) => new = returned,
            }
            // Another caller inserted the key first. If that node is dead by now, the next round inserts ours.
            let Some(node) = self.keys.get(pin, order, query) else {
                continue;
            };
            if let Some(acquired) = self.acquire_node(pin, slot, node, capacity)? {
                return Ok(acquired);
            }
        }
    }

    /// Releases one permit of a key.
    ///
    /// # Errors
    /// [`NotHeld`] if the holder has none: nothing has changed (P5).
    ///
    /// # Cost
    /// O(1). The holder's record leads to the key, so the table is not searched. Nothing is hashed if the key is in the
    /// slot itself, which has the latest key and one more.
    pub fn release<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
    ) -> Result<(), NotHeld> {
        if self.release_known(pin, holder, query) {
            return Ok(());
        }
        self.counters.count(pin, Event::NotHeld, &self.account);
        Err(NotHeld)
    }

    /// As [`Table::release`], for a key that the holder possibly holds. Returns whether it did. If not, nothing has
    /// changed, and `not_held` does not count it. So it can be called before the caller has determined the key for
    /// certain.
    #[inline(always)]
    pub fn release_known<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
    ) -> bool {
        let Some(slot) = self.holders.find(holder) else {
            return false;
        };
        slot.release(pin, query, &self.account, || self.order(query))
            .is_ok()
    }

    /// As [`Table::release_known`], for a key in the slot itself: the latest key and one more. Nothing is hashed.
    #[inline(always)]
    pub fn release_inline<Q: Equivalent<K>>(&self, pin: &Pin, holder: Holder, query: &Q) -> bool {
        let slot = self.holders.find(holder);
        slot.is_some_and(|slot| slot.release_inline(pin, query).is_ok())
    }

    /// As [`Table::release_known`], for all other keys.
    pub fn release_further<Q: Hash + Equivalent<K>>(
        &self,
        _pin: &Pin,
        holder: Holder,
        query: &Q,
    ) -> bool {
        let order = || self.order(query);
        let slot = self.holders.find(holder);
        slot.is_some_and(|slot| slot.release_further(query, order, &self.account).is_ok())
    }

    /// Releases all permits of a holder. Called after its death. A process that never acquired has none.
    ///
    /// `is_reused` is asked whether another process with the holder's word is alive by now. If so, nothing is released:
    /// that process holds it all. Before `is_reused` returns true, it must ensure another call of this method after the
    /// death of that process. It must not call this table: calls that look for the holder's slot wait for its answer.
    /// If it panics, it is called once more.
    ///
    /// # Cost
    /// O(keys held): 20 to 300 ns each, depending on how many of them are in a cache.
    pub fn release_all(&self, pin: &Pin, holder: Holder, is_reused: impl FnMut() -> bool) -> u64 {
        let account = &self.account;
        let released = self.holders.release_all(pin, holder, is_reused, account);
        let event = Event::ReleasedByDeath;
        self.counters.add(pin, event, released, account);
        released
    }

    /// The number of permits of a key that are out.
    pub fn count<Q: Hash + Equivalent<K>>(&self, pin: &Pin, query: &Q) -> u64 {
        let order = self.order(query);
        self.keys
            .get(pin, order, query)
            .and_then(|node| node.buckets.permits())
            .unwrap_or(0)
    }

    #[inline(always)]
    pub(crate) fn order<Q: Hash>(&self, query: &Q) -> u64 {
        order_of_key(self.hasher.hash_one(query))
    }

    /// One bounded step of the sweep. A pass reclaims the keys that have not been used since the previous pass.
    ///
    /// A concurrent second caller waits for the first.
    pub fn sweep_step(&self, budget: &mut Budget) -> Progress {
        self.sweep.lock().step(&self.keys, &self.account, budget)
    }

    /// Size and cost of the table.
    ///
    /// The number of permits is the sum of the holders' records, read one after the other. It is exact if no call is
    /// running. Otherwise a permit that moves from one holder to another, or within a record, can be counted twice or
    /// not at all. For a single key, use [`Table::count`]. Only processes whose place is taken wait for it (H4).
    ///
    /// # Cost
    /// One cache line per slot in each chunk that has ever been used, and one more per holder of more than two keys. It
    /// depends neither on the number of keys nor on that of permits.
    pub fn usage(&self) -> Usage {
        let held = self.holders.sums();
        let released_by_death = self.counters.sum(Event::ReleasedByDeath);
        Usage {
            keys: self.keys.len(),
            permits: held.permits,
            holders: held.holders,
            memory: self.account.bytes(),
            barriers_refused: barrier::refused(),
            totals: Totals {
                granted: held.permits + held.released + released_by_death,
                refused: self.counters.sum(Event::Refused),
                released: held.released,
                released_by_death,
                not_held: self.counters.sum(Event::NotHeld),
                reclaimed: self.keys.reclaimed(),
            },
        }
    }
}

fn random_hasher() -> RandomState {
    if cfg!(loom) {
        // A model is explored by repeating it, so executions must not differ.
        RandomState::with_seeds(1, 2, 3, 4)
    } else {
        RandomState::new()
    }
}

impl<K: Key> Drop for Table<K> {
    fn drop(&mut self) {
        // SAFETY: the exclusive borrow proves that no other thread is inside, and nothing is used after this.
        unsafe {
            self.sweep.lock().free(&self.account);
            self.keys.free(&self.account);
            self.holders.free(&self.account);
            self.counters.free(&self.account);
        }
        debug_assert_eq!(self.account.bytes(), 0, "all memory is freed");
    }
}

// The key's word shares a cache line with its own key, and with no other node.
const _: () = assert!(align_of::<Node<[u64; 5]>>() == 64 && size_of::<Node<[u64; 5]>>() == 64);

#[cfg(all(test, not(loom)))]
mod tests;
