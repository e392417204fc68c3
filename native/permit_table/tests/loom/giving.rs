//! Models of gifts, and of calls of the giver and the target.

use super::*;
use common::*;
use loom::sync::atomic::{AtomicU64, Ordering};
use permit_table::{pin, Given, OutOfMemory, WaitEnd, Waited};
use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// The processes of the models.
const GIVER: u64 = 0;
const TARGET: u64 = 1;

/// A table; a giver, which holds some keys; and a process that dies, and the next one with its pid.
struct Giving {
    table: Table,
    pid: Pid,
    /// The VM reports a death after the process was watched: this orders the two.
    watched: AtomicU64,
    mailbox: Mailbox,
}

impl Giving {
    /// The giver has a permit of each key. The target is alive, and never was in a call.
    fn new(keys: impl IntoIterator<Item = u64>) -> Arc<Self> {
        let table = Table::new(2).unwrap();
        acquire_all(&table, holder(GIVER), keys);
        let giving = Self {
            table,
            pid: Pid::default(),
            watched: AtomicU64::new(0),
            mailbox: Mailbox::default(),
        };
        giving.pid.start();
        Arc::new(giving)
    }

    /// Gives a permit to the process that has the pid.
    fn give(&self, key: u64) -> Given {
        let watch = || {
            self.watched.fetch_add(1, Ordering::AcqRel);
            Ok::<_, OutOfMemory>(self.pid.is_reused())
        };
        let (giver, target) = (holder(GIVER), holder(TARGET));
        let given = self.table.give(
            &pin(),
            giver,
            target,
            &NameQuery(key),
            NonZeroU64::MIN,
            watch,
        );
        given.unwrap()
    }

    fn acquire(&self, key: u64, capacity: u64) -> Option<u64> {
        acquire_watched(&self.table, holder(TARGET), key, capacity, || {
            self.pid.watch()
        })
    }

    fn wait(&self, key: u64, capacity: u64) -> Waited {
        let ask = ask(&self.mailbox, TARGET, demand(1, capacity));
        let watch = || {
            self.pid.watch();
            Ok::<(), OutOfMemory>(())
        };
        let waited = self
            .table
            .wait(&pin(), holder(TARGET), &NameQuery(key), ask, watch, ());
        waited.unwrap()
    }

    /// Reports a death of a process with the pid. Returns the number of released permits.
    fn report(&self) -> u64 {
        self.watched.fetch_add(1, Ordering::AcqRel);
        let is_reused = || self.pid.is_reused();
        self.table
            .release_all(&pin(), holder(TARGET), is_reused, ())
    }

    /// Ends the process that has the pid, and reports its death as often as it was watched. Returns the number of
    /// released permits.
    fn die(&self) -> u64 {
        (0..self.pid.exit()).map(|_| self.report()).sum()
    }

    /// Checks all permits: process, key, permits.
    #[track_caller]
    fn assert_held(&self, held: &[(u64, u64, u64)]) {
        let rows = held
            .iter()
            .map(|(process, key, permits)| ((*process, *key), *permits));
        let rows: BTreeMap<_, _> = rows.collect();
        assert_eq!(all_permits(&self.table), rows);
        assert_eq!(permits(&self.table), rows.values().sum::<u64>());
        assert_eq!(self.table.usage().waiting, 0);
    }

    /// Checks that nothing is left when the giver dies.
    #[track_caller]
    fn assert_end(&self) {
        die(&self.table, holder(GIVER));
        self.assert_held(&[]);
        assert_eq!(self.table.usage().holders, 0);
        assert!(
            !self.table.knows(holder(TARGET)),
            "a record of a dead process is left"
        );
    }
}

/// O2: a gift to a dead process is refused, or released by the callback of its death.
#[test]
fn p14_target_dies_during_two_gifts() {
    model(2, 5, |first| {
        let giving = Giving::new([1, 2]);
        let (given, released) = first.two(&giving, |g| [1, 2].map(|key| g.give(key)), Giving::die);
        let expected = match given {
            [Given::Given, Given::Given] => 2,
            [Given::Given, Given::NotAlive] => 1,
            [Given::NotAlive, Given::NotAlive] => 0,
            _ => panic!("{given:?}"),
        };
        assert_eq!(released, expected);
        let kept = [1, 2].map(|key| (GIVER, key, 1));
        giving.assert_held(&kept[expected as usize..]);
        giving.assert_end();
    });
}

/// O2: the same, if the target has a slot and nothing in its overflow, which the giver makes.
#[test]
fn o2_target_with_a_slot_dies_during_a_gift() {
    model(2, 5, |first| {
        let giving = Giving::new([1]);
        assert_eq!(giving.acquire(3, 1), Some(1));
        let (given, released) = first.two(&giving, |g| g.give(1), Giving::die);
        let expected = match given {
            Given::Given => 2,
            Given::NotAlive => 1,
            Given::NotHeld => panic!("the giver has it"),
        };
        assert_eq!(released, expected);
        let kept = [(GIVER, 1, 1)];
        giving.assert_held(&kept[expected as usize - 1..]);
        giving.assert_end();
    });
}

/// O2: the target acquires for the first time, waits for the first time, and cancels that, while it is given a permit.
/// It has one slot (H5).
#[test]
fn o2_first_calls_of_the_target_during_a_gift() {
    model(2, 5, |first| {
        let giving = Giving::new([1]);
        first.two(
            &giving,
            |g| assert_eq!(g.give(1), Given::Given),
            |g| {
                assert_eq!(g.acquire(1, 2), Some(2), "a gift does not change the count");
                assert_eq!(g.wait(1, 2), Waited::Waiting);
                assert!(cancel(&g.table, holder(TARGET), TARGET), "it waits");
            },
        );
        assert_eq!(giving.mailbox.read(), []);
        giving.assert_held(&[(TARGET, 1, 2)]);
        for _ in 0..2 {
            release(&giving.table, holder(TARGET), 1).unwrap();
        }
        giving.assert_held(&[]);
        assert_eq!(giving.die(), 0);
        giving.assert_end();
    });
}

/// O2: a process has died with permits that it was given. While they are released, the next process with its pid is
/// given a permit. It keeps that, and has the others too if it inherits.
#[test]
fn o2_gift_during_a_death_with_pid_reuse() {
    model(2, 5, |first| {
        let giving = Giving::new([1, 2, 3]);
        for key in [1, 3] {
            assert_eq!(giving.give(key), Given::Given);
        }
        assert_eq!(giving.pid.exit(), 1);
        let (released, ()) = first.two(&giving, Giving::report, |g| {
            g.pid.start();
            assert_eq!(g.give(2), Given::Given);
            assert_eq!(all_permits(&g.table).get(&(TARGET, 2)), Some(&1));
        });
        let inherited = released == 0;
        let held = [(TARGET, 1, 1), (TARGET, 2, 1), (TARGET, 3, 1)];
        giving.assert_held(if inherited { &held } else { &held[1..2] });
        assert_eq!(released + giving.die(), 3);
        giving.assert_end();
    });
}

/// O2: the same, if the next process waits.
#[test]
fn o2_wait_during_a_death_with_pid_reuse() {
    model(2, 5, |first| {
        let giving = Giving::new([1, 2]);
        assert_eq!(giving.give(1), Given::Given);
        assert_eq!(giving.pid.exit(), 1);
        let (released, ()) = first.two(&giving, Giving::report, |g| {
            g.pid.start();
            assert_eq!(g.wait(2, 1), Waited::Waiting);
        });
        release(&giving.table, holder(GIVER), 2).unwrap();
        assert_eq!(giving.mailbox.read(), [(TARGET, WaitEnd::Granted(1))]);
        let inherited = released == 0;
        let held = [(TARGET, 1, 1), (TARGET, 2, 1)];
        giving.assert_held(&held[usize::from(!inherited)..]);
        assert_eq!(released + giving.die(), 2);
        giving.assert_end();
    });
}

/// O2: the dead process and the next one with its pid wait. The death ends the request of the dead one only.
#[test]
fn o2_wait_during_the_death_of_a_waiter_with_pid_reuse() {
    model(2, 5, |first| {
        let giving = Giving::new([1, 2]);
        assert_eq!(giving.wait(1, 1), Waited::Waiting);
        assert_eq!(giving.pid.exit(), 1);
        first.two(&giving, Giving::report, |g| {
            g.pid.start();
            assert_eq!(g.wait(2, 1), Waited::Waiting);
        });
        let inherited = giving.table.waiting(&pin(), &NameQuery(1)) as u64;
        for key in [1, 2] {
            release(&giving.table, holder(GIVER), key).unwrap();
        }
        let told = giving.mailbox.read();
        assert_eq!(
            told,
            vec![(TARGET, WaitEnd::Granted(1)); 1 + inherited as usize]
        );
        let held = [(TARGET, 1, 1), (TARGET, 2, 1)];
        giving.assert_held(&held[1 - inherited as usize..]);
        assert_eq!(giving.die(), 1 + inherited);
        giving.assert_end();
    });
}

/// O2: a process that inherits a slot waits. If it dies before the callback of the first death, that callback ends its
/// request, because no call of it had it watched.
#[test]
fn o2_inheriting_process_waits_and_dies() {
    model(2, 4, |first| {
        let giving = Giving::new([2]);
        assert_eq!(giving.acquire(1, 1), Some(1));
        assert_eq!(giving.pid.exit(), 1);
        let (released, released_next) = first.two(&giving, Giving::report, |g| {
            g.pid.start();
            assert_eq!(g.wait(2, 1), Waited::Waiting);
            g.die()
        });
        assert_eq!(released + released_next, 1);
        giving.assert_held(&[(GIVER, 2, 1)]);
        giving.assert_end();
    });
}

/// A process is watched twice, as after a reuse of its pid. Both callbacks run at the same time.
#[test]
fn p4_two_callbacks_of_a_death() {
    model(2, 5, |first| {
        let giving = Giving::new([1, 2]);
        assert_eq!(giving.acquire(3, 1), Some(1));
        for key in [1, 2] {
            assert_eq!(giving.give(key), Given::Given);
        }
        giving.pid.watch();
        assert_eq!(giving.pid.exit(), 2);
        let (one, other) = first.two(&giving, Giving::report, Giving::report);
        assert_eq!(one + other, 3);
        giving.assert_held(&[]);
        giving.assert_end();
    });
}

#[test]
fn o3_two_processes_give_to_each_other() {
    model(2, 5, |first| {
        let table = held_by_0([1]);
        acquire(&table, holder(1), 2, 1).unwrap();
        let given = first.two(
            &table,
            |t| give(t, holder(0), holder(1), 1, 1),
            |t| give(t, holder(1), holder(0), 2, 1),
        );
        assert_eq!(given, (Given::Given, Given::Given));
        let rows = BTreeMap::from([((0, 2), 1), ((1, 1), 1)]);
        assert_eq!((all_permits(&table), permits(&table)), (rows, 2));
        assert_eq!((die(&table, holder(0)), die(&table, holder(1))), (1, 1));
        assert_eq!(permits(&table), 0);
    });
}

/// O1: a permit is not on two records at once. (An inspection reads the record of the target first here. In the other
/// order it can report a permit twice that moves in between.)
#[test]
fn p14_inspection_during_a_gift() {
    for credited in [false, true] {
        model(2, 5, move |first| {
            let table = table();
            acquire(&table, holder(0), 2, 1).unwrap();
            if credited {
                acquire(&table, holder(2), 1, 1).unwrap();
                give(&table, holder(2), holder(1), 1, 1);
            } else {
                acquire(&table, holder(1), 1, 1).unwrap();
            }
            let (rows, given) = first.two(
                &table,
                |t| (all_permits(t), holders_of(t, 1)),
                |t| give(t, holder(1), holder(0), 1, 1),
            );
            assert_eq!(given, Given::Given);
            assert_eq!(rows.0.get(&(0, 2)), Some(&1));
            for rows in [rows.0, rows.1] {
                let of_key = rows.iter().filter(|((_, key), _)| *key == 1);
                assert!(of_key.map(|(_, permits)| permits).sum::<u64>() <= 1);
            }
            let rows = BTreeMap::from([((0, 1), 1), ((0, 2), 1)]);
            assert_eq!((all_permits(&table), permits(&table)), (rows, 2));
            assert_eq!(die(&table, holder(0)), 2);
            assert_eq!(permits(&table), 0);
        });
    }
}
