//! The asymmetric memory barrier between callers and the sweep (E2 in `epochs.rs`). Each call runs the cheap [`light`]
//! half, the sweep runs the expensive [`heavy`] half.
//!
//! | platform | `light` | `heavy` |
//! |---|---|---|
//! | Linux | a compiler fence | `membarrier(2)`: each thread of the process passes a full fence |
//! | other systems, kernels without that call, Miri | a full fence | a full fence |
//! | a model | writes the word of its thread | writes the words of all threads; or both as in the row above |
//!
//! # If the kernel refuses the barrier
//!
//! The kernel serves only a process that has registered. A process can lose its registration, for example when it is
//! restored from a checkpoint. A system call filter can forbid the call at any time. After a refusal, `heavy` registers
//! again and retries once. If the kernel refuses again, there was no barrier. Then nothing may be freed, because the
//! sweep cannot know which threads are inside. [`refused`] counts these barriers. The next `heavy` tries again.
//!
//! # `membarrier(2)` in a model
//!
//! The kernel promises: between the call and its return, each thread T passes a full fence at some point p of its
//! program. So everything before the call happens before everything that T does after p. Everything that T does before
//! p happens before everything after the return. The kernel promises nothing about two callers of `membarrier`.
//!
//! In a model, `light` (L) and `heavy` (H) are read-modify-writes of T's word, so each H is before or after each L:
//! - **H before L** represents a p before L: what precedes the call happens before what T does after L.
//! - **L before H** represents a p after L: what T does before L happens before what follows the return.
//!
//! The model promises less than the kernel: in T's program, the operations between p and the nearest L are unordered.
//! It never promises more:
//! - Only T's own L and H write the word, so two callers do not synchronize. `heavy` writes all words with Release. The
//!   Acquire fence after the last write orders it behind everything that the writes have read. With Acquire on each
//!   write, the first thread would be ordered before the last one.
//! - L orders operations only through that word. A fence would also strengthen the relaxed loads and stores around it,
//!   and so hide, for example, an epoch that is read with Relaxed.
//! - A thread without a record has a word too: the word of the number that it will get. So the barrier reaches it.
//! - Two concurrent barriers would be ordered by the words. No model has two.

use crate::inject;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(not(loom))]
use membarrier as imp;
#[cfg(loom)]
use model as imp;

pub(crate) use imp::{choose, light};
#[cfg(loom)]
pub use model::use_fences;

/// See [`refused`]. One count per process, as the registration is per process.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Returns false if there was no barrier. Then nothing may be freed.
pub(crate) fn heavy() -> bool {
    choose();
    let passed = try_heavy() || imp::register() && try_heavy();
    if !passed {
        REFUSED.fetch_add(1, Relaxed);
    }
    passed
}

fn try_heavy() -> bool {
    !inject::refused_barrier() && imp::heavy()
}

/// The number of barriers that the kernel has refused even after a new registration.
pub(crate) fn refused() -> u64 {
    REFUSED.load(Relaxed)
}

#[cfg(not(loom))]
mod membarrier {
    use std::ffi::c_int;
    use std::sync::atomic::{compiler_fence, fence, AtomicU8, Ordering};

    const UNKNOWN: u8 = 0;
    pub(super) const ASYMMETRIC: u8 = 1;
    const FENCED: u8 = 2;

    /// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration. `libc` has them on Linux only.
    const BARRIER: c_int = 1 << 3;
    const REGISTER: c_int = 1 << 4;

    /// Set before the first pin of any thread, and constant afterwards.
    pub(super) static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

    pub(crate) fn choose() {
        if MODE.load(Ordering::Acquire) == UNKNOWN {
            let mode = if register() { ASYMMETRIC } else { FENCED };
            // Two threads can run this at the same time: the first result applies to both.
            let _ = MODE.compare_exchange(UNKNOWN, mode, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    #[inline(always)]
    pub(crate) fn light(_thread: usize) {
        if MODE.load(Ordering::Relaxed) == ASYMMETRIC {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn heavy() -> bool {
        fence(Ordering::SeqCst);
        MODE.load(Ordering::Relaxed) == FENCED || call(BARRIER)
    }

    pub(super) fn register() -> bool {
        call(REGISTER)
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    pub(super) fn call(command: c_int) -> bool {
        // SAFETY: the call takes integers and accesses no memory of this process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn call(_command: c_int) -> bool {
        false
    }
}

#[cfg(loom)]
mod model {
    use crate::sync::{fence, global, AtomicU64, Ordering};
    use std::array;
    use std::cell::Cell;

    /// The maximal number of threads of a model.
    const THREADS: usize = 3;

    global! {
        static WORDS: [AtomicU64; THREADS] = array::from_fn(|_| AtomicU64::new(0));
    }

    // Not loom's thread-local, which lasts for one execution only. All threads of a model run on one thread of the
    // system.
    std::thread_local! {
        static FENCES: Cell<bool> = const { Cell::new(false) };
    }

    /// Selects fences or `membarrier(2)` for the models that follow.
    pub fn use_fences(fences: bool) {
        FENCES.set(fences);
    }

    pub(crate) fn choose() {}

    pub(crate) fn light(thread: usize) {
        if FENCES.get() {
            fence(Ordering::SeqCst);
        } else {
            WORDS[thread].fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn heavy() -> bool {
        if FENCES.get() {
            fence(Ordering::SeqCst);
        } else {
            for word in WORDS.iter() {
                word.fetch_add(1, Ordering::Release);
            }
            fence(Ordering::Acquire);
        }
        true
    }

    pub(super) fn register() -> bool {
        true
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, miri))))]
mod tests {
    use super::*;
    use std::env;
    use std::process::Command;
    use std::sync::atomic::Ordering;

    /// E2: if a refused barrier counted as one, memory in use would be freed.
    #[test]
    fn e2_a_refused_barrier_is_reported() {
        assert!(!membarrier::call(-1));
    }

    #[test]
    fn e2_a_lost_registration_is_renewed() {
        const UNREGISTERED: &str = "CANAL_LOCK_TEST_UNREGISTERED";
        if env::var_os(UNREGISTERED).is_none() {
            // Only a process that has never registered has no registration.
            let output = Command::new(env::current_exe().unwrap())
                .args([
                    "--exact",
                    "barrier::tests::e2_a_lost_registration_is_renewed",
                ])
                .env(UNREGISTERED, "1")
                .output()
                .unwrap();
            let stdout = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && stdout.contains("1 passed"),
                "{stdout}"
            );
            return;
        }
        membarrier::MODE.store(membarrier::ASYMMETRIC, Ordering::Release);
        assert!(!try_heavy(), "the process is not registered");
        assert!(heavy());
        assert!(try_heavy());
        assert_eq!(refused(), 0);
    }
}
