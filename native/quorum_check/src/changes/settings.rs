//! The settings, by name.

use super::setting::Step::*;
use super::setting::{Setting, Step};

/// Holds the name 0 until client 1 has changed the members.
const HOLD: &[Step] = &[Lock(0), Finished(1), Unlock];
/// As client 1, replaces the last member when client 0 has held its lock for half a second. The first votes are
/// confirmed then.
const REPLACE: &[Step] = &[Await(0, 1), Pause(510), Begin, Change(&[0, 1, 3])];
const CLOSE: &[Step] = &[Await(0, 1), Pause(510), Begin, Change(&[1])];
/// Locks the name when client 1 begins to change the members.
const RIVAL: &[Step] = &[Await(1, 3), Lock(0), Unlock];
/// Locks the name when it is free again.
const LATER: &[Step] = &[Finished(0), Lock(0), Unlock];
const DIE: &[Step] = &[Await(1, 4), Die];

pub fn all() -> Vec<Setting> {
    let three = |name, nodes| Setting::new(name, nodes, &[0, 1, 2]);
    let one = |name| Setting::new(name, 3, &[0]);
    vec![
        // The only member is replaced. The holder is a client of both views.
        one("close")
            .client(2, HOLD)
            .client(0, CLOSE)
            .client(1, RIVAL),
        // The holder is on the member that leaves.
        one("close-member")
            .client(0, HOLD)
            .client(0, CLOSE)
            .client(1, RIVAL),
        // The new member gives back at once, and takes over once more.
        one("close-quick")
            .client(2, HOLD)
            .client(
                0,
                &[Await(0, 1), Pause(510), Begin, Change(&[1]), Finished(3)],
            )
            .client(1, RIVAL)
            .client(1, &[Await(1, 4), Change(&[0]), Change(&[1])]),
        // The member that leaves dies when the change is done.
        one("close-dies")
            .client(2, &[Lock(0), Finished(1), Pause(1500), Unlock])
            .client(0, &[Await(0, 1), Pause(510), Begin, Change(&[1]), Die])
            .client(1, LATER),
        Setting::new("grow", 4, &[0])
            .client(3, HOLD)
            .client(0, &[Await(0, 1), Pause(510), Begin, Change(&[0, 1, 2])])
            .client(1, RIVAL),
        three("shrink", 4)
            .client(3, HOLD)
            .client(0, &[Await(0, 1), Pause(510), Begin, Change(&[0])])
            .client(1, RIVAL),
        three("replace", 4)
            .client(1, HOLD)
            .client(0, REPLACE)
            .client(3, RIVAL),
        // Beside it, the agent of the leaving member holds another name.
        three("replace-other", 4)
            .client(1, HOLD)
            .client(0, REPLACE)
            .client(3, RIVAL)
            .client(2, &[Lock(1), Finished(1), Unlock]),
        // And back.
        three("replace-twice", 4)
            .client(1, HOLD)
            .client(
                0,
                &[
                    Await(0, 1),
                    Pause(510),
                    Begin,
                    Change(&[0, 1, 3]),
                    Change(&[0, 1, 2]),
                ],
            )
            .client(3, RIVAL),
        // Two of three members are replaced, and die when the change is done.
        three("replace-two", 5)
            .client(3, HOLD)
            .client(
                2,
                &[
                    Await(0, 1),
                    Pause(510),
                    Begin,
                    Change(&[2, 3, 4]),
                    Pause(1500),
                ],
            )
            .client(0, DIE)
            .client(1, DIE)
            .client(4, LATER),
        // The lock passes by unasked votes to the holder when the change begins.
        three("unasked", 4)
            .client(1, &[Await(3, 1), Lock(0), Finished(1), Unlock])
            .client(0, &[Await(3, 1), Pause(510), Begin, Change(&[0, 1, 3])])
            .client(3, &[Await(0, 2), Lock(0), Unlock])
            .client(2, &[Lock(0), Await(1, 3), Unlock]),
        // Two nodes change the members at the same time.
        three("proposers", 4)
            .client(1, HOLD)
            .client(0, REPLACE)
            .client(3, RIVAL)
            .client(2, &[Await(1, 3), Change(&[1, 2, 3])]),
        // Two of three members die, and the last one begins a new cluster.
        three("reset", 4)
            .client(3, &[Lock(0), Pause(4000), Unlock])
            .client(
                0,
                &[
                    Await(0, 1),
                    Pause(510),
                    Begin,
                    Finished(3),
                    Finished(4),
                    Reset(&[0]),
                ],
            )
            .client(0, &[Await(1, 5), Lock(0), Unlock])
            .client(1, &[Await(1, 3), Die])
            .client(2, &[Await(1, 3), Die]),
        // The same, of two nodes.
        three("reset-two", 5)
            .client(3, &[Lock(0), Pause(4000), Unlock])
            .client(
                0,
                &[
                    Await(0, 1),
                    Pause(510),
                    Begin,
                    Finished(3),
                    Finished(4),
                    Reset(&[0, 4]),
                ],
            )
            .client(4, &[Await(1, 5), Lock(0), Unlock])
            .client(1, &[Await(1, 3), Die])
            .client(2, &[Await(1, 3), Die]),
    ]
}

pub fn named(name: &str) -> Setting {
    let found = all().into_iter().find(|setting| setting.name == name);
    found.expect("a setting of this name")
}
