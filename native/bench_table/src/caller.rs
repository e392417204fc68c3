//! What stands for a process: a holder, and the two calls that it makes. They go the way of the library's hot calls:
//! first as if the key were known, and all the way only if it is not (the sweep may have taken it).

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

/// A holder by its number, at a place of its own.
///
/// # Safety
/// One thread at a time makes calls on behalf of a number, in one table.
pub unsafe fn holder(number: u64) -> Holder {
    // SAFETY: as the caller says; distinct numbers are distinct words.
    unsafe { holder_at(number, number) }
}

/// A holder by its number, at the place of somebody who has gone.
///
/// # Safety
/// As [`holder`]; and of those with one place one lives at a time.
pub unsafe fn holder_at(number: u64, place: u64) -> Holder {
    let word = NonZeroU64::MIN.saturating_add(number);
    // SAFETY: as the caller says.
    unsafe { Holder::new(word, place) }
}

/// How a thread keeps what it reads from being freed.
pub trait Pinning {
    /// Inside, for one call of the table.
    fn call<R>(&self, body: impl FnOnce(&Pin) -> R) -> R;
}

/// A pin for each call: what the library does, and what reclamation costs its callers.
pub struct PinPerCall;

impl Pinning for PinPerCall {
    #[inline(always)]
    fn call<R>(&self, body: impl FnOnce(&Pin) -> R) -> R {
        body(&pin())
    }
}

/// One pin around all calls: what they would cost if nothing were ever freed.
pub struct OnePin(Pin);

impl OnePin {
    /// From now on, of this thread.
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

/// Takes a permit, or is refused.
///
/// # Panics
/// Without memory.
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
    let known = known.expect("there is memory");
    known.unwrap_or_else(|| acquire_surely(table, holder, key, capacity))
}

#[cold]
fn acquire_surely<Q: Query<WordKey>>(
    table: &WordTable,
    holder: Holder,
    key: &Q,
    capacity: Capacity,
) -> Acquired {
    table
        .acquire(&pin(), holder, key, capacity, watch)
        .expect("there is memory")
}

/// Gives a permit back.
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
    let held = pinning.call(|pin| table.release_inline(pin, holder, key));
    assert!(
        held || release_beyond(table, pinning, holder, key),
        "only what has been acquired is released"
    );
}

#[cold]
fn release_beyond<const N: usize>(
    table: &WordTable,
    pinning: &impl Pinning,
    holder: Holder,
    key: &Words<N>,
) -> bool {
    pinning.call(|pin| table.release_more(pin, holder, key))
}

/// Takes a permit and gives it back.
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

/// Where the VM would be asked to watch the holder.
#[inline(always)]
fn watch() -> Result<(), OutOfMemory> {
    Ok(())
}
