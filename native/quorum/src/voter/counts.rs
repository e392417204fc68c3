//! How many waiting requests there are of each kind: of each lease, of each partition.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Counts<K>(BTreeMap<K, usize>);

impl<K: Ord> Counts<K> {
    pub(super) fn new() -> Counts<K> {
        Counts(BTreeMap::new())
    }

    pub(super) fn add(&mut self, key: K) {
        *self.0.entry(key).or_default() += 1;
    }

    pub(super) fn remove(&mut self, key: K) {
        if let Some(count) = self.0.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&key);
            }
        }
    }

    pub(super) fn of(&self, key: &K) -> usize {
        self.0.get(key).copied().unwrap_or_default()
    }

    pub(super) fn most(&self) -> usize {
        self.0.values().copied().max().unwrap_or_default()
    }
}
