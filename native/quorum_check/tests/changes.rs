//! All histories of changes of members with one fault at any moment, of some settings with two, and the bugs that such
//! histories must find.
//!
//! A fault with which a setting cannot keep its promises is left out: the loss of the only member's file, and the death
//! of a node that the change needs.

use quorum::protocol_bug::ProtocolBug::{self, *};
use quorum_check::changes::search::search;
use quorum_check::changes::setting::Fault::{self, *};
use quorum_check::changes::setting::{Nodes, Setting, LATE};
use quorum_check::changes::settings::named;

fn holds(setting: Setting) {
    let report = search(setting);
    println!("{report}");
    assert!(report.violation.is_none(), "{report}");
}

/// At most one fault: of messages, writes and timers, or a crash of one machine, or a lost file or a death at one of
/// these nodes.
fn one_fault(setting: &Setting, lost: Nodes, dead: Nodes) {
    let all: Nodes = &[0, 1, 2, 3, 4];
    let nodes = &all[..setting.nodes];
    for (faults, at) in [
        (LATE, nodes),
        (&[VoterCrash, AgentCrash], nodes),
        (&[LostFile], lost),
        (&[Death], dead),
    ] {
        holds(setting.clone().faults(1, faults, at));
    }
}

macro_rules! settings {
    ($($test:ident: $name:literal, $lost:expr, $dead:expr;)*) => {$(
        #[test]
        fn $test() {
            one_fault(&named($name).keeps(), &$lost, &$dead);
        }
    )*};
}

// Q1, Q5, PR5: no lock is lost, and all clients are served.
settings! {
    the_only_member_is_replaced: "close", [2], [2];
    and_holds_the_lock: "close-member", [2], [2];
    and_back_and_replaced_again: "close-quick", [2], [2];
    and_dies_afterwards: "close-dies", [2], [2];
    one_becomes_three: "grow", [1, 2, 3], [3];
    three_become_one: "shrink", [1, 2, 3], [1, 2, 3];
    one_of_three_is_replaced: "replace", [0, 1, 2, 3], [0, 1, 2];
    and_comes_back: "replace-twice", [0, 1, 2, 3], [0, 1];
    two_of_three_are_replaced_and_die: "replace-two", [0, 1, 2, 3, 4], [0, 1];
    while_a_lock_passes_by_unasked_votes: "unasked", [0, 1, 2, 3], [0, 2];
    two_nodes_change_the_members: "proposers", [0, 1, 2, 3], [0, 1, 2];
}

/// Q1, Q5: the lock of the old cluster is lost.
#[test]
fn the_last_of_three_members_begins_a_new_cluster() {
    one_fault(&named("reset"), &[1, 2, 3], &[1, 2, 3]);
    one_fault(&named("reset-two"), &[1, 2, 3], &[1, 2, 3]);
}

/// Q1, Q5, PR5.
#[test]
#[ignore = "make soak WHAT=machines"]
fn two_faults_while_the_only_member_is_replaced() {
    let faults = [LATE, &[VoterCrash]].concat();
    for name in ["close", "close-member", "close-dies"] {
        holds(named(name).keeps().faults(2, &faults, &[0, 1]));
    }
}

/// Q1, Q5, PR5: one of them is a crash of the voter that drives the change.
#[test]
#[ignore = "make soak WHAT=machines"]
fn two_faults_while_one_of_three_is_replaced() {
    let faults = [LATE, &[VoterCrash]].concat();
    holds(named("replace").keeps().faults(2, &faults, &[0]));
}

/// The bug violates the property, in a setting that holds without it: see above.
fn finds(setting: Setting, bug: ProtocolBug, property: &str) {
    let report = search(setting.bug(bug));
    println!("{bug:?} {report}");
    assert_eq!(
        report.violation.map(|(label, _)| label),
        Some(property),
        "{bug:?}"
    );
}

macro_rules! controls {
    ($($test:ident($bug:ident): $name:literal, $most:literal of $faults:expr, at $at:expr => $label:ident;)*) => {$(
        #[test]
        fn $test() {
            let faults: &[Fault] = $faults;
            let setting = named($name).faults($most, faults, &$at);
            let keeps = stringify!($label) == "PR5" && !$name.starts_with("reset");
            finds(if keeps { setting.keeps() } else { setting }, $bug, stringify!($label));
        }
    )*};
}

controls! {
    votes_before_agents_have_settled(VotesUnsettled): "close", 1 of &[VoterCrash], at [0] => Q1;
    sealed_voters_report_no_agents(NoReports): "close", 1 of &[VoterCrash], at [1] => Q1;
    a_voter_in_quarantine_reports_what_it_has(QuarantinedReports): "close-quick", 1 of &[VoterCrash], at [0] => Q1;
    an_agent_settles_without_its_locks(SettlesUnasserted): "close", 0 of &[], at [] => Q1;
    one_seal_too_few(OneSealTooFew): "close", 0 of &[], at [] => Q5;
    no_floor_is_learned(NoFloor): "close", 1 of &[AgentCrash], at [2] => Q5;
    ballots_are_used_again(BallotReused): "proposers", 1 of LATE, at [] => Record;
    a_promise_before_the_voter_has_voted(PromiseBeforeVoted): "close-dies", 1 of LATE, at [] => PR5;
    no_vote_is_kept(NoKept): "close", 0 of &[], at [] => PR5;
    leavers_are_not_asked(LeaversUnasked): "close", 0 of &[], at [] => PR5;
    a_change_is_done_too_early(DoneBeforeKept): "close-dies", 1 of &[VoterCrash], at [1] => PR5;
    an_attempt_goes_on_in_the_next_view(AttemptAcrossNumbers): "shrink", 0 of &[], at [] => Machine;
    after_a_reset_voters_wait_for_no_lease(ResetNoQuarantine): "reset", 0 of &[], at [] => Q1;
    records_are_shown_before_they_are_stored(SealNotStored): "reset-two", 1 of &[VoterCrash], at [4] => PR5;
}
