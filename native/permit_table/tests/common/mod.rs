//! Keys, holders and calls for the tests.

#![allow(dead_code, reason = "each test program uses a part of it")]

#[cfg(not(loom))]
mod allocated;

#[cfg(not(loom))]
pub use allocated::{allocated, memory_of};
use equivalent::Equivalent;
#[cfg(loom)]
use loom::sync::atomic::{fence, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::{Arc, Mutex};
use permit_table::{
    pin, Acquired, Capacity, Cursor, Demand, Given, Holder, Key, NotHeld, Notice, OutOfMemory,
    Permits, Piece, Pin, Progress, Query, QueueInfo, Share, ShareUse, WaitEnd, WaitRequest, Waited,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
#[cfg(not(loom))]
use std::sync::atomic::{fence, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::{Arc, Mutex};

pub type Table<K = Name> = permit_table::Table<K, Mail>;

/// A key that detects reads after it has been dropped.
pub struct Name {
    name: u64,
    alive: u64,
    /// loom checks that each read is ordered after the creation and before the drop.
    #[cfg(loom)]
    read: loom::cell::UnsafeCell<()>,
}

#[cfg(loom)]
// SAFETY: loom checks the accesses to the part that is not atomic.
unsafe impl Sync for Name {}

const ALIVE: u64 = 0xA11F_E00D_A11F_E00D;

impl Name {
    /// The number by which it is looked up.
    pub fn number(&self) -> u64 {
        self.assert_alive();
        self.name
    }

    fn assert_alive(&self) {
        // SAFETY: a plain read. It is volatile, because the compiler could otherwise assume the value.
        let alive = unsafe { std::ptr::read_volatile(&self.alive) };
        assert_eq!(alive, ALIVE, "read of a key that has been freed");
        #[cfg(loom)]
        self.read.with(|_| ());
    }
}

thread_local! {
    static LIVE_NAMES: Cell<isize> = const { Cell::new(0) };
}

/// The number of keys that this thread has created and not dropped. Useful if no other thread creates or drops any.
pub fn live_names() -> isize {
    LIVE_NAMES.get()
}

impl Drop for Name {
    fn drop(&mut self) {
        self.assert_alive();
        LIVE_NAMES.set(LIVE_NAMES.get() - 1);
        #[cfg(loom)]
        self.read.with_mut(|_| ());
        // SAFETY: a plain write. It is volatile, because the compiler could otherwise remove it as dead.
        unsafe { std::ptr::write_volatile(&mut self.alive, 0) };
    }
}

impl Key for Name {
    fn heap_bytes(&self) -> usize {
        self.assert_alive();
        match self.name {
            LARGE.. => LARGE_BYTES,
            _ => 0,
        }
    }
}

/// Keys from this number on report [`LARGE_BYTES`] on the heap.
pub const LARGE: u64 = 1 << 60;
pub const LARGE_BYTES: usize = 100 << 10;

#[derive(Hash)]
pub struct NameQuery(pub u64);

impl Equivalent<Name> for NameQuery {
    fn equivalent(&self, key: &Name) -> bool {
        key.assert_alive();
        self.0 == key.name
    }
}

impl Query<Name> for NameQuery {
    fn to_key(&self) -> Result<Name, OutOfMemory> {
        LIVE_NAMES.set(LIVE_NAMES.get() + 1);
        Ok(Name {
            name: self.0,
            alive: ALIVE,
            #[cfg(loom)]
            read: loom::cell::UnsafeCell::new(()),
        })
    }
}

/// A holder with its own place.
pub fn holder(number: u64) -> Holder {
    displaced_holder(number, number)
}

/// A holder that can share its place with others.
pub fn displaced_holder(number: u64, place: u64) -> Holder {
    // SAFETY: the tests call on behalf of each number from one thread at a time, and `is_reused` tells `release_all`
    // the truth.
    unsafe { Holder::new(NonZeroU64::new(number + 1).unwrap(), place) }
}

/// Calls `piece` with the start and with each position that it returns, until it returns `None`.
pub fn in_pieces<C>(start: C, mut piece: impl FnMut(C) -> Option<C>) {
    let mut next = Some(start);
    while let Some(start) = next {
        next = piece(start);
    }
}

/// Permits by holder's number and key. Each is reported once.
#[derive(Default)]
pub struct Rows(BTreeMap<(u64, u64), u64>);

impl Rows {
    /// Adds those of a piece, and returns the position of the next one.
    pub fn add<T>(&mut self, (rows, next): Piece<Permits<'_, Name>, T>) -> Option<T> {
        for row in rows {
            let (holder, key) = (row.holder - 1, row.key.number());
            let before = self.0.insert((holder, key), row.permits);
            assert_eq!(before, None, "reported twice");
        }
        next
    }
}

/// All permits on record, by holder's number and key.
pub fn all_permits(table: &Table<Name>) -> BTreeMap<(u64, u64), u64> {
    let mut rows = Rows::default();
    in_pieces(Cursor::default(), |start| {
        rows.add(table.permits_from(&pin(), start).unwrap())
    });
    rows.0
}

/// Since when each holder, by its number, holds permits.
pub fn begun(table: &Table<Name>) -> BTreeMap<u64, u64> {
    let mut begun = BTreeMap::new();
    in_pieces(Cursor::default(), |start| {
        let pin = pin();
        let (rows, next) = table.permits_from(&pin, start).unwrap();
        for row in rows {
            let before = begun.insert(row.holder - 1, row.since);
            assert_eq!(before.unwrap_or(row.since), row.since);
        }
        next
    });
    begun
}

/// The holders of a key: permits by holder's number and the key.
pub fn holders_of(table: &Table<Name>, key: u64) -> BTreeMap<(u64, u64), u64> {
    let mut rows = Rows::default();
    in_pieces(Cursor::default(), |start| {
        let (pin, query) = (pin(), NameQuery(key));
        rows.add(table.holders_from(&pin, start, &query).unwrap())
    });
    rows.0
}

/// The permits of one holder, by key.
pub fn held(table: &Table<Name>, holder: Holder) -> BTreeMap<u64, u64> {
    let mut rows = Rows::default();
    in_pieces(0, |start| {
        rows.add(table.held(&pin(), holder, start).unwrap())
    });
    let by_key = rows.0.into_iter();
    by_key.map(|((_, key), permits)| (key, permits)).collect()
}

pub fn acquire(table: &Table<Name>, holder: Holder, key: u64, capacity: u64) -> Option<u64> {
    acquire_watched(table, holder, key, capacity, || ())
}

/// Acquires the keys with capacity `u64::MAX`.
pub fn acquire_all(table: &Table<Name>, holder: Holder, keys: impl IntoIterator<Item = u64>) {
    for key in keys {
        acquire(table, holder, key, u64::MAX).unwrap();
    }
}

/// As [`acquire`]; the table calls `watch` to have the holder watched.
pub fn acquire_watched(
    table: &Table<Name>,
    holder: Holder,
    key: u64,
    capacity: u64,
    watch: impl Fn(),
) -> Option<u64> {
    let watch = || {
        watch();
        Ok::<(), OutOfMemory>(())
    };
    let capacity = Capacity::of(capacity, 1);
    match table.acquire(&pin(), holder, &NameQuery(key), capacity, watch) {
        Ok(Acquired::Permit(out)) => Some(out),
        Ok(Acquired::Full) => None,
        Err(OutOfMemory) => panic!("out of memory"),
    }
}

pub fn release(table: &Table<Name>, holder: Holder, key: u64) -> Result<(), NotHeld> {
    let (pin, key) = (pin(), NameQuery(key));
    // As the NIF does.
    if table.release_known(&pin, holder, &key, ()) {
        return Ok(());
    }
    table.release(&pin, holder, &key, ())
}

/// Where a process is told the end of its requests.
#[derive(Clone, Default)]
pub struct Mailbox(Arc<Mutex<Vec<(u64, WaitEnd)>>>);

impl Mailbox {
    /// What was told since the last call: the number of the request, and its end.
    pub fn read(&self) -> Vec<(u64, WaitEnd)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Tells a mailbox.
pub struct Mail {
    mailbox: Mailbox,
    request: u64,
}

impl Mail {
    /// The number of the request.
    pub fn number(&self) -> u64 {
        self.request
    }
}

thread_local! {
    /// The time of the notices.
    static NOW_US: Cell<u64> = const { Cell::new(0) };
}

/// Sets the time for calls of this thread.
pub fn set_now(now_us: u64) {
    NOW_US.set(now_us);
}

impl Notice for Mail {
    type Context<'a> = ();

    fn now_us() -> u64 {
        NOW_US.get()
    }

    fn send(self, (): (), end: WaitEnd) {
        self.mailbox.0.lock().unwrap().push((self.request, end));
    }
}

/// A demand for a number of permits.
pub fn demand(permits: u64, capacity: u64) -> Demand {
    Demand::of(Capacity::of(capacity, 1), NonZeroU64::new(permits).unwrap())
}

/// Acquires several permits.
pub fn acquire_many(table: &Table, holder: Holder, key: u64, demand: Demand) -> Option<u64> {
    let watch = || Ok::<(), OutOfMemory>(());
    match table.acquire(&pin(), holder, &NameQuery(key), demand, watch) {
        Ok(Acquired::Permit(out)) => Some(out),
        Ok(Acquired::Full) => None,
        Err(OutOfMemory) => panic!("out of memory"),
    }
}

pub fn release_many(table: &Table, holder: Holder, key: u64, permits: u64) -> Result<(), NotHeld> {
    let permits = NonZeroU64::new(permits).unwrap();
    table.release_many(&pin(), holder, &NameQuery(key), permits, ())
}

/// A request with this number, whose end goes to the mailbox.
pub fn ask(mailbox: &Mailbox, request: u64, demand: Demand) -> WaitRequest<Mail> {
    let mailbox = mailbox.clone();
    WaitRequest {
        demand,
        is_shared: false,
        max_waiting: usize::MAX,
        request_hash: request / 2,
        now: request,
        notice: Mail { mailbox, request },
    }
}

pub fn wait(table: &Table, holder: Holder, key: u64, ask: WaitRequest<Mail>) -> Waited {
    let watch = || Ok::<(), OutOfMemory>(());
    let waited = table.wait(&pin(), holder, &NameQuery(key), ask, watch, ());
    waited.unwrap()
}

pub fn cancel(table: &Table, holder: Holder, request: u64) -> bool {
    let is_it = |mail: &Mail| mail.request == request;
    let ended = table.cancel(&pin(), holder, request / 2, is_it, ());
    ended.is_some()
}

/// As [`cancel`], because of a timeout.
pub fn time_out(table: &Table, holder: Holder, request: u64) -> bool {
    let (pin, is_it) = (pin(), |mail: &Mail| mail.request == request);
    let ended = table.cancel(&pin, holder, request / 2, is_it, ());
    ended
        .inspect(|since| table.count_timeout(&pin, *since))
        .is_some()
}

/// The number of requests that wait for a key.
pub fn waiting(table: &Table, key: u64) -> usize {
    table.waiting(&pin(), &NameQuery(key))
}

/// The queues of all keys, by key. The nodes are alive while the pin lasts.
pub fn lines<'a>(table: &'a Table, pin: &'a Pin) -> BTreeMap<u64, QueueInfo<'a, Name>> {
    let mut lines = BTreeMap::new();
    in_pieces((0, 0), |start| {
        let (queues, next) = table.queues_from(pin, start).unwrap();
        for line in queues {
            let before = lines.insert(line.key.number(), line);
            assert!(before.is_none(), "reported twice");
        }
        next
    });
    lines
}

/// Gives a permit to a process that is alive.
pub fn give(table: &Table, giver: Holder, target: Holder, key: u64, permits: u64) -> Given {
    let permits = NonZeroU64::new(permits).unwrap();
    let watch = || Ok::<bool, OutOfMemory>(true);
    let given = table.give(&pin(), giver, target, &NameQuery(key), permits, watch);
    given.unwrap()
}

pub fn resize(table: &Table, key: u64, capacity: u64) {
    let (pin, key, capacity) = (pin(), NameQuery(key), Capacity::of(capacity, 1));
    let settled = table.resize(&pin, &key, capacity, usize::MAX, ());
    let mut settled = settled.unwrap();
    while !settled {
        settled = table.settle(&pin, &key, ());
    }
}

/// Gives the table a share of a key, whose limit is also the capacity of its callers. Returns the number of permits in
/// use when all waiters that it allows are granted.
pub fn set_share(table: &Table, key: u64, share: u64, limit: u64) -> u64 {
    set_passed(table, key, share, limit, limit)
}

/// The same, if the callers pass another capacity.
pub fn set_passed(table: &Table, key: u64, share: u64, passed: u64, limit: u64) -> u64 {
    let (pin, key, of) = (pin(), NameQuery(key), |permits| Capacity::of(permits, 1));
    let share = Share::new(share, Some(of(passed)), of(limit));
    let (in_use, mut settled) = table.set_share(&pin, &key, &share, ()).unwrap();
    while !settled {
        settled = table.settle(&pin, &key, ());
        assert!(table.count(&pin, &key) >= in_use);
    }
    table.count(&pin, &key)
}

/// The share of a key ends. Returns the number of permits in use.
pub fn end_share(table: &Table, key: u64) -> u64 {
    let share = Share::new(0, None, Capacity::of(0, 1));
    let (in_use, settled) = table
        .set_share(&pin(), &NameQuery(key), &share, ())
        .unwrap();
    assert!(settled);
    in_use
}

/// The permits of a process are lost. Returns how many were not before.
pub fn lose(table: &Table, holder: Holder, key: u64) -> u64 {
    let lost = table.lose(&pin(), holder, &NameQuery(key));
    lost.unwrap()
}

pub fn share(table: &Table, key: u64) -> Option<ShareUse> {
    table.take_share(&pin(), &NameQuery(key))
}

/// Acquires permits of a share, if their capacity is the one that was passed last.
pub fn acquire_shared(table: &Table, holder: Holder, key: u64, of: Demand) -> Option<Acquired> {
    let watch = || Ok::<(), OutOfMemory>(());
    let acquired = table.acquire_shared(&pin(), holder, &NameQuery(key), of, watch);
    acquired.unwrap()
}

/// As [`wait`], for permits of a share.
pub fn wait_shared(table: &Table, holder: Holder, key: u64, ask: WaitRequest<Mail>) -> Waited {
    let is_shared = true;
    wait(table, holder, key, WaitRequest { is_shared, ..ask })
}

/// The death of a holder, reported after its pid is free.
pub fn die(table: &Table<Name>, holder: Holder) -> u64 {
    table.release_all(&pin(), holder, || false, ())
}

/// A pid of a VM. One process after the other has it, and a death can be reported when the next process is alive.
/// Provides only the ordering that [`Holder::new`] requires.
#[derive(Default)]
pub struct Pid {
    /// 0 if no process has the pid; otherwise 1 plus the number of watches on that process.
    process: AtomicU64,
}

impl Pid {
    pub fn start(&self) {
        self.process.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Adds a watch on the process.
    pub fn watch(&self) {
        self.process.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a process has the pid. If so, adds a watch on it.
    pub fn is_reused(&self) -> bool {
        let mut seen = self.process.load(Ordering::Relaxed);
        while seen > 0 {
            let watched =
                self.process
                    .compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
            match watched {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Ends the process. Returns how often its death must be reported.
    pub fn exit(&self) -> u64 {
        self.process.swap(0, Ordering::Release) - 1
    }
}

/// One step of the sweep.
pub fn step(table: &Table<Name>, units: usize) -> Progress {
    table.sweep_step(units).0
}

pub fn count(table: &Table<Name>, key: u64) -> u64 {
    table.count(&pin(), &NameQuery(key))
}

/// The number of permits in use. Checks that the counts of the keys and the records of the holders agree.
#[track_caller]
pub fn permits(table: &Table<Name>) -> u64 {
    let mut counted = 0;
    in_pieces(0, |start| {
        let pin = pin();
        let (keys, next) = table.keys_after(&pin, start, 64).unwrap();
        counted += keys.iter().map(|(_, out)| out).sum::<u64>();
        next
    });
    assert_eq!(table.usage().permits, counted);
    counted
}

/// One pass of the sweep.
pub fn sweep(table: &Table<Name>) {
    loop {
        match step(table, 64) {
            Progress::Done => return,
            // Yielding after each step is slow on a busy machine.
            Progress::More if cfg!(not(loom)) => {}
            _ => {
                #[cfg(not(loom))]
                std::thread::yield_now();
                #[cfg(loom)]
                loom::thread::yield_now();
            }
        }
    }
}

/// The number of rounds: `base` times `CANAL_LOCK_SOAK`, if that is set. A fraction reduces it, for slow tools.
pub fn rounds(base: u64) -> u64 {
    // An interpreter is about 1,000 times slower.
    let base = if cfg!(miri) { base / 1000 } else { base };
    let soak = std::env::var("CANAL_LOCK_SOAK");
    let factor = soak.map_or(1.0, |factor| {
        factor.parse().expect("CANAL_LOCK_SOAK is a number")
    });
    (base as f64 * factor).max(1.0) as u64
}

/// A large number: `number`, or a hundredth of it in an interpreter.
pub fn many(number: u64) -> u64 {
    number / if cfg!(miri) { 100 } else { 1 }
}

/// A cheap random number generator.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Runs `body` on `threads` threads, each with its number, while another thread sweeps all the time.
#[cfg(not(loom))]
pub fn storm(table: &Table<Name>, threads: u64, body: impl Fn(u64) + Sync) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                step(table, 16);
            }
        });
        let body = &body;
        let threads: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || body(number)))
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::Relaxed);
        for outcome in outcomes {
            outcome.unwrap();
        }
    });
}

/// Sweeps, and checks that nothing is left.
pub fn assert_empty(table: &Table<Name>) {
    // Two passes, after the one that a storm can have left incomplete.
    for _ in 0..3 {
        sweep(table);
    }
    assert_eq!(permits(table), 0);
    let usage = table.usage();
    assert_eq!((usage.keys, usage.holders), (0, 0));
}
