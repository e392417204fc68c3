//! The calls whose instructions are counted. They pin each time, as those of the library do.
//!
//! The number must not depend on the seeds of the hash, which are new for each table: so a key is alone in its table,
//! where it is always the first that is found; or there are thousands, and their mean is told. And what a table or a
//! holder does once and never again is done before anything is counted.

use bench_table::caller::{self, holder, holder_at, unlimited, PinPerCall, Pinning, WordTable};
use bench_table::sweeper;
use bench_table::word_key::{atom, binary, tuple, Words};
use permit_table::{Acquired, Capacity, Holder};
use std::hint::black_box;
use std::ops::Range;

/// A name, and what makes the call so many times.
type Call = (&'static str, fn(u64));

/// By the names that `scripts/instructions.txt` has.
pub const ALL: [Call; 9] = [
    ("pair_atom", |times| pairs(&atom(1), times)),
    ("pair_tuple", |times| pairs(&tuple(1), times)),
    ("pair_binary", |times| pairs(&binary(1), times)),
    ("refused", refused),
    ("not_held", not_held),
    ("pair_beside_five", pairs_beside_five),
    ("life", lives),
    ("count", counts),
    ("key_comes_and_goes", keys_come_and_go),
];

fn table() -> WordTable {
    WordTable::new(1024).expect("there is memory")
}

/// Who calls.
fn caller() -> Holder {
    // SAFETY: this program has one thread.
    unsafe { holder(1) }
}

/// Who holds what is held from before.
fn other() -> Holder {
    // SAFETY: as above.
    unsafe { holder(2) }
}

// Each as a function of its own, as in the library: nothing of it is done once for many calls.

#[inline(never)]
fn acquire<const N: usize>(
    table: &WordTable,
    holder: Holder,
    key: &Words<N>,
    capacity: Capacity,
) -> Acquired {
    caller::acquire(table, &PinPerCall, holder, key, capacity)
}

#[inline(never)]
fn release<const N: usize>(table: &WordTable, holder: Holder, key: &Words<N>) {
    caller::release(table, &PinPerCall, holder, key);
}

#[inline(never)]
fn release_not_held<const N: usize>(table: &WordTable, holder: Holder, key: &Words<N>) {
    let outcome = PinPerCall.call(|pin| table.release(pin, holder, key));
    assert!(outcome.is_err());
}

#[inline(never)]
fn release_all(table: &WordTable, holder: Holder) -> u64 {
    PinPerCall.call(|pin| table.release_all(pin, holder, || false))
}

#[inline(never)]
fn count<const N: usize>(table: &WordTable, key: &Words<N>) -> u64 {
    PinPerCall.call(|pin| table.count(pin, key))
}

/// What is counted: `scripts/instructions.sh` knows it by its name. Nothing else is: what comes before is not the same
/// each time, because keys lie elsewhere by each table's seeds.
#[inline(never)]
fn counted(mut calls: impl FnMut()) {
    calls();
}

fn take<const N: usize>(table: &WordTable, holder: Holder, key: &Words<N>) {
    let acquired = acquire(table, holder, key, black_box(unlimited()));
    assert!(matches!(acquired, Acquired::Permit(_)));
}

/// A key in the table, to acquire and to release.
fn pairs<const N: usize>(key: &Words<N>, times: u64) {
    let table = table();
    take(&table, caller(), key);
    release(&table, caller(), key);
    counted(|| {
        for _ in 0..times {
            take(&table, caller(), key);
            release(&table, caller(), key);
        }
    });
}

/// A full key, to acquire.
fn refused(times: u64) {
    let table = table();
    let key = tuple(1);
    take(&table, other(), &key);
    let capacity = Capacity::of(1, 1);
    counted(|| {
        for _ in 0..times {
            assert_eq!(acquire(&table, caller(), &key, capacity), Acquired::Full);
        }
    });
}

/// A key that another holds, to release.
fn not_held(times: u64) {
    let table = table();
    let key = tuple(1);
    take(&table, other(), &key);
    counted(|| {
        for _ in 0..times {
            release_not_held(&table, caller(), &key);
        }
    });
}

/// As `pairs`, by a process that holds five other keys: one in its slot, four in its list. In several tables, because
/// keys that fall into one range, or look alike there at first sight, cost a few instructions more.
fn pairs_beside_five(times: u64) {
    const TABLES: u64 = 40;
    for _ in 0..TABLES {
        let table = table();
        for number in 1..=5 {
            take(&table, caller(), &tuple(number));
        }
        take(&table, other(), &tuple(6));
        take(&table, caller(), &tuple(6));
        release(&table, caller(), &tuple(6));
        counted(|| {
            for _ in 0..times / TABLES {
                take(&table, caller(), &tuple(6));
                release(&table, caller(), &tuple(6));
            }
        });
    }
}

/// A process that acquires for the first time, and what its death gives back.
fn lives(times: u64) {
    let table = table();
    let key = tuple(1);
    let live = |number| {
        // SAFETY: this program has one thread, and the one before has gone.
        let mortal = unsafe { holder_at(number, 1) };
        take(&table, mortal, &key);
        assert_eq!(release_all(&table, mortal), 1);
    };
    live(0);
    counted(|| (0..times).for_each(live));
}

fn counts(times: u64) {
    let table = table();
    let key = tuple(1);
    take(&table, other(), &key);
    counted(|| {
        for _ in 0..times {
            assert_eq!(count(&table, &key), 1);
        }
    });
}

/// A key that is new, is acquired and released, and is swept away: once spared, taken out the second time, freed. As
/// many at a time as there are ranges in a small table, so that each has one on the average.
fn keys_come_and_go(times: u64) {
    const AT_A_TIME: u64 = 4000;
    /// So many, that every range has been used before anything is counted.
    const BEFORE: u64 = 16 * AT_A_TIME;
    let table = table();
    let come_and_go = |numbers: Range<u64>| {
        for first in numbers.clone().step_by(AT_A_TIME as usize) {
            for number in first..numbers.end.min(first + AT_A_TIME) {
                let key = scattered(number);
                take(&table, caller(), &key);
                release(&table, caller(), &key);
            }
            sweeper::pass(&table);
            sweeper::pass(&table);
        }
    };
    come_and_go(0..BEFORE);
    counted(|| come_and_go(BEFORE..BEFORE + times));
}

/// A key by its number, without a pattern that a hash could make the best or the worst of (SplitMix64).
fn scattered(number: u64) -> Words<2> {
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    tuple(word ^ word >> 31)
}
