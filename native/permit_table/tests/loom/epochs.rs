//! Models of pins and stamps (E1 to E4).

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicPtr, Ordering};
use permit_table::{pin, quiet_before, stamp};

/// Runs each of these models with both barriers.
macro_rules! with_both_barriers {
    ($($name:ident),+ $(,)?) => {
        mod membarrier {
            $(#[test]
            fn $name() {
                super::$name(super::Barrier::Membarrier);
            })+
        }
        mod fences {
            $(#[test]
            fn $name() {
                super::$name(super::Barrier::Fences);
            })+
        }
    };
}

with_both_barriers! {
    e1_nested_pin_does_not_end_the_outer_one,
    e1_first_pins_of_two_threads_both_count,
    e5_first_pins_of_two_threads_get_different_numbers,
    e2_reads_under_a_pin_precede_the_free,
    e3_pin_after_the_stamp_delays_no_free,
    e4_reads_under_an_earlier_pin_precede_the_free,
}

/// A pointer to a value that is unlinked and freed.
struct Place {
    pointer: AtomicPtr<UnsafeCell<u64>>,
    first: *mut UnsafeCell<u64>,
}

impl Place {
    fn new() -> Arc<Self> {
        // Creates the domain. Otherwise the side that creates it would be ordered before the other one.
        quiet_before();
        let first = Box::into_raw(Box::new(UnsafeCell::new(1)));
        let pointer = AtomicPtr::new(first);
        Arc::new(Self { pointer, first })
    }

    /// Reads the value. The caller is pinned.
    fn read(&self) {
        let found = self.pointer.load(Ordering::Acquire);
        // SAFETY: it is freed together with the place.
        if let Some(found) = unsafe { found.as_ref() } {
            // SAFETY: loom fails the model if this is not ordered before the write.
            found.with(|value| assert_eq!(unsafe { *value }, 1));
        }
    }

    fn read_pinned(&self) {
        let _pin = pin();
        self.read();
    }

    fn unlink_and_free(&self) {
        self.pointer.store(std::ptr::null_mut(), Ordering::Release);
        let stamp = stamp();
        if stamp < quiet_before() {
            // SAFETY: the write represents freeing. loom fails the model if a read is not ordered before it.
            unsafe { (*self.first).with_mut(|value| *value = 0) };
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: from `new`; both sides have ended.
        drop(unsafe { Box::from_raw(self.first) });
    }
}

/// E1 to E4: what a pinned thread can reach is not freed.
fn reads_precede_the_free(barrier: Barrier, read: fn(&Place)) {
    model_with(barrier, 2, 5, move |first| {
        first.two(&Place::new(), read, Place::unlink_and_free);
    });
}

fn e2_reads_under_a_pin_precede_the_free(barrier: Barrier) {
    reads_precede_the_free(barrier, Place::read_pinned);
}

fn e1_nested_pin_does_not_end_the_outer_one(barrier: Barrier) {
    reads_precede_the_free(barrier, |place| {
        let _outer = pin();
        drop(pin());
        place.read();
    });
}

fn e4_reads_under_an_earlier_pin_precede_the_free(barrier: Barrier) {
    reads_precede_the_free(barrier, |place| {
        for _ in 0..2 {
            place.read_pinned();
        }
    });
}

fn e1_first_pins_of_two_threads_both_count(barrier: Barrier) {
    model_with(barrier, 3, 2, |first| {
        let [one, other] = [0, 1].map(|_| side(Place::read_pinned));
        first.three(&Place::new(), [one, other, side(Place::unlink_and_free)]);
    });
}

/// The counters of a thread are indexed by its number (`counters.rs`), so no other thread may have it.
fn e5_first_pins_of_two_threads_get_different_numbers(barrier: Barrier) {
    model_with(barrier, 2, 5, |first| {
        let number = |_: &()| pin().thread();
        let (one, other) = first.two(&Arc::new(()), number, number);
        assert_ne!(one, other);
    });
}

fn e3_pin_after_the_stamp_delays_no_free(barrier: Barrier) {
    model_with(barrier, 2, 5, |first| {
        let stamp = stamp();
        first.two(
            &Arc::new(()),
            |()| drop(pin()),
            move |()| {
                let _pin = pin();
                assert!(stamp < quiet_before());
            },
        );
    });
}
