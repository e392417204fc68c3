//! The searches of the sound protocol. None of them may find anything.

use crate::model::setting::{member, units, Budget, Disk, Order, Script, Setting, Step};
use quorum::message::Mode::{Read, Write};

const A: &[usize] = &[0];
const B: &[usize] = &[1];
const BOTH: &[usize] = &[0, 1];
const WRITE: Step = Step::Lock(Write, A);
const READ: Step = Step::Lock(Read, A);
const UNLOCK: Step = Step::Unlock;

/// All of them.
#[must_use]
pub fn all() -> Vec<Setting> {
    vec![
        all_orders(),
        two_writers(),
        reader_and_writer(),
        two_readers_and_a_writer(),
        crash(),
        crash_without_disk(),
        crash_with_slow_disk(),
        agent_crash(),
        late_frames(),
        duplicates(),
        lease_over(),
        sleepers(),
        cuts(),
        cold_start(),
        first_start(),
        all_fences_lost(),
        everybody_settles(),
        force_unlock(),
        force_unlock_and_crash(),
        many_names(),
        names_that_share_a_floor(),
        passed_on(),
        passed_on_while_a_voter_crashes(),
        passed_on_and_lost(),
        death_while_waiting(),
        four_members(),
        five_members(),
        storm(),
    ]
}

/// By its name.
#[must_use]
pub fn named(name: &str) -> Option<Setting> {
    all().into_iter().find(|setting| setting.name == name)
}

fn setting(
    name: &'static str,
    about: &'static str,
    scripts: &[&[Step]],
    budget: Budget,
) -> Setting {
    Setting {
        budget,
        ..Setting::new(name, about, 3, scripts)
    }
}

const NOTHING: Budget = Budget {
    time: 0,
    delays: 0,
    duplicates: 0,
    voter_crashes: 0,
    agent_crashes: 0,
    cuts: 0,
    lates: 0,
    defers: 2,
};

/// The smallest, and the only one in which nothing is left out but time.
fn all_orders() -> Setting {
    let about = "two members, a writer and a reader, frames in every order";
    let budget = Budget {
        duplicates: 1,
        ..NOTHING
    };
    let setting = Setting::new("all-orders", about, 2, &[&[WRITE, UNLOCK], &[READ]]);
    Setting {
        budget,
        order: Order::Any,
        ..setting
    }
}

fn two_writers() -> Setting {
    let scripts: &[&[Step]] = &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]];
    setting(
        "two-writers",
        "two writers, nothing goes wrong",
        scripts,
        Budget { time: 3, ..NOTHING },
    )
}

fn reader_and_writer() -> Setting {
    let scripts: &[&[Step]] = &[&[READ, UNLOCK], &[WRITE, Step::TryUnlock]];
    setting(
        "reader-writer",
        "a reader and a writer, nothing goes wrong",
        scripts,
        Budget { time: 3, ..NOTHING },
    )
}

fn two_readers_and_a_writer() -> Setting {
    let scripts: &[&[Step]] = &[&[READ, UNLOCK], &[WRITE, UNLOCK], &[READ, UNLOCK]];
    setting(
        "three-clients",
        "gates: a writer between two readers",
        scripts,
        Budget { time: 2, ..NOTHING },
    )
}

fn crash() -> Setting {
    let budget = Budget {
        time: 5,
        delays: 1,
        voter_crashes: 1,
        ..NOTHING
    };
    setting(
        "crash",
        "a voter crashes and restarts",
        &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        budget,
    )
}

fn crash_without_disk() -> Setting {
    let budget = Budget {
        time: 6,
        voter_crashes: 1,
        ..NOTHING
    };
    let setting = setting(
        "lost-fences",
        "a voter crashes and has lost its fences: it asks the others",
        &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        budget,
    );
    Setting {
        disk: Disk::None,
        ..setting
    }
}

fn crash_with_slow_disk() -> Setting {
    let budget = Budget {
        time: 5,
        voter_crashes: 1,
        ..NOTHING
    };
    let mut setting = setting(
        "slow-disk",
        "a voter crashes while it stores",
        &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        budget,
    );
    setting.rules.fence_block = 1;
    Setting {
        disk: Disk::Slow,
        ..setting
    }
}

fn agent_crash() -> Setting {
    let budget = Budget {
        time: 5,
        delays: 1,
        agent_crashes: 1,
        ..NOTHING
    };
    setting(
        "agent-crash",
        "an agent crashes with its clients",
        &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        budget,
    )
}

fn late_frames() -> Setting {
    let budget = Budget {
        time: 3,
        delays: 3,
        ..NOTHING
    };
    setting(
        "late-frames",
        "frames are late, or never come",
        &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        budget,
    )
}

fn duplicates() -> Setting {
    let budget = Budget {
        time: 2,
        delays: 1,
        duplicates: 2,
        ..NOTHING
    };
    setting(
        "duplicates",
        "frames come again",
        &[&[WRITE, UNLOCK], &[READ, UNLOCK]],
        budget,
    )
}

fn lease_over() -> Setting {
    let budget = Budget {
        time: 6,
        delays: 4,
        ..NOTHING
    };
    let mut setting = setting(
        "lease-over",
        "a lease is over at the voter while its agent says nothing, and then something late",
        &[&[WRITE], &[WRITE]],
        budget,
    );
    setting.rules.heartbeat = units(2);
    setting
}

fn sleepers() -> Setting {
    let budget = Budget {
        time: 5,
        lates: 1,
        ..NOTHING
    };
    setting(
        "sleepers",
        "a machine is not scheduled in time",
        &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        budget,
    )
}

fn cuts() -> Setting {
    let budget = Budget {
        time: 4,
        cuts: 2,
        ..NOTHING
    };
    setting(
        "cuts",
        "members are disconnected, and connected",
        &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        budget,
    )
}

fn cold_start() -> Setting {
    let budget = Budget { time: 5, ..NOTHING };
    let setting = setting(
        "cold-start",
        "all start",
        &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        budget,
    );
    Setting {
        cold: true,
        ..setting
    }
}

fn first_start() -> Setting {
    let budget = Budget { time: 1, ..NOTHING };
    let about = "two members that have no fences yet: they begin by their clocks";
    Setting {
        budget,
        cold: true,
        disk: Disk::None,
        floors: vec![None; 2],
        origins: vec![5, 6],
        ..Setting::new("first-start", about, 2, &[&[WRITE], &[]])
    }
}

fn all_fences_lost() -> Setting {
    let budget = Budget {
        voter_crashes: 2,
        defers: 0,
        ..NOTHING
    };
    let about = "two members, which lose their fences, perhaps at once";
    Setting {
        budget,
        disk: Disk::None,
        ..Setting::new("all-lost", about, 2, &[&[WRITE, UNLOCK], &[WRITE]])
    }
}

fn everybody_settles() -> Setting {
    let budget = Budget {
        time: 2,
        voter_crashes: 1,
        ..NOTHING
    };
    let about = "two members: a quarantine ends when both agents have told what they hold";
    Setting {
        budget,
        ..Setting::new("settled", about, 2, &[&[WRITE, UNLOCK], &[READ, UNLOCK]])
    }
}

fn force_unlock() -> Setting {
    let budget = Budget {
        time: 3,
        delays: 1,
        ..NOTHING
    };
    let scripts: &[&[Step]] = &[&[WRITE], &[Step::Await(0), Step::Revoke(0), WRITE, UNLOCK]];
    setting(
        "force-unlock",
        "a name is revoked, and some of it is lost",
        scripts,
        budget,
    )
}

fn force_unlock_and_crash() -> Setting {
    let budget = Budget {
        time: 5,
        voter_crashes: 1,
        ..NOTHING
    };
    let scripts: &[&[Step]] = &[&[WRITE], &[Step::Await(0), Step::Revoke(0), WRITE, UNLOCK]];
    setting(
        "force-unlock-crash",
        "a name is revoked, and a voter forgets it",
        scripts,
        budget,
    )
}

fn many_names() -> Setting {
    let budget = Budget { time: 2, ..NOTHING };
    let scripts: &[&[Step]] = &[
        &[Step::Lock(Write, BOTH), UNLOCK],
        &[Step::Lock(Write, BOTH), UNLOCK],
    ];
    Setting {
        names: 2,
        ..setting("lock-many", "two writers of two names", scripts, budget)
    }
}

fn names_that_share_a_floor() -> Setting {
    let budget = Budget {
        time: 2,
        delays: 1,
        ..NOTHING
    };
    let scripts: &[&[Step]] = &[
        &[Step::Lock(Write, A), UNLOCK, Step::Lock(Write, B), UNLOCK],
        &[Step::Lock(Write, BOTH), UNLOCK],
    ];
    Setting {
        names: 2,
        ..setting(
            "shared-floor",
            "forgotten names share a floor of fences",
            scripts,
            budget,
        )
    }
}

/// Two of one node that come while another has the lock. They are asked for together.
fn two_of_one_node(name: &'static str, about: &'static str, budget: Budget) -> Setting {
    let scripts: &[&[Step]] = &[
        &[Step::Await(1), WRITE, UNLOCK],
        &[WRITE, UNLOCK, WRITE, UNLOCK],
    ];
    let mut setting = setting(name, about, scripts, budget);
    setting.scripts.push(Script {
        at: 0,
        steps: vec![Step::Await(1), WRITE, Step::TryUnlock],
    });
    setting
}

fn passed_on() -> Setting {
    let about = "a lock is passed on within a node, and others want it";
    two_of_one_node("passed-on", about, Budget { time: 2, ..NOTHING })
}

fn passed_on_while_a_voter_crashes() -> Setting {
    let budget = Budget {
        time: 5,
        voter_crashes: 1,
        ..NOTHING
    };
    let about = "a lock is passed on within a node, and a voter forgets it";
    two_of_one_node("passed-on-crash", about, budget)
}

fn passed_on_and_lost() -> Setting {
    let budget = Budget {
        time: 4,
        delays: 2,
        agent_crashes: 1,
        ..NOTHING
    };
    let about = "a lock is passed on within a node, which may die of it, and frames are late";
    two_of_one_node("passed-on-lost", about, budget)
}

fn death_while_waiting() -> Setting {
    let budget = Budget {
        time: 3,
        delays: 1,
        ..NOTHING
    };
    let scripts: &[&[Step]] = &[
        &[WRITE, Step::Die],
        &[Step::LockWithin(Write, A, 2), UNLOCK],
    ];
    setting(
        "death",
        "a client dies, waiting or holding; another gives up",
        scripts,
        budget,
    )
}

fn four_members() -> Setting {
    let budget = Budget {
        time: 1,
        voter_crashes: 1,
        ..NOTHING
    };
    Setting {
        budget,
        ..Setting::new(
            "four",
            "four members",
            4,
            &[&[WRITE, UNLOCK], &[READ, UNLOCK]],
        )
    }
}

fn five_members() -> Setting {
    let budget = Budget { time: 1, ..NOTHING };
    Setting {
        budget,
        ..Setting::new(
            "five",
            "five members",
            5,
            &[&[WRITE, UNLOCK], &[WRITE, UNLOCK]],
        )
    }
}

/// For walks: everything at once.
fn storm() -> Setting {
    let scripts: &[&[Step]] = &[
        &[
            WRITE,
            UNLOCK,
            READ,
            UNLOCK,
            Step::Lock(Write, BOTH),
            Step::TryUnlock,
            WRITE,
            Step::Die,
        ],
        &[
            READ,
            UNLOCK,
            Step::Lock(Read, BOTH),
            UNLOCK,
            Step::Revoke(0),
            WRITE,
            UNLOCK,
        ],
        &[
            Step::Lock(Write, B),
            UNLOCK,
            Step::LockWithin(Write, BOTH, 5),
            UNLOCK,
            WRITE,
            Step::TryUnlock,
        ],
    ];
    let about = "for walks: five members, three clients, two names, and all that can go wrong";
    let mut setting = Setting::new("storm", about, 5, scripts);
    setting.names = 2;
    setting.budget = Budget {
        time: 100,
        delays: 30,
        duplicates: 5,
        voter_crashes: 3,
        agent_crashes: 1,
        cuts: 4,
        lates: 3,
        defers: 0,
    };
    setting.scripts.push(Script {
        at: 0,
        steps: vec![READ, UNLOCK, WRITE, UNLOCK],
    });
    setting.crashing = (0..5).map(member).collect();
    setting.quiescence_every = 256;
    setting
}
