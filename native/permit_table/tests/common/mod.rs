//! Keys and holders for tests.

#![allow(dead_code, reason = "each test program uses a part of it")]

use equivalent::Equivalent;
#[cfg(loom)]
use loom::sync::atomic::{fence, AtomicU64, Ordering};
use permit_table::{
    pin, Acquired, Budget, Capacity, Cursor, Holder, Key, NotHeld, OutOfMemory, Permits, Progress,
    Query, Table,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
#[cfg(not(loom))]
use std::sync::atomic::{fence, AtomicU64, Ordering};

/// A key that shows whether it is looked at after it has been dropped.
pub struct Name {
    name: u64,
    alive: u64,
    /// loom asks whether each look is ordered behind the making, and before the dropping.
    #[cfg(loom)]
    looked_at: loom::cell::UnsafeCell<()>,
}

#[cfg(loom)]
// SAFETY: what is not atomic in it is what loom watches.
unsafe impl Sync for Name {}

const ALIVE: u64 = 0xA11F_E00D_A11F_E00D;

impl Name {
    fn assert_alive(&self) {
        // SAFETY: a plain read; volatile, so that it is not left out because it "cannot" be anything else.
        let alive = unsafe { std::ptr::read_volatile(&self.alive) };
        assert_eq!(alive, ALIVE, "somebody looks at a key that has been freed");
        #[cfg(loom)]
        self.looked_at.with(|_| ());
    }
}

impl Name {
    /// What it is looked up by.
    pub fn number(&self) -> u64 {
        self.assert_alive();
        self.name
    }
}

thread_local! {
    static LIVING: Cell<isize> = const { Cell::new(0) };
}

/// How many names this thread has made and not dropped. Of use where no other thread makes or drops any.
pub fn living() -> isize {
    LIVING.get()
}

impl Drop for Name {
    fn drop(&mut self) {
        self.assert_alive();
        LIVING.set(LIVING.get() - 1);
        #[cfg(loom)]
        self.looked_at.with_mut(|_| ());
        // SAFETY: a plain write; volatile, so that it is not left out because nobody may read it.
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

/// Names from here on say that they have [`LARGE_BYTES`] on the heap.
pub const LARGE: u64 = 1 << 60;

/// See [`LARGE`].
pub const LARGE_BYTES: usize = 100 << 10;

/// What a [`Name`] is looked up by.
#[derive(Hash)]
pub struct Wanted(pub u64);

impl Equivalent<Name> for Wanted {
    fn equivalent(&self, key: &Name) -> bool {
        key.assert_alive();
        self.0 == key.name
    }
}

impl Query<Name> for Wanted {
    fn to_key(&self) -> Result<Name, OutOfMemory> {
        LIVING.set(LIVING.get() + 1);
        Ok(Name {
            name: self.0,
            alive: ALIVE,
            #[cfg(loom)]
            looked_at: loom::cell::UnsafeCell::new(()),
        })
    }
}

/// A holder at a place of its own.
pub fn holder(number: u64) -> Holder {
    displaced_holder(number, number)
}

/// A holder that shares its place with others.
pub fn displaced_holder(number: u64, place: u64) -> Holder {
    // SAFETY: in the tests the calls of each number are of one thread at a time, and `release_all` is told the truth.
    unsafe { Holder::new(NonZeroU64::new(number + 1).unwrap(), place) }
}

/// What is on record: permits by holder's number and key.
pub fn on_record(table: &Table<Name>) -> BTreeMap<(u64, u64), u64> {
    let mut seen = BTreeMap::new();
    let mut cursor = Some(Cursor::default());
    while let Some(start) = cursor {
        let next = table.permits_from(start, |permits| {
            let who = (permits.holder - 1, permits.key.number());
            assert_eq!(seen.insert(who, permits.permits), None, "told twice");
        });
        cursor = next.unwrap();
    }
    seen
}

/// What one holder has: permits by key.
pub fn held(table: &Table<Name>, holder: Holder) -> BTreeMap<u64, u64> {
    let mut held = BTreeMap::new();
    let mut from = Some(0);
    while let Some(start) = from {
        let visit = |seen: Permits<'_, Name>| {
            let told = held.insert(seen.key.number(), seen.permits);
            assert_eq!(told, None, "told twice");
        };
        from = table.held(holder, start, visit).unwrap();
    }
    held
}

pub fn acquire(table: &Table<Name>, holder: Holder, key: u64, capacity: u64) -> Option<u64> {
    acquire_watched(table, holder, key, capacity, || ())
}

/// The same; `watch` is called when the table has the holder watched.
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
    match table.acquire(&pin(), holder, &Wanted(key), capacity, watch) {
        Ok(Acquired::Permit(out)) => Some(out),
        Ok(Acquired::Full) => None,
        Err(OutOfMemory) => panic!("out of memory"),
    }
}

pub fn release(table: &Table<Name>, holder: Holder, key: u64) -> Result<(), NotHeld> {
    let (pin, key) = (pin(), Wanted(key));
    // As the border does.
    if table.release_inline(&pin, holder, &key) || table.release_more(&pin, holder, &key) {
        return Ok(());
    }
    table.release(&pin, holder, &key)
}

/// A holder has died.
pub fn die(table: &Table<Name>, holder: Holder) -> u64 {
    table.release_all(&pin(), holder, || false)
}

/// A pid of a VM, which starts one process after the other with it, and may report a death when the next one is alive.
/// It orders no more than [`Holder::new`] demands.
#[derive(Default)]
pub struct Pid {
    /// 0 if no process has it; otherwise 1, and 1 for each watch on that process.
    process: AtomicU64,
}

impl Pid {
    /// A process starts.
    pub fn start(&self) {
        self.process.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The process has itself watched.
    pub fn watch(&self) {
        self.process.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a process has the pid. If so, it is watched once more.
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

    /// The process dies. Returns how often that has to be reported.
    pub fn exit(&self) -> u64 {
        self.process.swap(0, Ordering::Release) - 1
    }
}

/// A step of the sweep.
pub fn step(table: &Table<Name>, units: usize) -> Progress {
    table.sweep_step(&mut Budget::of(units))
}

pub fn count(table: &Table<Name>, key: u64) -> u64 {
    table.count(&pin(), &Wanted(key))
}

/// How many permits are out: so many have the keys counted, and so many have their holders on record.
#[track_caller]
pub fn permits(table: &Table<Name>) -> u64 {
    let mut counted = 0;
    let mut after = Some(0);
    while let Some(start) = after {
        after = table.keys_after(start, 64, |_, out| counted += out);
    }
    assert_eq!(table.usage().permits, counted);
    counted
}

/// One pass of the sweep.
pub fn sweep(table: &Table<Name>) {
    loop {
        match step(table, 64) {
            Progress::Done => return,
            // To give way after each step is dear on a machine where many wait for their turn.
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

/// How often something is tried: so many times, and `CANAL_LOCK_SOAK` times that when somebody has the patience. A
/// fraction makes them fewer, for tools under which everything is slow.
pub fn rounds(base: u64) -> u64 {
    // An interpreter takes a second for what takes a millisecond otherwise.
    let base = if cfg!(miri) { base / 1000 } else { base };
    let soak = std::env::var("CANAL_LOCK_SOAK");
    let factor = soak.map_or(1.0, |factor| {
        factor.parse().expect("CANAL_LOCK_SOAK is a number")
    });
    (base as f64 * factor).max(1.0) as u64
}

/// So many, to be many; in an interpreter a hundredth, which is many there.
pub fn many(number: u64) -> u64 {
    if cfg!(miri) {
        number / 100
    } else {
        number
    }
}

/// A cheap random number, seeded by the thread.
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

/// Runs the storm on so many threads, each with its number, while another one sweeps all the time.
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

/// Sweeps what is idle away; nothing may be left.
pub fn assert_empty(table: &Table<Name>) {
    // Two passes, after the one that a storm may have left half done.
    for _ in 0..3 {
        sweep(table);
    }
    assert_eq!(permits(table), 0);
    let usage = table.usage();
    assert_eq!((usage.keys, usage.holders), (0, 0));
}
