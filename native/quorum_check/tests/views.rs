//! Histories in which the members change. `SOAK=N` plays N times as many.

use quorum::protocol_bug::ProtocolBug::{self, *};
use quorum_check::views::{run, Options, Setting};

fn soak() -> u64 {
    std::env::var("SOAK")
        .ok()
        .and_then(|times| times.parse().ok())
        .unwrap_or(1)
}

/// Plays histories until one breaks something. Returns what, and its seed.
fn search(options: &Options, histories: u64) -> Option<(u64, &'static str)> {
    let mut seeds = 0..histories;
    seeds.find_map(|seed| Some((seed, run(seed, options).broken?.label)))
}

fn break_nothing(options: &Options, histories: u64) {
    for seed in 0..histories * soak() {
        let broken = run(seed, options).broken;
        assert!(broken.is_none(), "seed {seed}: {broken:?}");
    }
}

/// Q13, Q15, PR5: no two views grant one name, and all goes on when the faults are over.
#[test]
fn histories_with_faults_break_nothing() {
    let options = Options {
        calm: Some(false),
        ..Options::default()
    };
    break_nothing(&options, 450);
}

/// Q1, Q5, Q15, PR5: a new cluster of the survivors, while members of the old one return.
#[test]
fn resets_break_nothing() {
    break_nothing(&Options::of(Setting::Resets), 300);
}

/// PR5: no lock is lost, and each change is done.
#[test]
fn histories_without_faults_lose_nothing() {
    let options = Options {
        calm: Some(true),
        ..Options::default()
    };
    let mut changes = 0;
    for seed in 0..60 * soak() {
        let outcome = run(seed, &options);
        assert!(
            outcome.broken.is_none(),
            "seed {seed}: {:?}",
            outcome.broken
        );
        changes += outcome.counts["changes done"];
    }
    assert!(changes > 50);
}

/// Q13, PR5, with the settings of the controls below.
#[test]
fn histories_of_the_controls_break_nothing() {
    break_nothing(&Options::of(Setting::Contended), 150);
    break_nothing(&Options::of(Setting::Hurried), 150);
}

/// The bug breaks one of these, in a history that breaks nothing without it.
fn finds(options: &Options, bug: ProtocolBug, labels: &[&str], histories: u64) {
    let found = search(&options.clone().bug(bug), histories);
    println!("{bug:?}: {found:?}");
    assert!(
        found.is_some_and(|(_, label)| labels.contains(&label)),
        "{bug:?}: {found:?}"
    );
    let without = found.and_then(|(seed, _)| run(seed, options).broken);
    assert!(without.is_none(), "{without:?}");
}

macro_rules! controls {
    ($setting:ident: $($(#[$attribute:meta])* $test:ident($bug:ident): $($label:ident)*;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $test() {
            finds(&Options::of(Setting::$setting), $bug, &[$(stringify!($label)),*], 4000);
        }
    )*};
}

// Other bugs are found by `changes.rs`.
controls! {
    General:
    provisional_votes_are_not_reported(ProvisionalUnreported): Q1;
    no_floor_is_learned(NoFloor): Q5;
    a_change_is_done_too_early(DoneBeforeKept): PR5;
}

controls! {
    Resets:
    after_a_reset_voters_wait_for_no_lease(ResetNoQuarantine): Q1;
}

controls! {
    Contended:
    votes_of_the_new_list_are_enough(NewVotesCount): Q1;
    a_vote_too_few_is_kept(FewerKept): Q1;
    a_deadline_ignores_the_end_of_unasked_votes(DeadlineOfUnasked): Q1;
    members_that_stay_learn_nothing(StayersLearnNothing): Q1 Q5;
    an_accepted_record_is_taken(AcceptedIsDecided): Record;
}

controls! {
    Hurried:
    kept_is_said_too_early(KeptEarly): PR5;
    unasked_votes_are_not_kept(UnaskedNotKept): PR5;
}

/// A held lock is in none of the answers, which it would be with correct ones.
fn misses(options: &Options) {
    let found = search(options, 4000);
    println!("{found:?}");
    assert!(found.is_some_and(|(_, label)| label == "Q15"), "{found:?}");
}

/// Q15: a voter of a new view, or after a restart, does not know all votes.
#[test]
fn voters_in_quarantine_answer_which_names_have_votes() {
    misses(&Options {
        quarantined_answers: true,
        ..Options::default()
    });
}

/// Q15: a quorum of voters of two clusters, of which one is a reset.
#[test]
#[ignore = "make soak WHAT=machines"]
fn answers_of_all_views_count_together() {
    misses(&Options {
        mixed_views: true,
        ..Options::of(Setting::Resets)
    });
}
