//! Every interleaving of two threads, with the real code: `make test` runs them with `--cfg loom`.
//!
//! A model is explored up to three preemptions, which is where loom's authors say that nearly all bugs show. What is
//! freed is poisoned first, so that a thread which still looks at it fails the model instead of reading on.
#![cfg(loom)]

mod common;

use common::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicPtr, Ordering};
use loom::sync::Arc;
use loom::thread;
use permit_table::{pin, quiet_before, stamp, Table};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(body);
}

fn table() -> Arc<Table<Name>> {
    Arc::new(Table::new(2).unwrap())
}

/// Runs `other` on a thread beside `here`.
fn beside<T: 'static>(
    table: &Arc<Table<Name>>,
    other: impl FnOnce(&Table<Name>) -> T + 'static,
    here: impl FnOnce(&Table<Name>),
) -> T {
    let shared = Arc::clone(table);
    let thread = thread::spawn(move || other(&shared));
    here(table);
    thread.join().unwrap()
}

/// E1–E4: what a pinned thread can find is not freed under it.
#[test]
fn e2_nothing_is_freed_while_somebody_looks() {
    model(|| {
        let first = Box::into_raw(Box::new(UnsafeCell::new(1)));
        let place = Arc::new(AtomicPtr::new(first));
        let reader = {
            let place = Arc::clone(&place);
            thread::spawn(move || {
                let _pin = pin();
                let found = place.load(Ordering::Acquire);
                if let Some(found) = unsafe { found.as_ref() } {
                    found.with(|value| assert_eq!(unsafe { *value }, 1));
                }
            })
        };
        place.store(std::ptr::null_mut(), Ordering::Release);
        let stamp = stamp();
        let quiet = stamp < quiet_before();
        // To write is to free: loom fails the model if a read is not ordered before it.
        if quiet {
            unsafe { (*first).with_mut(|value| *value = 0) };
        }
        reader.join().unwrap();
        drop(unsafe { Box::from_raw(first) });
    });
}

/// E4: what a thread has looked at is not freed before that look is over, though it has entered again since.
#[test]
fn e4_what_is_looked_at_before_a_thread_enters_again_is_freed_after_it() {
    model(|| {
        let first = Box::into_raw(Box::new(UnsafeCell::new(1)));
        let place = Arc::new(AtomicPtr::new(first));
        let sweep = {
            let place = Arc::clone(&place);
            thread::spawn(move || {
                place.store(std::ptr::null_mut(), Ordering::Release);
                let stamp = stamp();
                if stamp < quiet_before() {
                    unsafe { (*first).with_mut(|value| *value = 0) };
                }
            })
        };
        for _ in 0..2 {
            let _pin = pin();
            let found = place.load(Ordering::Acquire);
            if let Some(found) = unsafe { found.as_ref() } {
                found.with(|value| assert_eq!(unsafe { *value }, 1));
            }
        }
        sweep.join().unwrap();
        drop(unsafe { Box::from_raw(first) });
    });
}

#[test]
fn p1_two_acquire_the_last_permit() {
    model(|| {
        let table = table();
        acquire(&table, holder(2), 1, 2).unwrap();
        let mut mine = None;
        let other = beside(
            &table,
            |t| acquire(t, holder(0), 1, 2),
            |t| mine = acquire(t, holder(1), 1, 2),
        );
        assert!(matches!((mine, other), (Some(2), None) | (None, Some(2))));
        assert_eq!(count(&table, 1), 2);
    });
}

#[test]
fn p1_two_create_one_key() {
    model(|| {
        let table = table();
        let mut mine = None;
        let other = beside(
            &table,
            |t| acquire(t, holder(0), 1, 2),
            |t| mine = acquire(t, holder(1), 1, 2),
        );
        assert!(matches!(
            (mine, other),
            (Some(1), Some(2)) | (Some(2), Some(1))
        ));
        assert_eq!(table.usage().keys, 1);
    });
}

#[test]
fn p1_a_release_admits_the_next() {
    model(|| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        let mut mine = None;
        beside(
            &table,
            |t| release(t, holder(0), 1).unwrap(),
            |t| mine = acquire(t, holder(1), 1, 1),
        );
        assert_eq!(count(&table, 1), u64::from(mine.is_some()));
        if mine.is_none() {
            assert_eq!(acquire(&table, holder(1), 1, 1), Some(1));
        }
    });
}

#[test]
fn p4_a_death_admits_the_next() {
    model(|| {
        let table = table();
        for key in 0..3 {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        let mut mine = None;
        beside(
            &table,
            |t| assert_eq!(t.give_back(&pin(), holder(0)).permits, 3),
            |t| mine = acquire(t, holder(1), 1, 1),
        );
        assert_eq!(table.usage().permits, u64::from(mine.is_some()));
    });
}

#[test]
fn p6_one_grows_what_the_other_finds_full() {
    model(|| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        let mut mine = None;
        let other = beside(
            &table,
            |t| acquire(t, holder(0), 1, 2),
            |t| mine = acquire(t, holder(1), 1, 1),
        );
        assert_eq!((mine, other), (None, Some(2)));
    });
}

#[test]
fn p8_a_key_dies_while_it_is_acquired() {
    model(|| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        release(&table, holder(0), 1).unwrap();
        sweep(&table);
        let mut mine = None;
        beside(
            &table,
            |t| t.sweep_step(8),
            |t| mine = acquire(t, holder(1), 1, 1),
        );
        assert_eq!(mine, Some(1), "nobody holds it");
        assert_eq!(count(&table, 1), 1);
        assert_eq!(acquire(&table, holder(0), 1, 1), None);
        release(&table, holder(1), 1).unwrap();
        for _ in 0..3 {
            sweep(&table);
        }
        assert_eq!(table.usage().keys, 0);
    });
}

#[test]
fn p8_a_key_dies_between_two_that_come() {
    model(|| {
        let table = table();
        // One bucket after another gets its first key while the sweep takes a neighbour out.
        acquire(&table, holder(0), 1, 1).unwrap();
        release(&table, holder(0), 1).unwrap();
        sweep(&table);
        beside(
            &table,
            |t| t.sweep_step(8),
            |t| {
                for key in 2..4 {
                    assert_eq!(acquire(t, holder(1), key, 1), Some(1));
                }
            },
        );
        for key in 2..4 {
            assert_eq!(count(&table, key), 1, "key {key}");
        }
    });
}

#[test]
fn p8_heads_are_closed_while_a_key_comes() {
    model(|| {
        let table = table();
        // Enough keys to double the buckets, and then none.
        for key in 0..5 {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        table.give_back(&pin(), holder(0));
        sweep(&table);
        beside(
            &table,
            |t| {
                for _ in 0..2 {
                    t.sweep_step(8);
                }
            },
            |t| assert_eq!(acquire(t, holder(1), 9, 1), Some(1)),
        );
        assert_eq!(count(&table, 9), 1);
        sweep(&table);
        assert_eq!(count(&table, 9), 1);
        assert_eq!(table.usage().keys, 1);
    });
}

#[test]
fn a_look_from_outside_beside_a_death() {
    model(|| {
        let table = table();
        for key in 0..3 {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        beside(
            &table,
            |t| t.usage().permits,
            |t| assert!(t.give_back(&pin(), holder(0)).keys <= 3),
        );
        assert_eq!(table.usage().permits, 0);
    });
}

/// H2: what is seen on a record from outside is there as long as it is looked at, though it is released, swept and
/// freed meanwhile.
#[test]
fn a_look_from_outside_beside_a_release_and_the_sweep() {
    model(|| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        beside(
            &table,
            |t| {
                release(t, holder(0), 1).unwrap();
                for _ in 0..8 {
                    t.sweep_step(8);
                }
            },
            |t| assert!(on_record(t).values().all(|permits| *permits == 1)),
        );
        assert!(on_record(&table).is_empty());
    });
}

/// A key that moves in its holder's record, from one entry to the other or beyond them, is told once. The look is on the
/// other thread: loom does not let a store come before another thread's load that it has run already.
#[test]
fn a_look_from_outside_beside_a_key_that_moves() {
    for beyond in [false, true] {
        model(move || {
            let table = table();
            for key in [1, 2] {
                acquire(&table, holder(0), key, 1).unwrap();
            }
            beside(
                &table,
                |t| drop(on_record(t)),
                |t| {
                    release(t, holder(0), 1).unwrap();
                    acquire(t, holder(0), 3, 1).unwrap();
                    if !beyond {
                        release(t, holder(0), 2).unwrap();
                    }
                    acquire(t, holder(0), 1, 1).unwrap();
                },
            );
            assert_eq!(on_record(&table).len(), if beyond { 3 } else { 2 });
        });
    }
}

/// The permits of one key are not told of the next one in its place.
#[test]
fn a_look_from_outside_beside_another_key_in_the_same_place() {
    model(|| {
        let table = table();
        for _ in 0..2 {
            acquire(&table, holder(0), 1, 2).unwrap();
        }
        beside(
            &table,
            |t| {
                for ((_, key), permits) in on_record(t) {
                    assert!(permits <= if key == 1 { 2 } else { 1 });
                }
            },
            |t| {
                for _ in 0..2 {
                    release(t, holder(0), 1).unwrap();
                }
                acquire(t, holder(0), 2, 1).unwrap();
            },
        );
    });
}
