//! The ledger: what other threads record for a process. These are the permits that were handed over or given to it, and
//! its requests that wait.
//!
//! A process records in its slot the permits that it acquires itself, and no other thread writes there (H1). A permit
//! that another thread gives to the process is **credited** to the entry of the process in the ledger instead, under a
//! lock. The process holds the sum of both records. A release looks in the slot first.
//!
//! ```text
//!   shard of the process's word, a lock
//!     entry   word, id, dead
//!       rows    key's node -> permits, permits collected, requests that wait
//!       waits   digest of a request -> its number in the queue of a key
//! ```
//!
//! # Invariants
//!
//! - **LG1** Permits are credited under the lock, while the count includes them. They are subtracted before the count
//!   goes down. A row with permits or with waits names a node that is alive (K6). A row with neither is removed.
//! - **LG2** The VM watches the process of an entry before other threads can see the entry: because of its slot, or
//!   because the giver has it watched. The callback of its death marks the entry dead, under the lock, before it
//!   releases anything. No other thread adds a wait or a gift to a dead entry. If the word of the process is reused
//!   (`holder.rs`, "Identity"), the new process inherits the entry, with its requests.
//! - **LG3** Locks are taken in this order: the queue of a key or the displaced slots, shards of the ledger (two: by
//!   their index), the list in a slot. A death holds none of them when it takes the next one.

use crate::holder::Holder;
use crate::keys::Node;
use crate::memory::{reserve, OutOfMemory};
use crate::sorted_list::{Ordered, SortedList};
use crate::sync::{seeded, sized, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::{epochs::Pin, inject};
use crossbeam_utils::CachePadded;
use equivalent::Equivalent;
use std::ptr::{self, NonNull};

/// Locks of the ledger. Few processes wait at the same time on the same one.
const SHARDS: usize = sized(2, 4, 64);

/// Rows of one entry that are copied under the lock: about 50 µs.
const ROWS_PER_PIECE: usize = 1024;

/// A piece of a walk over all entries ends after this many.
const ENTRIES_PER_PIECE: usize = 1024;

/// Permits of one key that one holder has.
#[derive(Debug)]
pub struct Permits<'a, K> {
    /// The identity word of the holder.
    pub holder: u64,
    /// The key.
    pub key: &'a K,
    /// The number of permits.
    pub permits: u64,
}

/// What a process has of one key.
struct Row<K> {
    order: u64,
    node: NonNull<Node<K>>,
    permits: u64,
    /// Permits that a request of the process has collected. They are counted, and cannot be released yet.
    collected: u64,
    /// Requests of the process that wait for the key.
    waits: usize,
}

/// A request that waits.
pub(crate) struct Wait<K> {
    /// Finds it. Several requests of a process can have the same.
    pub(crate) digest: u64,
    pub(crate) node: NonNull<Node<K>>,
    /// Its number in the queue of the node.
    pub(crate) number: u64,
}

// SAFETY: both point to nodes that are alive (LG1), and nodes are shared between threads.
unsafe impl<K: Send + Sync> Send for Row<K> {}
// SAFETY: as above.
unsafe impl<K: Send + Sync> Send for Wait<K> {}

impl<K> Clone for Wait<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Wait<K> {}

impl<K> PartialEq for Wait<K> {
    fn eq(&self, other: &Self) -> bool {
        (self.number, self.node) == (other.number, other.node)
    }
}

impl<K> Ordered for Row<K> {
    fn order(&self) -> u64 {
        self.order
    }
}

impl<K> Ordered for Wait<K> {
    fn order(&self) -> u64 {
        self.digest
    }
}

struct Entry<K> {
    holder: Holder,
    /// Distinguishes it from an entry of another process with the word.
    id: u64,
    dead: bool,
    /// Its process had no slot when the entry was made. A walk over all processes reads slot and entry of a process
    /// together, once: when it comes to the entry if that is apart, otherwise when it comes to the slot.
    is_apart: bool,
    /// The sum of the permits in its rows, collected ones included.
    permits: u64,
    rows: SortedList<Row<K>>,
    waits: SortedList<Wait<K>>,
}

impl<K> Ordered for Entry<K> {
    fn order(&self) -> u64 {
        self.holder.word()
    }
}

struct Shard<K> {
    entries: SortedList<Entry<K>>,
    next_id: u64,
}

/// The records of all processes that have ever waited or been given a permit, until they die.
///
/// A panic under a lock (a bug) unlocks it. Everything that can fail precedes the first change.
pub(crate) struct Ledger<K> {
    shards: Vec<CachePadded<Mutex<Shard<K>>>>,
    /// The number of entries. It is increased before the process of a new entry is watched, so the callback of its
    /// death sees it. Relaxed: see [`Ledger::is_empty`].
    entries: AtomicUsize,
}

/// Permits on all entries.
#[derive(Default)]
pub(crate) struct Credits {
    pub(crate) permits: u64,
    /// Processes that have permits here, and none elsewhere.
    pub(crate) holders: usize,
}

impl<K> Entry<K> {
    fn row(&mut self, node: &Node<K>) -> &mut Row<K> {
        let row = self.rows.find_mut(node.order(), |row| row.is_of(node));
        row.expect("a wait has a row")
    }

    /// The node of a key, and its permits that can be released.
    fn find<Q: Equivalent<K>>(&self, query: &Q, order: u64) -> Option<(NonNull<Node<K>>, u64)> {
        let is_of = |row: &Row<K>| {
            // SAFETY: a row with permits, under the lock (LG1).
            row.permits > 0 && query.equivalent(unsafe { &row.node.as_ref().key })
        };
        let row = self.rows.find(order, is_of)?;
        Some((row.node, row.permits))
    }

    fn remove_if_empty(&mut self, node: &Node<K>) {
        let is_empty = |row: &Row<K>| row.is_of(node) && row.permits == 0 && row.waits == 0;
        self.rows.remove(node.order(), is_empty);
    }

    fn has(&self, wait: &Wait<K>) -> bool {
        let found = self.waits.find(wait.digest, |other| other == wait);
        found.is_some() || seeded("lg2_wait_of_any_entry_with_the_word")
    }

    /// The row of a node. If there is none, it is made, and must not stay empty.
    fn reserve_row(
        rows: &mut SortedList<Row<K>>,
        node: NonNull<Node<K>>,
        order: u64,
    ) -> Result<&mut Row<K>, OutOfMemory> {
        if rows.find(order, |row| row.node == node).is_none() {
            rows.reserve(order)?.insert(Row {
                order,
                node,
                permits: 0,
                collected: 0,
                waits: 0,
            });
        }
        let row = rows.find_mut(order, |row| row.node == node);
        Ok(row.expect("it has one now"))
    }

    /// Removes up to `permits` permits of a node. Returns how many it has removed.
    fn take(&mut self, node: &Node<K>, permits: u64) -> u64 {
        let Some(row) = self.rows.find_mut(node.order(), |row| row.is_of(node)) else {
            return 0;
        };
        let taken = row.permits.min(permits);
        row.permits -= taken;
        self.permits -= taken;
        self.remove_if_empty(node);
        taken
    }

    /// Copies rows from an order on. Returns where to continue.
    fn copy<'a>(
        &self,
        _pin: &'a Pin,
        from: u64,
        only: Option<&Node<K>>,
        copies: &mut Vec<(&'a Node<K>, u64)>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let mut last = from;
        for (copied, row) in self.rows.from(from).enumerate() {
            if only.is_some_and(|only| row.order > only.order()) {
                break;
            }
            if copied >= ROWS_PER_PIECE && row.order > last {
                return Ok(Some(row.order));
            }
            last = row.order;
            let permits = row.permits + row.collected;
            if permits > 0 && only.is_none_or(|only| row.is_of(only)) {
                reserve(copies, 1)?;
                // SAFETY: a row with permits, read under the lock (LG1). The node lives as long as the pin.
                copies.push((unsafe { &*row.node.as_ptr() }, permits));
            }
        }
        Ok(None)
    }
}

impl<K> Row<K> {
    fn is_of(&self, node: &Node<K>) -> bool {
        ptr::eq(self.node.as_ptr(), node)
    }
}

impl<K> Shard<K> {
    /// Calls `with` with an entry of this word.
    fn with<T>(
        &mut self,
        word: u64,
        is_wanted: impl Fn(&Entry<K>) -> bool,
        with: impl FnOnce(&mut Entry<K>) -> T,
    ) -> Option<T> {
        let entry = self.entries.find_mut(word, is_wanted)?;
        Some(with(entry))
    }

    /// As [`Shard::with`], for the entry of a process that is alive.
    fn with_live<T>(&mut self, word: u64, with: impl FnOnce(&mut Entry<K>) -> T) -> Option<T> {
        self.with(word, |entry| !entry.dead, with)
    }

    fn with_id<T>(
        &mut self,
        word: u64,
        id: u64,
        with: impl FnOnce(&mut Entry<K>) -> T,
    ) -> Option<T> {
        self.with(word, |entry| entry.id == id, with)
    }

    /// The first process with an entry, from a word on, and the permits on all entries of its word.
    fn next_sum(&self, from: u64) -> Option<(Holder, u64)> {
        let holder = self.entries.from(from).next()?.holder;
        let entries = self.entries.from(holder.word());
        let same = entries.take_while(|entry| entry.holder.word() == holder.word());
        Some((holder, same.map(|entry| entry.permits).sum()))
    }

    fn has_live(&self, word: u64) -> bool {
        self.entries.find(word, |entry| !entry.dead).is_some()
    }

    /// Makes an entry for a process that has none, and that is watched (LG2).
    fn add(&mut self, holder: Holder, is_apart: bool) -> Result<(), OutOfMemory> {
        let vacancy = self.entries.reserve(holder.word())?;
        self.next_id += 1;
        vacancy.insert(Entry {
            holder,
            id: self.next_id,
            dead: false,
            is_apart,
            permits: 0,
            rows: SortedList::default(),
            waits: SortedList::default(),
        });
        Ok(())
    }
}

fn index(word: u64) -> usize {
    // The lowest bits of a pid are the same for all processes.
    (word ^ word >> 4) as usize % SHARDS
}

impl<K> Ledger<K> {
    /// An empty ledger.
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let mut shards = Vec::new();
        reserve(&mut shards, SHARDS)?;
        shards.extend((0..SHARDS).map(|_| {
            CachePadded::new(Mutex::new(Shard {
                entries: SortedList::default(),
                next_id: 0,
            }))
        }));
        Ok(Self {
            shards,
            entries: AtomicUsize::new(0),
        })
    }

    /// Whether no process has an entry. It costs a load, and is exact for a process that asks for itself: it has made
    /// its entry, or has been told by the giver that it has a permit. It is exact for the callback of a death, too.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.load(Ordering::Relaxed) == 0
    }

    fn lock<'a>(&'a self, word: u64) -> MutexGuard<'a, Shard<K>> {
        self.lock_shard(index(word))
    }

    fn lock_shard<'a>(&'a self, index: usize) -> MutexGuard<'a, Shard<K>> {
        self.shards[index].lock()
    }

    /// Records a request that is about to wait. Its process is watched, because it has a slot.
    pub(crate) fn add_wait(&self, holder: Holder, wait: Wait<K>) -> Result<(), OutOfMemory> {
        // SAFETY: the caller has locked the queue of the node.
        let order = unsafe { wait.node.as_ref() }.order();
        let mut shard = self.lock(holder.word());
        if !shard.has_live(holder.word()) {
            shard.add(holder, false)?;
            self.entries.fetch_add(1, Ordering::Relaxed);
        }
        let added = shard.with_live(holder.word(), |entry| {
            let vacancy = entry.waits.reserve(wait.digest)?;
            let row = Entry::reserve_row(&mut entry.rows, wait.node, order)?;
            row.waits += 1;
            vacancy.insert(wait);
            Ok(())
        });
        added.expect("it has an entry now")
    }

    /// Calls `with` with the entry of a request that waits, and with its row. The queue is locked.
    fn with_wait<T>(
        &self,
        holder: Holder,
        wait: &Wait<K>,
        with: impl FnOnce(&mut Entry<K>, &Node<K>) -> T,
    ) -> T {
        // SAFETY: it has a queue (K6).
        let node = unsafe { wait.node.as_ref() };
        let mut shard = self.lock(holder.word());
        let answer = shard.with(
            holder.word(),
            |entry| entry.has(wait),
            |entry| with(entry, node),
        );
        answer.expect("a request that waits is on its process's entry (W5)")
    }

    /// Credits permits that a request has collected.
    pub(crate) fn collect(&self, holder: Holder, wait: &Wait<K>, permits: u64) {
        self.with_wait(holder, wait, |entry, node| {
            entry.row(node).collected += permits;
            entry.permits += permits;
        });
    }

    /// Takes back permits that a request has collected.
    pub(crate) fn take_collected(&self, holder: Holder, wait: &Wait<K>, permits: u64) {
        self.with_wait(holder, wait, |entry, node| {
            entry.row(node).collected -= permits;
            entry.permits -= permits;
        });
    }

    /// Ends a request. `granted` permits are credited. The ones that it had collected are part of them. `tell` is
    /// called after that, under the same lock (W3).
    pub(crate) fn end_wait(
        &self,
        holder: Holder,
        wait: &Wait<K>,
        (collected, granted): (u64, u64),
        tell: impl FnOnce(),
    ) {
        let mut tell = Some(tell);
        let mut tell = || {
            if let Some(tell) = tell.take() {
                tell();
            }
        };
        if seeded("lg1_told_before_credited") {
            tell();
        }
        self.with_wait(holder, wait, |entry, node| {
            let row = entry.row(node);
            row.waits -= 1;
            row.collected -= collected;
            row.permits += granted;
            entry.permits = entry.permits - collected + granted;
            entry.waits.remove(wait.digest, |other| other == wait);
            entry.remove_if_empty(node);
            if !seeded("w3_told_after_the_lock") {
                tell();
            }
        });
        tell();
    }

    /// The requests with this digest of a process that wait, one after the other: the one after `last`.
    pub(crate) fn wait_after(
        &self,
        holder: Holder,
        digest: u64,
        last: Option<Wait<K>>,
    ) -> Option<Wait<K>> {
        let position = |wait: &Wait<K>| (wait.number, wait.node);
        let shard = self.shards[index(holder.word())].lock();
        let entry = shard.entries.find(holder.word(), |entry| !entry.dead)?;
        let same = entry.waits.from(digest);
        let same = same.take_while(|wait| wait.digest == digest);
        let rest = same.filter(|wait| last.is_none_or(|last| position(wait) > position(&last)));
        rest.min_by_key(|wait| position(wait)).copied()
    }

    /// Removes one permit of a key from the record of a process. The count still includes it.
    pub(crate) fn release<Q: Equivalent<K>>(
        &self,
        holder: Holder,
        query: &Q,
        order: u64,
    ) -> Option<NonNull<Node<K>>> {
        let mut shard = self.lock(holder.word());
        inject::panic();
        shard.with_live(holder.word(), |entry| {
            let node = entry.find(query, order)?.0;
            // SAFETY: a row with permits, under the lock (LG1).
            entry.take(unsafe { node.as_ref() }, 1);
            Some(node)
        })?
    }

    /// The permits of a key that a process has here.
    pub(crate) fn held<Q: Equivalent<K>>(
        &self,
        holder: Holder,
        query: &Q,
        order: u64,
    ) -> Option<(NonNull<Node<K>>, u64)> {
        let mut shard = self.lock(holder.word());
        shard.with_live(holder.word(), |entry| entry.find(query, order))?
    }

    /// Removes permits of a node that the process is known to have here.
    pub(crate) fn take(&self, holder: Holder, node: &Node<K>, permits: u64) {
        let mut shard = self.lock(holder.word());
        let taken = shard.with_live(holder.word(), |entry| entry.take(node, permits));
        debug_assert_eq!(taken.unwrap_or(0), permits);
    }

    /// Moves permits of a node to another process. The giver has at least that many. `from_slot` removes what it can
    /// from the giver's slot and returns how many; the rest is here. Returns false if `target` is not alive.
    ///
    /// `watch` is called if `target` has no entry. It must ensure that the callback of its death is called. It returns
    /// false if `target` is not alive.
    pub(crate) fn give<E: From<OutOfMemory>>(
        &self,
        giver: Holder,
        target: Holder,
        gift: Gift<'_, K>,
        from_slot: impl FnOnce() -> u64,
        watch: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Gift { node, permits, .. } = gift;
        let (own, theirs) = (index(giver.word()), index(target.word()));
        let is_first = own < theirs || seeded("lg3_locks_as_called");
        let too_soon = seeded("lg2_looked_up_before_the_lock")
            .then(|| self.lock_shard(theirs).has_live(target.word()));
        let mut first = (own != theirs && is_first).then(|| self.lock_shard(own));
        let mut shard = self.lock_shard(theirs);
        let mut second = (own != theirs && !is_first).then(|| self.lock_shard(own));
        if !too_soon.unwrap_or_else(|| shard.has_live(target.word())) {
            let too_soon = seeded("lg2_visible_before_watched");
            self.entries.fetch_add(1, Ordering::Relaxed);
            let mut added = Added(Some(&self.entries));
            if too_soon {
                shard.add(target, gift.is_apart)?;
                added.0 = None;
            }
            if !watch()? {
                return Ok(false);
            }
            if !too_soon {
                shard.add(target, gift.is_apart)?;
                added.0 = None;
            }
        }
        inject::panic();
        let row = shard.with_live(target.word(), |entry| {
            Entry::reserve_row(&mut entry.rows, node.into(), node.order()).map(|_| ())
        });
        row.expect("it has an entry now")?;
        // From here on nothing can fail or panic.
        let credit = |shard: &mut Shard<K>| {
            shard.with_live(target.word(), |entry| {
                entry.row(node).permits += permits;
                entry.permits += permits;
            })
        };
        let too_soon = seeded("lg1_credited_before_taken_off");
        if too_soon {
            credit(&mut shard);
            // Otherwise no other thread could see it.
            drop((shard, first.take(), second.take()));
            first = (own != theirs).then(|| self.lock_shard(own));
            shard = self.lock_shard(theirs);
        }
        let rest = permits - from_slot();
        let take = |entry: &mut Entry<K>| entry.take(node, rest);
        if rest > 0 {
            match first.or(second) {
                Some(mut own) => own.with_live(giver.word(), take),
                None => shard.with_live(giver.word(), take),
            };
        }
        if !too_soon {
            credit(&mut shard);
        }
        Ok(true)
    }

    /// Marks the entry of a dead process as dead, unless its word is reused. Returns the id of the entry.
    pub(crate) fn bury(&self, holder: Holder, is_reused: impl FnOnce() -> bool) -> Option<u64> {
        let mut shard = self.lock(holder.word());
        if !shard.has_live(holder.word()) || is_reused() {
            return None;
        }
        shard.with_live(holder.word(), |entry| {
            entry.dead = !seeded("lg2_dead_after_drained");
            entry.id
        })
    }

    /// A request of a dead process that waits.
    pub(crate) fn next_wait(&self, holder: Holder, id: u64) -> Option<Wait<K>> {
        let mut shard = self.lock(holder.word());
        shard.with_id(holder.word(), id, |entry| {
            entry.waits.from(0).next().copied()
        })?
    }

    /// Removes the permits of a key from the record of a dead process. The count still includes them. Without any, the
    /// entry is removed.
    pub(crate) fn next_permits(&self, holder: Holder, id: u64) -> Option<(NonNull<Node<K>>, u64)> {
        let mut shard = self.lock(holder.word());
        let row = shard.with_id(holder.word(), id, |entry| {
            let row = entry.rows.pop()?;
            entry.permits -= row.permits;
            Some((row.node, row.permits))
        })?;
        if row.is_none() {
            shard.entries.remove(holder.word(), |entry| entry.id == id);
            shard.entries.shrink_to_fit();
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
        row
    }

    /// Whether a process has an entry. It holds nothing here without one.
    pub(crate) fn has(&self, holder: Holder) -> bool {
        let shard = self.shards[index(holder.word())].lock();
        let mut entries = shard.entries.from(holder.word());
        entries
            .next()
            .is_some_and(|entry| entry.holder.word() == holder.word())
    }

    /// The permits on all entries. `has_others` tells whether a process has permits in its slot.
    pub(crate) fn credits(&self, has_others: impl Fn(Holder) -> bool) -> Credits {
        let mut credits = Credits::default();
        for shard in &self.shards {
            let mut from = Some(0);
            while let Some((holder, permits)) = from.and_then(|from| shard.lock().next_sum(from)) {
                credits.permits += permits;
                // The shard is not locked: `has_others` takes the lock of the displaced slots, and an inspection that
                // has that lock takes this one.
                credits.holders += usize::from(permits > 0 && !has_others(holder));
                from = holder.word().checked_add(1);
            }
        }
        credits
    }

    /// Copies what a process has: of all keys from an order on, or of one. Returns where to continue, or `None` if the
    /// entry is apart, and `beside_slot` is set.
    pub(crate) fn copy<'a>(
        &self,
        pin: &'a Pin,
        word: u64,
        from: u64,
        only: Option<&Node<K>>,
        beside_slot: bool,
        copies: &mut Vec<(&'a Node<K>, u64)>,
    ) -> Result<Option<Option<u64>>, OutOfMemory> {
        let shard = self.shards[index(word)].lock();
        // With a dead process and a live one of the same word, the first one is alive.
        match shard.entries.find(word, |_| true) {
            Some(entry) if entry.is_apart && beside_slot => Ok(None),
            Some(entry) => entry.copy(pin, from, only, copies).map(Some),
            None => Ok(Some(None)),
        }
    }

    /// Copies the processes of one shard whose entries are apart, from a word on. Returns the shard and the word to
    /// continue from: `None` beyond the last shard.
    pub(crate) fn apart(
        &self,
        (index, from): (usize, u64),
        holders: &mut Vec<Holder>,
    ) -> Result<Option<(usize, u64)>, OutOfMemory> {
        let Some(shard) = self.shards.get(index) else {
            return Ok(None);
        };
        let shard = shard.lock();
        let mut last = from;
        for (read, entry) in shard.entries.from(from).enumerate() {
            if read >= ENTRIES_PER_PIECE && entry.holder.word() > last {
                return Ok(Some((index, entry.holder.word())));
            }
            last = entry.holder.word();
            // Of a dead process and a live one with the same word, the entry of the live one is copied.
            let is_next = holders.last().is_none_or(|other| other.word() != last);
            if entry.is_apart && is_next {
                reserve(holders, 1)?;
                holders.push(entry.holder);
            }
        }
        Ok(Some((index + 1, 0)))
    }
}

/// A counted entry that is not made yet. On drop it is not counted any more.
struct Added<'a>(Option<&'a AtomicUsize>);

impl Drop for Added<'_> {
    fn drop(&mut self) {
        if let Some(entries) = self.0 {
            entries.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Permits that one process gives to another.
#[derive(Clone, Copy)]
pub(crate) struct Gift<'a, K> {
    pub(crate) node: &'a Node<K>,
    pub(crate) permits: u64,
    /// The receiver has no slot.
    pub(crate) is_apart: bool,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::num::NonZeroU64;

    #[test]
    fn consecutive_processes_have_different_locks() {
        // The internal format of pids on x86-64: the number of the process, and four bits of a tag.
        let words = (1000..).map(|number: u64| number << 4 | 0b0011);
        let indexes: BTreeSet<usize> = words.take(SHARDS).map(index).collect();
        assert_eq!(indexes, (0..SHARDS).collect());
    }

    #[test]
    fn processes_of_one_shard_are_copied_in_pieces() {
        let ledger = Ledger::<u64>::new().unwrap();
        // Words with the same index.
        let words = || (1..=2500).map(|number: u64| number << 10);
        for word in words() {
            let word = NonZeroU64::new(word).unwrap();
            // SAFETY: one thread, and no process is dead.
            let holder = unsafe { Holder::new(word, 0) };
            let mut shard = ledger.lock(word.get());
            shard.add(holder, true).unwrap();
        }
        let mut holders = Vec::new();
        let mut lengths = Vec::new();
        let mut next = (0, 0);
        while let Some(from) = ledger.apart(next, &mut holders).unwrap() {
            lengths.push(holders.len() - lengths.iter().sum::<usize>());
            next = from;
        }
        let read: Vec<u64> = holders.iter().map(|holder| holder.word()).collect();
        assert_eq!(read, words().collect::<Vec<_>>());
        let full = lengths
            .iter()
            .filter(|length| **length == ENTRIES_PER_PIECE);
        assert_eq!(
            (full.count(), lengths.iter().max()),
            (2, Some(&ENTRIES_PER_PIECE))
        );
    }
}
