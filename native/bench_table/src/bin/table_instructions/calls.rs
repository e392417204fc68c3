//! The calls whose instructions are counted. Each one pins, as in the library.
//!
//! The number must not depend on the seeds of the hash, which differ for each table. So a key is alone in its table,
//! where it is always found first; or there are thousands of keys, and the result is the mean. What a table or a holder
//! does only once is done before the count.

use bench_table::caller::{self, holder, holder_at, unlimited, PinPerCall, Pinning, WordTable};
use bench_table::sweeper;
use bench_table::word_key::{atom, binary, tuple, Words};
use permit_table::{Acquired, Capacity, Holder};
use std::hint::black_box;
use std::ops::Range;

/// A name, and a function that makes the call the given number of times.
type Call = (&'static str, fn(u64));

/// By the names in `scripts/instructions.txt`.
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
    WordTable::new(1024).expect("out of memory")
}

/// The calling process.
fn caller() -> Holder {
    // SAFETY: this program has one thread.
    unsafe { holder(1) }
}

/// The process that holds the keys that were taken before.
fn other() -> Holder {
    // SAFETY: as above.
    unsafe { holder(2) }
}

// Each call is a function of its own, as in the library, so the compiler cannot share work between calls.

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
    let outcome = PinPerCall.call(|pin| table.release(pin, holder, key, ()));
    assert!(outcome.is_err());
}

#[inline(never)]
fn release_all(table: &WordTable, holder: Holder) -> u64 {
    PinPerCall.call(|pin| table.release_all(pin, holder, || false, ()))
}

#[inline(never)]
fn count<const N: usize>(table: &WordTable, key: &Words<N>) -> u64 {
    PinPerCall.call(|pin| table.count(pin, key))
}

/// The counted part. `scripts/instructions.sh` finds this function by its name. What precedes it differs from run to
/// run, because the places of keys depend on the seeds of the table.
#[inline(never)]
fn counted(mut calls: impl FnMut()) {
    calls();
}

fn acquire_permit<const N: usize>(table: &WordTable, holder: Holder, key: &Words<N>) {
    let acquired = acquire(table, holder, key, black_box(unlimited()));
    assert!(matches!(acquired, Acquired::Permit(_)));
}

/// Acquires and releases an existing key.
fn pairs<const N: usize>(key: &Words<N>, times: u64) {
    let table = table();
    acquire_permit(&table, caller(), key);
    release(&table, caller(), key);
    counted(|| {
        for _ in 0..times {
            acquire_permit(&table, caller(), key);
            release(&table, caller(), key);
        }
    });
}

/// Acquires a full key.
fn refused(times: u64) {
    let table = table();
    let key = tuple(1);
    acquire_permit(&table, other(), &key);
    let capacity = Capacity::of(1, 1);
    counted(|| {
        for _ in 0..times {
            assert_eq!(acquire(&table, caller(), &key, capacity), Acquired::Full);
        }
    });
}

/// Releases a key that another process holds.
fn not_held(times: u64) {
    let table = table();
    let key = tuple(1);
    acquire_permit(&table, other(), &key);
    counted(|| {
        for _ in 0..times {
            release_not_held(&table, caller(), &key);
        }
    });
}

/// As `pairs`, by a process that holds five other keys: one in its slot, four in its list. It uses several tables,
/// because keys in the same range, or with similar orders, cost a few instructions more.
fn pairs_beside_five(times: u64) {
    const TABLES: u64 = 40;
    for _ in 0..TABLES {
        let table = table();
        for number in 1..=5 {
            acquire_permit(&table, caller(), &tuple(number));
        }
        acquire_permit(&table, other(), &tuple(6));
        acquire_permit(&table, caller(), &tuple(6));
        release(&table, caller(), &tuple(6));
        counted(|| {
            for _ in 0..times / TABLES {
                acquire_permit(&table, caller(), &tuple(6));
                release(&table, caller(), &tuple(6));
            }
        });
    }
}

/// The first acquire of a process, and its death.
fn lives(times: u64) {
    let table = table();
    let key = tuple(1);
    let live = |number| {
        // SAFETY: this program has one thread, and the previous process is dead.
        let mortal = unsafe { holder_at(number, 1) };
        acquire_permit(&table, mortal, &key);
        assert_eq!(release_all(&table, mortal), 1);
    };
    live(0);
    counted(|| (0..times).for_each(live));
}

fn counts(times: u64) {
    let table = table();
    let key = tuple(1);
    acquire_permit(&table, other(), &key);
    counted(|| {
        for _ in 0..times {
            assert_eq!(count(&table, &key), 1);
        }
    });
}

/// A new key is acquired, released and reclaimed: the sweep spares it once, unlinks it the second time, and frees it.
/// The number of keys equals the number of ranges of a small table, so each range has one on average.
fn keys_come_and_go(times: u64) {
    const AT_A_TIME: u64 = 4000;
    /// Enough keys that every range has been used before the count.
    const BEFORE: u64 = 16 * AT_A_TIME;
    let table = table();
    let come_and_go = |numbers: Range<u64>| {
        for first in numbers.clone().step_by(AT_A_TIME as usize) {
            for number in first..numbers.end.min(first + AT_A_TIME) {
                let key = scattered(number);
                acquire_permit(&table, caller(), &key);
                release(&table, caller(), &key);
            }
            sweeper::pass(&table);
            sweeper::pass(&table);
        }
    };
    come_and_go(0..BEFORE);
    counted(|| come_and_go(BEFORE..BEFORE + times));
}

/// A key by its number, without a pattern that a hash could treat well or badly (SplitMix64).
fn scattered(number: u64) -> Words<2> {
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    tuple(word ^ word >> 31)
}
