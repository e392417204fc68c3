//! Models of acquire, release and the capacity of the call.

use super::*;
use common::*;
use loom::cell::UnsafeCell;
use permit_table::pin;

#[test]
fn p1_two_acquire_the_last_permit() {
    model(2, 5, |first| {
        let table = table();
        acquire(&table, holder(2), 1, 2).unwrap();
        let granted = first.two(&table, take(0, 1, 2), take(1, 1, 2));
        assert!(matches!(granted, (Some(2), None) | (None, Some(2))));
        assert_eq!(count(&table, 1), 2);
    });
}

#[test]
fn p1_three_acquire_the_last_two_permits() {
    // The three sides are alike, so it does not matter which one goes first.
    model(1, 2, |first| {
        let table = table();
        acquire(&table, holder(3), 1, 3).unwrap();
        let sides = [0, 1, 2].map(|number| side(take(number, 1, 3)));
        let mut granted = first.three(&table, sides);
        granted.sort();
        assert_eq!(granted, [None, Some(2), Some(3)]);
        assert_eq!(count(&table, 1), 3);
    });
}

#[test]
fn p1_two_insert_one_key() {
    model(2, 3, |first| {
        let table = table();
        let granted = first.two(&table, take(0, 1, 2), take(1, 1, 2));
        assert!(matches!(granted, (Some(1), Some(2)) | (Some(2), Some(1))));
        assert_eq!(table.usage().keys, 1);
    });
}

#[test]
fn p1_two_insert_keys_in_one_range() {
    model(2, 3, |first| {
        let table = table();
        let granted = first.two(&table, take(0, 1, 1), take(1, 2, 1));
        assert_eq!(granted, (Some(1), Some(1)));
        assert_eq!((count(&table, 1), count(&table, 2)), (1, 1));
        assert_eq!(table.usage().keys, 2);
    });
}

#[test]
fn p1_release_during_acquire() {
    model(2, 5, |first| {
        let table = held_by_0([1]);
        let release = |t: &_| release(t, holder(0), 1).unwrap();
        let (_, granted) = first.two(&table, release, take(1, 1, 2));
        assert!(matches!(granted, Some(1 | 2)));
        assert_eq!(count(&table, 1), 1);
    });
}

/// A table, and data that only the holder of a permit may access.
struct Guarded {
    table: Table<Name>,
    by_permit: UnsafeCell<u64>,
}

fn guarded() -> Arc<Guarded> {
    Arc::new(Guarded {
        table: Table::new(2).unwrap(),
        by_permit: UnsafeCell::new(0),
    })
}

impl Guarded {
    /// loom fails the model unless this is ordered after the previous access. (The caller, and the calls before and
    /// after it, must be pinned: otherwise the fence of a first pin could order what the word must order.)
    fn touch(&self) {
        // SAFETY: the caller has the permit.
        self.by_permit.with_mut(|touched| unsafe { *touched += 1 });
    }
}

#[test]
fn p1_release_publishes_writes_to_the_next_holder() {
    model(2, 5, |first| {
        let guarded = guarded();
        acquire(&guarded.table, holder(0), 1, 1).unwrap();
        let (_, granted) = first.two(
            &guarded,
            |g| {
                let _pin = pin();
                g.touch();
                release(&g.table, holder(0), 1).unwrap();
            },
            |g| {
                let _pin = pin();
                let granted = acquire(&g.table, holder(1), 1, 1);
                granted.inspect(|_| g.touch())
            },
        );
        assert_eq!(count(&guarded.table, 1), u64::from(granted.is_some()));
        if granted.is_none() {
            assert_eq!(acquire(&guarded.table, holder(1), 1, 1), Some(1));
        }
    });
}

#[test]
fn p1_acquire_sees_writes_of_the_previous_holder() {
    model(2, 5, |first| {
        let guarded = guarded();
        // Creates the key.
        acquire(&guarded.table, holder(0), 1, 1).unwrap();
        release(&guarded.table, holder(0), 1).unwrap();
        let once = |number| {
            move |g: &Guarded| {
                let _pin = pin();
                if acquire(&g.table, holder(number), 1, 1).is_some() {
                    g.touch();
                    release(&g.table, holder(number), 1).unwrap();
                }
            }
        };
        first.two(&guarded, once(0), once(1));
        assert_eq!(count(&guarded.table, 1), 0);
    });
}

#[test]
fn p1_acquire_during_release_and_sweep() {
    model(3, 3, |first| {
        let table = held_by_0([1]);
        first.three(
            &table,
            [
                side(|t| assert!(matches!(acquire(t, holder(1), 1, 2), Some(1 | 2)))),
                side(|t| release(t, holder(0), 1).unwrap()),
                side(steps(1)),
            ],
        );
        assert_eq!(count(&table, 1), 1);
        assert_eq!(acquire(&table, holder(2), 1, 1), None);
    });
}

#[test]
fn p6_larger_capacity_admits_while_smaller_is_full() {
    model(2, 5, |first| {
        let table = held_by_0([1]);
        let granted = first.two(&table, take(1, 1, 1), take(0, 1, 2));
        assert_eq!(granted, (None, Some(2)));
    });
}

#[test]
fn p6_two_acquire_with_different_capacities() {
    model(2, 5, |first| {
        let table = table();
        // Creates the key.
        acquire(&table, holder(0), 1, 1).unwrap();
        release(&table, holder(0), 1).unwrap();
        let granted = first.two(&table, take(0, 1, 1), take(1, 1, 2));
        assert!(matches!(granted, (Some(1), Some(2)) | (None, Some(1))));
    });
}
