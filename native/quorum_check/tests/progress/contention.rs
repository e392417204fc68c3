//! PR4: contention. All nodes request the same names all the time, and none waits for long.

use crate::load::Load;
use quorum::message::Mode;
use quorum::protocol_bug::ProtocolBug;
use quorum::rules::Rules;
use std::time::Duration;

const SPAN: Duration = Duration::from_secs(6);

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
        // One run of each other node.
        let runs = Rules::default().run * (nodes - 1);
        assert!(figures.most_behind <= runs, "{title}: {figures:?}");
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

/// Nine readers per writer.
fn mostly_readers(request: u64) -> Mode {
    match request % 10 {
        0 => Mode::Write,
        _ => Mode::Read,
    }
}

/// On one name and on ten, with random latencies. A forgotten request would wait for a second. A lost queue position
/// would cost several rounds of all others. No frame is lost, so voters and agents always agree on the votes.
#[test]
fn pr4_readers_and_writers_share_names() {
    for (names, seed) in [(1, None), (1, Some(1)), (10, Some(1)), (10, Some(2))] {
        let load = Load::new(4).names(names, mostly_readers).jitter(seed);
        let figures = load.start().run(&format!("{names} names, readers"), SPAN);
        assert!(figures.longest < Duration::from_millis(100), "{figures:?}");
        assert_eq!(figures.repairs, 0, "{figures:?}");
    }
}

/// One node cannot reach one voter.
#[test]
fn pr4_one_node_cannot_reach_a_voter() {
    let writers: fn(u64) -> Mode = |_| Mode::Write;
    for nodes in [3, 4, 5, 6, 8] {
        for (names, mode, seed) in [
            (1, writers, None),
            (1, writers, Some(1)),
            (10, mostly_readers, Some(1)),
            (10, mostly_readers, Some(2)),
        ] {
            let mut load = Load::new(nodes).names(names, mode).jitter(seed).start();
            load.cut = Some((0, nodes - 1));
            let title = format!("{nodes} nodes, {names} names, one cannot reach a voter");
            let figures = load.run(&title, SPAN / 3);
            assert!(figures.per_second > 1500, "{title}: {figures:?}");
            assert!(
                figures.longest < Duration::from_millis(150),
                "{title}: {figures:?}"
            );
        }
    }
}

/// One node is disconnected from one voter, again and again.
#[test]
fn pr4_one_connection_flaps() {
    for nodes in [3, 5] {
        let control = Load::new(nodes)
            .start()
            .run(&format!("{nodes} nodes"), SPAN);
        let mut load = Load::new(nodes).start();
        load.flapping = Some((0, nodes - 1));
        let figures = load.run(&format!("{nodes} nodes, one flaps"), SPAN);
        assert!(
            figures.per_second * 10 > control.per_second * 8,
            "{figures:?}"
        );
        assert!(figures.longest < Duration::from_millis(200), "{figures:?}");
    }
}

/// The controls: a request that waits, and of which its voter or its agent does not know any more.
#[test]
fn pr4_forgotten_requests_are_found() {
    for bug in [
        ProtocolBug::PositionsForgotten,
        ProtocolBug::GivenLost,
        ProtocolBug::NoRecalls,
    ] {
        let mut load = Load::new(4).jitter(Some(1)).bug(Some(bug)).start();
        load.cut = Some((0, 3));
        let figures = load.run(&format!("{bug:?}"), SPAN);
        assert!(figures.longest > Duration::from_millis(500), "{figures:?}");
    }
}
