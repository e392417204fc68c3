//! Models: loom explores every interleaving of two or three threads with the real code. `make test` runs them with
//! `--cfg loom`.
//!
//! | file | concurrent operations |
//! |---|---|
//! | `counting.rs` | acquire, release, and the capacity of the call |
//! | `sweeping.rs` | the sweep, and calls on the keys that it reclaims |
//! | `deaths.rs` | deaths, and the next processes in a slot or with a pid |
//! | `inspecting.rs` | inspection, and all other calls |
//! | `epochs.rs` | pins and stamps |
//! | `waiting.rs` | requests that wait, and all calls that can end them |
//! | `giving.rs` | gifts, and calls of the giver and the target |
//! | `sharing.rs` | changes of the share of a shared key, and all other calls |
//! | `incarnations.rs` | opening, closing and freeing tables, and calls |
//! | `must_fail.rs` | none: it runs the models with seeded bugs, and each must fail |
//!
//! # What is explored, and what is not
//!
//! A *side* is the program of one thread of a model. A model has two or three.
//!
//! - The bound on preemptions is 5. It is 3 or 4 for models that take longer than a second with 5, and 2 for those that
//!   take several seconds with 3. (loom's authors say that 3 show nearly all bugs.) Without a bound, loom would return
//!   to fewer points. All models together take 40 seconds of processor time: 5 in
//!   `p8_heads_are_closed_during_insertion`, and 2 in `must_fail.rs`.
//! - Each model is explored once with each of its sides first ([`FirstSide`]). loom lets a store precede a load that
//!   another thread has already made only if that load was the last access to the variable. So if the side that goes
//!   first only reads, loom would show it in a single interleaving. `must_fail.rs` proves this.
//! - The record of a holder is checked (`OneWriter`): two unordered changes fail the model.
//! - Freed keys are poisoned, and reads of keys are checked: a read that is not ordered before the freeing fails the
//!   model.
//! - loom treats SeqCst as AcqRel except in fences, its `compare_exchange_weak` does not fail spuriously, and it
//!   remembers the last seven values of each variable. loom does not have `membarrier(2)`, so `src/barrier.rs` models
//!   it. The models of `epochs.rs` run with it and with a fence on either side. All others run with it alone, because
//!   loom orders all fences, which is stronger. Statistics are left out.
#![cfg(loom)]

#[path = "../common/mod.rs"]
mod common;

mod counting;
mod deaths;
mod epochs;
mod giving;
mod incarnations;
mod inspecting;
mod must_fail;
mod sharing;
mod sweeping;
mod waiting;

use common::{Name, Table};
use loom::sync::Arc;
use loom::thread;

/// The side of a model that goes first. It runs on the thread that loom does not preempt without need.
#[derive(Clone, Copy)]
struct FirstSide(usize);

/// A side of a model. Its argument is the state that all sides share.
type Side<S, T> = Box<dyn FnOnce(&S) -> T>;

/// If this variable of the environment is set, each model runs only with its side 0 first. Shows what loom misses then.
const ONE_FIRST_SIDE: &str = "CANAL_LOCK_LOOM_ONE_FIRST_SIDE";

/// The barrier of the epochs (E2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Barrier {
    Membarrier,
    Fences,
}

/// Explores `body`, which has `sides` sides, with up to `preemptions` preemptions.
fn model(
    sides: usize,
    preemptions: usize,
    body: impl Fn(FirstSide) + Copy + Sync + Send + 'static,
) {
    model_with(Barrier::Membarrier, sides, preemptions, body);
}

/// As [`model`], with this barrier.
fn model_with(
    barrier: Barrier,
    sides: usize,
    preemptions: usize,
    body: impl Fn(FirstSide) + Copy + Sync + Send + 'static,
) {
    permit_table::use_fences(barrier == Barrier::Fences);
    let only_one = std::env::var_os(ONE_FIRST_SIDE).is_some();
    let first_sides = if only_one { 1 } else { sides };
    for first in 0..first_sides {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        // How often loom checks the time (LOOM_MAX_DURATION).
        builder.checkpoint_interval = 100;
        builder.check(move || body(FirstSide(first)));
    }
}

impl FirstSide {
    /// Runs two sides of a model concurrently.
    fn two<S: 'static, A: 'static, B: 'static>(
        self,
        shared: &Arc<S>,
        one: impl FnOnce(&S) -> A + 'static,
        other: impl FnOnce(&S) -> B + 'static,
    ) -> (A, B) {
        let theirs = Arc::clone(shared);
        if self.0 == 0 {
            let other = thread::spawn(move || other(&theirs));
            let one = one(shared);
            (one, other.join().unwrap())
        } else {
            let one = thread::spawn(move || one(&theirs));
            let other = other(shared);
            (one.join().unwrap(), other)
        }
    }

    /// Runs three sides of a model concurrently.
    fn three<S: 'static, T: 'static>(self, shared: &Arc<S>, sides: [Side<S, T>; 3]) -> [T; 3] {
        let mut sides = sides.map(Some);
        let first = sides[self.0].take().expect("one of three");
        let others = sides.map(|side| {
            side.map(|side| {
                let shared = Arc::clone(shared);
                thread::spawn(move || side(&shared))
            })
        });
        let mut first = Some(first(shared));
        others.map(|other| match other {
            Some(other) => other.join().unwrap(),
            None => first.take().expect("one of three"),
        })
    }
}

/// A closure as a side of [`FirstSide::three`].
fn side<S, T>(side: impl FnOnce(&S) -> T + 'static) -> Side<S, T> {
    Box::new(side)
}

/// An empty table for two processes.
fn table() -> Arc<Table<Name>> {
    Arc::new(Table::new(2).unwrap())
}

/// A table in which holder 0 has one permit of each key.
fn held_by_0(keys: impl IntoIterator<Item = u64>) -> Arc<Table<Name>> {
    let table = table();
    common::acquire_all(&table, common::holder(0), keys);
    table
}

/// A side that acquires a key for the holder with this number.
fn take(number: u64, key: u64, capacity: u64) -> impl Fn(&Table<Name>) -> Option<u64> {
    move |table| common::acquire(table, common::holder(number), key, capacity)
}

/// A side that makes `count` steps of the sweep.
fn steps(count: usize) -> impl Fn(&Table<Name>) {
    move |table| {
        for _ in 0..count {
            common::step(table, 8);
        }
    }
}
