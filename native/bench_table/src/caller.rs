//! A simulated process: a holder and its two calls. They take the path of the library's hot calls: first as if the key
//! were present, and the full path only if it is not (the sweep may have reclaimed it).

use crate::word_key::{WordKey, Words};
use permit_table::{pin, Acquired, Capacity, Holder, OutOfMemory, Pin, Query, Table};
use std::hint::black_box;
use std::num::NonZeroU64;

/// The table of the benchmarks.
pub type WordTable = Table<WordKey>;

/// A capacity that is never reached.
pub fn unlimited() -> Capacity {
    Capacity::MAX
}

/// A holder by its number, with its own place.
///
/// # Safety
/// One thread at a time makes calls on behalf of a number, in one table.
pub unsafe fn holder(number: u64) -> Holder {
    // SAFETY: guaranteed by the caller. Distinct numbers are distinct words.
    unsafe { holder_at(number, number) }
}

/// A holder by its number, at a place that other holders have had.
///
/// # Safety
/// As [`holder`]; and only one living holder has a place.
pub unsafe fn holder_at(number: u64, place: u64) -> Holder {
    let word = NonZeroU64::MIN.saturating_add(number);
    // SAFETY: guaranteed by the caller.
    unsafe { Holder::new(word, place) }
}

/// How a thread protects what it reads from being freed.
pub trait Pinning {
    /// Runs one call of the table while pinned.
    fn call<R>(&self, body: impl FnOnce(&Pin) -> R) -> R;
}

/// One pin per call, as in the library. Includes the cost of reclamation for the callers.
pub struct PinPerCall;

impl Pinning for PinPerCall {
    #[inline(always)]
    fn call<R>(&self, body: impl FnOnce(&Pin) -> R) -> R {
        body(&pin())
    }
}

/// One pin around all calls: the cost if nothing were ever freed.
pub struct OnePin(Pin);

impl OnePin {
    /// Pins this thread.
    pub fn begin() -> Self {
        Self(pin())
    }
}

impl Pinning for OnePin {
    #[inline(always)]
    fn call<R>(&self, body: impl FnOnce(&Pin) -> R) -> R {
        body(&self.0)
    }
}

/// Acquires a permit, or is refused.
///
/// # Panics
/// If there is no memory.
#[inline(always)]
pub fn acquire<const N: usize>(
    table: &WordTable,
    pinning: &impl Pinning,
    holder: Holder,
    key: &Words<N>,
    capacity: Capacity,
) -> Acquired {
    let key = black_box(key);
    let known = pinning.call(|pin| table.acquire_known(pin, holder, key, capacity, watch));
    let known = known.expect("out of memory");
    known.unwrap_or_else(|| acquire_slow(table, holder, key, capacity))
}

#[cold]
fn acquire_slow<Q: Query<WordKey>>(
    table: &WordTable,
    holder: Holder,
    key: &Q,
    capacity: Capacity,
) -> Acquired {
    table
        .acquire(&pin(), holder, key, capacity, watch)
        .expect("out of memory")
}

/// Releases a permit.
///
/// # Panics
/// If the holder has none.
#[inline(always)]
pub fn release<const N: usize>(
    table: &WordTable,
    pinning: &impl Pinning,
    holder: Holder,
    key: &Words<N>,
) {
    let key = black_box(key);
    let held = pinning.call(|pin| table.release_inline(pin, holder, key, ()));
    assert!(
        held || release_slow(table, pinning, holder, key),
        "the holder has no permit of the key"
    );
}

#[cold]
fn release_slow<const N: usize>(
    table: &WordTable,
    pinning: &impl Pinning,
    holder: Holder,
    key: &Words<N>,
) -> bool {
    pinning.call(|pin| table.release_further(pin, holder, key, ()))
}

/// Acquires and releases a permit.
#[inline(always)]
pub fn pair<const N: usize>(
    table: &WordTable,
    pinning: &impl Pinning,
    holder: Holder,
    key: &Words<N>,
) {
    black_box(acquire(table, pinning, holder, key, unlimited()));
    release(table, pinning, holder, key);
}

/// The VM would monitor the holder here.
#[inline(always)]
fn watch() -> Result<(), OutOfMemory> {
    Ok(())
}
