//! Deaths, and whoever comes next.

use super::*;
use common::*;
use permit_table::{pin, Capacity, Holder, NotHeld, OutOfMemory};
use std::collections::BTreeMap;

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
        assert_eq!(given, 3);
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
        assert_eq!(given, 1);
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

/// H3: a process that cannot be watched lets its slot go once. The next one in the place keeps it.
#[test]
fn h3_a_place_is_taken_while_its_process_cannot_be_watched() {
    model(2, 5, |sides| {
        let table = table();
        let next = displaced_holder(5, 0);
        sides.beside(
            &table,
            |t| {
                let not_watched = || Err(OutOfMemory);
                let capacity = Capacity::of(1, 1);
                let refused = t.acquire(&pin(), holder(0), &Wanted(1), capacity, not_watched);
                assert_eq!(refused, Err(OutOfMemory));
            },
            move |t| assert_eq!(acquire(t, next, 2, 1), Some(1)),
        );
        assert_eq!(on_record(&table), BTreeMap::from([((5, 2), 1)]));
        assert_eq!(die(&table, next), 1);
        assert_eq!(permits(&table), 0);
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

/// A table, and a process that has died with a permit of key 1. The VM has not reported the death yet, and the pid is
/// free.
struct Late {
    table: Table<Name>,
    pid: Pid,
    holder: Holder,
}

impl Late {
    /// The slot of the dead process is at its place, or among the displaced.
    fn new(at_home: bool) -> Arc<Self> {
        let table = Table::new(2).unwrap();
        if !at_home {
            acquire(&table, holder(7), 7, 1).unwrap();
        }
        let late = Arc::new(Self {
            table,
            pid: Pid::default(),
            holder: displaced_holder(0, if at_home { 0 } else { 7 }),
        });
        late.pid.start();
        late.acquire(1, 1).unwrap();
        assert_eq!(late.pid.exit(), 1);
        late
    }

    fn acquire(&self, key: u64, capacity: u64) -> Option<u64> {
        acquire_watched(&self.table, self.holder, key, capacity, || self.pid.watch())
    }

    fn release(&self, key: u64) -> Result<(), NotHeld> {
        release(&self.table, self.holder, key)
    }

    /// Reports a death of a process with the pid. Returns how many permits were given back.
    fn report(&self) -> u64 {
        let is_reused = || self.pid.is_reused();
        self.table.release_all(&pin(), self.holder, is_reused)
    }

    /// The process that has the pid dies, and its death is reported as often as it was watched.
    fn die(&self) -> u64 {
        (0..self.pid.exit()).map(|_| self.report()).sum()
    }

    /// Nothing is on record, but for the process whose place it is.
    fn assert_over(&self) {
        if release(&self.table, holder(7), 7).is_ok() {
            die(&self.table, holder(7));
        }
        assert_eq!(permits(&self.table), 0);
        assert_eq!(on_record(&self.table).len(), 0);
    }
}

/// H1: the new process keeps what it acquires. What the dead one held is given back, or the new process holds it.
#[test]
fn p4_a_death_is_reported_while_the_next_process_has_its_pid() {
    for at_home in [true, false] {
        model(2, 5, move |sides| {
            let late = Late::new(at_home);
            let (given, ()) = sides.beside(&late, Late::report, |late| {
                late.pid.start();
                assert_eq!(late.acquire(2, 1), Some(1));
                assert_eq!(late.release(2), Ok(()));
                assert_eq!(late.acquire(3, 1), Some(1));
            });
            assert_eq!(acquire(&late.table, holder(1), 3, 1), None);
            let inherited = late.release(1).is_ok();
            assert_eq!(given, u64::from(!inherited));
            assert_eq!(late.die(), 1);
            late.assert_over();
        });
    }
}

/// H1: the same, if the new process dies, and another one gets the pid. Two callbacks come at a time.
#[test]
fn p4_a_death_is_reported_while_two_more_processes_have_its_pid() {
    for at_home in [true, false] {
        model(2, 4, move |sides| {
            let late = Late::new(at_home);
            let (given, given_next) = sides.beside(&late, Late::report, |late| {
                late.pid.start();
                assert_eq!(late.acquire(2, 1), Some(1));
                let given = late.die();
                late.pid.start();
                assert_eq!(late.acquire(3, 1), Some(1));
                given
            });
            let last = late.die();
            assert_eq!(given + given_next + last, 3);
            late.assert_over();
        });
    }
}
