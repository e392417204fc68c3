//! F2, measured: an allocator that counts, for the test programs that make it theirs.

use quorum::frame::decode;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// How many bytes at most for each byte of a frame, all that is allocated on the way taken together: an operation of
/// a byte (`Settled`) becomes an `Op`.
pub const FRAME: usize = 48;

/// The same, for each byte of what is no frame in the end: there may be memory for as many operations as there are
/// bytes, and then the bytes turn out to be 64 names of a byte each, again and again: 3600 bytes for 130.
pub const NO_FRAME: usize = 76;

/// The system's allocator, and a sum of what each thread has asked of it.
pub struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    ASKED.set(ASKED.get() + bytes);
}

// SAFETY: all is passed on as it came, so the system's allocator keeps the promises; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// How much decoding asks for, and whether the bytes are a frame.
pub fn asked(bytes: &[u8]) -> (usize, bool) {
    let before = ASKED.get();
    let frame = decode(bytes);
    (ASKED.get() - before, frame.is_ok())
}

/// F2, of any bytes.
pub fn bounded(bytes: &[u8]) {
    let (asked, whole) = asked(bytes);
    let most = bytes.len() * if whole { FRAME } else { NO_FRAME };
    assert!(asked <= most, "{asked} for {}: {bytes:x?}", bytes.len());
}
