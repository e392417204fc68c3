//! Searches within bounds: of the correct protocol, which must find no violation, and of the controls, which must find
//! one.
//!
//! The bounds are chosen so that all searches take about a minute on two cores. The ignored ones run in `make soak`:
//! the longest, and those that show what safety does not depend on. `explore` searches further. Each search prints its
//! report (`cargo test -- --nocapture`). *Complete* means that it visited every state within the setting's bounds,
//! *stopped* that it visited those with the shortest histories, up to the bound on states.

use quorum_check::model::search::{search, Bounds, Report, Strategy};
use quorum_check::model::setting::Setting;
use quorum_check::model::{controls, settings};
use std::time::Duration;

/// Searches the setting, which must meet its expectation.
fn check(setting: Setting, strategy: Strategy, states: usize, threads: usize) -> Report {
    let bounds = Bounds {
        states,
        // More than any search needs: the bound is on states, so that each machine visits the same ones.
        time: Duration::from_secs(600),
        threads,
    };
    let report = search(setting, strategy, bounds);
    println!("{report}");
    assert!(report.as_expected(), "{:?}: {report}", report.expect);
    report
}

/// Each row searches a setting until every state within its bounds is visited.
macro_rules! complete {
    ($($(#[$attribute:meta])* $test:ident: $name:literal,)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $test() {
                let setting = settings::named($name).expect("a setting of this name");
                let report = check(setting, Strategy::BreadthFirst, usize::MAX, 2);
                assert!(report.complete, "{report}");
            }
        )*

        /// The settings with more states than a test can visit.
        fn large_settings() -> impl Iterator<Item = Setting> {
            settings::all().into_iter().filter(|setting| ![$($name),*].contains(&setting.name))
        }
    };
}

complete! {
    a_first_search: "first",
    two_writers: "two-writers",
    a_reader_and_a_writer: "reader-writer",
    two_names: "lock-many",
    an_agent_apart: "apart",
    a_first_start: "first-start",
    #[ignore = "make soak WHAT=machines"]
    frames_in_all_orders: "all-orders",
    an_unheard_restart: "unheard-restart",
    a_lock_changes_its_voters: "question",
    a_voter_of_a_lock_restarts: "question-crash",
    a_guest: "guest-small",
    a_guest_that_settles: "guest-settled",
    a_guest_and_an_old_disk: "guest-old-disk",
}

/// PR1: the states in which all clients are done, and a sample of the others, are continued without faults.
#[test]
fn the_shortest_histories_of_each_large_setting() {
    for setting in large_settings() {
        check(setting, Strategy::BreadthFirst, 100_000, 2);
    }
}

/// PR1: the same.
#[test]
fn random_walks_through_each_large_setting() {
    for setting in large_settings() {
        let walks = Strategy::RandomWalks {
            length: 600,
            seed: 2,
        };
        check(setting, walks, 60_000, 2);
    }
}

/// Each row searches a control, up to a number of states, with a number of threads.
macro_rules! controls {
    ($($(#[$attribute:meta])* $test:ident: $name:literal, $states:expr, $threads:literal;)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $test() {
                let control = controls::named($name).expect("a control of this name");
                check(control, Strategy::BreadthFirst, $states, $threads);
            }
        )*

        #[test]
        fn every_control_is_a_test() {
            let all: Vec<&str> = controls::all().iter().map(|control| control.name).collect();
            assert_eq!(all, [$($name),*]);
        }
    };
}

// With one thread, the trace is among the shortest.
controls! {
    ce1_one_restart_of_five_without_quarantine: "CE1", 4_000_000, 1;
    ce2_one_restart_of_three_without_quarantine: "CE2", 4_000_000, 1;
    ce3_votes_of_an_earlier_lifetime_count: "CE3", 4_000_000, 1;
    ce4_readers_need_half: "CE4", 4_000_000, 1;
    ce4_readers_need_a_majority: "CE4-majority", usize::MAX, 2;
    ce5_quarantine_too_short: "CE5", 4_000_000, 1;
    quarantine_of_shorter_rules: "ShorterLeases", 4_000_000, 1;
    quarantine_of_earlier_leases: "ShorterLeases-file", 1_000_000, 2;
    ce6_voter_lease_too_short: "CE6", 4_000_000, 1;
    ce7_fence_not_written: "CE7", 4_000_000, 1;
    ce8_fence_not_awaited: "CE8", 4_000_000, 1;
    fences_of_a_stale_disk: "StaleBelieved", 4_000_000, 1;
    stale_disk_believed: "StaleBelieved-Q14", 4_000_000, 1;
    ce10_fences_not_taken: "CE10", 4_000_000, 1;
    ce11_any_lock_continues: "CE11", 4_000_000, 1;
    any_lock_continues: "CE11-votes", 4_000_000, 1;
    votes_dropped_in_the_same_generation: "SameGeneration", 4_000_000, 1;
    lease_starts_at_the_answer: "LeaseFromAnswer", 4_000_000, 1;
    revoked_lock_forgotten: "RevokedForgotten", 4_000_000, 1;
    unlocked_lock_held: "UnlockKeepsHeld", 4_000_000, 1;
    first_frame_buries: "FirstFrameBuries", 4_000_000, 1;
    first_frame_of_a_guest_buries: "FirstFrameBuries-guest", 4_000_000, 1;
    guests_forgotten: "GuestsForgotten", 4_000_000, 1;
    vote_for_a_guest_that_is_not_stored: "GuestsForgotten-V7", 4_000_000, 1;
    no_recalls: "NoRecalls", 4_000_000, 1;
    given_from_arrival: "GivenFromArrival", 4_000_000, 1;
    given_counts_long: "GivenCountsLong", 4_000_000, 1;
    given_ends_with_the_connection: "GivenEndsWithConnection", 4_000_000, 1;
    expired_locks_are_renewed: "ExpiredRenewed", 4_000_000, 1;
    late_answers: "LateAnswers", 4_000_000, 1;
    answers_in_quarantine: "QuarantinedAnswers", 4_000_000, 1;
    #[ignore = "make soak WHAT=machines"]
    batches_in_any_order_violate_nothing: "AnyOrder", 300_000, 2;
}
