//! Acquire and release by those who hold other keys meanwhile. Two are on the record itself; those beyond are in a hash
//! table of the holder's own.

use crate::subject::{reclaiming, table_of_held, Choice, Thread, Work};
use bench_table::caller::{acquire, pair, release, unlimited, PinPerCall, Pinning, WordTable};
use bench_table::word_key::{binary, Words};
use criterion::Criterion;

/// Holds so many keys that nobody else has.
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
    let mut group = criterion.benchmark_group("pair of one who holds");
    let table = table_of_held(0);
    for held in [1, 3, 1000] {
        let name = format!("{held} others");
        reclaiming(&mut group, &name, &table, Choice::Own, &Holding(held));
    }
    group.finish();
}
