//! The promises in a single thread: the result of each call, and the state after it.

use crate::common::*;
use permit_table::{
    pin, Acquired, Capacity, Cursor, Given, NotHeld, OutOfMemory, Progress, Totals, Usage,
};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;

#[test]
fn p6_capacity_of_the_call_decides() {
    let table = Table::new(16).unwrap();
    let me = holder(1);
    for (releases, capacity, expected) in [
        (0, 3, Some(1)),
        (0, 3, Some(2)),
        (0, 3, Some(3)),
        (0, 3, None),
        // A larger capacity admits at once. A smaller one evicts no holder, and refuses.
        (0, 6, Some(4)),
        (0, 3, None),
        (1, 3, None),
        (1, 3, Some(3)),
        (0, 0, None),
    ] {
        (0..releases).for_each(|_| release(&table, me, 1).unwrap());
        assert_eq!(acquire(&table, me, 1, capacity), expected);
    }
}

/// P2: a refused acquire of an existing key or of a new one creates no key, slot or watch.
#[test]
fn p2_refusal_reserves_nothing() {
    const PROCESSES: u64 = 1 << 20;
    let table = Table::new(PROCESSES as usize).unwrap();
    let refused = |key, capacity| {
        let usage = || Usage {
            totals: Totals::default(),
            ..table.usage()
        };
        let watch = || -> Result<(), OutOfMemory> { panic!("nothing to watch") };
        let (before, far) = (usage(), holder(PROCESSES - 1));
        let result = table.acquire(&pin(), far, &NameQuery(key), capacity, watch);
        assert_eq!((result, usage()), (Ok(Acquired::Full), before));
    };
    refused(1, Capacity::of(0, 1));
    acquire(&table, holder(1), 1, 1).unwrap();
    refused(1, Capacity::of(1, 1));
    refused(2, Capacity::of(1, 0));
}

#[test]
fn p4_death_releases_everything_once() {
    let many = many(10_000);
    for (keys, permits_of_key) in [(1, 1), (2, 1), (3, 1), (100, 1), (many, 1), (1, many)] {
        let table = Table::new(16).unwrap();
        let capacity = permits_of_key + 1;
        for key in 0..keys {
            for out in 1..=permits_of_key {
                assert_eq!(acquire(&table, holder(1), key, capacity), Some(out));
            }
            assert_eq!(acquire(&table, holder(2), key, capacity), Some(capacity));
            assert_eq!(acquire(&table, holder(1), key, capacity), None);
        }
        // A part is released before the death.
        let released = permits_of_key / 2;
        (0..released).for_each(|_| release(&table, holder(1), 0).unwrap());
        assert_eq!(die(&table, holder(1)), keys * permits_of_key - released);
        assert!((0..keys).all(|key| count(&table, key) == 1));
        assert_eq!(die(&table, holder(1)), 0);
        assert_eq!(permits(&table), keys);
    }
}

/// P4: a process with the pid of a dead one holds what that one held.
#[test]
fn p4_process_with_a_reused_pid_inherits() {
    let table = Table::new(16).unwrap();
    for place in [1, 2] {
        let heir = displaced_holder(5, place);
        acquire(&table, holder(1), 7, 1);
        acquire(&table, heir, 8, 1).unwrap();
        assert_eq!(table.release_all(&pin(), heir, || true, ()), 0);
        let watch = || panic!("it is watched already");
        assert_eq!(acquire_watched(&table, heir, 9, 1, watch), Some(1));
        assert_eq!(release(&table, heir, 8), Ok(()));
        assert_eq!(die(&table, heir), 1);
    }
    assert_eq!(permits(&table), 1);
}

/// O4: the sum of the permits on record equals the sum of the counts, wherever the permits are on record.
#[test]
fn h5_sum_of_the_records_equals_the_counts() {
    for keys in [1, 2, 3, 4, many(3000)] {
        let table = Table::new(16).unwrap();
        // The first one dies before the next one uses the same place. The last one dies too.
        let crowd =
            [(1, 1), (1, 1), (2, 1), (3, 1)].map(|(number, place)| displaced_holder(number, place));
        let granted = Cell::new(0);
        let grant = |change: i64| {
            granted.set(granted.get() + change);
            if keys < 9 {
                assert_eq!(permits(&table), granted.get() as u64);
            }
        };
        let check = |holders| {
            assert_eq!(permits(&table), granted.get() as u64);
            assert_eq!(table.usage().holders, holders);
        };
        for (round, me) in crowd.into_iter().enumerate() {
            for key in (0..keys).chain(0..keys).chain(0..1) {
                acquire(&table, me, key, u64::MAX).unwrap();
                grant(1);
            }
            assert_eq!(acquire(&table, me, keys - 1, 0), None);
            for key in (0..keys).step_by(2) {
                release(&table, me, key).unwrap();
                grant(-1);
            }
            assert_eq!(release(&table, me, keys), Err(NotHeld));
            check(round.max(1));
            if [0, 3].contains(&round) {
                grant(-(die(&table, me) as i64));
                check(round.max(1) - 1);
            }
        }
        for me in &crowd[1..3] {
            for key in 0..keys {
                while release(&table, *me, key).is_ok() {
                    granted.set(granted.get() - 1);
                }
            }
            assert_eq!(permits(&table), granted.get() as u64);
        }
        check(0);
        let totals = table.usage().totals;
        assert_eq!(permits(&table), 0);
        assert_eq!(totals.granted, totals.released + totals.released_by_death);
        assert_eq!(totals.granted, 4 * (2 * keys + 1));
    }
}

#[test]
fn p5_only_a_holder_releases() {
    let table = Table::new(16).unwrap();
    let not_held = |number, why| {
        assert_eq!(release(&table, holder(number), 7), Err(NotHeld), "{why}");
    };
    not_held(1, "no such key");
    acquire(&table, holder(1), 7, 2);
    not_held(2, "no such holder");
    acquire(&table, holder(2), 8, 2);
    not_held(2, "holds another key");
    assert_eq!(count(&table, 7), 1);
    assert_eq!(release(&table, holder(1), 7), Ok(()));
    not_held(1, "no longer");
    assert_eq!(count(&table, 7), 0);
}

#[test]
fn h3_holder_is_watched_once_before_its_first_permit() {
    let table = Table::<Name>::new(16).unwrap();
    let acquire = |key, watch: &mut dyn FnMut() -> Result<(), OutOfMemory>| {
        table.acquire(&pin(), holder(1), &NameQuery(key), Capacity::MAX, watch)
    };
    assert_eq!(acquire(1, &mut || Err(OutOfMemory)), Err(OutOfMemory));
    assert_eq!((count(&table, 1), table.usage().holders), (0, 0));
    let mut watched = 0;
    for key in 0..5 {
        let mut watch = || {
            watched += 1;
            assert_eq!(count(&table, key), 0);
            Ok(())
        };
        acquire(key, &mut watch).unwrap();
    }
    assert_eq!(watched, 1);
}

#[test]
fn p8_burst_of_keys_leaves_nothing() {
    let table = Table::new(16).unwrap();
    acquire(&table, holder(1), u64::MAX, 1);
    let before = table.usage();
    let burst = many(200_000);
    for key in 0..burst {
        acquire(&table, holder(1), key, 1);
        release(&table, holder(1), key).unwrap();
    }
    let keys = || table.usage().keys as u64;
    assert_eq!(keys(), burst + 1);
    sweep(&table);
    assert_eq!(keys(), burst + 1, "used since the last sweep");
    sweep(&table);
    let after = table.usage();
    assert_eq!(after.totals.reclaimed, burst);
    let totals = before.totals;
    assert_eq!(
        Usage { totals, ..after },
        before,
        "keys, heads and retired memory are freed; the key in use is not"
    );
    assert_eq!(acquire(&table, holder(1), 5, 1), Some(1));
    assert_eq!(count(&table, u64::MAX), 1);
}

/// Keys held by processes with a slot in the array and by displaced ones.
fn table_of_held_keys() -> Table<Name> {
    let table = Table::new(16).unwrap();
    for key in 0..500 {
        acquire(&table, displaced_holder(key, key % 20), key, 1).unwrap();
    }
    table
}

/// Keys that are unlinked but not freed.
fn table_of_waiting_keys() -> Table<Name> {
    let table = Table::new(16).unwrap();
    acquire_all(&table, holder(1), 0..500);
    die(&table, holder(1));
    sweep(&table);
    let inside = pin();
    while step(&table, 64) == Progress::More {}
    drop(inside);
    assert_eq!(table.usage().keys, 0);
    table
}

#[test]
fn p8_dropped_table_frees_its_keys() {
    for make in [table_of_held_keys, table_of_waiting_keys] {
        let table = make();
        assert_eq!(live_names(), 500);
        drop(table);
        assert_eq!(live_names(), 0);
    }
}

#[test]
fn p8_list_of_a_holder_is_freed_after_its_releases() {
    let table = Table::new(16).unwrap();
    let before = allocated();
    let keys = 0..many(10_000);
    acquire_all(&table, holder(1), keys.clone());
    keys.for_each(|key| release(&table, holder(1), key).unwrap());
    (0..2).for_each(|_| sweep(&table));
    // The chunk of slots and the lock of this slot stay.
    assert!(allocated() - before < 70_000);
    die(&table, holder(1));
}

#[test]
fn h4_holders_with_one_place_are_independent() {
    let table = Table::new(16).unwrap();
    let crowd: Vec<_> = (0..50).map(|number| displaced_holder(number, 3)).collect();
    let empty = allocated();
    for (number, holder) in crowd.iter().enumerate() {
        for key in 0..4 {
            assert_eq!(acquire(&table, *holder, key, 50), Some(number as u64 + 1));
        }
    }
    assert_eq!(table.usage().holders, 50);
    // The one with the place dies first. The others must find their own slots, not its slot.
    for (dead, holder) in crowd.iter().enumerate() {
        assert_eq!(die(&table, *holder), 4);
        for living in &crowd[dead + 1..] {
            release(&table, *living, 0).unwrap();
            acquire(&table, *living, 0, 50).unwrap();
        }
    }
    assert_eq!((permits(&table), table.usage().holders), (0, 0));
    (0..2).for_each(|_| sweep(&table));
    assert!(allocated() - empty < 80_000);
}

/// H4: a process has a slot from its first permit to its death, wherever the slot is.
#[test]
fn h4_holder_is_known_until_it_dies() {
    let table = Table::new(16).unwrap();
    let crowd = [0, 1, 2].map(|number| displaced_holder(number, 3));
    let known = || crowd.map(|me| table.knows(me));
    assert_eq!(known(), [false; 3]);
    for me in crowd {
        acquire(&table, me, 1, 9).unwrap();
        release(&table, me, 1).unwrap();
    }
    for (dead, me) in crowd.iter().enumerate() {
        assert_eq!(known(), [dead < 1, dead < 2, true]);
        die(&table, *me);
    }
    assert_eq!(known(), [false; 3]);
}

#[test]
fn h4_any_number_is_a_place() {
    let table = Table::new(16).unwrap();
    for (number, place) in (0..).zip([0, 15, 16, 1 << 40, u64::MAX]) {
        let me = displaced_holder(number, place);
        assert_eq!(acquire(&table, me, 1, 9), Some(number + 1));
    }
    assert_eq!(table.usage().holders, 5);
}

/// P8: while a process is alive it needs no more memory than earlier processes with the same place. This also holds if
/// another living holder has the place.
#[test]
fn p8_dead_processes_leave_no_memory() {
    let table = Table::new(16).unwrap();
    acquire(&table, holder(1), 1, 9).unwrap();
    let live = |number| {
        [1, 2].map(|place| {
            let me = displaced_holder(number, place);
            let before = allocated();
            acquire(&table, me, 1, 9).unwrap();
            let alive = allocated() - before;
            die(&table, me);
            (alive, allocated() - before)
        })
    };
    live(100);
    let memory = live(101);
    assert!((102..2000).all(|number| live(number) == memory));
    assert_eq!(table.usage().holders, 1);
}

/// For any size of the pieces, each key with permits in use is reported once.
#[test]
fn keys_are_reported_once_across_pieces() {
    let table = Table::new(16).unwrap();
    let permits_of = |key| key % 3 + 1;
    for key in 0..1000 {
        acquire_all(&table, holder(1), (0..permits_of(key)).map(|_| key));
    }
    for key in 900..1000 {
        (0..permits_of(key)).for_each(|_| release(&table, holder(1), key).unwrap());
    }
    for limit in [1, 7, 999, 10_000] {
        let mut reported = BTreeMap::new();
        let mut pieces = 0;
        in_pieces(0, |start| {
            pieces += 1;
            let pin = pin();
            let (keys, next) = table.keys_after(&pin, start, limit).unwrap();
            for (key, out) in keys {
                assert_eq!(reported.insert(key.number(), out), None);
            }
            next
        });
        assert!(reported
            .into_iter()
            .eq((0..900).map(|key| (key, permits_of(key)))));
        assert!(pieces >= 1000 / limit, "{pieces} pieces of {limit}");
    }
}

/// Reporting a large key takes long, so a piece has fewer of them.
#[test]
fn pieces_have_fewer_large_keys() {
    let table = Table::new(16).unwrap();
    acquire_all(&table, holder(1), LARGE..LARGE + 9);
    let mut pieces = Vec::new();
    in_pieces(0, |start| {
        let pin = pin();
        let piece = table.keys_after(&pin, start, 3 * LARGE_BYTES / 1024);
        let (keys, next) = piece.unwrap();
        pieces.push(keys.len());
        next
    });
    assert_eq!(pieces, [3, 3, 3]);
}

/// A piece of permits has a limited number of slots or of rows.
#[test]
fn permits_are_reported_once_across_pieces() {
    // Acquires the keys from 0 for each (number, place, keys). Returns the number of rows in each piece.
    let pieces = |holders: Vec<(u64, u64, u64)>| {
        let table = Table::new(1 << 20).unwrap();
        let mut expected = BTreeMap::new();
        for (number, place, keys) in holders {
            acquire_all(&table, displaced_holder(number, place), 0..keys);
            expected.extend((0..keys).map(|key| ((number, key), 1)));
        }
        assert_eq!(all_permits(&table), expected);
        let mut pieces = Vec::new();
        in_pieces(Cursor::default(), |start| {
            let pin = pin();
            let (rows, next) = table.permits_from(&pin, start).unwrap();
            pieces.push(rows.len());
            next
        });
        pieces
    };

    // Each of these has its own chunk of slots. The displaced one is reported last.
    let apart = (0..200).map(|number| (number * 5000, number * 5000, 1));
    assert_eq!(pieces(apart.chain([(7, 0, 1)]).collect()), [64, 64, 64, 9]);

    // The rows of one holder are split into pieces too, wherever its slot is.
    for place in [7, 3] {
        let pieces = pieces(vec![(5, 3, 2), (9, place, many(9000)), (5000, 5000, 1)]);
        assert!(pieces.len() as u64 >= many(8000) / 1000);
        assert!(pieces.iter().all(|rows| *rows < 1200), "{pieces:?}");
    }

    // Also if all are displaced.
    let displaced = (0..many(10_000)).map(|number| (1 + number, 0, 1));
    let pieces = pieces(displaced.chain([(0, 0, 1)]).collect());
    assert!(pieces.iter().all(|rows| *rows <= 4096), "{pieces:?}");
}

/// A piece reads a limited number of displaced slots, even if none of their processes holds the key. A process has such
/// a slot if another process gave it a permit before its first acquire.
#[test]
fn displaced_slots_are_searched_in_pieces() {
    let table = Table::new(16).unwrap();
    for number in 0..many(10_000) {
        acquire(&table, holder(0), 1, u64::MAX).unwrap();
        assert_eq!(
            give(&table, holder(0), holder(1 + number), 1, 1),
            Given::Given
        );
    }
    acquire(&table, holder(0), 2, 1).unwrap();
    let mut pieces = 0;
    in_pieces(Cursor::default(), |start| {
        pieces += 1;
        table.holders_from(&pin(), start, &NameQuery(2)).unwrap().1
    });
    assert!(cfg!(miri) || pieces == 3, "{pieces} pieces");
    assert_eq!(holders_of(&table, 2), [((0, 2), 1)].into());
    assert_eq!(holders_of(&table, 1).len() as u64, many(10_000));
}

/// P1: a key that is acquired again is in the slot and in its overflow. Also at the end of a piece.
#[test]
fn p1_key_in_slot_and_overflow_is_reported_once() {
    let (table, keys) = (Table::new(16).unwrap(), many(3000));
    acquire_all(&table, holder(1), 0..keys);
    let mut ends = Vec::new();
    in_pieces(0, |start| {
        let pin = pin();
        let (rows, next) = table.held(&pin, holder(1), start).unwrap();
        let piece: Vec<_> = rows.iter().map(|row| row.key.number()).collect();
        ends.extend(piece.first().into_iter().chain(piece.last()));
        next
    });
    for key in ends {
        assert_eq!(acquire(&table, holder(1), key, 9), Some(2));
        let permits = |of| if of == key { 2 } else { 1 };
        let expected = (0..keys).map(|key| (key, permits(key))).collect();
        assert_eq!(held(&table, holder(1)), expected);
        let pin = pin();
        let read = table.holders_from(&pin, Cursor::default(), &NameQuery(key));
        let (rows, next) = read.unwrap();
        assert!(next.is_none() && rows.iter().all(|row| row.permits == 2));
        release(&table, holder(1), key).unwrap();
    }
}

/// If a holder dies between two pieces of its rows, the rows of the next holder are still complete.
#[test]
fn holder_after_one_that_dies_between_pieces_is_complete() {
    let table = Table::new(16).unwrap();
    // The first one has the place, the others are displaced.
    let crowd = [0, 1, 2].map(|number| displaced_holder(number, 3));
    let keys = 1500;
    for me in crowd {
        acquire_all(&table, me, 0..keys);
    }
    let mut rows = BTreeMap::<u64, u64>::new();
    let mut dead = None;
    in_pieces(Cursor::default(), |start| {
        let pin = pin();
        let (piece, next) = table.permits_from(&pin, start).unwrap();
        for row in piece {
            *rows.entry(row.holder - 1).or_default() += 1;
        }
        let is_inside = next.is_some_and(|(part, _, sort_key)| part == 1 && sort_key > 0);
        if is_inside && dead.is_none() {
            let first = *rows.keys().find(|number| **number > 0).unwrap();
            die(&table, crowd[first as usize]);
            dead = Some(first);
        }
        next
    });
    let dead = dead.expect("one of the displaced is reported in two pieces");
    assert_eq!((rows[&0], rows[&(3 - dead)]), (keys, keys));
    assert!(rows[&dead] < keys);
}

#[test]
fn p8_sweep_waits_for_pinned_threads() {
    let table = Table::new(16).unwrap();
    acquire(&table, holder(1), 1, 1).unwrap();
    release(&table, holder(1), 1).unwrap();
    sweep(&table);
    let inside = pin();
    let mut steps = (0..1000).map(|_| step(&table, 64));
    let waiting = steps.find(|progress| *progress != Progress::More);
    assert_eq!(waiting, Some(Progress::Waiting));
    assert_eq!((table.usage().keys, live_names()), (0, 1));
    drop(inside);
    sweep(&table);
    assert_eq!(live_names(), 0);
}

/// P8: no step reclaims or frees more than its budget. Large keys cost more: each page counts.
#[test]
fn p8_sweep_step_keeps_its_budget() {
    const BUDGET: usize = 60;
    for (first, freed_per_step) in [(0, BUDGET), (LARGE, 3)] {
        let table = Table::new(16).unwrap();
        acquire_all(&table, holder(1), first..first + 600);
        die(&table, holder(1));
        sweep(&table);
        let state = || (table.usage().keys, live_names() as usize);
        let mut reclaimed = Vec::new();
        let mut before = state();
        // So that all keys wait to be freed at the same time.
        let mut inside = Some(pin());
        loop {
            let progress = step(&table, BUDGET);
            let after = state();
            reclaimed.push(before.0 - after.0);
            let freed = before.1 - after.1;
            assert!(freed <= freed_per_step);
            before = after;
            match progress {
                Progress::Done => break,
                Progress::Waiting => {
                    assert!(freed < freed_per_step, "more can be freed immediately");
                    inside.take();
                    std::thread::yield_now();
                }
                Progress::More => {}
            }
        }
        assert_eq!(reclaimed[..11], [[BUDGET; 10].as_slice(), &[0]].concat());
        assert_eq!(live_names(), 0);
    }
}

/// Permits by (holder, key).
type Model = BTreeMap<(u64, u64), u64>;

fn part(model: &Model, is_wanted: impl Fn(&(u64, u64)) -> bool) -> Model {
    let rows = model.iter().filter(|(row, _)| is_wanted(row));
    rows.map(|(row, permits)| (*row, *permits)).collect()
}

proptest! {
    /// H4: for all places of holders, each permit is reported once, in pieces: of all keys, and of each key.
    #[test]
    fn inspection_reports_each_permit_once(
        places in prop::collection::vec((0..PLACES, 1..6u64, any::<bool>()), 0..150),
    ) {
        let table = Table::new(PLACES as usize).unwrap();
        let mut model = Model::new();
        for (number, (place, keys, has_place)) in (0..).zip(places) {
            let me = displaced_holder(number, if has_place { place } else { 0 });
            acquire_all(&table, me, 0..keys);
            model.extend((0..keys).map(|key| ((number, key), 1)));
        }
        prop_assert_eq!(&all_permits(&table), &model);
        for key in 0..6 {
            prop_assert_eq!(holders_of(&table, key), part(&model, |(_, held)| *held == key));
        }
    }
}

/// More chunks of slots than one piece has.
const PLACES: u64 = 1 << 17;
