//! PR4: contention. All nodes request the same names all the time, and none waits for long.

use crate::load::Load;
use quorum::message::Mode;
use quorum::protocol_bug::ProtocolBug;
use std::time::Duration;

const SPAN: Duration = Duration::from_secs(20);

/// Nodes with 5 loops each get one name in a fair order. The figures are in `docs/quorum.md`.
#[test]
fn pr4_writers_share_one_name() {
    for nodes in [2, 3, 4, 5, 8, 16] {
        let title = format!("{nodes} nodes");
        let figures = Load::new(nodes).start().run(&title, SPAN);
        assert!(
            figures.longest < Duration::from_millis(100),
            "{title}: {figures:?}"
        );
        assert!(figures.per_second > 3000, "{title}: {figures:?}");
        assert!(figures.least() * 2 > figures.most(), "{title}: {figures:?}");
    }
}

/// Nodes that are far from each other share one name, too. No voter is late: all take the same time.
#[test]
fn pr4_far_nodes_share_one_name() {
    for ms in [30, 150, 250, 350] {
        let mut load = Load::new(3);
        load.far = Duration::from_millis(ms);
        let round_trip = load.far * 2;
        let figures = load.start().run(&format!("{ms} ms away"), round_trip * 200);
        let locks: usize = figures.shares.iter().sum();
        assert!(locks > 400, "two in a round trip: {figures:?}");
        assert!(figures.longest < round_trip * 20, "{figures:?}");
        assert!(figures.least() * 2 > figures.most(), "{figures:?}");
    }
}

/// Nine readers per writer, on one name and on ten, with random latencies. A forgotten request would wait for a
/// second. A lost queue position would cost several rounds of all others.
#[test]
fn pr4_readers_and_writers_share_names() {
    let mode = |request| {
        if request % 10 == 0 {
            Mode::Write
        } else {
            Mode::Read
        }
    };
    for (names, seed) in [(1, None), (1, Some(1)), (10, Some(1)), (10, Some(2))] {
        let mut load = Load::new(4).names(names, mode).jitter(seed).start();
        let figures = load.run(&format!("{names} names, readers"), SPAN);
        assert!(figures.longest < Duration::from_millis(100), "{figures:?}");
    }
}

/// One node cannot reach the voter that is the sequencer of all others.
#[test]
fn pr4_one_node_cannot_reach_the_sequencer() {
    for nodes in [3, 4, 5, 6, 8] {
        for seed in [None, Some(1), Some(2)] {
            let mut load = Load::new(nodes).jitter(seed).start();
            load.cut = Some((0, nodes - 1));
            let title = format!("{nodes} nodes, one cannot reach the sequencer");
            let figures = load.run(&title, SPAN);
            assert!(figures.per_second > 2000, "{title}: {figures:?}");
            assert!(
                figures.longest < Duration::from_millis(100),
                "{title}: {figures:?}"
            );
        }
    }
}

/// The controls: a request that waits, and of which its voter or its agent does not know any more.
#[test]
fn pr4_forgotten_requests_are_found() {
    for bug in [
        ProtocolBug::PositionsForgotten,
        ProtocolBug::HintsLost,
        ProtocolBug::NoRecalls,
    ] {
        let mut load = Load::new(4).jitter(Some(1)).bug(Some(bug)).start();
        load.cut = Some((0, 3));
        let figures = load.run(&format!("{bug:?}"), SPAN);
        assert!(figures.longest > Duration::from_millis(500), "{figures:?}");
    }
}
