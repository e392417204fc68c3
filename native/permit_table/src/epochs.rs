//! Who may still be looking: when may unlinked memory be freed?
//!
//! Epoch-based reclamation (Fraser 2004), made asymmetric: callers, who come millions of times a second, pay a plain
//! store and a plain store; the sweep, which comes once in a while, pays for both sides with `membarrier(2)`.
//!
//! ```text
//!   caller                                   sweep
//!   ------                                   -----
//!   entered := EPOCH     (1)                 unlink things                    (a)
//!   -- compiler fence --                     stamp  := EPOCH, EPOCH + 1       (b)
//!   read pointers, use what they name (2)    membarrier: a full fence in every running thread of the process
//!   entered := 0         (3)                 oldest := min of all entered     (c)
//!                                            free what has stamp < oldest
//! ```
//!
//! Invariants, and why it is sound:
//! - **E1** A thread that is inside shows in `entered` an epoch no younger than the one it entered in. Further pins
//!   of the same thread keep that one, and it leaves with the last of them.
//! - **E2** The barrier falls somewhere in the caller's program: before (1), and then (2) sees the unlinking (a), so
//!   it cannot find the thing; or after (1), and then (c) sees that it is inside. The compiler may not move (2) above
//!   (1); the processor may, and that is what the barrier mends.
//! - **E3** A thread whose `entered` is greater than a stamp has read (Acquire) the increment (b) (Release), so it
//!   sees (a) and cannot find what bears that stamp.
//! - **E4** (3) is a Release store and (c) an Acquire load: the last use of a thing comes before its freeing. So is
//!   (1): (c) may find that the thread has entered again, in a later epoch, and nothing of (3) any more.
//!
//! `barrier.rs` has the two halves of the barrier: where there is no `membarrier`, both sides use a full fence; if the
//! kernel refuses the barrier, nothing is freed until it grants one again. The models run with either kind.
//!
//! A general crate was measured first: a pin of crossbeam-epoch or of seize costs 8 ns on the machine of the
//! prototype, this one 3 ns, half of them for the thread-local, and a call of this library has about 20 to spend. It
//! also frees where its caller happens to be; here only the sweep frees, and the manager of a closed table.

use crate::barrier;
use crate::sync::{
    global, ordering, seeded, thread_cell, AtomicBool, AtomicPtr, AtomicU64, Ordering,
};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::iter;
use std::marker::PhantomData;
use std::ptr;

/// `entered` of a thread that is outside. Epochs start above it.
const OUTSIDE: u64 = 0;

struct Domain {
    /// Grows by one with each batch of unlinked things.
    epoch: AtomicU64,
    /// All records ever made, newest first. They are never freed: the VM's threads are few and long-lived, and a
    /// thread that ends leaves its record to the next one.
    records: AtomicPtr<Record>,
}

global! {
    static DOMAIN: Domain = Domain {
        epoch: AtomicU64::new(OUTSIDE + 1),
        records: AtomicPtr::new(ptr::null_mut()),
    };
}

/// One thread's place. On cache lines of its own: it is written by every call of its thread.
struct Record {
    entered: CachePadded<AtomicU64>,
    /// How many pins of the thread live beside the first. Its own business.
    further: Cell<usize>,
    taken: AtomicBool,
    /// How many there were before it: what its thread is counted by.
    number: usize,
    next: *mut Record,
}

thread_cell! {
    /// This thread's record, or null before its first pin.
    static OWN_RECORD: Cell<*const Record> = Cell::new(ptr::null());
}

/// As long as it lives, nothing that its thread can find is freed.
///
/// It belongs to its thread. Several can be had at once, and the last to go counts. Hold one for microseconds: what
/// it holds up is the freeing of memory, nothing else.
pub struct Pin {
    record: *const Record,
    _not_send: PhantomData<*const ()>,
}

/// Enters. Costs a thread-local read, a load and a store (3 ns) where there is `membarrier(2)`, a full fence
/// elsewhere.
///
/// The first pin of a thread allocates its record, 256 bytes once and for ever. It is the one allocation in this
/// crate that aborts when there is no memory, as a thread's own start would have.
#[inline(always)]
pub fn pin() -> Pin {
    let mut record = OWN_RECORD.with(Cell::get);
    if record.is_null() {
        record = adopt_record();
    }
    // SAFETY: records are never freed, and this one is this thread's.
    let own = unsafe { &*record };
    // Relaxed: only this thread writes it.
    if own.entered.load(Ordering::Relaxed) != OUTSIDE {
        own.further.set(own.further.get() + 1);
    } else {
        // Acquire: E3.
        let order = ordering("e3_entered_by_a_relaxed_load", Ordering::Acquire);
        let epoch = DOMAIN.epoch.load(order);
        // Release: E4. Who reads it may do so instead of what this thread wrote when it left the last time.
        let order = ordering("e4_entered_again_relaxed", Ordering::Release);
        own.entered.store(epoch, order);
        barrier::light(own.number);
    }
    Pin {
        record,
        _not_send: PhantomData,
    }
}

impl Pin {
    /// The number of this thread, which no other thread has while it lives. Numbers are small: one that is free is
    /// given again.
    #[inline(always)]
    pub(crate) fn thread(&self) -> usize {
        // SAFETY: records are never freed.
        unsafe { &*self.record }.number
    }
}

/// [`Pin::thread`], for models.
#[cfg(loom)]
pub fn thread_of(pin: &Pin) -> usize {
    pin.thread()
}

impl Drop for Pin {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: records are never freed, and this one is this thread's: a pin does not leave its thread.
        let own = unsafe { &*self.record };
        let further = own.further.get();
        if further > 0 && !seeded("e1_left_with_the_first_pin") {
            own.further.set(further - 1);
        } else {
            // Release: E4.
            let order = ordering("e4_left_relaxed", Ordering::Release);
            own.entered.store(OUTSIDE, order);
        }
    }
}

/// The stamp for everything that has been unlinked before this call.
pub fn stamp() -> u64 {
    // AcqRel: its Release half is E3.
    let step = u64::from(!seeded("e3_stamped_without_counting"));
    let order = ordering("e3_stamped_relaxed", Ordering::AcqRel);
    DOMAIN.epoch.fetch_add(step, order)
}

/// What bears a stamp smaller than this one, given before the call, can be found by nobody: free it.
/// Stamps start at 1, so a 0 frees nothing.
pub fn quiet_before() -> u64 {
    if !barrier::heavy() {
        return OUTSIDE;
    }
    let mut oldest = u64::MAX;
    for record in records() {
        // Acquire: E4.
        let order = ordering("e4_looked_relaxed", Ordering::Acquire);
        match record.entered.load(order) {
            OUTSIDE => {}
            entered if seeded("e2_quiet_too_soon") => oldest = oldest.min(entered + 1),
            entered => oldest = oldest.min(entered),
        }
    }
    oldest
}

/// All records, newest first.
fn records() -> impl Iterator<Item = &'static Record> {
    // SAFETY: records are never freed.
    let newest = unsafe { DOMAIN.records.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    iter::successors(newest, |record| unsafe { record.next.as_ref() })
}

#[cold]
fn adopt_record() -> *const Record {
    barrier::choose();
    let record = free_record().unwrap_or_else(new_record);
    OWN_RECORD.with(|own| own.set(record));
    departure::note(record);
    record
}

fn free_record() -> Option<*const Record> {
    let free = records().find(|record| {
        record
            .taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    });
    free.map(ptr::from_ref)
}

fn new_record() -> *const Record {
    let record = Box::into_raw(Box::new(Record {
        entered: CachePadded::new(AtomicU64::new(OUTSIDE)),
        further: Cell::new(0),
        taken: AtomicBool::new(true),
        number: 0,
        next: ptr::null_mut(),
    }));
    // Acquire: the number of the newest is read below.
    let mut newest = DOMAIN.records.load(Ordering::Acquire);
    loop {
        // SAFETY: records are never freed.
        let number = unsafe { newest.as_ref() }.map_or(0, |newest| newest.number + 1);
        // SAFETY: the record is this thread's alone until the exchange succeeds.
        unsafe { ((*record).next, (*record).number) = (newest, number) };
        if seeded("e1_record_stored") {
            DOMAIN.records.store(record, Ordering::Release);
            return record;
        }
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

/// A thread that ends leaves its record to another.
mod departure {
    use super::{Ordering, Record, OWN_RECORD};
    use std::cell::Cell;
    use std::ptr;

    struct Departure(Cell<*const Record>);

    std::thread_local! {
        static DEPARTURE: Departure = const { Departure(Cell::new(ptr::null())) };
    }

    pub(super) fn note(record: *const Record) {
        // Under loom the records die with the execution, and its threads are not the ones that hold thread-locals
        // here.
        if cfg!(not(loom)) {
            DEPARTURE.with(|departure| departure.0.set(record));
        }
    }

    impl Drop for Departure {
        fn drop(&mut self) {
            // SAFETY: records are never freed.
            if let Some(record) = unsafe { self.0.get().as_ref() } {
                OWN_RECORD.with(|own| own.set(ptr::null()));
                record.taken.store(false, Ordering::Release);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    /// The domain is one per process, and other tests pin too: only what this test controls is asserted.
    #[test]
    fn a_pin_holds_back_what_was_unlinked_after_it() {
        let check = || {
            let _inside = pin();
            let stamp = stamp();
            assert!(quiet_before() <= stamp, "a pin is older than the stamp");
        };
        check();
        // By another record: this thread keeps its own, and one of the two is not the newest.
        thread::spawn(check).join().unwrap();
        check();
    }

    #[test]
    fn a_pin_taken_after_the_stamp_holds_nothing_back() {
        let stamp = stamp();
        let _pin = pin();
        while quiet_before() <= stamp {
            thread::yield_now();
        }
    }

    /// What it is counted by (`tally.rs`), on the condition that no two write one place.
    #[test]
    fn each_thread_has_a_number_of_its_own_and_leaves_it_to_the_next() {
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
