//! P1, P2, P4, P5, P6, P8 call by call: what threads are answered at the same time must be what they could have been
//! answered one after the other.
//!
//! Short random histories are played on real threads against the real table, while another thread sweeps all the
//! time, so that keys die and are made again under their hands. A global clock is stamped just before each call and
//! just after it. Then the history is linearizable if each call can be given one instant between its two stamps so
//! that, in the order of these instants, all answers are those of the specification below (`OneKey`).
//!
//! What is atomic: an acquire, a release, a count; and the return of what a dead holder had *of one key*. The keys of
//! a dead holder come back one by one, in an order that nobody is promised, each at an instant of its own during
//! [`Table::release_all`]. So a death is a call on each key, and every history is checked key by key; which is enough:
//! a history is linearizable if and only if its part of each object is (Herlihy and Wing 1990, theorem 1).
//!
//! The stamps are sequentially consistent, so they order what the machine might not: what this cannot see are
//! orderings that are too weak. Those are the models' (`loom/`).
#![cfg(not(loom))]

mod common;

use common::*;
use permit_table::{Holder, Table};
use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::linearizability::WGLChecker;
use todc_utils::specifications::Specification;

/// With the one that sweeps as many as most machines can run at once.
const WORKERS: u64 = 3;

/// Each worker makes the calls of two processes in turn, as a scheduler does.
const HOLDERS: usize = 2 * WORKERS as usize;

/// Up to three keys: a slot has room for two.
const KEYS: u64 = 3;

/// Random calls of a worker in one history.
const CALLS: u64 = 8;

/// Histories that are played before they are checked.
const BATCH: u64 = 250;

#[derive(Clone, Copy, Debug)]
enum What {
    Acquire { capacity: u64 },
    Release,
    Count,
    Die,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Permit(u64),
    Full,
    Released,
    NotHeld,
    Out(u64),
    GivenBack(u64),
}

#[derive(Clone, Copy, Debug)]
struct Call {
    holder: usize,
    /// All of them if there is none.
    key: Option<u64>,
    what: What,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    worker: u64,
    called: u64,
    answered: u64,
    call: Call,
    answer: Answer,
}

/// The sequential specification of one key: permits by holder.
struct OneKey;

impl Specification for OneKey {
    type State = [u64; HOLDERS];
    type Operation = (Call, Answer);

    fn init() -> Self::State {
        [0; HOLDERS]
    }

    fn apply((call, answer): &(Call, Answer), state: &Self::State) -> (bool, Self::State) {
        let out: u64 = state.iter().sum();
        let held = state[call.holder];
        let (valid, holds) = match (call.what, *answer) {
            (What::Acquire { capacity }, Answer::Permit(n)) => {
                (out < capacity && n == out + 1, held + 1)
            }
            (What::Acquire { capacity }, Answer::Full) => (out >= capacity, held),
            (What::Release, Answer::Released) => (held > 0, held.saturating_sub(1)),
            (What::Release, Answer::NotHeld) => (held == 0, held),
            (What::Count, Answer::Out(n)) => (n == out, held),
            (What::Die, Answer::GivenBack(_)) => (true, 0),
            _ => (false, held),
        };
        let mut state = *state;
        state[call.holder] = holds;
        (valid, state)
    }
}

/// Rings when its worker panics: the others need not wait for it.
struct Alarm<'a> {
    seed: u64,
    panicked: &'a AtomicBool,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.panicked.store(true, Ordering::Relaxed);
            eprintln!("in the history of seed {}", self.seed);
        }
    }
}

/// One history on its way.
#[derive(Default)]
struct Stage {
    arrived: AtomicU64,
    left: AtomicU64,
    events: Mutex<Vec<Event>>,
}

impl Stage {
    /// Lets the workers begin together, spinning: to be woken takes longer than a history. A machine that is busy
    /// with something else is left to it after a moment.
    fn enter(&self, panicked: &AtomicBool) {
        let mut patience = 1000;
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < WORKERS {
            assert!(
                !panicked.load(Ordering::Relaxed),
                "another worker has panicked"
            );
            if patience > 0 {
                patience -= 1;
                spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Answers whether this worker is the last to leave: nobody else does anything here any more.
    fn leave(&self) -> bool {
        self.left.fetch_add(1, Ordering::AcqRel) + 1 == WORKERS
    }
}

/// What one worker does in the history of a seed: at first what comes to its mind, all workers at the same time.
fn storm_of(seed: u64, worker: u64) -> Vec<(u64, Call)> {
    let mut dice = Dice(seed * WORKERS + worker);
    let random = |_| {
        let what = match dice.roll(16) {
            0..8 => What::Acquire {
                capacity: dice.roll(5),
            },
            8..13 => What::Release,
            13..15 => What::Count,
            _ => What::Die,
        };
        let key = match what {
            What::Die => None,
            _ => Some(dice.roll(keys(seed))),
        };
        let holder = (2 * worker + dice.roll(2)) as usize;
        // Close together, or now and then with the time for a key to die.
        let patient = seed % 2 == 0 && dice.roll(8) == 0;
        let longest = if patient { 1000 } else { 10 };
        (dice.roll(longest), Call { holder, key, what })
    };
    (0..CALLS).map(random).collect()
}

/// How it ends, with one worker left: when nobody else does anything the counts are exact, so all that has gone wrong
/// is seen.
fn end_of(seed: u64) -> Vec<(u64, Call)> {
    let call = |holder, key, what| (0, Call { holder, key, what });
    let counts = (0..keys(seed)).map(|key| call(0, Some(key), What::Count));
    let deaths = (0..HOLDERS).map(|holder| call(holder, None, What::Die));
    counts.clone().chain(deaths).chain(counts).collect()
}

/// The fewer keys, the more the calls meet.
fn keys(seed: u64) -> u64 {
    1 + seed % KEYS
}

/// The place of a holder is no part of the answers: some have one of their own, some share one.
fn who(seed: u64, of: usize) -> Holder {
    let number = of as u64;
    match (seed + number) % 4 {
        0 => displaced_holder(number, 1),
        1 => displaced_holder(number, 0),
        _ => holder(number),
    }
}

/// Keys come again after some other histories: about as many as it takes a key to die.
fn key_of(seed: u64, key: u64) -> u64 {
    Dice(seed).roll(8) * KEYS + key
}

fn perform(table: &Table<Name>, seed: u64, call: Call) -> Answer {
    let who = who(seed, call.holder);
    let key = key_of(seed, call.key.unwrap_or_default());
    match call.what {
        What::Acquire { capacity } => {
            acquire(table, who, key, capacity).map_or(Answer::Full, Answer::Permit)
        }
        What::Release => match release(table, who, key) {
            Ok(()) => Answer::Released,
            Err(_) => Answer::NotHeld,
        },
        What::Count => Answer::Out(count(table, key)),
        What::Die => Answer::GivenBack(die(table, who)),
    }
}

/// Plays the histories of so many seeds; answers each in the order of its calls.
fn play(table: &Table<Name>, seeds: &[u64]) -> Vec<Vec<Event>> {
    let clock = AtomicU64::new(0);
    let stages: Vec<_> = seeds.iter().map(|_| Stage::default()).collect();
    let panicked = AtomicBool::new(false);
    storm(table, WORKERS, |worker| {
        for (seed, stage) in seeds.iter().zip(&stages) {
            let _alarm = Alarm {
                seed: *seed,
                panicked: &panicked,
            };
            let mut events = Vec::with_capacity(64);
            let mut make = |calls: Vec<(u64, Call)>| {
                for (pause, call) in calls {
                    (0..pause).for_each(|_| spin_loop());
                    let called = clock.fetch_add(1, Ordering::SeqCst);
                    let answer = perform(table, *seed, call);
                    let answered = clock.fetch_add(1, Ordering::SeqCst);
                    events.push(Event {
                        worker,
                        called,
                        answered,
                        call,
                        answer,
                    });
                }
            };
            let storm = storm_of(*seed, worker);
            stage.enter(&panicked);
            make(storm);
            if stage.leave() {
                make(end_of(*seed));
            }
            stage.events.lock().unwrap().append(&mut events);
        }
    });
    let in_order = stages.into_iter().map(|stage| {
        let mut events = stage.events.into_inner().unwrap();
        events.sort_by_key(|event| event.called);
        events
    });
    in_order.collect()
}

/// The part of a history that concerns one key.
fn of_key(history: &[Event], key: u64) -> Vec<Event> {
    let concerns = |event: &&Event| event.call.key.is_none_or(|of| of == key);
    history.iter().filter(concerns).copied().collect()
}

fn is_linearizable(history: &[Event]) -> bool {
    let mut actions = Vec::new();
    for event in history {
        let operation = (event.call, event.answer);
        actions.push((event.called, event.worker, Action::Call(operation)));
        actions.push((event.answered, event.worker, Action::Response(operation)));
    }
    actions.sort_by_key(|(stamp, ..)| *stamp);
    let actions = actions.into_iter();
    let actions = actions.map(|(_, worker, action)| (worker as usize, action));
    let history = History::from_actions(actions.collect());
    WGLChecker::<OneKey>::is_linearizable(history)
}

/// P4: whether each death gave back as many permits as its holder had. Only the holder changes that, so
/// it is known from the holder's own answers.
fn deaths_are_exact(history: &[Event]) -> bool {
    let mut held = BTreeMap::<_, u64>::new();
    history.iter().all(|event| {
        let Call { holder, key, .. } = event.call;
        match event.answer {
            Answer::Permit(_) => *held.entry((holder, key)).or_default() += 1,
            Answer::Released => *held.entry((holder, key)).or_default() -= 1,
            Answer::GivenBack(permits) => {
                let own = held.iter().filter(|((who, _), _)| *who == holder);
                let sum: u64 = own.map(|(_, permits)| permits).sum();
                held.retain(|(who, _), _| *who != holder);
                return permits == sum;
            }
            _ => {}
        }
        true
    })
}

fn check(seed: u64, history: &[Event]) {
    for key in 0..KEYS {
        let linearizable = is_linearizable(&of_key(history, key));
        assert!(linearizable, "key {key} of seed {seed}:{}", told(history));
    }
    let exact = deaths_are_exact(history);
    assert!(exact, "the deaths of seed {seed}:{}", told(history));
}

fn told(history: &[Event]) -> String {
    let start = history[0].called;
    let lines = history.iter().map(|event| {
        let (called, answered) = (event.called - start, event.answered - start);
        let Call { holder, key, what } = event.call;
        let worker = event.worker;
        let key = key.map_or("all keys".into(), |key| format!("key {key}"));
        let answer = event.answer;
        format!("\n{called:4} to {answered:4}  worker {worker}, holder {holder}: {what:?} {key} -> {answer:?}")
    });
    lines.collect()
}

/// How many calls on a key went on while another worker's did.
fn overlapping(history: &[Event]) -> usize {
    let overlaps = |one: &&Event| {
        let beside = |other: &Event| {
            other.worker != one.worker && other.called < one.answered && one.called < other.answered
        };
        history.iter().any(beside)
    };
    history.iter().filter(overlaps).count()
}

#[test]
fn p1_every_history_is_linearizable() {
    // What proves nothing must not pass; but a processor alone can prove no more, nor a tool that runs one thread at a
    // time. While others want the processors, the workers hardly ever run together: then more is played.
    let is_alone = cfg!(miri) || thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    let wanted = rounds(3_000);
    let table = Table::new(64).unwrap();
    let (mut overlapped, mut histories) = (0, 0);
    while histories < wanted || !is_alone && overlapped <= histories * WORKERS * CALLS / 100 {
        assert!(histories < 10 * wanted, "the calls hardly met");
        let seeds: Vec<_> = (histories..).take(wanted.min(BATCH) as usize).collect();
        for (seed, history) in seeds.iter().zip(play(&table, &seeds)) {
            check(*seed, &history);
            let of_keys = (0..KEYS).map(|key| of_key(&history, key));
            overlapped += of_keys.map(|history| overlapping(&history)).sum::<usize>() as u64;
            histories += 1;
        }
    }
    let calls = histories * WORKERS * CALLS;
    let reclaimed = table.usage().totals.reclaimed;
    println!(
        "{overlapped} of {calls} calls overlapped, {reclaimed} keys died in {histories} histories"
    );
    assert_empty(&table);
    assert!(
        cfg!(miri) || reclaimed > histories / 10,
        "hardly a key died"
    );
}

/// A call of holder and worker 0 or 1, on key 0, between two stamps.
fn event(holder: usize, stamps: (u64, u64), what: What, answer: Answer) -> Event {
    Event {
        worker: holder as u64,
        called: stamps.0,
        answered: stamps.1,
        call: Call {
            holder,
            key: Some(0),
            what,
        },
        answer,
    }
}

/// The check itself: what it has to let pass, and what it has to find, of each promise.
#[test]
fn the_check_knows_right_from_wrong() {
    use Answer::*;
    use What::*;
    let one = Acquire { capacity: 1 };
    let two = Acquire { capacity: 2 };
    let died = GivenBack(1);
    let taken = event(0, (0, 1), one, Permit(1));
    let right = [
        vec![taken, event(1, (2, 3), one, Full)],
        vec![taken, event(1, (2, 3), two, Permit(2))],
        // Beside a release or a death everything may be so or so.
        vec![
            taken,
            event(0, (2, 5), Release, Released),
            event(1, (3, 4), one, Full),
        ],
        vec![
            taken,
            event(0, (2, 5), Release, Released),
            event(1, (3, 4), one, Permit(1)),
        ],
        vec![
            taken,
            event(0, (2, 5), Die, died),
            event(1, (3, 4), Count, Out(1)),
        ],
        vec![
            taken,
            event(0, (2, 5), Die, died),
            event(1, (3, 4), Count, Out(0)),
        ],
    ];
    for history in right {
        assert!(is_linearizable(&history), "{}", told(&history));
    }
    let wrong = [
        // P1: the last permit twice, though one at a time would have been right.
        vec![
            event(0, (0, 2), one, Permit(1)),
            event(1, (1, 3), one, Permit(1)),
        ],
        // P1: full, with no permit out at any instant of the call.
        vec![event(0, (0, 2), one, Full), event(1, (1, 3), one, Full)],
        vec![
            taken,
            event(0, (2, 3), Release, Released),
            event(1, (4, 5), one, Full),
        ],
        // P1: a permit is lost, or comes too late.
        vec![taken, event(1, (2, 3), Count, Out(0))],
        vec![
            taken,
            event(0, (2, 3), Die, died),
            event(1, (4, 5), one, Full),
        ],
        // P2: a refusal that has taken something.
        vec![
            taken,
            event(1, (2, 3), one, Full),
            event(1, (4, 5), Count, Out(2)),
        ],
        // P5: who holds nothing releases, and who does cannot.
        vec![taken, event(1, (2, 3), Release, Released)],
        vec![taken, event(0, (2, 3), Release, NotHeld)],
        // P6: another's capacity counts.
        vec![taken, event(1, (2, 3), two, Full)],
        vec![taken, event(1, (2, 3), Acquire { capacity: 0 }, Permit(2))],
        // P5: a release gives two back.
        vec![
            event(0, (0, 1), two, Permit(1)),
            event(1, (2, 3), two, Permit(2)),
            event(0, (4, 5), Release, Released),
            event(1, (6, 7), Count, Out(0)),
        ],
    ];
    for history in wrong {
        assert!(!is_linearizable(&history), "{}", told(&history));
    }
    // P4: more than it had.
    let death = event(0, (2, 3), Die, died);
    assert!(deaths_are_exact(&[taken, death]));
    assert!(!deaths_are_exact(&[taken, death, death]));
}
