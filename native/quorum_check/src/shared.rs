//! A value that many states share, with its hash.
//!
//! An action changes one or two machines. A state that shares the others with its predecessor costs a few counters to
//! clone. Its hash is computed from the stored hashes, so each machine is hashed once per change, not once per state.

use ahash::RandomState;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// Copied on the first change if it is shared.
pub struct Shared<T> {
    hash: u64,
    value: Arc<T>,
}

impl<T: Hash + Clone> Shared<T> {
    pub fn new(value: T) -> Shared<T> {
        Shared {
            hash: hash_of(&value),
            value: Arc::new(value),
        }
    }

    /// Changes this value only, not its clones.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let value = Arc::make_mut(&mut self.value);
        let result = change(value);
        self.hash = hash_of(value);
        result
    }
}

/// The same in each run on a machine, because the seeds are constants.
fn hash_of(value: &impl Hash) -> u64 {
    RandomState::with_seeds(1, 2, 3, 4).hash_one(value)
}

impl<T> Shared<T> {
    /// For a choice or an order that must be the same in each run, and may be arbitrary.
    pub fn hash_value(&self) -> u64 {
        self.hash
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared {
            hash: self.hash,
            value: Arc::clone(&self.value),
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Shared<T>) -> bool {
        self.hash == other.hash
            && (Arc::ptr_eq(&self.value, &other.value) || self.value == other.value)
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[test]
fn a_change_updates_the_value_and_the_hash_and_no_clone() {
    let first = Shared::new(1);
    let mut second = first.clone();
    assert_eq!(first, second);
    second.change(|value| *value = 2);
    assert_eq!((*first, *second), (1, 2));
    assert_ne!(first, second);
    assert_ne!(first.hash_value(), second.hash_value());
    second.change(|value| *value = 1);
    assert_eq!(first, second);
    assert_eq!(first.hash_value(), second.hash_value());
}
