//! The overflow of a slot: what other threads record for a process, and what does not fit into its slot.
//!
//! ```text
//!   slot of a process
//!     overflow   a lock
//!       rows     key's node -> permits, permits collected, requests that wait
//!       waits    hash of a request -> its number in the queue of a key
//! ```
//!
//! Other threads add permits here: when they grant a request of the process, and when they give it a permit. The
//! process itself moves keys here that its slot has no room for. It holds the sum of both records of a key.
//!
//! # Invariants
//!
//! - **O1** A row with permits or with waits names a node that is alive (K6). A row with neither is removed. Permits
//!   are added under the lock, while the count includes them, or while they are lost (W7). They are subtracted before
//!   the count goes down. So a grant needs no memory: the row was made when the request began to wait.
//! - **O2** The callback of a death replaces the identity word of the slot before it takes the lock. A giver reads the
//!   word under the lock. So either the giver sees that the process is dead, or the callback finds the permit.
//! - **O3** Locks are taken in this order: the displaced slots, the queue of a key, then one overflow. A gift locks two
//!   of these, in the order of their addresses. A death holds none of them when it takes the next one.
//! - **O4** While its process is in no call, the sum equals the permits in the rows. So the total of a process is read
//!   without a walk and without a lock, and the process does not wait for its readers.

use crate::keys::Node;
use crate::memory::OutOfMemory;
use crate::sorted_list::SortedList;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use equivalent::Equivalent;
use std::ptr::{self, NonNull};

/// What a process has of one key.
pub(crate) struct KeyRow<K> {
    pub(crate) node: NonNull<Node<K>>,
    permits: u64,
    /// Permits that a request of the process has collected. They are counted, and cannot be released yet.
    collected: u64,
    /// Requests of the process that wait for the key.
    waits: usize,
}

/// A request that waits: its number in the queue of a node, and that node.
pub(crate) type Wait<K> = (u64, NonNull<Node<K>>);

impl<K> KeyRow<K> {
    pub(crate) fn is_of(&self, node: &Node<K>) -> bool {
        ptr::eq(self.node.as_ptr(), node)
    }

    /// The permits, with those that a request has collected.
    pub(crate) fn counted(&self) -> u64 {
        self.permits + self.collected
    }
}

struct Record<K> {
    /// By the sort keys of their keys.
    rows: SortedList<KeyRow<K>>,
    /// By the hashes of the requests. Several can have the same.
    waits: SortedList<Wait<K>>,
}

// SAFETY: it points to nodes that are alive (O1), and nodes are shared between threads.
unsafe impl<K: Send + Sync> Send for Record<K> {}

/// The row of a key. It is made if there is none, and must not stay empty.
fn reserve_row<'a, K>(
    rows: &'a mut SortedList<KeyRow<K>>,
    node: &Node<K>,
) -> Result<&'a mut KeyRow<K>, OutOfMemory> {
    let sort_key = node.sort_key();
    if rows.find(sort_key, |row| row.is_of(node)).is_none() {
        rows.reserve(sort_key)?.insert(KeyRow {
            node: node.into(),
            permits: 0,
            collected: 0,
            waits: 0,
        });
    }
    let row = rows.find_mut(sort_key, |row| row.is_of(node));
    Ok(row.expect("it has one now"))
}

/// A panic inside the lock (a bug, in a hash or in a comparison) unlocks it and leaves the record intact: everything
/// that can fail precedes the first change.
pub(crate) struct Overflow<K> {
    record: Mutex<Record<K>>,
    /// The sum of the permits in the rows, collected ones included (O4). Changed under the lock, so a load and a store
    /// are enough. Relaxed: it is a statistic, and no pointer is followed because of it.
    pub(crate) permits: AtomicU64,
}

/// A locked overflow.
pub(crate) struct OverflowGuard<'a, K> {
    record: MutexGuard<'a, Record<K>>,
    permits: &'a AtomicU64,
}

impl<K> Overflow<K> {
    pub(crate) fn new() -> Self {
        Self {
            record: Mutex::new(Record {
                rows: SortedList::default(),
                waits: SortedList::default(),
            }),
            permits: AtomicU64::new(0),
        }
    }

    pub(crate) fn lock(&self) -> OverflowGuard<'_, K> {
        OverflowGuard {
            record: self.record.lock(),
            permits: &self.permits,
        }
    }
}

/// Locks the overflows of two processes, with these identity words, in the order of their addresses (O3).
pub(crate) fn lock_both<'a, K>(
    (one, word): (Option<&'a Overflow<K>>, u64),
    (other, other_word): (&'a Overflow<K>, u64),
) -> (Option<OverflowGuard<'a, K>>, OverflowGuard<'a, K>) {
    let is_first = |one| {
        // A model is explored by repeating it, and addresses differ between executions.
        let by_word = cfg!(loom) && word < other_word;
        by_word || !cfg!(loom) && ptr::from_ref(one) < ptr::from_ref(other)
    };
    match one {
        Some(one) if is_first(one) => {
            let one = one.lock();
            (Some(one), other.lock())
        }
        _ => {
            let other = other.lock();
            (one.map(Overflow::lock), other)
        }
    }
}

impl<K> OverflowGuard<'_, K> {
    fn add(&self, more: u64) {
        let permits = self.permits.load(Ordering::Relaxed);
        self.permits
            .store(permits.wrapping_add(more), Ordering::Relaxed);
    }

    fn subtract(&self, fewer: u64) {
        self.add(fewer.wrapping_neg());
    }

    /// The row of a key that has one.
    fn row(&mut self, node: &Node<K>) -> &mut KeyRow<K> {
        let rows = &mut self.record.rows;
        let row = rows.find_mut(node.sort_key(), |row| row.is_of(node));
        row.expect("the caller has reserved it, or a request waits")
    }

    fn remove_if_empty(&mut self, node: &Node<K>) {
        let is_empty = |row: &KeyRow<K>| row.is_of(node) && row.counted() == 0 && row.waits == 0;
        self.record.rows.remove(node.sort_key(), is_empty);
    }

    /// Makes a row for a key, if it has none. The row must not stay empty.
    pub(crate) fn reserve(&mut self, node: &Node<K>) -> Result<(), OutOfMemory> {
        reserve_row(&mut self.record.rows, node).map(|_| ())
    }

    /// Adds permits that the count includes to the row of a key, which was reserved.
    pub(crate) fn credit(&mut self, node: &Node<K>, permits: u64) {
        self.row(node).permits += permits;
        self.add(permits);
    }

    /// Removes up to `most` permits of a key. The count still includes those that are not lost. Returns how many.
    pub(crate) fn take(&mut self, node: &Node<K>, most: u64) -> u64 {
        let rows = &mut self.record.rows;
        let Some(row) = rows.find_mut(node.sort_key(), |row| row.is_of(node)) else {
            return 0;
        };
        let taken = row.permits.min(most);
        row.permits -= taken;
        self.remove_if_empty(node);
        self.subtract(taken);
        taken
    }

    /// The node of a key, and its permits that can be released.
    pub(crate) fn held<Q: Equivalent<K>>(
        &self,
        query: &Q,
        sort_key: u64,
    ) -> Option<(NonNull<Node<K>>, u64)> {
        let is_of = |row: &KeyRow<K>| {
            // SAFETY: a row with permits, under the lock (O1).
            row.permits > 0 && query.equivalent(unsafe { &row.node.as_ref().key })
        };
        let row = self.record.rows.find(sort_key, is_of)?;
        Some((row.node, row.permits))
    }

    /// Removes the permits of a key of a dead process, whose requests have ended.
    pub(crate) fn pop(&mut self) -> Option<(NonNull<Node<K>>, u64)> {
        let row = self.record.rows.pop()?;
        // O1: a row without permits would name a key that may have been reclaimed.
        debug_assert!(row.permits > 0 && row.collected == 0 && row.waits == 0);
        self.subtract(row.permits);
        Some((row.node, row.permits))
    }

    /// The rows from a sort key on. A row can have no permits.
    pub(crate) fn rows(&self, from: u64) -> impl Iterator<Item = &(u64, KeyRow<K>)> {
        self.record.rows.from(from)
    }

    /// Records a request that is about to wait. The queue of its key is locked.
    pub(crate) fn add_wait(
        &mut self,
        node: &Node<K>,
        request_hash: u64,
        number: u64,
    ) -> Result<(), OutOfMemory> {
        let Record { rows, waits } = &mut *self.record;
        let vacancy = waits.reserve(request_hash)?;
        reserve_row(rows, node)?.waits += 1;
        vacancy.insert((number, node.into()));
        Ok(())
    }

    /// Records permits that a request has collected, and that the count includes.
    pub(crate) fn collect(&mut self, node: &Node<K>, permits: u64) {
        self.row(node).collected += permits;
        self.add(permits);
    }

    /// Removes the permits that a request has collected. The count still includes them.
    pub(crate) fn return_collected(&mut self, node: &Node<K>, permits: u64) {
        if permits == 0 {
            return;
        }
        self.row(node).collected -= permits;
        self.subtract(permits);
    }

    /// Ends a request that has no collected permits on record. `granted` permits, which the count includes, are its
    /// process's from now on.
    pub(crate) fn end_wait(
        &mut self,
        node: &Node<K>,
        request_hash: u64,
        number: u64,
        granted: u64,
    ) {
        let waits = &mut self.record.waits;
        let removed = waits.remove(request_hash, |wait| *wait == (number, node.into()));
        removed.expect("a request that waits is on record (W5)");
        let row = self.row(node);
        row.waits -= 1;
        row.permits += granted;
        self.add(granted);
        self.remove_if_empty(node);
    }

    /// A request that waits.
    pub(crate) fn any_wait(&self) -> Option<Wait<K>> {
        self.record.waits.from(0).next().map(|(_, wait)| *wait)
    }

    /// The requests with this hash, one after the other: the one after `last`.
    pub(crate) fn wait_after(&self, request_hash: u64, last: Option<Wait<K>>) -> Option<Wait<K>> {
        let same = self.record.waits.from(request_hash);
        let same = same.take_while(|(hash, _)| *hash == request_hash);
        let same = same.map(|(_, wait)| *wait);
        same.filter(|wait| last.is_none_or(|last| *wait > last))
            .min()
    }

    /// Frees the memory of empty lists.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.record.rows.shrink_to_fit();
        self.record.waits.shrink_to_fit();
    }
}
