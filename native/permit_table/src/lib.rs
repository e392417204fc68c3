//! Permits counted per key and per holder, without locks: the core of `canal_lock`. This crate does not depend on the
//! BEAM.
//!
//! # Map of the files
//!
//! ```text
//!                 waits.rs   transfers.rs              requests that wait; gifts
//!                      \    /
//!                      table.rs        acquire, release: keeps the promises
//!                 /    |    |    \
//!           keys.rs    |    |   sweep.rs               inspect.rs     counters.rs
//!   key -> word        |    |   reclaims idle          holders and    event
//!     (a lock-free     |    |   keys, in steps         permits, in    statistics
//!      hash table)     |    |                          pieces
//!       |   \          |   queues.rs, queue.rs
//!       |    \         |    waiters of a key
//!       |     \    holders.rs   |
//!       |      \   process ->   |
//!       |       \    slot       |
//!       |        \    |         |                     memory.rs      fallible allocation
//!  permit_count.rs \  slot.rs   |                     sync.rs        atomics, or loom's
//!     one word is   \ record of |                     inject.rs      injected panics and failures, for tests
//!     the bucket     \ a process|                     holder.rs      a process
//!     vector          \    |   /
//!                     \  overflow.rs     further keys, and what other threads record for a process
//!                      \  |              (read by reading.rs and inspect.rs)
//!     shared_word.rs       |                          shares.rs      keys with a share of a limit
//!     that of a shared key |                                         of several nodes
//!
//!     lazy_array.rs    sorted_list.rs     epochs.rs
//!     arrays that      list without       when memory
//!     grow by chunks   long pauses        can be freed
//!                                          |     |
//!                            incarnations.rs   barrier.rs
//!                  one open table at a time,   the fence between callers
//!                    closed tables are freed   and the sweep
//! ```
//!
//! Read `permit_count.rs` first: it explains why one word is enough. Then read `table.rs` for what a call does. The
//! files below it start with their invariants: K keys, H holders and slots, W queues of waiters, O overflow, S sorted
//! list, E epochs, I incarnations. P are the promises of the library.
//!
//! # Use
//!
//! A caller pins its thread ([`pin`]), finds the table, and calls it with the pin:
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
//! assert_eq!(table.release(&pin, holder, &db, ()), Ok(()));
//! assert_eq!(table.count(&pin, &db), 0);
//! # Ok::<(), OutOfMemory>(())
//! ```

#![deny(missing_docs)]

pub(crate) mod sync;

mod barrier;

mod counters;
mod epochs;
mod holder;
mod holders;
mod incarnations;
pub mod inject;
mod inspect;
mod keys;
mod lazy_array;
mod lost;
mod memory;
mod out_of_memory;
mod overflow;
mod permit_count;
mod queue;
mod queues;
mod reading;
mod shared_word;
mod shares;
mod slot;
mod sorted_list;
mod sweep;
mod table;
mod transfers;
mod waits;

#[cfg(all(test, not(loom)))]
#[path = "../tests/common/allocated.rs"]
mod allocated;

#[cfg(loom)]
pub use barrier::use_fences;
pub use epochs::{pin, Pin};
#[cfg(loom)]
pub use epochs::{quiet_before, stamp};
pub use holder::Holder;
pub use incarnations::{Dismantle, Gate, Incarnations, Opening};
pub use inspect::{Cursor, Piece};
pub use keys::{Key, Query};
pub use memory::{reserve, reserve_exact, OutOfMemory};
pub use permit_count::{Acquired, Capacity, Demand};
pub use queues::{Notice, QueueInfo, WaitEnd};
pub use reading::Permits;
pub use shared_word::Share;
pub use shares::ShareUse;
pub use slot::NotHeld;
pub use sorted_list::{SortedList, Vacancy};
pub use sweep::Progress;
pub use table::{Table, Totals, Usage};
pub use transfers::Given;
pub use waits::{WaitRequest, Waited};
