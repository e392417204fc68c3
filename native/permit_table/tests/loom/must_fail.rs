//! Tests the models: each of them fails with a seeded bug.
//!
//! The code has named places where a bug can be enabled (`src/sync.rs`). The patches in `bugs/` add further places to a
//! copy of the code: `scripts/seeded.sh` builds that copy and runs all tests in it. So the product does not contain
//! those bugs, and one build contains all of them.
//!
//! This file lists the bugs: the models that find each bug, and how. Every bug is a test. It runs this program again
//! for each of its models, with the bug enabled. A model that finds no listed bug, or a bug that is not listed, is a
//! failure too.

use super::ONE_FIRST_SIDE;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// How a model finds a bug.
#[derive(Clone, Copy)]
enum Found {
    /// By an assertion of its own.
    Asserted,
    /// loom reports two unordered accesses, one of them a write.
    Unordered,
    /// A key is read after it has been dropped.
    Freed,
    /// By an assertion of the code.
    Checked,
    /// loom reports a deadlock.
    Deadlocked,
}
use Found::*;

/// A seeded bug, and the models that find it.
struct Bug {
    name: &'static str,
    found: &'static [(&'static str, Found)],
}

macro_rules! bugs {
    ($list:ident $attributes:tt $($name:ident: $($model:path => $found:expr),+;)*) => {
        const $list: &[Bug] = &[$(
            Bug { name: stringify!($name), found: &[$((stringify!($model), $found)),+] },
        )*];

        $(bugs! { @test $attributes $name })*
    };
    (@test [$($attribute:tt)*] $name:ident) => {
        #[test]
        $($attribute)*
        fn $name() {
            assert_found(stringify!($name));
        }
    };
}

bugs! {
    IN_THE_CODE []

    p1_acquired_relaxed:
        counting::p1_acquire_sees_writes_of_the_previous_holder => Unordered;
    p1_released_relaxed:
        counting::p1_release_publishes_writes_to_the_next_holder => Unordered,
        waiting::p1_waiter_sees_writes_of_the_last_holder => Unordered;
    p1_chunk_published_relaxed:
        counting::p1_two_insert_one_key => Unordered;
    p8_swept_relaxed:
        inspecting::h2_inspection_during_release_and_sweep_threads => Freed;
    k1_published_relaxed:
        counting::p1_two_insert_one_key => Unordered;
    h1_vacated_relaxed:
        deaths::p5_next_process_in_a_slot_holds_nothing_of_the_dead => Unordered;
    h1_taken_relaxed:
        deaths::p5_next_process_in_a_slot_holds_nothing_of_the_dead => Unordered;
    h2_recorded_relaxed:
        inspecting::h2_inspection_while_an_inline_key_changes => Asserted;
    h2_released_relaxed:
        inspecting::h2_inspection_while_an_inline_key_changes => Asserted;

    // Fences hide the next two. The caller's fence makes a relaxed load acquire, and loom does not switch threads
    // between the stamp and the sweep's fence.
    e3_stamped_relaxed:
        epochs::membarrier::e2_reads_under_a_pin_precede_the_free => Unordered;
    e3_epoch_read_relaxed:
        epochs::membarrier::e2_reads_under_a_pin_precede_the_free => Unordered;
    e4_left_relaxed:
        epochs::membarrier::e2_reads_under_a_pin_precede_the_free => Unordered,
        epochs::fences::e2_reads_under_a_pin_precede_the_free => Unordered;
    e4_entered_read_relaxed:
        epochs::membarrier::e2_reads_under_a_pin_precede_the_free => Unordered,
        epochs::fences::e2_reads_under_a_pin_precede_the_free => Unordered;
    e4_entered_stored_relaxed:
        epochs::membarrier::e4_reads_under_an_earlier_pin_precede_the_free => Unordered,
        epochs::fences::e4_reads_under_an_earlier_pin_precede_the_free => Unordered;
    i1_opened_relaxed:
        incarnations::i1_death_right_after_open => Unordered;
    o2_overflow_made_relaxed:
        giving::o2_target_with_a_slot_dies_during_a_gift => Asserted;
    h5_count_read_relaxed:
        giving::o2_first_calls_of_the_target_during_a_gift => Asserted;
    h5_count_changed_relaxed:
        giving::o2_first_calls_of_the_target_during_a_gift => Asserted;
}

bugs! {
    IN_PATCHES [#[ignore = "make soak WHAT=seeded"]]

    p4_released_and_left_on_record:
        deaths::p4_acquire_during_the_death_of_the_holder => Asserted,
        inspecting::o4_usage_during_a_death => Asserted;
    h1_reuse_ignored:
        giving::o2_gift_during_a_death_with_pid_reuse => Asserted,
        giving::o2_inheriting_process_waits_and_dies => Asserted,
        giving::o2_wait_during_a_death_with_pid_reuse => Asserted,
        giving::o2_wait_during_the_death_of_a_waiter_with_pid_reuse => Asserted,
        deaths::p4_death_reported_after_pid_reuse => Unordered,
        inspecting::h1_inspection_during_a_death_with_pid_reuse => Asserted;
    h1_reuse_checked_without_fence:
        deaths::p4_death_reported_after_pid_reuse => Unordered;
    h1_no_fence_after_reuse_check:
        deaths::p4_death_reported_after_two_pid_reuses => Unordered;
    h1_reader_takes_retiring_for_free:
        inspecting::h1_inspection_during_a_death_with_pid_reuse => Asserted;
    h1_released_with_its_word:
        deaths::p4_death_reported_after_pid_reuse => Unordered,
        giving::p4_two_callbacks_of_a_death => Unordered;
    h1_retry_drops_other_holders:
        inspecting::h1_other_holders_while_a_slot_changes_hands => Asserted;
    h1_holder_not_rechecked:
        inspecting::h1_all_permits_while_a_slot_changes_hands => Asserted,
        inspecting::h1_holders_of_a_key_while_a_slot_changes_hands => Asserted,
        inspecting::h1_permits_of_one_while_its_slot_changes_hands => Asserted;
    h2_count_lowered_before_record:
        inspecting::h2_inspection_during_release_and_sweep_threads => Freed;
    h2_time_after_permits:
        inspecting::h2_time_of_a_process_that_begins_to_hold_permits => Asserted;
    h2_permits_reported_for_wrong_key:
        inspecting::h2_inspection_while_an_inline_key_changes => Asserted;
    h2_moved_key_reported_twice:
        inspecting::h2_inspection_while_a_key_is_acquired_again => Asserted;
    h2_moved_without_lock:
        inspecting::h2_inspection_while_a_key_moves_to_the_overflow => Asserted;
    h2_new_list_not_read:
        inspecting::h2_inspection_while_a_key_moves_to_the_overflow => Asserted;
    o4_released_and_left_in_sum:
        inspecting::o4_usage_during_a_death => Asserted;
    p6_resize_keeps_collected:
        waiting::p6_resize_during_release => Asserted;
    w1_looked_before_the_bit:
        waiting::p12_release_during_wait => Asserted,
        waiting::p12_wait_for_a_new_key_during_acquire_and_release => Asserted,
        waiting::p4_holder_dies_during_wait => Asserted;
    w1_cancel_settles_nothing:
        waiting::p12_collector_cancels_during_release => Asserted,
        waiting::p4_collector_dies_during_release => Asserted;
    w2_lowered_before_handed_over:
        waiting::p11_caller_does_not_overtake_a_waiter => Asserted,
        waiting::p11_caller_does_not_overtake_between_two_pieces => Asserted,
        waiting::p12_hand_over_during_wait => Asserted;
    w2_bit_cleared_without_the_lock:
        waiting::p12_last_waiter_leaves_during_wait => Asserted,
        waiting::p4_waiter_dies_during_its_grant_and_another_wait => Asserted;
    w3_cancelled_without_the_lock:
        waiting::p13_cancel_during_a_grant => Asserted,
        waiting::p13_cancel_during_close => Asserted;
    w3_told_after_the_lock:
        waiting::p13_cancel_during_a_grant => Asserted,
        waiting::p12_collector_cancels_during_release => Asserted;
    w3_closed_not_asked:
        waiting::p13_wait_during_close => Asserted;
    w4_collected_forgotten:
        waiting::p12_collector_cancels_during_release => Asserted,
        waiting::p4_collector_dies_during_release => Asserted,
        waiting::p6_resize_during_release_and_cancel => Asserted;
    w4_all_collect:
        waiting::w4_second_waiter_collects_nothing_during_acquire => Asserted;
    o1_credited_before_taken_off:
        giving::p14_inspection_during_a_gift => Asserted;
    o1_told_before_credited:
        waiting::p13_waiter_releases_when_it_is_told => Asserted;
    o2_visible_before_watched:
        giving::p14_target_dies_during_two_gifts => Asserted;
    o3_locks_as_called:
        giving::o3_two_processes_give_to_each_other => Deadlocked;
    p1_acquire_without_cas:
        counting::p1_two_acquire_the_last_permit => Asserted,
        counting::p1_three_acquire_the_last_two_permits => Asserted,
        counting::p1_release_during_acquire => Asserted,
        counting::p1_acquire_during_release_and_sweep => Asserted,
        counting::p6_two_acquire_with_different_capacities => Asserted;
    p6_count_above_capacity_admits:
        counting::p6_larger_capacity_admits_while_smaller_is_full => Asserted;
    p8_dead_stored_without_cas:
        sweeping::p8_key_is_reclaimed_during_acquire => Asserted,
        deaths::p4_key_is_reclaimed_after_its_last_holder_dies => Asserted;
    p8_dead_key_reported_full:
        sweeping::p8_key_is_reclaimed_during_acquire => Asserted;
    k1_head_marked_linked_early:
        sweeping::k1_head_is_linked_during_lookup => Asserted;
    k2_unlinked_without_mark:
        sweeping::p8_key_is_unlinked_between_two_insertions => Asserted,
        sweeping::p8_heads_are_closed_during_insertion => Asserted;
    k3_redirected_without_cas:
        counting::p1_two_insert_keys_in_one_range => Asserted;
    k4_present_key_inserted_again:
        counting::p1_two_insert_one_key => Asserted,
        sweeping::k4_key_is_recreated_during_acquire_of_the_dead_node => Asserted;
    k5_freed_without_waiting:
        sweeping::p8_key_is_reclaimed_during_lookup => Unordered,
        inspecting::h2_inspection_during_release_then_sweep => Unordered;
    p4_vacated_before_released:
        deaths::p4_next_process_acquires_during_a_death_at_its_place => Unordered;
    h1_reuse_checked_before_retiring:
        deaths::p4_death_reported_after_pid_reuse => Unordered;
    h1_call_ignores_retiring:
        deaths::p4_death_reported_after_pid_reuse => Asserted,
        inspecting::h1_inspection_during_a_death_with_pid_reuse => Asserted;
    h3_freed_before_vacated:
        deaths::h3_slot_is_occupied_after_a_failed_watch => Unordered;
    h4_displaced_not_counted:
        deaths::p4_next_process_acquires_during_a_death_at_its_place => Asserted;
    h4_removed_by_word:
        deaths::p4_death_reported_after_two_pid_reuses => Asserted;
    h4_dead_slot_hides_the_next:
        inspecting::h4_inspection_of_two_slots_with_one_word => Asserted;
    p4_death_settles_nothing:
        waiting::p4_holder_dies_during_wait => Asserted,
        waiting::p4_waiter_dies_during_its_grant => Asserted;
    p8_sweep_overlooks_the_bit:
        waiting::p8_key_is_reclaimed_during_wait => Asserted;
    w1_release_ignores_the_bit:
        waiting::p11_two_releases_are_handed_over_to_the_oldest => Asserted,
        waiting::p12_release_during_wait => Asserted,
        waiting::p12_hand_over_during_wait => Asserted,
        waiting::p12_wait_for_a_new_key_during_acquire_and_release => Asserted;
    w1_raised_by_a_store:
        waiting::w1_two_acquires_during_wait_for_several => Asserted,
        waiting::p6_caller_takes_a_free_permit_during_a_hand_over_of_two => Asserted;
    w5_drained_before_off_the_queue:
        waiting::p4_waiter_dies_during_its_grant => Checked;
    share_acquired_without_cas:
        sharing::cp1_two_acquire_the_last_permit_of_a_share => Asserted;
    share_set_by_a_store:
        sharing::cp1_share_changes_during_acquire => Asserted;
    share_set_without_the_lock:
        sharing::cp1_share_is_lowered_during_a_hand_over => Asserted;
    share_settles_nothing:
        sharing::cp4_share_is_raised_during_wait => Asserted;
    share_keeps_collected:
        sharing::cp4_share_is_lowered_while_a_collector_leaves => Asserted;
    share_of_a_dead_key:
        sharing::p8_share_is_set_during_the_sweep => Asserted;
    share_overtakes_waiters:
        sharing::cp4_caller_does_not_overtake_a_waiter => Asserted;
    share_taken_without_waiters:
        sharing::cp2_share_changes_while_a_permit_is_lost => Asserted;
    w7_record_read_before_the_bit:
        sharing::cp1_permits_are_lost_during_a_release => Checked;
    w7_queue_ends_with_lost:
        sharing::p8_lost_permit_is_released_during_the_sweep => Unordered;
    w7_lost_of_another_process_taken:
        sharing::cp1_permit_is_lost_during_the_release_of_another_process => Asserted;
    w7_lost_not_taken:
        sharing::cp3_permit_is_lost_during_the_death_of_its_process => Checked;
    w7_gift_is_counted:
        sharing::cp3_permit_is_lost_while_it_is_given => Asserted;
    p8_key_counted_after_insertion:
        sharing::p8_key_without_a_share_is_inserted_during_the_sweep => Asserted;
    e1_left_with_nested_pin:
        epochs::membarrier::e1_nested_pin_does_not_end_the_outer_one => Unordered,
        epochs::fences::e1_nested_pin_does_not_end_the_outer_one => Unordered;
    e5_record_added_without_cas:
        epochs::membarrier::e1_first_pins_of_two_threads_both_count => Unordered,
        epochs::fences::e1_first_pins_of_two_threads_both_count => Unordered,
        epochs::membarrier::e5_first_pins_of_two_threads_get_different_numbers => Asserted,
        epochs::fences::e5_first_pins_of_two_threads_get_different_numbers => Asserted;
    e2_no_light_barrier:
        epochs::membarrier::e2_reads_under_a_pin_precede_the_free => Unordered,
        epochs::fences::e2_reads_under_a_pin_precede_the_free => Unordered;
    e2_no_heavy_barrier:
        epochs::membarrier::e2_reads_under_a_pin_precede_the_free => Unordered,
        epochs::fences::e2_reads_under_a_pin_precede_the_free => Unordered;
    e2_equal_stamp_freed:
        epochs::membarrier::e2_reads_under_a_pin_precede_the_free => Unordered,
        epochs::fences::e2_reads_under_a_pin_precede_the_free => Unordered;
    e3_stamped_without_increment:
        epochs::membarrier::e3_pin_after_the_stamp_delays_no_free => Asserted,
        epochs::fences::e3_pin_after_the_stamp_delays_no_free => Asserted;
    i1_current_set_before_gate:
        incarnations::i1_death_right_after_open => Asserted;
    i1_gate_leads_to_current:
        incarnations::i1_late_death_while_the_next_table_opens => Asserted;
    i2_freed_without_waiting:
        incarnations::i2_close_and_free_during_a_call => Unordered;
    i2_stamped_before_closed:
        incarnations::i2_close_and_free_during_a_call => Unordered;
    i2_closed_and_left_current:
        incarnations::i2_close_and_free_during_a_call => Asserted;
    i2_previous_left_open:
        incarnations::i2_two_open_at_once => Asserted;
    i3_closed_and_gate_left_open:
        incarnations::i2_two_close_at_once => Asserted,
        incarnations::i3_late_death_during_close_changes_nothing => Asserted;
    o2_word_not_checked:
        giving::o2_target_with_a_slot_dies_during_a_gift => Asserted;
    h5_place_not_read_again:
        giving::o2_first_calls_of_the_target_during_a_gift => Asserted;
    h5_count_not_read_again:
        giving::o2_first_calls_of_the_target_during_a_gift => Asserted;
}

/// This test program.
fn program() -> Command {
    let mut program = Command::new(env::current_exe().unwrap());
    program.env("RUST_BACKTRACE", "0");
    program
}

/// Runs a model with a bug.
fn run(bug: &str, model: &str, also: Option<&str>) -> Output {
    let mut program = program();
    program.args(["--exact", model, "--nocapture"]);
    program.env("CANAL_LOCK_SEEDED_BUG", bug);
    // A model that reaches the time limit ends successfully. Then the bug has not been found.
    program.env("LOOM_MAX_DURATION", "60");
    also.map(|variable| program.env(variable, "1"));
    let output = program.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        stdout.contains("running 1 test"),
        "there is no model {model}"
    );
    output
}

/// `module::model`, without the spaces that the compiler inserts.
fn name(model: &str) -> String {
    model.replace(' ', "")
}

fn all_bugs() -> impl Iterator<Item = &'static Bug> {
    IN_THE_CODE.iter().chain(IN_PATCHES)
}

fn assert_found(name_of_bug: &str) {
    let bug = all_bugs().find(|bug| bug.name == name_of_bug);
    for (model, found) in bug.expect("listed").found {
        let model = name(model);
        let output = run(name_of_bug, &model, None);
        assert!(
            !output.status.success(),
            "{model} does not find {name_of_bug}"
        );
        let stderr = String::from_utf8_lossy(&output.stderr);
        // Only the first panic counts: the later ones are its consequences.
        let (_, panic) = stderr.split_once("panicked at ").unwrap_or_default();
        let (place, words) = panic.split_once('\n').unwrap_or_default();
        let words = words.lines().next().unwrap_or_default();
        let file = model.split("::").next().unwrap_or_default();
        let as_expected = match found {
            Asserted => {
                place.contains(&format!("tests/loom/{file}.rs")) || words.contains("reported twice")
            }
            Unordered => words.contains("Causality violation"),
            Freed => words.contains("has been freed"),
            Checked => place.contains("permit_table/src/"),
            Deadlocked => words.starts_with("deadlock"),
        };
        assert!(
            as_expected,
            "{model} fails for another reason: {place} {words}"
        );
    }
}

fn assert_listed<'a>(found: BTreeSet<String>, list: impl Iterator<Item = &'a str>) {
    let list = list.map(name).collect();
    let unmatched: Vec<_> = found.symmetric_difference(&list).collect();
    assert!(
        unmatched.is_empty(),
        "only in the code or only on the list: {unmatched:?}"
    );
}

#[test]
fn every_model_finds_a_listed_bug() {
    let mut program = program();
    let list = program.args(["--list", "--format=terse"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let models = list
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|test| !test.starts_with("must_fail::"))
        .map(str::to_owned);
    let found = all_bugs().flat_map(|bug| bug.found);
    assert_listed(models.collect(), found.map(|(model, _)| *model));
}

/// The names of the bugs in the files of a folder of this crate, in the lines that begin with `marker`.
fn bugs_in(folder: &str, marker: &str) -> BTreeSet<String> {
    let mut bugs = BTreeSet::new();
    for source in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
        let path = source.unwrap().path();
        // `sync.rs` defines the two functions. The folders contain tests.
        if path.ends_with("sync.rs") || path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let lines: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with(marker))
            .collect();
        let text = lines.join("\n");
        for function in ["seeded(", "ordering("] {
            let uses = text.split(function).skip(1);
            bugs.extend(
                uses.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split_once('"'))
                    .map(|(bug, _)| bug.to_owned()),
            );
        }
    }
    bugs
}

#[test]
fn every_seeded_bug_is_listed() {
    let in_patches = bugs_in("tests/loom/bugs", "+");
    // A copy of the code contains the others, too.
    let in_the_code = &bugs_in("src", "") - &in_patches;
    assert_listed(in_the_code, IN_THE_CODE.iter().map(|bug| bug.name));
    assert_listed(in_patches, IN_PATCHES.iter().map(|bug| bug.name));
}

/// Shows why [`super::FirstSide`] exists: with one order only, loom sees the side that reads before the other one has
/// written, and no other interleaving.
#[test]
#[ignore = "make soak WHAT=seeded"]
fn a_model_with_one_first_side_misses_a_bug() {
    let (bug, model) = (
        "p6_count_above_capacity_admits",
        "counting::p6_larger_capacity_admits_while_smaller_is_full",
    );
    assert!(run(bug, model, Some(ONE_FIRST_SIDE)).status.success());
    assert!(!run(bug, model, None).status.success());
}
