//! Frames at their bounds: what happens often at once is said in several.

use crate::cluster::{Cluster, NEW, SECOND};
use quorum::frame::{MAX_HINTS, MAX_OPS};
use quorum::rules::Rules;

/// A node that dies frees more names than a notice can hint at.
#[test]
fn hints_fit_their_notices() {
    let mut cluster = Cluster::new(3);
    let names: Vec<_> = (0..=MAX_HINTS).map(|i| i.to_string()).collect();
    for name in &names {
        cluster.locked(0, name);
    }
    let waiting: Vec<_> = names
        .iter()
        .map(|name| cluster.lock(1, name, SECOND * 60))
        .collect();
    cluster.isolate(0);
    cluster.pass(SECOND * 20);
    assert!(waiting.iter().all(|request| cluster.is_granted(*request)));
}

/// A batch that is full of asserted locks has a place for what settles them.
#[test]
fn a_full_batch_settles() {
    let rules = Rules {
        batch: MAX_OPS - 1,
        ..Rules::default()
    };
    let mut cluster = Cluster::with(3, rules, NEW);
    for i in 1..MAX_OPS {
        cluster.locked(0, &i.to_string());
    }
    cluster.restart_voter(1, NEW);
    cluster.pass(SECOND);
    // It votes before its quarantine is over: without it there is no quorum.
    cluster.isolate(2);
    cluster.locked(0, "y");
}
