//! Frames at their limits: larger contents are split into several frames.

use super::cluster::{rules, Cluster, NEW, SECOND};
use quorum::frame::{MAX_NOTICE, MAX_OPS};

/// A dead node frees more names than one notice has votes for.
#[test]
fn votes_are_split_into_notices() {
    let mut cluster = Cluster::new(3);
    let names: Vec<_> = (0..=MAX_NOTICE).map(|i| i.to_string()).collect();
    for name in &names {
        cluster.locked(0, name);
    }
    let wait = |name: &String| cluster.lock(1, name, SECOND * 60);
    let waiting: Vec<_> = names.iter().map(wait).collect();
    cluster.isolate(0);
    cluster.pass(SECOND * 20);
    assert!(waiting.iter().all(|request| cluster.is_granted(*request)));
}

/// A batch full of asserted locks still has space for the operation that settles the session.
#[test]
fn a_full_batch_settles_the_session() {
    let mut cluster = Cluster::with(3, rules(|rules| rules.batch = MAX_OPS - 1), NEW);
    for i in 1..MAX_OPS {
        cluster.locked(0, &i.to_string());
    }
    cluster.restart_voter(1, NEW);
    cluster.pass(SECOND);
    // It votes before the end of its quarantine: without its vote there is no quorum.
    cluster.isolate(2);
    cluster.locked(0, "y");
}
