//! F2: an allocator that counts, for test programs that make it their global allocator.

use quorum::frame::decode;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The most bytes that `decode` allocates in total for each byte of a valid frame: 64 names of one byte each,
/// repeatedly.
pub const FRAME: usize = 28;

/// The same for invalid frames. `decode` may allocate as many operations as there are bytes, and then read 64 names
/// of one byte each, repeatedly: 3,600 bytes for 134.
pub const NO_FRAME: usize = 75;

/// The system's allocator, with a sum of the requested bytes per thread.
pub struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    ALLOCATED.set(ALLOCATED.get() + bytes);
}

// SAFETY: every call is passed on unchanged, so the system's allocator keeps the contract. Counting does not
// allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of this method, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller keeps the contract of this method, which is the system allocator's.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this method, which is the system allocator's.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// The bytes that decoding allocates, and whether the input is a frame.
pub fn allocated(bytes: &[u8]) -> (usize, bool) {
    let before = ALLOCATED.get();
    let frame = decode(bytes);
    (ALLOCATED.get() - before, frame.is_ok())
}

/// Asserts F2 for any bytes.
pub fn bounded(bytes: &[u8]) {
    let (allocated, whole) = allocated(bytes);
    let most = bytes.len() * if whole { FRAME } else { NO_FRAME };
    assert!(
        allocated <= most,
        "{allocated} for {}: {bytes:x?}",
        bytes.len()
    );
}
