//! An array whose chunks are allocated on first use.
//!
//! The heads of the key table, the slots of the holders and the counters of the threads are such arrays. They would be
//! large if fully allocated, are mostly empty in most systems, and every call indexes them. Growth never moves an
//! element and allocates one chunk at a time, so no call waits long for it (P8).
//!
//! ```text
//!   chunks   [ * | null | * | null | ... ]       fixed length, one pointer per chunk
//!              |          |
//!              v          v
//!           [T; CHUNK]  [T; CHUNK]
//! ```

use crate::memory::{allocate_array, free, OutOfMemory};
use crate::sync::{ordering, AtomicPtr, Ordering};
use std::ptr::{self, NonNull};

/// At most `capacity` values of `T`, in chunks of `CHUNK` (a power of two).
pub(crate) struct LazyArray<T, const CHUNK: usize> {
    chunks: NonNull<[AtomicPtr<T>]>,
}

// SAFETY: it only hands out shared references to T, and moves T only when it is freed.
unsafe impl<T: Send + Sync, const CHUNK: usize> Send for LazyArray<T, CHUNK> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, const CHUNK: usize> Sync for LazyArray<T, CHUNK> {}

impl<T, const CHUNK: usize> LazyArray<T, CHUNK> {
    /// An array without chunks.
    pub(crate) fn new(capacity: usize) -> Result<Self, OutOfMemory> {
        let chunks = allocate_array(
            capacity.div_ceil(CHUNK),
            |_| AtomicPtr::new(ptr::null_mut()),
        )?;
        Ok(Self { chunks })
    }

    /// The maximal number of chunks.
    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The value at `index`, or `None` if its chunk does not exist or `index` is out of range.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let first = self.pointers().get(index / CHUNK)?;
        let first = first.load(Ordering::Acquire);
        if first.is_null() {
            return None;
        }
        // SAFETY: a chunk has CHUNK values. It exists until `take`, whose caller waits for pinned threads, or `free`.
        Some(unsafe { &*first.add(index % CHUNK) })
    }

    /// The value at `index`. Allocates its chunk if necessary; `make` creates each value from its index.
    pub(crate) fn get_or_create(
        &self,
        index: usize,
        make: impl Fn(usize) -> T,
    ) -> Result<&T, OutOfMemory> {
        if let Some(value) = self.get(index) {
            return Ok(value);
        }
        let base = index - index % CHUNK;
        let fresh = allocate_array(CHUNK, |i| make(base + i))?;
        // Release: a thread that loads the pointer sees the values. The loser of a race frees its chunk and uses the
        // winner's.
        let published = self.pointers()[index / CHUNK].compare_exchange(
            ptr::null_mut(),
            fresh.cast::<T>().as_ptr(),
            ordering("p1_chunk_published_relaxed", Ordering::AcqRel),
            Ordering::Acquire,
        );
        let first = match published {
            Ok(_) => fresh.cast::<T>().as_ptr(),
            Err(theirs) => {
                // SAFETY: just allocated, and not published.
                unsafe { free(fresh) };
                theirs
            }
        };
        // SAFETY: as in `get`.
        Ok(unsafe { &*first.add(index % CHUNK) })
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        let chunks = (0..self.chunk_count()).filter_map(|chunk| self.chunk(chunk));
        chunks.flatten()
    }

    /// The values of one chunk, or `None` if it does not exist or is out of range.
    pub(crate) fn chunk(&self, chunk: usize) -> Option<&[T]> {
        // SAFETY: as in `get`.
        self.chunk_pointer(chunk)
            .map(|pointer| unsafe { pointer.as_ref() })
    }

    /// Removes a chunk. The caller may free it only when no pinned thread can still use it.
    pub(crate) fn take(&self, chunk: usize) -> Option<NonNull<[T]>> {
        let taken = self.chunk_pointer(chunk)?;
        self.pointers()[chunk].store(ptr::null_mut(), Ordering::Release);
        Some(taken)
    }

    fn chunk_pointer(&self, chunk: usize) -> Option<NonNull<[T]>> {
        let first = self.pointers().get(chunk)?.load(Ordering::Acquire);
        let first = NonNull::new(first)?;
        Some(NonNull::slice_from_raw_parts(first, CHUNK))
    }

    #[inline(always)]
    fn pointers(&self) -> &[AtomicPtr<T>] {
        // SAFETY: it is alive from `new` to `free`.
        unsafe { self.chunks.as_ref() }
    }
}

impl<T, const CHUNK: usize> Drop for LazyArray<T, CHUNK> {
    fn drop(&mut self) {
        for values in (0..self.chunk_count()).filter_map(|chunk| self.take(chunk)) {
            // SAFETY: `get_or_create` allocated it, and no thread is inside.
            unsafe { free(values) };
        }
        // SAFETY: `new` allocated it.
        unsafe { free(self.chunks) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::allocated::allocated;

    #[test]
    fn chunks_are_allocated_and_removed_one_by_one() {
        let before = allocated();
        let array = LazyArray::<usize, 8>::new(64).unwrap();
        let empty = allocated();
        assert!(array.get(20).is_none());
        assert_eq!(array.get_or_create(20, |i| i * 2), Ok(&40));
        assert_eq!(array.get(23), Some(&46));
        assert!(array.get(24).is_none());
        assert_eq!(allocated(), empty + 64);
        let taken = array.take(2).unwrap();
        assert!(array.get(20).is_none());
        // SAFETY: there is one thread, and it is not used again.
        unsafe { free(taken) };
        drop(array);
        assert_eq!(allocated(), before);
    }
}
