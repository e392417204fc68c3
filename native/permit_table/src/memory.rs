//! Memory that callers make grow: reserved fallibly, and accounted for.
//!
//! A full machine must turn into an error of the one call that asked (P9), so nothing here aborts. And the account is
//! what `info/0` shows and what P8 is measured by, so whatever grows with keys and holders passes through it: the
//! bytes that are asked for. What the allocator adds to them, to align and to find its way, it keeps to itself.

use crate::inject;
use crate::out_of_memory::OutOfMemory;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes a table has allocated and not yet freed.
#[derive(Debug, Default)]
pub(crate) struct Account {
    bytes: AtomicUsize,
}

impl Account {
    /// Bytes allocated now.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Notes `bytes` that the table has allocated in another way (a key's own heap, a list).
    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that `bytes` told to [`Account::add`] are freed.
    pub(crate) fn subtract(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes that what took `before` bytes takes `after`.
    pub(crate) fn replace(&self, before: usize, after: usize) {
        // Most changes allocate nothing, and all holders of many keys would meet on this cache line.
        if after != before {
            self.add(after);
            self.subtract(before);
        }
    }

    /// Moves `value` to the heap. Gives the value up when there is no memory.
    pub(crate) fn allocate<T>(&self, value: T) -> Result<NonNull<T>, OutOfMemory> {
        let place = self.reserve(Layout::new::<T>())?.cast::<T>();
        // SAFETY: `place` was just allocated with the layout of T and nobody else knows it.
        unsafe { place.write(value) };
        Ok(place)
    }

    /// An array of `len` values, each made from its index by what cannot panic: the array would be lost.
    pub(crate) fn allocate_array<T>(
        &self,
        len: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<NonNull<[T]>, OutOfMemory> {
        let layout = Layout::array::<T>(len).map_err(|_| OutOfMemory)?;
        let first = self.reserve(layout)?.cast::<T>();
        for index in 0..len {
            // SAFETY: `first` is the start of room for `len` values of T, and index < len.
            unsafe { first.add(index).write(make(index)) };
        }
        Ok(NonNull::slice_from_raw_parts(first, len))
    }

    /// Drops and frees what [`Account::allocate`] or [`Account::allocate_array`] of this account gave.
    ///
    /// # Safety
    /// `place` came from this account, is freed once, and nobody uses it any more.
    pub(crate) unsafe fn free<T: ?Sized>(&self, place: NonNull<T>) {
        // SAFETY: the caller says that it is alive and ours alone.
        let layout = Layout::for_value(unsafe { place.as_ref() });
        // SAFETY: as above; afterwards the value is not touched again.
        unsafe { place.drop_in_place() };
        if layout.size() > 0 {
            // SAFETY: it was allocated by `reserve` with this very layout (that of the same type and length).
            unsafe { std::alloc::dealloc(place.as_ptr().cast(), layout) };
        }
        self.subtract(layout.size());
    }

    fn reserve(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        inject::out_of_memory()?;
        let place = if layout.size() == 0 {
            NonNull::dangling()
        } else {
            // SAFETY: the layout is not of size 0.
            NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or(OutOfMemory)?
        };
        self.add(layout.size());
        Ok(place)
    }
}

/// Room for so many more in a list that nobody accounts for.
///
/// # Errors
/// [`OutOfMemory`]: the list is as it was.
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), OutOfMemory> {
    inject::out_of_memory()?;
    list.try_reserve(more).map_err(|_| OutOfMemory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::{self, Failure};

    #[test]
    fn a_failed_allocation_is_an_error_and_costs_nothing() {
        let account = Account::default();
        inject::arm(Failure::Memory, 0);
        assert_eq!(account.allocate(7u64), Err(OutOfMemory));
        inject::disarm();
        assert_eq!(account.bytes(), 0);
        assert_eq!(OutOfMemory.to_string(), "out of memory");
        assert!(account.allocate_array(usize::MAX, |_| 0u64).is_err());
    }
}
