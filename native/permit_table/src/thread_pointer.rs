//! One pointer of each thread's own, found in two instructions where the platform allows it.
//!
//! A thread-local of a shared library is looked up by a call (`__tls_get_addr`), because the library may have come
//! after the thread: 3 ns, at each acquire and at each release, which was a tenth of both. A library may instead ask
//! for a place in the block that every thread has from its beginning; then the loader writes down once how far from
//! the thread's own address that is, for all threads (the *initial exec* model: Drepper, "ELF Handling For
//! Thread-Local Storage", 4.3.6).
//!
//! Rust has no stable way to choose the model, so the place and the two instructions are written in assembly, for
//! x86-64 Linux with glibc. That keeps some room in the block (1.6 KB) for libraries that are loaded later, of which we
//! take 152 bytes: one such place brings the library's other thread-locals along. If others have used it up, we do not
//! load, and `canal_lock_library.erl` says what to do. musl keeps none. Everywhere else it is a thread-local like any
//! other.

pub(crate) use imp::{get, set};

#[cfg(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    not(any(loom, miri))
))]
mod imp {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss.canal_lock_thread_pointer, \"awT\", @nobits",
        ".p2align 3",
        ".globl canal_lock_thread_pointer",
        ".hidden canal_lock_thread_pointer",
        ".type canal_lock_thread_pointer, @object",
        ".size canal_lock_thread_pointer, 8",
        "canal_lock_thread_pointer:",
        ".zero 8",
        ".popsection",
    );

    /// This thread's pointer; null before the first `set`.
    #[inline(always)]
    pub(crate) fn get() -> *const () {
        let pointer;
        // SAFETY: it reads the eight bytes above, which every thread has, zero at first, and no other thread writes.
        unsafe {
            asm!(
                "mov {pointer}, qword ptr [rip + canal_lock_thread_pointer@GOTTPOFF]",
                "mov {pointer}, qword ptr fs:[{pointer}]",
                pointer = out(reg) pointer,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        pointer
    }

    /// Changes this thread's pointer.
    pub(crate) fn set(pointer: *const ()) {
        // SAFETY: as in `get`; it writes them.
        unsafe {
            asm!(
                "mov {place}, qword ptr [rip + canal_lock_thread_pointer@GOTTPOFF]",
                "mov qword ptr fs:[{place}], {pointer}",
                place = out(reg) _,
                pointer = in(reg) pointer,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    not(any(loom, miri))
)))]
mod imp {
    use crate::sync::thread_cell;
    use std::cell::Cell;
    use std::ptr;

    thread_cell! {
        static POINTER: Cell<*const ()> = Cell::new(ptr::null());
    }

    /// This thread's pointer; null before the first `set`.
    #[inline(always)]
    pub(crate) fn get() -> *const () {
        POINTER.with(Cell::get)
    }

    /// Changes this thread's pointer.
    pub(crate) fn set(pointer: *const ()) {
        POINTER.with(|cell| cell.set(pointer));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ptr;
    use std::thread;

    #[test]
    fn each_thread_has_a_pointer_of_its_own_that_begins_with_null() {
        let before = get();
        let (ours, theirs) = (1, 2);
        set(ptr::from_ref(&ours).cast());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    assert!(get().is_null());
                    set(ptr::from_ref(&theirs).cast());
                    assert!(ptr::eq(get(), ptr::from_ref(&theirs).cast()));
                });
            }
        });
        assert!(ptr::eq(get(), ptr::from_ref(&ours).cast()));
        set(before);
    }
}
