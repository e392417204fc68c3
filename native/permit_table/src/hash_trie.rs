//! A hash table that grows, shrinks and is read in bounded pieces.
//!
//! A flat hash table moves all its entries when it grows. With a million entries that takes tens of milliseconds,
//! which no call on a scheduler of the VM may take. This one is a burst trie (Heinz, Zobel and Williams, "Burst Tries",
//! ACM TOIS 2002): its leaves are small flat tables, and a leaf that is full is split into 16 by the next four bits of
//! the hash.
//!
//! ```text
//!   inner            [ 0 | 1 | 2 | ... | f ]         by bits 63 to 60 of the hash
//!                      |   |
//!   leaf, inner     {...} [ 0 | 1 | ... | f ]        by bits 59 to 56
//!                           |
//!   leaf                  {...}                      at most `LEAF` entries
//! ```
//!
//! - **T1** Each leaf has the entries of one range of hashes, and the ranges of the leaves are in order. So a walk in
//!   pieces can stop after any range, and go on behind it after others have changed the trie.
//! - **T2** An operation moves the entries of a few leaves at most. Only more than `LEAF` entries of one and the same
//!   hash stay in one leaf.

use crate::fault;
use crate::memory::{Account, OutOfMemory};
use crate::sync::{sized, Mutex, MutexGuard};
use hashbrown::HashTable;
use std::ops::{Deref, DerefMut};

/// Entries of a leaf: as many as fit into a table of 128 places at hashbrown's load of 7/8.
const LEAF: usize = sized(2, 8, 112);

/// An empty trie keeps the memory of its leaf up to this capacity, for the next entries.
const KEPT_ROOM: usize = 64;

/// Bits of the hash that a level of the trie decides by.
const LEVEL_BITS: u32 = 4;

const CHILDREN: usize = 1 << LEVEL_BITS;

/// What can be stored in a trie.
pub trait Hashed {
    /// Its hash. It never changes, and all bits of it count.
    fn hash(&self) -> u64;
}

/// See the module's documentation.
pub struct HashTrie<T> {
    root: Branch<T>,
    bytes: usize,
}

/// Room for an entry of one hash.
pub struct Vacancy<'a, T> {
    leaf: &'a mut HashTable<T>,
    hash: u64,
}

impl<T: Hashed> Vacancy<'_, T> {
    /// Adds an entry of that hash, whether or not there is one like it. Cannot fail.
    pub fn insert(self, entry: T) {
        debug_assert_eq!(entry.hash(), self.hash);
        insert_reserved(self.leaf, entry);
    }
}

enum Branch<T> {
    Leaf(HashTable<T>),
    /// [`CHILDREN`] of them.
    Inner(Vec<Branch<T>>),
}

impl<T> Default for HashTrie<T> {
    fn default() -> Self {
        Self {
            root: Branch::default(),
            bytes: 0,
        }
    }
}

impl<T> Default for Branch<T> {
    fn default() -> Self {
        Branch::Leaf(HashTable::new())
    }
}

impl<T: Hashed> HashTrie<T> {
    /// Bytes that it has allocated.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    /// An entry of this hash that `is_wanted` accepts.
    pub fn find(&self, hash: u64, is_wanted: impl FnMut(&T) -> bool) -> Option<&T> {
        let (leaf, _) = self.leaf(hash);
        leaf.find(in_leaf(hash), is_wanted)
    }

    /// As [`HashTrie::find`]; the hash of the entry must stay as it is.
    pub fn find_mut(&mut self, hash: u64, is_wanted: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let mut branch = &mut self.root;
        let mut shift = u64::BITS;
        loop {
            match branch {
                Branch::Leaf(leaf) => return leaf.find_mut(in_leaf(hash), is_wanted),
                Branch::Inner(children) => {
                    shift -= LEVEL_BITS;
                    branch = &mut children[child_of(hash, shift)];
                }
            }
        }
    }

    /// Room for an entry of this hash.
    ///
    /// # Errors
    /// [`OutOfMemory`]: it has the entries that it had.
    pub fn reserve(&mut self, hash: u64) -> Result<Vacancy<'_, T>, OutOfMemory> {
        let mut branch = &mut self.root;
        let mut shift = u64::BITS;
        loop {
            if shift > 0 {
                branch.split_if_full(shift, &mut self.bytes)?;
            }
            match branch {
                Branch::Leaf(leaf) => {
                    reserve(leaf, 1, &mut self.bytes)?;
                    return Ok(Vacancy { leaf, hash });
                }
                Branch::Inner(children) => {
                    shift -= LEVEL_BITS;
                    branch = &mut children[child_of(hash, shift)];
                }
            }
        }
    }

    /// Removes an entry of this hash that `is_wanted` accepts.
    pub fn remove(&mut self, hash: u64, is_wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let removed = self
            .root
            .remove(hash, u64::BITS, is_wanted, &mut self.bytes);
        self.free_room_if_empty();
        removed
    }

    /// Removes up to `limit` entries and calls `taken` with each. If it panics, that entry and those before it are
    /// removed.
    pub fn take(&mut self, limit: usize, mut taken: impl FnMut(T)) {
        let mut left = limit;
        self.root.take(&mut left, &mut self.bytes, &mut taken);
        self.free_room_if_empty();
    }

    /// Frees what it has allocated, if it has no entry.
    pub fn shrink_to_fit(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Calls `visit` with the entries of hash `from` and greater, leaf by leaf, until there have been `limit` of them.
    /// Returns the hash to go on from, or nothing at the end. An entry that is there during the whole of a walk is
    /// visited exactly once.
    ///
    /// # Errors
    /// Those of `visit`, which end the walk.
    pub fn walk<'a, E>(
        &'a self,
        from: u64,
        limit: usize,
        mut visit: impl FnMut(&'a T) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let mut first = from;
        let mut seen = 0;
        loop {
            let (leaf, last) = self.leaf(first);
            for entry in leaf.iter().filter(|entry| entry.hash() >= first) {
                visit(entry)?;
            }
            // An empty leaf takes time too.
            seen += leaf.len().max(1);
            match last.checked_add(1) {
                Some(next) if seen >= limit => return Ok(Some(next)),
                Some(next) => first = next,
                None => return Ok(None),
            }
        }
    }

    /// The entry of the smallest hash from `from` on that `is_wanted` accepts.
    pub fn first(&self, from: u64, is_wanted: impl Fn(&T) -> bool) -> Option<&T> {
        let mut first = from;
        loop {
            let (leaf, last) = self.leaf(first);
            let entries = leaf.iter().filter(|entry| entry.hash() >= first);
            let found = entries
                .filter(|entry| is_wanted(entry))
                .min_by_key(|entry| entry.hash());
            if found.is_some() {
                return found;
            }
            first = last.checked_add(1)?;
        }
    }

    /// The leaf of a hash, and the greatest hash of its range (T1).
    fn leaf(&self, hash: u64) -> (&HashTable<T>, u64) {
        let mut branch = &self.root;
        let mut shift = u64::BITS;
        loop {
            match branch {
                Branch::Leaf(leaf) => {
                    let below = u64::MAX.checked_shr(u64::BITS - shift).unwrap_or(0);
                    return (leaf, hash | below);
                }
                Branch::Inner(children) => {
                    shift -= LEVEL_BITS;
                    branch = &children[child_of(hash, shift)];
                }
            }
        }
    }

    fn free_room_if_empty(&mut self) {
        if let Branch::Leaf(leaf) = &mut self.root {
            if leaf.is_empty() && leaf.capacity() > KEPT_ROOM {
                self.bytes -= leaf.allocation_size();
                *leaf = HashTable::new();
            }
        }
    }
}

impl<T: Hashed> Branch<T> {
    fn is_empty(&self) -> bool {
        match self {
            Branch::Leaf(leaf) => leaf.is_empty(),
            Branch::Inner(children) => children.iter().all(Branch::is_empty),
        }
    }

    /// Splits a leaf that is full by the bits above `shift - LEVEL_BITS`. All memory is reserved before an entry moves.
    fn split_if_full(&mut self, shift: u32, bytes: &mut usize) -> Result<(), OutOfMemory> {
        let leaf = match self {
            Branch::Leaf(leaf) if leaf.len() >= LEAF => leaf,
            _ => return Ok(()),
        };
        let child = |entry: &T| child_of(entry.hash(), shift - LEVEL_BITS);
        let mut entries = [0; CHILDREN];
        leaf.iter().for_each(|entry| entries[child(entry)] += 1);
        let mut children = Vec::new();
        fault::memory()?;
        children
            .try_reserve_exact(CHILDREN)
            .map_err(|_| OutOfMemory)?;
        let mut allocated = children.capacity() * size_of::<Self>();
        for entries in entries {
            let mut leaf = HashTable::new();
            reserve(&mut leaf, entries, &mut allocated)?;
            children.push(Branch::Leaf(leaf));
        }
        *bytes = *bytes + allocated - leaf.allocation_size();
        for entry in leaf.drain() {
            if let Branch::Leaf(leaf) = &mut children[child(&entry)] {
                insert_reserved(leaf, entry);
            }
        }
        *self = Branch::Inner(children);
        Ok(())
    }

    fn remove(
        &mut self,
        hash: u64,
        shift: u32,
        is_wanted: impl FnMut(&T) -> bool,
        bytes: &mut usize,
    ) -> Option<T> {
        let children = match self {
            Branch::Leaf(leaf) => {
                let found = leaf.find_entry(in_leaf(hash), is_wanted).ok()?;
                return Some(found.remove().0);
            }
            Branch::Inner(children) => children,
        };
        let shift = shift - LEVEL_BITS;
        let child = &mut children[child_of(hash, shift)];
        let removed = child.remove(hash, shift, is_wanted, bytes);
        if matches!(child, Branch::Leaf(leaf) if leaf.is_empty()) {
            self.merge_if_few(bytes);
        }
        removed
    }

    /// Merges leaves that have few entries together. Without memory for that they stay.
    fn merge_if_few(&mut self, bytes: &mut usize) {
        let Branch::Inner(children) = self else {
            return;
        };
        let mut entries = 0;
        for child in children.iter() {
            match child {
                Branch::Leaf(leaf) => entries += leaf.len(),
                Branch::Inner(_) => return,
            }
        }
        let mut merged = HashTable::new();
        let mut allocated = 0;
        if entries > LEAF / 2 || reserve(&mut merged, entries, &mut allocated).is_err() {
            return;
        }
        *bytes = *bytes + allocated - children.capacity() * size_of::<Self>();
        for child in children {
            if let Branch::Leaf(leaf) = child {
                *bytes -= leaf.allocation_size();
                leaf.drain()
                    .for_each(|entry| insert_reserved(&mut merged, entry));
            }
        }
        *self = Branch::Leaf(merged);
    }

    fn take(&mut self, left: &mut usize, bytes: &mut usize, taken: &mut impl FnMut(T)) {
        match self {
            Branch::Leaf(leaf) => {
                // Not `drain`, which would drop the others if it were left early.
                for entry in leaf.extract_if(|_| true).take(*left) {
                    *left -= 1;
                    taken(entry);
                }
            }
            Branch::Inner(children) => {
                for child in children.iter_mut() {
                    child.take(left, bytes, taken);
                    if *left == 0 {
                        break;
                    }
                }
                self.merge_if_few(bytes);
            }
        }
    }
}

/// A trie that is locked to be changed. When it is dropped, what it has allocated and freed is on the account.
pub(crate) struct Change<'a, T: Hashed> {
    trie: MutexGuard<'a, HashTrie<T>>,
    bytes: usize,
    account: &'a Account,
}

/// Locks a trie to change it.
pub(crate) fn change<'a, T: Hashed>(
    trie: &'a Mutex<HashTrie<T>>,
    account: &'a Account,
) -> Change<'a, T> {
    let trie = trie.lock();
    Change {
        bytes: trie.bytes(),
        trie,
        account,
    }
}

impl<T: Hashed> Deref for Change<'_, T> {
    type Target = HashTrie<T>;

    fn deref(&self) -> &Self::Target {
        &self.trie
    }
}

impl<T: Hashed> DerefMut for Change<'_, T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.trie
    }
}

impl<T: Hashed> Drop for Change<'_, T> {
    fn drop(&mut self) {
        self.account.replace(self.bytes, self.trie.bytes());
    }
}

/// Reserves room for further entries in a leaf, and adds what it allocates to `bytes`.
fn reserve<T: Hashed>(
    leaf: &mut HashTable<T>,
    entries: usize,
    bytes: &mut usize,
) -> Result<(), OutOfMemory> {
    fault::memory()?;
    let before = leaf.allocation_size();
    leaf.try_reserve(entries, |entry| in_leaf(entry.hash()))
        .map_err(|_| OutOfMemory)?;
    *bytes = *bytes + leaf.allocation_size() - before;
    Ok(())
}

/// Adds an entry to a leaf with room for it.
fn insert_reserved<T: Hashed>(leaf: &mut HashTable<T>, entry: T) {
    leaf.insert_unique(in_leaf(entry.hash()), entry, |entry| in_leaf(entry.hash()));
}

/// Which child a hash belongs to, by the [`LEVEL_BITS`] bits from `shift` on.
fn child_of(hash: u64, shift: u32) -> usize {
    (hash >> shift) as usize % CHILDREN
}

/// The hash that a leaf uses. The entries of a leaf agree in their upper bits, which hashbrown needs to differ.
fn in_leaf(hash: u64) -> u64 {
    spread(hash)
}

/// A number spread over all bits (Fibonacci hashing, Knuth, TAOCP, 6.4), for numbers that strangers cannot choose.
/// Different numbers stay different.
pub fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fault::{arm, disarm, Fault};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    /// A hash, and a number that tells entries of one hash apart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Entry(u64, u32);

    impl Hashed for Entry {
        fn hash(&self) -> u64 {
            self.0
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// So many entries from this hash on, so far apart.
        Insert(u64, u64, u32),
        /// The same without memory.
        InsertFails(u64),
        /// So many of the entries that are there, from this hash on.
        Remove(u64, usize),
        Take(usize),
        /// A walk in pieces of this length, with an entry added and removed after each.
        Walk(usize),
    }

    fn hash() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            Just(u64::MAX),
            any::<u64>(),
            (0..256u64).prop_map(|top| top << 56)
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        let apart = prop_oneof![Just(0), Just(1), Just(1 << 40), Just(1 << 52), any::<u64>()];
        prop_oneof![
            4 => (hash(), apart, 1..300u32).prop_map(|(from, apart, n)| Op::Insert(from, apart, n)),
            1 => hash().prop_map(Op::InsertFails),
            3 => (hash(), 1..400usize).prop_map(|(from, n)| Op::Remove(from, n)),
            1 => (0..300usize).prop_map(Op::Take),
            2 => (1..300usize).prop_map(Op::Walk),
        ]
    }

    fn walk(trie: &HashTrie<Entry>, from: u64, limit: usize, seen: &mut Vec<Entry>) -> Option<u64> {
        let visit = |entry: &Entry| -> Result<(), Infallible> {
            seen.push(*entry);
            Ok(())
        };
        let Ok(next) = trie.walk(from, limit, visit);
        next
    }

    fn check(trie: &HashTrie<Entry>, model: &BTreeSet<Entry>) {
        assert_eq!(trie.is_empty(), model.is_empty());
        for entry in model {
            assert_eq!(trie.find(entry.0, |other| other == entry), Some(entry));
        }
        let mut seen = Vec::new();
        assert_eq!(walk(trie, 0, usize::MAX, &mut seen), None);
        seen.sort_unstable();
        assert!(seen.iter().eq(model));
    }

    proptest! {
        #[test]
        fn a_trie_is_a_set_whatever_its_hashes(ops in prop::collection::vec(op(), 1..20)) {
            let mut trie = HashTrie::default();
            let mut model = BTreeSet::new();
            let mut last = 0;
            for op in ops {
                match op {
                    Op::Insert(from, apart, number) => for i in 0..number {
                        last += 1;
                        let entry = Entry(from.wrapping_add(apart.wrapping_mul(u64::from(i))), last);
                        trie.reserve(entry.0).unwrap().insert(entry);
                        model.insert(entry);
                    },
                    Op::InsertFails(hash) => {
                        arm(Fault::Memory, 0);
                        prop_assert!(trie.reserve(hash).is_err());
                        disarm();
                    }
                    Op::Remove(from, number) => {
                        let gone: Vec<_> = model.range(Entry(from, 0)..).take(number).copied().collect();
                        for entry in gone {
                            prop_assert_eq!(trie.remove(entry.0, |other| *other == entry), Some(entry));
                            prop_assert_eq!(trie.remove(entry.0, |other| *other == entry), None);
                            model.remove(&entry);
                        }
                    }
                    Op::Take(limit) => {
                        let mut taken = 0;
                        trie.take(limit, |entry| {
                            assert!(model.remove(&entry));
                            taken += 1;
                        });
                        prop_assert_eq!(taken, limit.min(taken + model.len()));
                    }
                    Op::Walk(limit) => {
                        let mut seen = Vec::new();
                        let mut from = Some(0);
                        let mut added = BTreeSet::new();
                        while let Some(start) = from {
                            from = walk(&trie, start, limit, &mut seen);
                            last += 1;
                            let entry = Entry(u64::from(last).wrapping_mul(0x9E37_79B9_7F4A_7C15), last);
                            trie.reserve(entry.0).unwrap().insert(entry);
                            added.insert(entry);
                            if last % 3 > 0 {
                                trie.remove(entry.0, |other| *other == entry).unwrap();
                            } else {
                                model.insert(entry);
                            }
                        }
                        seen.retain(|entry| !added.contains(entry));
                        let count = seen.len();
                        let seen: BTreeSet<_> = seen.into_iter().collect();
                        prop_assert_eq!(seen.len(), count, "visited twice");
                        prop_assert!(seen.iter().eq(model.difference(&added)));
                    }
                }
                check(&trie, &model);
            }
            for entry in model {
                trie.remove(entry.0, |other| *other == entry).unwrap();
            }
            prop_assert!(trie.bytes() <= HashTable::<Entry>::with_capacity(KEPT_ROOM).allocation_size());
        }
    }

    /// P9: whichever allocation of a split fails, it has the entries that it had, and accounts for no more.
    #[test]
    fn p9_a_split_without_memory_changes_nothing() {
        let mut trie = HashTrie::default();
        let mut model = BTreeSet::new();
        for number in 0..LEAF as u64 {
            let entry = Entry(spread(number), 0);
            trie.reserve(entry.0).unwrap().insert(entry);
            model.insert(entry);
        }
        let before = trie.bytes();
        let mut failures = 0;
        loop {
            arm(Fault::Memory, failures);
            let failed = trie.reserve(0).is_err();
            disarm();
            check(&trie, &model);
            if !failed {
                break;
            }
            // The split is made when there is no room for the new entry only.
            if failures <= CHILDREN {
                assert_eq!(trie.bytes(), before);
            }
            failures += 1;
        }
        assert!(failures > CHILDREN, "{failures} allocations");
        trie.take(usize::MAX, drop);
        assert_eq!(trie.bytes(), 0);
    }

    /// T2: what keeps each operation short, with hashes as a hasher makes them.
    #[test]
    fn no_leaf_is_large_and_a_piece_is_little_longer_than_its_limit() {
        let mut trie = HashTrie::default();
        let entries = sized(0, 2_000, 100_000) as u64;
        for number in 0..entries {
            trie.reserve(spread(number))
                .unwrap()
                .insert(Entry(spread(number), 0));
        }
        let mut from = Some(0);
        let mut pieces = 0;
        while let Some(start) = from {
            let mut seen = Vec::new();
            from = walk(&trie, start, 500, &mut seen);
            assert!(seen.len() < 500 + LEAF);
            pieces += 1;
        }
        assert!(pieces as u64 >= entries / (500 + LEAF as u64));
        // An entry takes 16 bytes, and a leaf is a third full on average when it is split.
        assert!(trie.bytes() < entries as usize * 80, "{}", trie.bytes());
        trie.take(usize::MAX, drop);
        assert_eq!(trie.bytes(), 0);
    }

    /// A panic in `taken` loses no other entry.
    #[test]
    fn a_panic_in_the_middle_of_take_leaves_the_others() {
        let mut trie = HashTrie::default();
        for number in 0..1000 {
            trie.reserve(spread(number))
                .unwrap()
                .insert(Entry(spread(number), 0));
        }
        let mut taken = 0;
        while !trie.is_empty() {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                trie.take(usize::MAX, |_| {
                    taken += 1;
                    if taken % 7 == 0 {
                        std::panic::resume_unwind(Box::new(()));
                    }
                });
            }));
            assert_eq!(panicked.is_err(), taken < 1000);
        }
        assert_eq!((taken, trie.bytes()), (1000, 0));
    }
}
