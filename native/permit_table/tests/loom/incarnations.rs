//! Models of tables that are opened, closed and freed during calls.

use super::*;
use common::*;
use loom::cell::UnsafeCell;
use permit_table::{pin, Dismantle, Gate, Incarnations, Pin, Progress};

/// The content of an incarnation: a table, and the gate by which its holders are watched. loom checks the accesses to
/// `read`.
struct Opened {
    number: u64,
    table: Table<Name>,
    watch: Gate<Opened>,
    read: UnsafeCell<()>,
}

// SAFETY: loom checks the accesses to the part that is not atomic.
unsafe impl Sync for Opened {}

impl Opened {
    fn new(number: u64, gate: &Gate<Opened>) -> Self {
        Self {
            number,
            table: Table::new(2).unwrap(),
            watch: gate.clone(),
            read: UnsafeCell::new(()),
        }
    }

    /// loom fails the model unless this is ordered before the freeing.
    fn number(&self) -> u64 {
        self.read.with(|_| self.number)
    }
}

impl Dismantle for Opened {
    fn dismantle(&mut self) -> bool {
        self.read.with_mut(|_| ());
        false
    }
}

loom::lazy_static! {
    static ref INCARNATIONS: Incarnations<Opened> = Incarnations::new();
}

/// Opens the incarnation with this number, which closes the previous one.
fn open(number: u64) -> Gate<Opened> {
    let opening = INCARNATIONS.opening().unwrap();
    let gate = opening.gate();
    opening.open(Opened::new(number, &gate));
    gate
}

fn current() -> Option<u64> {
    let pin = pin();
    INCARNATIONS.current(&pin).map(Opened::number)
}

/// Frees everything closed. loom reports an incarnation that is left open or lost as a leak.
fn dismantle() {
    loop {
        match INCARNATIONS.dismantle_step() {
            Progress::Done => return INCARNATIONS.drop_emptied(),
            Progress::More => {}
            Progress::Waiting => thread::yield_now(),
        }
    }
}

/// Closes, and frees what can be freed without waiting.
fn close_and_free(gate: &Gate<Opened>) {
    gate.close(|_| ());
    for _ in 0..3 {
        INCARNATIONS.dismantle_step();
    }
    INCARNATIONS.drop_emptied();
}

/// Runs two sides concurrently. They share the static only.
fn run<A: 'static, B: 'static>(
    first: FirstSide,
    one: impl FnOnce() -> A + 'static,
    other: impl FnOnce() -> B + 'static,
) -> (A, B) {
    first.two(&Arc::new(()), |()| one(), |()| other())
}

/// A call on the open table, if there is one.
fn with_current(call: impl FnOnce(&Pin, &Opened)) {
    let pin = pin();
    if let Some(open) = INCARNATIONS.current(&pin) {
        call(&pin, open);
    }
}

/// A death that is reported through the gate, if that is open.
fn with_watched(gate: &Gate<Opened>, death: impl FnOnce(&Opened)) {
    let pin = pin();
    if let Some(watched) = gate.incarnation(&pin) {
        death(watched);
    }
}

#[test]
fn i2_close_and_free_during_a_call() {
    model(2, 5, |first| {
        let gate = open(1);
        let call = || {
            with_current(|_, open| {
                assert_eq!(open.number(), 1);
                assert_eq!(acquire(&open.table, holder(0), 1, 1), Some(1));
                assert_eq!(open.number(), 1);
            })
        };
        run(first, call, move || close_and_free(&gate));
        assert_eq!(current(), None);
        dismantle();
    });
}

#[test]
fn i2_two_close_at_once() {
    model(2, 5, |first| {
        let gate = open(1);
        let other = gate.clone();
        let close = |gate: Gate<Opened>| {
            move || {
                gate.close(|_| ());
                assert!(gate.incarnation(&pin()).is_none());
            }
        };
        run(first, close(gate), close(other));
        assert_eq!(current(), None);
        dismantle();
    });
}

#[test]
fn i2_two_open_at_once() {
    model(2, 5, |first| {
        let (one, other) = run(first, || open(1), || open(2));
        let is_open = |gate: &Gate<Opened>| {
            let pin = pin();
            gate.incarnation(&pin).map(Opened::number)
        };
        match current() {
            Some(1) => assert_eq!((is_open(&one), is_open(&other)), (Some(1), None)),
            Some(2) => assert_eq!((is_open(&one), is_open(&other)), (None, Some(2))),
            open => panic!("{open:?} is open"),
        }
        one.close(|_| ());
        other.close(|_| ());
        dismantle();
    });
}

/// The death of a holder of the old table is reported while the next one opens or after that. The same process identity
/// holds permits of the new table.
#[test]
fn i1_late_death_while_the_next_table_opens() {
    model(2, 5, |first| {
        let old = open(1);
        let watch = old.clone();
        let report = move || {
            with_watched(&watch, |watched| {
                assert_eq!(watched.number(), 1);
                die(&watched.table, holder(0));
            });
        };
        let (_, new) = run(first, report, || {
            let gate = open(2);
            let pin = pin();
            let open = INCARNATIONS.current(&pin).expect("just opened");
            assert_eq!(acquire(&open.table, holder(0), 1, 1), Some(1));
            gate
        });
        old.close(|_| ());
        {
            let pin = pin();
            let open = INCARNATIONS.current(&pin).expect("opened, and not closed");
            assert_eq!((open.number(), count(&open.table, 1)), (2, 1));
        }
        new.close(|_| ());
        dismantle();
    });
}

/// A process acquires as soon as it finds the new table, and dies. Its death releases the permit.
#[test]
fn i1_death_right_after_open() {
    model(2, 5, |first| {
        let call = |pin: &Pin, open: &Opened| {
            assert_eq!(open.number(), 1);
            assert_eq!(acquire(&open.table, holder(0), 1, 1), Some(1));
            if let Some(watched) = open.watch.incarnation(pin) {
                watched.table.release_all(pin, holder(0), || false, ());
            }
            assert_eq!(count(&open.table, 1), 0);
        };
        let (gate, ()) = run(first, || open(1), move || with_current(call));
        gate.close(|_| ());
        dismantle();
    });
}

#[test]
fn i3_late_death_during_close_changes_nothing() {
    model(2, 5, |first| {
        let gate = open(1);
        let watch = gate.clone();
        let report = move || with_watched(&watch, |watched| assert_eq!(watched.number(), 1));
        run(first, report, move || {
            close_and_free(&gate);
            assert!(gate.incarnation(&pin()).is_none());
        });
        dismantle();
    });
}
