//! Memory by the shortest way that there is, so that what is counted is the table's work, and the same on all machines:
//! C libraries take from fifty to some hundred instructions for a node, each version another number. (In the native
//! library the VM's allocators give it.)
//!
//! What is freed is kept, by its size, for the next one who asks; large pieces are the system's business.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

#[global_allocator]
static ALLOCATOR: Kept = Kept([const { Cell::new(ptr::null_mut()) }; SIZES]);

/// Pieces are of so many bytes, or of twice, three times... as many; and begin at a multiple of it.
const UNIT: usize = 64;

/// Up to 4 KiB.
const SIZES: usize = 64;

/// The first free piece of each size; each leads to the next.
struct Kept([Cell<*mut u8>; SIZES]);

// SAFETY: this program has one thread.
unsafe impl Sync for Kept {}

impl Kept {
    /// The pieces that will do, and how large they are.
    fn size(&self, layout: Layout) -> Option<(&Cell<*mut u8>, Layout)> {
        if layout.align() > UNIT {
            return None;
        }
        let units = layout.size().div_ceil(UNIT).max(1);
        let whole = Layout::from_size_align(units * UNIT, UNIT).ok()?;
        Some((self.0.get(units - 1)?, whole))
    }
}

// SAFETY: a piece is the system's, of at least the size and alignment asked for; it is given to one at a time.
unsafe impl GlobalAlloc for Kept {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((first, whole)) = self.size(layout) else {
            // SAFETY: as the caller says.
            return unsafe { System.alloc(layout) };
        };
        let piece = first.get();
        if piece.is_null() {
            // SAFETY: its size is not 0.
            return unsafe { System.alloc(whole) };
        }
        // SAFETY: written by `dealloc`, and nobody's since.
        first.set(unsafe { piece.cast::<*mut u8>().read() });
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match self.size(layout) {
            Some((first, _)) => {
                // SAFETY: ours again, aligned to more than a pointer and large enough for it.
                unsafe { piece.cast::<*mut u8>().write(first.get()) };
                first.set(piece);
            }
            // SAFETY: from there, because of its layout.
            None => unsafe { System.dealloc(piece, layout) },
        }
    }
}
