//! The measured table, and the steps of a measurement.

use bench_table::caller::{acquire, holder, unlimited, OnePin, PinPerCall, Pinning, WordTable};
use bench_table::word_key::{tuple, Words};
use bench_table::{crowd, sweeper};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Throughput};
use permit_table::Holder;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of the threads' holders start here. Holders with smaller numbers hold keys from the beginning.
const CROWD: u64 = 1 << 20;

/// Keys of the large table: 64 MB of nodes, far more than a cache has.
pub const MANY: u64 = 1_000_000;

/// The random seed of the next thread. It differs for each sample: otherwise each sample would use the same keys, and
/// they would be in a cache.
static DICE: AtomicU64 = AtomicU64::new(0);

/// The key of a call.
#[derive(Clone, Copy)]
pub enum Choice {
    /// Key 0, for all threads.
    One,
    /// The key with the thread's number.
    Own,
    /// A random one of the first [`MANY`] keys.
    Random,
}

/// A measured thread.
pub struct Thread<P> {
    pub pinning: P,
    pub number: u64,
    choice: Choice,
    dice: u64,
}

impl<P> Thread<P> {
    fn new(number: usize, choice: Choice, pinning: P) -> Self {
        let number = number as u64;
        Self {
            pinning,
            number,
            choice,
            dice: DICE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed),
        }
    }

    pub fn holder(&self) -> Holder {
        // SAFETY: the number belongs to this thread, and one crowd runs at a time.
        unsafe { holder(CROWD + self.number) }
    }

    /// The key of the next call.
    #[inline(always)]
    pub fn key(&mut self) -> Words<2> {
        tuple(match self.choice {
            Choice::One => 0,
            Choice::Own => self.number,
            Choice::Random => {
                // Knuth's MMIX generator. Its high bits are the good ones.
                self.dice = self
                    .dice
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                ((u128::from(self.dice) * u128::from(MANY)) >> 64) as u64
            }
        })
    }
}

/// A table in which each of these keys has one permit out. Each holder has two keys.
pub fn table_of_held(keys: u64) -> WordTable {
    let table = WordTable::new(2 * CROWD as usize).expect("out of memory");
    for number in 0..keys {
        // SAFETY: only this thread uses it.
        let holder = unsafe { holder(number / 2) };
        acquire(&table, &PinPerCall, holder, &tuple(number), unlimited());
    }
    table
}

/// The repeated work of a thread. A type, so that it is compiled for each kind of pinning.
pub trait Work: Sync {
    /// Preparation, not measured.
    fn prepare<P: Pinning>(&self, _table: &WordTable, _thread: &mut Thread<P>) {}

    /// The measured work.
    fn once<P: Pinning>(&self, table: &WordTable, thread: &mut Thread<P>);

    /// Clean-up, not measured.
    fn clean_up<P: Pinning>(&self, _table: &WordTable, _thread: &Thread<P>) {}
}

/// Measures with one pin per call, while the sweep runs.
pub fn reclaiming(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    table: &WordTable,
    choice: Choice,
    work: &impl Work,
) {
    for threads in crowd::sizes() {
        sweeper::beside(table, || {
            measure(group, name, threads, table, work, |number| {
                Thread::new(number, choice, PinPerCall)
            });
        });
    }
}

/// Measures with one pin for all calls, without a sweep.
pub fn with_one_pin(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    table: &WordTable,
    choice: Choice,
    work: &impl Work,
) {
    for threads in crowd::sizes() {
        measure(group, name, threads, table, work, |number| {
            Thread::new(number, choice, OnePin::begin())
        });
    }
}

fn measure<P: Pinning>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    threads: usize,
    table: &WordTable,
    work: &impl Work,
    thread: impl Fn(usize) -> Thread<P> + Sync,
) {
    group.throughput(Throughput::Elements(threads as u64));
    group.bench_function(BenchmarkId::new(name, threads), |bencher| {
        bencher.iter_custom(|times| {
            let prepare = |number| {
                let mut thread = thread(number);
                work.prepare(table, &mut thread);
                // The first call of a holder is different: it occupies a slot.
                work.once(table, &mut thread);
                Leaving {
                    thread,
                    work,
                    table,
                }
            };
            crowd::time(threads, prepare, |leaving| {
                for _ in 0..times {
                    work.once(table, &mut leaving.thread);
                }
            })
        });
    });
}

/// A thread that cleans up when it is dropped.
struct Leaving<'a, P: Pinning, W: Work> {
    thread: Thread<P>,
    work: &'a W,
    table: &'a WordTable,
}

impl<P: Pinning, W: Work> Drop for Leaving<'_, P, W> {
    fn drop(&mut self) {
        self.work.clean_up(self.table, &self.thread);
    }
}
