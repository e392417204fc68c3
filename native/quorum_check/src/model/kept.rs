//! A value that many states have in common, with its hash.
//!
//! An action changes one machine, or two. A state that shares all the others with the one before it costs a few
//! counters to clone; and it is hashed from the hashes, so that a machine is walked through once each time that it
//! changes, not once a state.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A shared value. Whoever changes it gets a copy of its own first.
pub struct Kept<T> {
    hash: u64,
    value: Arc<T>,
}

impl<T: Hash + Clone> Kept<T> {
    /// A first one.
    pub fn new(value: T) -> Kept<T> {
        Kept {
            hash: hash_of(&value),
            value: Arc::new(value),
        }
    }

    /// Changes this one; others that were cloned from it stay as they are.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let value = Arc::make_mut(&mut self.value);
        let result = change(value);
        self.hash = hash_of(value);
        result
    }
}

/// The same in each run: std promises no more than that two new hashers are alike, and that is all that is needed.
fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<T> Kept<T> {
    /// For an order that is the same in each run, where which one does not matter.
    pub fn hash_value(&self) -> u64 {
        self.hash
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Kept<T> {
        Kept {
            hash: self.hash,
            value: Arc::clone(&self.value),
        }
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Kept<T> {
    fn eq(&self, other: &Kept<T>) -> bool {
        self.hash == other.hash
            && (Arc::ptr_eq(&self.value, &other.value) || self.value == other.value)
    }
}

impl<T: Eq> Eq for Kept<T> {}

impl<T> Hash for Kept<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<T: fmt::Debug> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_by_the_one_that_made_it_and_in_the_hash() {
        let first = Kept::new(1);
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
}
