//! Atomics, locks and thread-locals: those of the standard library, or loom's in a build with `--cfg loom`.
//!
//! Every atomic whose ordering a promise depends on is imported from here, so loom checks all of them. Mere statistics
//! (the memory account, the event counters) are not.
//!
//! # Seeded bugs
//!
//! A model that cannot fail proves nothing. So the code has named bugs that a test can enable, one at a time:
//! [`seeded`] and [`ordering`] mark them. An environment variable that only a loom build reads selects one. In all
//! other builds `seeded` is the constant `false`, which an assertion below checks at compile time.
//!
//! Further bugs are not in this code: patches in `tests/loom/bugs` add them to a copy. `tests/loom/must_fail.rs` lists
//! all bugs, and checks that a model fails with each.

#[cfg(not(loom))]
mod imp {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::{
        fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
    };
    pub(crate) use std::sync::Arc;
    pub(crate) use std::thread::yield_now;

    /// A static with a constant initial value.
    macro_rules! global {
        ($(#[$attr:meta])* static $name:ident: $type:ty = $init:expr;) => {
            $(#[$attr])* static $name: $type = $init;
        };
    }
    /// A thread-local with a constant initial value. Reading it is one load, without a check for initialization.
    macro_rules! thread_cell {
        ($(#[$attr:meta])* static $name:ident: $type:ty = $init:expr;) => {
            std::thread_local! { $(#[$attr])* static $name: $type = const { $init }; }
        };
    }
    /// A function that creates the initial value of a static.
    macro_rules! const_unless_loom {
        ($(#[$attr:meta])* pub fn $name:ident() -> $type:ty $body:block) => {
            $(#[$attr])* pub const fn $name() -> $type $body
        };
    }
    pub(crate) use {const_unless_loom, global, thread_cell};

    /// Does nothing outside a model.
    #[derive(Default)]
    pub(crate) struct OneWriter;

    impl OneWriter {
        #[inline(always)]
        pub(crate) fn check(&self) {}
    }

    /// Whether the code has this bug.
    #[inline(always)]
    pub(crate) const fn seeded(_bug: &str) -> bool {
        false
    }
    const _: () = assert!(!seeded("any"));

    /// The given ordering, or `Relaxed` if the code has this bug.
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

    /// loom's mutex with the signatures of `parking_lot`'s, which has no poisoning.
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

    /// A static that is initialized once per execution of a model.
    macro_rules! global {
        ($(#[$attr:meta])* static $name:ident: $type:ty = $init:expr;) => {
            loom::lazy_static! { $(#[$attr])* static ref $name: $type = $init; }
        };
    }
    /// A thread-local that is initialized once per execution of a model.
    macro_rules! thread_cell {
        ($(#[$attr:meta])* static $name:ident: $type:ty = $init:expr;) => {
            loom::thread_local! { $(#[$attr])* static $name: $type = $init; }
        };
    }
    /// loom's types cannot be created in constants.
    macro_rules! const_unless_loom {
        ($(#[$attr:meta])* pub fn $name:ident() -> $type:ty $body:block) => {
            $(#[$attr])* pub fn $name() -> $type $body
        };
    }
    pub(crate) use {const_unless_loom, global, thread_cell};

    /// Marks data that only one thread at a time may change. loom fails the model if two checks of it are not ordered.
    pub(crate) struct OneWriter(loom::cell::UnsafeCell<()>);

    // SAFETY: it contains no data.
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

    pub(crate) fn seeded(bug: &str) -> bool {
        static BUG: OnceLock<Option<String>> = OnceLock::new();
        let seeded = BUG.get_or_init(|| std::env::var("CANAL_LOCK_SEEDED_BUG").ok());
        seeded.as_deref() == Some(bug)
    }

    pub(crate) fn ordering(bug: &str, ordering: Ordering) -> Ordering {
        if seeded(bug) {
            Ordering::Relaxed
        } else {
            ordering
        }
    }
}

pub(crate) use imp::*;

/// A size for a model, which explores every step; for an interpreter (Miri), which is 1,000 times slower; and for all
/// other builds.
pub(crate) const fn sized(model: usize, interpreter: usize, size: usize) -> usize {
    if cfg!(loom) {
        model
    } else if cfg!(miri) {
        interpreter
    } else {
        size
    }
}
