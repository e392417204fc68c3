//! P1, P2, P4, P5, P6, P8, P11 to P14: every history is linearizable. The results of concurrent calls must be possible
//! for the same calls one after the other.
//!
//! Threads run short random histories against the table, while another thread sweeps all the time, so that keys are
//! reclaimed and created during calls. A global clock is read just before and just after each call. A history is
//! linearizable if each call can be assigned one instant between its two readings such that, in the order of these
//! instants, all results follow the specification (`State`).
//!
//! These are atomic: an acquire, a release, a gift, a count, the beginning of a wait, a cancel, and the release of a
//! dead holder's permits *of one key*. The keys of a dead holder are released one by one, in no particular order, each
//! at its own instant during [`Table::release_all`]. So a death is one call per key, and every history is checked key
//! by key. That is sufficient: a history is linearizable if and only if its part of each object is (Herlihy and Wing
//! 1990, theorem 1).
//!
//! # Waits
//!
//! A wait is two events: the call that begins it, and its end. It ends by a cancel, by a death, or in the call of
//! another thread, which grants it and sends the notice. To read whether the notice has arrived is a call, too. If
//! requests wait, the death of a process has several instants for one key (`Part`).
//!
//! A call that hands permits to several waiters tells one after the other, and lowers the count at the end, if permits
//! are left. So it is not atomic, and the specification is not valid for all histories of all calls. Each history is of
//! one [`Kind`], whose restrictions make it valid:
//!
//! - **Plain** No request waits.
//! - **Gifts** All requests are for one permit. So a call grants at most one, and everything is atomic. Notices are
//!   read at any time. No process dies before the end: the specification has no two processes with the same word. One
//!   thing is not atomic: a hand-over takes effect when it reads the count, and a moment later for the process that is
//!   granted. In between, an acquire with a larger capacity can succeed, and the process is told that it holds nothing
//!   yet (`State::fresh`).
//! - **Weights** Requests and releases are for several permits. All callers of a key have the same capacity, so nothing
//!   can be acquired while requests wait, and a caller cannot see a part of a settling. What would show that a request
//!   was granted before the call that grants it has ended, is excluded: notices are read at the end, there are no
//!   gifts, and a cancel that comes too late takes effect at any later instant.
//!
//! `histories.rs` checks all calls in all combinations, one after the other. `Table::resize` is only there and in the
//! models, because it grants many.
//!
//! # Limits
//!
//! The clock is sequentially consistent, so it hides memory orderings that are too weak. The models find those
//! (`loom/`).

use crate::common::*;
use crate::specification::{Grant, OneKey, HOLDERS};
use permit_table::{Given, Holder, WaitEnd, Waited};
use std::collections::{BTreeMap, BTreeSet};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use todc_utils::linearizability::history::{Action, History};
use todc_utils::linearizability::WGLChecker;
use todc_utils::specifications::Specification;

/// Together with the sweeping thread: as many as most machines can run in parallel.
const WORKERS: u64 = 3;

/// Each worker makes the calls of two processes in turn, like a scheduler.
const _: () = assert!(HOLDERS as u64 == 2 * WORKERS);

/// Up to three keys: a slot has two entries.
const KEYS: u64 = 3;

/// Random calls per worker and history.
const CALLS: u64 = 8;

/// Histories that run before they are checked.
const BATCH: u64 = 250;

/// More histories are run for this time, until enough calls have overlapped. After it, one is enough.
const LONGEST: Duration = Duration::from_secs(60);

/// The test fails after this time.
const HANGS: Duration = Duration::from_secs(600);

/// The calls that a history consists of. See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Gifts,
    Weights,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Acquire {
        permits: u64,
        capacity: u64,
    },
    Wait {
        permits: u64,
        capacity: u64,
        request: u64,
    },
    Cancel {
        request: u64,
    },
    ReadNotice {
        request: u64,
    },
    Release {
        permits: u64,
    },
    Give {
        to: usize,
        permits: u64,
    },
    Count,
    Die,
    /// No other call is running.
    Quiet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Permit(u64),
    Full,
    Waits,
    Cancelled(bool),
    WaitEnd(Option<u64>),
    Released,
    Gave,
    NotHeld,
    Out(u64),
    ReleasedAll(u64),
    Quiet,
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

/// What takes effect at one instant: a call, or a part of a death.
#[derive(Clone, Copy, Debug)]
enum Part {
    Whole,
    /// This request of the process ends, if it still waits.
    Request(u64),
    /// The permits that the process has acquired are released. (It has at most two keys if requests wait, so those of a
    /// key are one inline key of its slot.)
    OwnPermits,
    /// The permits that were handed over or given to the process are released.
    Credits,
}

/// The sequential specification of the calls on one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    key: OneKey,
    /// The request that was granted last, until a call of its process shows it.
    fresh: Option<Grant>,
}

impl State {
    /// Whether the holder can be told that it has fewer.
    fn lacks(&self, holder: usize, permits: u64) -> bool {
        let fresh = u64::from(self.fresh.is_some_and(|grant| grant.holder == holder));
        self.key.held(holder) - fresh < permits
    }

    /// The holder has this number of permits, which can show the latest grant.
    fn show(&mut self, holder: usize, permits: u64) {
        if self.lacks(holder, permits) {
            self.fresh = None;
        }
    }

    fn settle(&mut self) {
        let before = self.key.granted.len();
        self.key.settle();
        if let [.., last] = self.key.granted[before..] {
            self.fresh = Some(last).filter(|grant| grant.permits == 1);
        }
    }

    /// Returns whether the answer is possible.
    fn call(&mut self, call: Call, answer: Answer) -> bool {
        let holder = call.holder;
        let possible = match (call.what, answer) {
            (What::Acquire { permits, capacity }, _) => {
                let acquired = self.key.acquire(holder, permits, capacity);
                acquired.map_or(Answer::Full, Answer::Permit)
            }
            (
                What::Wait {
                    permits,
                    capacity,
                    request,
                },
                _,
            ) => {
                let acquired = self.key.wait(request, holder, permits, capacity);
                acquired.map_or(Answer::Waits, Answer::Permit)
            }
            (What::Cancel { request }, _) => Answer::Cancelled(self.key.end(request)),
            (What::ReadNotice { request }, _) => {
                let is_fresh = self.fresh.is_some_and(|grant| grant.request == request);
                if is_fresh && answer == Answer::WaitEnd(None) {
                    return true;
                }
                self.fresh = self.fresh.filter(|_| !is_fresh);
                let mut granted = self.key.granted.iter();
                let grant = granted.find(|grant| grant.request == request);
                Answer::WaitEnd(grant.map(|grant| grant.out))
            }
            (What::Quiet, _) => {
                self.fresh = None;
                Answer::Quiet
            }
            (What::Release { permits } | What::Give { permits, .. }, Answer::NotHeld) => {
                return self.lacks(holder, permits);
            }
            (What::Release { permits }, _) => {
                self.show(holder, permits);
                return self.key.take(holder, permits);
            }
            (What::Give { to, permits }, _) => {
                if to != holder {
                    self.show(holder, permits);
                }
                return self.key.give(holder, to, permits);
            }
            (What::Count, _) => Answer::Out(self.key.out()),
            (What::Die, _) => panic!("a death has parts"),
        };
        possible == answer
    }
}

impl Specification for State {
    type State = State;
    type Operation = (Call, Answer, Part);

    fn init() -> State {
        State::default()
    }

    fn apply((call, answer, part): &(Call, Answer, Part), state: &State) -> (bool, State) {
        let (mut state, holder) = (state.clone(), call.holder);
        let is_valid = match *part {
            Part::Whole => state.call(*call, *answer),
            Part::OwnPermits => {
                state.key.own[holder] = 0;
                let mut queue = state.key.queue.iter();
                queue.all(|waiter| waiter.holder != holder)
            }
            Part::Request(request) => {
                state.key.end(request);
                true
            }
            Part::Credits => {
                state.key.credits[holder] = 0;
                state.fresh = state.fresh.filter(|grant| grant.holder != holder);
                state.key.own[holder] == 0
            }
        };
        state.settle();
        (is_valid, state)
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

/// The notices of one holder.
#[derive(Default)]
struct Inbox {
    mailbox: Mailbox,
    read: Mutex<BTreeMap<u64, u64>>,
}

impl Inbox {
    /// P13: the notice of a request, if it has arrived.
    fn notice(&self, request: u64) -> Option<u64> {
        let mut read = self.read.lock().unwrap();
        for (request, told) in self.mailbox.read() {
            let WaitEnd::Granted(out) = told else {
                panic!("the table is open");
            };
            let before = read.insert(request, out);
            assert_eq!(before, None, "request {request} was told twice");
        }
        read.get(&request).copied()
    }
}

/// A running history.
#[derive(Default)]
struct Stage {
    arrived: AtomicU64,
    left: AtomicU64,
    events: Mutex<Vec<Event>>,
    inboxes: [Inbox; HOLDERS],
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

fn kind(seed: u64) -> Kind {
    match seed / KEYS % 3 {
        0 => Kind::Plain,
        _ if keys(seed) > 2 => Kind::Plain,
        1 => Kind::Gifts,
        _ => Kind::Weights,
    }
}

/// The random calls of one worker in the history of a seed. All workers run them at the same time.
fn storm_of(seed: u64, worker: u64) -> Vec<(u64, Call)> {
    let mut dice = Dice(seed * WORKERS + worker);
    let kind = kind(seed);
    // Holder, key, number and permits of each request so far.
    let mut requests = Vec::<(usize, u64, u64, u64)>::new();
    let random = |number| {
        let holder = (2 * worker + dice.roll(2)) as usize;
        let key = dice.roll(keys(seed));
        let permits = match kind {
            Kind::Gifts => 1,
            _ => 1 + dice.roll(6).saturating_sub(3),
        };
        let capacity = match kind {
            Kind::Plain => dice.roll(5),
            Kind::Gifts => dice.roll(3),
            Kind::Weights => 1 + (seed / 9 + key) % 3,
        };
        let acquire = What::Acquire { permits, capacity };
        let release = What::Release { permits };
        let request = CALLS * worker + number;
        let wait = What::Wait {
            permits,
            capacity,
            request,
        };
        let to = dice.roll(HOLDERS as u64) as usize;
        let give = What::Give { to, permits };
        let one = dice.roll(requests.len().max(1) as u64) as usize;
        let one = requests.get(one).copied();
        let (what, of) = match (kind, dice.roll(16), one) {
            (Kind::Plain, 0..=7, _) => (acquire, None),
            (Kind::Plain, 8..=12, _) => (release, None),
            (Kind::Plain, 13..=14, _) => (What::Count, None),
            (Kind::Plain, _, _) => (What::Die, None),
            (_, 0, _) => (acquire, None),
            (_, 1, _) => (release, None),
            // Of a holder that has possibly been granted a permit.
            (_, 2..=6, Some((_, _, _, permits))) => (What::Release { permits }, one),
            (_, 7, _) => (What::Count, None),
            (Kind::Weights, 8, _) => (What::Die, None),
            (Kind::Gifts, 8..=9, _) => (give, None),
            (_, 10, Some((_, _, request, _))) => (What::Cancel { request }, one),
            (Kind::Gifts, 11, Some((_, _, request, _))) => (What::ReadNotice { request }, one),
            _ => {
                requests.push((holder, key, request, permits));
                (wait, None)
            }
        };
        let (holder, key) = of.map_or((holder, key), |(holder, key, ..)| (holder, key));
        let key = match what {
            What::Die => None,
            _ => Some(key),
        };
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
    let storms = (0..WORKERS).flat_map(|worker| storm_of(seed, worker));
    let notices: Vec<_> = storms
        .filter_map(|(_, Call { holder, key, what })| match what {
            What::Wait { request, .. } => Some(call(holder, key, What::ReadNotice { request })),
            _ => None,
        })
        .collect();
    let deaths = (0..HOLDERS).map(|holder| call(holder, None, What::Die));
    let quiet = (0..keys(seed)).map(|key| call(0, Some(key), What::Quiet));
    let before = quiet.chain(counts.clone()).chain(notices.clone());
    before.chain(deaths).chain(counts).chain(notices).collect()
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

fn perform(table: &Table<Name>, seed: u64, stage: &Stage, call: Call) -> Answer {
    let holder = holder_of(seed, call.holder);
    let key = key_of(seed, call.key.unwrap_or_default());
    let inbox = &stage.inboxes[call.holder];
    let released =
        |released: Result<(), _>| released.map_or(Answer::NotHeld, |()| Answer::Released);
    match call.what {
        What::Acquire { permits, capacity } => {
            let acquired = match permits {
                1 => acquire(table, holder, key, capacity),
                _ => acquire_many(table, holder, key, demand(permits, capacity)),
            };
            acquired.map_or(Answer::Full, Answer::Permit)
        }
        What::Wait {
            permits,
            capacity,
            request,
        } => {
            let ask = ask(&inbox.mailbox, request, demand(permits, capacity));
            match wait(table, holder, key, ask) {
                Waited::Permit(out) => Answer::Permit(out),
                Waited::Waiting => Answer::Waits,
                answer => panic!("{answer:?}: the table is open, and has no limit"),
            }
        }
        What::Cancel { request } => Answer::Cancelled(cancel(table, holder, request)),
        What::ReadNotice { request } => Answer::WaitEnd(inbox.notice(request)),
        What::Release { permits: 1 } => released(release(table, holder, key)),
        What::Release { permits } => released(release_many(table, holder, key, permits)),
        What::Give { to, permits } => {
            match give(table, holder, holder_of(seed, to), key, permits) {
                Given::Given => Answer::Gave,
                Given::NotHeld => Answer::NotHeld,
                Given::NotAlive => panic!("no process dies before the end"),
            }
        }
        What::Count => Answer::Out(count(table, key)),
        What::Die => Answer::ReleasedAll(die(table, holder)),
        What::Quiet => Answer::Quiet,
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
                    let answer = perform(table, *seed, stage, call);
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

/// The instants of an event of one key.
fn parts(history: &[Event], event: &Event) -> Vec<Part> {
    let What::Die = event.call.what else {
        return vec![Part::Whole];
    };
    let own = history.iter().filter_map(|begun| match begun.call.what {
        What::Wait { request, .. }
            if begun.answer == Answer::Waits
                && begun.call.holder == event.call.holder
                && begun.called < event.called =>
        {
            Some(Part::Request(request))
        }
        _ => None,
    });
    let last = [Part::OwnPermits, Part::Credits].into_iter();
    own.chain(last).collect()
}

fn is_linearizable(history: &[Event]) -> bool {
    let with_parts = |event| {
        parts(history, event)
            .into_iter()
            .map(move |part| (event, part))
    };
    let mut actions = Vec::new();
    for (number, (event, part)) in history.iter().flat_map(with_parts).enumerate() {
        let operation = (event.call, event.answer, part);
        // Each instant as a process of its own, because those of a death can be in any order.
        actions.push((event.called, number, Action::Call(operation)));
        actions.push((event.answered, number, Action::Response(operation)));
    }
    actions.sort_by_key(|(stamp, ..)| *stamp);
    let actions = actions.into_iter();
    let actions = actions.map(|(_, number, action)| (number, action));
    let history = History::from_actions(actions.collect());
    WGLChecker::<State>::is_linearizable(history)
}

/// A history in which a cancel that came too late ends when all concurrent calls have ended. See the head of this file.
fn with_long_cancels(mut history: Vec<Event>) -> Vec<Event> {
    let storm = &history[..(WORKERS * CALLS) as usize];
    let end = storm.iter().map(|event| event.answered).max().unwrap();
    for event in &mut history {
        if event.answer == Answer::Cancelled(false) {
            event.answered = event.answered.max(end);
        }
    }
    history
}

/// P4: whether each death released as many permits as its holder had. If no request waits, and there are no gifts, only
/// the holder changes that number, so it follows from the results of the holder's own calls.
fn deaths_are_exact(history: &[Event]) -> bool {
    let mut held = BTreeMap::<_, u64>::new();
    history.iter().all(|event| {
        let Call { holder, key, what } = event.call;
        let held_here = held.entry((holder, key)).or_default();
        match (what, event.answer) {
            (What::Acquire { permits, .. }, Answer::Permit(_)) => *held_here += permits,
            (What::Release { permits }, Answer::Released) => *held_here -= permits,
            (_, Answer::ReleasedAll(permits)) => {
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

/// P4, P13: whether as many permits were released, by calls and by deaths, as were acquired, at once and after waits.
fn permits_are_conserved(history: &[Event]) -> bool {
    let (mut acquired, mut released) = (0, 0);
    let mut granted = BTreeSet::new();
    for event in history {
        match (event.call.what, event.answer) {
            (What::Acquire { permits, .. } | What::Wait { permits, .. }, Answer::Permit(_)) => {
                acquired += permits
            }
            (What::ReadNotice { request }, Answer::WaitEnd(Some(_))) => {
                granted.insert(request);
            }
            (What::Release { permits }, Answer::Released) => released += permits,
            (_, Answer::ReleasedAll(permits)) => released += permits,
            _ => {}
        }
    }
    let after_waits = history.iter().map(|event| match event.call.what {
        What::Wait {
            permits, request, ..
        } if granted.contains(&request) => permits,
        _ => 0,
    });
    acquired + after_waits.sum::<u64>() == released
}

fn check(seed: u64, history: &[Event]) {
    let kind = kind(seed);
    let judged = match kind {
        Kind::Weights => with_long_cancels(history.to_vec()),
        _ => history.to_vec(),
    };
    for key in 0..KEYS {
        let valid = is_linearizable(&of_key(&judged, key));
        assert!(
            valid,
            "key {key} of seed {seed}, {kind:?}:{}",
            describe(history)
        );
    }
    let exact = kind != Kind::Plain || deaths_are_exact(history);
    assert!(exact, "the deaths of seed {seed}:{}", describe(history));
    let conserved = permits_are_conserved(history);
    assert!(conserved, "the sum of seed {seed}:{}", describe(history));
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

/// What must occur before the end.
const EVENTS: [&str; 5] = [
    "granted after a wait",
    "cancelled",
    "cancelled too late",
    "given",
    "died while waiting",
];

fn count_events(history: &[Event], events: &mut BTreeMap<&str, u64>) {
    let (storm, end) = history.split_at((WORKERS * CALLS) as usize);
    let before_deaths = |event: &&Event| !matches!(event.call.what, What::Die);
    let granted = end.iter().take_while(before_deaths);
    let granted: BTreeSet<_> = granted
        .filter_map(|event| match (event.call.what, event.answer) {
            (What::ReadNotice { request }, Answer::WaitEnd(Some(_))) => Some(request),
            _ => None,
        })
        .collect();
    let mut waiting = BTreeSet::new();
    for event in storm {
        let holder = event.call.holder;
        let name = match (event.call.what, event.answer) {
            (What::Wait { request, .. }, Answer::Waits) => {
                waiting.insert(holder);
                if !granted.contains(&request) {
                    continue;
                }
                EVENTS[0]
            }
            (_, Answer::Cancelled(true)) => EVENTS[1],
            (What::Cancel { request }, _) if granted.contains(&request) => EVENTS[2],
            (What::Give { to, .. }, Answer::Gave) if to != holder => EVENTS[3],
            (What::Die, _) if waiting.remove(&holder) => EVENTS[4],
            _ => continue,
        };
        *events.entry(name).or_default() += 1;
    }
}

/// The number of calls on a key that overlapped with one of another worker.
fn overlapping(history: &[Event]) -> u64 {
    let overlaps = |one: &&Event| {
        let beside = |other: &Event| {
            other.worker != one.worker && other.called < one.answered && one.called < other.answered
        };
        history.iter().any(beside)
    };
    history.iter().filter(overlaps).count() as u64
}

/// P1, P2, P4, P5, P6, P8, P11, P12, P13, P14: see the head of this file.
#[test]
fn p1_every_history_is_linearizable() {
    // A run without overlapping calls proves nothing and must fail, except on one processor and in a tool that runs one
    // thread at a time. On a busy machine the workers seldom run at the same time, so more histories are run, and after
    // a while a single overlapping call is enough.
    let is_alone = cfg!(miri) || thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    let wanted = rounds(3_000);
    let start = Instant::now();
    let table = Table::new(64).unwrap();
    let (mut histories, mut overlapped) = (0, 0);
    let mut events = BTreeMap::new();
    loop {
        let seeds: Vec<_> = (histories..).take(wanted.min(BATCH) as usize).collect();
        for (seed, history) in seeds.iter().zip(play(&table, &seeds)) {
            check(*seed, &history);
            count_events(&history, &mut events);
            let of_keys = (0..KEYS).map(|key| of_key(&history, key));
            overlapped += of_keys.map(|history| overlapping(&history)).sum::<u64>();
            histories += 1;
        }
        if histories < wanted {
            continue;
        }
        let reclaimed = table.usage().totals.reclaimed;
        let mut few = EVENTS.to_vec();
        few.retain(|event| events.get(event).copied().unwrap_or(0) < wanted / 1000);
        few.extend((reclaimed <= wanted / 10).then_some("reclaimed"));
        let is_overlapped = overlapped > wanted * WORKERS * CALLS / 100;
        let is_busy = start.elapsed() > LONGEST;
        if is_alone || few.is_empty() && (is_overlapped || is_busy && overlapped > 0) {
            println!(
                "{histories} histories, {overlapped} calls overlapped, {reclaimed} keys were reclaimed: {events:?}"
            );
            break;
        }
        let in_time = start.elapsed() < HANGS;
        assert!(in_time, "too few: {few:?}, or {overlapped} overlapped");
    }
    assert_empty(&table);
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
    let acquire = |capacity| Acquire {
        permits: 1,
        capacity,
    };
    let (one, two) = (acquire(1), acquire(2));
    let release_one = Release { permits: 1 };
    let died = ReleasedAll(1);
    let taken = event(0, (0, 1), one, Permit(1));
    let refused = event(1, (2, 3), one, Full);
    let second = event(1, (2, 3), two, Permit(2));
    let counted = |stamps, out| event(1, stamps, Count, Out(out));
    // Long calls, which overlap with those from 3 to 4; short ones, which do not.
    let [releasing, dying] =
        [(release_one, Released), (Die, died)].map(|(call, answer)| event(0, (2, 5), call, answer));
    let [release, death] =
        [(release_one, Released), (Die, died)].map(|(call, answer)| event(0, (2, 3), call, answer));
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
        // P1: full, with no permit in use at any instant of the call.
        &[early(Full), late(Full)],
        &[taken, release, after],
        // P1: a permit is lost, or its release takes effect too late.
        &[taken, counted((2, 3), 0)],
        &[taken, death, after],
        // P2: a refusal has taken a permit.
        &[taken, refused, counted((4, 5), 2)],
        // P5: a caller that holds nothing releases, and a holder cannot.
        &[taken, event(1, (2, 3), release_one, Released)],
        &[taken, event(0, (2, 3), release_one, NotHeld)],
        // P6: the capacity of another call decides.
        &[taken, event(1, (2, 3), two, Full)],
        &[taken, event(1, (2, 3), acquire(0), Permit(2))],
        // P5: one release releases two.
        &[
            event(0, (0, 1), two, Permit(1)),
            second,
            event(0, (4, 5), release_one, Released),
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

/// As above, for waits and gifts. Holder 0 has the only permit. The requests 1 and 2 of holders 1 and 2 wait for it.
#[test]
fn checker_accepts_valid_and_rejects_invalid_waits() {
    use Answer::*;
    use What::*;
    let acquire = |capacity| Acquire {
        permits: 1,
        capacity,
    };
    let wait = |permits, request| Wait {
        permits,
        capacity: permits,
        request,
    };
    let one = Release { permits: 1 };
    let read = |request| ReadNotice { request };
    let begin = [
        event(0, (0, 1), acquire(1), Permit(1)),
        event(1, (2, 3), wait(1, 1), Waits),
        event(2, (4, 5), wait(1, 2), Waits),
    ];
    let collecting = [
        event(0, (0, 1), acquire(2), Permit(1)),
        event(1, (2, 3), wait(2, 1), Waits),
    ];
    let then = |begin: &[Event], calls: &[(usize, What, Answer)]| -> Vec<Event> {
        let numbered = (10..).step_by(2).zip(calls);
        let calls = numbered.map(|(stamp, (holder, what, answer))| {
            event(*holder, (stamp, stamp + 1), *what, *answer)
        });
        begin.iter().copied().chain(calls).collect()
    };
    let released = (0, one, Released);
    let first = (1, read(1), WaitEnd(Some(1)));
    let quiet = (0, What::Quiet, Answer::Quiet);
    let give = Give { to: 2, permits: 1 };
    let cancel = |request| Cancel { request };
    let valid = [
        then(
            &begin,
            &[
                released,
                first,
                (2, read(2), WaitEnd(None)),
                (3, Count, Out(1)),
            ],
        ),
        then(
            &begin,
            &[
                (1, cancel(1), Cancelled(true)),
                released,
                (2, read(2), WaitEnd(Some(1))),
            ],
        ),
        then(
            &begin,
            &[
                released,
                (1, cancel(1), Cancelled(false)),
                (1, one, Released),
                (2, one, Released),
            ],
        ),
        then(
            &begin,
            &[
                (0, Die, ReleasedAll(1)),
                first,
                (1, Die, ReleasedAll(1)),
                (2, read(2), WaitEnd(Some(1))),
            ],
        ),
        then(
            &collecting,
            &[
                (3, Count, Out(2)),
                (1, cancel(1), Cancelled(true)),
                (3, Count, Out(1)),
            ],
        ),
        then(
            &begin,
            &[
                (0, give, Gave),
                (0, one, NotHeld),
                (2, one, Released),
                first,
            ],
        ),
    ];
    for history in valid {
        assert!(is_linearizable(&history), "{}", describe(&history));
    }
    let invalid = [
        // P11: the younger one is granted, or a caller overtakes both.
        then(&begin, &[released, (2, read(2), WaitEnd(Some(1)))]),
        then(&begin, &[released, (3, acquire(1), Permit(1))]),
        // P12: no one is granted.
        then(&begin, &[released, quiet, (1, read(1), WaitEnd(None))]),
        then(&begin, &[(0, Die, ReleasedAll(1)), (3, Count, Out(0))]),
        // A process knows of its grant, and holds nothing.
        then(&begin, &[released, first, (1, one, NotHeld)]),
        // P13: cancelled and granted, granted twice, or granted and cancelled.
        then(&begin, &[(1, cancel(1), Cancelled(true)), released, first]),
        then(&begin, &[released, (1, one, Released), (1, one, Released)]),
        then(&begin, &[released, (1, cancel(1), Cancelled(true))]),
        // P4: a dead process is granted, or its grant is not passed on.
        then(&begin, &[(1, Die, ReleasedAll(0)), released, first]),
        then(
            &begin,
            &[
                released,
                (1, Die, ReleasedAll(1)),
                quiet,
                (2, read(2), WaitEnd(None)),
            ],
        ),
        // Collected permits are not counted, or lost with a cancel.
        then(&collecting, &[(3, Count, Out(1))]),
        then(
            &collecting,
            &[(1, cancel(1), Cancelled(true)), (3, Count, Out(2))],
        ),
        // P14: both hold the permit, or the count changes.
        then(
            &begin,
            &[(0, give, Gave), (0, one, Released), (2, one, Released)],
        ),
        then(&begin, &[(0, give, Gave), (3, Count, Out(2))]),
    ];
    for history in invalid {
        assert!(!is_linearizable(&history), "{}", describe(&history));
    }
    assert!(permits_are_conserved(&then(
        &begin,
        &[released, first, (1, Die, ReleasedAll(1))]
    )));
    assert!(!permits_are_conserved(&then(
        &begin,
        &[released, first, (1, Die, ReleasedAll(0))]
    )));
}
