//! The models themselves: each of them fails when the code is made wrong on purpose.
//!
//! The code names places where it can have a bug (`src/sync.rs`), and here is the list of them: by which models each
//! is found, and how. Every bug is a test: it runs this very program again for each of its models, with the bug. A
//! model without a bug on the list, or a bug in the code that is not on it, is a failure too.

use super::ONE_WAY;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::process::{Command, Output};

/// How a model finds a bug.
#[derive(Clone, Copy)]
enum Found {
    /// By its own assertion.
    Asserted,
    /// loom sees two accesses, one of them a write, that nothing puts in order.
    Unordered,
    /// loom knows nothing of an `Arc` there any more.
    Gone,
    /// A key is looked at after it has been dropped.
    Freed,
}
use Found::*;

/// The code can have this bug, and these models find it.
struct Bug {
    name: &'static str,
    found: &'static [(&'static str, Found)],
}

macro_rules! bugs {
    ($($name:ident: $($model:path => $found:expr),+;)*) => {
        const BUGS: &[Bug] = &[$(
            Bug { name: stringify!($name), found: &[$((stringify!($model), $found)),+] },
        )*];

        $(#[test]
        fn $name() {
            assert_found(stringify!($name));
        })*
    };
}

bugs! {
    p1_checked_then_stored:
        counting::p1_two_acquire_the_last_permit => Asserted,
        counting::p1_three_acquire_the_last_two_permits => Asserted,
        counting::p1_a_release_beside_an_acquire_loses_nothing => Asserted,
        counting::p1_an_acquire_beside_a_release_beside_the_sweep => Asserted,
        counting::p6_two_come_with_different_sizes => Asserted;
    p1_acquired_relaxed:
        counting::p1_what_one_does_under_a_permit_is_seen_under_the_next => Unordered;
    p1_released_relaxed:
        counting::p1_a_release_admits_the_next_who_sees_what_was_done_before => Unordered;
    p1_chunk_published_relaxed:
        counting::p1_two_create_one_key => Unordered;
    p6_more_than_full_admits:
        counting::p6_one_grows_what_the_other_finds_full => Asserted;

    p8_death_stored:
        sweeping::p8_a_key_dies_while_it_is_acquired => Asserted,
        dying::p4_a_key_dies_with_its_last_holder => Asserted;
    p8_swept_relaxed:
        looking::h2_a_look_beside_a_release_beside_the_sweep => Freed;
    p8_dead_taken_for_full:
        sweeping::p8_a_key_dies_while_it_is_acquired => Asserted;
    k1_published_relaxed:
        counting::p1_two_create_one_key => Unordered;
    k1_said_to_be_linked_too_soon:
        sweeping::k1_a_key_is_found_while_a_head_is_linked_before_it => Asserted;
    k2_unlinked_without_mark:
        sweeping::p8_a_key_dies_between_two_that_come => Asserted,
        sweeping::p8_heads_are_closed_while_a_key_comes => Asserted;
    k3_redirected_without_compare:
        counting::p1_two_create_keys_in_one_place => Asserted;
    k4_present_put_in_again:
        counting::p1_two_create_one_key => Asserted,
        sweeping::k4_a_key_is_made_anew_while_its_old_word_is_seen => Asserted;
    k5_freed_without_waiting:
        sweeping::p8_a_key_is_reclaimed_while_it_is_found => Unordered,
        looking::a_look_beside_a_release_and_the_sweep => Unordered;

    p4_vacated_before_given_back:
        dying::p4_a_place_is_taken_over_at_a_death => Unordered;
    p4_given_back_and_left_on_record:
        dying::p4_a_death_admits_the_next => Asserted,
        looking::a_look_beside_a_death => Asserted;
    h1_vacated_relaxed:
        dying::p5_the_next_in_a_place_holds_nothing_of_the_dead => Unordered;
    h1_taken_relaxed:
        dying::p5_the_next_in_a_place_holds_nothing_of_the_dead => Unordered;
    h1_reuse_ignored:
        dying::p4_a_death_is_reported_while_the_next_process_has_its_pid => Unordered,
        looking::a_look_beside_a_death_whose_pid_is_reused => Asserted;
    h1_asked_before_retiring:
        dying::p4_a_death_is_reported_while_the_next_process_has_its_pid => Unordered;
    h1_asked_without_a_fence:
        dying::p4_a_death_is_reported_while_the_next_process_has_its_pid => Unordered;
    h1_answered_without_a_fence:
        dying::p4_a_death_is_reported_while_two_more_processes_have_its_pid => Unordered;
    h1_retiring_not_waited_for:
        dying::p4_a_death_is_reported_while_the_next_process_has_its_pid => Asserted,
        looking::a_look_beside_a_death_whose_pid_is_reused => Asserted;
    h1_retiring_taken_for_free:
        looking::a_look_beside_a_death_whose_pid_is_reused => Asserted;
    h1_given_back_under_its_word:
        dying::p4_a_death_is_reported_while_the_next_process_has_its_pid => Unordered;
    h1_what_others_hold_forgotten_too:
        looking::what_others_hold_beside_a_death_and_the_next_in_its_place => Asserted;
    h3_let_go_before_it_is_vacated:
        dying::h3_a_place_is_taken_while_its_process_cannot_be_watched => Unordered;
    h1_not_asked_again_whose_it_is:
        looking::what_is_on_record_beside_a_death_and_the_next_in_its_place => Asserted,
        looking::who_holds_a_key_beside_a_death_and_the_next_in_its_place => Asserted,
        looking::what_one_holds_beside_its_death_and_the_next_in_its_place => Asserted;
    h2_recorded_relaxed:
        looking::a_look_beside_another_key_in_the_same_place => Asserted;
    h2_given_back_before_off_the_record:
        looking::h2_a_look_beside_a_release_beside_the_sweep => Freed;
    h2_permits_of_one_told_of_another:
        looking::a_look_beside_another_key_in_the_same_place => Asserted;
    h2_moved_and_told_twice:
        looking::a_look_beside_a_key_that_moves => Asserted;
    h2_moved_and_not_told:
        looking::a_look_beside_a_key_that_makes_room => Asserted;
    h2_moved_to_where_none_looks:
        looking::a_look_beside_a_key_that_makes_room => Asserted;
    h5_given_back_and_left_in_the_sum:
        looking::a_look_beside_a_death => Asserted;
    h4_displaced_not_counted:
        dying::p4_a_place_is_taken_over_at_a_death => Asserted;
    h4_vacated_by_word:
        dying::p4_a_death_is_reported_while_two_more_processes_have_its_pid => Asserted;
    h4_one_dead_hides_the_next:
        looking::a_look_beside_a_death_whose_pid_and_place_are_taken => Asserted;

    e1_left_with_the_first_pin:
        reclaiming::membarrier::e1_a_thread_is_inside_until_the_last_of_its_pins_has_gone => Unordered,
        reclaiming::fences::e1_a_thread_is_inside_until_the_last_of_its_pins_has_gone => Unordered;
    e1_record_stored:
        reclaiming::membarrier::e1_two_threads_that_pin_for_the_first_time_are_both_inside => Unordered,
        reclaiming::fences::e1_two_threads_that_pin_for_the_first_time_are_both_inside => Unordered,
        reclaiming::membarrier::e1_two_threads_that_pin_for_the_first_time_have_different_numbers => Asserted,
        reclaiming::fences::e1_two_threads_that_pin_for_the_first_time_have_different_numbers => Asserted;
    e2_entered_without_a_fence:
        reclaiming::membarrier::e2_nothing_is_freed_while_somebody_looks => Unordered,
        reclaiming::fences::e2_nothing_is_freed_while_somebody_looks => Unordered;
    e2_looked_without_a_fence:
        reclaiming::membarrier::e2_nothing_is_freed_while_somebody_looks => Unordered,
        reclaiming::fences::e2_nothing_is_freed_while_somebody_looks => Unordered;
    e2_quiet_too_soon:
        reclaiming::membarrier::e2_nothing_is_freed_while_somebody_looks => Unordered,
        reclaiming::fences::e2_nothing_is_freed_while_somebody_looks => Unordered;
    e3_stamped_without_counting:
        reclaiming::membarrier::e3_a_pin_that_comes_after_the_stamp_holds_nothing_up => Asserted,
        reclaiming::fences::e3_a_pin_that_comes_after_the_stamp_holds_nothing_up => Asserted;
    // Fences hide the next two. The caller's one makes a relaxed load acquire, and loom takes no step between the
    // stamp and the sweep's one.
    e3_stamped_relaxed:
        reclaiming::membarrier::e2_nothing_is_freed_while_somebody_looks => Unordered;
    e3_entered_by_a_relaxed_load:
        reclaiming::membarrier::e2_nothing_is_freed_while_somebody_looks => Unordered;
    e4_left_relaxed:
        reclaiming::membarrier::e2_nothing_is_freed_while_somebody_looks => Unordered,
        reclaiming::fences::e2_nothing_is_freed_while_somebody_looks => Unordered;
    e4_looked_relaxed:
        reclaiming::membarrier::e2_nothing_is_freed_while_somebody_looks => Unordered,
        reclaiming::fences::e2_nothing_is_freed_while_somebody_looks => Unordered;
    e4_entered_again_relaxed:
        reclaiming::membarrier::e4_what_is_looked_at_before_a_thread_enters_again_is_freed_after_it => Unordered,
        reclaiming::fences::e4_what_is_looked_at_before_a_thread_enters_again_is_freed_after_it => Unordered;

    i1_current_before_its_gate:
        incarnations::i1_a_death_as_soon_as_a_table_can_be_found => Asserted;
    i1_opened_relaxed:
        incarnations::i1_a_death_as_soon_as_a_table_can_be_found => Unordered;
    i1_a_death_acts_on_the_current_one:
        incarnations::i1_a_late_death_beside_the_next_table => Asserted;
    i2_freed_without_waiting:
        incarnations::i2_a_table_is_closed_and_freed_during_a_call => Unordered;
    i2_stamped_before_it_was_closed:
        incarnations::i2_a_table_is_closed_and_freed_during_a_call => Unordered;
    i2_closed_and_still_current:
        incarnations::i2_a_table_is_closed_and_freed_during_a_call => Asserted;
    i2_shared_outside_the_pin:
        incarnations::i2_a_table_is_closed_and_freed_while_one_looks_at_it_for_long => Gone;
    i2_the_one_before_left_open:
        incarnations::i2_two_open_at_once => Asserted;
    i3_closed_and_its_way_left_open:
        incarnations::i2_two_close_at_once => Asserted,
        incarnations::i3_a_late_death_finds_nobody_in_a_closed_table => Asserted;
    i4_a_death_closes_what_is_kept:
        incarnations::i4_a_kept_table_is_adopted_while_the_death_of_its_manager_is_told => Asserted;
}

/// This program again.
fn again() -> Command {
    let mut again = Command::new(env::current_exe().unwrap());
    again.env("RUST_BACKTRACE", "0");
    again
}

/// Runs a model with a bug.
fn run(bug: &str, model: &str, also: Option<&str>) -> Output {
    let mut again = again();
    again.args(["--exact", model, "--nocapture"]);
    again.env("CANAL_LOCK_SEEDED_BUG", bug);
    // A model that has explored for so many seconds ends as if nothing were wrong, so the bug has not been found.
    again.env("LOOM_MAX_DURATION", "60");
    also.map(|variable| again.env(variable, "1"));
    let output = again.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("running 1 test"), "there is no model {model}");
    output
}

/// `module::model`, however the compiler spaces it.
fn name(model: &str) -> String {
    model.replace(' ', "")
}

fn assert_found(name_of_bug: &str) {
    let bug = BUGS.iter().find(|bug| bug.name == name_of_bug);
    for (model, found) in bug.expect("on the list").found {
        let model = name(model);
        let output = run(name_of_bug, &model, None);
        assert!(!output.status.success(), "{model} does not find it");
        let told = String::from_utf8_lossy(&output.stderr);
        // What goes wrong after the first panic, while everything is dropped, goes wrong because of it.
        let (_, panic) = told.split_once("panicked at ").unwrap_or_default();
        let (place, words) = panic.split_once('\n').unwrap_or_default();
        let words = words.lines().next().unwrap_or_default();
        let file = model.split("::").next().unwrap_or_default();
        let as_expected = match found {
            Asserted => {
                place.contains(&format!("tests/loom/{file}.rs")) || words.contains("told twice")
            }
            Unordered => words.contains("Causality violation"),
            Gone => place.contains("sync/arc.rs"),
            Freed => words.contains("has been freed"),
        };
        assert!(as_expected, "{model} fails otherwise: {place} {words}");
    }
}

fn assert_on_the_list<'a>(there: BTreeSet<String>, list: impl Iterator<Item = &'a str>) {
    let list = list.map(name).collect();
    let odd: Vec<_> = there.symmetric_difference(&list).collect();
    assert!(odd.is_empty(), "there or on the list, not both: {odd:?}");
}

#[test]
fn every_model_has_a_bug_that_it_finds() {
    let list = again().args(["--list", "--format=terse"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let models = list
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|test| !test.starts_with("must_fail::"))
        .map(str::to_owned);
    let found = BUGS.iter().flat_map(|bug| bug.found);
    assert_on_the_list(models.collect(), found.map(|(model, _)| *model));
}

#[test]
fn every_bug_that_the_code_can_have_is_on_the_list() {
    let mut bugs = BTreeSet::new();
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    for source in fs::read_dir(sources).unwrap() {
        let path = source.unwrap().path();
        // Where the questions are asked: neither where they are answered, nor in the folders, which are of tests.
        if path.ends_with("sync.rs") || path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        for question in ["seeded(", "ordering("] {
            let asked = text.split(question).skip(1);
            bugs.extend(
                asked
                    .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split_once('"'))
                    .map(|(bug, _)| bug.to_owned()),
            );
        }
    }
    assert_on_the_list(bugs, BUGS.iter().map(|bug| bug.name));
}

/// Why [`Sides`]: one way round, loom sees the one who merely reads before the other one has written, and nothing
/// else.
#[test]
fn one_way_round_a_model_may_be_blind() {
    let (bug, model) = (
        "p6_more_than_full_admits",
        "counting::p6_one_grows_what_the_other_finds_full",
    );
    assert!(run(bug, model, Some(ONE_WAY)).status.success());
    assert!(!run(bug, model, None).status.success());
}
