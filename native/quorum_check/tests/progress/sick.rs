//! PR3: progress while one member is sick. Each member in turn is the sick one, and the result is compared with the
//! same cluster without it. All nodes lock one name, except those that are slow or dead.

use crate::figures::Figures;
use crate::load::Load;
use quorum::protocol_bug::ProtocolBug;
use std::time::Duration;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// How long each load is measured: shorter than a quarantine.
const SPAN: Duration = ms(8_000);

/// At least 80 % of the control, no wait over `longest`, no node gets more than twice as many locks as another, and
/// none waits while the others get more than twice as many as in the control.
fn compare(control: &Figures, sick: &Figures, longest: Duration) -> Result<(), String> {
    let good = sick.per_second * 10 >= control.per_second * 8
        && sick.longest < longest
        && sick.most() <= sick.least() * 2
        && sick.most_behind <= control.most_behind * 2;
    let text = || format!("control {control:?}, sick {sick:?}");
    good.then_some(()).ok_or_else(text)
}

/// One node is dead, so a restarted voter stays in quarantine until its end.
fn quarantined(nodes: usize, bug: Option<ProtocolBug>) -> Result<(), String> {
    let dead = nodes - 1;
    let start = || {
        let mut load = Load::new(nodes).bug(bug).start();
        load.dead = [dead].into();
        load.run("warm-up", ms(3_000));
        load
    };
    let control = start().run(&format!("{nodes} nodes, one dead"), SPAN);
    for sick in 0..dead {
        let mut load = start();
        load.restart_voter(sick);
        let figures = load.run(&format!("{nodes} nodes, {sick} quarantined"), SPAN);
        compare(&control, &figures, ms(200))?;
    }
    Ok(())
}

/// The disk of one member is full from the start, so it never votes for a writer.
fn full_disk(nodes: usize, bug: Option<ProtocolBug>) -> Result<(), String> {
    let start = |full| {
        let mut load = Load::new(nodes).bug(bug);
        load.full = full;
        let mut load = load.start();
        load.run("warm-up", ms(1_000));
        load
    };
    let control = start(None).run(&format!("{nodes} nodes"), SPAN);
    for sick in 0..nodes {
        let title = format!("{nodes} nodes, disk of {sick} full");
        let figures = start(Some(sick)).run(&title, SPAN);
        compare(&control, &figures, ms(200))?;
    }
    Ok(())
}

/// One member is slow and locks nothing itself.
fn slow(nodes: usize, by: Duration, bug: Option<ProtocolBug>) -> Result<(), String> {
    for sick in 0..nodes {
        let mut load = Load::new(nodes).bug(bug).start();
        load.idle = [sick].into();
        let control = load.run(&format!("{nodes} nodes, {sick} idle"), SPAN);
        load.slow = Some((sick, by));
        let title = format!("{nodes} nodes, {sick} slow by {by:?}");
        let first = load.run(&format!("{title}, at first"), ms(3_000));
        if first.longest >= ms(2_000) {
            return Err(format!("{title}, at first: {first:?}"));
        }
        compare(&control, &load.run(&title, SPAN), ms(2_000))?;
    }
    Ok(())
}

#[test]
fn pr3_a_quarantined_member_slows_no_other_down() {
    for nodes in [5, 7] {
        assert_eq!(quarantined(nodes, None), Ok(()));
    }
}

#[test]
fn pr3_a_full_disk_slows_no_other_down() {
    for nodes in [3, 5] {
        assert_eq!(full_disk(nodes, None), Ok(()));
    }
}

#[test]
fn pr3_a_slow_member_slows_no_other_down() {
    for (nodes, by) in [(3, ms(20)), (5, ms(20)), (5, ms(100)), (5, ms(400))] {
        assert_eq!(slow(nodes, by, None), Ok(()));
    }
}

/// One member stops, and no other one is informed. Some frames take so long that all voters are late now and then.
#[test]
fn pr3_a_stopped_member_is_passed_over() {
    for seed in 0..20 {
        for sick in 0..3 {
            let mut load = Load::new(3).jitter(Some(seed)).start();
            load.hiccup = ms(60);
            load.run("warm-up", ms(300 + seed));
            load.stop(sick);
            let figures = load.run(&format!("{sick} stopped"), ms(3_000));
            assert!(figures.longest < ms(1_500), "{sick} stopped: {figures:?}");
        }
    }
}

/// The control: the first member sequences, although it does not vote.
#[test]
fn pr3_a_sequencer_that_does_not_vote_is_found() {
    let bug = Some(ProtocolBug::FirstSequences);
    assert!(quarantined(5, bug).is_err());
    assert!(full_disk(3, bug).is_err());
    assert!(slow(3, ms(20), bug).is_err());
}
