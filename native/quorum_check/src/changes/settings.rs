//! The settings, by name.

use super::setting::Step::*;
use super::setting::{Nodes, Setting, Step};

/// Client 0: holds the lock until client 1 has changed the members.
const HOLD: &[Step] = &[Lock, Finished(1), Unlock];
/// Locks when client 1 begins to change the members.
const RIVAL: &[Step] = &[Await(1, 3), Lock, Unlock];
/// Locks when client 0 has unlocked it.
const LATER: &[Step] = &[Finished(0), Lock, Unlock];

pub fn all() -> Vec<Setting> {
    let three = |name, nodes| Setting::new(name, nodes, &[0, 1, 2]);
    let one = |name| Setting::new(name, 3, &[0]);
    vec![
        // The only member is replaced. The holder is a client of both views.
        one("close")
            .client(2, HOLD)
            .client(0, &begin(&[Change(&[1])]))
            .client(1, RIVAL),
        // The holder is on the member that leaves.
        one("close-member")
            .client(0, HOLD)
            .client(0, &begin(&[Change(&[1])]))
            .client(1, RIVAL),
        // The new member changes the members back at once, and again.
        one("close-quick")
            .client(2, HOLD)
            .client(0, &begin(&[Change(&[1]), Finished(3)]))
            .client(1, RIVAL)
            .client(1, &[Await(1, 4), Change(&[0]), Change(&[1])]),
        // The member that leaves dies when the change is done.
        one("close-dies")
            .client(2, &[Lock, Finished(1), Pause(1500), Unlock])
            .client(0, &begin(&[Change(&[1]), Die]))
            .client(1, LATER),
        Setting::new("grow", 4, &[0])
            .client(3, HOLD)
            .client(0, &begin(&[Change(&[0, 1, 2])]))
            .client(1, RIVAL),
        three("shrink", 4)
            .client(3, HOLD)
            .client(0, &begin(&[Change(&[0])]))
            .client(1, RIVAL),
        three("replace", 4)
            .client(1, HOLD)
            .client(0, &begin(&[Change(&[0, 1, 3])]))
            .client(3, RIVAL),
        three("replace-twice", 4)
            .client(1, HOLD)
            .client(0, &begin(&[Change(&[0, 1, 3]), Change(&[0, 1, 2])]))
            .client(3, RIVAL),
        // The two members that leave die when the change is done.
        three("replace-two", 5)
            .client(3, HOLD)
            .client(2, &begin(&[Change(&[2, 3, 4]), Pause(1500)]))
            .client(0, &[Await(1, 4), Die])
            .client(1, &[Await(1, 4), Die])
            .client(4, LATER),
        // Client 3 unlocks when the change begins, and the waiting client 0 gets unasked votes.
        three("unasked", 4)
            .client(1, &[Await(3, 1), Lock, Finished(1), Unlock])
            .client(0, &[Await(3, 1), Pause(510), Begin, Change(&[0, 1, 3])])
            .client(3, &[Await(0, 2), Lock, Unlock])
            .client(2, &[Lock, Await(1, 3), Unlock]),
        // Two nodes change the members at the same time.
        three("proposers", 4)
            .client(1, HOLD)
            .client(0, &begin(&[Change(&[0, 1, 3])]))
            .client(3, RIVAL)
            .client(2, &[Await(1, 3), Change(&[1, 2, 3])]),
        reset("reset", 4, &[0]),
        reset("reset-two", 5, &[0, 4]),
    ]
}

pub fn named(name: &str) -> Setting {
    let found = all().into_iter().find(|setting| setting.name == name);
    found.expect("a setting of this name")
}

/// The steps of client 1, when client 0 has held its lock for half a second: until then, its first votes are
/// provisional.
fn begin(steps: &[Step]) -> Vec<Step> {
    [&[Await(0, 1), Pause(510), Begin], steps].concat()
}

/// Two of three members die, and the last one begins a new cluster of this list.
fn reset(name: &'static str, nodes: usize, list: Nodes) -> Setting {
    Setting::new(name, nodes, &[0, 1, 2])
        .client(3, &[Lock, Pause(4000), Unlock])
        .client(0, &begin(&[Finished(3), Finished(4), Reset(list)]))
        .client(list[list.len() - 1], &[Await(1, 5), Lock, Unlock])
        .client(1, &[Await(1, 3), Die])
        .client(2, &[Await(1, 3), Die])
}
