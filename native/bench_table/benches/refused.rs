//! Acquire of a full key. It writes only the counter of refusals, which each thread has for itself.

use crate::subject::{reclaiming, table_of_held, with_one_pin, Choice, Thread, Work, MANY};
use bench_table::caller::{acquire, Pinning, WordTable};
use criterion::Criterion;
use permit_table::{Acquired, Capacity};

struct Refused;

impl Work for Refused {
    #[inline(always)]
    fn once<P: Pinning>(&self, table: &WordTable, thread: &mut Thread<P>) {
        let key = thread.key();
        // One permit of each is out.
        let capacity = Capacity::of(1, 1);
        let acquired = acquire(table, &thread.pinning, thread.holder(), &key, capacity);
        assert_eq!(acquired, Acquired::Full);
    }
}

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("refused");
    let table = table_of_held(MANY);
    for (choice, name) in [
        (Choice::One, "one key"),
        (Choice::Own, "a key each"),
        (Choice::Random, "any of a million keys"),
    ] {
        reclaiming(&mut group, name, &table, choice, &Refused);
        let name = format!("{name}, one pin");
        with_one_pin(&mut group, &name, &table, choice, &Refused);
    }
    group.finish();
}
