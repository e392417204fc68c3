//! Models of the sweep, and of calls on the keys that it reclaims.

use super::*;
use common::*;

/// A table with a key that has not been used since the last pass. The next pass reclaims it.
fn with_idle_key() -> Arc<Table<Name>> {
    let table = held_by_0([1]);
    release(&table, holder(0), 1).unwrap();
    sweep(&table);
    table
}

#[test]
fn p8_key_is_reclaimed_during_acquire() {
    model(2, 4, |first| {
        let table = with_idle_key();
        let (_, granted) = first.two(&table, steps(1), take(1, 1, 1));
        assert_eq!(granted, Some(1), "no permit is out");
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
fn p8_key_is_reclaimed_during_lookup() {
    model(2, 4, |first| {
        let table = with_idle_key();
        first.two(&table, steps(4), |t| assert_eq!(count(t, 1), 0));
    });
}

/// A caller has found a key. The key dies and another caller creates it again, before the first one acquires.
#[test]
fn k4_key_is_recreated_during_acquire_of_the_dead_node() {
    model(2, 4, |first| {
        let table = with_idle_key();
        let sweep_and_take = |t: &_| {
            step(t, 8);
            acquire(t, holder(0), 1, 1)
        };
        let granted = first.two(&table, sweep_and_take, take(1, 1, 1));
        assert!(matches!(granted, (Some(1), None) | (None, Some(1))));
        assert_eq!(count(&table, 1), 1);
        assert_eq!(permits(&table), 1);
    });
}

#[test]
fn p8_key_is_unlinked_between_two_insertions() {
    model(2, 3, |first| {
        let table = with_idle_key();
        // By their hashes, one is in front of key 1, the other directly behind it.
        let keys = [4, 10];
        first.two(&table, steps(1), move |t| {
            for key in keys {
                assert_eq!(acquire(t, holder(1), key, 1), Some(1));
            }
        });
        for key in keys {
            assert_eq!(count(&table, key), 1, "key {key}");
        }
    });
}

#[test]
fn k1_head_is_linked_during_lookup() {
    model(2, 4, |first| {
        // The insertions double the number of ranges, and do not link the new heads.
        let table = held_by_0(0..3);
        first.two(&table, steps(1), |t| {
            for key in 0..3 {
                assert_eq!(count(t, key), 1, "key {key}");
            }
        });
    });
}

#[test]
fn p8_heads_are_closed_during_insertion() {
    model(2, 2, |first| {
        // Enough keys to double the ranges; then they are released.
        let table = held_by_0(0..5);
        die(&table, holder(0));
        sweep(&table);
        let insert = |t: &_| assert_eq!(acquire(t, holder(1), 9, 1), Some(1));
        first.two(&table, steps(2), insert);
        assert_eq!(count(&table, 9), 1);
        sweep(&table);
        assert_eq!(count(&table, 9), 1);
        assert_eq!(table.usage().keys, 1);
    });
}
