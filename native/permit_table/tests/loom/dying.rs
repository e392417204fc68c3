//! Deaths, and whoever comes next.

use super::*;
use common::*;
use permit_table::{pin, NotHeld};

#[test]
fn p4_a_death_admits_the_next() {
    model(2, 5, |sides| {
        let table = table();
        for key in 0..3 {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        let (given, granted) = sides.beside(
            &table,
            |t| die(t, holder(0)),
            |t| acquire(t, holder(1), 1, 1),
        );
        assert_eq!((given.keys, given.permits), (3, 3));
        assert_eq!(permits(&table), u64::from(granted.is_some()));
    });
}

/// The next process at the place of one that dies keeps what it takes, wherever that is recorded (H1, H4).
#[test]
fn p4_a_place_is_taken_over_at_a_death() {
    model(2, 5, |sides| {
        let table = table();
        acquire(&table, holder(0), 1, 2).unwrap();
        let next = displaced_holder(5, 0);
        let (given, granted) = sides.beside(
            &table,
            |t| die(t, holder(0)),
            move |t| acquire(t, next, 1, 2),
        );
        assert_eq!(given.permits, 1);
        assert!(matches!(granted, Some(1 | 2)));
        assert_eq!(count(&table, 1), 1);
        assert_eq!(on_record(&table).get(&(5, 1)), Some(&1));
        assert_eq!(release(&table, next, 1), Ok(()));
        assert_eq!(count(&table, 1), 0);
    });
}

/// H1: what is left of the dead in its place is not taken for the next one's: neither when it releases, nor when it
/// looks for room (the dead has left none).
#[test]
fn p5_the_next_in_a_place_holds_nothing_of_the_dead() {
    model(2, 5, |sides| {
        let table = table();
        for key in [1, 2] {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        let next = displaced_holder(5, 0);
        sides.beside(
            &table,
            |t| {
                // So that no other pin's barrier does what is the slot's to do.
                let _pin = pin();
                die(t, holder(0));
            },
            move |t| {
                let _pin = pin();
                assert_eq!(acquire(t, next, 3, 1), Some(1));
                for key in [1, 2] {
                    assert_eq!(release(t, next, key), Err(NotHeld));
                }
            },
        );
        assert_eq!([1, 2, 3].map(|key| count(&table, key)), [0, 0, 1]);
    });
}

#[test]
fn p4_a_key_dies_with_its_last_holder() {
    model(3, 3, |sides| {
        let table = table();
        acquire(&table, holder(0), 1, 1).unwrap();
        let granted = sides.three(
            &table,
            [
                side(|t: &Table<Name>| {
                    die(t, holder(0));
                    None
                }),
                side(|t: &Table<Name>| {
                    for _ in 0..2 {
                        step(t, 8);
                    }
                    None
                }),
                side(|t| acquire(t, holder(1), 1, 1)),
            ],
        );
        assert_eq!(count(&table, 1), u64::from(granted[2].is_some()));
        assert_eq!(permits(&table), u64::from(granted[2].is_some()));
    });
}
