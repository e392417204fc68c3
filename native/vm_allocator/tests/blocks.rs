//! Tests the allocator on a simulated VM with two functions, `enif_alloc` and `enif_free`.

// On these systems a test program cannot define the VM's functions.
#![cfg(not(any(target_os = "macos", windows)))]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

use vm_allocator::{bytes, VmAllocator};

/// The alignment of the simulated VM's blocks, and no more.
const WORD: usize = 8;

thread_local! {
    /// The address and size of each allocated block.
    static BLOCKS: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
    static HAS_MEMORY: Cell<bool> = const { Cell::new(true) };
}

/// As the VM's, with the least alignment that the VM guarantees: never more than a word.
#[no_mangle]
extern "C" fn enif_alloc(size: usize) -> *mut c_void {
    if !HAS_MEMORY.get() || size > isize::MAX as usize / 2 {
        return ptr::null_mut();
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { std::alloc::alloc(layout_around(size)) }.wrapping_add(WORD);
    assert_eq!(
        start.addr() % (2 * WORD),
        WORD,
        "no more aligned than the VM guarantees"
    );
    BLOCKS.with_borrow_mut(|blocks| blocks.push((start.addr(), size)));
    start.cast()
}

/// As the VM's.
#[no_mangle]
extern "C" fn enif_free(start: *mut c_void) {
    let size = BLOCKS.with_borrow_mut(|blocks| {
        let found = blocks
            .iter()
            .position(|(address, _)| *address == start.addr());
        blocks
            .swap_remove(found.expect("the freed address is the start of a block"))
            .1
    });
    // SAFETY: `enif_alloc` has allocated it with this layout.
    unsafe { std::alloc::dealloc(start.cast::<u8>().wrapping_sub(WORD), layout_around(size)) };
}

fn layout_around(size: usize) -> Layout {
    Layout::from_size_align(size + 2 * WORD, 2 * WORD)
        .expect("a layout of at most isize::MAX bytes")
}

fn layouts() -> impl Iterator<Item = Layout> {
    let sizes = [1, 7, 8, 9, 64, 100, 4096, 100_000];
    let alignments = (0..13).map(|power| 1 << power);
    alignments.flat_map(move |align| {
        sizes.map(|size| Layout::from_size_align(size, align).expect("a layout"))
    })
}

/// The tests of this file run one after the other, because the count is one for the library.
static ONE_TEST: Mutex<()> = Mutex::new(());

#[test]
fn blocks_have_their_size_and_alignment_and_are_freed() {
    let _alone = ONE_TEST.lock();
    for layout in layouts() {
        // SAFETY: the layout is not empty.
        let place = unsafe { VmAllocator.alloc(layout) };
        assert!(!place.is_null());
        assert_eq!(place.addr() % layout.align(), 0, "{layout:?}");
        assert_eq!(bytes(), layout.size());
        let (start, size) = BLOCKS.with_borrow(|blocks| blocks[0]);
        assert!(
            start <= place.addr() && place.addr() + layout.size() <= start + size,
            "{layout:?} within its block"
        );
        assert!(
            size <= layout.size() + layout.align(),
            "{layout:?}: no larger than needed"
        );
        // SAFETY: the block has this size.
        unsafe { place.write_bytes(0xa5, layout.size()) };
        // SAFETY: from `alloc`, of this layout.
        unsafe { VmAllocator.dealloc(place, layout) };
        assert_eq!(bytes(), 0);
        assert!(BLOCKS.with_borrow(Vec::is_empty), "{layout:?} is freed");
    }
}

#[test]
fn realloc_moves_the_contents() {
    let _alone = ONE_TEST.lock();
    for layout in layouts() {
        // SAFETY: the layout is not empty.
        let small = unsafe { VmAllocator.alloc_zeroed(layout) };
        // SAFETY: `alloc_zeroed` has allocated this byte.
        unsafe { small.add(layout.size() - 1).write(7) };
        // SAFETY: from `alloc_zeroed`, of this layout.
        let large = unsafe { VmAllocator.realloc(small, layout, 3 * layout.size()) };
        assert_eq!(large.addr() % layout.align(), 0, "{layout:?}");
        assert_eq!(bytes(), 3 * layout.size());
        // SAFETY: `realloc` has moved these bytes.
        let moved = unsafe { std::slice::from_raw_parts(large, layout.size()) };
        assert!(
            moved.iter().rev().skip(1).all(|byte| *byte == 0) && moved[layout.size() - 1] == 7,
            "{layout:?}"
        );
        let grown = Layout::from_size_align(3 * layout.size(), layout.align()).expect("a layout");
        // SAFETY: from `realloc`, of this layout.
        unsafe { VmAllocator.dealloc(large, grown) };
        assert!(BLOCKS.with_borrow(Vec::is_empty), "{layout:?} is freed");
    }
}

#[test]
fn alloc_returns_null_without_memory() {
    let _alone = ONE_TEST.lock();
    HAS_MEMORY.set(false);
    for layout in layouts() {
        // SAFETY: the layout is not empty.
        assert!(unsafe { VmAllocator.alloc(layout) }.is_null(), "{layout:?}");
        assert_eq!(bytes(), 0);
    }
}
