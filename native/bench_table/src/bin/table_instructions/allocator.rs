//! A minimal memory allocator, so that the counted instructions are the table's own, and the same on all machines. C
//! libraries take 50 to several hundred instructions per node, depending on the version. (In the native library the
//! VM's allocators are used.)
//!
//! Freed memory is kept by size, for the next allocation of that size. Large allocations go to the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

#[global_allocator]
static ALLOCATOR: Kept = Kept([const { Cell::new(ptr::null_mut()) }; SIZES]);

/// Sizes are multiples of this number of bytes, and so are addresses.
const UNIT: usize = 64;

/// Up to 4 KiB.
const SIZES: usize = 64;

/// The first free block of each size. Each block points to the next.
struct Kept([Cell<*mut u8>; SIZES]);

// SAFETY: this program has one thread.
unsafe impl Sync for Kept {}

impl Kept {
    /// The free list for a layout, and the layout of its blocks.
    fn size(&self, layout: Layout) -> Option<(&Cell<*mut u8>, Layout)> {
        if layout.align() > UNIT {
            return None;
        }
        let units = layout.size().div_ceil(UNIT).max(1);
        let whole = Layout::from_size_align(units * UNIT, UNIT).ok()?;
        Some((self.0.get(units - 1)?, whole))
    }
}

// SAFETY: a block is from the system, has at least the requested size and alignment, and is handed out to one user at a
// time.
unsafe impl GlobalAlloc for Kept {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((first, whole)) = self.size(layout) else {
            // SAFETY: guaranteed by the caller.
            return unsafe { System.alloc(layout) };
        };
        let piece = first.get();
        if piece.is_null() {
            // SAFETY: its size is not 0.
            return unsafe { System.alloc(whole) };
        }
        // SAFETY: written by `dealloc`, and not used since.
        first.set(unsafe { piece.cast::<*mut u8>().read() });
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match self.size(layout) {
            Some((first, _)) => {
                // SAFETY: no longer used, aligned to more than a pointer, and large enough for one.
                unsafe { piece.cast::<*mut u8>().write(first.get()) };
                first.set(piece);
            }
            // SAFETY: allocated by the system, as its layout shows.
            None => unsafe { System.dealloc(piece, layout) },
        }
    }
}
