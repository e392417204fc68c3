//! What has happened in a table, counted for people; but for what is released, which is counted where it was on
//! record (`slot.rs`), and what is granted, which follows from the rest.
//!
//! Each thread counts by itself, on cache lines that no other thread writes, and whoever asks adds them up. So an
//! event costs its thread a load and a store of its own, and two callers on two threads still share nothing.
//!
//! ```text
//!   own     [ thread 0 | thread 1 | ... ]     by the number of the thread's epoch record; one writer each
//!   shared  [ everybody else ]                threads beyond the end, or without memory for a place of their own
//! ```
//!
//! The counters are no part of any promise and publish nothing, so they are relaxed, and do not pass through
//! `sync.rs`: a model (loom) that had to interleave them would explore little else.

use crate::epochs::Pin;
use crate::lazy_array::LazyArray;
use crate::memory::Account;
use crate::out_of_memory::OutOfMemory;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads to a chunk: 8 KiB, made with the table, and enough for most machines.
const CHUNK: usize = 64;

/// Threads that can have a place of their own: more than the VM can be told to start.
const THREADS: usize = if cfg!(loom) { CHUNK } else { 4096 };

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Refused,
    GivenBack,
    NotHeld,
}

const EVENTS: usize = Event::NotHeld as usize + 1;

/// One thread's counters.
#[derive(Default)]
struct Counters([AtomicU64; EVENTS]);

/// All counters of a table.
pub(crate) struct Tally {
    own: LazyArray<CachePadded<Counters>, CHUNK>,
    shared: Counters,
}

impl Tally {
    /// Everything at 0. [`Tally::free`] it with the same account.
    pub(crate) fn new(account: &Account) -> Result<Self, OutOfMemory> {
        let own = LazyArray::new(THREADS, account)?;
        let first = own.get_or_create(0, account, |_| Default::default());
        first.inspect_err(|_| {
            // SAFETY: made above, and nobody else knows it.
            unsafe { own.free(account) };
        })?;
        Ok(Self {
            own,
            shared: Counters::default(),
        })
    }

    /// Counts one.
    #[inline(always)]
    pub(crate) fn count(&self, pin: &Pin, event: Event, account: &Account) {
        self.add(pin, event, 1, account);
    }

    /// Counts so many at once.
    #[inline(always)]
    pub(crate) fn add(&self, pin: &Pin, event: Event, events: u64, account: &Account) {
        if cfg!(loom) {
            return;
        }
        let thread = pin.thread();
        let Some(own) = self.own.get(thread) else {
            return self.add_first(thread, event, events, account);
        };
        // Nobody else writes it: what is read here is still there when it is written.
        let counter = &own.0[event as usize];
        counter.store(counter.load(Ordering::Relaxed) + events, Ordering::Relaxed);
    }

    #[cold]
    fn add_first(&self, thread: usize, event: Event, events: u64, account: &Account) {
        // The next event will find the place, if there is memory for it; this one need not.
        if thread < THREADS {
            let _ = self
                .own
                .get_or_create(thread, account, |_| Default::default());
        }
        self.shared.0[event as usize].fetch_add(events, Ordering::Relaxed);
    }

    /// How often it has happened. Exact at quiet points.
    pub(crate) fn sum(&self, event: Event) -> u64 {
        let own = self.own.values().map(|own| &**own);
        own.chain([&self.shared])
            .map(|counters| counters.0[event as usize].load(Ordering::Relaxed))
            .sum()
    }

    /// Frees everything.
    ///
    /// # Safety
    /// `account` is the one it was made with, nobody is inside, and it is not used again.
    pub(crate) unsafe fn free(&self, account: &Account) {
        // SAFETY: as the caller says.
        unsafe { self.own.free(account) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::inject::{arm, disarm, Failure};
    use crate::pin;
    use std::thread;

    /// Also when its first event makes its place, which only the next one finds.
    #[test]
    fn every_thread_is_heard_with_memory_and_without() {
        let account = Account::default();
        let tally = Tally::new(&account).unwrap();
        let bytes = account.bytes();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    arm(Failure::Memory, 0);
                    for _ in 0..1000 {
                        tally.count(&pin(), Event::GivenBack, &account);
                    }
                    disarm();
                });
            }
        });
        tally.add_first(THREADS, Event::GivenBack, 5, &account);
        arm(Failure::Memory, 0);
        tally.add_first(CHUNK, Event::GivenBack, 6, &account);
        disarm();
        assert_eq!(account.bytes(), bytes, "no place beyond the first chunk");
        assert_eq!(tally.sum(Event::GivenBack), 4011);
        assert_eq!(tally.sum(Event::Refused), 0);
        let has_place = |thread| tally.own.get(thread).is_some();
        assert_eq!([0, CHUNK, THREADS].map(has_place), [true, false, false]);
        tally.add_first(CHUNK, Event::Refused, 1, &account);
        assert!(has_place(CHUNK), "there is memory again");
        assert_eq!(tally.sum(Event::Refused), 1);
        // SAFETY: this thread is the last to use it.
        unsafe { tally.free(&account) };
        assert_eq!(account.bytes(), 0);
    }
}
