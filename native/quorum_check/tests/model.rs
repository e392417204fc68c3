//! Searches of all that can happen, within bounds: of the protocol as it is, in which nothing may be found, and of
//! protocols with one rule broken, in each of which it must be.
//!
//! The bounds are chosen so that all of it takes about a minute on two cores; `explore` goes further. Each search
//! prints how far it went (`cargo test -- --nocapture`): *closed* means that all histories within the setting's
//! bounds were seen, *cut* that the shortest ones were, as many as there was room for.

use quorum_check::model::controls::{self, Control};
use quorum_check::model::search::{search, search_for, Bounds, Report, Way};
use quorum_check::model::setting::Setting;
use quorum_check::model::settings;
use std::time::Duration;

/// More than any of these takes: they are cut by states, so that they see the same on each machine.
const LONG: Duration = Duration::from_secs(600);

fn states(states: usize) -> Bounds {
    Bounds {
        states,
        time: LONG,
        threads: 2,
    }
}

/// Nothing is found.
fn holds(setting: Setting, way: Way, most: usize) -> Report {
    let report = search(setting, way, states(most));
    println!("{report}");
    assert!(report.broken.is_empty(), "{report}");
    report
}

fn named(name: &str) -> Setting {
    settings::named(name).expect("a setting of that name")
}

/// All that is within the bounds of the setting was seen.
fn closes(name: &str) {
    let report = holds(named(name), Way::Broad, usize::MAX);
    assert!(report.closed, "{report}");
}

#[test]
fn two_writers() {
    closes("two-writers");
}

#[test]
fn a_reader_and_a_writer() {
    closes("reader-writer");
}

#[test]
fn many_names() {
    closes("lock-many");
}

#[test]
fn a_first_start() {
    closes("first-start");
}

#[test]
fn all_fences_are_lost() {
    closes("all-lost");
}

#[test]
fn all_orders() {
    closes("all-orders");
}

/// The beginnings of the others.
#[test]
fn each_for_a_while() {
    for setting in settings::all() {
        holds(setting, Way::Broad, 150_000);
    }
}

#[test]
fn walks_through_storms() {
    for setting in settings::all() {
        let walks = Way::Walks {
            length: 600,
            seed: 2,
        };
        holds(setting, walks, 60_000);
    }
}

/// The promise of the control is broken, and the history of it has been told.
fn refuted(name: &str) {
    let control = controls::all()
        .into_iter()
        .find(|control| control.setting.name == name);
    let Control { promise, setting } = control.expect("a control of that name");
    // One thread: the history is among the shortest.
    let bounds = Bounds {
        states: 4_000_000,
        time: LONG,
        threads: 1,
    };
    let report = search_for(setting, promise, Way::Broad, bounds);
    println!("{report}");
    assert!(
        report.broken.iter().any(|(broken, _)| *broken == promise),
        "{promise} was not found broken: {report}"
    );
}

macro_rules! controls {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                refuted($name);
            }
        )*

        #[test]
        fn every_control_is_a_test() {
            let tested = [$($name),*];
            let all: Vec<&str> = controls::all().iter().map(|control| control.setting.name).collect();
            assert_eq!(all, tested);
        }
    };
}

controls! {
    a1_dsync_loses_a_lock_of_eight: "A1",
    a2_one_restart_of_three_is_enough: "A2",
    b1_forgotten_votes_count: "B1",
    d1_half_of_the_readers: "D1",
    e1_a_quarantine_too_short: "E1",
    e2_a_lease_of_voters_too_short: "E2",
    f1_a_fence_that_nobody_wrote: "F1",
    f2_a_fence_not_waited_for: "F2",
    f3_all_fences_are_lost: "F3",
    f4_fences_that_were_not_taken: "F4",
    a_generation_goes_on: "SameGeneration",
    a_lease_from_the_answer: "LeaseFromAnswer",
    a_revoked_lock_is_forgotten: "RevokedForgotten",
    an_unlocked_lock_is_held: "UnlockKeepsHeld",
}

/// What D1 breaks is the half: with more than half, all else the same, nothing is found.
#[test]
fn d1_more_than_half_of_the_readers() {
    // Without quarantine a vote of an earlier life may count while the voter votes: of this one restart no harm
    // comes.
    let report = search_for(
        controls::more_than_half(),
        "Q1",
        Way::Broad,
        states(usize::MAX),
    );
    println!("{report}");
    assert!(
        report.broken.iter().all(|(promise, _)| *promise != "Q1"),
        "{report}"
    );
}

/// Safety needs no order of batches.
#[test]
fn any_order_does_no_harm() {
    holds(controls::harmless(), Way::Broad, 300_000);
}
