//! Histories from seeds: of machines that are right, in which no promise may be broken; and of machines or settings
//! that are wrong, each of which has to be found out (the controls).
//!
//! `CANAL_LOCK_SOAK` plays that many times as many.

use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use quorum::rules::Rules;
use quorum_check::invariants::Label;
use quorum_check::simulation::faults::Fault;
use quorum_check::simulation::search::{search, Search};
use quorum_check::simulation::{again, run, Settings};
use std::time::Duration;

const THREADS: usize = 2;

fn soak() -> u64 {
    std::env::var("CANAL_LOCK_SOAK")
        .ok()
        .and_then(|times| times.parse().ok())
        .unwrap_or(1)
}

fn histories(from: u64, histories: u64) -> Search {
    Search {
        from,
        histories,
        until: None,
        threads: THREADS,
    }
}

#[test]
fn ten_thousand_histories_keep_every_promise_and_meet_every_fault() {
    let wanted = 10_000 * soak();
    let (summary, failed) = search(&Settings::default(), histories(0, wanted));
    if let Some(seed) = failed {
        panic!("{}", again(seed, &Settings::default()));
    }
    println!("{summary}");
    assert_eq!(summary.of("histories"), wanted);
    assert_eq!(summary.of("histories that became empty"), wanted);
    for fault in Fault::ALL {
        assert!(
            summary.of(fault.label()) >= wanted / 4,
            "{fault}: {}",
            summary.of(fault.label())
        );
    }
    // What a history is there for: that each of these comes about, and how often at least among 1000 of them.
    for (what, least) in [
        ("histories without faults", 100),
        ("writers granted", 5000),
        ("readers granted", 3000),
        ("locks of many names granted", 1000),
        ("locks passed on", 500),
        ("locks refused: timeout", 2000),
        ("locks refused: no quorum", 1000),
        ("locks lost", 20),
        ("locks at risk", 20),
        ("locks forced open", 20),
        ("answers that revoke", 50),
        ("unlocks confirmed", 3000),
        ("unlocks not confirmed", 1),
        ("try_unlocks accepted", 3000),
        ("try_unlocks that had to wait", 10),
        ("clients that died waiting", 500),
        ("votes asserted", 100),
        ("votes refused: quarantine", 5000),
        ("votes refused: storing", 1000),
        ("votes refused: not in turn", 3000),
        ("votes refused: readers", 2000),
        ("votes refused: a writer", 5000),
        ("fences confirmed", 2000),
        ("voters without fences", 2000),
        ("floors asked", 2000),
        ("floors told", 500),
        ("floors lost, too", 1000),
        ("marks stored", 2000),
        ("voters taken over", 100),
        ("syncs", 10_000),
        ("mismatches heard", 10_000),
        ("answers for an agent that is dead", 500),
        ("hints", 5000),
        ("frames lost", 10_000),
        ("frames doubled", 5000),
        ("frames held back", 1000),
    ] {
        assert!(
            summary.of(what) >= least * wanted / 1000,
            "{what}: {}",
            summary.of(what)
        );
    }
    // Q9, as the design says it: a lease after the death of agents (clocks are slow, and stood still), and a few
    // heartbeats where none died.
    assert!(summary.longest("all empty, of agents that live") < 12_000_000_000);
}

#[test]
fn a_seed_is_one_history() {
    let hash = |seed| run(seed, &Settings::default()).hash;
    for seed in 0..200 {
        assert_eq!(hash(seed), hash(seed), "{seed}");
    }
    assert_ne!(hash(1), hash(2));
    // Also with its trace kept.
    assert_eq!(hash(3), again(3, &Settings::default()).hash);
}

/// Looks for a violation, and wants it to be one of these.
fn refuted(what: &str, settings: &Settings, labels: &[Label], most: u64) {
    let (_, failed) = search(settings, histories(0, most));
    let seed = failed.unwrap_or_else(|| panic!("{what}: {most} histories, and nothing was broken"));
    let violation = again(seed, settings)
        .violation
        .expect("a seed is one history");
    println!(
        "{what}: seed {seed}, {} is broken: {:.300}",
        violation.label, violation.text
    );
    assert!(labels.contains(&violation.label), "{what}: {violation:?}");
}

/// Wants no violation.
fn unrefuted(settings: &Settings, most: u64) {
    if let (_, Some(seed)) = search(settings, histories(0, most * soak())) {
        panic!("{}", again(seed, settings));
    }
}

/// Each promise on the way to one that matters, so that this one is looked for.
fn blind_but(label: Label) -> Vec<Label> {
    let all = [
        Label::Q1,
        Label::Q2,
        Label::Q3,
        Label::Q4,
        Label::Q5,
        Label::Q6,
        Label::Q7,
        Label::Q8,
        Label::Q9,
        Label::Q10,
        Label::Q11,
        Label::Votes,
        Label::Adr15,
        Label::Answers,
        Label::Confirmed,
        Label::Lost,
        Label::Live,
        Label::Forced,
        Label::Wire,
    ];
    all.into_iter().filter(|other| *other != label).collect()
}

fn weak(bug: ProtocolBug) -> Settings {
    Settings {
        bugs: ProtocolBugs::NONE.with(bug),
        ..Settings::default()
    }
}

const MOST: u64 = 10_000;

/// E, A1 and A2: a voter that has forgotten everything grants at once, and two hold.
#[test]
fn without_quarantine_two_hold() {
    for members in [3, 4, 5] {
        let settings = Settings {
            members: Some(members),
            faults: Some(vec![Fault::VoterDies, Fault::VotersDie]),
            fight: true,
            ..weak(ProtocolBug::NoQuarantine)
        };
        refuted(
            "NoQuarantine",
            &settings,
            &[Label::Q3, Label::Q5, Label::Votes, Label::Q1],
            MOST,
        );
        refuted(
            "NoQuarantine",
            &Settings {
                blind: blind_but(Label::Q1),
                ..settings
            },
            &[Label::Q1],
            MOST,
        );
    }
}

/// B1: a vote of a life of the voter that is over counts.
#[test]
fn with_forgotten_votes_two_hold() {
    let faults = Some(vec![
        Fault::VoterDies,
        Fault::VotersDie,
        Fault::BadLink,
        Fault::VoterPauses,
    ]);
    let settings = Settings {
        faults,
        fight: true,
        ..weak(ProtocolBug::ForgottenVotesCount)
    };
    refuted(
        "ForgottenVotesCount",
        &settings,
        &[Label::Q2, Label::Q3, Label::Q1],
        MOST,
    );
    refuted(
        "ForgottenVotesCount",
        &Settings {
            blind: blind_but(Label::Q1),
            ..settings
        },
        &[Label::Q1],
        MOST,
    );
}

/// D1: readers by half of an even number. Half and a majority meet in one voter, so Q1 stands as long as each vote
/// does; what falls is that a lock is held by a quorum.
#[test]
fn with_half_a_quorum_a_reader_holds_without_one() {
    for members in [2, 4] {
        let settings = Settings {
            members: Some(members),
            ..weak(ProtocolBug::ReadHalf)
        };
        refuted("ReadHalf", &settings, &[Label::Lost], MOST);
        unrefuted(
            &Settings {
                blind: blind_but(Label::Q1),
                ..settings
            },
            1000,
        );
    }
}

/// F1 and F2: a fence that is not written down by a quorum comes again.
#[test]
fn fences_that_are_not_written_down_come_again() {
    for bug in [ProtocolBug::FenceNotWritten, ProtocolBug::FenceNotAwaited] {
        let settings = weak(bug);
        refuted(
            &format!("{bug:?}"),
            &settings,
            &[Label::Q6, Label::Q5],
            MOST,
        );
        refuted(
            &format!("{bug:?}"),
            &Settings {
                blind: blind_but(Label::Q5),
                ..settings
            },
            &[Label::Q5],
            MOST,
        );
    }
}

/// F4: a lock that is passed on with a fence that no voter gave.
#[test]
fn fences_that_were_not_taken_come_again() {
    let settings = weak(ProtocolBug::FencesNotTaken);
    refuted(
        "fences that were not taken",
        &settings,
        &[Label::Q6, Label::Q5],
        MOST,
    );
    refuted(
        "fences that were not taken",
        &Settings {
            blind: blind_but(Label::Q5),
            ..settings
        },
        &[Label::Q5],
        MOST,
    );
}

/// The lease is counted from the answer instead of the question.
#[test]
fn a_lease_from_the_answer_outlives_the_vote() {
    let faults = Some(vec![Fault::Isolation, Fault::Stall]);
    let settings = Settings {
        faults,
        fight: true,
        ..weak(ProtocolBug::LeaseFromAnswer)
    };
    refuted(
        "LeaseFromAnswer",
        &settings,
        &[Label::Lost, Label::Q2, Label::Q1],
        MOST,
    );
    refuted(
        "LeaseFromAnswer",
        &Settings {
            blind: blind_but(Label::Q1),
            ..settings
        },
        &[Label::Q1],
        MOST,
    );
}

/// A lease ends, and the generation goes on.
#[test]
fn a_generation_that_goes_on_counts_votes_that_are_gone() {
    let faults = Some(vec![Fault::Isolation, Fault::AgentPauses, Fault::CutOneWay]);
    let settings = Settings {
        faults,
        fight: true,
        ..weak(ProtocolBug::SameGeneration)
    };
    refuted("SameGeneration", &settings, &[Label::Q2, Label::Q7], MOST);
    refuted(
        "SameGeneration",
        &Settings {
            blind: blind_but(Label::Q2),
            ..settings
        },
        &[Label::Q2],
        MOST,
    );
}

/// A forced unlock that only forgets.
#[test]
fn a_revoked_vote_that_is_forgotten_lets_two_hold() {
    let settings = weak(ProtocolBug::RevokedForgotten);
    refuted(
        "RevokedForgotten",
        &settings,
        &[Label::Q2, Label::Q7, Label::Q1],
        MOST,
    );
    refuted(
        "RevokedForgotten",
        &Settings {
            blind: blind_but(Label::Q1),
            ..settings
        },
        &[Label::Q1],
        MOST,
    );
}

/// The standing goes on after the unlock.
#[test]
fn an_unlock_that_keeps_the_standing_is_held_still() {
    refuted(
        "UnlockKeepsHeld",
        &weak(ProtocolBug::UnlockKeepsHeld),
        &[Label::Q8],
        MOST,
    );
}

/// The process around a voter dies while a mark is being stored, and nobody stores it again.
#[test]
fn a_voter_that_is_taken_over_and_does_not_store_again_stops() {
    let faults = Some(vec![Fault::VoterIsTakenOver]);
    let settings = Settings {
        faults,
        ..weak(ProtocolBug::NotStoredAgain)
    };
    refuted("NotStoredAgain", &settings, &[Label::Live], MOST);
    unrefuted(
        &Settings {
            bugs: ProtocolBugs::NONE,
            ..settings
        },
        1000,
    );
}

/// Q5: all fences are lost at once, and wall clocks show no more than they did: the fences begin where they began.
/// Where clocks go on, so do fences.
#[test]
fn lost_fences_without_a_clock_come_again() {
    let settings = Settings {
        faults: Some(vec![Fault::DisksDie, Fault::VotersDie]),
        wall_stands: true,
        ..Settings::default()
    };
    refuted("a clock that stands", &settings, &[Label::Q5], MOST);
    unrefuted(
        &Settings {
            wall_stands: false,
            ..settings
        },
        2000,
    );
}

/// A voter's lease that is not longer than the holder's.
#[test]
fn a_voter_that_forgets_before_the_holder_lets_two_hold() {
    let faults = Some(vec![
        Fault::Isolation,
        Fault::AgentPauses,
        Fault::NodePauses,
    ]);
    let rules = |rules: Rules| Rules {
        voter_lease: rules.holder_lease.mul_f64(0.8),
        ..rules
    };
    let settings = Settings {
        faults,
        rules: Some(rules),
        fight: true,
        ..Settings::default()
    };
    refuted(
        "voter_lease < holder_lease",
        &settings,
        &[Label::Q2, Label::Q1],
        MOST,
    );
    refuted(
        "voter_lease < holder_lease",
        &Settings {
            blind: blind_but(Label::Q1),
            ..settings
        },
        &[Label::Q1],
        MOST,
    );
}

/// E: a quarantine that is over before the leases are.
#[test]
fn a_short_quarantine_lets_two_hold() {
    let faults = Some(vec![
        Fault::VotersDie,
        Fault::Partition,
        Fault::NodePauses,
        Fault::AgentPauses,
    ]);
    let rules = |rules: Rules| Rules {
        quarantine: Duration::from_millis(200),
        ..rules
    };
    let settings = Settings {
        faults,
        rules: Some(rules),
        fight: true,
        ..Settings::default()
    };
    refuted(
        "a short quarantine",
        &settings,
        &[Label::Q3, Label::Q1],
        MOST,
    );
    refuted(
        "a short quarantine",
        &Settings {
            blind: blind_but(Label::Q1),
            ..settings
        },
        &[Label::Q1],
        MOST,
    );
}

/// The assumption about clocks: one that is wrong by a fifth.
#[test]
fn a_clock_that_is_wrong_by_a_fifth_lets_two_hold() {
    let faults = Some(vec![
        Fault::Isolation,
        Fault::NodePauses,
        Fault::AgentPauses,
        Fault::Clock,
    ]);
    let settings = Settings {
        drift: 200_000,
        faults,
        fight: true,
        ..Settings::default()
    };
    refuted(
        "a wrong clock",
        &settings,
        &[Label::Q2, Label::Q3, Label::Q1],
        MOST,
    );
    refuted(
        "a wrong clock",
        &Settings {
            blind: blind_but(Label::Q1),
            ..settings
        },
        &[Label::Q1],
        MOST,
    );
}

/// The other one: a clock that stands still while the system sleeps.
#[test]
fn a_clock_that_sleeps_with_its_node_lets_two_hold() {
    let faults = Some(vec![Fault::NodePauses, Fault::AgentPauses]);
    let settings = Settings {
        agent_sleeps: true,
        faults,
        fight: true,
        ..Settings::default()
    };
    refuted(
        "a clock that sleeps",
        &settings,
        &[Label::Q2, Label::Q1],
        MOST,
    );
    refuted(
        "a clock that sleeps",
        &Settings {
            blind: blind_but(Label::Q1),
            ..settings
        },
        &[Label::Q1],
        MOST,
    );
}

/// What safety does not rest on: the order of batches, and that each comes once. An old one may leave a vote that
/// nobody counts; so what is not promised then is that all is empty, and what follows from that.
#[test]
fn any_order_does_no_harm() {
    let blind = vec![Label::Q9, Label::Q10, Label::Live];
    unrefuted(
        &Settings {
            blind,
            ..weak(ProtocolBug::AnyOrder)
        },
        3000,
    );
}
