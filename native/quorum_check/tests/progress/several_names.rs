//! PR7: requests for several names, which wait for each other at several voters, all end.

use crate::choice::Choice;
use crate::load::Load;
use quorum::protocol_bug::ProtocolBug;
use std::time::Duration;

/// Four agents lock two to eight of 64 names at a time, five loops each: those of all members, of four of eight
/// members, and of four clients.
fn loads(seed: u64) -> [Load; 3] {
    let sizes = [(4, 0), (8, 0), (5, 4)];
    sizes.map(|(members, clients)| {
        let load = Load::new(members).clients(clients);
        let mut load = load.choice(Choice::Several(64)).jitter(Some(seed));
        load.idle = match clients {
            0 => (4..members).collect(),
            _ => (0..members).collect(),
        };
        load
    })
}

/// Each is granted and unlocked, and none waits for long. In 160 runs of ten seconds, the longest wait was 177 ms.
#[test]
fn pr7_requests_for_several_names_all_end() {
    for seed in 1..4 {
        for load in loads(seed) {
            let mut load = load.start();
            let figures = load.run("several names", Duration::from_secs(3));
            assert!(figures.longest < Duration::from_millis(300), "{figures:?}");
            assert!(figures.least() * 2 > figures.most(), "{figures:?}");
            assert!(load.ends_within(Duration::from_secs(1)), "{figures:?}");
        }
    }
}

/// The control: without recalls, requests wait for votes of each other sooner or later, and for good.
#[test]
fn pr7_requests_that_wait_for_each_other_are_found() {
    for load in loads(2) {
        let mut load = load.bug(Some(ProtocolBug::NoRecalls)).start();
        let figures = load.run("NoRecalls", Duration::from_secs(5));
        assert!(figures.longest > Duration::from_secs(1), "{figures:?}");
        assert!(!load.ends_within(Duration::from_secs(10)), "{figures:?}");
    }
}
