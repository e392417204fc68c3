//! The memory that a test has allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
}

/// The number of bytes that this thread has allocated, less those that it has freed.
pub fn allocated() -> isize {
    ALLOCATED.get()
}

/// The number of bytes that a drop frees.
pub fn memory_of<T>(value: T) -> isize {
    let before = allocated();
    drop(value);
    before - allocated()
}

/// The system's allocator, with a sum per thread.
struct Counting;

impl Counting {
    fn count(bytes: usize, sign: isize) {
        ALLOCATED.set(ALLOCATED.get() + sign * bytes as isize);
    }
}

// SAFETY: every call is passed on unchanged, so the system's allocator keeps the contract. Counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size(), 1);
        // SAFETY: the caller keeps the contract of this method, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Self::count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
