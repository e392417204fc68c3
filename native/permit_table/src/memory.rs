//! Fallible allocation. If the machine has no memory left, only the call that needs memory fails (P9). So nothing here
//! aborts.

use crate::inject;
pub use crate::out_of_memory::OutOfMemory;
use std::{alloc::Layout, ptr::NonNull};

/// Moves `value` to the heap. Drops the value if there is no memory.
pub(crate) fn allocate<T>(value: T) -> Result<NonNull<T>, OutOfMemory> {
    let pointer = allocate_raw(Layout::new::<T>())?.cast::<T>();
    // SAFETY: `pointer` was just allocated with the layout of T, and no other thread has it.
    unsafe { pointer.write(value) };
    Ok(pointer)
}

/// Allocates an array of `len` values. `make` creates each value from its index. It must not panic: the array would
/// leak.
pub(crate) fn allocate_array<T>(
    len: usize,
    mut make: impl FnMut(usize) -> T,
) -> Result<NonNull<[T]>, OutOfMemory> {
    let layout = Layout::array::<T>(len).map_err(|_| OutOfMemory)?;
    let first = allocate_raw(layout)?.cast::<T>();
    for index in 0..len {
        // SAFETY: `first` is the start of memory for `len` values of T, and index < len.
        unsafe { first.add(index).write(make(index)) };
    }
    Ok(NonNull::slice_from_raw_parts(first, len))
}

/// Drops and frees a result of [`allocate`] or [`allocate_array`].
///
/// # Safety
/// It is freed once, and no thread uses it any more.
pub(crate) unsafe fn free<T: ?Sized>(pointer: NonNull<T>) {
    // SAFETY: allocated with the layout of its type, as a box is. The rest is guaranteed by the caller.
    drop(unsafe { Box::from_raw(pointer.as_ptr()) });
}

fn allocate_raw(layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
    inject::out_of_memory()?;
    if layout.size() == 0 {
        return Ok(NonNull::dangling());
    }
    // SAFETY: the size of the layout is not 0.
    NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or(OutOfMemory)
}

/// Reserves memory for `more` elements of a list.
///
/// # Errors
/// [`OutOfMemory`]: the list is unchanged.
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), OutOfMemory> {
    inject::out_of_memory()?;
    list.try_reserve(more).map_err(|_| OutOfMemory)
}

/// As [`reserve`], for a list that rarely grows again.
///
/// # Errors
/// As there.
pub fn reserve_exact<T>(list: &mut Vec<T>, more: usize) -> Result<(), OutOfMemory> {
    inject::out_of_memory()?;
    list.try_reserve_exact(more).map_err(|_| OutOfMemory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::{self, Failure};

    #[test]
    fn p9_a_failed_allocation_is_an_error() {
        inject::arm(Failure::Memory, 0);
        assert_eq!(allocate(7u64), Err(OutOfMemory));
        inject::disarm();
        assert!(allocate_array(usize::MAX, |_| 0u64).is_err());
    }
}
