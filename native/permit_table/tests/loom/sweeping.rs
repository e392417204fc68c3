//! Keys that are reclaimed, and whoever wants one.

use super::*;
use common::*;

/// A table with a key that nobody has used since the sweep came by: it dies with the next.
fn with_idle_key() -> Arc<Table<Name>> {
    let table = table();
    acquire(&table, holder(0), 1, 1).unwrap();
    release(&table, holder(0), 1).unwrap();
    sweep(&table);
    table
}

#[test]
fn p8_a_key_dies_while_it_is_acquired() {
    model(2, 4, |sides| {
        let table = with_idle_key();
        let (_, granted) = sides.beside(&table, |t| step(t, 8), |t| acquire(t, holder(1), 1, 1));
        assert_eq!(granted, Some(1), "nobody holds it");
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
fn p8_a_key_is_reclaimed_while_it_is_found() {
    model(2, 4, |sides| {
        let table = with_idle_key();
        sides.beside(
            &table,
            |t| {
                for _ in 0..4 {
                    step(t, 8);
                }
            },
            |t| assert_eq!(count(t, 1), 0),
        );
    });
}

/// Somebody has found a key that dies, and is made anew by another, before he acquires.
#[test]
fn k4_a_key_is_made_anew_while_its_old_word_is_seen() {
    model(2, 4, |sides| {
        let table = with_idle_key();
        let granted = sides.beside(
            &table,
            |t| {
                step(t, 8);
                acquire(t, holder(0), 1, 1)
            },
            |t| acquire(t, holder(1), 1, 1),
        );
        assert!(matches!(granted, (Some(1), None) | (None, Some(1))));
        assert_eq!(count(&table, 1), 1);
        assert_eq!(permits(&table), 1);
    });
}

#[test]
fn p8_a_key_dies_between_two_that_come() {
    model(2, 3, |sides| {
        let table = with_idle_key();
        // Their hashes put one in front of key 1, and the other directly behind it.
        let keys = [4, 10];
        sides.beside(
            &table,
            |t| step(t, 8),
            move |t| {
                for key in keys {
                    assert_eq!(acquire(t, holder(1), key, 1), Some(1));
                }
            },
        );
        for key in keys {
            assert_eq!(count(&table, key), 1, "key {key}");
        }
    });
}

#[test]
fn k1_a_key_is_found_while_a_head_is_linked_before_it() {
    model(2, 4, |sides| {
        let table = table();
        // With these the number of ranges doubles, and nobody has come by to link the new heads in.
        for key in 0..3 {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        sides.beside(
            &table,
            |t| {
                step(t, 8);
            },
            |t| {
                for key in 0..3 {
                    assert_eq!(count(t, key), 1, "key {key}");
                }
            },
        );
    });
}

#[test]
fn p8_heads_are_closed_while_a_key_comes() {
    model(2, 2, |sides| {
        let table = table();
        // Enough keys to double the ranges, and then none.
        for key in 0..5 {
            acquire(&table, holder(0), key, 1).unwrap();
        }
        die(&table, holder(0));
        sweep(&table);
        sides.beside(
            &table,
            |t| {
                for _ in 0..2 {
                    step(t, 8);
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
