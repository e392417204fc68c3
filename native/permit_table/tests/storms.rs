//! The promises with several threads. Every storm runs for a number of rounds, not for a time, and ends in a quiet
//! state that must be exact. `CANAL_LOCK_SOAK` multiplies the rounds (`rounds`).
#![cfg(not(loom))]

mod common;

use common::*;
use permit_table::{pin, Table};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const THREADS: u64 = 4;

#[test]
fn p1_holders_never_exceed_the_capacity() {
    const KEYS: u64 = 3;
    const CAPACITY: u64 = 2;
    let table = Table::new(64).unwrap();
    let inside: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let granted = AtomicU64::new(0);
    storm(&table, THREADS, |number| {
        let mut dice = Dice(number);
        for _ in 0..rounds(100_000) {
            let key = dice.roll(KEYS);
            if let Some(out) = acquire(&table, holder(number), key, CAPACITY) {
                assert!((1..=CAPACITY).contains(&out));
                let now = inside[key as usize].fetch_add(1, Ordering::AcqRel) + 1;
                assert!(now <= CAPACITY, "{now} permits out, capacity {CAPACITY}");
                granted.fetch_add(1, Ordering::Relaxed);
                inside[key as usize].fetch_sub(1, Ordering::AcqRel);
                release(&table, holder(number), key).unwrap();
            }
        }
    });
    assert!(granted.into_inner() > 0);
    assert_empty(&table);
}

#[test]
fn p8_keys_are_created_and_reclaimed_during_calls() {
    let table = Table::new(64).unwrap();
    storm(&table, THREADS, |number| {
        let mut dice = Dice(number);
        for _ in 0..rounds(100_000) {
            // Few keys, so that callers often find one that dies. Capacity 1, so that a second node for a key would
            // show.
            let key = dice.roll(4);
            if let Some(out) = acquire(&table, holder(number), key, 1) {
                assert_eq!(out, 1);
                assert_eq!(count(&table, key), 1);
                release(&table, holder(number), key).unwrap();
            }
        }
    });
    assert_empty(&table);
}

#[test]
fn p8_table_grows_and_shrinks_during_calls() {
    let table = Table::new(64).unwrap();
    let before = table.usage().memory;
    let keys = many(30_000);
    for wave in 0..rounds(3) {
        storm(&table, THREADS, |number| {
            let own = (wave * THREADS + number) << 32;
            for key in 0..keys {
                assert_eq!(acquire(&table, holder(number), own + key, 1), Some(1));
            }
            for key in 0..keys {
                let second = acquire(&table, holder(number), own + key, 1);
                assert_eq!(second, None, "key {key}");
                release(&table, holder(number), own + key).unwrap();
            }
            die(&table, holder(number));
        });
        assert_empty(&table);
    }
    assert!(
        table.usage().memory < before + 70_000,
        "only the slots are left"
    );
}

#[test]
fn p4_deaths_leak_nothing() {
    let table = Table::new(64).unwrap();
    let lives = AtomicU64::new(0);
    storm(&table, THREADS, |number| {
        let mut dice = Dice(number);
        for _ in 0..rounds(5_000) {
            let life = lives.fetch_add(1, Ordering::Relaxed);
            // Places are shared, as with pid reuse before a death is reported.
            let me = displaced_holder(life, life % 3);
            let mut held = 0;
            for _ in 0..dice.roll(12) {
                held += u64::from(acquire(&table, me, dice.roll(5), 8).is_some());
                if dice.roll(3) == 0 {
                    held -= u64::from(release(&table, me, dice.roll(5)).is_ok());
                }
            }
            assert_eq!(die(&table, me), held);
        }
    });
    assert_empty(&table);
}

/// P4: each thread runs one process after the other with the same pid. Its neighbor reports the deaths, mostly late.
#[test]
fn p4_late_report_of_a_death_with_pid_reuse() {
    const KEYS: u64 = 4;
    let table = Table::new(64).unwrap();
    let pids: Vec<(Pid, AtomicU64)> = (0..THREADS).map(|_| Default::default()).collect();
    // Two per place.
    let process = |number| displaced_holder(number, number % 2);
    let inside: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let enter = |key| assert_eq!(inside[key as usize].swap(1, Ordering::AcqRel), 0);
    let leave = |key| inside[key as usize].store(0, Ordering::Release);
    let report = |number| {
        let (pid, unreported) = &pids[number as usize];
        for _ in 0..unreported.swap(0, Ordering::Acquire) {
            table.release_all(&pin(), process(number), || pid.is_reused());
        }
    };
    storm(&table, THREADS, |number| {
        let mut dice = Dice(number);
        let (pid, unreported) = &pids[number as usize];
        for _ in 0..rounds(10_000) {
            pid.start();
            let mut held = Vec::new();
            for _ in 0..dice.roll(4) {
                let key = dice.roll(KEYS);
                if acquire_watched(&table, process(number), key, 1, || pid.watch()).is_some() {
                    enter(key);
                    held.push(key);
                }
            }
            // Lets the neighbor run, also on a machine with few cores.
            if dice.roll(4) == 0 {
                thread::yield_now();
            }
            for key in held {
                leave(key);
                if dice.roll(2) == 0 {
                    release(&table, process(number), key).unwrap();
                }
            }
            unreported.fetch_add(pid.exit(), Ordering::Release);
            report((number + 1) % THREADS);
        }
    });
    (0..THREADS).for_each(report);
    assert_empty(&table);
}

#[test]
fn usage_during_calls_stays_in_bounds() {
    let table = Table::new(64).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let usage = table.usage();
                assert!(usage.permits <= 400 && usage.holders <= THREADS as usize);
            }
        });
        storm(&table, THREADS, |number| {
            for round in 0..rounds(300) {
                for key in 0..100 {
                    acquire(&table, holder(number), key, u64::MAX).unwrap();
                }
                if round % 2 == 0 {
                    for key in 0..100 {
                        release(&table, holder(number), key).unwrap();
                    }
                }
                die(&table, holder(number));
            }
        });
        over.store(true, Ordering::Relaxed);
    });
    assert_empty(&table);
}
