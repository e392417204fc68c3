//! Every interleaving of two threads or three, with the real code: `make test` runs it with `--cfg loom`.
//!
//! | file | what meets what |
//! |---|---|
//! | `counting.rs` | acquire, release and the size of the call |
//! | `sweeping.rs` | keys that are reclaimed, and whoever wants one |
//! | `dying.rs` | deaths, and whoever comes next |
//! | `inspecting.rs` | looks from outside, and all that goes on |
//! | `reclaiming.rs` | who may still be looking: pins and stamps |
//! | `incarnations.rs` | tables opened, closed and freed, and calls in flight |
//! | `must_fail.rs` | the models themselves: each of them fails when the code is made wrong on purpose |
//!
//! # What is explored, and what is not
//! - Each model says up to how many preemptions: five, unless that takes longer than a second, then three or four
//!   (three is where loom's authors say that nearly all bugs show), or two if three take minutes. Not without a
//!   bound, which makes loom return to fewer places. All of it takes 30 seconds of processor time, a fifth of them in
//!   `p8_heads_are_closed_while_a_key_comes`, and 2 in `must_fail.rs`.
//! - Each model is explored once for each of its sides that can go first ([`Sides`]), for loom lets a store come
//!   before a load that another thread has already made only if that load was the last use of its place; what goes
//!   first and merely looks is seen in one interleaving otherwise. `must_fail.rs` has the proof.
//! - The record of a holder is watched (`OneWriter`): two changes that are not in order fail the model.
//! - What is freed is poisoned, and what a key is looked at by is watched: a look that is not ordered before the
//!   freeing fails the model.
//! - loom takes SeqCst for AcqRel but in fences, `compare_exchange_weak` does not fail without a reason, and of each
//!   place the last seven values are remembered. `membarrier(2)` is modeled (`src/barrier.rs`): loom does not have it.
//!   The models of `reclaiming.rs` run with it and with a fence on either side; all others with it alone, because
//!   loom puts all fences in order, which is more. What is merely counted for people is left out.
#![cfg(loom)]

#[path = "../common/mod.rs"]
mod common;

mod counting;
mod dying;
mod incarnations;
mod inspecting;
mod must_fail;
mod reclaiming;
mod sweeping;

use common::Name;
use loom::sync::Arc;
use loom::thread;
use permit_table::Table;

/// Which of the sides of a model goes first: it runs on the thread that loom does not leave without a reason.
#[derive(Clone, Copy)]
struct Sides {
    first: usize,
}

/// A side of a model, which works on what all of them share.
type Side<S, T> = Box<dyn FnOnce(&S) -> T>;

/// Only the first side of each model goes first: how blind loom is then.
const ONE_WAY: &str = "CANAL_LOCK_LOOM_ONE_WAY";

/// What the epochs have for a barrier (E2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Barrier {
    Membarrier,
    Fences,
}

/// Explores `body`, which has so many sides, up to so many preemptions.
fn model(sides: usize, preemptions: usize, body: impl Fn(Sides) + Copy + Sync + Send + 'static) {
    model_with(Barrier::Membarrier, sides, preemptions, body);
}

/// As [`model`], with this barrier.
fn model_with(
    barrier: Barrier,
    sides: usize,
    preemptions: usize,
    body: impl Fn(Sides) + Copy + Sync + Send + 'static,
) {
    permit_table::use_fences(barrier == Barrier::Fences);
    let ways = if std::env::var_os(ONE_WAY).is_some() {
        1
    } else {
        sides
    };
    for first in 0..ways {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        // How often loom looks at its clock (LOOM_MAX_DURATION).
        builder.checkpoint_interval = 100;
        builder.check(move || body(Sides { first }));
    }
}

impl Sides {
    /// Runs two sides of a model beside each other.
    fn beside<S: 'static, A: 'static, B: 'static>(
        self,
        shared: &Arc<S>,
        one: impl FnOnce(&S) -> A + 'static,
        other: impl FnOnce(&S) -> B + 'static,
    ) -> (A, B) {
        let theirs = Arc::clone(shared);
        if self.first == 0 {
            let other = thread::spawn(move || other(&theirs));
            let one = one(shared);
            (one, other.join().unwrap())
        } else {
            let one = thread::spawn(move || one(&theirs));
            let other = other(shared);
            (one.join().unwrap(), other)
        }
    }

    /// Runs three sides of a model beside each other.
    fn three<S: 'static, T: 'static>(self, shared: &Arc<S>, sides: [Side<S, T>; 3]) -> [T; 3] {
        let mut sides = sides.map(Some);
        let first = sides[self.first].take().expect("one of three");
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

/// As a side of [`Sides::three`].
fn side<S, T>(side: impl FnOnce(&S) -> T + 'static) -> Side<S, T> {
    Box::new(side)
}

/// An empty table for two processes.
fn table() -> Arc<Table<Name>> {
    Arc::new(Table::new(2).unwrap())
}
