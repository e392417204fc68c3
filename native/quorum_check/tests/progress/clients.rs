//! What many clients cost: 100 agents at five members, compared with 16.

use crate::choice::Choice;
use crate::figures::Figures;
use crate::load::Load;
use std::time::Duration;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// One loop on each of this many nodes, five of which are members.
fn agents(agents: usize, choice: Choice, (warm_up, span): (Duration, Duration)) -> Figures {
    let load = Load::new(5).clients(agents - 5).choice(choice);
    let mut load = load.jitter(Some(1));
    load.loops = 1;
    let mut load = load.start();
    load.run("warm-up", warm_up);
    load.run(&format!("{agents} agents, {choice:?}"), span)
}

/// At most this many times as many frames per lock, and as long a queue per agent.
const MOST: f64 = 1.3;

fn compare_frames(few: &Figures, many: &Figures) {
    let times = many.frames_per_lock() / few.frames_per_lock();
    println!("frames per lock: {times:.2} times as many");
    assert!(times <= MOST, "few {few:?}, many {many:?}");
}

/// Compares the longest queue at a voter per agent. More agents that lock the same names wait for each other, whatever
/// the protocol does. Each waiting request should have one position at the voter.
fn compare_queues(few: &Figures, many: &Figures) {
    let queue = |figures: &Figures| figures.longest_queue as f64 / figures.shares.len() as f64;
    let times = queue(many) / queue(few);
    println!("longest queue per agent: {times:.2} times as long");
    assert!(times <= MOST, "few {few:?}, many {many:?}");
}

/// No request waits at a voter, and each agent gets as many locks as one of 16.
#[test]
fn own_names_cost_100_agents_as_many_frames_as_16() {
    let of = |count| agents(count, Choice::Own(16), (ms(50), ms(100)));
    let (few, many) = (of(16), of(100));
    compare_frames(&few, &many);
    assert_eq!((few.longest_queue, many.longest_queue), (0, 0));
    let rate = |figures: &Figures| figures.per_second / figures.shares.len();
    assert!(rate(&many) * 10 >= rate(&few) * 9, "{few:?}, {many:?}");
}

/// Ten names, and as many names per agent as 16 agents have.
#[test]
fn shared_names_cost_100_agents_as_many_frames_as_16() {
    let of = |count, names| agents(count, Choice::Shared(names), (ms(300), ms(1_000)));
    let few = of(16, 10);
    for names in [10, 62] {
        let many = of(100, names);
        compare_frames(&few, &many);
        compare_queues(&few, &many);
    }
}
