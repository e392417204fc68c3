//! Incarnations in a single thread: which one is open, which one is adopted, and when a closed one is freed.
//! (`loom/incarnations.rs` has the concurrent cases.)

use permit_table::{pin, Dismantle, Gate, Incarnations, Progress};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The content of an incarnation. It is dismantled in `pieces` steps, and `alive` counts the ones that are not dropped.
struct Content {
    number: u64,
    pieces: usize,
    alive: Arc<AtomicU64>,
}

impl Dismantle for Content {
    fn dismantle(&mut self) -> bool {
        self.pieces -= 1;
        self.pieces > 0
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The incarnations of one test. At the end of each test, nothing is open or left to free.
struct Fixture {
    incarnations: &'static Incarnations<Content>,
    alive: Arc<AtomicU64>,
}

impl Fixture {
    fn new(incarnations: &'static Incarnations<Content>) -> Self {
        Self {
            incarnations,
            alive: Arc::default(),
        }
    }

    fn open(&self, number: u64) -> Gate<Content> {
        let opening = self.incarnations.opening().unwrap();
        let gate = opening.gate();
        assert!(gate.incarnation(&pin()).is_none(), "not open yet");
        self.alive.fetch_add(1, Ordering::Relaxed);
        let content = Content {
            number,
            pieces: 3,
            alive: Arc::clone(&self.alive),
        };
        opening.open(content);
        gate
    }

    fn current(&self) -> Option<u64> {
        self.incarnations.current(&pin()).map(|open| open.number)
    }

    fn step(&self) -> Progress {
        let progress = self.incarnations.dismantle_step();
        self.incarnations.drop_emptied();
        progress
    }

    /// As `step`, but waits while pins of other tests delay it.
    fn step_unless_pinned(&self) -> Progress {
        loop {
            match self.step() {
                Progress::Waiting => std::thread::yield_now(),
                progress => return progress,
            }
        }
    }

    /// Checks that `steps` steps free everything closed, and that `left` contents are still alive.
    fn assert_freed_in(&self, steps: usize, left: u64) {
        for _ in 0..steps {
            assert_eq!(self.step_unless_pinned(), Progress::More);
        }
        assert_eq!(self.step_unless_pinned(), Progress::Done);
        assert_eq!(self.alive.load(Ordering::Relaxed), left);
    }
}

fn reached_by(gate: &Gate<Content>) -> Option<u64> {
    gate.incarnation(&pin()).map(|open| open.number)
}

#[test]
fn i2_open_closes_the_previous() {
    static OWN: Incarnations<Content> = Incarnations::new();
    let fixture = Fixture::new(&OWN);
    assert_eq!(fixture.current(), None);
    let first = fixture.open(1);
    assert_eq!((fixture.current(), reached_by(&first)), (Some(1), Some(1)));
    fixture.assert_freed_in(0, 1);
    let second = fixture.open(2);
    assert_eq!((fixture.current(), reached_by(&second)), (Some(2), Some(2)));
    assert_eq!(reached_by(&first), None);
    fixture.assert_freed_in(3, 1);
    second.close(|_| ());
    assert_eq!((fixture.current(), reached_by(&second)), (None, None));
    fixture.assert_freed_in(3, 0);
}

/// P10, I1, I3: a call through the gate of a closed incarnation does not affect the next one.
#[test]
fn p10_late_close_or_death_leaves_the_next_open() {
    static OWN: Incarnations<Content> = Incarnations::new();
    let fixture = Fixture::new(&OWN);
    let first = fixture.open(1);
    let second = fixture.open(2);
    for _ in 0..2 {
        first.close(|_| ());
        first.close_if(|_| unreachable!(), |_| ());
    }
    assert_eq!((fixture.current(), reached_by(&second)), (Some(2), Some(2)));
    second.close(|_| ());
    second.close(|_| ());
    fixture.assert_freed_in(6, 0);
}

#[test]
fn i4_the_open_incarnation_is_adopted_or_replaced() {
    static OWN: Incarnations<Content> = Incarnations::new();
    let fixture = Fixture::new(&OWN);
    assert!(OWN.opening().unwrap().current().is_none());
    let first = fixture.open(1);
    first.close_if(|open| open.number != 1, |_| ());
    let opening = OWN.opening().unwrap();
    let (gate, adopted) = opening.current().unwrap();
    assert_eq!((adopted.number, reached_by(&gate)), (1, Some(1)));
    drop(opening);
    assert_eq!((fixture.current(), reached_by(&first)), (Some(1), Some(1)));
    gate.close_if(|open| open.number == 1, |_| ());
    assert_eq!((fixture.current(), reached_by(&first)), (None, None));
    fixture.assert_freed_in(3, 0);
}

#[test]
fn i2_nothing_is_freed_while_a_thread_is_inside() {
    static OWN: Incarnations<Content> = Incarnations::new();
    let fixture = Fixture::new(&OWN);
    let gate = fixture.open(1);
    let inside = pin();
    let found = fixture.incarnations.current(&inside).unwrap();
    gate.close(|_| ());
    assert_eq!(fixture.step(), Progress::Waiting);
    assert_eq!(found.number, 1);
    drop(inside);
    fixture.assert_freed_in(3, 0);
}

#[test]
fn closed_tables_are_dropped_in_order_without_the_lock() {
    static OWN: Incarnations<Numbered> = Incarnations::new();
    static DROPPED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    struct Numbered(u64);
    impl Dismantle for Numbered {
        fn dismantle(&mut self) -> bool {
            false
        }
    }
    impl Drop for Numbered {
        fn drop(&mut self) {
            // Other threads can open during a long drop. If they could not, this would block forever.
            drop(OWN.opening().unwrap());
            DROPPED.lock().unwrap().push(self.0);
        }
    }
    let gates = [1, 2, 3, 4, 5].map(|number| {
        let opening = OWN.opening().unwrap();
        let gate = opening.gate();
        opening.open(Numbered(number));
        gate
    });
    while OWN.dismantle_step() != Progress::Done {
        std::thread::yield_now();
    }
    assert!(DROPPED.lock().unwrap().is_empty() && OWN.has_emptied());
    OWN.drop_emptied();
    assert!(!OWN.has_emptied());
    assert_eq!(*DROPPED.lock().unwrap(), [1, 2, 3, 4]);
    // valgrind would report the last one as lost: while it is open, `OWN` has no pointer to its beginning.
    gates[4].close(|_| ());
}
