//! Looks from outside, and all that goes on meanwhile. What is told was so at some moment.

use super::*;
use common::*;
use permit_table::{pin, Cursor, Permits};
use std::collections::BTreeMap;

#[test]
fn a_look_beside_a_death() {
    model(2, 5, |sides| {
        let table = table();
        for key in 0..3 {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        let (usage, given) = sides.beside(&table, |t| t.usage(), |t| die(t, holder(0)));
        assert!(usage.permits <= 3 && usage.holders <= 1);
        assert_eq!(given, 3);
        assert_eq!((permits(&table), table.usage().holders), (0, 0));
    });
}

/// A process has key 1; it dies; the next one at its place takes key 2.
fn take_over(table: &Table<Name>) {
    die(table, holder(0));
    acquire(table, displaced_holder(5, 0), 2, 1).unwrap();
}

#[test]
fn what_is_on_record_beside_a_death_and_the_next_in_its_place() {
    model(2, 4, |sides| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        let (seen, ()) = sides.beside(&table, on_record, take_over);
        let told = [((0, 1), 1), ((5, 2), 1)];
        assert!(seen.into_iter().all(|seen| told.contains(&seen)));
        assert_eq!(on_record(&table), BTreeMap::from([told[1]]));
    });
}

/// A slot that is read again because its process has died takes nothing from what was told of others before it.
#[test]
fn what_others_hold_beside_a_death_and_the_next_in_its_place() {
    model(2, 4, |sides| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        acquire(&table, holder(1), 2, 1).unwrap();
        let (seen, ()) = sides.beside(&table, on_record, |t| {
            die(t, holder(1));
            acquire(t, displaced_holder(5, 1), 3, 1).unwrap();
        });
        assert_eq!(seen.get(&(0, 1)), Some(&1));
    });
}

#[test]
fn who_holds_a_key_beside_a_death_and_the_next_in_its_place() {
    model(2, 4, |sides| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        // So that the key is there, and can be asked for.
        acquire(&table, holder(1), 2, 2).unwrap();
        sides.beside(
            &table,
            |t| {
                let visit = |seen: Permits<'_, Name>| {
                    assert!([2, 6].contains(&seen.holder), "holder 0 never had it");
                    assert_eq!(seen.permits, 1);
                };
                t.holders_from(Cursor::default(), &Wanted(2), visit)
                    .unwrap();
            },
            |t| {
                die(t, holder(0));
                acquire(t, displaced_holder(5, 0), 2, 2).unwrap();
            },
        );
    });
}

#[test]
fn what_one_holds_beside_its_death_and_the_next_in_its_place() {
    model(2, 4, |sides| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        sides.beside(
            &table,
            |t| {
                let visit = |seen: Permits<'_, Name>| {
                    assert_eq!((seen.key.number(), seen.permits), (1, 1));
                };
                t.held(holder(0), 0, visit).unwrap();
            },
            take_over,
        );
    });
}

/// H2: what is seen on a record from outside is there as long as it is looked at, though it is released, swept and
/// freed meanwhile.
#[test]
fn a_look_beside_a_release_and_the_sweep() {
    model(2, 4, |sides| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        sides.beside(
            &table,
            |t| {
                release(t, holder(0), 1).unwrap();
                for _ in 0..8 {
                    step(t, 8);
                }
            },
            |t| assert!(on_record(t).values().all(|permits| *permits == 1)),
        );
        assert!(on_record(&table).is_empty());
    });
}

/// H2, with a sweep that does not wait for the release to be over.
#[test]
fn h2_a_look_beside_a_release_beside_the_sweep() {
    model(3, 2, |sides| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        sides.three(
            &table,
            [
                side(|t| drop(on_record(t))),
                side(|t| release(t, holder(0), 1).unwrap()),
                side(|t: &Table<Name>| {
                    // The fourth is the first that frees anything.
                    for _ in 0..4 {
                        step(t, 8);
                    }
                }),
            ],
        );
        assert!(on_record(&table).is_empty());
    });
}

/// A key that moves in its holder's record, from one entry to the other or beyond them, is told once.
#[test]
fn a_look_beside_a_key_that_moves() {
    for beyond in [false, true] {
        model(2, 5, move |sides| {
            let table = table();
            for key in [1, 2] {
                acquire(&table, holder(0), key, 1).unwrap();
            }
            sides.beside(
                &table,
                |t| drop(on_record(t)),
                move |t| {
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

/// A key that has to make room for the next one in its holder's record is told all the time.
#[test]
fn a_look_beside_a_key_that_makes_room() {
    model(2, 5, |sides| {
        let table = table();
        for key in [1, 2] {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        let (seen, third) = sides.beside(&table, on_record, |t| acquire(t, holder(0), 3, 1));
        assert_eq!(third, Some(1));
        assert!([1, 2].iter().all(|key| seen.get(&(0, *key)) == Some(&1)));
        assert_eq!(on_record(&table).len(), 3);
    });
}

/// The permits of one key are not told of the one before or behind it in the same place.
#[test]
fn a_look_beside_another_key_in_the_same_place() {
    for (before, behind) in [(1, 2), (2, 1)] {
        model(2, 5, move |sides| {
            let table = table();
            for _ in 0..before {
                acquire(&table, holder(0), 1, 2).unwrap();
            }
            sides.beside(
                &table,
                move |t| {
                    for ((_, key), permits) in on_record(t) {
                        assert!(permits <= if key == 1 { before } else { behind });
                    }
                },
                move |t| {
                    // So that no other pin's fence does what is the record's to do.
                    let _pin = pin();
                    for _ in 0..before {
                        release(t, holder(0), 1).unwrap();
                    }
                    for _ in 0..behind {
                        acquire(t, holder(0), 2, 2).unwrap();
                    }
                },
            );
        });
    }
}

/// What a process has inherited is told all the time, also while the callback asks whether the word is reused (H1).
#[test]
fn a_look_beside_a_death_whose_pid_is_reused() {
    for place in [0, 7] {
        model(2, 5, move |sides| {
            let table = table();
            // The place 7 is taken.
            acquire(&table, holder(7), 7, 1).unwrap();
            let next = displaced_holder(0, place);
            acquire(&table, next, 1, 1).unwrap();
            let ((seen, held), given) = sides.beside(
                &table,
                move |t| (on_record(t), held(t, next)),
                move |t| t.release_all(&pin(), next, || true),
            );
            assert_eq!(given, 0);
            assert_eq!(seen, BTreeMap::from([((0, 1), 1), ((7, 7), 1)]));
            assert_eq!(held, BTreeMap::from([(1, 1)]));
        });
    }
}

/// What a process holds is told, also while the permits of a dead one with its word are given back (H4).
#[test]
fn a_look_beside_a_death_whose_pid_and_place_are_taken() {
    model(2, 5, move |sides| {
        let table = table();
        acquire(&table, holder(7), 7, 1).unwrap();
        let next = displaced_holder(0, 7);
        acquire(&table, next, 1, 1).unwrap();
        sides.beside(
            &table,
            move |t| {
                t.release_all(&pin(), next, || false);
            },
            move |t| {
                // The new process is alive from the moment when the slot is GIVING.
                if held(t, next).is_empty() {
                    assert_eq!(acquire(t, next, 2, 1), Some(1));
                    assert_eq!(on_record(t).get(&(0, 2)), Some(&1));
                    assert_eq!(held(t, next), BTreeMap::from([(2, 1)]));
                }
            },
        );
    });
}
