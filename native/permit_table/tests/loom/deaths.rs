//! Models of deaths, and of the processes that use the slot or the pid next.

use super::*;
use common::*;
use permit_table::{pin, Capacity, Holder, NotHeld, OutOfMemory};
use std::collections::BTreeMap;

#[test]
fn p4_acquire_during_the_death_of_the_holder() {
    model(2, 5, |first| {
        let table = held_by_0(0..3);
        let (released, granted) = first.two(&table, |t| die(t, holder(0)), take(1, 1, 1));
        assert_eq!(released, 3);
        assert_eq!(permits(&table), u64::from(granted.is_some()));
    });
}

/// H1, H4: while a process dies, the next process at its place acquires. It keeps its permit, wherever that is
/// recorded.
#[test]
fn p4_next_process_acquires_during_a_death_at_its_place() {
    model(2, 5, |first| {
        let table = held_by_0([1]);
        let next = displaced_holder(5, 0);
        let acquire = move |t: &_| acquire(t, next, 1, 2);
        let (released, granted) = first.two(&table, |t| die(t, holder(0)), acquire);
        assert_eq!(released, 1);
        assert!(matches!(granted, Some(1 | 2)));
        assert_eq!(count(&table, 1), 1);
        assert_eq!(all_permits(&table).get(&(5, 1)), Some(&1));
        assert_eq!(release(&table, next, 1), Ok(()));
        assert_eq!(count(&table, 1), 0);
    });
}

/// H1: the next process in a slot does not take the record of the dead one for its own: neither when it releases, nor
/// when it looks for a free inline key (the dead process left none).
#[test]
fn p5_next_process_in_a_slot_holds_nothing_of_the_dead() {
    model(2, 3, |first| {
        let table = held_by_0([1, 2]);
        let next = displaced_holder(5, 0);
        first.two(
            &table,
            |t| {
                // So that the barrier of no other pin orders what the slot must order.
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

/// H3: a process that cannot be watched vacates its slot once. The next process in the slot keeps it.
#[test]
fn h3_slot_is_occupied_after_a_failed_watch() {
    model(2, 5, |first| {
        let table = table();
        let next = displaced_holder(5, 0);
        first.two(
            &table,
            |t| {
                let not_watched = || Err(OutOfMemory);
                let capacity = Capacity::of(1, 1);
                let refused = t.acquire(&pin(), holder(0), &NameQuery(1), capacity, not_watched);
                assert_eq!(refused, Err(OutOfMemory));
            },
            move |t| assert_eq!(acquire(t, next, 2, 1), Some(1)),
        );
        assert_eq!(all_permits(&table), BTreeMap::from([((5, 2), 1)]));
        assert_eq!(die(&table, next), 1);
        assert_eq!(permits(&table), 0);
    });
}

#[test]
fn p4_key_is_reclaimed_after_its_last_holder_dies() {
    model(3, 3, |first| {
        let table = held_by_0([1]);
        let granted = first.three(
            &table,
            [
                side(|t: &Table<Name>| {
                    die(t, holder(0));
                    None
                }),
                side(|t: &Table<Name>| {
                    steps(2)(t);
                    None
                }),
                side(take(1, 1, 1)),
            ],
        );
        let out = u64::from(granted[2].is_some());
        assert_eq!((count(&table, 1), permits(&table)), (out, out));
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
    /// The slot of the dead process is at its place, or displaced.
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

    /// Reports a death of a process with the pid. Returns the number of released permits.
    fn report(&self) -> u64 {
        let is_reused = || self.pid.is_reused();
        self.table.release_all(&pin(), self.holder, is_reused, ())
    }

    /// Ends the process that has the pid, and reports its death as often as it was watched.
    fn die(&self) -> u64 {
        (0..self.pid.exit()).map(|_| self.report()).sum()
    }

    /// Checks that only the process whose place it is has permits.
    fn assert_nothing_held(&self) {
        if release(&self.table, holder(7), 7).is_ok() {
            die(&self.table, holder(7));
        }
        assert_eq!(permits(&self.table), 0);
        assert_eq!(all_permits(&self.table).len(), 0);
    }
}

/// H1: the new process keeps what it acquires. The permits of the dead one are released, or the new process holds them.
#[test]
fn p4_death_reported_after_pid_reuse() {
    for at_home in [true, false] {
        model(2, 5, move |first| {
            let late = Late::new(at_home);
            let (released, ()) = first.two(&late, Late::report, |late| {
                late.pid.start();
                assert_eq!(late.acquire(2, 1), Some(1));
                assert_eq!(late.release(2), Ok(()));
                assert_eq!(late.acquire(3, 1), Some(1));
            });
            assert_eq!(acquire(&late.table, holder(1), 3, 1), None);
            let inherited = late.release(1).is_ok();
            assert_eq!(released, u64::from(!inherited));
            assert_eq!(late.die(), 1);
            late.assert_nothing_held();
        });
    }
}

/// H1: the same, if the new process dies, and another one gets the pid. Two callbacks run at the same time.
#[test]
fn p4_death_reported_after_two_pid_reuses() {
    for at_home in [true, false] {
        model(2, 4, move |first| {
            let late = Late::new(at_home);
            let (released, released_next) = first.two(&late, Late::report, |late| {
                late.pid.start();
                assert_eq!(late.acquire(2, 1), Some(1));
                let released = late.die();
                late.pid.start();
                assert_eq!(late.acquire(3, 1), Some(1));
                released
            });
            assert_eq!(released + released_next + late.die(), 3);
            late.assert_nothing_held();
        });
    }
}
