//! The promises, one thread at a time: what each call answers, and what is left behind.
#![cfg(not(loom))]

mod common;

use common::*;
use permit_table::{
    pin, Acquired, Capacity, Cursor, NotHeld, OutOfMemory, Permits, Progress, Table, Totals, Usage,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn p6_capacity_comes_with_the_call() {
    let table = Table::new(16).unwrap();
    let me = holder(1);
    assert_eq!(
        (1..=3)
            .map(|_| acquire(&table, me, 1, 3))
            .collect::<Vec<_>>(),
        [Some(1), Some(2), Some(3)]
    );
    assert_eq!(acquire(&table, me, 1, 3), None);
    assert_eq!(acquire(&table, me, 1, 6), Some(4), "growing admits at once");
    assert_eq!(
        acquire(&table, me, 1, 3),
        None,
        "shrinking evicts nobody, and admits nobody"
    );
    release(&table, me, 1).unwrap();
    assert_eq!(acquire(&table, me, 1, 3), None);
    release(&table, me, 1).unwrap();
    assert_eq!(acquire(&table, me, 1, 3), Some(3));
    assert_eq!(acquire(&table, me, 1, 0), None);
}

#[test]
fn p2_a_refusal_creates_no_key() {
    let table = Table::new(16).unwrap();
    let is = || Usage {
        totals: Totals::default(),
        ..table.usage()
    };
    let before = is();
    assert_eq!(acquire(&table, holder(1), 1, 0), None);
    assert_eq!(is(), before);
    assert_eq!(acquire(&table, holder(1), 1, 1), Some(1));
    let one = is();
    assert_eq!(acquire(&table, holder(2), 1, 1), None);
    assert_eq!(is(), one);
    assert_eq!(table.usage().totals.refused, 2);
}

/// Whoever asks for a full key is not even given a place of its own, nor watched.
#[test]
fn p2_a_refusal_of_a_key_that_is_there_reserves_nothing() {
    let table = Table::new(1 << 20).unwrap();
    acquire(&table, holder(1), 1, 1).unwrap();
    let memory = table.usage().memory;
    let watch = || -> Result<(), OutOfMemory> { panic!("nothing to watch") };
    let far = holder((1 << 20) - 1);
    let outcome = table.acquire(&pin(), far, &Wanted(1), Capacity::of(1, 1), watch);
    assert_eq!(outcome, Ok(Acquired::Full));
    assert_eq!(table.usage().memory, memory);
}

#[test]
fn p4_a_death_gives_back_everything_once() {
    for keys in [1, 2, 3, 100, many(10_000)] {
        let table = Table::new(16).unwrap();
        for key in 0..keys {
            assert_eq!(acquire(&table, holder(1), key, 9), Some(1));
            assert_eq!(acquire(&table, holder(2), key, 9), Some(2));
        }
        let given = die(&table, holder(1));
        assert_eq!(given, keys);
        assert!((0..keys).all(|key| count(&table, key) == 1));
        let again = die(&table, holder(1));
        assert_eq!(again, 0);
        assert_eq!(permits(&table), keys);
    }
}

/// A process with the pid of a dead one holds what that one held.
#[test]
fn p4_a_new_process_inherits() {
    let table = Table::new(16).unwrap();
    for place in [1, 2] {
        let heir = displaced_holder(5, place);
        acquire(&table, holder(1), 7, 1);
        acquire(&table, heir, 8, 1).unwrap();
        let given = table.release_all(&pin(), heir, || true);
        assert_eq!(given, 0);
        let watch = || panic!("it is watched already");
        assert_eq!(acquire_watched(&table, heir, 9, 1, watch), Some(1));
        assert_eq!(release(&table, heir, 8), Ok(()));
        assert_eq!(die(&table, heir), 1);
    }
    assert_eq!(permits(&table), 1);
}

#[test]
fn p4_many_permits_of_one_key() {
    let table = Table::new(16).unwrap();
    let capacity = many(10_000);
    for out in 1..=capacity {
        assert_eq!(acquire(&table, holder(1), 7, capacity), Some(out));
    }
    assert_eq!(acquire(&table, holder(1), 7, capacity), None);
    release(&table, holder(1), 7).unwrap();
    assert_eq!(die(&table, holder(1)), capacity - 1);
    assert_eq!(count(&table, 7), 0);
}

/// H5: what is told of the permits of all is what the keys have counted, wherever they are on record.
#[test]
fn h5_the_sum_is_that_of_the_permits_of_all() {
    for keys in [1, 2, 3, 4, many(3000)] {
        let table = Table::new(16).unwrap();
        // The first dies before the next comes to the same place; the last dies too.
        let crowd = [
            holder(1),
            holder(1),
            displaced_holder(2, 1),
            displaced_holder(3, 1),
        ];
        let mut granted = 0;
        for (round, me) in crowd.into_iter().enumerate() {
            for key in (0..keys).chain(0..keys).chain(0..1) {
                acquire(&table, me, key, u64::MAX).unwrap();
                granted += 1;
                if keys < 9 {
                    assert_eq!(permits(&table), granted);
                }
            }
            assert_eq!(acquire(&table, me, keys - 1, 0), None);
            for key in (0..keys).step_by(2) {
                release(&table, me, key).unwrap();
                granted -= 1;
                if keys < 9 {
                    assert_eq!(permits(&table), granted);
                }
            }
            assert_eq!(release(&table, me, keys), Err(NotHeld));
            assert_eq!(permits(&table), granted);
            assert_eq!(table.usage().holders, round.max(1));
            if [0, 3].contains(&round) {
                granted -= die(&table, me);
                assert_eq!(permits(&table), granted);
                assert_eq!(table.usage().holders, round.max(1) - 1);
            }
        }
        for me in &crowd[1..3] {
            for key in 0..keys {
                while release(&table, *me, key).is_ok() {
                    granted -= 1;
                }
            }
            assert_eq!(permits(&table), granted);
        }
        let usage = table.usage();
        assert_eq!((usage.permits, usage.holders), (0, 0));
        assert_eq!(
            usage.totals.granted,
            usage.totals.released + usage.totals.given_back
        );
        assert_eq!(usage.totals.granted, 4 * (2 * keys + 1));
    }
}

#[test]
fn p5_only_a_holder_releases() {
    let table = Table::new(16).unwrap();
    assert_eq!(release(&table, holder(1), 7), Err(NotHeld), "no such key");
    acquire(&table, holder(1), 7, 2);
    assert_eq!(
        release(&table, holder(2), 7),
        Err(NotHeld),
        "no such holder"
    );
    acquire(&table, holder(2), 8, 2);
    assert_eq!(
        release(&table, holder(2), 7),
        Err(NotHeld),
        "holds another key"
    );
    assert_eq!(count(&table, 7), 1);
    assert_eq!(release(&table, holder(1), 7), Ok(()));
    assert_eq!(release(&table, holder(1), 7), Err(NotHeld), "no longer");
    assert_eq!(count(&table, 7), 0);
}

#[test]
fn h3_a_holder_is_watched_once_and_before_it_holds() {
    let table = Table::<Name>::new(16).unwrap();
    let refused = table.acquire(&pin(), holder(1), &Wanted(1), Capacity::MAX, || {
        Err(OutOfMemory)
    });
    assert_eq!(refused, Err(OutOfMemory));
    assert_eq!(count(&table, 1), 0);
    assert_eq!(table.usage().holders, 0);
    let mut watched = 0;
    for key in 0..5 {
        let watch = || {
            watched += 1;
            assert_eq!(count(&table, key), 0);
            Ok::<(), OutOfMemory>(())
        };
        table
            .acquire(&pin(), holder(1), &Wanted(key), Capacity::MAX, watch)
            .unwrap();
    }
    assert_eq!(watched, 1);
}

#[test]
fn p8_a_burst_of_keys_leaves_nothing() {
    let table = Table::new(16).unwrap();
    acquire(&table, holder(1), u64::MAX, 1);
    let before = table.usage();
    let burst = many(200_000);
    for key in 0..burst {
        acquire(&table, holder(1), key, 1);
        release(&table, holder(1), key).unwrap();
    }
    assert_eq!(table.usage().keys as u64, burst + 1);
    sweep(&table);
    assert_eq!(
        table.usage().keys as u64,
        burst + 1,
        "used since the last sweep"
    );
    sweep(&table);
    assert_eq!(
        Usage {
            totals: before.totals,
            ..table.usage()
        },
        before,
        "keys, heads and what waited are gone; the key in use is not"
    );
    assert_eq!(acquire(&table, holder(1), 5, 1), Some(1));
    assert_eq!(count(&table, u64::MAX), 1);
}

/// A table of keys that are held by those with a place and by those without.
fn table_of_held_keys() -> Table<Name> {
    let table = Table::new(16).unwrap();
    for key in 0..500 {
        acquire(&table, displaced_holder(key, key % 20), key, 1).unwrap();
    }
    table
}

/// A table of keys that have been taken out, but not been freed.
fn table_of_waiting_keys() -> Table<Name> {
    let table = Table::new(16).unwrap();
    for key in 0..500 {
        acquire(&table, holder(1), key, 1).unwrap();
    }
    die(&table, holder(1));
    sweep(&table);
    let inside = pin();
    while step(&table, 64) == Progress::More {}
    drop(inside);
    assert_eq!(table.usage().keys, 0);
    table
}

#[test]
fn p8_a_table_that_is_dropped_frees_all_its_keys() {
    for make in [table_of_held_keys, table_of_waiting_keys] {
        let table = make();
        assert_eq!(living(), 500);
        drop(table);
        assert_eq!(living(), 0);
    }
}

#[test]
fn p8_a_holder_of_many_keys_leaves_no_room_behind() {
    let table = Table::new(16).unwrap();
    let before = table.usage().memory;
    for key in 0..many(10_000) {
        acquire(&table, holder(1), key, 1);
    }
    for key in 0..many(10_000) {
        release(&table, holder(1), key).unwrap();
    }
    for _ in 0..2 {
        sweep(&table);
    }
    // The chunk of slots, and the lock of this one, stay.
    assert!(table.usage().memory - before < 70_000);
    die(&table, holder(1));
}

#[test]
fn h4_holders_that_share_a_place_keep_apart() {
    let table = Table::new(16).unwrap();
    let crowd: Vec<_> = (0..50).map(|number| displaced_holder(number, 3)).collect();
    let empty = table.usage().memory;
    for (number, holder) in crowd.iter().enumerate() {
        for key in 0..4 {
            assert_eq!(acquire(&table, *holder, key, 50), Some(number as u64 + 1));
        }
    }
    assert_eq!(table.usage().holders, 50);
    // The one at home dies first: the others must find their own slots again, not its.
    for (dead, holder) in crowd.iter().enumerate() {
        assert_eq!(die(&table, *holder), 4);
        for living in &crowd[dead + 1..] {
            release(&table, *living, 0).unwrap();
            acquire(&table, *living, 0, 50).unwrap();
        }
    }
    assert_eq!(permits(&table), 0);
    assert_eq!(table.usage().holders, 0);
    for _ in 0..2 {
        sweep(&table);
    }
    assert!(table.usage().memory - empty < 80_000);
}

/// H4: a process is known from its first permit to its death, wherever its slot is.
#[test]
fn h4_a_holder_is_known_until_it_dies() {
    let table = Table::new(16).unwrap();
    let crowd = [0, 1, 2].map(|number| displaced_holder(number, 3));
    assert!(!crowd.iter().any(|me| table.knows(*me)));
    for me in crowd {
        acquire(&table, me, 1, 9).unwrap();
        release(&table, me, 1).unwrap();
    }
    for (dead, me) in crowd.iter().enumerate() {
        assert_eq!(crowd.map(|me| table.knows(me)), [dead < 1, dead < 2, true]);
        die(&table, *me);
    }
    assert!(!crowd.iter().any(|me| table.knows(*me)));
}

#[test]
fn h4_any_number_is_a_place() {
    let table = Table::new(16).unwrap();
    for (number, place) in [0, 15, 16, 1 << 40, u64::MAX].into_iter().enumerate() {
        let me = displaced_holder(number as u64, place);
        assert_eq!(acquire(&table, me, 1, 9), Some(number as u64 + 1));
    }
    assert_eq!(table.usage().holders, 5);
}

/// Nor do they take more while they live than those before them, who had the same place. Also where another holder that
/// lives has it.
#[test]
fn p8_processes_that_come_and_go_leave_nothing() {
    let table = Table::new(16).unwrap();
    acquire(&table, holder(1), 1, 9).unwrap();
    let live = |number| {
        [1, 2].map(|place| {
            let me = displaced_holder(number, place);
            acquire(&table, me, 1, 9).unwrap();
            let alive = table.usage().memory;
            die(&table, me);
            (alive, table.usage().memory)
        })
    };
    let memory = live(100);
    assert!((101..2000).all(|number| live(number) == memory));
    assert_eq!(table.usage().holders, 1);
}

/// Whatever the size of the pieces, each key that has permits out is told once.
#[test]
fn keys_are_told_once_piece_by_piece() {
    let table = Table::new(16).unwrap();
    for key in 0..1000 {
        for _ in 0..=key % 3 {
            acquire(&table, holder(1), key, 9).unwrap();
        }
    }
    (900..1000)
        .for_each(|key| (0..=key % 3).for_each(|_| release(&table, holder(1), key).unwrap()));
    for limit in [1, 7, 999, 10_000] {
        let mut told = BTreeMap::new();
        let mut after = Some(0);
        let mut pieces = 0;
        while let Some(start) = after {
            pieces += 1;
            after = table.keys_after(start, limit, |key, out| {
                assert!(told.insert(key.number(), out).is_none());
            });
        }
        assert!(told.into_iter().eq((0..900).map(|key| (key, key % 3 + 1))));
        assert!(pieces >= 1000 / limit, "{pieces} pieces of {limit}");
    }
}

/// To tell a large key takes long, so a piece has fewer of them.
#[test]
fn large_keys_are_told_in_smaller_pieces() {
    let table = Table::new(16).unwrap();
    for key in 0..9 {
        acquire(&table, holder(1), LARGE + key, 1).unwrap();
    }
    let mut pieces = Vec::new();
    let mut after = Some(0);
    while let Some(start) = after {
        let mut told = 0;
        after = table.keys_after(start, 3 * LARGE_BYTES / 1024, |_, _| told += 1);
        pieces.push(told);
    }
    assert_eq!(pieces, [3, 3, 3]);
}

/// The same of permits: a piece is a limited number of places for processes, or as many as have a lot to tell.
#[test]
fn permits_are_told_once_piece_by_piece() {
    let pieces = |table: &Table<Name>| {
        let mut pieces = Vec::new();
        let mut cursor = Some(Cursor::default());
        while let Some(start) = cursor {
            let mut told = 0;
            cursor = table.permits_from(start, |_| told += 1).unwrap();
            pieces.push(told);
        }
        pieces
    };

    // Far apart, so that each has a chunk of slots made for it. The one whose place is taken comes last.
    let sparse = Table::new(1 << 20).unwrap();
    let mut expected = BTreeMap::new();
    for number in 0..200 {
        acquire(&sparse, holder(number * 5000), 1, u64::MAX).unwrap();
        expected.insert((number * 5000, 1), 1);
    }
    acquire(&sparse, displaced_holder(7, 0), 1, u64::MAX).unwrap();
    expected.insert((7, 1), 1);
    assert_eq!(on_record(&sparse), expected);
    assert_eq!(pieces(&sparse), [64, 64, 64, 9]);

    // What one holder has comes in pieces too, wherever its slot is.
    for crowded in [7, 3] {
        let table = Table::new(1 << 20).unwrap();
        let mut expected = BTreeMap::new();
        for (number, place, keys) in [(5, 3, 2), (9, crowded, many(9000)), (5000, 5000, 1)] {
            for key in 0..keys {
                acquire(&table, displaced_holder(number, place), key, 9).unwrap();
                expected.insert((number, key), 1);
            }
        }
        assert_eq!(on_record(&table), expected);
        let pieces = pieces(&table);
        assert!(pieces.len() as u64 >= many(8000) / 1000);
        assert!(pieces.iter().all(|told| *told < 1200), "{pieces:?}");
    }
}

/// A key that is acquired again has an entry besides its place among the further keys. Also where a piece ends.
#[test]
fn p1_a_key_on_record_in_two_places_is_told_once() {
    let (table, keys) = (Table::new(16).unwrap(), many(3000));
    for key in 0..keys {
        acquire(&table, holder(1), key, 9).unwrap();
    }
    let mut ends = Vec::new();
    let mut from = Some(0);
    while let Some(start) = from {
        let mut piece = Vec::new();
        let visit = |seen: Permits<'_, Name>| piece.push(seen.key.number());
        from = table.held(holder(1), start, visit).unwrap();
        ends.extend(piece.first().into_iter().chain(piece.last()));
    }
    for key in ends {
        assert_eq!(acquire(&table, holder(1), key, 9), Some(2));
        let mut expected: BTreeMap<_, _> = (0..keys).map(|key| (key, 1)).collect();
        expected.insert(key, 2);
        assert_eq!(held(&table, holder(1)), expected);
        let visit = |seen: Permits<'_, Name>| assert_eq!(seen.permits, 2);
        let next = table.holders_from(Cursor::default(), &Wanted(key), visit);
        assert_eq!(next, Ok(None));
        release(&table, holder(1), key).unwrap();
    }
}

/// A holder that dies in the middle of what is told of it takes nothing from what is told of the next.
#[test]
fn all_is_told_of_a_holder_behind_one_that_dies_between_two_pieces() {
    let table = Table::new(16).unwrap();
    // The first one has the place, the others are displaced.
    let crowd = [0, 1, 2].map(|number| displaced_holder(number, 3));
    let keys = 1500;
    for me in crowd {
        for key in 0..keys {
            acquire(&table, me, key, 3).unwrap();
        }
    }
    let mut told = BTreeMap::<u64, u64>::new();
    let mut dead = None;
    let mut cursor = Some(Cursor::default());
    while let Some(start) = cursor {
        let visit =
            |seen: permit_table::Permits<'_, _>| *told.entry(seen.holder - 1).or_default() += 1;
        cursor = table.permits_from(start, visit).unwrap();
        let is_inside = cursor.is_some_and(|next| next.displaced && next.order > 0);
        if is_inside && dead.is_none() {
            let first = *told.keys().find(|number| **number > 0).unwrap();
            die(&table, crowd[first as usize]);
            dead = Some(first);
        }
    }
    let dead = dead.expect("one of the displaced is told in two pieces");
    assert_eq!((told[&0], told[&(3 - dead)]), (keys, keys));
    assert!(told[&dead] < keys);
}

#[test]
fn p8_the_sweep_frees_nothing_while_somebody_may_look_and_says_so() {
    let table = Table::new(16).unwrap();
    acquire(&table, holder(1), 1, 1).unwrap();
    release(&table, holder(1), 1).unwrap();
    sweep(&table);
    let inside = pin();
    let mut steps = (0..1000).map(|_| step(&table, 64));
    let waiting = steps.find(|progress| *progress != Progress::More);
    assert_eq!(waiting, Some(Progress::Waiting));
    assert_eq!((table.usage().keys, living()), (0, 1));
    drop(inside);
    sweep(&table);
    assert_eq!(living(), 0);
}

/// No step takes out or frees more than it was told to, and of large keys fewer: each page of one counts.
#[test]
fn p8_a_step_of_the_sweep_is_as_long_as_it_is_told_to_be() {
    const BUDGET: usize = 60;
    for (first, freed_at_once) in [(0, BUDGET), (LARGE, 3)] {
        let table = Table::new(16).unwrap();
        for key in first..first + 600 {
            acquire(&table, holder(1), key, 1).unwrap();
        }
        die(&table, holder(1));
        sweep(&table);
        let is = || (table.usage().keys, living() as usize);
        let mut taken_out = Vec::new();
        let mut before = is();
        // So that they all wait to be freed at a time.
        let mut inside = Some(pin());
        loop {
            let progress = step(&table, BUDGET);
            let after = is();
            taken_out.push(before.0 - after.0);
            let freed = before.1 - after.1;
            assert!(freed <= freed_at_once);
            before = after;
            match progress {
                Progress::Done => break,
                Progress::Waiting => {
                    assert!(freed < freed_at_once, "there may be more to free right now");
                    inside.take();
                    std::thread::yield_now();
                }
                Progress::More => {}
            }
        }
        assert_eq!(taken_out[..11], [[BUDGET; 10].as_slice(), &[0]].concat());
        assert_eq!(living(), 0);
    }
}

#[test]
fn p8_the_sweep_counts_what_it_takes_out() {
    let table = Table::new(16).unwrap();
    for key in 0..100 {
        acquire(&table, holder(1), key, 1).unwrap();
    }
    die(&table, holder(1));
    acquire(&table, holder(1), 7, 1).unwrap();
    (0..2).for_each(|_| sweep(&table));
    assert_eq!(table.usage().totals.reclaimed, 99);
}

#[derive(Clone, Debug)]
enum Call {
    Acquire {
        holder: u64,
        key: u64,
        capacity: u64,
    },
    Release {
        holder: u64,
        key: u64,
    },
    Die {
        holder: u64,
    },
    /// The death of a process is reported when a new one has its pid.
    DieLate {
        holder: u64,
    },
    Sweep,
    /// A part of it.
    Step(usize),
}

fn call() -> impl Strategy<Value = Call> {
    let (holders, keys) = (0..6u64, 0..12u64);
    prop_oneof![
        6 => (holders.clone(), keys.clone(), prop_oneof![9 => 0..5u64, 1 => Just(u64::MAX)])
            .prop_map(|(holder, key, capacity)| Call::Acquire { holder, key, capacity }),
        4 => (holders.clone(), keys).prop_map(|(holder, key)| Call::Release { holder, key }),
        1 => holders.clone().prop_map(|holder| Call::Die { holder }),
        1 => holders.prop_map(|holder| Call::DieLate { holder }),
        1 => Just(Call::Sweep),
        3 => (1..9usize).prop_map(Call::Step),
    ]
}

proptest! {
    /// P1, P2, P4, P5, P6, P8: any history answers as a map from (holder, key) to permits does, wherever the sweep
    /// is. Places collide on purpose.
    #[test]
    fn any_history_answers_as_the_model(calls in prop::collection::vec(call(), 0..300), places in 1u64..8) {
        let table = Table::new(8).unwrap();
        let mut model = BTreeMap::<(u64, u64), u64>::new();
        let out = |model: &BTreeMap<(u64, u64), u64>, key| -> u64 {
            model.iter().filter(|((_, held), _)| *held == key).map(|(_, permits)| permits).sum()
        };
        let who = |number| displaced_holder(number, number % places);
        let mut counted = Totals::default();
        for call in calls {
            match call {
                Call::Acquire { holder, key, capacity } => {
                    let before = out(&model, key);
                    let expected = (before < capacity).then_some(before + 1);
                    prop_assert_eq!(acquire(&table, who(holder), key, capacity), expected);
                    if expected.is_none() {
                        counted.refused += 1;
                    } else {
                        counted.granted += 1;
                        *model.entry((holder, key)).or_default() += 1;
                    }
                }
                Call::Release { holder, key } => {
                    let permits = model.entry((holder, key)).or_default();
                    let expected = if *permits > 0 { Ok(()) } else { Err(NotHeld) };
                    counted.released += u64::from(expected.is_ok());
                    counted.not_held += u64::from(expected.is_err());
                    *permits = permits.saturating_sub(1);
                    prop_assert_eq!(release(&table, who(holder), key), expected);
                }
                Call::Die { holder } => {
                    let held = model.iter().filter(|((who, _), _)| *who == holder);
                    let permits: u64 = held.map(|(_, permits)| permits).sum();
                    model.retain(|(who, _), _| *who != holder);
                    counted.given_back += permits;
                    prop_assert_eq!(die(&table, who(holder)), permits);
                }
                Call::DieLate { holder } => {
                    let given = table.release_all(&pin(), who(holder), || true);
                    prop_assert_eq!(given, 0);
                }
                Call::Sweep => sweep(&table),
                Call::Step(budget) => {
                    step(&table, budget);
                }
            }
            for key in 0..12 {
                prop_assert_eq!(count(&table, key), out(&model, key));
            }
            prop_assert_eq!(permits(&table), model.values().sum::<u64>());
        }
        model.retain(|_, permits| *permits > 0);
        prop_assert_eq!(&on_record(&table), &model);
        for number in 0..6 {
            let modelled = model.iter().filter(|((who, _), _)| *who == number);
            prop_assert_eq!(held(&table, who(number)), modelled.map(|((_, key), n)| (*key, *n)).collect());
        }
        for key in 0..12 {
            let held = model.iter().filter(|((_, held), _)| *held == key);
            prop_assert_eq!(holders_of(&table, key), held.map(|(who, permits)| (*who, *permits)).collect());
        }
        let usage = table.usage();
        prop_assert_eq!(Totals { reclaimed: 0, ..usage.totals }, counted);
        let holding = (0..6).filter(|holder| model.iter().any(|((who, _), permits)| who == holder && *permits > 0));
        prop_assert_eq!(usage.holders, holding.count());
    }

    /// H4: wherever holders live, whatever they hold is told once, piece by piece, of all keys and of each.
    #[test]
    fn what_is_held_is_told_once_piece_by_piece(
        places in prop::collection::vec((0..PLACES, 1..6u64, any::<bool>()), 0..150),
    ) {
        let table = Table::new(PLACES as usize).unwrap();
        let mut model = BTreeMap::new();
        for (number, (place, keys, has_place)) in (0..).zip(places) {
            let who = displaced_holder(number, if has_place { place } else { 0 });
            for key in 0..keys {
                acquire(&table, who, key, u64::MAX).unwrap();
                model.insert((number, key), 1);
            }
        }
        prop_assert_eq!(&on_record(&table), &model);
        for key in 0..6 {
            let held = model.iter().filter(|((_, held), _)| *held == key);
            let model: BTreeMap<_, _> = held.map(|(who, permits)| (*who, *permits)).collect();
            prop_assert_eq!(holders_of(&table, key), model);
        }
    }
}

/// More chunks of slots than are looked at in one piece.
const PLACES: u64 = 1 << 17;

/// Who holds a key: permits by holder's number and the key.
fn holders_of(table: &Table<Name>, key: u64) -> BTreeMap<(u64, u64), u64> {
    let mut holders = BTreeMap::new();
    let mut cursor = Some(Cursor::default());
    while let Some(start) = cursor {
        let told = |seen: Permits<'_, Name>| {
            let who = (seen.holder - 1, seen.key.number());
            assert_eq!(holders.insert(who, seen.permits), None);
        };
        cursor = table.holders_from(start, &Wanted(key), told).unwrap();
    }
    holders
}
