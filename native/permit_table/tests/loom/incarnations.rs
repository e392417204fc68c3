//! Tables opened, closed and freed, and calls in flight.

use super::*;
use common::*;
use loom::cell::UnsafeCell;
use permit_table::{pin, Dismantle, Gate, Incarnations, Progress};

/// What is opened: a table, the gate by which its holders are watched, and whether loom has seen it freed.
struct Opened {
    number: u64,
    table: Table<Name>,
    watch: Gate<Opened>,
    looked_at: UnsafeCell<()>,
}

// SAFETY: what is not atomic in it is what loom watches.
unsafe impl Sync for Opened {}

impl Opened {
    fn new(number: u64, gate: &Gate<Opened>) -> Self {
        Self {
            number,
            table: Table::new(2).unwrap(),
            watch: gate.clone(),
            looked_at: UnsafeCell::new(()),
        }
    }

    /// loom fails the model unless this is ordered before the freeing.
    fn number(&self) -> u64 {
        self.looked_at.with(|_| self.number)
    }
}

impl Dismantle for Opened {
    fn dismantle(&mut self) -> bool {
        self.looked_at.with_mut(|_| ());
        false
    }
}

loom::lazy_static! {
    static ref INCARNATIONS: Incarnations<Opened> = Incarnations::new();
}

/// Opens the one of this number, closing the one before.
fn open(number: u64, keep: bool) -> Gate<Opened> {
    let opening = INCARNATIONS.opening(keep).unwrap();
    let gate = opening.gate();
    opening.open(Opened::new(number, &gate));
    gate
}

/// As a manager does that wants to keep its table: adopts the one that is kept, or opens one.
fn adopt_or_open(number: u64) -> (u64, Gate<Opened>) {
    let opening = INCARNATIONS.opening(true).unwrap();
    if let Some((gate, adopted)) = opening.adopted() {
        return (adopted.number(), gate);
    }
    let gate = opening.gate();
    opening.open(Opened::new(number, &gate));
    (number, gate)
}

fn current() -> Option<u64> {
    let pin = pin();
    INCARNATIONS.current(&pin).map(Opened::number)
}

/// Frees all that has been closed. What is left open or has lost its way fails the model as a leak.
fn dismantle() {
    loop {
        match INCARNATIONS.dismantle_step() {
            Progress::Done => return INCARNATIONS.drop_emptied(),
            Progress::More => {}
            Progress::Waiting => thread::yield_now(),
        }
    }
}

/// Frees what can be freed without waiting.
fn dismantle_some() {
    for _ in 0..3 {
        INCARNATIONS.dismantle_step();
    }
    INCARNATIONS.drop_emptied();
}

fn nothing() -> Arc<()> {
    Arc::new(())
}

#[test]
fn i2_a_table_is_closed_and_freed_during_a_call() {
    model(2, 5, |sides| {
        let gate = open(1, false);
        sides.beside(
            &nothing(),
            |()| {
                let pin = pin();
                let Some(open) = INCARNATIONS.current(&pin) else {
                    return;
                };
                assert_eq!(open.number(), 1);
                assert_eq!(acquire(&open.table, holder(0), 1, 1), Some(1));
                assert_eq!(open.number(), 1);
            },
            move |()| {
                gate.close();
                dismantle_some();
            },
        );
        assert_eq!(current(), None);
        dismantle();
    });
}

#[test]
fn i2_a_table_is_closed_and_freed_while_one_looks_at_it_for_long() {
    model(2, 5, |sides| {
        let gate = open(1, false);
        sides.beside(
            &nothing(),
            |()| {
                if let Some(shared) = INCARNATIONS.shared() {
                    assert_eq!(shared.number(), 1);
                }
            },
            move |()| {
                gate.close();
                dismantle_some();
            },
        );
        dismantle();
    });
}

#[test]
fn i2_two_close_at_once() {
    model(2, 5, |sides| {
        let gate = open(1, false);
        let other = gate.clone();
        let close = |gate: Gate<Opened>| {
            move |_: &()| {
                gate.close();
                assert!(gate.incarnation(&pin()).is_none());
            }
        };
        sides.beside(&nothing(), close(gate), close(other));
        assert_eq!(current(), None);
        dismantle();
    });
}

#[test]
fn i2_two_open_at_once() {
    model(2, 5, |sides| {
        let (one, other) = sides.beside(&nothing(), |()| open(1, false), |()| open(2, false));
        let is_open = |gate: &Gate<Opened>| {
            let pin = pin();
            gate.incarnation(&pin).map(Opened::number)
        };
        match current() {
            Some(1) => assert_eq!((is_open(&one), is_open(&other)), (Some(1), None)),
            Some(2) => assert_eq!((is_open(&one), is_open(&other)), (None, Some(2))),
            open => panic!("{open:?} is open"),
        }
        one.close();
        other.close();
        dismantle();
    });
}

/// The death of who held permits of the old table is told when the next one is open, or just being opened, and the
/// same process identity holds permits of it.
#[test]
fn i1_a_late_death_beside_the_next_table() {
    model(2, 5, |sides| {
        let old = open(1, false);
        let watch = old.clone();
        let (_, new) = sides.beside(
            &nothing(),
            move |()| {
                let pin = pin();
                if let Some(watched) = watch.incarnation(&pin) {
                    assert_eq!(watched.number(), 1);
                    die(&watched.table, holder(0));
                }
            },
            |()| {
                let gate = open(2, false);
                let pin = pin();
                let open = INCARNATIONS.current(&pin).expect("just opened");
                assert_eq!(acquire(&open.table, holder(0), 1, 1), Some(1));
                gate
            },
        );
        old.close();
        {
            let pin = pin();
            let open = INCARNATIONS.current(&pin).expect("opened, and not closed");
            assert_eq!((open.number(), count(&open.table, 1)), (2, 1));
        }
        new.close();
        dismantle();
    });
}

/// A process that finds a table just opened takes a permit and dies: its death gives the permit back.
#[test]
fn i1_a_death_as_soon_as_a_table_can_be_found() {
    model(2, 5, |sides| {
        let (gate, ()) = sides.beside(
            &nothing(),
            |()| open(1, false),
            |()| {
                let pin = pin();
                let Some(open) = INCARNATIONS.current(&pin) else {
                    return;
                };
                assert_eq!(open.number(), 1);
                assert_eq!(acquire(&open.table, holder(0), 1, 1), Some(1));
                if let Some(watched) = open.watch.incarnation(&pin) {
                    watched.table.release_all(&pin, holder(0), || false);
                }
                assert_eq!(count(&open.table, 1), 0);
            },
        );
        gate.close();
        dismantle();
    });
}

#[test]
fn i3_a_late_death_finds_nobody_in_a_closed_table() {
    model(2, 5, |sides| {
        let gate = open(1, false);
        let watch = gate.clone();
        sides.beside(
            &nothing(),
            move |()| {
                let pin = pin();
                if let Some(watched) = watch.incarnation(&pin) {
                    assert_eq!(watched.number(), 1);
                }
            },
            move |()| {
                gate.close();
                dismantle_some();
                assert!(gate.incarnation(&pin()).is_none());
            },
        );
        dismantle();
    });
}

#[test]
fn i4_a_kept_table_is_adopted_while_the_death_of_its_manager_is_told() {
    model(2, 5, |sides| {
        let died = open(1, true);
        let (_, (number, gate)) =
            sides.beside(&nothing(), move |()| died.abandon(), |()| adopt_or_open(2));
        assert_eq!((number, current()), (1, Some(1)));
        gate.close();
        dismantle();
    });
}
