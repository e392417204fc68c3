//! The promises with several threads. Every storm runs for a number of rounds, not for a time, and ends in a quiet
//! state that must be exact. `CANAL_LOCK_SOAK` multiplies the rounds (`rounds`).

use crate::common::*;
use permit_table::{pin, Cursor, Given, Holder, OutOfMemory, WaitEnd, Waited};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;

const THREADS: u64 = 4;

#[test]
fn p1_holders_never_exceed_the_capacity() {
    const KEYS: u64 = 3;
    const CAPACITY: u64 = 2;
    let table = Table::new(64).unwrap();
    let inside: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let granted = AtomicU64::new(0);
    storm(&table, THREADS, |number| {
        let mut dice = Dice(number);
        for _ in 0..rounds(100_000) {
            let key = dice.roll(KEYS);
            if let Some(out) = acquire(&table, holder(number), key, CAPACITY) {
                assert!((1..=CAPACITY).contains(&out));
                let now = inside[key as usize].fetch_add(1, Ordering::AcqRel) + 1;
                assert!(now <= CAPACITY, "{now} permits out, capacity {CAPACITY}");
                granted.fetch_add(1, Ordering::Relaxed);
                inside[key as usize].fetch_sub(1, Ordering::AcqRel);
                release(&table, holder(number), key).unwrap();
            }
        }
    });
    assert!(granted.into_inner() > 0);
    assert_empty(&table);
}

#[test]
fn p8_keys_are_created_and_reclaimed_during_calls() {
    let table = Table::new(64).unwrap();
    storm(&table, THREADS, |number| {
        let mut dice = Dice(number);
        for _ in 0..rounds(100_000) {
            // Few keys, so that callers often find one that dies. Capacity 1, so that a second node for a key would
            // show.
            let key = dice.roll(4);
            if let Some(out) = acquire(&table, holder(number), key, 1) {
                assert_eq!(out, 1);
                assert_eq!(count(&table, key), 1);
                release(&table, holder(number), key).unwrap();
            }
        }
    });
    assert_empty(&table);
}

#[test]
fn p8_table_grows_and_shrinks_during_calls() {
    let table = Table::new(64).unwrap();
    let fresh = memory_of(Table::<Name>::new(64).unwrap());
    let keys = many(30_000);
    for wave in 0..rounds(3) {
        storm(&table, THREADS, |number| {
            let own = (wave * THREADS + number) << 32;
            for key in 0..keys {
                assert_eq!(acquire(&table, holder(number), own + key, 1), Some(1));
            }
            for key in 0..keys {
                let second = acquire(&table, holder(number), own + key, 1);
                assert_eq!(second, None, "key {key}");
                release(&table, holder(number), own + key).unwrap();
            }
            die(&table, holder(number));
        });
        assert_empty(&table);
    }
    assert!(memory_of(table) < fresh + 70_000, "only the slots are left");
}

#[test]
fn p4_deaths_leak_nothing() {
    let table = Table::new(64).unwrap();
    let lives = AtomicU64::new(0);
    storm(&table, THREADS, |number| {
        let mut dice = Dice(number);
        for _ in 0..rounds(5_000) {
            let life = lives.fetch_add(1, Ordering::Relaxed);
            // Places are shared, as with pid reuse before a death is reported.
            let me = displaced_holder(life, life % 3);
            let mut held = 0;
            for _ in 0..dice.roll(12) {
                held += u64::from(acquire(&table, me, dice.roll(5), 8).is_some());
                if dice.roll(3) == 0 {
                    held -= u64::from(release(&table, me, dice.roll(5)).is_ok());
                }
            }
            assert_eq!(die(&table, me), held);
        }
    });
    assert_empty(&table);
}

/// P4: each thread runs one process after the other with the same pid. Its neighbor reports the deaths, mostly late.
#[test]
fn p4_late_report_of_a_death_with_pid_reuse() {
    const KEYS: u64 = 4;
    let table = Table::new(64).unwrap();
    let pids: Vec<(Pid, AtomicU64)> = (0..THREADS).map(|_| Default::default()).collect();
    // Two per place.
    let process = |number| displaced_holder(number, number % 2);
    let inside: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let enter = |key| assert_eq!(inside[key as usize].swap(1, Ordering::AcqRel), 0);
    let leave = |key| inside[key as usize].store(0, Ordering::Release);
    let report = |number| {
        let (pid, unreported) = &pids[number as usize];
        for _ in 0..unreported.swap(0, Ordering::Acquire) {
            table.release_all(&pin(), process(number), || pid.is_reused(), ());
        }
    };
    storm(&table, THREADS, |number| {
        let mut dice = Dice(number);
        let (pid, unreported) = &pids[number as usize];
        for _ in 0..rounds(10_000) {
            pid.start();
            let mut held = Vec::new();
            for _ in 0..dice.roll(4) {
                let key = dice.roll(KEYS);
                if acquire_watched(&table, process(number), key, 1, || pid.watch()).is_some() {
                    enter(key);
                    held.push(key);
                }
            }
            // Lets the neighbor run, also on a machine with few cores.
            if dice.roll(4) == 0 {
                thread::yield_now();
            }
            for key in held {
                leave(key);
                if dice.roll(2) == 0 {
                    release(&table, process(number), key).unwrap();
                }
            }
            unreported.fetch_add(pid.exit(), Ordering::Release);
            report((number + 1) % THREADS);
        }
    });
    (0..THREADS).for_each(report);
    assert_empty(&table);
}

#[test]
fn usage_during_calls_stays_in_bounds() {
    let table = Table::new(64).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let usage = table.usage();
                assert!(usage.permits <= 400 && usage.holders <= THREADS as usize);
            }
        });
        storm(&table, THREADS, |number| {
            for round in 0..rounds(300) {
                for key in 0..100 {
                    acquire(&table, holder(number), key, u64::MAX).unwrap();
                }
                if round % 2 == 0 {
                    for key in 0..100 {
                        release(&table, holder(number), key).unwrap();
                    }
                }
                die(&table, holder(number));
            }
        });
        over.store(true, Ordering::Relaxed);
    });
    assert_empty(&table);
}

/// The greatest capacity in the storm of requests.
const GREATEST: u64 = 3;

/// Keys of the storm of requests.
const CONTENDED: u64 = 2;

/// Ends other threads when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A request that has not ended, as its process knows.
#[derive(Clone, Copy)]
struct Pending {
    key: u64,
    permits: u64,
}

/// The processes that are alive, one per thread: 1 plus its number, or 0.
type Alive = [Mutex<u64>; THREADS as usize];

/// Permits of each key that processes know they have. At most as many as are in use.
type Inside = [AtomicU64; CONTENDED as usize];

/// A process of the storm of requests.
struct Process<'a> {
    table: &'a Table,
    inside: &'a Inside,
    me: Holder,
    mailbox: Mailbox,
    pending: BTreeMap<u64, Pending>,
    /// Permits by key: those that it was given are not among them.
    known: [u64; CONTENDED as usize],
}

impl<'a> Process<'a> {
    fn new(table: &'a Table, inside: &'a Inside, number: u64) -> Self {
        Self {
            table,
            inside,
            // Places are shared.
            me: displaced_holder(number, number % 3),
            mailbox: Mailbox::default(),
            pending: BTreeMap::new(),
            known: Default::default(),
        }
    }

    fn enter(&mut self, key: u64, permits: u64, out: u64) {
        assert!((permits..=GREATEST).contains(&out), "P1");
        let inside = self.inside[key as usize].fetch_add(permits, Ordering::AcqRel) + permits;
        assert!(inside <= GREATEST, "P1: {inside} permits of key {key}");
        self.known[key as usize] += permits;
    }

    fn leave(&mut self, key: u64, permits: u64) {
        self.inside[key as usize].fetch_sub(permits, Ordering::AcqRel);
        self.known[key as usize] -= permits;
    }

    /// P13: only requests that have not ended are told, and once.
    fn read(&mut self) {
        for (request, told) in self.mailbox.read() {
            let Pending { key, permits } = self.pending.remove(&request).expect("told once");
            match told {
                WaitEnd::Granted(out) => self.enter(key, permits, out),
                WaitEnd::Closed => panic!("the table is open"),
            }
        }
    }

    fn wait(&mut self, request: u64, key: u64, permits: u64, capacity: u64) {
        // Before the call, which can be told at once.
        self.pending.insert(request, Pending { key, permits });
        let ask = ask(&self.mailbox, request, demand(permits, capacity));
        match wait(self.table, self.me, key, ask) {
            Waited::Waiting => {}
            Waited::Permit(out) => {
                self.pending.remove(&request);
                self.enter(key, permits, out);
            }
            answer => panic!("{answer:?}"),
        }
    }

    /// W3: a request that cannot be cancelled has been told.
    fn cancel(&mut self, request: u64) {
        if cancel(self.table, self.me, request) {
            self.pending
                .remove(&request)
                .expect("it has not ended before");
            self.read();
        } else {
            self.read();
            assert!(
                !self.pending.contains_key(&request),
                "the message comes later"
            );
        }
    }

    fn release(&mut self, key: u64, permits: u64) {
        self.leave(key, permits);
        match permits {
            1 => release(self.table, self.me, key).unwrap(),
            _ => release_many(self.table, self.me, key, permits).unwrap(),
        }
    }

    /// Gives a permit to a process that may be dying.
    fn give(&mut self, key: u64, target: u64, alive: &Mutex<u64>) {
        let other = displaced_holder(target, target % 3);
        // From now on it counts as given.
        self.leave(key, 1);
        let watch = || Ok::<bool, OutOfMemory>(*alive.lock().unwrap() == target + 1);
        let (key, permits) = (NameQuery(key), NonZeroU64::MIN);
        let given = self
            .table
            .give(&pin(), self.me, other, &key, permits, watch);
        match given.unwrap() {
            Given::Given => {}
            // Not counted inside any more, which is no error, but it is held.
            Given::NotAlive => release(self.table, self.me, key.0).unwrap(),
            Given::NotHeld => panic!("it has the permit"),
        }
    }

    /// Releases a permit that it was given.
    fn release_given(&mut self, key: u64) {
        // What was granted or collected would count as given, too.
        self.read();
        let held = held(self.table, self.me).get(&key).copied().unwrap_or(0);
        if self.pending.is_empty() && held > self.known[key as usize] {
            release(self.table, self.me, key).unwrap();
        }
    }

    /// Returns the mailbox and the requests that have not ended.
    fn die(mut self, alive: &Mutex<u64>) -> (Mailbox, BTreeMap<u64, Pending>) {
        *alive.lock().unwrap() = 0;
        for key in 0..CONTENDED {
            self.leave(key, self.known[key as usize]);
        }
        die(self.table, self.me);
        (self.mailbox, self.pending)
    }
}

/// Random calls of a process. `numbers` are the next numbers of processes and requests.
fn live(process: &mut Process<'_>, dice: &mut Dice, alive: &Alive, numbers: &AtomicU64) {
    for _ in 0..dice.roll(30) {
        let (key, permits, capacity) = (dice.roll(CONTENDED), 1 + dice.roll(3), 2 + dice.roll(2));
        let known = process.known[key as usize];
        match dice.roll(16) {
            0..=5 if process.pending.len() < 3 => {
                let request = numbers.fetch_add(1, Ordering::Relaxed);
                process.wait(request, key, permits, capacity);
            }
            6..=7 => {
                let demand = demand(permits, capacity);
                if let Some(out) = acquire_many(process.table, process.me, key, demand) {
                    process.enter(key, permits, out);
                }
            }
            8..=10 if known > 0 => process.release(key, known.min(permits)),
            11 if known > 0 => {
                let other = &alive[dice.roll(THREADS) as usize];
                let target = *other.lock().unwrap();
                if target > 0 {
                    process.give(key, target - 1, other);
                }
            }
            12 => process.release_given(key),
            13 => resize(process.table, key, capacity),
            14 => {
                assert!(count(process.table, key) <= GREATEST);
                // Lets the others run, also on a machine with few cores.
                if dice.roll(32) == 0 {
                    thread::yield_now();
                }
            }
            _ => {
                let request = process.pending.keys().next().copied();
                request
                    .into_iter()
                    .for_each(|request| process.cancel(request));
            }
        }
        process.read();
    }
}

/// No call is running: what is on record is what is counted, the requests that have not ended wait, and none of them
/// could be granted or collect.
fn assert_settled(table: &Table, survivors: &mut [Process<'_>]) {
    survivors.iter_mut().for_each(Process::read);
    let rows = all_permits(table);
    for key in 0..CONTENDED {
        let of_key = rows.iter().filter(|((_, of), _)| *of == key);
        let out = of_key.map(|(_, permits)| permits).sum::<u64>();
        assert_eq!(count(table, key), out);
        let pending = survivors
            .iter()
            .flat_map(|process| process.pending.values());
        let pending = pending.filter(|pending| pending.key == key).count();
        assert_eq!(waiting(table, key), pending);
        // Settles the queue once more.
        let (mailbox, other) = (Mailbox::default(), holder(u64::MAX / 2));
        let waited = wait(table, other, key, ask(&mailbox, 0, demand(1, 0)));
        assert_eq!((waited, cancel(table, other, 0)), (Waited::Waiting, true));
        die(table, other);
    }
    assert_eq!(all_permits(table), rows, "P12");
    assert!(
        survivors
            .iter()
            .all(|process| process.mailbox.read().is_empty()),
        "P12"
    );
    permits(table);
}

/// P1, P4, P12, P13, P14: requests, cancels, releases, gifts, deaths and changes of the capacity at the same time. Some
/// processes survive each round, and are checked when no call is running.
#[test]
fn p1_p12_p13_p14_requests_end_once_and_leave_nothing() {
    let table = Table::new(64).unwrap();
    let numbers = AtomicU64::new(0);
    let inside = Inside::default();
    for round in 0..rounds(60) {
        let alive = Alive::default();
        let survivors = Mutex::new(Vec::new());
        storm(&table, THREADS, |thread| {
            let mut dice = Dice(round * THREADS + thread);
            let mut dead = Vec::new();
            let alive_here = &alive[thread as usize];
            for lives_left in (0..=dice.roll(200)).rev() {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                *alive_here.lock().unwrap() = number + 1;
                let mut process = Process::new(&table, &inside, number);
                live(&mut process, &mut dice, &alive, &numbers);
                if lives_left == 0 {
                    survivors.lock().unwrap().push(process);
                } else {
                    dead.push(process.die(alive_here));
                }
            }
            // What was told to the dead was told to requests that they had, and once.
            for (mailbox, mut pending) in dead {
                for (request, _) in mailbox.read() {
                    assert!(pending.remove(&request).is_some(), "told once");
                }
            }
        });
        let mut survivors = survivors.into_inner().unwrap();
        assert_settled(&table, &mut survivors);
        // Half of the requests are cancelled, the others end by the deaths.
        for index in 0..survivors.len() {
            let process = &mut survivors[index];
            for request in process.pending.clone().into_keys().step_by(2) {
                survivors[index].cancel(request);
                assert_settled(&table, &mut survivors);
            }
        }
        while let Some(process) = survivors.pop() {
            process.die(&Mutex::default());
            assert_settled(&table, &mut survivors);
        }
        let usage = table.usage();
        assert_eq!((usage.waiting, usage.permits, usage.holders), (0, 0, 0));
        let totals = usage.totals;
        assert_eq!(totals.granted, totals.released + totals.released_by_death);
    }
    assert_empty(&table);
    let totals = table.usage().totals;
    assert!(
        totals.handed_over > 0 && totals.transferred > 0,
        "{totals:?}"
    );
    let left = inside.map(|inside| inside.into_inner());
    assert_eq!(left, [0, 0]);
    // Empty lists keep some memory: the overflows of the slots, a few queues.
    let fresh = Table::<Name>::new(64).unwrap();
    acquire(&fresh, holder(1), 1, 1).unwrap();
    let [memory, fresh] = [memory_of(table), memory_of(fresh)];
    assert!(memory < fresh + (64 << 10), "{memory}, {fresh} at first");
}

/// P11: with one capacity and one number of permits, requests are granted in the order in which they began to wait.
#[test]
fn p11_equal_requests_are_granted_in_order() {
    let table = Table::new(64).unwrap();
    let mailbox = Mailbox::default();
    let clock = AtomicU64::new(0);
    let times = Mutex::new(BTreeMap::new());
    let rounds = rounds(20_000);
    storm(&table, THREADS, |thread| {
        let mut own = Vec::new();
        for request in (0..rounds).map(|round| round * THREADS + thread) {
            let before = clock.fetch_add(1, Ordering::SeqCst);
            let answer = wait(
                &table,
                holder(thread),
                0,
                ask(&mailbox, request, demand(1, 1)),
            );
            let after = clock.fetch_add(1, Ordering::SeqCst);
            if answer == Waited::Waiting {
                own.push((request, (before, after)));
            }
            if request / THREADS % 2 == 1 {
                // It has none if only its requests wait.
                while release(&table, holder(thread), 0).is_ok() {}
            }
        }
        times.lock().unwrap().extend(own);
    });
    while (0..THREADS).any(|number| release(&table, holder(number), 0).is_ok()) {}
    let times = times.into_inner().unwrap();
    let told = mailbox.read();
    assert_eq!(told.len(), times.len());
    let mut latest = 0;
    for (request, _) in told {
        let (before, after) = times[&request];
        assert!(
            after > latest,
            "a request that began to wait later was granted before"
        );
        latest = latest.max(before);
    }
    assert_eq!((table.usage().waiting, permits(&table)), (0, 0));
    assert!(table.usage().totals.handed_over > 0);
}

/// The limit of the table is exact, although requests for different keys take different locks.
#[test]
fn p2_max_waiting_of_the_table_is_never_exceeded() {
    let table = Table::new(16).unwrap();
    table.set_max_waiting(1);
    let requests = AtomicU64::new(0);
    storm(&table, 3, |number| {
        let mailbox = Mailbox::default();
        for request in 0..rounds(400_000) {
            let ask = ask(&mailbox, request, demand(1, 0));
            if wait(&table, holder(number), number, ask) == Waited::Waiting {
                assert_eq!(requests.fetch_add(1, Ordering::Relaxed), 0);
                requests.fetch_sub(1, Ordering::Relaxed);
                assert!(cancel(&table, holder(number), request));
            }
        }
    });
    assert_eq!(table.usage().waiting, 0);
    assert_empty(&table);
}

/// P13: a table closes and is reopened while calls begin to wait. Each request ends once, and none waits after that.
#[test]
fn p13_closing_ends_requests_that_begin_to_wait() {
    let table = Table::new(64).unwrap();
    let over = AtomicBool::new(false);
    let closes = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _end = Over(&over);
            while !over.load(Ordering::Relaxed) {
                while !table.close(2, ()) {}
                assert_eq!(table.usage().waiting, 0, "nothing begins to wait");
                table.reopen();
                closes.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        let end = Over(&over);
        storm(&table, THREADS, |number| {
            let me = holder(number);
            let mut dice = Dice(number);
            let mailbox = Mailbox::default();
            let [mut waited, mut told, mut cancelled] = [0, 0, 0];
            // Longer on a busy machine, where the other thread starts late. Not if it has panicked.
            let has_closed = || closes.load(Ordering::Relaxed) > 0 || over.load(Ordering::Relaxed);
            let least = rounds(5_000);
            for request in (0..).take_while(|request| *request < least || !has_closed()) {
                let key = dice.roll(3);
                match wait(
                    &table,
                    me,
                    key,
                    ask(&mailbox, request, demand(1 + dice.roll(2), 2)),
                ) {
                    Waited::Waiting => waited += 1,
                    Waited::Closed | Waited::Permit(_) => {}
                    Waited::Full | Waited::Declare => panic!("there is no limit"),
                }
                if dice.roll(4) == 0 {
                    cancelled += u64::from(cancel(&table, me, request));
                }
                let _ = release(&table, me, key);
                told += mailbox.read().len() as u64;
            }
            die(&table, me);
            told += mailbox.read().len() as u64;
            // The others ended by the death.
            assert!(told + cancelled <= waited);
        });
        drop(end);
    });
    assert_eq!(table.usage().waiting, 0);
    assert_empty(&table);
}

/// O3: inspections and totals wait for no lock that waits for them. The slots of most processes are displaced.
#[test]
fn o3_inspections_and_totals_do_not_block_each_other() {
    let table = Table::<Name>::new(64).unwrap();
    let over = AtomicBool::new(false);
    let in_background = |read: &(dyn Fn() + Sync)| {
        while !over.load(Ordering::Relaxed) {
            read();
            thread::yield_now();
        }
    };
    let number = AtomicU64::new(0);
    thread::scope(|scope| {
        let usage = || _ = table.usage();
        // A process that dies during a walk can be reported by its slot and again by the slot that a giver has made.
        let all = || {
            in_pieces(Cursor::default(), |start| {
                table.permits_from(&pin(), start).unwrap().1
            })
        };
        let one = || {
            let number = number.load(Ordering::Relaxed);
            in_pieces(0, |start| {
                let (pin, holder) = (pin(), displaced_holder(number, 1));
                table.held(&pin, holder, start).unwrap().1
            });
        };
        scope.spawn(move || in_background(&usage));
        scope.spawn(move || in_background(&all));
        scope.spawn(move || in_background(&one));
        let _end = Over(&over);
        storm(&table, THREADS, |_| {
            for _ in 0..rounds(2_000) {
                let first = number.fetch_add(2, Ordering::Relaxed);
                let [giver, target] = [first, first + 1].map(|number| displaced_holder(number, 1));
                acquire_all(&table, giver, 0..4);
                acquire_all(&table, target, 4..5);
                assert_eq!(give(&table, giver, target, 0, 1), Given::Given);
                let mailbox = Mailbox::default();
                wait(&table, target, 1, ask(&mailbox, 0, demand(1, 1)));
                assert_eq!(die(&table, giver), 3);
                die(&table, target);
            }
        });
    });
    assert_empty(&table);
}
