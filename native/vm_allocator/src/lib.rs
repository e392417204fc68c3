//! An allocator for native libraries of the BEAM: all their memory comes from the VM's own allocators. So it shows in
//! `erlang:memory/0`, and it comes and goes as the VM's does, without long pauses. (The C library collects small freed
//! pieces, and merges them all at once when somebody asks for a large one: 38 ms after 200,000 keys, measured, in the
//! call of whoever happens to ask.)
//!
//! rustler's allocator does the same, but writes to the null page when the VM has no memory and the alignment is more
//! than 8. It also needs rustler to have looked up the VM's functions, for which rustler allocates. So the two
//! functions are declared here, and the system's loader finds them in the VM when it loads the library.
//!
//! A library takes it with
//!
//! ```ignore
//! #[cfg(not(any(target_os = "macos", windows)))]
//! #[global_allocator]
//! static ALLOCATOR: vm_allocator::VmAllocator = vm_allocator::VmAllocator;
//! ```
//!
//! because on those two a library is not linked against functions of the program that loads it.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;

unsafe extern "C" {
    fn enif_alloc(size: usize) -> *mut c_void;
    fn enif_free(start: *mut c_void);
}

/// What `enif_alloc` aligns to, at least.
const VM_ALIGN: usize = 8;

/// All from `enif_alloc`, and back to `enif_free`.
pub struct VmAllocator;

// SAFETY: what `alloc` gives has the size and alignment asked for, or is null; and `dealloc` gives back what `alloc`
// got.
unsafe impl GlobalAlloc for VmAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= VM_ALIGN {
            // SAFETY: any size will do; null when there is no memory.
            return unsafe { enif_alloc(layout.size()) }.cast();
        }
        // Room to move up to the alignment, and for a word in front that says where it began.
        let Some(size) = layout.size().checked_add(layout.align()) else {
            return ptr::null_mut();
        };
        // SAFETY: as above.
        let start: *mut u8 = unsafe { enif_alloc(size) }.cast();
        if start.is_null() {
            return ptr::null_mut();
        }
        // Aligned to a word, `start` moves up by a word at least, so the word in front is ours too.
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
