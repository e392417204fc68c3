//! An array whose chunks are allocated when they are first touched.
//!
//! Both the heads of the key table and the slots of the holders are such arrays: large if everything were there at
//! once, mostly empty in most systems, and indexed by every call. Growing one never moves anything, and costs one
//! chunk at a time, so no call waits long for it (P8).
//!
//! ```text
//!   chunks   [ * | null | * | null | ... ]       fixed length, a pointer each
//!              |          |
//!              v          v
//!           [T; CHUNK]  [T; CHUNK]
//! ```

use crate::memory::Account;
use crate::out_of_memory::OutOfMemory;
use crate::sync::{ordering, AtomicPtr, Ordering};
use std::ptr::{self, NonNull};

/// At most `capacity` values of `T`, `CHUNK` (a power of two) to a chunk.
pub(crate) struct LazyArray<T, const CHUNK: usize> {
    chunks: NonNull<[AtomicPtr<T>]>,
}

// SAFETY: it hands out shared references to T only, and moves T only when it is dropped.
unsafe impl<T: Send + Sync, const CHUNK: usize> Send for LazyArray<T, CHUNK> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, const CHUNK: usize> Sync for LazyArray<T, CHUNK> {}

impl<T, const CHUNK: usize> LazyArray<T, CHUNK> {
    /// An array without any chunk. [`LazyArray::free`] it with the same account.
    pub(crate) fn new(capacity: usize, account: &Account) -> Result<Self, OutOfMemory> {
        let chunks =
            account.allocate_array(
                capacity.div_ceil(CHUNK),
                |_| AtomicPtr::new(ptr::null_mut()),
            )?;
        Ok(Self { chunks })
    }

    /// How many chunks there can be.
    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The value at `index`, if its chunk is there. Beyond the end there is none.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let first = self.pointers().get(index / CHUNK)?;
        let first = first.load(Ordering::Acquire);
        if first.is_null() {
            return None;
        }
        // SAFETY: a chunk has CHUNK values, and stays until `take` (whose caller waits for us) or `free`.
        Some(unsafe { &*first.add(index % CHUNK) })
    }

    /// The value at `index`, whose chunk is made by `make` (from the index of each value) if need be.
    pub(crate) fn get_or_create(
        &self,
        index: usize,
        account: &Account,
        make: impl Fn(usize) -> T,
    ) -> Result<&T, OutOfMemory> {
        if let Some(value) = self.get(index) {
            return Ok(value);
        }
        let base = index - index % CHUNK;
        let fresh = account.allocate_array(CHUNK, |i| make(base + i))?;
        // Release: whoever sees the chunk sees its values. A loser frees its own and uses the winner's.
        let published = self.pointers()[index / CHUNK].compare_exchange(
            ptr::null_mut(),
            fresh.cast::<T>().as_ptr(),
            ordering("p1_chunk_published_relaxed", Ordering::AcqRel),
            Ordering::Acquire,
        );
        let first = match published {
            Ok(_) => fresh.cast::<T>().as_ptr(),
            Err(theirs) => {
                // SAFETY: just allocated, and never shown to anybody.
                unsafe { account.free(fresh) };
                theirs
            }
        };
        // SAFETY: as in `get`.
        Ok(unsafe { &*first.add(index % CHUNK) })
    }

    /// All values of the chunks that are there.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        let chunks = (0..self.chunk_count()).filter_map(|chunk| self.chunk(chunk));
        chunks.flatten()
    }

    /// The values of one chunk, if it is there. Beyond the last there is none.
    pub(crate) fn chunk(&self, chunk: usize) -> Option<&[T]> {
        // SAFETY: as in `get`.
        self.chunk_place(chunk)
            .map(|place| unsafe { place.as_ref() })
    }

    /// The values from `index` to the end of its chunk, if that is there.
    pub(crate) fn rest_of_chunk(&self, index: usize) -> Option<&[T]> {
        let values = self.chunk(index / CHUNK)?;
        Some(&values[index % CHUNK..])
    }

    /// Takes a chunk out. Others may still be inside: it may be freed only when they are gone.
    pub(crate) fn take(&self, chunk: usize) -> Option<NonNull<[T]>> {
        let taken = self.chunk_place(chunk)?;
        self.pointers()[chunk].store(ptr::null_mut(), Ordering::Release);
        Some(taken)
    }

    /// Frees everything.
    ///
    /// # Safety
    /// `account` is the one it was made with, no thread is inside, and it is not used again.
    pub(crate) unsafe fn free(&self, account: &Account) {
        for values in (0..self.chunk_count()).filter_map(|chunk| self.take(chunk)) {
            // SAFETY: allocated with this account by `get_or_create`; the caller says that no thread is inside.
            unsafe { account.free(values) };
        }
        // SAFETY: allocated with this account by `new`.
        unsafe { account.free(self.chunks) };
    }

    fn chunk_place(&self, chunk: usize) -> Option<NonNull<[T]>> {
        let first = self.pointers().get(chunk)?.load(Ordering::Acquire);
        let first = NonNull::new(first)?;
        Some(NonNull::slice_from_raw_parts(first, CHUNK))
    }

    #[inline(always)]
    fn pointers(&self) -> &[AtomicPtr<T>] {
        // SAFETY: it lives from `new` to `free`.
        unsafe { self.chunks.as_ref() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_and_go_one_by_one() {
        let account = Account::default();
        let array = LazyArray::<usize, 8>::new(64, &account).unwrap();
        let empty = account.bytes();
        assert!(array.get(20).is_none());
        assert_eq!(array.get_or_create(20, &account, |i| i * 2), Ok(&40));
        assert_eq!(array.get(23), Some(&46));
        assert!(array.get(24).is_none());
        assert_eq!(account.bytes(), empty + 64);
        let taken = array.take(2).unwrap();
        assert!(array.get(20).is_none());
        // SAFETY: one thread, and neither is used again.
        unsafe {
            account.free(taken);
            array.free(&account);
        }
        assert_eq!(account.bytes(), 0);
    }
}
