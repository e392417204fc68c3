//! Fallible allocation, and an account of the bytes that a table has allocated.
//!
//! If the machine has no memory left, only the call that needs memory fails (P9). So nothing here aborts. `info/0`
//! reports the account, and tests measure P8 by it, so every allocation that grows with keys and holders goes through
//! it. The account counts requested bytes. It does not include what the allocator adds for alignment and bookkeeping,
//! nor the lists of the sweep, which take at most 0.6 MB.

use crate::inject;
pub use crate::out_of_memory::OutOfMemory;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{alloc::Layout, ptr::NonNull};

/// The number of bytes that a table has allocated and not yet freed.
#[derive(Debug, Default)]
pub(crate) struct Account {
    bytes: AtomicUsize,
}

impl Account {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds `bytes` that the table has allocated by other means (a key's own heap, a list).
    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts freed bytes that [`Account::add`] had added.
    pub(crate) fn subtract(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Records that the size of an allocation changed from `before` to `after`.
    pub(crate) fn replace(&self, before: usize, after: usize) {
        // Most changes allocate nothing. Without this test, all holders of many keys would contend for this cache line.
        if after != before {
            self.add(after);
            self.subtract(before);
        }
    }

    /// Moves `value` to the heap. Drops the value if there is no memory.
    pub(crate) fn allocate<T>(&self, value: T) -> Result<NonNull<T>, OutOfMemory> {
        let pointer = self.allocate_raw(Layout::new::<T>())?.cast::<T>();
        // SAFETY: `pointer` was just allocated with the layout of T, and no other thread has it.
        unsafe { pointer.write(value) };
        Ok(pointer)
    }

    /// Allocates an array of `len` values. `make` creates each value from its index. It must not panic: the array would
    /// leak.
    pub(crate) fn allocate_array<T>(
        &self,
        len: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<NonNull<[T]>, OutOfMemory> {
        let layout = Layout::array::<T>(len).map_err(|_| OutOfMemory)?;
        let first = self.allocate_raw(layout)?.cast::<T>();
        for index in 0..len {
            // SAFETY: `first` is the start of memory for `len` values of T, and index < len.
            unsafe { first.add(index).write(make(index)) };
        }
        Ok(NonNull::slice_from_raw_parts(first, len))
    }

    /// Drops and frees a result of [`Account::allocate`] or [`Account::allocate_array`] of this account.
    ///
    /// # Safety
    /// `pointer` came from this account, is freed once, and no thread uses it afterwards.
    pub(crate) unsafe fn free<T: ?Sized>(&self, pointer: NonNull<T>) {
        // SAFETY: the caller guarantees that it is alive and not shared.
        let layout = Layout::for_value(unsafe { pointer.as_ref() });
        // SAFETY: as above. The value is not accessed afterwards.
        unsafe { pointer.drop_in_place() };
        if layout.size() > 0 {
            // SAFETY: `allocate_raw` allocated it with this layout: it has the same type and length.
            unsafe { std::alloc::dealloc(pointer.as_ptr().cast(), layout) };
        }
        self.subtract(layout.size());
    }

    fn allocate_raw(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        inject::out_of_memory()?;
        let pointer = if layout.size() == 0 {
            NonNull::dangling()
        } else {
            // SAFETY: the size of the layout is not 0.
            NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or(OutOfMemory)?
        };
        self.add(layout.size());
        Ok(pointer)
    }
}

/// Reserves memory for `more` elements of a list that is on no account.
///
/// # Errors
/// [`OutOfMemory`]: the list is unchanged.
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), OutOfMemory> {
    inject::out_of_memory()?;
    list.try_reserve(more).map_err(|_| OutOfMemory)
}

/// As [`reserve`], for a list that rarely grows again.
pub(crate) fn reserve_exact<T>(list: &mut Vec<T>, more: usize) -> Result<(), OutOfMemory> {
    inject::out_of_memory()?;
    list.try_reserve_exact(more).map_err(|_| OutOfMemory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::{self, Failure};

    #[test]
    fn p9_a_failed_allocation_is_an_error_and_not_accounted() {
        let account = Account::default();
        inject::arm(Failure::Memory, 0);
        assert_eq!(account.allocate(7u64), Err(OutOfMemory));
        inject::disarm();
        assert_eq!(account.bytes(), 0);
        assert_eq!(OutOfMemory.to_string(), "out of memory");
        assert!(account.allocate_array(usize::MAX, |_| 0u64).is_err());
    }
}
