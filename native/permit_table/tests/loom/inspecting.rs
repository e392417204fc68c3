//! Models of inspection during other calls. Everything reported was true at some moment.

use super::*;
use common::*;
use permit_table::{pin, Cursor};
use std::collections::BTreeMap;

#[test]
fn o4_usage_during_a_death() {
    model(2, 5, |first| {
        let table = held_by_0(0..3);
        let (usage, released) = first.two(&table, |t| t.usage(), |t| die(t, holder(0)));
        assert!(usage.permits <= 3 && usage.holders <= 1);
        assert_eq!(released, 3);
        assert_eq!((permits(&table), table.usage().holders), (0, 0));
    });
}

/// A side in which the holder at a place dies, and the next process at that place acquires a key.
fn take_over(place: u64, key: u64) -> impl Fn(&Table<Name>) {
    move |table| {
        die(table, holder(place));
        acquire(table, displaced_holder(5, place), key, 2).unwrap();
    }
}

#[test]
fn h1_all_permits_while_a_slot_changes_hands() {
    model(2, 3, |first| {
        let table = held_by_0([1]);
        let (rows, ()) = first.two(&table, all_permits, take_over(0, 2));
        let expected = [((0, 1), 1), ((5, 2), 1)];
        assert!(rows.into_iter().all(|row| expected.contains(&row)));
        assert_eq!(all_permits(&table), BTreeMap::from([expected[1]]));
    });
}

/// A slot that is read again because its process has died does not remove rows of holders that were read before it.
#[test]
fn h1_other_holders_while_a_slot_changes_hands() {
    model(2, 3, |first| {
        let table = held_by_0([1]);
        acquire(&table, holder(1), 2, 1).unwrap();
        let (rows, ()) = first.two(&table, all_permits, take_over(1, 3));
        assert_eq!(rows.get(&(0, 1)), Some(&1));
    });
}

#[test]
fn h1_holders_of_a_key_while_a_slot_changes_hands() {
    model(2, 3, |first| {
        let table = held_by_0([1]);
        // Creates the key, so that its holders can be read.
        acquire(&table, holder(1), 2, 2).unwrap();
        let read = move |t: &Table<_>| {
            let pin = pin();
            let read = t.holders_from(&pin, Cursor::default(), &NameQuery(2));
            for row in read.unwrap().0 {
                assert!([2, 6].contains(&row.holder), "holder 0 never held key 2");
                assert_eq!(row.permits, 1);
            }
        };
        first.two(&table, read, take_over(0, 2));
    });
}

#[test]
fn h1_permits_of_one_while_its_slot_changes_hands() {
    model(2, 3, |first| {
        let table = held_by_0([1]);
        let read = move |t: &Table<Name>| {
            let pin = pin();
            for row in t.held(&pin, holder(0), 0).unwrap().0 {
                assert_eq!((row.key.number(), row.permits), (1, 1));
            }
        };
        first.two(&table, read, take_over(0, 2));
    });
}

/// H2: a record that is read by another thread stays valid during the read, though the key is released, swept and
/// freed.
#[test]
fn h2_inspection_during_release_then_sweep() {
    model(2, 4, |first| {
        let table = held_by_0([1]);
        first.two(
            &table,
            |t| {
                release(t, holder(0), 1).unwrap();
                steps(8)(t);
            },
            |t| assert!(all_permits(t).values().all(|permits| *permits == 1)),
        );
        assert!(all_permits(&table).is_empty());
    });
}

/// H2, with a sweep in a thread of its own, before the release is complete.
#[test]
fn h2_inspection_during_release_and_sweep_threads() {
    model(3, 2, |first| {
        let table = held_by_0([1]);
        first.three(
            &table,
            [
                side(|t| drop(all_permits(t))),
                side(|t| release(t, holder(0), 1).unwrap()),
                // The fourth step is the first that frees.
                side(steps(4)),
            ],
        );
        assert!(all_permits(&table).is_empty());
    });
}

/// A key that moves in its holder's record, to the other inline key or to the overflow, is reported once.
#[test]
fn h2_inspection_while_a_key_is_acquired_again() {
    for beyond in [false, true] {
        model(2, 4, move |first| {
            let table = held_by_0([1, 2]);
            first.two(
                &table,
                |t| drop(all_permits(t)),
                move |t| {
                    release(t, holder(0), 1).unwrap();
                    acquire(t, holder(0), 3, 1).unwrap();
                    if !beyond {
                        release(t, holder(0), 2).unwrap();
                    }
                    acquire(t, holder(0), 1, 1).unwrap();
                },
            );
            assert_eq!(all_permits(&table).len(), if beyond { 3 } else { 2 });
        });
    }
}

/// A key that moves to the overflow because the next one needs its place is always reported.
#[test]
fn h2_inspection_while_a_key_moves_to_the_overflow() {
    model(2, 5, |first| {
        let table = held_by_0([1, 2]);
        let (rows, third) = first.two(&table, all_permits, |t| acquire(t, holder(0), 3, 1));
        assert_eq!(third, Some(1));
        assert!([1, 2].iter().all(|key| rows.get(&(0, *key)) == Some(&1)));
        assert_eq!(all_permits(&table).len(), 3);
    });
}

/// Permits are never reported for the key that was there before or comes after.
#[test]
fn h2_inspection_while_an_inline_key_changes() {
    for (before, behind, released) in [(1, 2, 0), (2, 1, 0), (1, 3, 1)] {
        model(2, 5, move |first| {
            let table = table();
            for _ in 0..before {
                acquire(&table, holder(0), 1, 3).unwrap();
            }
            first.two(
                &table,
                move |t| {
                    for ((_, key), permits) in all_permits(t) {
                        assert!(permits <= if key == 1 { before } else { behind });
                    }
                },
                move |t| {
                    // So that the fence of no other pin orders what the record must order.
                    let _pin = pin();
                    for _ in 0..before {
                        release(t, holder(0), 1).unwrap();
                    }
                    for _ in 0..behind {
                        acquire(t, holder(0), 2, 3).unwrap();
                    }
                    for _ in 0..released {
                        release(t, holder(0), 2).unwrap();
                    }
                },
            );
        });
    }
}

/// H2: a reader that sees permits sees since when their process holds permits.
#[test]
fn h2_time_of_a_process_that_begins_to_hold_permits() {
    model(2, 5, move |first| {
        const UNIT_US: u64 = 100_000;
        let table = table();
        table.advance_clock(UNIT_US);
        acquire(&table, holder(0), 1, 3).unwrap();
        release(&table, holder(0), 1).unwrap();
        table.advance_clock(2 * UNIT_US);
        first.two(
            &table,
            move |t| assert!(begun(t).values().all(|since| *since == 2 * UNIT_US)),
            |t| {
                // As above.
                let _pin = pin();
                acquire(t, holder(0), 1, 3).unwrap();
            },
        );
    });
}

/// H1: permits that a process has inherited are always reported, also while the callback checks for pid reuse.
#[test]
fn h1_inspection_during_a_death_with_pid_reuse() {
    for place in [0, 7] {
        model(2, 5, move |first| {
            let table = table();
            // Place 7 is taken.
            acquire(&table, holder(7), 7, 1).unwrap();
            let next = displaced_holder(0, place);
            acquire(&table, next, 1, 1).unwrap();
            let ((rows, held), released) = first.two(
                &table,
                move |t| (all_permits(t), held(t, next)),
                move |t| t.release_all(&pin(), next, || true, ()),
            );
            assert_eq!(released, 0);
            assert_eq!(rows, BTreeMap::from([((0, 1), 1), ((7, 7), 1)]));
            assert_eq!(held, BTreeMap::from([(1, 1)]));
        });
    }
}

/// H4: the permits of a process are reported, also while those of a dead process with its word are released.
#[test]
fn h4_inspection_of_two_slots_with_one_word() {
    model(2, 5, move |first| {
        let table = table();
        acquire(&table, holder(7), 7, 1).unwrap();
        let next = displaced_holder(0, 7);
        acquire(&table, next, 1, 1).unwrap();
        first.two(
            &table,
            move |t| {
                t.release_all(&pin(), next, || false, ());
            },
            move |t| {
                // The new process can be alive from the moment when the slot is RELEASING.
                if held(t, next).is_empty() {
                    assert_eq!(acquire(t, next, 2, 1), Some(1));
                    assert_eq!(all_permits(t).get(&(0, 2)), Some(&1));
                    assert_eq!(held(t, next), BTreeMap::from([(2, 1)]));
                }
            },
        );
    });
}
