//! Holders that come and go. The first call of each takes a slot, which the end gives back; the VM is not asked to
//! watch anybody here.

use crate::subject::{reclaiming, table_of_held, Choice, Thread, Work};
use bench_table::caller::{acquire, holder_at, release, unlimited, Pinning, WordTable};
use criterion::Criterion;
use std::cell::Cell;

/// Places that the holders of a thread take in turn: processes come by other places before one comes again.
const PLACES: u64 = 1024;

/// What a holder does before it goes.
enum Life {
    /// It releases what it took.
    Orderly,
    /// It dies with it.
    Cut,
}

thread_local! {
    /// How many holders the thread has been.
    static LIVED: Cell<u64> = const { Cell::new(0) };
}

impl Work for Life {
    #[inline(always)]
    fn once<P: Pinning>(&self, table: &WordTable, thread: &mut Thread<P>) {
        let life = LIVED.get();
        LIVED.set(life + 1);
        let place = thread.number * PLACES + life % PLACES;
        // SAFETY: the thread's own. The one that had the number in a crowd before has gone, and so has the one that
        // had the place.
        let holder = unsafe { holder_at((thread.number + 1) << 40 | life, place) };
        let key = thread.key();
        acquire(table, &thread.pinning, holder, &key, unlimited());
        let held = match self {
            Life::Orderly => {
                release(table, &thread.pinning, holder, &key);
                0
            }
            Life::Cut => 1,
        };
        let given = thread
            .pinning
            .call(|pin| table.release_all(pin, holder, || false));
        assert_eq!(given, held);
    }
}

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("life");
    let table = table_of_held(0);
    for (life, name) in [
        (Life::Orderly, "acquire, release, go"),
        (Life::Cut, "acquire, die"),
    ] {
        reclaiming(&mut group, name, &table, Choice::Own, &life);
    }
    group.finish();
}
