//! Permits counted per key and per holder, without locks: the core of `canal_lock`. It knows nothing of the BEAM.
//!
//! # The map
//!
//! ```text
//!                      table.rs        acquire, release, give back: the promises are kept here
//!                    /    |    \
//!           keys.rs  holders.rs  sweep.rs           view.rs        tally.rs
//!   key -> its word  process ->  idle keys go,      who holds      how often what
//!     (a lock-free   its slot    a step at a time   what, told     has happened
//!      hash table)        |            |            by pieces
//!            |   \     slot.rs         |
//!            |    \  what it holds     |
//!            |     \       |           |
//!            |      \  sorted_list.rs  |           budget.rs    how much a step may do
//!            |       \  grows without  |           memory.rs    fallible, accounted
//!            |        \  long pauses   |           sync.rs      the only door to atomics
//!     buckets.rs  lazy_array.rs    epochs.rs
//!     one word is  arrays that      who may
//!     the bucket   grow by chunks   still look
//!     vector                         |     |
//!                       incarnations.rs   barrier.rs
//!           one table open at a time,     the fence between callers
//!                  closed ones freed      and the sweep
//! ```
//!
//! `inject.rs` lets tests inject panics and failed allocations. It is empty in a release build.
//!
//! Read `buckets.rs` first: why one word is enough. Then `table.rs` for what a call does, and `keys.rs`, `slot.rs`,
//! `holders.rs` and `epochs.rs` for why it is sound; each of them begins with its invariants (K1…, H1…, E1…). A table
//! that may be closed while somebody is inside is an incarnation (`incarnations.rs`, I1…).
//!
//! A caller pins ([`pin`]), finds the table by whatever means, and calls it with the pin:
//!
//! ```
//! use permit_table::{pin, Acquired, Capacity, Holder, Key, OutOfMemory, Query, Table};
//! use std::num::NonZeroU64;
//!
//! #[derive(PartialEq, Eq, Hash, Clone)]
//! struct Name(String);
//! impl Key for Name {
//!     fn heap_bytes(&self) -> usize {
//!         self.0.capacity()
//!     }
//! }
//! impl Query<Name> for Name {
//!     fn to_key(&self) -> Result<Name, OutOfMemory> {
//!         Ok(self.clone())
//!     }
//! }
//!
//! let table = Table::<Name>::new(1024)?;
//! let pin = pin();
//! // SAFETY: one thread, so no two calls overlap.
//! let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
//! let db = Name("db".into());
//! let watch = || Ok::<(), OutOfMemory>(());
//! assert_eq!(table.acquire(&pin, holder, &db, Capacity::of(1, 1), watch)?, Acquired::Permit(1));
//! assert_eq!(table.acquire(&pin, holder, &db, Capacity::of(1, 1), watch)?, Acquired::Full);
//! assert_eq!(table.release(&pin, holder, &db), Ok(()));
//! assert_eq!(table.count(&pin, &db), 0);
//! # Ok::<(), OutOfMemory>(())
//! ```
//!
//! # What comes from elsewhere, and why
//! - `ahash`: a keyed hash that resists crafted collisions, at a few nanoseconds for short keys; keys can come from
//!   strangers.
//! - `crossbeam-utils`: `CachePadded` knows the distance at which cache lines disturb each other, per platform.
//! - `equivalent`: lookups by a borrowed view of a key.
//! - `parking_lot`: one-word locks without poison for what is cold: the sweep, displaced slots, holders of many keys.
//! - `libc`: `membarrier(2)`.

pub(crate) mod sync;

mod barrier;
mod buckets;
mod budget;
mod epochs;
mod holders;
mod incarnations;
pub mod inject;
mod keys;
mod lazy_array;
mod memory;
mod out_of_memory;
mod slot;
mod sorted_list;
mod sweep;
mod table;
mod tally;
mod view;

#[cfg(loom)]
pub use barrier::use_fences;
pub use buckets::{bucket_view, Capacity};
pub use budget::Budget;
pub use epochs::{pin, Pin};
#[cfg(loom)]
pub use epochs::{quiet_before, stamp, thread_of};
pub use holders::{Cursor, Holder};
pub use incarnations::{Dismantle, Gate, Incarnations, Opening, Shared};
pub use keys::{Key, Query};
pub use memory::reserve;
pub use out_of_memory::OutOfMemory;
pub use slot::{NotHeld, Permits};
pub use sorted_list::{Ordered, SortedList, Vacancy};
pub use sweep::Progress;
pub use table::{Acquired, Table, Totals, Usage};
