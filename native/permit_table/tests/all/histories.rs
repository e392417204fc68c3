//! Random calls of one thread, one after the other: after each call, the table answers, tells and reports what the
//! specification says (`specification.rs`).

use crate::common::*;
use crate::specification::{OneKey, HOLDERS};
use permit_table::{pin, Given, Holder, NotHeld, OutOfMemory, Totals, WaitEnd, Waited};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::num::NonZeroU64;

/// The time of a call: the unit of the times in slots.
const CALL_US: u64 = 100_000;

/// The most calls of a history with requests that wait.
const CALLS: usize = if cfg!(miri) { 40 } else { 150 };

const MAX_CAPACITY: u64 = 6;
const MAX_WEIGHT: u64 = 5;

/// Processes and keys of a history with requests that wait.
const WAITERS: usize = 4;
const CONTENDED: u64 = 4;

/// Requests of one holder that wait for one key. The model tries all orders in which a death can end them.
const WAITS: usize = 3;

/// Keys of a history without such requests: more than a slot has entries.
const KEYS: u64 = 12;

#[derive(Clone, Debug)]
enum Call {
    /// Holder, key, weight, capacity.
    Acquire(usize, u64, u64, u64),
    /// Holder, key, weight, capacity, the most requests that may wait before this one.
    Wait(usize, u64, u64, u64, usize),
    /// One of the requests that wait, or of all requests. By its process or another one.
    Cancel(prop::sample::Index, bool, bool),
    /// Holder, key.
    Release(usize, u64),
    /// Holder, key, permits.
    ReleaseMany(usize, u64, u64),
    /// Giver, target, key, permits, whether the target is alive.
    Give(usize, usize, u64, u64, bool),
    /// Key, capacity.
    Resize(u64, u64),
    /// Holder.
    Die(usize),
    /// The death of a process is reported after a new one has its pid.
    DieLate(usize),
    Sweep,
    /// A part of a pass.
    Step(usize),
}

/// A call that is made whether requests wait or not.
fn plain_call() -> impl Strategy<Value = Call> {
    let (holder, key) = (|| 0..HOLDERS, || 0..KEYS);
    prop_oneof![
        6 => (holder(), key(), prop_oneof![9 => 0..5u64, 1 => Just(u64::MAX)])
            .prop_map(|(holder, key, capacity)| Call::Acquire(holder, key, 1, capacity)),
        4 => (holder(), key()).prop_map(|(holder, key)| Call::Release(holder, key)),
        1 => holder().prop_map(Call::Die),
        1 => holder().prop_map(Call::DieLate),
        1 => Just(Call::Sweep),
        3 => (1..9usize).prop_map(Call::Step),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let holder = || 0..WAITERS;
    // Mostly the first two, so that many requests wait for one.
    let key = || prop_oneof![4 => 0..2u64, 1 => 0..CONTENDED];
    let weight = || prop_oneof![2 => Just(1u64), 3 => 1..=MAX_WEIGHT];
    let capacity = || 0..=MAX_CAPACITY;
    let max_waiting = prop_oneof![9 => Just(usize::MAX), 1 => 0..4usize];
    prop_oneof![
        4 => (holder(), key(), weight(), capacity())
            .prop_map(|(holder, key, weight, capacity)| Call::Acquire(holder, key, weight, capacity)),
        8 => (holder(), key(), weight(), capacity(), max_waiting)
            .prop_map(|(holder, key, weight, capacity, max)| Call::Wait(holder, key, weight, capacity, max)),
        3 => (any::<prop::sample::Index>(), prop::bool::weighted(0.8), prop::bool::weighted(0.9))
            .prop_map(|(index, waits, is_own)| Call::Cancel(index, waits, is_own)),
        6 => (holder(), key()).prop_map(|(holder, key)| Call::Release(holder, key)),
        4 => (holder(), key(), weight())
            .prop_map(|(holder, key, permits)| Call::ReleaseMany(holder, key, permits)),
        3 => (holder(), holder(), key(), 1..4u64, prop::bool::weighted(0.9))
            .prop_map(|(giver, target, key, permits, alive)| Call::Give(giver, target, key, permits, alive)),
        1 => (key(), capacity()).prop_map(|(key, capacity)| Call::Resize(key, capacity)),
        1 => holder().prop_map(Call::Die),
        1 => holder().prop_map(Call::DieLate),
        1 => Just(Call::Sweep),
        1 => (1..9usize).prop_map(Call::Step),
    ]
}

/// The table and the model, side by side.
struct Pair {
    table: Table,
    places: usize,
    mailbox: Mailbox,
    model: Vec<OneKey>,
    /// Key and holder of each request.
    requests: Vec<(u64, usize)>,
    counted: Totals,
    /// Since the last sweep.
    longest_wait_us: u64,
    /// Since when processes hold permits.
    begun: BTreeMap<u64, u64>,
    /// Calls so far.
    made: usize,
}

impl Pair {
    fn new(places: usize, keys: u64) -> Self {
        Self {
            table: Table::new(8).unwrap(),
            places,
            mailbox: Mailbox::default(),
            model: vec![OneKey::default(); keys as usize],
            requests: Vec::new(),
            counted: Totals::default(),
            longest_wait_us: 0,
            begun: BTreeMap::new(),
            made: 0,
        }
    }

    fn process(&self, number: usize) -> Holder {
        displaced_holder(number as u64, (number % self.places) as u64)
    }

    fn keys(&self) -> std::ops::Range<u64> {
        0..self.model.len() as u64
    }

    fn key(&mut self, key: u64) -> &mut OneKey {
        &mut self.model[key as usize]
    }

    /// What was granted to the requests of one key since the last step.
    fn told(&self, messages: &[(u64, WaitEnd)], key: u64) -> Vec<(u64, u64)> {
        let of_key = messages
            .iter()
            .filter(|(request, _)| self.requests[*request as usize].0 == key);
        let granted = of_key.map(|(request, told)| match told {
            WaitEnd::Granted(out) => (*request, *out),
            WaitEnd::Closed => panic!("the table is open"),
        });
        granted.collect()
    }

    fn call(&mut self, call: &Call) {
        let now_us = self.made as u64 * CALL_US;
        set_now(now_us);
        self.table.advance_clock(now_us);
        let before = self.model.clone();
        let mut died = None;
        match *call {
            Call::Acquire(number, key, weight, capacity) => {
                let process = self.process(number);
                let expected = self.key(key).acquire(number, weight, capacity);
                let acquired = match weight {
                    1 => acquire(&self.table, process, key, capacity),
                    _ => acquire_many(&self.table, process, key, demand(weight, capacity)),
                };
                assert_eq!(acquired, expected);
                match expected {
                    Some(_) => self.model[key as usize].assert_fifo(
                        &before[key as usize].queue,
                        u64::MAX,
                        weight,
                        capacity,
                    ),
                    None => {
                        self.table.count_refusal(&pin());
                        self.counted.refused += 1;
                    }
                }
            }
            Call::Wait(number, key, weight, capacity, max_waiting) => {
                let queue = &before[key as usize].queue;
                let own = queue.iter().filter(|waiter| waiter.holder == number);
                if own.count() < WAITS {
                    self.wait(number, key, weight, capacity, max_waiting);
                }
            }
            Call::Cancel(index, waits, is_own) => {
                let waiters = self.model.iter().flat_map(|key| &key.queue);
                let waiters: Vec<u64> = waiters.map(|waiter| waiter.request).collect();
                let request = match (waits && !waiters.is_empty(), self.requests.len()) {
                    (true, _) => *index.get(&waiters),
                    (false, 0) => return,
                    (false, len) => index.index(len) as u64,
                };
                let (key, owner) = self.requests[request as usize];
                let caller = if is_own { owner } else { (owner + 1) % WAITERS };
                let expected = is_own && self.key(key).end(request);
                if expected {
                    self.key(key).settle();
                }
                let process = self.process(caller);
                if request % 2 == 0 {
                    assert_eq!(cancel(&self.table, process, request), expected);
                } else {
                    assert_eq!(time_out(&self.table, process, request), expected);
                    if expected {
                        self.counted.timed_out += 1;
                        self.counted.refused += 1;
                        self.count_wait(request);
                    }
                }
            }
            Call::Release(number, key) => {
                let process = self.process(number);
                let is_held = self.key(key).take(number, 1);
                self.key(key).settle();
                self.count_release(is_held, 1);
                let expected = if is_held { Ok(()) } else { Err(NotHeld) };
                assert_eq!(release(&self.table, process, key), expected);
            }
            Call::ReleaseMany(number, key, permits) => {
                let process = self.process(number);
                let is_held = self.key(key).take(number, permits);
                self.key(key).settle();
                self.count_release(is_held, permits);
                let expected = if is_held { Ok(()) } else { Err(NotHeld) };
                assert_eq!(release_many(&self.table, process, key, permits), expected);
            }
            Call::Give(giver, target, key, permits, is_alive) => {
                let has_slot = self.table.knows(self.process(target));
                let is_alive_there = giver == target || is_alive || has_slot;
                let expected = if self.key(key).held(giver) < permits {
                    Given::NotHeld
                } else if is_alive_there {
                    self.key(key).give(giver, target, permits);
                    if giver != target {
                        self.counted.transferred += permits;
                    }
                    Given::Given
                } else {
                    Given::NotAlive
                };
                let (giver, target) = (self.process(giver), self.process(target));
                let permits = NonZeroU64::new(permits).unwrap();
                let watch = || Ok::<bool, OutOfMemory>(is_alive);
                let given = self
                    .table
                    .give(&pin(), giver, target, &NameQuery(key), permits, watch);
                assert_eq!(given, Ok(expected));
            }
            Call::Resize(key, capacity) => {
                self.key(key).resize(capacity);
                resize(&self.table, key, capacity);
            }
            Call::Die(number) => died = Some((number, die(&self.table, self.process(number)))),
            Call::DieLate(number) => {
                let process = self.process(number);
                let released = self.table.release_all(&pin(), process, || true, ());
                assert_eq!(released, 0);
            }
            Call::Sweep => {
                sweep(&self.table);
                assert_eq!(
                    self.table.take_longest_wait(),
                    mem::take(&mut self.longest_wait_us)
                );
            }
            Call::Step(budget) => {
                step(&self.table, budget);
            }
        }
        let messages = self.mailbox.read();
        if let Some((number, released)) = died {
            self.die(number, released, &messages);
        }
        self.check_messages(&before, &messages, matches!(call, Call::Resize(..)));
        self.made += 1;
        // An interpreter takes a second for each.
        if !cfg!(miri) || self.made % 16 == 0 {
            self.check();
        }
        if !cfg!(miri) {
            self.check_begun(call, now_us);
        }
    }

    fn wait(&mut self, number: usize, key: u64, weight: u64, capacity: u64, max_waiting: usize) {
        let request = self.requests.len() as u64;
        self.requests.push((key, number));
        let process = self.process(number);
        let model = self.key(key);
        let before = model.queue.clone();
        let expected = if before.len() >= max_waiting {
            Waited::Full
        } else if let Some(out) = model.wait(request, number, weight, capacity) {
            model.assert_fifo(&before, u64::MAX, weight, capacity);
            Waited::Permit(out)
        } else {
            model.settle();
            assert_eq!(model.granted, [], "P12: no older request could be granted");
            Waited::Waiting
        };
        let mut ask = ask(&self.mailbox, request, demand(weight, capacity));
        ask.max_waiting = max_waiting;
        assert_eq!(wait(&self.table, process, key, ask), expected);
    }

    /// The number of a request is the time at which it began to wait.
    fn count_wait(&mut self, request: u64) {
        let wait_us = self.made as u64 * CALL_US - request;
        self.counted.wait_us += wait_us;
        self.longest_wait_us = self.longest_wait_us.max(wait_us);
    }

    fn count_release(&mut self, is_held: bool, permits: u64) {
        match is_held {
            true => self.counted.released += permits,
            false => self.counted.not_held += 1,
        }
    }

    /// Takes over the outcome of a death that the table shows.
    fn die(&mut self, number: usize, released: u64, messages: &[(u64, WaitEnd)]) {
        let mut expected = 0;
        for key in self.keys() {
            let told = self.told(messages, key);
            let out = count(&self.table, key);
            let outcomes = self.model[key as usize].deaths(number).into_iter();
            let mut seen =
                outcomes.filter(|(model, _)| granted(model).eq(told.clone()) && model.out() == out);
            let (model, permits) = seen.next().expect("an outcome of the specification");
            self.model[key as usize] = model;
            expected += permits;
        }
        assert_eq!(released, expected);
        self.counted.released_by_death += released;
    }

    fn check_messages(&mut self, before: &[OneKey], messages: &[(u64, WaitEnd)], is_resized: bool) {
        for key in self.keys() {
            let told = self.told(messages, key);
            let model = self.key(key);
            let expected: Vec<_> = granted(model).collect();
            model.granted.clear();
            assert_eq!(told, expected, "what was told about key {key}");
            self.counted.handed_over += told.len() as u64;
            told.iter()
                .for_each(|(request, _)| self.count_wait(*request));
            let queue = &before[key as usize].queue;
            for (request, _) in told {
                let waiter = queue.iter().find(|waiter| waiter.request == request);
                let waiter = waiter.unwrap();
                // `resize` changes the capacities.
                if !is_resized {
                    let (weight, capacity) = (waiter.permits, waiter.capacity);
                    self.model[key as usize].assert_fifo(queue, request, weight, capacity);
                }
            }
        }
    }

    /// A process that holds permits began when it held none.
    fn check_begun(&mut self, call: &Call, now_us: u64) {
        let begun = begun(&self.table);
        let is_only_more = matches!(call, Call::Acquire(..) | Call::Wait(..) | Call::Give(..));
        for (holder, since) in &begun {
            match self.begun.get(holder) {
                None => assert_eq!(*since, now_us),
                Some(before) if since == before => {}
                // It can have lost all its permits before it got others.
                Some(_) => assert!(*since == now_us && !is_only_more, "of {holder}"),
            }
        }
        self.begun = begun;
    }

    fn check(&self) {
        let mut rows = BTreeMap::new();
        for (key, model) in (0..).zip(&self.model) {
            model.assert_invariants();
            assert_eq!(count(&self.table, key), model.out(), "permits of key {key}");
            assert_eq!(
                waiting(&self.table, key),
                model.queue.len(),
                "waiting for key {key}"
            );
            let collected = model.queue.iter();
            let collected = collected.map(|waiter| (waiter.holder, waiter.collected));
            let held = (0..HOLDERS).map(|holder| (holder, model.held(holder)));
            for (holder, permits) in held.chain(collected).filter(|(_, permits)| *permits > 0) {
                *rows.entry((holder as u64, key)).or_default() += permits;
            }
            let of_key = rows.iter().filter(|((_, of), _)| *of == key);
            let of_key = of_key.map(|(row, permits)| (*row, *permits)).collect();
            assert_eq!(holders_of(&self.table, key), of_key);
        }
        assert_eq!(all_permits(&self.table), rows);
        for number in 0..HOLDERS {
            let of_holder = rows.iter().filter(|((of, _), _)| *of == number as u64);
            let of_holder = of_holder
                .map(|((_, key), permits)| (*key, *permits))
                .collect();
            assert_eq!(held(&self.table, self.process(number)), of_holder);
        }
        let pin = pin();
        let lines = lines(&self.table, &pin);
        for (key, model) in (0..).zip(&self.model) {
            let line = lines
                .get(&key)
                .map(|line| (line.waiting, line.oldest - 1, line.since));
            let first = model.queue.first();
            let expected =
                first.map(|first| (model.queue.len(), first.holder as u64, first.request));
            assert_eq!(line, expected);
        }
        let out = rows.values().sum::<u64>();
        assert_eq!(permits(&self.table), out);
        let usage = self.table.usage();
        let holders: BTreeSet<u64> = rows.keys().map(|(holder, _)| *holder).collect();
        let queued = self.model.iter().map(|key| key.queue.len()).sum();
        assert_eq!((usage.holders, usage.waiting), (holders.len(), queued));
        let counted = Totals {
            granted: out + self.counted.released + self.counted.released_by_death,
            reclaimed: usage.totals.reclaimed,
            ..self.counted
        };
        assert_eq!(usage.totals, counted);
        assert_eq!(usage.longest_wait_us, self.longest_wait_us);
    }

    /// Every holder releases what it has, until none has any.
    fn drain(&mut self) {
        let all = || (0..WAITERS).flat_map(|holder| (0..CONTENDED).map(move |key| (holder, key)));
        let first_held =
            |model: &[OneKey]| all().find(|(holder, key)| model[*key as usize].held(*holder) > 0);
        while let Some((holder, key)) = first_held(&self.model) {
            self.call(&Call::Release(holder, key));
        }
        for waiter in self.model.iter().flat_map(|key| &key.queue) {
            assert!(!waiter.is_satisfiable(), "never granted: {waiter:?}");
        }
        assert_eq!(permits(&self.table), 0);
    }

    /// All processes die.
    fn die_all(&mut self) {
        for number in 0..WAITERS {
            self.call(&Call::Die(number));
        }
    }

    /// All processes die. Returns the memory that is left.
    fn end(mut self) -> isize {
        self.die_all();
        assert_empty(&self.table);
        let usage = self.table.usage();
        assert_eq!((usage.waiting, lines(&self.table, &pin()).len()), (0, 0));
        let totals = usage.totals;
        assert_eq!(totals.granted, totals.released + totals.released_by_death);
        memory_of(self.table)
    }

    /// Uses every key and holder once, so that lists have the memory that they keep.
    fn warm_up(&mut self) {
        for number in 0..WAITERS {
            for key in self.keys() {
                self.call(&Call::Acquire(number, key, 1, MAX_CAPACITY));
                self.call(&Call::Wait(number, key, 1, 0, usize::MAX));
            }
        }
        self.die_all();
    }
}

/// What was told to the requests that were granted.
fn granted(model: &OneKey) -> impl Iterator<Item = (u64, u64)> + '_ {
    let granted = model.granted.iter();
    granted.map(|grant| (grant.request, grant.out))
}

proptest! {
    /// P1, P2, P4, P5, P6, P8: while no request waits. Places collide on purpose.
    #[test]
    fn table_and_specification_agree(
        calls in prop::collection::vec(plain_call(), 0..2 * CALLS),
        places in 1..8usize,
    ) {
        let mut pair = Pair::new(places, KEYS);
        calls.iter().for_each(|call| pair.call(call));
    }

    /// P1, P2, P4, P5, P6, P8, P11 to P14, W1, W4: with all calls. A drained table has no request that could be
    /// granted, no key, and no more memory than at first.
    #[test]
    fn p11_p12_p13_table_and_specification_agree(
        calls in prop::collection::vec(call(), 0..CALLS),
        places in 1..=WAITERS,
    ) {
        let pair = || {
            let mut pair = Pair::new(places, CONTENDED);
            pair.warm_up();
            pair
        };
        let memory = pair().end();
        let mut pair = pair();
        calls.iter().for_each(|call| pair.call(call));
        pair.drain();
        // The lists of the sweep, and lists that had an entry, keep some memory.
        let left = pair.end();
        prop_assert!(left <= memory + 1024, "{left} bytes are left, {memory} at first");
    }
}
