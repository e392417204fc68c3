//! The table: combines keys, holders and the sweep. This is where the promises are kept.
//!
//! - **P1 Exact**: a grant is one compare-and-swap on the key's word
//!   ([`PermitCount::acquire`](crate::permit_count)), or the insertion of a new key that has its first permit in use.
//! - **P2 A refusal changes nothing**: the word is read before anything is reserved. A caller that then loses the last
//!   permit to another caller keeps what it has reserved: memory of its record, and at its first call a slot and a
//!   watch.
//! - **P3 O(1) in buckets**: the capacity is a product, and the word a sum.
//! - **P4 No leak**: a counted permit is put on the holder's record in the same call, and the report of the holder's
//!   death leads to that record (H3).
//! - **P5 Only a holder releases**: a release starts from the caller's own record.
//! - **P6 Resizing is free**: the capacity is an argument of the call. Only a request that waits stores it.
//! - **P8 Idle keys cost nothing**: [`Table::sweep_step`].
//! - **P9**: memory is reserved before the count changes. After that, nothing can fail.
//! - **P11 to P13**: `waits.rs`. **P14**: `transfers.rs`.

use crate::counters::{Counters, Event};
use crate::holder::Holder;
use crate::holders::Holders;
use crate::keys::{sort_key_of_hash, Key, Keys, NewNode, Node, Query};
use crate::memory::OutOfMemory;
use crate::permit_count::{Acquired, Demand, PermitCount};
use crate::queues::{Notice, Queues};
use crate::slot::{NotHeld, Slot};
use crate::sweep::{Progress, Sweep};
use crate::sync::Mutex;
use crate::{barrier, epochs::Pin, inject};
use ahash::RandomState;
use equivalent::Equivalent;
use std::hash::Hash;
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering::Relaxed;

/// Current size and cost of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Keys in the table, including idle ones that the sweep has not visited yet.
    pub keys: usize,
    /// Permits in use, of all keys together. A sum over processes stays at 2^64 - 1; one of a process wraps.
    pub permits: u64,
    /// Processes that hold at least one permit.
    pub holders: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// The longest wait of a request that was granted or timed out since the last [`Table::take_longest_wait`], in
    /// microseconds.
    pub longest_wait_us: u64,
    /// Memory barriers that the kernel has refused this process, for all its tables together. Each time nothing could
    /// be freed: if the number grows, so does `memory`. It stays 0 unless `membarrier(2)` is forbidden after the start.
    pub barriers_refused: u64,
    /// Events so far.
    pub totals: Totals,
}

/// Events in a table since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Permits granted: those that are in use, and those that were released. Computed from the other numbers, so a
    /// grant writes no counter.
    pub granted: u64,
    /// Answers `full` to callers: those that [`Table::count_refusal`] and [`Table::count_timeout`] were told.
    pub refused: u64,
    /// Permits released by their holders.
    pub released: u64,
    /// Permits released because their holders died.
    pub released_by_death: u64,
    /// Releases by callers that did not hold the key.
    pub not_held: u64,
    /// Idle keys that the sweep has reclaimed.
    pub reclaimed: u64,
    /// Requests that waited and were granted.
    pub handed_over: u64,
    /// Requests that were cancelled because of a timeout.
    pub timed_out: u64,
    /// How long these two have waited, in microseconds.
    pub wait_us: u64,
    /// Permits that a holder has given to another process.
    pub transferred: u64,
}

/// A table of permits by key and holder. One table is one incarnation: it starts empty, and its permits end with it.
///
/// All methods may be called from any thread at any time, under the conditions of [`Holder::new`].
pub struct Table<K: Key, N: Notice = ()> {
    pub(crate) keys: Keys<K>,
    pub(crate) holders: Holders<K>,
    pub(crate) queues: Queues<K, N>,
    pub(crate) counters: Counters,
    /// A panic inside the lock leaves a step incomplete; `sweep.rs` says how the next one completes it.
    sweep: Mutex<Sweep<K>>,
    /// Has random seeds per table: keys can come from untrusted senders, which must not be able to compute collisions.
    hasher: RandomState,
}

impl<K: Key, N: Notice> Table<K, N> {
    /// An empty table for a VM of up to `processes` processes. Allocates about 260 KB, and later 64 KiB per 1,024
    /// processes.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(processes: usize) -> Result<Self, OutOfMemory> {
        Ok(Self {
            keys: Keys::new()?,
            holders: Holders::new(processes)?,
            queues: Queues::new()?,
            counters: Counters::new()?,
            sweep: Mutex::new(Sweep::new()),
            hasher: random_hasher(),
        })
    }

    /// Acquires permits of a key for `holder`: all that are demanded, or none. A capacity is a demand for one permit.
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
        demand: impl Into<Demand>,
        mut watch: impl FnMut() -> Result<(), E>,
    ) -> Result<Acquired, E> {
        let demand = demand.into();
        match self.acquire_known(pin, holder, query, demand, &mut watch)? {
            Some(acquired) => Ok(acquired),
            None => self.acquire_new(pin, holder, query, demand, watch),
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
        demand: impl Into<Demand>,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<Acquired>, E> {
        let (sort_key, demand) = (self.sort_key(query), demand.into());
        let Some((node, word)) = self.keys.get_with_word(pin, sort_key, query) else {
            return Ok(None);
        };
        if word.admits(demand).is_none() {
            return Ok(Some(Acquired::Full));
        }
        let slot = self.holders.claim(holder, watch)?;
        Ok(self.acquire_node(slot, node, demand.permits, |count| count.acquire(demand))?)
    }

    /// Acquires permits of a node for a slot, if `acquire` has counted them. Returns what that returns.
    ///
    /// P9 depends on the order of the steps: reserve an entry of the record, change the count, write the record. The
    /// last one cannot fail.
    #[inline(always)]
    pub(crate) fn acquire_node(
        &self,
        slot: &Slot<K>,
        node: &Node<K>,
        permits: u64,
        acquire: impl FnOnce(&PermitCount) -> Option<Acquired>,
    ) -> Result<Option<Acquired>, OutOfMemory> {
        let entry = slot.reserve(Some(node))?;
        inject::panic();
        let acquired = acquire(&node.count);
        if let Some(Acquired::Permit(_)) = acquired {
            slot.record(entry, node, permits, || self.holders.now());
        }
        Ok(acquired)
    }

    /// Counts an answer `full`. The caller of [`Table::acquire`] and [`Table::wait`] counts it, because only that
    /// caller knows whether a request waits after [`Acquired::Full`].
    #[inline(always)]
    pub fn count_refusal(&self, pin: &Pin) {
        self.counters.add(pin, Event::Refused, 1);
    }

    /// Acquires permits of a key that was not in the table.
    fn acquire_new<Q: Query<K>, E: From<OutOfMemory>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        demand: Demand,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<Acquired, E> {
        if !demand.is_satisfiable() {
            return Ok(Acquired::Full);
        }
        let sort_key = self.sort_key(query);
        let slot = self.holders.claim(holder, watch)?;
        let count = PermitCount::with_permits(demand.permits);
        let mut new = NewNode::with(count, query, sort_key)?;
        loop {
            let entry = slot.reserve(None)?;
            inject::panic();
            match self.keys.insert(pin, query, new) {
                Ok(node) => {
                    slot.record(entry, node, demand.permits, || self.holders.now());
                    return Ok(Acquired::Permit(demand.permits));
                }
                Err(returned) => new = returned,
            }
            // Another caller inserted the key first. If that node is dead by now, the next round inserts ours.
            let Some(node) = self.keys.get(pin, sort_key, query) else {
                continue;
            };
            let acquire = |count: &PermitCount| count.acquire(demand);
            if let Some(acquired) = self.acquire_node(slot, node, demand.permits, acquire)? {
                return Ok(acquired);
            }
        }
    }

    /// Releases one permit of a key. If a request waits for it, it is handed over: `context` sends the message.
    ///
    /// # Errors
    /// [`NotHeld`] if the holder has none: nothing has changed (P5).
    ///
    /// # Cost
    /// O(1). The holder's record leads to the key, so the table is not searched. Nothing is hashed if the key is in the
    /// slot itself, which has the latest key and one more. It takes a lock if the key has waiters or lost permits.
    pub fn release<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        context: N::Context<'_>,
    ) -> Result<(), NotHeld> {
        if self.release_known(pin, holder, query, context) {
            return Ok(());
        }
        self.counters.add(pin, Event::NotHeld, 1);
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
        context: N::Context<'_>,
    ) -> bool {
        self.release_inline(pin, holder, query, context)
            || self.release_overflow(holder, query, context)
    }

    /// As [`Table::release_known`], for a key in the slot itself: the latest key and one more. Nothing is hashed.
    #[inline(always)]
    pub fn release_inline<Q: Equivalent<K>>(
        &self,
        _pin: &Pin,
        holder: Holder,
        query: &Q,
        context: N::Context<'_>,
    ) -> bool {
        let lower = |node: &Node<K>| self.lower(node, holder, 1, context);
        let slot = self.holders.find(holder);
        slot.is_some_and(|slot| slot.release_inline(query, lower))
    }

    /// As [`Table::release_known`], for all other keys: those in the overflow of the slot.
    #[cold]
    fn release_overflow<Q: Hash + Equivalent<K>>(
        &self,
        holder: Holder,
        query: &Q,
        context: N::Context<'_>,
    ) -> bool {
        let slot = self.holders.find(holder);
        let taken = slot.and_then(|slot| slot.take_overflow(query, || self.sort_key(query)));
        if let Some(node) = taken {
            // The overflow is not locked any more (O3).
            self.lower(node, holder, 1, context);
        }
        taken.is_some()
    }

    /// Releases several permits of a key: all or none.
    ///
    /// # Errors
    /// [`NotHeld`] if the holder has fewer: nothing has changed.
    ///
    /// # Cost
    /// As [`Table::release`], plus a lock, and 0.5 µs per waiter that is granted.
    pub fn release_many<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        permits: NonZeroU64,
        context: N::Context<'_>,
    ) -> Result<(), NotHeld> {
        let permits = permits.get();
        let Some((slot, node)) = self.held_at_least(holder, query, permits) else {
            self.counters.add(pin, Event::NotHeld, 1);
            return Err(NotHeld);
        };
        let rest = permits - slot.take_inline(node, permits);
        if let Some(overflow) = slot.overflow().filter(|_| rest > 0) {
            overflow.lock().take(node, rest);
        }
        slot.count_releases(permits);
        self.lower(node, holder, permits, context);
        Ok(())
    }

    /// The slot of a holder, and the node of a key, if it has at least `permits` of it. Only calls of the holder can
    /// make it fewer.
    pub(crate) fn held_at_least<Q: Hash + Equivalent<K>>(
        &self,
        holder: Holder,
        query: &Q,
        permits: u64,
    ) -> Option<(&Slot<K>, &Node<K>)> {
        let slot = self.holders.find(holder)?;
        let (node, held) = slot.held(query, self.sort_key(query))?;
        (held >= permits).then_some((slot, node))
    }

    /// Lowers the count by permits that have left the record of a holder, or hands them to waiters.
    #[inline(always)]
    fn lower(&self, node: &Node<K>, holder: Holder, permits: u64, context: N::Context<'_>) {
        if !node.count.release(permits) {
            self.queues.hand_over(node, holder.id(), permits, context);
        }
    }

    /// Ends all requests of a holder, and releases all its permits. Called after its death. Returns how many permits. A
    /// process that never acquired, waited or was given a permit has none.
    ///
    /// `is_reused` is asked whether another process with the holder's word is alive by now. If so, nothing is released:
    /// that process holds it all. Before `is_reused` returns true, it must ensure another call of this method after the
    /// death of that process. It must not call this table: calls that look for the holder's slot wait for its answer.
    /// It is called once, and once more if it panics.
    ///
    /// # Cost
    /// O(keys held): 20 to 300 ns each, depending on how many of them are in a cache, 500 ns if its permits are lost;
    /// and 0.5 µs per request that waits and per waiter that is granted.
    pub fn release_all(
        &self,
        pin: &Pin,
        holder: Holder,
        mut is_reused: impl FnMut() -> bool,
        context: N::Context<'_>,
    ) -> u64 {
        let mut released = 0;
        let mut retired = None;
        let mut attempt = || {
            retired = retired.or_else(|| self.holders.retire(holder, &mut is_reused));
            let Some(slot) = retired else {
                return;
            };
            // First its requests, because they can be granted permits until they end (W5).
            while let Some(wait) = slot.any_wait() {
                // SAFETY: pinned before. If it does not wait any more, it has left the record too (W5).
                unsafe { self.queues.cancel(pin, wait, |_| true, context) };
            }
            while let Some((node, permits)) = slot.take_any() {
                // Nothing can panic between these two.
                released += permits;
                self.lower(node, holder, permits, context);
            }
            self.holders.vacate(holder, slot);
        };
        // After a panic (a bug), tries once more, with the slot that it had: no word leads to that slot any more.
        if catch_unwind(AssertUnwindSafe(&mut attempt)).is_err() {
            attempt();
        }
        self.counters.add(pin, Event::ReleasedByDeath, released);
        released
    }

    /// The number of permits of a key that are in use.
    pub fn count<Q: Hash + Equivalent<K>>(&self, pin: &Pin, query: &Q) -> u64 {
        let sort_key = self.sort_key(query);
        self.keys
            .get(pin, sort_key, query)
            .and_then(|node| node.count.permits())
            .unwrap_or(0)
    }

    #[inline(always)]
    pub(crate) fn sort_key<Q: Hash>(&self, query: &Q) -> u64 {
        sort_key_of_hash(self.hasher.hash_one(query))
    }

    /// One bounded step of the sweep. A pass reclaims the keys that have not been used since the previous pass.
    ///
    /// One unit of the budget is one key that is read or freed: at most 0.4 µs, if no cache has it. A step does at
    /// least one unit of work, and can exceed its budget by work that cannot be divided. Returns the units spent, too.
    ///
    /// A concurrent second caller waits for the first.
    pub fn sweep_step(&self, budget: usize) -> (Progress, usize) {
        self.sweep.lock().step(&self.keys, budget)
    }

    /// Begins another interval of [`Usage::longest_wait_us`]. Returns that of the interval before.
    pub fn take_longest_wait(&self) -> u64 {
        self.queues.longest_wait_us.swap(0, Relaxed)
    }

    /// Tells the table when this is called the next time, by the clock of [`Notice::now_us`]. A process that begins to
    /// hold permits until then gets this time ([`Permits::since`](crate::Permits::since)). Before the first call, such
    /// a process begins at the end of the time.
    pub fn advance_clock(&self, next_us: u64) {
        self.holders.advance_clock(next_us);
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
        let (holders, permits, released) = self.holders.sums();
        let released_by_death = self.counters.sum(Event::ReleasedByDeath);
        Usage {
            keys: self.keys.len(),
            permits,
            holders,
            waiting: self.queues.len(),
            longest_wait_us: self.queues.longest_wait_us.load(Relaxed),
            barriers_refused: barrier::refused(),
            totals: Totals {
                granted: permits
                    .saturating_add(released)
                    .saturating_add(released_by_death),
                refused: self.counters.sum(Event::Refused),
                released,
                released_by_death,
                not_held: self.counters.sum(Event::NotHeld),
                reclaimed: self.keys.reclaimed.load(Relaxed),
                handed_over: self.queues.handed_over.load(Relaxed),
                timed_out: self.counters.sum(Event::TimedOut),
                wait_us: self.queues.wait_us.load(Relaxed),
                transferred: self.counters.sum(Event::Transferred),
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

// The key's word shares a cache line with its own key, and with no other node.
const _: () = assert!(align_of::<Node<[u64; 5]>>() == 64 && size_of::<Node<[u64; 5]>>() == 64);

#[cfg(all(test, not(loom)))]
mod tests;
