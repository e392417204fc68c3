//! An allocator for native libraries of the BEAM, which takes all memory from the VM's own allocators, and counts it.
//!
//! So the memory is part of `erlang:memory/0`, and freeing it causes no long pauses. The allocator of the C library
//! collects small freed pieces, and merges them all in the next call that allocates a large one. After 200,000 keys
//! that call was measured to take 38 ms.
//!
//! rustler's allocator also uses the VM's, but it writes to the null page if the VM has no memory and the alignment is
//! greater than 8. It also requires that rustler has looked up the VM's functions, and rustler allocates for that. So
//! this crate declares the two functions, and the system's loader resolves them when it loads the library. On macOS and
//! Windows a library cannot be linked against functions of the program that loads it. There the memory comes from the
//! system's allocator.
//!
//! A library uses it with
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: vm_allocator::VmAllocator = vm_allocator::VmAllocator;
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[cfg(any(target_os = "macos", windows))]
use std::alloc::System as BASE;
#[cfg(not(any(target_os = "macos", windows)))]
use vm::Vm as BASE;

/// On cache lines of its own: every thread that allocates writes it.
#[repr(align(128))]
struct Counter(AtomicUsize);

static BYTES: Counter = Counter(AtomicUsize::new(0));

/// The number of bytes that the library has allocated and not freed. These are the bytes that it requested, without
/// what the VM's allocators add.
pub fn bytes() -> usize {
    BYTES.0.load(Relaxed)
}

/// Adds bytes that the VM has allocated for the library in another way.
pub fn add(bytes: usize) {
    BYTES.0.fetch_add(bytes, Relaxed);
}

/// Subtracts bytes that [`add`] has added.
pub fn subtract(bytes: usize) {
    BYTES.0.fetch_sub(bytes, Relaxed);
}

/// The VM's allocator, or the system's where a library cannot call the VM's.
pub struct VmAllocator;

// SAFETY: every call is passed on unchanged to an allocator that keeps the contract. Counting does not allocate.
unsafe impl GlobalAlloc for VmAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method.
        let place = unsafe { BASE.alloc(layout) };
        if !place.is_null() {
            add(layout.size());
        }
        place
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: as above.
        unsafe { BASE.dealloc(place, layout) };
    }
}

#[cfg(not(any(target_os = "macos", windows)))]
mod vm {
    use std::alloc::{GlobalAlloc, Layout};
    use std::ffi::c_void;
    use std::ptr;

    unsafe extern "C" {
        fn enif_alloc(size: usize) -> *mut c_void;
        fn enif_free(start: *mut c_void);
    }

    /// The least alignment of `enif_alloc`.
    const VM_ALIGN: usize = 8;

    /// Allocates with `enif_alloc` and frees with `enif_free`.
    pub(super) struct Vm;

    // SAFETY: a block that `alloc` returns has the requested size and alignment, or is null. `dealloc` frees the block
    // that `enif_alloc` returned.
    unsafe impl GlobalAlloc for Vm {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if layout.align() <= VM_ALIGN {
                // SAFETY: any size is allowed; the result is null when there is no memory.
                return unsafe { enif_alloc(layout.size()) }.cast();
            }
            // Space to move up to the alignment, and for a word in front: the address of the block.
            let Some(size) = layout.size().checked_add(layout.align()) else {
                return ptr::null_mut();
            };
            // SAFETY: as above.
            let start: *mut u8 = unsafe { enif_alloc(size) }.cast();
            if start.is_null() {
                return ptr::null_mut();
            }
            // `start` is aligned to a word and moves up by at least a word, so the word in front is inside the block.
            let place = start.map_addr(|address| (address | (layout.align() - 1)) + 1);
            // SAFETY: `place - 8 >= start`, and `place + size <= start + align + size`.
            unsafe { place.cast::<*mut u8>().sub(1).write(start) };
            place
        }

        unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
            let start: *mut u8 = if layout.align() <= VM_ALIGN {
                place
            } else {
                // SAFETY: written by `alloc`.
                unsafe { place.cast::<*mut u8>().sub(1).read() }
            };
            // SAFETY: from `enif_alloc`, and freed once.
            unsafe { enif_free(start.cast::<c_void>()) };
        }
    }
}
