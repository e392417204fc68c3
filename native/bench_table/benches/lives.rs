//! Short-lived holders. The first call of each occupies a slot, its end vacates it. No VM monitors are involved.

use crate::subject::{reclaiming, table_of_held, Choice, Thread, Work};
use bench_table::caller::{acquire, holder_at, release, unlimited, Pinning, WordTable};
use criterion::Criterion;
use std::cell::Cell;

/// The holders of a thread use this many places in turn, as the VM does not reuse a pid immediately.
const PLACES: u64 = 1024;

/// The end of a holder.
enum Life {
    /// It releases its permit first.
    Released,
    /// It dies with its permit.
    Died,
}

thread_local! {
    /// The number of holders that the thread has been.
    static LIVED: Cell<u64> = const { Cell::new(0) };
}

impl Work for Life {
    #[inline(always)]
    fn once<P: Pinning>(&self, table: &WordTable, thread: &mut Thread<P>) {
        let life = LIVED.get();
        LIVED.set(life + 1);
        let place = thread.number * PLACES + life % PLACES;
        // SAFETY: the number belongs to this thread. Earlier holders with this number or at this place are dead.
        let holder = unsafe { holder_at((thread.number + 1) << 40 | life, place) };
        let key = thread.key();
        acquire(table, &thread.pinning, holder, &key, unlimited());
        let held = match self {
            Life::Released => {
                release(table, &thread.pinning, holder, &key);
                0
            }
            Life::Died => 1,
        };
        let released = thread
            .pinning
            .call(|pin| table.release_all(pin, holder, || false, ()));
        assert_eq!(released, held);
    }
}

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("life");
    let table = table_of_held(0);
    for (life, name) in [
        (Life::Released, "acquire, release, exit"),
        (Life::Died, "acquire, die"),
    ] {
        reclaiming(&mut group, name, &table, Choice::Own, &life);
    }
    group.finish();
}
