//! Event counters of a table, for `info/0`.
//!
//! Three counters are elsewhere: each slot counts its released permits (`slot.rs`), the queues count grants
//! (`queues.rs`), and the number of granted permits is computed from the others.
//!
//! Each thread has its own counters, on cache lines that no other thread writes. Reading a counter adds up all threads.
//! So an event costs a load and a store, and callers on different threads share no cache line.
//!
//! ```text
//!   own     [ thread 0 | thread 1 | ... ]     indexed by the number of the thread's epoch record; one writer each
//!   shared  [ all other threads ]             with a number beyond the array, or no memory for own counters
//! ```
//!
//! No promise depends on the counters, and they publish nothing. So they are relaxed and bypass `sync.rs`: loom would
//! spend most of its time on interleavings of them.

use crate::memory::OutOfMemory;
use crate::{epochs::Pin, lazy_array::LazyArray};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads per chunk: 8 KiB. The first chunk is allocated with the table and suffices for most machines.
const CHUNK: usize = 64;

/// Threads that can have their own counters: more than the VM can be configured to start.
const THREADS: usize = if cfg!(loom) { CHUNK } else { 4096 };

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Refused,
    ReleasedByDeath,
    NotHeld,
    TimedOut,
    Transferred,
}

const EVENTS: usize = Event::Transferred as usize + 1;

#[derive(Default)]
struct ThreadCounters([AtomicU64; EVENTS]);

pub(crate) struct Counters {
    own: LazyArray<CachePadded<ThreadCounters>, CHUNK>,
    shared: ThreadCounters,
}

impl Counters {
    /// All counters at 0.
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let own = LazyArray::new(THREADS)?;
        own.get_or_create(0, |_| Default::default())?;
        Ok(Self {
            own,
            shared: ThreadCounters::default(),
        })
    }

    #[inline(always)]
    pub(crate) fn add(&self, pin: &Pin, event: Event, events: u64) {
        if cfg!(loom) {
            return;
        }
        let thread = pin.thread();
        let Some(own) = self.own.get(thread) else {
            return self.add_first(thread, event, events);
        };
        // No other thread writes this counter, so the load and the store cannot lose an event.
        let counter = &own.0[event as usize];
        counter.store(counter.load(Ordering::Relaxed) + events, Ordering::Relaxed);
    }

    #[cold]
    fn add_first(&self, thread: usize, event: Event, events: u64) {
        // If there is memory for a chunk, later events of the thread use it. This event is counted in `shared`.
        if thread < THREADS {
            let _ = self.own.get_or_create(thread, |_| Default::default());
        }
        self.shared.0[event as usize].fetch_add(events, Ordering::Relaxed);
    }

    /// The number of events so far. Exact if no other thread is inside the table.
    pub(crate) fn sum(&self, event: Event) -> u64 {
        let own = self.own.values().map(|own| &**own);
        own.chain([&self.shared])
            .map(|counters| counters.0[event as usize].load(Ordering::Relaxed))
            .sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::epochs::pin;
    use crate::inject::{arm, disarm, Failure};
    use std::thread;

    /// Includes the first event of a thread, which allocates its counters and is counted in `shared`.
    #[test]
    fn every_event_is_counted_with_and_without_memory() {
        let counters = Counters::new().unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    arm(Failure::Memory, 0);
                    for _ in 0..1000 {
                        counters.add(&pin(), Event::ReleasedByDeath, 1);
                    }
                    disarm();
                });
            }
        });
        counters.add_first(THREADS, Event::ReleasedByDeath, 5);
        arm(Failure::Memory, 0);
        counters.add_first(CHUNK, Event::ReleasedByDeath, 6);
        disarm();
        assert_eq!(counters.sum(Event::ReleasedByDeath), 4011);
        assert_eq!(counters.sum(Event::Refused), 0);
        let has_counters = |thread| counters.own.get(thread).is_some();
        assert_eq!([0, CHUNK, THREADS].map(has_counters), [true, false, false]);
        counters.add_first(CHUNK, Event::Refused, 1);
        assert!(has_counters(CHUNK), "there is memory again");
        assert_eq!(counters.sum(Event::Refused), 1);
    }
}
