//! Acquire and release. The baseline is a bare word with a limit: a compare-and-swap that acquires, and a subtraction
//! that releases. On one key, it shows the cost of contention for the cache line alone.

use crate::subject::{reclaiming, table_of_held, with_one_pin, Choice, Thread, Work, MANY};
use bench_table::caller::{pair, Pinning, WordTable};
use bench_table::crowd;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

struct Pair;

impl Work for Pair {
    #[inline(always)]
    fn once<P: Pinning>(&self, table: &WordTable, thread: &mut Thread<P>) {
        let key = thread.key();
        pair(table, &thread.pinning, thread.holder(), &key);
    }
}

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    let small = table_of_held(0);
    for (choice, name) in [(Choice::One, "one key"), (Choice::Own, "a key each")] {
        reclaiming(&mut group, name, &small, choice, &Pair);
        let name = format!("{name}, one pin");
        with_one_pin(&mut group, &name, &small, choice, &Pair);
    }
    bare_words(&mut group, "one bare word", |_| 0);
    bare_words(&mut group, "a bare word each", |number| number);

    let large = table_of_held(MANY);
    let name = "any of a million keys";
    reclaiming(&mut group, name, &large, Choice::Random, &Pair);
    let name = "any of a million keys, one pin";
    with_one_pin(&mut group, name, &large, Choice::Random, &Pair);
    group.finish();
}

/// A word with enough alignment that neighbors share no cache line.
#[repr(align(128))]
#[derive(Default)]
struct Word(AtomicU64);

impl Word {
    #[inline(always)]
    fn pair(&self, ceiling: u64) {
        let mut word = self.0.load(Ordering::Acquire);
        while word < ceiling {
            let taken =
                self.0
                    .compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire);
            match taken {
                Ok(_) => {
                    self.0.fetch_sub(1, Ordering::AcqRel);
                    return;
                }
                Err(now) => word = now,
            }
        }
    }
}

fn bare_words(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    word_of: impl Fn(usize) -> usize + Sync,
) {
    for threads in crowd::sizes() {
        let words: Vec<Word> = (0..threads).map(|_| Word::default()).collect();
        group.throughput(Throughput::Elements(threads as u64));
        group.bench_function(BenchmarkId::new(name, threads), |bencher| {
            bencher.iter_custom(|times| {
                let prepare = |number| &words[word_of(number)];
                crowd::time(threads, prepare, |word| {
                    for _ in 0..times {
                        word.pair(black_box(u64::MAX));
                    }
                })
            });
        });
    }
}
