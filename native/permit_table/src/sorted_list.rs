//! A sorted list without long pauses: growing, shrinking and reading it never take long.
//!
//! A hash table moves all its entries when it grows. With a million entries that takes tens of milliseconds, too long
//! for a call on a scheduler of the VM. This is a list of short sorted lists, the *leaves* (as in SortedContainers,
//! Jenks 2014: a B+ tree with one level above its leaves). A full leaf is split in two.
//!
//! ```text
//!   leaves    [ 0 | 317 | 920 | .. ]        each with the sort key at which it starts
//!               |    |     |
//!   entries   [..] [317, [920,              at most `LEAF` per leaf
//!                   318,  977]
//!                   400]
//! ```
//!
//! - **S1** The entries are sorted by sort key, across leaves too. So a walk in pieces can stop after any sort key, and
//!   continue after it although the list has changed.
//! - **S2** An operation moves the entries of at most two leaves. If it adds or removes a leaf, it also moves the list
//!   of leaves: with a million entries that is 0.4 MB, or 20 µs, once in about 60 insertions. Neighbors with few
//!   entries are merged.

use crate::memory::{reserve, reserve_exact, OutOfMemory};
use crate::sync::sized;

/// Maximal number of entries per leaf. An insertion moves half of them on average, 1 KB.
const LEAF: usize = sized(2, 8, 128);

/// An empty list keeps up to this much memory for later entries.
const KEPT_BYTES: usize = 2048;

/// A sorted list without long pauses. An entry has a sort key, which never changes. Several entries can have the same.
pub struct SortedList<T> {
    leaves: Vec<Leaf<T>>,
}

struct Leaf<T> {
    /// The lower bound of the sort keys in this leaf, and the upper bound of those in the leaf before. 0 in the first
    /// leaf.
    from: u64,
    entries: Vec<(u64, T)>,
}

/// Reserved memory for an entry of one sort key.
pub struct Vacancy<'a, T> {
    entries: &'a mut Vec<(u64, T)>,
    index: usize,
    sort_key: u64,
}

impl<T> Vacancy<'_, T> {
    /// Inserts an entry of that sort key, before other entries of the same sort key. Cannot fail.
    pub fn insert(self, entry: T) {
        self.entries.insert(self.index, (self.sort_key, entry));
    }
}

impl<T> Default for SortedList<T> {
    fn default() -> Self {
        Self { leaves: Vec::new() }
    }
}

impl<T> SortedList<T> {
    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.from(0).next().is_none()
    }

    /// The entries of this sort key and of greater sort keys, sorted, each with its sort key.
    pub fn from(&self, sort_key: u64) -> impl Iterator<Item = &(u64, T)> {
        let leaves = self.leaves[self.leaf(sort_key)..].iter();
        leaves.flat_map(move |leaf| &leaf.entries[first(&leaf.entries, sort_key)..])
    }

    /// The first entry of this sort key that `is_wanted` accepts.
    pub fn find(&self, sort_key: u64, is_wanted: impl FnMut(&T) -> bool) -> Option<&T> {
        let (leaf, index) = self.position(sort_key, is_wanted)?;
        Some(&self.leaves[leaf].entries[index].1)
    }

    /// As [`SortedList::find`].
    pub fn find_mut(&mut self, sort_key: u64, is_wanted: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let (leaf, index) = self.position(sort_key, is_wanted)?;
        Some(&mut self.leaves[leaf].entries[index].1)
    }

    /// Reserves memory for an entry of this sort key.
    ///
    /// # Errors
    /// [`OutOfMemory`]: the entries are unchanged.
    pub fn reserve(&mut self, sort_key: u64) -> Result<Vacancy<'_, T>, OutOfMemory> {
        if self.leaves.is_empty() {
            // Most lists stay short.
            reserve_exact(&mut self.leaves, 1)?;
            self.leaves.push(Leaf {
                from: 0,
                entries: Vec::new(),
            });
        }
        let mut leaf = self.leaf(sort_key);
        if self.leaves[leaf].entries.len() >= LEAF {
            self.split(leaf)?;
            leaf = self.leaf(sort_key);
        }
        let entries = &mut self.leaves[leaf].entries;
        reserve(entries, 1)?;
        let index = first(entries, sort_key);
        Ok(Vacancy {
            entries,
            index,
            sort_key,
        })
    }

    /// Removes the first entry of this sort key that `is_wanted` accepts.
    pub fn remove(&mut self, sort_key: u64, is_wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let (leaf, index) = self.position(sort_key, is_wanted)?;
        let (_, removed) = self.leaves[leaf].entries.remove(index);
        self.merge_if_few(leaf);
        self.merge_if_few(leaf.saturating_sub(1));
        if self.is_empty() && self.bytes() > KEPT_BYTES {
            self.shrink_to_fit();
        }
        Some(removed)
    }

    /// Removes the last entry.
    pub fn pop(&mut self) -> Option<T> {
        loop {
            let leaf = self.leaves.last_mut()?;
            if let Some((_, entry)) = leaf.entries.pop() {
                return Some(entry);
            }
            self.remove_leaf(self.leaves.len() - 1);
        }
    }

    /// Frees all memory if there is no entry.
    pub fn shrink_to_fit(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    fn bytes(&self) -> usize {
        let places = self.leaves.iter().map(|leaf| leaf.entries.capacity());
        places.sum::<usize>() * size_of::<(u64, T)>()
            + self.leaves.capacity() * size_of::<Leaf<T>>()
    }

    /// The first leaf that can have an entry of this sort key.
    fn leaf(&self, sort_key: u64) -> usize {
        // Queues are read and changed at their ends.
        let behind = match self.leaves.as_slice() {
            [_, second, ..] if sort_key <= second.from => 1,
            [.., last] if last.from < sort_key => self.leaves.len(),
            leaves => leaves.partition_point(|leaf| leaf.from < sort_key),
        };
        behind.saturating_sub(1)
    }

    fn position(
        &self,
        sort_key: u64,
        mut is_wanted: impl FnMut(&T) -> bool,
    ) -> Option<(usize, usize)> {
        for leaf in self.leaf(sort_key).. {
            let entries = &self.leaves.get(leaf)?.entries;
            let mut index = first(entries, sort_key);
            while let Some((found, entry)) = entries.get(index) {
                if *found > sort_key {
                    return None;
                }
                if is_wanted(entry) {
                    return Some((leaf, index));
                }
                index += 1;
            }
        }
        None
    }

    /// Moves the second half of a leaf to a new one. All memory is reserved before an entry moves.
    fn split(&mut self, leaf: usize) -> Result<(), OutOfMemory> {
        let mut entries = Vec::new();
        reserve(&mut entries, LEAF)?;
        reserve(&mut self.leaves, 1)?;
        let full = &mut self.leaves[leaf].entries;
        entries.extend(full.drain(full.len() / 2..));
        let (from, _) = entries[0];
        self.leaves.insert(leaf + 1, Leaf { from, entries });
        Ok(())
    }

    /// Merges a leaf and the next one if they have few entries together. Without memory for that, they stay.
    fn merge_if_few(&mut self, leaf: usize) {
        let Some([first, second]) = self.leaves.get_mut(leaf..leaf + 2) else {
            return;
        };
        let (entries, further) = (&mut first.entries, &mut second.entries);
        if entries.len() + further.len() <= LEAF / 2 && reserve(entries, further.len()).is_ok() {
            entries.append(further);
            self.remove_leaf(leaf + 1);
        }
    }

    fn remove_leaf(&mut self, leaf: usize) {
        self.leaves.remove(leaf);
        let mut fewer = Vec::new();
        let len = self.leaves.len();
        // Without memory for a shorter list of leaves, the long one stays.
        if len < self.leaves.capacity() / 4 && reserve(&mut fewer, 2 * len).is_ok() {
            fewer.append(&mut self.leaves);
            self.leaves = fewer;
        }
    }
}

/// The index of the first entry of this sort key or a greater one.
fn first<T>(entries: &[(u64, T)], sort_key: u64) -> usize {
    entries.partition_point(|(other, _)| *other < sort_key)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::allocated::{allocated, memory_of};
    use crate::inject::{arm, disarm, Failure};
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::collections::BTreeSet;

    /// A sort key, and a number that distinguishes entries of the same sort key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Entry(u64, u32);

    #[derive(Clone, Debug)]
    enum Op {
        /// First sort key, distance to the next, number of entries.
        Insert(u64, u64, u32),
        /// Sort key of an entry for which there is no memory.
        InsertFails(u64),
        /// First sort key, number of entries.
        Remove(u64, usize),
        /// Number of entries.
        Pop(usize),
    }

    fn sort_key() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(u64::MAX), 0..2000u64, any::<u64>()]
    }

    fn op() -> impl Strategy<Value = Op> {
        let apart = prop_oneof![Just(0), Just(1), Just(1 << 52), any::<u64>()];
        prop_oneof![
            4 => (sort_key(), apart, 1..600u32).prop_map(|(from, apart, n)| Op::Insert(from, apart, n)),
            1 => sort_key().prop_map(Op::InsertFails),
            3 => (sort_key(), 1..900usize).prop_map(|(from, n)| Op::Remove(from, n)),
            1 => (0..300usize).prop_map(Op::Pop),
        ]
    }

    fn insert(list: &mut SortedList<Entry>, entry: Entry) {
        list.reserve(entry.0).unwrap().insert(entry);
    }

    /// Checks S1, S2, and that the list equals the model. Among entries of the same sort key, later ones come first.
    fn check(list: &SortedList<Entry>, model: &BTreeSet<Entry>) {
        assert_eq!(list.is_empty(), model.is_empty());
        let mut entries: Vec<_> = model.iter().copied().collect();
        entries.sort_by_key(|&Entry(sort_key, number)| (sort_key, Reverse(number)));
        assert!(list.from(0).map(|(_, entry)| entry).eq(&entries));
        for entry in model.iter().step_by(17) {
            assert_eq!(list.find(entry.0, |other| other == entry), Some(entry));
            assert_eq!(list.find(entry.0, |_| false), None);
            let next = entry.0.wrapping_add(1);
            let has_next = model.range(Entry(next, 0)..=Entry(next, u32::MAX)).count() > 0;
            assert_eq!(list.find(next, |_| true).is_some(), has_next);
            assert!(list.from(entry.0).count() == model.range(Entry(entry.0, 0)..).count());
        }
        let leaves = &list.leaves;
        assert!(leaves.first().is_none_or(|leaf| leaf.from == 0));
        assert!(leaves.iter().all(|leaf| leaf.entries.len() <= LEAF));
    }

    proptest! {
        #[test]
        fn s1_list_and_sorted_set_agree(ops in prop::collection::vec(op(), 1..20)) {
            let mut list = SortedList::default();
            let mut model = BTreeSet::new();
            let mut last = 0;
            for op in ops {
                match op {
                    Op::Insert(from, apart, number) => for i in 0..number {
                        last += 1;
                        let sort_key = from.wrapping_add(apart.wrapping_mul(u64::from(i)));
                        insert(&mut list, Entry(sort_key, last));
                        model.insert(Entry(sort_key, last));
                    },
                    Op::InsertFails(sort_key) => {
                        arm(Failure::Memory, 0);
                        prop_assert!(list.reserve(sort_key).is_err());
                        disarm();
                    }
                    Op::Remove(from, number) => {
                        let removed: Vec<_> = model.range(Entry(from, 0)..).take(number).copied().collect();
                        for entry in removed {
                            prop_assert_eq!(list.remove(entry.0, |other| *other == entry), Some(entry));
                            prop_assert_eq!(list.remove(entry.0, |other| *other == entry), None);
                            model.remove(&entry);
                        }
                    }
                    Op::Pop(number) => for _ in 0..number {
                        let sort_key = list.pop().map(|entry| {
                            assert!(model.remove(&entry));
                            entry.0
                        });
                        prop_assert!(sort_key.is_none_or(|key| model.last().is_none_or(|left| left.0 <= key)));
                    },
                }
                check(&list, &model);
            }
            for entry in model {
                list.remove(entry.0, |other| *other == entry).unwrap();
            }
            prop_assert_eq!(list.pop(), None);
            list.shrink_to_fit();
            prop_assert_eq!(memory_of(list), 0);
        }
    }

    /// P9: if any allocation of a split fails, the entries stay correct.
    #[test]
    fn p9_failed_split_changes_nothing() {
        let mut list = SortedList::default();
        let mut model = BTreeSet::new();
        for number in 0..LEAF as u32 {
            insert(&mut list, Entry(7, number));
            model.insert(Entry(7, number));
        }
        // The new leaf, the list of leaves, and an entry of the leaf.
        for (grants, fails) in [(0, true), (1, true), (2, true), (3, false)] {
            arm(Failure::Memory, grants);
            assert_eq!(list.reserve(0).is_err(), fails);
            disarm();
            check(&list, &model);
        }
    }

    /// S2: a list that has become short has freed its memory, for any order of the removals.
    #[test]
    fn s2_memory_follows_the_number_of_entries() {
        let entries = sized(0, 500, 100_000);
        let orders = || (0..entries as u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut sorted: Vec<_> = orders().collect();
        sorted.sort_unstable();
        let reversed = sorted.iter().copied().rev().collect();
        let (tenth, others): (Vec<_>, Vec<_>) = (0..entries).partition(|index| index % 10 == 0);
        let scattered = others.iter().chain(&tenth).map(|&index| sorted[index]);
        let scattered = scattered.collect();
        for removed in [sorted, reversed, scattered] {
            let before = allocated();
            let bytes = || (allocated() - before) as usize;
            let mut list = SortedList::default();
            orders().for_each(|sort_key| list.reserve(sort_key).unwrap().insert(0_u32));
            assert!(bytes() < entries * 40, "{}", bytes());
            for (index, sort_key) in removed.iter().enumerate() {
                list.remove(*sort_key, |_| true);
                let rest = entries - index - 1;
                if index > entries / 10 * 9 {
                    assert!(bytes() < rest * 120 + 4000, "{rest}: {}", bytes());
                }
            }
            assert!(bytes() <= KEPT_BYTES);
            list.reserve(0).unwrap().insert(0);
            list.remove(0, |_| true).unwrap();
            assert!(bytes() > 0, "memory is kept for the next entry");
        }
    }
}
