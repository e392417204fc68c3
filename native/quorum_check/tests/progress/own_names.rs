//! PR3, for names that no other node locks: a request waits for its voters and for no other request. One member is
//! sick, each in turn.

use crate::choice::Choice;
use crate::figures::Figures;
use crate::load::Load;
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
    /// How long the load is measured when the member becomes sick, and then.
    fn spans(self) -> (Duration, Duration) {
        match self {
            Quarantined | FullDisk => (ms(500), ms(1_000)),
            Slow(_) => (ms(2_000), ms(1_000)),
        }
    }
}

/// No request waits longer.
const LONGEST: Duration = ms(50);

fn cluster(members: usize) -> Load {
    let mut load = Load::new(members).choice(Choice::Own(16)).jitter(Some(1));
    (load.far, load.loops) = (ms(2), 2);
    load
}

/// While `sick` is healthy, when it becomes sick, and then.
fn figures(members: usize, sickness: Sickness, sick: usize) -> [Figures; 3] {
    let title = format!("{members} members, {sick} {sickness:?}");
    let mut load = cluster(members);
    if let Slow(_) = sickness {
        load.idle = [sick].into();
    }
    let mut load = load.start();
    load.run("warm-up", ms(200));
    let healthy = load.run(&format!("{members} members, {sick} healthy"), ms(800));
    match sickness {
        Quarantined => load.restart_voter_with_guests(sick),
        FullDisk => {
            load = cluster(members);
            load.full = Some(sick);
            load = load.start();
        }
        Slow(by) => load.slow = Some((sick, by)),
    }
    let (at_first, then) = sickness.spans();
    let at_first = load.run(&format!("{title}, at first"), at_first);
    [healthy, at_first, load.run(&title, then)]
}

/// At least 85 % of the locks, also at first, and no long wait. Prints the worst of all sick members.
fn compare(members: usize, sickness: Sickness) -> Result<(), String> {
    let rows = (0..members).map(|sick| figures(members, sickness, sick));
    let rows: Vec<[Figures; 3]> = rows.collect();
    let least = |of: usize| {
        let percent = |row: &[Figures; 3]| row[of].per_second * 100 / row[0].per_second;
        rows.iter().map(percent).min().unwrap_or_default()
    };
    let longest = |of: usize| {
        let longest = rows.iter().map(|row| row[of].longest).max();
        longest.unwrap_or_default()
    };
    let healthy: Vec<usize> = rows
        .iter()
        .map(|[healthy, ..]| healthy.per_second)
        .collect();
    let text = format!(
        "{members} members, {sickness:?}: at first at least {} %, wait {:.1?}, then {} %, {:.1?} of \
         {healthy:?} locks/s",
        least(1),
        longest(1),
        least(2),
        longest(2),
    );
    println!("worst place: {text}");
    let good = least(1) >= 85 && least(2) >= 85 && longest(1) < LONGEST && longest(2) < LONGEST;
    good.then_some(()).ok_or(text)
}

const SICKNESSES: [Sickness; 5] = [
    Quarantined,
    FullDisk,
    Slow(ms(20)),
    Slow(ms(100)),
    Slow(ms(400)),
];

#[test]
fn pr3_own_names_while_a_member_is_sick() {
    for members in [3, 5, 8] {
        for sickness in SICKNESSES {
            assert_eq!(compare(members, sickness), Ok(()));
        }
    }
}

/// The control: one of two members is sick, so it is needed.
#[test]
fn pr3_own_names_that_need_a_sick_member_are_found() {
    for sickness in SICKNESSES {
        assert!(compare(2, sickness).is_err(), "{sickness:?}");
    }
}
