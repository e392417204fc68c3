//! Epochs: decide when unlinked memory can be freed.
//!
//! This is epoch-based reclamation (Fraser 2004) with an asymmetric barrier. Callers pin millions of times per second
//! and pay two plain stores. The sweep is rare and pays for both sides with `membarrier(2)`.
//!
//! ```text
//!   caller                                   sweep
//!   ------                                   -----
//!   entered := EPOCH     (1)                 unlink nodes                     (a)
//!   -- compiler fence --                     stamp  := EPOCH, EPOCH + 1       (b)
//!   read pointers, use their targets (2)     membarrier: a full fence in every running thread of the process
//!   entered := 0         (3)                 oldest := min of all entered     (c)
//!                                            free everything with stamp < oldest
//! ```
//!
//! # Invariants, and why this is sound
//!
//! - **E1** The `entered` of a pinned thread is the epoch in which it pinned, or an earlier one. Nested pins of the
//!   same thread keep that epoch. The thread leaves with the last of them.
//! - **E2** The barrier falls somewhere in the caller's program. If it falls before (1), then (2) sees the unlinking
//!   (a) and cannot find the node. If it falls after (1), then (c) sees that the thread is inside. The compiler may not
//!   move (2) above (1). The processor may; the barrier repairs that.
//! - **E3** A thread whose `entered` is greater than a stamp has read (Acquire) the increment (b) (Release). So it sees
//!   (a) and cannot find a node with that stamp.
//! - **E4** (3) is a Release store and (c) an Acquire load: the last use of a node happens before it is freed. (1) is a
//!   Release store too: (c) may find that the thread has pinned again, in a later epoch, and read (1) instead of (3).
//! - **E5** No two living threads have the same number. `counters.rs` relies on it: each thread writes its own
//!   counters.
//!
//! `barrier.rs` has both halves of the barrier. Without `membarrier`, both sides use a full fence. While the kernel
//! refuses the barrier, nothing is freed. The models run with either kind.
//!
//! A pair of calls with pins of crossbeam-epoch or seize took 16 ns more (docs/performance.md, "What was dropped"), and
//! those crates free memory inside the calls. Here only the sweep and the manager of a closed table free.

use crate::barrier;
use crate::sync::{global, ordering, thread_cell, AtomicBool, AtomicPtr, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use std::{cell::Cell, iter, marker::PhantomData, ptr};

/// `entered` of a thread that is not pinned. Epochs start above it.
const OUTSIDE: u64 = 0;

struct Domain {
    /// Grows by one with each batch of unlinked nodes.
    epoch: AtomicU64,
    /// All records ever allocated, newest first. They are never freed: the VM's threads are few and long-lived, and a
    /// thread that ends leaves its record to a new thread.
    records: AtomicPtr<Record>,
}

global! {
    static DOMAIN: Domain = Domain {
        epoch: AtomicU64::new(OUTSIDE + 1),
        records: AtomicPtr::new(ptr::null_mut()),
    };
}

/// The record of one thread. It has its own cache lines, because every call of the thread writes it.
struct Record {
    entered: CachePadded<AtomicU64>,
    /// The number of nested pins of the thread. Only the thread itself reads or writes it.
    nested: Cell<usize>,
    in_use: AtomicBool,
    /// The number of records before this one. The counters of the thread are indexed by it.
    number: usize,
    next: *mut Record,
}

thread_cell! {
    /// This thread's record, or null before its first pin.
    static OWN_RECORD: Cell<*const Record> = Cell::new(ptr::null());
}

/// While it exists, nothing that its thread can reach is freed.
///
/// A pin belongs to its thread. A thread can have several; the last one to be dropped ends the protection. Hold a pin
/// for milliseconds at most: it delays the freeing of memory, and nothing else.
pub struct Pin {
    record: *const Record,
    _not_send: PhantomData<*const ()>,
}

/// Pins this thread. Costs a thread-local read, a load and a store (3 ns) with `membarrier(2)`, and a full fence
/// without it.
///
/// The first pin of a thread allocates its record: 256 bytes that are never freed. If there is no memory for it, the
/// process aborts, as it would have at the start of the thread.
#[inline(always)]
pub fn pin() -> Pin {
    let mut record = OWN_RECORD.with(Cell::get);
    if record.is_null() {
        record = assign_record();
    }
    // SAFETY: records are never freed, and this one belongs to this thread.
    let own = unsafe { &*record };
    // Relaxed: only this thread writes it.
    if own.entered.load(Ordering::Relaxed) != OUTSIDE {
        own.nested.set(own.nested.get() + 1);
    } else {
        // Acquire: E3.
        let epoch = DOMAIN
            .epoch
            .load(ordering("e3_epoch_read_relaxed", Ordering::Acquire));
        // Release: E4. The sweep can read this store instead of the one with which the thread left before.
        own.entered.store(
            epoch,
            ordering("e4_entered_stored_relaxed", Ordering::Release),
        );
        barrier::light(own.number);
    }
    Pin {
        record,
        _not_send: PhantomData,
    }
}

impl Pin {
    /// The number of this thread, unique among the living threads. Numbers are small: the number of a thread that ended
    /// is reused.
    #[inline(always)]
    pub fn thread(&self) -> usize {
        // SAFETY: records are never freed.
        unsafe { &*self.record }.number
    }
}

impl Drop for Pin {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: records are never freed, and a pin stays on its thread.
        let own = unsafe { &*self.record };
        let nested = own.nested.get();
        if nested > 0 {
            own.nested.set(nested - 1);
        } else {
            // Release: E4.
            let ordering = ordering("e4_left_relaxed", Ordering::Release);
            own.entered.store(OUTSIDE, ordering);
        }
    }
}

/// Ends the current epoch and returns its number: the stamp of everything that the caller unlinked before this call.
pub fn stamp() -> u64 {
    // AcqRel: its Release half is E3.
    let ordering = ordering("e3_stamped_relaxed", Ordering::AcqRel);
    DOMAIN.epoch.fetch_add(1, ordering)
}

/// Returns a limit: nothing with a smaller stamp, given before this call, can be reached by any thread. The caller may
/// free it. Stamps start at 1, so the result 0 allows nothing to be freed.
pub fn quiet_before() -> u64 {
    if !barrier::heavy() {
        return OUTSIDE;
    }
    let mut oldest = u64::MAX;
    for record in records() {
        // Acquire: E4.
        let ordering = ordering("e4_entered_read_relaxed", Ordering::Acquire);
        match record.entered.load(ordering) {
            OUTSIDE => {}
            entered => oldest = oldest.min(entered),
        }
    }
    oldest
}

fn records() -> impl Iterator<Item = &'static Record> {
    // SAFETY: records are never freed.
    let newest = unsafe { DOMAIN.records.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    iter::successors(newest, |record| unsafe { record.next.as_ref() })
}

#[cold]
fn assign_record() -> *const Record {
    barrier::choose();
    let free = records().find(|record| {
        record
            .in_use
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    });
    let record = free.map_or_else(new_record, ptr::from_ref);
    OWN_RECORD.with(|own| own.set(record));
    // In a loom build, records last for one execution, and loom's threads do not own the thread-locals of the system.
    if cfg!(not(loom)) {
        THREAD_EXIT.with(|thread_exit| thread_exit.0.set(record));
    }
    record
}

fn new_record() -> *const Record {
    let record = Box::into_raw(Box::new(Record {
        entered: CachePadded::new(AtomicU64::new(OUTSIDE)),
        nested: Cell::new(0),
        in_use: AtomicBool::new(true),
        number: 0,
        next: ptr::null_mut(),
    }));
    // Acquire: the number of the newest record is read below.
    let mut newest = DOMAIN.records.load(Ordering::Acquire);
    loop {
        // SAFETY: records are never freed.
        let number = unsafe { newest.as_ref() }.map_or(0, |newest| newest.number + 1);
        // SAFETY: the record belongs to this thread alone until the exchange succeeds.
        unsafe { ((*record).next, (*record).number) = (newest, number) };
        match DOMAIN.records.compare_exchange_weak(
            newest,
            record,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return record,
            Err(now) => newest = now,
        }
    }
}

/// A thread that ends leaves its record to a new thread.
struct ThreadExit(Cell<*const Record>);

std::thread_local! {
    static THREAD_EXIT: ThreadExit = const { ThreadExit(Cell::new(ptr::null())) };
}

impl Drop for ThreadExit {
    fn drop(&mut self) {
        // SAFETY: records are never freed.
        if let Some(record) = unsafe { self.0.get().as_ref() } {
            OWN_RECORD.with(|own| own.set(ptr::null()));
            record.in_use.store(false, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    /// Other tests run at the same time and pin in the same domain. So this asserts only what its own pin implies.
    #[test]
    fn e1_pin_delays_the_free_of_nodes_unlinked_after_it() {
        let check = || {
            let _inside = pin();
            let stamp = stamp();
            assert!(quiet_before() <= stamp, "the pin is older than the stamp");
        };
        check();
        // With a second record: this thread keeps its own, so one of the two is not the newest.
        thread::spawn(check).join().unwrap();
        check();
    }

    #[test]
    fn e3_pin_after_the_stamp_delays_nothing() {
        let stamp = stamp();
        let _pin = pin();
        while quiet_before() <= stamp {
            thread::yield_now();
        }
    }

    /// E5, and the number of a thread that has ended is reused.
    #[test]
    fn e5_numbers_are_unique_and_reused() {
        let own = pin().thread();
        for _ in 0..500 {
            let other = thread::spawn(|| pin().thread()).join().unwrap();
            assert_ne!(other, own);
            assert!(
                other < 300,
                "as many as live at once, with those of other tests"
            );
        }
    }
}
