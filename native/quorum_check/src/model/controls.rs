//! The counter-examples that shaped the protocol: each rule that answers one is taken away, and the search has to
//! find the history again. A search that does not is too weak to say anything about the sound protocol.

use crate::model::setting::{member, units, Budget, Disk, Setting, Step};
use quorum::message::Mode::{Read, Write};
use quorum::protocol_bug::ProtocolBug;

/// A protocol that is broken, and the promise that it breaks.
#[derive(Clone, Debug)]
pub struct Control {
    /// Which promise, by its label.
    pub promise: &'static str,
    /// Where.
    pub setting: Setting,
}

const A: &[usize] = &[0];
const WRITE: Step = Step::Lock(Write, A);
const READ: Step = Step::Lock(Read, A);

/// All of them.
#[must_use]
pub fn all() -> Vec<Control> {
    vec![
        a1(),
        a2(),
        b1(),
        d1(),
        e_quarantine_too_short(),
        e_voter_lease_too_short(),
        f1(),
        f2(),
        f3(),
        f4(),
        same_generation(),
        lease_from_answer(),
        revoked_forgotten(),
        unlock_keeps_held(),
    ]
}

fn breaks(promise: &'static str, setting: Setting) -> Control {
    Control { promise, setting }
}

/// The first client locks; the other one begins when it holds the lock, or is through.
fn two_clients(
    name: &'static str,
    about: &'static str,
    first: Step,
    second: Step,
    budget: Budget,
) -> Setting {
    let scripts: &[&[Step]] = &[&[first], &[Step::Await(0), second]];
    Setting {
        budget,
        quiescence_every: 0,
        disk: Disk::None,
        ..Setting::new(name, about, 3, scripts)
    }
}

/// dsync's own: of 8 nodes 3 are down, a lock is had from the other 5, 2 of these restart, and so do the 3.
fn a1() -> Control {
    let about = "dsync's own: 8 members, 3 of them down at first, 2 restarts, no quarantine";
    let budget = Budget {
        voter_crashes: 2,
        cuts: 2,
        ..Budget::default()
    };
    let setting = two_clients("A1", about, WRITE, WRITE, budget).broken(ProtocolBug::NoQuarantine);
    let mut setting = Setting {
        members: 8,
        floors: vec![Some(0); 8],
        origins: vec![0; 8],
        disaster: Some(0),
        ..setting
    };
    setting.scripts[1].at = 3;
    setting.agents = [0, 3].into_iter().map(member).collect();
    setting.apart = vec![(0, 5), (0, 6), (0, 7)];
    setting.down = [5, 6, 7].into_iter().map(member).collect();
    setting.crashing = [3, 4].into_iter().map(member).collect();
    breaks("Q1", setting)
}

/// With an odd number one restart is enough: two quorums have one voter in common. The holder is cut off from that
/// one, and knows nothing.
fn a2() -> Control {
    let about = "3 members, 1 restart, no quarantine";
    let budget = Budget {
        voter_crashes: 1,
        cuts: 1,
        ..Budget::default()
    };
    let setting = two_clients("A2", about, WRITE, WRITE, budget).broken(ProtocolBug::NoQuarantine);
    breaks(
        "Q1",
        Setting {
            apart: vec![(0, 2)],
            ..setting
        },
    )
}

/// All agents settle, so the quarantine ends; one of them goes on counting the vote that is forgotten.
fn b1() -> Control {
    let about = "3 members, 1 restart, votes of a voter's earlier life count";
    let budget = Budget {
        voter_crashes: 1,
        cuts: 1,
        ..Budget::default()
    };
    let setting =
        two_clients("B1", about, WRITE, WRITE, budget).broken(ProtocolBug::ForgottenVotesCount);
    breaks(
        "Q1",
        Setting {
            agents: (0..3).map(member).collect(),
            apart: vec![(0, 2)],
            ..setting
        },
    )
}

/// A quorum of readers that is half of the members has but one member in common with one of writers. So one restart
/// breaks what one restart does not break where readers take more than half ([`more_than_half`]).
fn d1() -> Control {
    let about = "4 members, readers take 2 of them, 1 restart, no quarantine";
    let setting = one_restart_of_four("D1", about);
    breaks("Q1", setting.broken(ProtocolBug::ReadHalf))
}

/// The reader is not connected to one of them. When it holds its lock, one voter restarts, and the reader does not
/// know.
fn one_restart_of_four(name: &'static str, about: &'static str) -> Setting {
    let budget = Budget {
        voter_crashes: 1,
        delays: 1,
        cuts: 1,
        ..Budget::default()
    };
    let mut setting =
        two_clients(name, about, READ, WRITE, budget).broken(ProtocolBug::NoQuarantine);
    setting.rules.heartbeat = units(9);
    Setting {
        members: 4,
        floors: vec![Some(0); 4],
        origins: vec![0; 4],
        apart: vec![(0, 3)],
        disaster: Some(0),
        crashing: [1].into_iter().map(member).collect(),
        ..setting
    }
}

fn e_quarantine_too_short() -> Control {
    let about = "3 members, 1 restart, a quarantine shorter than the holder's lease";
    let budget = Budget {
        voter_crashes: 1,
        time: 1,
        cuts: 1,
        ..Budget::default()
    };
    let mut setting = two_clients("E1", about, WRITE, WRITE, budget);
    setting.apart = vec![(0, 2)];
    setting.rules.quarantine = units(1);
    setting.rules.heartbeat = units(9);
    breaks("Q1", setting)
}

fn e_voter_lease_too_short() -> Control {
    let about = "3 members, a voter keeps votes shorter than the holder counts on them";
    let budget = Budget {
        time: 2,
        cuts: 1,
        ..Budget::default()
    };
    let mut setting = two_clients("E2", about, WRITE, WRITE, budget);
    setting.rules.voter_lease = units(2);
    setting.rules.quarantine = units(2);
    setting.apart = vec![(0, 2)];
    breaks("Q1", setting)
}

/// The first holder is gone without a word, and its fence with it: the second one gets the same.
fn f1() -> Control {
    let about = "3 members, the fence is the highest one heard, plus one, and nobody is told";
    let budget = Budget {
        time: 6,
        agent_crashes: 1,
        ..Budget::default()
    };
    let mut setting =
        two_clients("F1", about, WRITE, WRITE, budget).broken(ProtocolBug::FenceNotWritten);
    setting.rules.heartbeat = units(9);
    setting.scripts[1].steps = vec![Step::Later(4), WRITE];
    breaks("Q5", setting)
}

/// The voters know different fences at first. The first holder has the highest of them; before a quorum knows it the
/// holder is gone, and the second one finds a quorum that does not.
fn f2() -> Control {
    let about = "3 members, the fence is told, and its being written is not waited for";
    let budget = Budget {
        time: 6,
        delays: 1,
        agent_crashes: 1,
        ..Budget::default()
    };
    let mut setting =
        two_clients("F2", about, WRITE, WRITE, budget).broken(ProtocolBug::FenceNotAwaited);
    setting.rules.heartbeat = units(9);
    setting.floors = vec![Some(1), Some(0), Some(0)];
    setting.apart = vec![(0, 2), (1, 0)];
    setting.scripts[1].steps = vec![Step::Later(4), WRITE];
    setting.holding_back = false;
    breaks("Q5", setting)
}

/// The first holder has given its lock back; all voters restart, and begin where they began.
fn f3() -> Control {
    let about = "2 members, all fences are lost, and clocks show what they showed before";
    let mut setting = Setting::new("F3", about, 2, &[&[WRITE, Step::Unlock], &[]]);
    setting.scripts[1].steps = vec![Step::Await(0), WRITE];
    setting.budget = Budget {
        voter_crashes: 2,
        ..Budget::default()
    };
    setting.quiescence_every = 0;
    setting.disk = Disk::None;
    setting.wall_stands = true;
    breaks("Q5", setting)
}

/// Two of one node wait while another has the lock. When their turn comes each gets the next number, and the voters
/// were asked for one.
fn f4() -> Control {
    let about = "3 members, a lock that is passed on within a node has a fence that was not taken";
    let scripts: &[&[Step]] = &[
        &[Step::Await(1), WRITE, Step::Unlock],
        &[WRITE, Step::Unlock, WRITE],
    ];
    let mut setting = Setting::new("F4", about, 3, scripts).broken(ProtocolBug::FencesNotTaken);
    setting.scripts.push(setting.scripts[0].clone());
    setting.quiescence_every = 0;
    breaks("Q5", setting)
}

/// A vote that is not there any more counts on. (It takes a second voter of this kind, and more time, until somebody
/// else holds the lock.)
fn same_generation() -> Control {
    let about = "3 members, a voter drops votes and does not say so";
    let mut setting =
        Setting::new("SameGeneration", about, 3, &[&[WRITE]]).broken(ProtocolBug::SameGeneration);
    setting.budget = Budget {
        time: 4,
        delays: 3,
        ..Budget::default()
    };
    setting.rules.heartbeat = units(2);
    setting.quiescence_every = 0;
    breaks("Q2", setting)
}

fn lease_from_answer() -> Control {
    let about = "3 members, the lease is counted from when the answer came";
    let budget = Budget {
        time: 5,
        delays: 2,
        ..Budget::default()
    };
    let mut setting = two_clients("LeaseFromAnswer", about, WRITE, WRITE, budget)
        .broken(ProtocolBug::LeaseFromAnswer);
    setting.rules.heartbeat = units(9);
    setting.holding_back = false;
    setting.rules.attempt = units(3);
    setting.rules.wait = units(5);
    breaks("Q1", setting)
}

fn revoked_forgotten() -> Control {
    let about = "3 members, a revoked lock is forgotten before its holder knows";
    let mut setting = two_clients(
        "RevokedForgotten",
        about,
        WRITE,
        WRITE,
        Budget {
            defers: 2,
            ..Budget::default()
        },
    );
    setting.scripts[1].steps = vec![Step::Await(0), Step::Revoke(0), WRITE];
    breaks("Q1", setting.broken(ProtocolBug::RevokedForgotten))
}

fn unlock_keeps_held() -> Control {
    let about = "3 members, a lock that was given back is still found held";
    let mut setting = two_clients("UnlockKeepsHeld", about, WRITE, WRITE, Budget::default());
    setting.scripts[0].steps.push(Step::TryUnlock);
    breaks("Q8", setting.broken(ProtocolBug::UnlockKeepsHeld))
}

/// As D1, but readers take more than half: then one restart, even without quarantine, breaks nothing.
#[must_use]
pub fn more_than_half() -> Setting {
    let about = "4 members, readers take 3 of them, 1 restart, no quarantine";
    one_restart_of_four("D1-more-than-half", about)
}

/// What is taken away here does no harm, as the protocol says: batches in any order, and the same one again.
#[must_use]
pub fn harmless() -> Setting {
    let about = "3 members, voters take batches in any order, and again";
    let scripts: &[&[Step]] = &[
        &[WRITE, Step::Unlock, READ, Step::Unlock],
        &[WRITE, Step::Unlock],
    ];
    let mut setting = Setting::new("AnyOrder", about, 3, scripts).broken(ProtocolBug::AnyOrder);
    setting.budget = Budget {
        time: 2,
        delays: 2,
        duplicates: 2,
        ..Budget::default()
    };
    setting
}
