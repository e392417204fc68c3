//! The barrier between callers and the sweep (E2 in `epochs.rs`): each call has its [`light`] half, the sweep pays for
//! the [`heavy`] one.
//!
//! | where | `light` | `heavy` |
//! |---|---|---|
//! | Linux | a fence for the compiler | `membarrier(2)`: each thread of the process passes a full fence |
//! | other systems, kernels without that call, Miri | a full fence | a full fence |
//! | a model | writes the thread's word | writes the words of all threads; or both as in the row above |
//!
//! # A barrier that the kernel refuses
//!
//! The kernel serves only a process that has registered. A process can lose its registration, for example when it is
//! restored from a checkpoint, and a filter of system calls can forbid the call at any time. On a refusal `heavy`
//! registers again and asks once more. If the kernel refuses again, there was no barrier. Then nothing may be freed,
//! because no thread can know who is inside. [`refused`] counts these barriers, and the next `heavy` asks again.
//!
//! # `membarrier(2)` in a model
//!
//! The kernel promises this: between the call and its return, each thread T passes a full fence at some point p of its
//! program. So what precedes the call happens before all that T does after p, and all that T does before p happens
//! before what follows the return. It promises nothing about two callers.
//!
//! In a model `light` (L) and `heavy` (H) are read-modify-writes of T's word, so each H is before or after each L:
//! - **H before L** stands for a p before L: what precedes the call happens before what T does after L.
//! - **L before H** stands for a p after L: what T does before L happens before what follows the return.
//!
//! That is a part of what the kernel promises: in T's program, what lies between p and the nearest L is left unordered.
//! And it is no more than that:
//! - Only T's own L and H touch the word, so two callers do not meet. `heavy` writes all words with Release, and
//!   becomes ordered behind what it has read there (Acquire) after the last of them. Otherwise the first thread would
//!   be ordered before the last one.
//! - L orders nothing but by that word. A fence would also turn the relaxed loads and stores around it into stronger
//!   ones: it would hide, for example, an epoch that is read with Relaxed.
//! - A thread without a record has a word too, the one of the number that it will get. So the barrier reaches it.
//! - Two barriers at a time would be ordered by the words. No model has two.

use crate::inject;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

#[cfg(all(any(not(target_os = "linux"), miri), not(loom)))]
use fences as imp;
#[cfg(all(target_os = "linux", not(any(loom, miri))))]
use membarrier as imp;
#[cfg(loom)]
use model as imp;

pub(crate) use imp::{choose, light};
#[cfg(loom)]
pub use model::use_fences;

/// See [`refused`]. Of the process, as the registration is.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// False if there was no barrier: nothing may be freed.
pub(crate) fn heavy() -> bool {
    choose();
    let passed = ask() || imp::register() && ask();
    if !passed {
        REFUSED.fetch_add(1, Relaxed);
    }
    passed
}

fn ask() -> bool {
    !inject::refused_barrier() && imp::heavy()
}

/// How many barriers the kernel has refused this process for good.
pub(crate) fn refused() -> u64 {
    REFUSED.load(Relaxed)
}

#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod membarrier {
    use std::sync::atomic::{compiler_fence, fence, AtomicU8, Ordering};

    const UNKNOWN: u8 = 0;
    pub(super) const ASYMMETRIC: u8 = 1;
    const FENCED: u8 = 2;

    /// Chosen before the first pin of any thread, and never changed after.
    pub(super) static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

    pub(crate) fn choose() {
        if MODE.load(Ordering::Acquire) == UNKNOWN {
            let mode = if register() { ASYMMETRIC } else { FENCED };
            // Two threads may come here at once: the first answer counts for both.
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
        MODE.load(Ordering::Relaxed) == FENCED || call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }

    pub(super) fn register() -> bool {
        call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
    }

    pub(super) fn call(command: libc::c_int) -> bool {
        // SAFETY: the call takes integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

#[cfg(all(any(not(target_os = "linux"), miri), not(loom)))]
mod fences {
    use std::sync::atomic::{fence, Ordering};

    pub(crate) fn choose() {}

    #[inline(always)]
    pub(crate) fn light(_thread: usize) {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() -> bool {
        fence(Ordering::SeqCst);
        true
    }

    pub(super) fn register() -> bool {
        true
    }
}

#[cfg(loom)]
mod model {
    use crate::sync::{fence, global, seeded, AtomicU64, Ordering};
    use std::array;
    use std::cell::Cell;

    /// As many as a model has at most.
    const THREADS: usize = 3;

    global! {
        static WORDS: [AtomicU64; THREADS] = array::from_fn(|_| AtomicU64::new(0));
    }

    // Not loom's: it lasts longer than one execution. All threads of a model run on one thread of the system.
    std::thread_local! {
        static FENCES: Cell<bool> = const { Cell::new(false) };
    }

    /// Whether the models that follow have fences instead of `membarrier(2)`.
    pub fn use_fences(fences: bool) {
        FENCES.set(fences);
    }

    pub(crate) fn choose() {}

    pub(crate) fn light(thread: usize) {
        if seeded("e2_entered_without_a_fence") {
            return;
        }
        if FENCES.get() {
            fence(Ordering::SeqCst);
        } else {
            WORDS[thread].fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn heavy() -> bool {
        if seeded("e2_looked_without_a_fence") {
            return true;
        }
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

    /// E2: a refusal that passed for a barrier would free what is in use.
    #[test]
    fn a_barrier_that_is_refused_is_none() {
        assert!(!membarrier::call(-1));
    }

    #[test]
    fn e2_a_registration_that_is_lost_is_made_again() {
        const UNREGISTERED: &str = "CANAL_LOCK_TEST_UNREGISTERED";
        if env::var_os(UNREGISTERED).is_none() {
            // Only a process that has never registered is without a registration.
            let output = Command::new(env::current_exe().unwrap())
                .args([
                    "--exact",
                    "barrier::tests::e2_a_registration_that_is_lost_is_made_again",
                ])
                .env(UNREGISTERED, "1")
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && told.contains("1 passed"),
                "{told}"
            );
            return;
        }
        membarrier::MODE.store(membarrier::ASYMMETRIC, Ordering::Release);
        assert!(!ask(), "it is not registered");
        assert!(heavy());
        assert!(ask());
        assert_eq!(refused(), 0);
    }
}
