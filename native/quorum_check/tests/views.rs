//! Histories in which the members change. `SOAK=N` plays N times as many.

use quorum::protocol_bug::ProtocolBug::{self, *};
use quorum_check::views::{run, Options};

fn soak() -> u64 {
    std::env::var("SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Plays histories until one breaks something. Returns what, and its seed.
fn search(options: &Options, histories: u64) -> Option<(u64, &'static str)> {
    let mut seeds = 0..histories;
    seeds.find_map(|seed| Some((seed, run(seed, options).broken?.label)))
}

#[test]
fn histories_with_faults_break_nothing() {
    let options = Options {
        calm: Some(false),
        ..Options::default()
    };
    for seed in 0..1000 * soak() {
        let outcome = run(seed, &options);
        assert!(outcome.broken.is_none(), "seed {seed}: {:?}", outcome.broken);
    }
}

/// PR5: no lock is lost, and each change is done.
#[test]
fn histories_without_faults_lose_nothing() {
    let options = Options {
        calm: Some(true),
        ..Options::default()
    };
    let mut changes = 0;
    for seed in 0..150 * soak() {
        let outcome = run(seed, &options);
        assert!(outcome.broken.is_none(), "seed {seed}: {:?}", outcome.broken);
        changes += outcome.counts["changes done"];
    }
    assert!(changes > 100);
}

/// Each bug breaks one of these.
fn finds(bug: ProtocolBug, labels: &[&str], histories: u64) {
    let found = search(&Options::default().bug(bug), histories);
    println!("{bug:?}: {found:?}");
    assert!(found.is_some_and(|(_, label)| labels.contains(&label)), "{bug:?}: {found:?}");
}

#[test]
fn controls() {
    for bug in [
        NewVotesCount, FewerKept, KeptLate, DeadlineAnew, DeadlineOfUnasked, SettlesUnasserted, NoKept, UnaskedNotKept,
        KeptEarly, LeaversUnasked, QuarantinedReports, ProvisionalUnreported, RestartedBelieves,
    ] {
        let since = std::time::Instant::now();
        let found = search(&Options::default().bug(bug), 1500);
        println!("{bug:?}: {found:?} {:?}", since.elapsed());
    }
}
