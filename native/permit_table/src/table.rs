//! Keys, holders and the sweep together: the promises are kept here.
//!
//! - **P1 Exact**: the grant is one compare-and-swap on the key's word ([`Buckets::acquire`](crate::buckets)), or the
//!   insertion of a key that is born with its first permit.
//! - **P2 A refusal changes nothing**: the word is read before anything is reserved.
//! - **P3 O(1) in buckets**: the capacity is a product, and the word a sum.
//! - **P4 No leak**: what is counted is on the holder's record in the same call, and the holder was watched before.
//! - **P5 Only a holder releases**: release starts from the caller's own record.
//! - **P6 Resizing is free**: the capacity comes with the call and is kept nowhere.
//! - **P8 Idle keys cost nothing**: [`Table::sweep_step`].
//! - **P9**: memory is reserved before the count changes; what follows the count cannot fail.

use crate::buckets::{Capacity, Refusal};
use crate::epochs::Pin;
use crate::fault;
use crate::holders::{Holder, Holders};
use crate::keys::{order_of_key, Inserted, Key, Keys, NewNode, Node, Query};
use crate::memory::{Account, OutOfMemory};
use crate::slot::{GivenBack, NotHeld, Slot};
use crate::sweep::{Progress, Sweep};
use crate::sync::Mutex;
use crate::tally::{Event, Tally};
use ahash::RandomState;
use equivalent::Equivalent;
use std::hash::Hash;
use std::panic::{catch_unwind, AssertUnwindSafe};

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

/// Keys that are looked at between two pins: nothing is freed in the meantime.
const STRETCH: usize = 4096;

/// A table of permits by key and holder. One is an incarnation: it starts empty, and what was in it ends with it.
///
/// All methods may be called from any thread at any time, on the condition that whoever made the [`Holder`] has
/// vouched for: calls on behalf of one do not overlap, and [`Table::give_back`] comes after the last of them.
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
    /// `watch` is called when the holder first takes anything, and has to arrange for [`Table::give_back`] after its
    /// death.
    ///
    /// # Errors
    /// [`OutOfMemory`] (as an `E`), or what `watch` answers. Nothing has changed then.
    ///
    /// # Cost
    /// O(1) expected: a hash, a lookup, one compare-and-swap. No lock is taken, but by a holder of more than two keys
    /// at a time, its own.
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
        fault::point();
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
            fault::point();
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
    /// O(1). The holder's record leads to the key, so the table is not searched, and for a holder of up to two keys
    /// nothing is hashed.
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

    /// Gives back all that a holder had. Called once, after its death; a holder that never took anything has nothing.
    ///
    /// # Cost
    /// O(keys held): about 100 ns each.
    pub fn give_back(&self, pin: &Pin, holder: Holder) -> GivenBack {
        let mut given = GivenBack::default();
        let mut give_back = || {
            self.holders
                .give_back(pin, holder, &self.account, &mut given)
        };
        // If it panics (a bug of ours), it is tried once more. It takes up what is left; and nobody else would, until
        // a process came with the same word, and held what it never took.
        if catch_unwind(AssertUnwindSafe(&mut give_back)).is_err() {
            give_back();
        }
        let permits = given.permits;
        self.tally
            .add(pin, Event::GivenBack, permits, &self.account);
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

    /// One bounded step of the sweep: looks at about `budget` keys, and frees at most as many. See [`Progress`].
    ///
    /// A pass reclaims the keys that nobody has used since the pass before. A second caller waits for the first.
    pub fn sweep_step(&self, budget: usize) -> Progress {
        self.sweep
            .lock()
            .step(&self.keys, &self.account, budget.max(1))
    }

    /// What the table is and costs. Walks over all keys and slots: exact at quiet points, a fair snapshot otherwise.
    /// Nobody waits for it but the processes whose place is taken (H4), and the sweep for what it is just looking at.
    pub fn usage(&self) -> Usage {
        let mut permits = 0;
        let mut after = Some(0);
        while let Some(start) = after {
            after = self.keys_after(start, STRETCH, |_, out| permits += out);
        }
        let released = self.holders.released();
        let given_back = self.tally.sum(Event::GivenBack);
        Usage {
            keys: self.keys.len(),
            permits,
            holders: self.holders.count(),
            memory: self.account.bytes(),
            totals: Totals {
                granted: permits + released + given_back,
                refused: self.tally.sum(Event::Refused),
                released,
                given_back,
                not_held: self.tally.sum(Event::NotHeld),
                reclaimed: self.keys.reclaimed(),
            },
        }
    }

    /// Frees a piece of a table that is not used any more: up to `limit` keys or slots, or a chunk of slots or heads.
    /// Answers whether there is more. To drop a table does all that is left at once, which for a million keys is a
    /// tenth of a second.
    pub fn dismantle(&mut self, limit: usize) -> bool {
        // SAFETY: the exclusive borrow says that nobody is inside.
        unsafe {
            self.sweep.lock().free_some(&self.account, limit)
                || self.keys.free_some(&self.account, limit)
                || self.holders.free_some(&self.account, limit)
                || self.keys.free_heads(&self.account)
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
        while self.dismantle(isize::MAX as usize) {}
        // SAFETY: nobody is inside, and nothing is used after this.
        unsafe {
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
mod tests {
    use super::*;
    use crate::fault::{arm, disarm, Fault};
    use crate::keys::CHUNK;
    use crate::pin;
    use std::cell::Cell;
    use std::num::NonZeroU64;

    /// Any number is a key, and asked for by itself.
    impl Key for u64 {
        fn heap_bytes(&self) -> usize {
            0
        }
    }

    impl Query<u64> for u64 {
        fn to_key(&self) -> Result<u64, OutOfMemory> {
            Ok(*self)
        }
    }

    fn acquire(table: &Table<u64>, holder: Holder, key: u64) -> Result<Acquired, OutOfMemory> {
        table.acquire(&pin(), holder, &key, Capacity::of(9, 1), || Ok(()))
    }

    /// P9: whichever allocation of a call fails, the call says so and nothing has changed; and the same call goes
    /// through when there is memory again.
    #[test]
    fn p9_no_memory_at_any_point_changes_nothing() {
        // SAFETY: one thread, and nothing after `give_back`.
        let holder = |word, place| unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) };
        // The first permit of all; one of a key that is there; the third key of a holder; a holder whose place is
        // taken.
        let calls = [
            (holder(1, 0), 1),
            (holder(2, 1), 1),
            (holder(1, 0), 2),
            (holder(1, 0), 3),
            (holder(3, 0), 4),
        ];
        let table = Table::new(4096).unwrap();
        let mut failures = 0;
        for (holder, key) in calls {
            for grants in 0.. {
                let before = table.usage();
                arm(Fault::Memory, grants);
                let outcome = acquire(&table, holder, key);
                disarm();
                if outcome.is_ok() {
                    break;
                }
                failures += 1;
                let after = table.usage();
                assert_eq!(
                    (after.keys, after.permits, after.holders),
                    (before.keys, before.permits, before.holders)
                );
                assert_eq!(
                    table.count(&pin(), &key),
                    u64::from(key == 1 && before.keys > 0)
                );
            }
        }
        assert!(failures >= 7, "{failures} allocations were made to fail");
        assert_eq!(table.usage().permits, 5);
        for (word, place) in [(1, 0), (2, 1), (3, 0)] {
            table.give_back(&pin(), holder(word, place));
        }
        assert_eq!(table.usage().permits, 0);
    }

    /// More heads than keys would be a waste, and with fewer a lookup would be a walk. Where their number changes
    /// matters little; but that it wavers with the number of keys would cost much.
    #[test]
    fn p8_heads_come_with_the_keys_and_go_with_them() {
        // SAFETY: one thread, and nothing after `give_back`.
        let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
        let table = Table::new(16).unwrap();
        let heads = || 1 << table.keys.bits();
        let chunk = CHUNK as u64;
        let take = |keys| {
            for key in keys {
                acquire(&table, holder, key).unwrap();
            }
        };
        let give = |keys| {
            for key in keys {
                table.release(&pin(), holder, &key).unwrap();
            }
            // What is used no more goes with the second pass, its heads with the third.
            for _ in 0..3 {
                loop {
                    match table.sweep_step(1000) {
                        Progress::Done => break,
                        Progress::Waiting => std::thread::yield_now(),
                        Progress::More => {}
                    }
                }
            }
        };
        take(0..chunk);
        assert_eq!(heads(), chunk);
        take(chunk..chunk + 1);
        assert_eq!(heads(), 2 * chunk);
        take(chunk + 1..2 * chunk + 1);
        assert_eq!(heads(), 4 * chunk);
        give(chunk + 1..2 * chunk + 1);
        assert_eq!(heads(), 4 * chunk, "still more keys than a quarter");
        give(chunk..chunk + 1);
        assert_eq!(heads(), 2 * chunk);
        give(1..chunk);
        assert_eq!(heads(), chunk, "never fewer");
        table.give_back(&pin(), holder);
    }

    /// K4: a key that has died is passed over before the sweep has unlinked it, and so is another that happens to have
    /// the same hash; but nobody puts in what is there.
    #[test]
    fn k4_of_the_nodes_with_one_key_one_is_alive() {
        let table = Table::<u64>::new(16).unwrap();
        let pin = pin();
        let order = order_of_key(42);
        let insert = |key| {
            let new = NewNode::with_one_permit(&key, order, &table.account).unwrap();
            match table.keys.insert(&pin, &key, new) {
                Inserted::New(node) => Some(node),
                Inserted::Present(_) => None,
            }
        };
        let get = |key| table.keys.get(&pin, order, &key);
        let first = insert(1).unwrap();
        assert!(get(1).is_some() && insert(1).is_none());
        assert!(get(2).is_none() && insert(2).is_some());
        assert!(get(1).is_some() && insert(1).is_none(), "behind the other");

        first.buckets.release(1);
        first.buckets.sweep();
        first.buckets.sweep();
        assert!(get(1).is_none());
        let second = insert(1).unwrap();
        assert!(get(1).is_some_and(|found| std::ptr::eq(found, second)));
        assert!(get(2).is_some() && insert(2).is_none());
    }

    /// Calls, with the panic of so many places on; answers nothing if it panicked.
    fn with_panic<T>(grants: usize, call: impl FnOnce() -> T) -> Option<T> {
        arm(Fault::Panic, grants);
        let outcome = catch_unwind(AssertUnwindSafe(call));
        assert_eq!(disarm() > 0, outcome.is_err());
        outcome.ok()
    }

    /// So many times as there are places to panic in, until the call goes through; answers what came of it, and how
    /// often it panicked.
    fn through_panics<T>(mut call: impl FnMut() -> T, mut check: impl FnMut()) -> (T, usize) {
        for grants in 0.. {
            if let Some(answer) = with_panic(grants, &mut call) {
                return (answer, grants);
            }
            check();
        }
        unreachable!()
    }

    /// P9: a panic (a bug of ours) anywhere in a call that takes or releases leaves everything as it was, and no
    /// lock.
    #[test]
    fn p9_a_panic_anywhere_changes_nothing() {
        // SAFETY: one thread, and nothing after `give_back`.
        let holder = |word, place| unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) };
        let table = Table::new(4096).unwrap();
        let mut panics = 0;
        let watched = Cell::new(0);
        let watch = || {
            fault::point();
            watched.set(watched.get() + 1);
            fault::point();
            Ok::<(), OutOfMemory>(())
        };
        let calls = [
            (1, 0, 1),
            (2, 1, 1),
            (1, 0, 2),
            (1, 0, 3),
            (1, 0, 4),
            (3, 0, 4),
        ];
        for (word, place, key) in calls {
            let before = table.usage();
            let first = table.holders.find(holder(word, place)).is_none();
            watched.set(0);
            let (outcome, panicked) = through_panics(
                || {
                    let holder = holder(word, place);
                    table.acquire(&pin(), holder, &key, Capacity::of(9, 1), watch)
                },
                || {
                    let after = table.usage();
                    assert_eq!(
                        (after.keys, after.permits, after.holders),
                        (before.keys, before.permits, before.holders)
                    );
                },
            );
            assert!(matches!(outcome, Ok(Acquired::Permit(_))));
            assert_eq!(
                watched.get() > 0,
                first,
                "watched if it is new, in spite of all"
            );
            panics += panicked;
        }
        for (word, place, key) in calls {
            let before = table.usage().permits;
            let holder = holder(word, place);
            let (released, panicked) = through_panics(
                || table.release(&pin(), holder, &key),
                || assert_eq!(table.usage().permits, before),
            );
            assert_eq!(released, Ok(()));
            panics += panicked;
        }
        assert!(panics >= 20, "{panics} places panicked");
        assert_eq!(table.usage().permits, 0);
    }

    /// P4, P9: a panic in the middle of a death loses nothing of it, and nothing is given back twice.
    #[test]
    fn p4_a_death_gives_back_in_spite_of_a_panic() {
        // SAFETY: one thread, and nothing after `give_back`.
        let holder = |word, place| unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) };
        for grants in 0.. {
            let table = Table::new(4096).unwrap();
            for (word, place) in [(1, 0), (2, 1), (3, 0)] {
                for key in [1, 1, 2, 3, 4, 5] {
                    acquire(&table, holder(word, place), key).unwrap();
                }
            }
            let mut hits = 0;
            for (dead, left) in [(holder(1, 0), 12), (holder(3, 0), 6)] {
                arm(Fault::Panic, grants);
                let given = table.give_back(&pin(), dead);
                hits += disarm();
                assert_eq!((given.keys, given.permits), (5, 6));
                assert!(table.holders.find(dead).is_none());
                assert_eq!(table.usage().permits, left);
            }
            assert_eq!(table.usage().totals.given_back, 12);
            assert_eq!(table.count(&pin(), &1), 2);
            if hits == 0 {
                assert!(grants >= 6, "{grants} places");
                return;
            }
        }
    }

    /// P8, P9: a sweep that panics anywhere is taken up by the next one: every idle key goes, and so do the heads.
    #[test]
    fn p8_a_sweep_that_panics_is_taken_up_by_the_next() {
        // SAFETY: one thread.
        let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
        let keys = 3 * crate::keys::CHUNK as u64;
        let mut panics = 0;
        for first in 0..5 {
            let table = Table::new(16).unwrap();
            acquire(&table, holder, 0).unwrap();
            for key in 1..=keys {
                acquire(&table, holder, key).unwrap();
                table.release(&pin(), holder, &key).unwrap();
            }
            let mut grants = first;
            let mut swept = 0;
            while swept < 8 {
                match with_panic(grants, || table.sweep_step(256)) {
                    Some(Progress::Done) => swept += 1,
                    Some(_) => {}
                    None => panics += 1,
                }
                // Further on in each step.
                grants = if grants > 1500 {
                    first % 7
                } else {
                    grants + 13
                };
            }
            let mut swept = 0;
            while swept < 4 {
                swept += usize::from(table.sweep_step(256) == Progress::Done);
            }
            assert_eq!(table.usage().keys, 1);
            assert_eq!(table.keys.bits(), crate::keys::MIN_BITS);
            let bytes = table.usage().memory;
            acquire(&table, holder, 1).unwrap();
            assert_eq!(
                table.usage().memory,
                bytes + 64,
                "but for the node nothing is left"
            );
        }
        assert!(panics > 100, "{panics} panics");
    }

    /// P8, P9: a head whose way out of the list was interrupted by a panic is out before its chunk is given up.
    #[test]
    fn p8_a_panic_leaves_no_head_in_the_list_that_will_be_freed() {
        // SAFETY: one thread.
        let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
        let table = Table::new(16).unwrap();
        for key in 0..2 * crate::keys::CHUNK as u64 {
            acquire(&table, holder, key).unwrap();
            table.release(&pin(), holder, &key).unwrap();
        }
        while table.sweep_step(256) != Progress::Done {}
        // As long as somebody is inside, nothing is freed: so what is in the list can be looked at.
        let _inside = pin();
        let mut grants = 0;
        let mut panics = 0;
        loop {
            grants = (grants + 1) % 40;
            match with_panic(grants, || table.sweep_step(16)) {
                Some(Progress::More) => {}
                Some(_) => break,
                None => panics += 1,
            }
        }
        assert!(panics > 100, "{panics} panics");
        assert_eq!(table.keys.bits(), crate::keys::MIN_BITS);
        let mut heads = 0;
        let (mut next, _) = table.keys.entry(0).link.next();
        // SAFETY: pinned since before the sweep began to take anything out.
        while let Some(link) = unsafe { next.as_ref() } {
            let head = table.keys.entry(link.order());
            assert!(
                std::ptr::eq(&head.link, link),
                "a head that is not there any more"
            );
            heads += 1;
            (next, _) = link.next();
        }
        assert!(heads > 1000, "{heads} heads");
    }

    #[test]
    fn p9_a_table_that_cannot_be_made_leaves_nothing() {
        for grants in 0..3 {
            arm(Fault::Memory, grants);
            assert!(Table::<u64>::new(16).is_err());
            disarm();
        }
        assert!(Table::<u64>::new(16).is_ok());
        assert!(Table::<u64>::new(usize::MAX).is_err());
    }
}
