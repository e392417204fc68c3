//! Who may still be looking: pins and stamps.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicPtr, Ordering};
use permit_table::{pin, quiet_before, stamp, thread_of};

/// Each of these models, with either barrier.
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
    e1_a_thread_is_inside_until_the_last_of_its_pins_has_gone,
    e1_two_threads_that_pin_for_the_first_time_are_both_inside,
    e1_two_threads_that_pin_for_the_first_time_have_different_numbers,
    e2_nothing_is_freed_while_somebody_looks,
    e3_a_pin_that_comes_after_the_stamp_holds_nothing_up,
    e4_what_is_looked_at_before_a_thread_enters_again_is_freed_after_it,
}

/// A place with something in it that is taken out and freed.
struct Place {
    way: AtomicPtr<UnsafeCell<u64>>,
    first: *mut UnsafeCell<u64>,
}

impl Place {
    fn new() -> Arc<Self> {
        // Makes the domain. Otherwise the side that makes it would be ordered before the other one.
        quiet_before();
        let first = Box::into_raw(Box::new(UnsafeCell::new(1)));
        let way = AtomicPtr::new(first);
        Arc::new(Self { way, first })
    }

    /// The caller is pinned.
    fn look(&self) {
        let found = self.way.load(Ordering::Acquire);
        // SAFETY: it is freed with the place only.
        if let Some(found) = unsafe { found.as_ref() } {
            // SAFETY: loom fails the model if this is not ordered before the writing.
            found.with(|value| assert_eq!(unsafe { *value }, 1));
        }
    }

    fn take_out_and_free(&self) {
        self.way.store(std::ptr::null_mut(), Ordering::Release);
        let stamp = stamp();
        if stamp < quiet_before() {
            // SAFETY: to write is to free: loom fails the model if a look is not ordered before it.
            unsafe { (*self.first).with_mut(|value| *value = 0) };
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: from `new`; both sides are over.
        drop(unsafe { Box::from_raw(self.first) });
    }
}

/// E1 to E4: what a pinned thread can find is not freed under it.
fn e2_nothing_is_freed_while_somebody_looks(barrier: Barrier) {
    model_with(barrier, 2, 5, |sides| {
        sides.beside(
            &Place::new(),
            |place| {
                let _pin = pin();
                place.look();
            },
            Place::take_out_and_free,
        );
    });
}

fn e1_a_thread_is_inside_until_the_last_of_its_pins_has_gone(barrier: Barrier) {
    model_with(barrier, 2, 5, |sides| {
        sides.beside(
            &Place::new(),
            |place| {
                let _outer = pin();
                drop(pin());
                place.look();
            },
            Place::take_out_and_free,
        );
    });
}

fn e4_what_is_looked_at_before_a_thread_enters_again_is_freed_after_it(barrier: Barrier) {
    model_with(barrier, 2, 5, |sides| {
        sides.beside(
            &Place::new(),
            |place| {
                for _ in 0..2 {
                    let _pin = pin();
                    place.look();
                }
            },
            Place::take_out_and_free,
        );
    });
}

fn e1_two_threads_that_pin_for_the_first_time_are_both_inside(barrier: Barrier) {
    model_with(barrier, 3, 2, |sides| {
        let look = || {
            side(|place: &Place| {
                let _pin = pin();
                place.look();
            })
        };
        sides.three(
            &Place::new(),
            [look(), look(), side(Place::take_out_and_free)],
        );
    });
}

/// By its number a thread counts (`tally.rs`), on the condition that no other thread has it.
fn e1_two_threads_that_pin_for_the_first_time_have_different_numbers(barrier: Barrier) {
    model_with(barrier, 2, 5, |sides| {
        let number = |_: &()| thread_of(&pin());
        let (one, other) = sides.beside(&Arc::new(()), number, number);
        assert_ne!(one, other);
    });
}

fn e3_a_pin_that_comes_after_the_stamp_holds_nothing_up(barrier: Barrier) {
    model_with(barrier, 2, 5, |sides| {
        let stamp = stamp();
        sides.beside(
            &Arc::new(()),
            |()| drop(pin()),
            move |()| {
                let _pin = pin();
                assert!(stamp < quiet_before());
            },
        );
    });
}
