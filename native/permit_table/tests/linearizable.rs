//! P1, P2, P4, P5, P6, P8: every history is linearizable. The results of concurrent calls must be possible for the same
//! calls one after the other.
//!
//! Threads run short random histories against the table, while another thread sweeps all the time, so that keys are
//! reclaimed and created during calls. A global clock is read just before and just after each call. A history is
//! linearizable if each call can be assigned one instant between its two readings such that, in the order of these
//! instants, all results follow the specification below (`OneKey`).
//!
//! These are atomic: an acquire, a release, a count, and the release of a dead holder's permits *of one key*. The keys
//! of a dead holder are released one by one, in no particular order, each at its own instant during
//! [`Table::release_all`]. So a death is one call per key, and every history is checked key by key. That is sufficient:
//! a history is linearizable if and only if its part of each object is (Herlihy and Wing 1990, theorem 1).
//!
//! The clock is sequentially consistent, so it hides memory orderings that are too weak. The models find those
//! (`loom/`).
#![cfg(not(loom))]

mod common;

use common::*;
use permit_table::Holder;
use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::linearizability::WGLChecker;
use todc_utils::specifications::Specification;

/// Together with the sweeping thread: as many as most machines can run in parallel.
const WORKERS: u64 = 3;

/// Each worker makes the calls of two processes in turn, like a scheduler.
const HOLDERS: usize = 2 * WORKERS as usize;

/// Up to three keys: a slot has two entries.
const KEYS: u64 = 3;

/// Random calls per worker and history.
const CALLS: u64 = 8;

/// Histories that run before they are checked.
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
    ReleasedAll(u64),
}

#[derive(Clone, Copy, Debug)]
struct Call {
    holder: usize,
    /// `None` means all keys.
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
            (What::Die, Answer::ReleasedAll(_)) => (true, 0),
            _ => (false, held),
        };
        let mut state = *state;
        state[call.holder] = holds;
        (valid, state)
    }
}

/// Reports a panic of its worker, so that the others do not wait for it.
struct Alarm<'a> {
    seed: u64,
    panicked: &'a AtomicBool,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.panicked.store(true, Ordering::Relaxed);
            eprintln!("panic in the history of seed {}", self.seed);
        }
    }
}

/// A running history.
#[derive(Default)]
struct Stage {
    arrived: AtomicU64,
    left: AtomicU64,
    events: Mutex<Vec<Event>>,
}

impl Stage {
    /// Lets the workers start together. They spin, because waking a thread takes longer than a history. On a busy
    /// machine they yield after a moment.
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

    /// Returns whether this worker is the last one in this history.
    fn leave(&self) -> bool {
        self.left.fetch_add(1, Ordering::AcqRel) + 1 == WORKERS
    }
}

/// The random calls of one worker in the history of a seed. All workers run them at the same time.
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
        // A short pause, or sometimes one that is long enough for a key to be reclaimed.
        let patient = seed % 2 == 0 && dice.roll(8) == 0;
        let longest = if patient { 1000 } else { 10 };
        (dice.roll(longest), Call { holder, key, what })
    };
    (0..CALLS).map(random).collect()
}

/// The final calls, by the last worker. No other call runs, so the counts are exact, and every earlier error shows.
fn end_of(seed: u64) -> Vec<(u64, Call)> {
    let call = |holder, key, what| (0, Call { holder, key, what });
    let counts = (0..keys(seed)).map(|key| call(0, Some(key), What::Count));
    let deaths = (0..HOLDERS).map(|holder| call(holder, None, What::Die));
    counts.clone().chain(deaths).chain(counts).collect()
}

/// The fewer keys, the more calls overlap on one.
fn keys(seed: u64) -> u64 {
    1 + seed % KEYS
}

/// Results do not depend on the place of a holder: some holders have one alone, some share one.
fn holder_of(seed: u64, of: usize) -> Holder {
    let number = of as u64;
    match (seed + number) % 4 {
        0 => displaced_holder(number, 1),
        1 => displaced_holder(number, 0),
        _ => holder(number),
    }
}

/// A key is used again after some other histories: enough for it to be reclaimed in between.
fn key_of(seed: u64, key: u64) -> u64 {
    Dice(seed).roll(8) * KEYS + key
}

fn perform(table: &Table<Name>, seed: u64, call: Call) -> Answer {
    let holder = holder_of(seed, call.holder);
    let key = key_of(seed, call.key.unwrap_or_default());
    match call.what {
        What::Acquire { capacity } => {
            acquire(table, holder, key, capacity).map_or(Answer::Full, Answer::Permit)
        }
        What::Release => match release(table, holder, key) {
            Ok(()) => Answer::Released,
            Err(_) => Answer::NotHeld,
        },
        What::Count => Answer::Out(count(table, key)),
        What::Die => Answer::ReleasedAll(die(table, holder)),
    }
}

/// Runs the histories of these seeds. Returns each in the order of its calls.
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

/// P4: whether each death released as many permits as its holder had. Only the holder changes that number, so it
/// follows from the results of the holder's own calls.
fn deaths_are_exact(history: &[Event]) -> bool {
    let mut held = BTreeMap::<_, u64>::new();
    history.iter().all(|event| {
        let Call { holder, key, .. } = event.call;
        match event.answer {
            Answer::Permit(_) => *held.entry((holder, key)).or_default() += 1,
            Answer::Released => *held.entry((holder, key)).or_default() -= 1,
            Answer::ReleasedAll(permits) => {
                let own = held.iter().filter(|((of, _), _)| *of == holder);
                let sum: u64 = own.map(|(_, permits)| permits).sum();
                held.retain(|(of, _), _| *of != holder);
                return permits == sum;
            }
            _ => {}
        }
        true
    })
}

fn check(seed: u64, history: &[Event]) {
    for key in 0..KEYS {
        let valid = is_linearizable(&of_key(history, key));
        assert!(valid, "key {key} of seed {seed}:{}", describe(history));
    }
    let exact = deaths_are_exact(history);
    assert!(exact, "the deaths of seed {seed}:{}", describe(history));
}

fn describe(history: &[Event]) -> String {
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

/// The number of calls on a key that overlapped with one of another worker.
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
    // A run without overlapping calls proves nothing and must fail. But one processor, or a tool that runs one thread
    // at a time, cannot do better. On a busy machine few calls overlap, so more histories are run.
    let is_alone = cfg!(miri) || thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    let wanted = rounds(3_000);
    let table = Table::new(64).unwrap();
    let (mut overlapped, mut histories) = (0, 0);
    while histories < wanted || !is_alone && overlapped <= histories * WORKERS * CALLS / 100 {
        assert!(histories < 10 * wanted, "too few calls overlapped");
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
        "{overlapped} of {calls} calls overlapped, {reclaimed} keys were reclaimed in {histories} histories"
    );
    assert_empty(&table);
    assert!(
        cfg!(miri) || reclaimed > histories / 10,
        "too few keys were reclaimed"
    );
}

/// A call of holder and worker 0 or 1, on key 0, between two readings of the clock.
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

/// Tests the checker: histories that it must accept, and for each promise some that it must reject.
#[test]
fn checker_accepts_valid_and_rejects_invalid_histories() {
    use Answer::*;
    use What::*;
    let one = Acquire { capacity: 1 };
    let two = Acquire { capacity: 2 };
    let died = ReleasedAll(1);
    let taken = event(0, (0, 1), one, Permit(1));
    let refused = event(1, (2, 3), one, Full);
    let second = event(1, (2, 3), two, Permit(2));
    let counted = |stamps, out| event(1, stamps, Count, Out(out));
    // Long calls, which overlap with those from 3 to 4; short ones, which do not.
    let [releasing, dying] =
        [(Release, Released), (Die, died)].map(|(call, answer)| event(0, (2, 5), call, answer));
    let [release, death] =
        [(Release, Released), (Die, died)].map(|(call, answer)| event(0, (2, 3), call, answer));
    let during = |call, answer| event(1, (3, 4), call, answer);
    let after = event(1, (4, 5), one, Full);
    let valid: [&[Event]; 6] = [
        &[taken, refused],
        &[taken, second],
        // During a release or a death, both results are possible.
        &[taken, releasing, during(one, Full)],
        &[taken, releasing, during(one, Permit(1))],
        &[taken, dying, during(Count, Out(1))],
        &[taken, dying, during(Count, Out(0))],
    ];
    for history in valid {
        assert!(is_linearizable(history), "{}", describe(history));
    }
    let early = |answer| event(0, (0, 2), one, answer);
    let late = |answer| event(1, (1, 3), one, answer);
    let invalid: [&[Event]; 11] = [
        // P1: the last permit is granted twice, though each grant alone would be valid.
        &[early(Permit(1)), late(Permit(1))],
        // P1: full, with no permit out at any instant of the call.
        &[early(Full), late(Full)],
        &[taken, release, after],
        // P1: a permit is lost, or its release takes effect too late.
        &[taken, counted((2, 3), 0)],
        &[taken, death, after],
        // P2: a refusal has taken a permit.
        &[taken, refused, counted((4, 5), 2)],
        // P5: a caller that holds nothing releases, and a holder cannot.
        &[taken, event(1, (2, 3), Release, Released)],
        &[taken, event(0, (2, 3), Release, NotHeld)],
        // P6: the capacity of another call decides.
        &[taken, event(1, (2, 3), two, Full)],
        &[taken, event(1, (2, 3), Acquire { capacity: 0 }, Permit(2))],
        // P5: one release releases two.
        &[
            event(0, (0, 1), two, Permit(1)),
            second,
            event(0, (4, 5), Release, Released),
            counted((6, 7), 0),
        ],
    ];
    for history in invalid {
        assert!(!is_linearizable(history), "{}", describe(history));
    }
    // P4: more than it had.
    assert!(deaths_are_exact(&[taken, death]));
    assert!(!deaths_are_exact(&[taken, death, death]));
}
