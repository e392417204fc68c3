//! Which names have votes: the answers of voters, and the time within which they count.

use super::cluster::{Cluster, Lock, NEW};
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);

/// The names with votes at a voter that begin with `prefix`. `None` in quarantine.
fn voted(cluster: &Cluster, voter: usize, prefix: &str) -> Option<Vec<String>> {
    let names = cluster.voters[voter].voted_names(prefix.as_bytes())?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Some(names.map(|name| text(name.bytes())).collect())
}

/// Q15: a voter answers with the names of writers and readers that begin with the prefix, and not with those that are
/// only waited for.
#[test]
fn the_names_that_begin_with_a_prefix() {
    let mut cluster = Cluster::new(3);
    let mut locks: Vec<Lock> = ["k", "m", "m1", "m\u{7f}", "n"]
        .map(|name| cluster.locked(0, name))
        .into();
    locks.push(cluster.rlocked(1, "m2"));
    // A request waits for both names. One of them is not locked.
    let waiting = cluster.lock_many(1, &["m1", "m3"], Duration::MAX);
    let found = voted(&cluster, 2, "m").unwrap();
    assert_eq!(found, ["m", "m1", "m2", "m\u{7f}"]);
    assert_eq!(voted(&cluster, 2, "m1").unwrap(), ["m1"]);
    assert_eq!(voted(&cluster, 2, "l").unwrap(), [""; 0]);
    assert_eq!(voted(&cluster, 2, "").unwrap().len(), 6);
    for lock in &locks {
        cluster.unlock(lock);
    }
    cluster.unlock_last([cluster.granted(waiting)]);
    assert_eq!(voted(&cluster, 2, "").unwrap(), [""; 0]);
}

/// Q15: a voter that may have forgotten votes does not answer.
#[test]
fn a_voter_in_quarantine_does_not_answer() {
    let mut cluster = Cluster::new(3);
    let lock = cluster.locked(0, "x");
    cluster.isolate(2);
    cluster.restart_voter(2, NEW);
    cluster.run();
    assert_eq!(voted(&cluster, 2, ""), None);
    assert_eq!(voted(&cluster, 1, "").unwrap(), ["x"]);
    cluster.heal();
    cluster.pass(cluster.rules.voter_lease);
    assert_eq!(voted(&cluster, 2, "").unwrap(), ["x"]);
    cluster.unlock_last([lock]);
}

/// A lock changes its voters while these answer. Voter 2 has given its vote unasked, and does not hear the node any
/// more. The lock is held all the time.
///
/// ```text
///   question   voter 0 answers   voter 0 gives its vote   the vote of voter 2    voter 2 takes   voter 2 answers,
///   begins     without a vote                             counts no longer       it back         `after` the question
/// ```
///
/// Returns whether the lock is in an answer.
fn is_found(after: impl Fn(&Cluster) -> Duration) -> bool {
    let mut cluster = Cluster::new(3);
    let (wait, after) = (cluster.rules.wait, after(&cluster));
    let first = cluster.locked(0, "x");
    cluster.hold(1, 0);
    let next = cluster.lock(1, "x", Duration::MAX);
    cluster.unlock_async(&first);
    let lock = cluster.granted(next);
    cluster.cut(1, 2);
    // It counts for 0.8 `wait`.
    cluster.pass(wait * 4 / 5 - MILLISECOND);
    assert!(cluster.held(&lock));

    assert_eq!(voted(&cluster, 0, "x").unwrap(), [""; 0]);
    cluster.release_link(1, 0);
    assert_eq!(voted(&cluster, 0, "x").unwrap(), ["x"]);
    cluster.pass(after);
    assert!(cluster.held(&lock) && cluster.lost.is_empty());
    !voted(&cluster, 2, "x").unwrap().is_empty()
}

/// Q15: the last answer that counts has the lock. Without the limit of time, a later one has not.
#[test]
fn a_held_lock_is_in_an_answer_that_is_not_late() {
    assert!(is_found(|cluster| cluster.rules.answers()));
    assert!(!is_found(|cluster| cluster.rules.wait / 5 + MILLISECOND * 2));
    // For as long as voters keep a vote that was asked for.
    assert!(!is_found(
        |cluster| cluster.rules.voter_lease - cluster.rules.holder_lease
    ));
}
