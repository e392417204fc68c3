//! PR3, for names that no other node locks: a request waits for its voters and for no other request. One member is
//! sick, each in turn. If all members vote for each name, a request asks all of them. With more members, it asks a
//! quorum, and another voter if one of these cannot vote or is late.

use crate::choice::Choice;
use crate::figures::Figures;
use crate::load::Load;
use quorum::protocol_bug::ProtocolBug;
use std::time::Duration;
use Sickness::*;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[derive(Clone, Copy, Debug)]
enum Sickness {
    /// The voter restarts, and its quarantine does not end early.
    Quarantined,
    /// From the start.
    FullDisk,
    /// The member locks nothing itself.
    Slow(Duration),
}

impl Sickness {
    /// How long the load is measured when the member becomes sick, and then. Heartbeats show whether a slow voter is
    /// still slow, so each of both is longer than the pause between them.
    fn spans(self) -> (Duration, Duration) {
        match self {
            Quarantined | FullDisk => (ms(500), ms(1_000)),
            Slow(_) => (ms(2_500), ms(2_500)),
        }
    }

    /// No request waits longer. An answer is late after 0.8 s at most (twice `hedge_most`), once a voter has been slow.
    fn longest(self) -> (Duration, Duration) {
        match self {
            Quarantined | FullDisk => (ms(50), ms(50)),
            Slow(_) => (ms(1_000), ms(50)),
        }
    }
}

/// A cluster of this many members, of which this many vote for each name.
type Size = (usize, usize);

fn cluster((members, replicas): Size, bug: Option<ProtocolBug>) -> Load {
    let load = Load::new(members).replicas(replicas).bug(bug);
    let mut load = load.choice(Choice::Own(16)).jitter(Some(1));
    (load.far, load.loops) = (ms(2), 2);
    load
}

/// While `sick` is healthy, when it becomes sick, and then.
fn figures(size: Size, sickness: Sickness, sick: usize, bug: Option<ProtocolBug>) -> [Figures; 3] {
    let title = format!("{size:?}, {sick} {sickness:?}");
    let mut load = cluster(size, bug);
    if let Slow(_) = sickness {
        load.idle = [sick].into();
    }
    let mut load = load.start();
    load.run("warm-up", ms(200));
    let healthy = load.run(&format!("{size:?}, {sick} healthy"), ms(800));
    match sickness {
        Quarantined => load.restart_voter_without_register(sick),
        FullDisk => {
            load = cluster(size, bug);
            load.full = Some(sick);
            load = load.start();
        }
        Slow(by) => load.slow = Some((sick, by)),
    }
    let (at_first, then) = sickness.spans();
    let at_first = load.run(&format!("{title}, at first"), at_first);
    [healthy, at_first, load.run(&title, then)]
}

/// At least 80 % of the locks, also at first, and no long wait. Prints the worst of all sick members.
fn compare(size: Size, sickness: Sickness, bug: Option<ProtocolBug>) -> Result<(), String> {
    let rows = (0..size.0).map(|sick| figures(size, sickness, sick, bug));
    let rows: Vec<[Figures; 3]> = rows.collect();
    let least = |of: usize| {
        let percent = |row: &[Figures; 3]| row[of].per_second * 100 / row[0].per_second;
        rows.iter().map(percent).min().unwrap_or_default()
    };
    let longest = |of: usize| {
        let longest = rows.iter().map(|row| row[of].longest).max();
        longest.unwrap_or_default()
    };
    let (members, replicas) = size;
    let healthy: Vec<usize> = rows
        .iter()
        .map(|[healthy, ..]| healthy.per_second)
        .collect();
    let text = format!(
        "{members} members, {replicas} vote, {sickness:?}: at first at least {} %, wait {:.1?}, then {} %, {:.1?} of \
         {healthy:?} locks/s",
        least(1),
        longest(1),
        least(2),
        longest(2),
    );
    println!("worst place: {text}");
    let (at_first, then) = sickness.longest();
    let good = least(1) >= 80 && least(2) >= 80 && longest(1) < at_first && longest(2) < then;
    good.then_some(()).ok_or(text)
}

const SICKNESSES: [Sickness; 5] = [
    Quarantined,
    FullDisk,
    Slow(ms(20)),
    Slow(ms(100)),
    Slow(ms(400)),
];

fn no_member_slows_others_down(size: Size) {
    for sickness in SICKNESSES {
        assert_eq!(compare(size, sickness, None), Ok(()));
    }
}

#[test]
fn pr3_own_names_of_all_members() {
    no_member_slows_others_down((3, 3));
    no_member_slows_others_down((5, 5));
}

#[test]
fn pr3_own_names_of_three_of_eight_members() {
    no_member_slows_others_down((8, 3));
}

#[test]
fn pr3_own_names_of_five_of_eight_members() {
    no_member_slows_others_down((8, 5));
}

/// The control: requests ask the first voters of their names, also slow ones.
#[test]
fn pr3_own_names_that_wait_for_a_slow_member_are_found() {
    let bug = Some(ProtocolBug::FirstSequences);
    assert!(compare((8, 3), Slow(ms(20)), bug).is_err());
}
