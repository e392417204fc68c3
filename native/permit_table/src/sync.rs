//! The only door to atomics, locks and thread-locals: the standard ones, or loom's when a model is checked.
//!
//! Every atomic whose ordering matters to a promise passes through here, so that `--cfg loom` sees all of them.
//! What merely counts for people (the memory account) does not.
//!
//! # Seeded bugs
//!
//! A model that cannot fail proves nothing. So the code names places where it can be made wrong ([`seeded`],
//! [`ordering`]), one at a time, by an environment variable that only a build for loom reads;
//! `tests/loom/must_fail.rs` has the list, and sees to it that a model fails with each. In all other builds the
//! question is a constant, asked below of the compiler itself.

#[cfg(not(loom))]
mod imp {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::{
        fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
    };
    pub(crate) use std::sync::Arc;
    pub(crate) use std::thread::yield_now;

    /// A static whose initial value is a constant.
    macro_rules! global {
        ($(#[$attr:meta])* static $name:ident: $type:ty = $init:expr;) => {
            $(#[$attr])* static $name: $type = $init;
        };
    }
    /// A thread-local whose initial value is a constant: reading it is one load, without a check.
    macro_rules! thread_cell {
        ($(#[$attr:meta])* static $name:ident: $type:ty = $init:expr;) => {
            std::thread_local! { $(#[$attr])* static $name: $type = const { $init }; }
        };
    }
    /// A function that makes the initial value of a static.
    macro_rules! const_unless_loom {
        ($(#[$attr:meta])* pub fn $name:ident() -> $type:ty $body:block) => {
            $(#[$attr])* pub const fn $name() -> $type $body
        };
    }
    pub(crate) use {const_unless_loom, global, thread_cell};

    /// Nothing, but in a model.
    #[derive(Default)]
    pub(crate) struct OneWriter;

    impl OneWriter {
        #[inline(always)]
        pub(crate) fn check(&self) {}
    }

    /// Is the code to have this bug?
    #[inline(always)]
    pub(crate) const fn seeded(_bug: &str) -> bool {
        false
    }
    const _: () = assert!(!seeded("any"));

    /// This ordering, or none at all if the code is to have this bug.
    #[inline(always)]
    pub(crate) const fn ordering(_bug: &str, ordering: Ordering) -> Ordering {
        ordering
    }
}

#[cfg(loom)]
mod imp {
    pub(crate) use loom::sync::atomic::{
        fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
    };
    pub(crate) use loom::sync::{Arc, MutexGuard};
    pub(crate) use loom::thread::yield_now;
    use std::sync::OnceLock;

    /// loom's mutex with the signature of `parking_lot`'s: no poison.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no model panics inside a lock")
        }
    }

    /// A static that each execution of a model makes anew.
    macro_rules! global {
        ($(#[$attr:meta])* static $name:ident: $type:ty = $init:expr;) => {
            loom::lazy_static! { $(#[$attr])* static ref $name: $type = $init; }
        };
    }
    /// A thread-local that each execution of a model makes anew.
    macro_rules! thread_cell {
        ($(#[$attr:meta])* static $name:ident: $type:ty = $init:expr;) => {
            loom::thread_local! { $(#[$attr])* static $name: $type = $init; }
        };
    }
    /// loom's types have no constants.
    macro_rules! const_unless_loom {
        ($(#[$attr:meta])* pub fn $name:ident() -> $type:ty $body:block) => {
            $(#[$attr])* pub fn $name() -> $type $body
        };
    }
    pub(crate) use {const_unless_loom, global, thread_cell};

    /// Stands beside what only one thread may change at a time. loom fails a model in which two checks of it are not in
    /// order.
    pub(crate) struct OneWriter(loom::cell::UnsafeCell<()>);

    // SAFETY: there is nothing in it to race for.
    unsafe impl Sync for OneWriter {}

    impl Default for OneWriter {
        fn default() -> Self {
            Self(loom::cell::UnsafeCell::new(()))
        }
    }

    impl OneWriter {
        pub(crate) fn check(&self) {
            self.0.with_mut(|_| ());
        }
    }

    /// Is the code to have this bug?
    pub(crate) fn seeded(bug: &str) -> bool {
        static BUG: OnceLock<Option<String>> = OnceLock::new();
        let seeded = BUG.get_or_init(|| std::env::var("CANAL_LOCK_SEEDED_BUG").ok());
        seeded.as_deref() == Some(bug)
    }

    /// This ordering, or none at all if the code is to have this bug.
    pub(crate) fn ordering(bug: &str, ordering: Ordering) -> Ordering {
        if seeded(bug) {
            Ordering::Relaxed
        } else {
            ordering
        }
    }
}

pub(crate) use imp::*;

/// The size of something large: for a model, which explores every step; for an interpreter (Miri), which is a
/// thousand times slower; and for all others.
pub(crate) const fn sized(model: usize, interpreter: usize, size: usize) -> usize {
    if cfg!(loom) {
        model
    } else if cfg!(miri) {
        interpreter
    } else {
        size
    }
}
