//! Changes of parts whose memory is on the account of the table.

use crate::memory::Account;
use crate::sync::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// A part that knows how much memory it has allocated.
pub(crate) trait Allocated {
    /// Bytes allocated.
    fn bytes(&self) -> usize;
}

/// A part that is locked for a change. On drop, also by a panic, the difference in its size goes to the account.
pub(crate) struct Change<'a, T: Allocated> {
    part: MutexGuard<'a, T>,
    before: usize,
    account: &'a Account,
}

pub(crate) fn change<'a, T: Allocated>(part: &'a Mutex<T>, account: &'a Account) -> Change<'a, T> {
    let part = part.lock();
    Change {
        before: part.bytes(),
        part,
        account,
    }
}

impl<T: Allocated> Deref for Change<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.part
    }
}

impl<T: Allocated> DerefMut for Change<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.part
    }
}

impl<T: Allocated> Drop for Change<'_, T> {
    fn drop(&mut self) {
        self.account.replace(self.before, self.part.bytes());
    }
}

/// Changes a part of a larger part, and adds the difference in its size to `nested`, the bytes of all such parts.
pub(crate) fn change_nested<T: Allocated, A>(
    part: &mut T,
    nested: &mut usize,
    change: impl FnOnce(&mut T) -> A,
) -> A {
    let changing = Nested {
        before: part.bytes(),
        part,
        nested,
    };
    change(changing.part)
}

/// The difference is added on drop, also by a panic.
struct Nested<'a, T: Allocated> {
    part: &'a mut T,
    before: usize,
    nested: &'a mut usize,
}

impl<T: Allocated> Drop for Nested<'_, T> {
    fn drop(&mut self) {
        *self.nested = *self.nested + self.part.bytes() - self.before;
    }
}
