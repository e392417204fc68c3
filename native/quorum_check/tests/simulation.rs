//! Histories from seeds: of correct machines, which must violate no invariant, and of machines or clusters with one
//! defect (the controls), which must violate one.
//!
//! `CANAL_LOCK_SOAK` multiplies the number of histories. The ignored searches run in `make soak WHAT=machines`.

use quorum::protocol_bug::ProtocolBug::{self, *};
use quorum::rules::Rules;
use quorum_check::simulation::fault::Fault;
use quorum_check::simulation::history::{replay, run};
use quorum_check::simulation::invariants::label::Label;
use quorum_check::simulation::options::Options;
use quorum_check::simulation::search::{search, Search};
use std::time::Duration;

/// How many histories are played at most until one violates an invariant.
const MOST: u64 = 10_000;

fn soak() -> u64 {
    std::env::var("CANAL_LOCK_SOAK")
        .ok()
        .and_then(|times| times.parse().ok())
        .unwrap_or(1)
}

fn histories(histories: u64) -> Search {
    Search {
        from: 0,
        histories,
        until: None,
        threads: 2,
    }
}

fn bug(bug: ProtocolBug) -> Options {
    Options::default().bug(bug)
}

/// PR1, PR2, PR6: progress is checked in each history, as all invariants are.
#[test]
fn ten_thousand_histories_violate_nothing_and_contain_every_fault() {
    let wanted = 10_000 * soak();
    let (summary, failed) = search(&Options::default(), histories(wanted));
    if let Some(seed) = failed {
        panic!("{}", replay(seed, &Options::default()));
    }
    println!("{summary}");
    let at_least = |what: &str, least: u64| {
        assert!(summary.of(what) >= least, "{what}: {}", summary.of(what));
    };
    assert_eq!(summary.of("histories"), wanted);
    assert_eq!(summary.of("histories that became empty"), wanted);
    for fault in Fault::ALL {
        at_least(fault.label(), wanted / 4);
    }
    // What histories must contain, and how often at least in 1000 of them.
    for (what, least) in [
        ("histories without faults", 100),
        ("writers granted", 5000),
        ("readers granted", 3000),
        ("locks of several names granted", 1000),
        ("locks passed on", 500),
        ("locks refused: timeout", 2000),
        ("locks refused: no quorum", 1000),
        ("locks lost", 20),
        ("locks at risk", 20),
        ("locks revoked", 20),
        ("answers that revoke", 50),
        ("unlocks confirmed", 3000),
        ("unlocks not confirmed", 1),
        ("asynchronous unlocks accepted", 3000),
        ("asynchronous unlocks that had to wait", 10),
        ("clients that died waiting", 500),
        ("votes asserted", 100),
        ("votes continued", 50),
        ("votes refused: storing", 1000),
        ("votes refused: busy", 3000),
        ("votes refused: queued", 3000),
        ("fences confirmed", 2000),
        ("lives asked for", 2000),
        ("lives told", 2000),
        ("fences stored", 2000),
        ("old disks", 50),
        ("voters superseded", 100),
        ("syncs", 10_000),
        ("mismatches received", 10_000),
        ("answers to an earlier lifetime", 500),
        ("votes given unasked", 5000),
        ("provisional votes taken back", 50),
        ("connections that voters found closed", 500),
        ("recalls", 5000),
        ("requests that gave their votes back", 500),
        ("tries", 1000),
        ("tries refused", 200),
        ("dead agents ended", 500),
        ("histories with guests", 200),
        ("histories with 100 agents", 1),
        ("locks granted to guests", 1000),
        ("guests begin", 500),
        ("guests end", 50),
        ("guests that left", 20),
        ("numbers of guests used again", 20),
        ("votes refused: guest not stored", 30),
        ("votes of guests continued", 5),
        ("quarantines with guests", 50),
        ("dead agents of guests ended", 100),
        ("questions answered by a quorum", 1000),
        ("frames lost", 10_000),
        ("frames duplicated", 5000),
        ("frames held back", 1000),
    ] {
        at_least(what, least * wanted / 1000);
    }
    // A few heartbeats, and the locks of requests that wait for slow disks.
    assert!(summary.until_empty < 15_000_000_000);
}

#[test]
fn a_seed_is_one_history() {
    let hash = |seed| run(seed, &Options::default()).hash;
    for seed in 0..200 {
        assert_eq!(hash(seed), hash(seed), "{seed}");
    }
    assert_ne!(hash(1), hash(2));
    // With or without a trace.
    assert_eq!(hash(3), replay(3, &Options::default()).hash);
}

/// Searches for a violation, which must be one of these.
fn violates(test: &str, options: &Options, labels: &[Label]) {
    let (_, failed) = search(options, histories(MOST));
    let seed = failed.unwrap_or_else(|| panic!("{test}: no violation in {MOST} histories"));
    let violation = replay(seed, options).violation;
    let violation = violation.expect("a seed is one history");
    println!(
        "{test}: seed {seed}, {:?} {:.300}",
        violation.label, violation.text
    );
    assert!(labels.contains(&violation.label), "{test}: {violation:?}");
}

/// Searches for a violation, which must not exist.
fn holds(options: &Options, most: u64) {
    if let (_, Some(seed)) = search(options, histories(most * soak())) {
        panic!("{}", replay(seed, options));
    }
}

/// Each row is a test of a control: its options must lead to a violation of one of the labels. `then` means: also to a
/// violation of this label, if the others are ignored.
macro_rules! violates {
    ($($(#[$attribute:meta])* fn $test:ident($options:expr): $($label:ident)* $(, then $only:ident)?;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $test() {
            let options: Options = $options;
            violates(stringify!($test), &options, &[$(Label::$label),*]);
            $(violates(stringify!($test), &options.only(Label::$only), &[Label::$only]);)?
        }
    )*};
}

violates! {
    /// CE1, CE2: a voter that has lost its votes grants at once.
    fn three_voters_without_quarantine(no_quarantine().members(3)): Q3 Q5 Votes Q1, then Q1;
    fn four_voters_without_quarantine(no_quarantine().members(4)): Q3 Q5 Votes Q1, then Q1;
    fn five_voters_without_quarantine(no_quarantine().members(5)): Q3 Q5 Votes Q1, then Q1;

    /// CE3
    fn votes_of_an_earlier_lifetime_count(
        bug(ForgottenVotesCount).of_three().faults(&[Fault::VoterMoves, Fault::CutOneWay])
    ): Q2 Q3 Q1, then Q1;

    /// CE11: a lock without a vote of the earlier lifetime is asserted in the quarantine. Another agent may count one.
    fn any_lock_continues(bug(AnyLockContinues)): Votes;
    #[ignore = "make soak WHAT=machines"]
    fn any_lock_continues_for_several_leases(
        bug(AnyLockContinues).long().members(3).guests(0).faults(&[Fault::VoterMoves, Fault::CutBothWays])
    ): Votes Q1, then Q1;
    fn any_lock_of_a_guest_continues(
        bug(AnyLockContinues).long().members(3).guests(2).faults(&[Fault::VoterMoves, Fault::CutBothWays])
    ): Votes;

    /// CE4: half and a majority share a voter, so Q1 holds while that voter keeps its vote. But the lock has no quorum.
    fn two_voters_and_half_is_enough_for_a_reader(bug(ReadHalf).members(2)): Lost;
    fn four_voters_and_half_is_enough_for_a_reader(bug(ReadHalf).members(4)): Lost;

    /// CE7
    fn fence_not_written(bug(FenceNotWritten)): Q6 Q5, then Q5;
    /// CE8
    fn fence_not_awaited(bug(FenceNotAwaited)): Q6 Q5, then Q5;
    /// CE10
    fn fences_not_taken(bug(FencesNotTaken)): Q6 Q5, then Q5;

    fn lease_starts_at_the_answer(
        bug(LeaseFromAnswer).contended().faults(&[Fault::Isolation, Fault::Stall])
    ): Lost Q2 Q1, then Q1;

    fn votes_dropped_in_the_same_generation(
        bug(SameGeneration).contended().faults(&[Fault::Isolation, Fault::AgentPause, Fault::CutOneWay])
    ): Q2 Q7 Votes, then Q2;

    fn revoked_lock_forgotten(bug(RevokedForgotten)): Q2 Q7 Given Q1, then Q1;

    fn unlocked_lock_held(bug(UnlockKeepsHeld)): Q8;

    /// A vote that was given unasked counts for longer than its voter keeps it. Two holders need a voter that does not
    /// hear the first of them, and has taken the vote back.
    fn given_from_the_arrival(
        bug(GivenFromArrival).of_three().faults(&[Fault::AgentPause, Fault::Stall])
    ): Q2 Votes, then Q1;
    fn given_counts_long(
        bug(GivenCountsLong).of_three().faults(&[Fault::AgentPause, Fault::CutBothWays])
    ): Q2 Votes, then Q1;
    /// The longer such a vote counts, the likelier the voter is informed before it ends that the connection is down.
    fn given_ends_with_the_connection(
        bug(GivenEndsWithConnection).of_three().faults(&[Fault::CutBothWays, Fault::CutOneWay])
            .rules(|rules| Rules { wait: rules.holder_lease, ..rules }).only(Label::Given)
    ): Given, then Q1;

    /// Q15: a voter has forgotten its votes. (Late answers are found by the model checker.)
    fn answers_in_quarantine(Options { quarantined_answers: true, ..Options::default() }.only(Label::Q15)): Q15;
    /// Q15: a lock that was not held is held again.
    fn expired_locks_are_renewed(bug(ExpiredRenewed).faults(&[Fault::AgentPause, Fault::Stall])): Q15;

    /// PR1: a request waits for a vote of which no agent or no voter knows.
    fn positions_forgotten(bug(PositionsForgotten)): PR1 PR2 Answers;
    fn no_recalls(bug(NoRecalls)): PR1 PR2;

    /// Q14, Q5: a voter believes its old file.
    fn old_disk_believed(bug(StaleBelieved).faults(&[Fault::OldDisk])): Q14, then Q5;

    fn first_frame_buries(
        bug(FirstFrameBuries).of_three().faults(&[Fault::AgentCrash, Fault::Stall])
    ): Q2 Q3 Q7 Votes Q1, then Q1;

    /// V7: a voter that restarts does not wait for a guest that still counts its vote.
    fn guests_are_forgotten(
        bug(GuestsForgotten).contended().guests(2).members(3).faults(&[Fault::VoterCrash, Fault::AgentPause])
    ): V7, then Q1;

    /// A lock of an agent that has crashed, and one of the next agent, have the same token. The holder of the second
    /// lock does not know that it has ended.
    fn unlocks_do_not_name_their_agent(
        Options { bare_tokens: true, ..Options::default() }.faults(&[Fault::AgentCrash])
    ): Lost;

    /// CE6
    fn voter_lease_too_short(
        Options::default().contended()
            .faults(&[Fault::Isolation, Fault::AgentPause, Fault::NodePause])
            .rules(|rules| Rules { voter_lease: rules.holder_lease.mul_f64(0.8), ..rules })
    ): Q2 Q1, then Q1;

    /// CE5
    fn quarantine_too_short(
        Options { quarantine: Some(Duration::from_millis(200)), ..Options::default() }.contended()
            .faults(&[Fault::VotersCrash, Fault::Partition, Fault::NodePause, Fault::AgentPause])
    ): Q3 Q1, then Q1;

    /// The rate of a clock may be wrong by 1 % only.
    fn clocks_wrong_by_a_fifth(
        Options { drift: Some(200_000), ..Options::default() }.of_three()
            .faults(&[Fault::Isolation, Fault::NodePause, Fault::AgentPause, Fault::Clock])
    ): Q2 Q3 Votes Q1, then Q1;

    /// A clock must not stand still while its system is suspended.
    fn clocks_pause_with_their_node(
        Options { agent_clocks_pause: true, ..Options::default() }.contended()
            .faults(&[Fault::NodePause, Fault::AgentPause])
    ): Lost Q2 Votes Q1, then Q1;
}

fn no_quarantine() -> Options {
    let faults = [Fault::VoterCrash, Fault::VotersCrash];
    bug(NoQuarantine).faults(&faults).contended()
}

/// Each row is a test: its options lead to no violation in this many histories.
macro_rules! holds {
    ($($(#[$attribute:meta])* fn $test:ident($options:expr): $most:literal;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $test() {
            holds(&$options, $most);
        }
    )*};
}

holds! {
    /// CE4
    fn two_voters_and_half_never_two_holders(bug(ReadHalf).members(2).only(Label::Q1)): 1000;
    fn four_voters_and_half_never_two_holders(bug(ReadHalf).members(4).only(Label::Q1)): 1000;

    fn old_disks_give_no_fences(Options::default().faults(&[Fault::OldDisk])): 2000;

    /// A voter that restarts waits while a guest may count its vote.
    fn guests_are_stored(
        Options::default().contended().guests(2).members(3).faults(&[Fault::VoterCrash, Fault::AgentPause])
    ): 1000;

    /// Safety does not depend on the order of batches or on duplicates. An old batch may leave a vote that no agent
    /// counts, so tables need not become empty, and later requests may fail.
    #[ignore = "make soak WHAT=machines"]
    fn batches_in_any_order(Options {
        ignored: vec![Label::Q9, Label::Q10, Label::PR1, Label::PR2],
        ..bug(AnyOrder)
    }): 3000;
}
