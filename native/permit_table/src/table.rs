//! Keys, holders and the sweep together: the promises are kept here.
//!
//! - **P1 Exact**: the grant is one compare-and-swap on the key's word ([`Buckets::acquire`](crate::buckets)), or the
//!   insertion of a key that is born with its first permit.
//! - **P2 A refusal changes nothing**: the word is read before anything is reserved. A caller that loses the last
//!   permit to another one after that keeps what it has reserved: room on its record, and at its first call a slot
//!   and a watch.
//! - **P3 O(1) in buckets**: the capacity is a product, and the word a sum.
//! - **P4 No leak**: what is counted is on the holder's record in the same call, and a death that will be reported
//!   leads to that record (H3).
//! - **P5 Only a holder releases**: release starts from the caller's own record.
//! - **P6 Resizing is free**: the capacity comes with the call and is kept nowhere.
//! - **P8 Idle keys cost nothing**: [`Table::sweep_step`].
//! - **P9**: memory is reserved before the count changes; what follows the count cannot fail.

use crate::barrier;
use crate::buckets::{Capacity, Refusal};
use crate::budget::Budget;
use crate::epochs::Pin;
use crate::holders::{Holder, Holders};
use crate::inject;
use crate::keys::{order_of_key, Inserted, Key, Keys, NewNode, Node, Query};
use crate::memory::Account;
use crate::out_of_memory::OutOfMemory;
use crate::slot::{NotHeld, Slot};
use crate::sweep::{Progress, Sweep};
use crate::sync::Mutex;
use crate::tally::{Event, Tally};
use ahash::RandomState;
use equivalent::Equivalent;
use std::hash::Hash;

/// What [`Table::acquire`] answers when nothing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// A permit is the caller's; so many of the key are out with it.
    Permit(u64),
    /// No fewer than the capacity are out. Nothing has changed.
    Full,
}

/// What a table is and costs at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Keys in the table, idle ones that the sweep has not reached included.
    pub keys: usize,
    /// Permits out, of all keys together.
    pub permits: u64,
    /// Processes that hold at least one.
    pub holders: usize,
    /// Bytes allocated.
    pub memory: usize,
    /// Memory barriers that the kernel has refused this process, for all its tables together. Each time nothing could
    /// be freed: if the number grows, so does `memory`. It stays 0 unless `membarrier(2)` is forbidden after the start.
    pub barriers_refused: u64,
    /// What has happened so far.
    pub totals: Totals,
}

/// What has happened in a table since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Permits granted: those that are out, and those that were released or given back. It is not counted by itself,
    /// so that a grant writes nothing for it.
    pub granted: u64,
    /// Calls that were answered "full".
    pub refused: u64,
    /// Permits released by their holders.
    pub released: u64,
    /// Permits given back after the death of their holders.
    pub given_back: u64,
    /// Releases of what the caller did not hold.
    pub not_held: u64,
    /// Idle keys that the sweep has taken out.
    pub reclaimed: u64,
}

/// A table of permits by key and holder. One is an incarnation: it starts empty, and what was in it ends with it.
///
/// All methods may be called from any thread at any time, on the conditions that whoever made the [`Holder`] has
/// vouched for ([`Holder::new`]).
pub struct Table<K: Key> {
    pub(crate) keys: Keys<K>,
    pub(crate) holders: Holders<K>,
    tally: Tally,
    /// A panic inside the lock leaves a step half done; `sweep.rs` says how the next one takes it up.
    sweep: Mutex<Sweep<K>>,
    /// Seeded at random for each table: keys may come from strangers, who must not find some that collide.
    hasher: RandomState,
    account: Account,
}

impl<K: Key> Table<K> {
    /// An empty table for a VM of up to `processes` processes. Allocates about 240 KB, and further 64 KiB per 1024
    /// processes as they come.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(processes: usize) -> Result<Self, OutOfMemory> {
        let account = Account::default();
        let tally = Tally::new(&account)?;
        let keys = Keys::new(&account).inspect_err(|_| {
            // SAFETY: made with this account, and nobody else knows it.
            unsafe { tally.free(&account) };
        })?;
        let holders = Holders::new(processes, &account).inspect_err(|_| {
            // SAFETY: as above, for both.
            unsafe {
                keys.free(&account);
                tally.free(&account);
            }
        })?;
        Ok(Self {
            keys,
            holders,
            tally,
            sweep: Mutex::new(Sweep::new()),
            hasher: seeded_hasher(),
            account,
        })
    }

    /// Takes a permit of a key for `holder`, if fewer than `capacity` are out.
    ///
    /// `watch` is called when the holder first takes anything, and has to arrange for [`Table::release_all`] after its
    /// death.
    ///
    /// # Errors
    /// [`OutOfMemory`] (as an `E`), or what `watch` answers. Nothing has changed then.
    ///
    /// # Cost
    /// O(1) expected: a hash, a lookup, one compare-and-swap. No lock is taken, except one of the holder's own when it
    /// holds two other keys in its slot: to move one of them takes O(log keys), and now and then as long as to copy 32
    /// bytes per 100 keys.
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

    /// As [`Table::acquire`], of a key that is in the table. If it is not, the answer is `None`, and nothing has
    /// changed; so it serves to ask for what a key may well be before it is known for sure.
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
        Ok(self.take(pin, slot, node, capacity)?)
    }

    /// Takes a permit of a node for a slot; nothing if the key is dead. The order is what P9 rests on: first the room
    /// for the record, then the count, then the record, which cannot fail.
    #[inline(always)]
    fn take(
        &self,
        pin: &Pin,
        slot: &Slot<K>,
        node: &Node<K>,
        capacity: Capacity,
    ) -> Result<Option<Acquired>, OutOfMemory> {
        let place = slot.reserve(Some(node), &self.account)?;
        inject::panic();
        match node.buckets.acquire(capacity) {
            Ok(out) => {
                slot.record(place, node);
                Ok(Some(Acquired::Permit(out)))
            }
            Err(Refusal::Full) => Ok(Some(self.refuse(pin))),
            Err(Refusal::Dead) => Ok(None),
        }
    }

    #[inline(always)]
    fn refuse(&self, pin: &Pin) -> Acquired {
        self.tally.count(pin, Event::Refused, &self.account);
        Acquired::Full
    }

    /// Takes a permit of a key that was not there a moment ago.
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
            let place = slot.reserve(None, &self.account)?;
            inject::panic();
            match self.keys.insert(pin, query, new) {
                Inserted::New(node) => {
                    slot.record(place, node);
                    return Ok(Acquired::Permit(1));
                }
                Inserted::Present(back) => new = back,
            }
            // Somebody else was quicker. If that one has died by now, the next round puts ours in.
            let Some(node) = self.keys.get(pin, order, query) else {
                continue;
            };
            if let Some(acquired) = self.take(pin, slot, node, capacity)? {
                return Ok(acquired);
            }
        }
    }

    /// Gives one permit of a key back.
    ///
    /// # Errors
    /// [`NotHeld`] if the holder has none: nothing has changed (P5).
    ///
    /// # Cost
    /// O(1). The holder's record leads to the key, so the table is not searched, and nothing is hashed for a key that
    /// its slot itself names: the one that came last, and one more.
    pub fn release<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
    ) -> Result<(), NotHeld> {
        if self.release_known(pin, holder, query) {
            return Ok(());
        }
        self.tally.count(pin, Event::NotHeld, &self.account);
        Err(NotHeld)
    }

    /// As [`Table::release`], of a key that the holder may well have; answers whether it did. If not, nothing has
    /// changed, and it does not count as a mistake: it serves to ask before it is known for sure what the key is.
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

    /// As [`Table::release_known`], of a key that the holder's slot itself names, as it does the one that came last and
    /// one more. Nothing is hashed.
    #[inline(always)]
    pub fn release_inline<Q: Equivalent<K>>(&self, pin: &Pin, holder: Holder, query: &Q) -> bool {
        let slot = self.holders.find(holder);
        slot.is_some_and(|slot| slot.release_inline(pin, query).is_ok())
    }

    /// As [`Table::release_known`], of all other keys.
    pub fn release_more<Q: Hash + Equivalent<K>>(
        &self,
        _pin: &Pin,
        holder: Holder,
        query: &Q,
    ) -> bool {
        let order = || self.order(query);
        let slot = self.holders.find(holder);
        slot.is_some_and(|slot| slot.release_more(query, order, &self.account).is_ok())
    }

    /// Gives back all that a holder had. Called after its death; a holder that never took anything has nothing.
    ///
    /// `is_reused` is asked whether another process with the holder's word is alive by now. If so, nothing is given
    /// back: that process holds it all. Before `is_reused` answers yes, it has to arrange for another call of this
    /// method after the death of that process. It must not call this table: calls that look for the holder's slot wait
    /// for its answer. If it panics, it is asked once more.
    ///
    /// # Cost
    /// O(keys held): 20 to 300 ns each, the more the fewer of them are in a cache.
    pub fn release_all(&self, pin: &Pin, holder: Holder, is_reused: impl FnMut() -> bool) -> u64 {
        let account = &self.account;
        let given = self.holders.release_all(pin, holder, is_reused, account);
        self.tally.add(pin, Event::GivenBack, given, account);
        given
    }

    /// How many permits of a key are out.
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

    /// One bounded step of the sweep. A pass reclaims the keys that have not been used since the pass before.
    ///
    /// A second caller waits for the first.
    pub fn sweep_step(&self, budget: &mut Budget) -> Progress {
        self.sweep.lock().step(&self.keys, &self.account, budget)
    }

    /// What the table is and costs.
    ///
    /// The permits are those that its holders have on record, one holder after the other: exact at quiet points, a
    /// fair snapshot otherwise. (One that goes from hand to hand meanwhile, or from one place of a record to another,
    /// may be seen in both, or in neither; to know of one key, ask for its count.) Nobody waits for it but the
    /// processes whose place is taken (H4).
    ///
    /// # Cost
    /// A cache line for each place in a chunk that has ever been used, and one more for each holder of more than two
    /// keys. It depends neither on the number of keys nor on that of permits.
    pub fn usage(&self) -> Usage {
        let held = self.holders.sums();
        let given_back = self.tally.sum(Event::GivenBack);
        Usage {
            keys: self.keys.len(),
            permits: held.permits,
            holders: held.holders,
            memory: self.account.bytes(),
            barriers_refused: barrier::refused(),
            totals: Totals {
                granted: held.permits + held.released + given_back,
                refused: self.tally.sum(Event::Refused),
                released: held.released,
                given_back,
                not_held: self.tally.sum(Event::NotHeld),
                reclaimed: self.keys.reclaimed(),
            },
        }
    }
}

fn seeded_hasher() -> RandomState {
    if cfg!(loom) {
        // A model is explored by playing it again: it must not differ from time to time.
        RandomState::with_seeds(1, 2, 3, 4)
    } else {
        RandomState::new()
    }
}

impl<K: Key> Drop for Table<K> {
    fn drop(&mut self) {
        // SAFETY: the exclusive borrow says that no other thread is inside, and nothing is used after this.
        unsafe {
            self.sweep.lock().free(&self.account);
            self.keys.free(&self.account);
            self.holders.free(&self.account);
            self.tally.free(&self.account);
        }
        debug_assert_eq!(self.account.bytes(), 0, "what was allocated is freed");
    }
}

// What a node is must fit: the key's word shares a cache line with its own key, and with nobody else's.
const _: () = assert!(align_of::<Node<[u64; 5]>>() == 64 && size_of::<Node<[u64; 5]>>() == 64);

#[cfg(all(test, not(loom)))]
mod tests;
