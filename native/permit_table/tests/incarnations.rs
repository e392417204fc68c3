//! Incarnations, one thread at a time: what is open, what is adopted, and when what has been closed is freed. (What
//! happens beside each other is in `loom/incarnations.rs`.)
#![cfg(not(loom))]

use permit_table::{pin, Dismantle, Gate, Incarnations, Progress};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What is opened: it goes in this many steps, and says when it is gone.
struct Piecewise {
    number: u64,
    pieces: usize,
    alive: Arc<AtomicU64>,
}

impl Dismantle for Piecewise {
    fn dismantle(&mut self) -> bool {
        self.pieces -= 1;
        self.pieces > 0
    }
}

impl Drop for Piecewise {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Incarnations of a test's own. In the end nothing is open, and nothing left to free.
struct Stage {
    incarnations: &'static Incarnations<Piecewise>,
    alive: Arc<AtomicU64>,
}

impl Stage {
    fn new(incarnations: &'static Incarnations<Piecewise>) -> Self {
        Self {
            incarnations,
            alive: Arc::default(),
        }
    }

    fn open(&self, number: u64, keep: bool) -> Gate<Piecewise> {
        let opening = self.incarnations.opening(keep).unwrap();
        let gate = opening.gate();
        assert!(gate.incarnation(&pin()).is_none(), "it leads nowhere yet");
        self.alive.fetch_add(1, Ordering::Relaxed);
        opening.open(Piecewise {
            number,
            pieces: 3,
            alive: Arc::clone(&self.alive),
        });
        gate
    }

    fn current(&self) -> Option<u64> {
        self.incarnations.current(&pin()).map(|open| open.number)
    }

    /// Is there none for who opens with this wish?
    fn adopts_nothing(&self, keep: bool) -> bool {
        let opening = self.incarnations.opening(keep).unwrap();
        opening.adopted().is_none()
    }

    fn step(&self) -> Progress {
        let progress = self.incarnations.dismantle_step();
        self.incarnations.drop_emptied();
        progress
    }

    /// As `step`, once nobody is inside. Other tests are, now and then: pins are not of one stage.
    fn step_in_peace(&self) -> Progress {
        loop {
            match self.step() {
                Progress::Waiting => std::thread::yield_now(),
                progress => return progress,
            }
        }
    }

    /// So many steps, and nothing is left to free but so many that live.
    fn goes_in(&self, steps: usize, left: u64) {
        for _ in 0..steps {
            assert_eq!(self.step_in_peace(), Progress::More);
        }
        assert_eq!(self.step_in_peace(), Progress::Done);
        assert_eq!(self.alive.load(Ordering::Relaxed), left);
    }
}

fn behind(gate: &Gate<Piecewise>) -> Option<u64> {
    gate.incarnation(&pin()).map(|open| open.number)
}

#[test]
fn i2_to_open_closes_the_one_before() {
    static OWN: Incarnations<Piecewise> = Incarnations::new();
    let stage = Stage::new(&OWN);
    assert_eq!(stage.current(), None);
    let first = stage.open(1, false);
    assert_eq!((stage.current(), behind(&first)), (Some(1), Some(1)));
    stage.goes_in(0, 1);
    let second = stage.open(2, false);
    assert_eq!((stage.current(), behind(&second)), (Some(2), Some(2)));
    assert_eq!(behind(&first), None);
    stage.goes_in(3, 1);
    second.close();
    assert_eq!((stage.current(), behind(&second)), (None, None));
    stage.goes_in(3, 0);
}

/// P10, I1, I3: whoever comes late by the gate of one that was closed does not touch the next.
#[test]
fn p10_a_late_close_or_death_touches_nothing_else() {
    static OWN: Incarnations<Piecewise> = Incarnations::new();
    let stage = Stage::new(&OWN);
    let first = stage.open(1, false);
    let second = stage.open(2, false);
    for _ in 0..2 {
        first.close();
        first.abandon();
    }
    assert_eq!((stage.current(), behind(&second)), (Some(2), Some(2)));
    second.close();
    second.close();
    stage.goes_in(6, 0);
}

#[test]
fn p10_one_that_is_kept_outlives_who_opened_it() {
    static OWN: Incarnations<Piecewise> = Incarnations::new();
    let stage = Stage::new(&OWN);
    let plain = stage.open(1, false);
    assert!(stage.adopts_nothing(true));
    plain.abandon();
    assert_eq!(stage.current(), None);
    assert!(stage.adopts_nothing(true));

    let kept = stage.open(2, true);
    kept.abandon();
    assert_eq!(stage.current(), Some(2));
    assert!(
        stage.adopts_nothing(false),
        "who does not keep adopts nothing"
    );
    let opening = stage.incarnations.opening(true).unwrap();
    let (gate, adopted) = opening.adopted().unwrap();
    assert_eq!((adopted.number, behind(&gate)), (2, Some(2)));
    drop(opening);
    gate.abandon();
    assert_eq!(stage.current(), Some(2));
    gate.close();
    assert_eq!((stage.current(), behind(&kept)), (None, None));
    stage.goes_in(6, 0);
}

#[test]
fn i2_nothing_is_freed_while_somebody_is_inside() {
    static OWN: Incarnations<Piecewise> = Incarnations::new();
    let stage = Stage::new(&OWN);
    let gate = stage.open(1, false);
    let inside = pin();
    let found = stage.incarnations.current(&inside).unwrap();
    gate.close();
    assert_eq!(stage.step(), Progress::Waiting);
    assert_eq!(found.number, 1);
    drop(inside);
    stage.goes_in(3, 0);

    assert!(stage.incarnations.shared().is_none());
    let gate = stage.open(2, false);
    let shared = stage.incarnations.shared().unwrap();
    gate.close();
    assert_eq!(stage.step(), Progress::Waiting);
    assert_eq!(shared.number, 2);
    drop(shared);
    stage.goes_in(3, 0);
}

#[test]
fn closed_ones_go_in_the_order_of_their_closing_without_the_lock() {
    static OWN: Incarnations<Numbered> = Incarnations::new();
    static GONE: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    struct Numbered(u64);
    impl Dismantle for Numbered {
        fn dismantle(&mut self) -> bool {
            false
        }
    }
    impl Drop for Numbered {
        fn drop(&mut self) {
            // It may take long, so others open in the meantime. (If they could not, this would never end.)
            drop(OWN.opening(false).unwrap());
            GONE.lock().unwrap().push(self.0);
        }
    }
    for number in 1..=5 {
        OWN.opening(false).unwrap().open(Numbered(number));
    }
    while OWN.dismantle_step() != Progress::Done {
        std::thread::yield_now();
    }
    assert!(GONE.lock().unwrap().is_empty() && OWN.has_emptied());
    OWN.drop_emptied();
    assert!(!OWN.has_emptied());
    assert_eq!(*GONE.lock().unwrap(), [1, 2, 3, 4]);
}
