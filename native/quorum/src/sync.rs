//! The only door to atomics: std's, or loom's when its models are run.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// Lets others go on, where that is all there is to do.
pub(crate) fn pause() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
