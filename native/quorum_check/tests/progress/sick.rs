//! PR3: progress while one member is sick. Each member in turn is the sick one, and the result is compared with the
//! same cluster without it. All nodes lock one name, except those that are slow or dead.

use crate::figures::Figures;
use crate::load::Load;
use std::time::Duration;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// How long each load is measured: shorter than a quarantine.
const SPAN: Duration = ms(3_000);

/// At least 75 % of the control (of three voters, both others must vote for each lock then), no wait over `longest`, no
/// node gets more than twice as many locks as another, and none waits while the others get more than twice as many as
/// in the control.
fn compare(control: &Figures, sick: &Figures, longest: Duration) -> Result<(), String> {
    let good = sick.per_second * 4 >= control.per_second * 3
        && sick.longest < longest
        && sick.most() <= sick.least() * 2
        && sick.most_behind <= control.most_behind * 2;
    let text = || format!("control {control:?}, sick {sick:?}");
    good.then_some(()).ok_or_else(text)
}

/// One node is dead, so a restarted voter stays in quarantine until its end.
fn quarantined(nodes: usize) -> Result<(), String> {
    let dead = nodes - 1;
    let start = || {
        let mut load = Load::new(nodes).start();
        load.dead = [dead].into();
        load.run("warm-up", ms(1_000));
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
fn full_disk(nodes: usize) -> Result<(), String> {
    let start = |full| {
        let mut load = Load::new(nodes);
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
fn slow(nodes: usize, by: Duration) -> Result<(), String> {
    for sick in 0..nodes {
        let mut load = Load::new(nodes).start();
        load.idle = [sick].into();
        let control = load.run(&format!("{nodes} nodes, {sick} idle"), SPAN / 2);
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
        assert_eq!(quarantined(nodes), Ok(()));
    }
}

#[test]
fn pr3_a_full_disk_slows_no_other_down() {
    for nodes in [3, 5] {
        assert_eq!(full_disk(nodes), Ok(()));
    }
}

#[test]
fn pr3_a_slow_member_slows_no_other_down() {
    for nodes in [3, 5] {
        assert_eq!(slow(nodes, ms(20)), Ok(()));
    }
}

#[test]
fn pr3_a_very_slow_member_slows_no_other_down() {
    for by in [ms(100), ms(400)] {
        assert_eq!(slow(5, by), Ok(()));
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

/// One node dies while it waits for the name, and no other one is informed. Voters take back the votes that they gave
/// it unasked, and skip its positions, when they have not heard it for `wait`.
#[test]
fn pr3_a_node_that_dies_while_it_waits_delays_the_others_once() {
    for nodes in [3, 5] {
        for (seed, sick) in (0..8).flat_map(|seed| (0..nodes).map(move |sick| (seed, sick))) {
            let mut load = Load::new(nodes).jitter(Some(seed)).start();
            load.run("warm-up", ms(300 + seed));
            load.die(sick);
            let figures = load.run(&format!("{nodes} nodes, {sick} died"), ms(3_000));
            assert!(figures.longest < ms(1_600), "{sick} died: {figures:?}");
        }
    }
}

/// The control: one of two members is sick, so it is needed.
#[test]
fn pr3_a_sick_member_that_is_needed_is_found() {
    assert!(full_disk(2).is_err());
    assert!(slow(2, ms(20)).is_err());
}
