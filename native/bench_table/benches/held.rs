//! Acquire and release by holders of other keys. Two keys are in the slot itself, the others in the list of the holder.

use crate::subject::{reclaiming, table_of_held, Choice, Thread, Work};
use bench_table::caller::{acquire, pair, release, unlimited, PinPerCall, Pinning, WordTable};
use bench_table::word_key::{binary, Words};
use criterion::Criterion;

/// The number of other keys that the thread holds. No other thread has them.
struct Holding(u64);

impl Holding {
    fn keys<P>(&self, thread: &Thread<P>) -> impl Iterator<Item = Words<4>> {
        let first = thread.number << 32;
        (first..first + self.0).map(binary)
    }
}

impl Work for Holding {
    fn prepare<P: Pinning>(&self, table: &WordTable, thread: &mut Thread<P>) {
        for key in self.keys(thread) {
            acquire(table, &PinPerCall, thread.holder(), &key, unlimited());
        }
    }

    #[inline(always)]
    fn once<P: Pinning>(&self, table: &WordTable, thread: &mut Thread<P>) {
        let key = thread.key();
        pair(table, &thread.pinning, thread.holder(), &key);
    }

    fn clean_up<P: Pinning>(&self, table: &WordTable, thread: &Thread<P>) {
        for key in self.keys(thread) {
            release(table, &PinPerCall, thread.holder(), &key);
        }
    }
}

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair of a holder");
    let table = table_of_held(0);
    for held in [1, 3, 1000] {
        let name = format!("{held} other keys");
        reclaiming(&mut group, &name, &table, Choice::Own, &Holding(held));
    }
    group.finish();
}
