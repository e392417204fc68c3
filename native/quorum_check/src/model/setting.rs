//! Settings: the members, clients and faults of one search, and the builder with which a row of a table states its
//! deviations from the default.

use quorum::members::{Member, MemberSet, Members, Node};
use quorum::message::{Mode, Name};
use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use quorum::rules::Rules;
use std::time::Duration;

/// One step of a client. Names are given by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Locks all these names and waits for the answer.
    Lock(Mode, &'static [usize]),
    /// As `Lock`, with a timeout in units of time. 0 is a try.
    LockWithin(Mode, &'static [usize], u64),
    /// Unlocks and waits for the answer. Skipped if nothing is held.
    Unlock,
    UnlockAsync,
    /// Dies while it waits or holds. The VM informs its agent.
    Die,
    Revoke(usize),
    /// A fault that happens now, and is not in the budget. For directed searches: the agent of a node is informed that
    /// it is disconnected from a voter.
    Disconnect(usize, usize),
    /// The same, and it is connected.
    Connect(usize, usize),
    /// The same: a voter crashes and restarts, or one that is down at first starts.
    Crash(usize),
    /// Waits until that client holds a lock or is done.
    Await(usize),
    /// Waits until this many units of time have passed since the start.
    Later(u8),
}

/// A client: the place of its node, and its steps. A lock that is held after the last step stays held.
#[derive(Clone, Debug)]
pub struct Script {
    pub at: usize,
    pub steps: Vec<Step>,
}

/// How often each fault may still happen in one history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub time: u8,
    /// Frames that are still in flight after the unit in which they were sent.
    pub delays: u8,
    pub duplicates: u8,
    /// A voter loses all that is not on disk, and restarts.
    pub voter_crashes: u8,
    /// Of these crashes, those after which the voter finds an old state file.
    pub old_disks: u8,
    /// An agent and its clients die, and a new agent starts.
    pub agent_crashes: u8,
    pub disconnects: u8,
    /// A voter is informed that an agent's node is disconnected. The agent is informed later, and again when it is
    /// connected.
    pub downs: u8,
    /// A machine is not scheduled at its deadline, for any length of time.
    pub stalls: u8,
    /// The next frame moves to the end of the queue: see [`Order::Sent`].
    pub reorders: u8,
    /// Questions to all voters which names have votes. No fault.
    pub questions: u8,
}

impl Budget {
    pub const UNLIMITED: u8 = u8::MAX;
}

/// How a voter's disk stores its marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disk {
    /// A write completes immediately.
    #[default]
    Fast,
    /// A write completes in an action of its own, and a crash may come first.
    Slow,
}

/// Which of the frames in flight may arrive next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    Any,
    /// The one that was sent first. [`Budget::reorders`] times, that frame may move to the end of the queue instead.
    /// Delayed frames may arrive at any time. This leaves out most histories, and those that remain are longer: nearly
    /// all known errors of such systems need only a few frames out of order (Emmi, Qadeer, Rakamaric, "Delay-bounded
    /// scheduling", 2011).
    #[default]
    Sent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    #[default]
    Holds,
    Violates(&'static str),
}

#[derive(Clone, Debug, Default)]
pub struct Setting {
    pub name: &'static str,
    pub about: &'static str,
    pub expect: Expect,
    pub members: usize,
    /// The nodes that have an agent. Other members have only a voter. The nodes after the members are guests.
    pub agents: MemberSet,
    pub scripts: Vec<Script>,
    pub names: usize,
    /// The time constants, in units of one nanosecond.
    pub rules: Rules,
    /// The rules of voters that restart, and of the agents of `renewed`. Machines with different leases ignore each
    /// other.
    pub new_rules: Option<Rules>,
    pub renewed: MemberSet,
    /// The quarantine of each start of a voter. `None`: the longest lease of its lives.
    pub quarantine: Option<Duration>,
    /// Within which time answers to questions count. `None`: [`Rules::answers`].
    pub answers: Option<Duration>,
    /// Whether voters in quarantine answer, too.
    pub quarantined_answers: bool,
    pub bugs: ProtocolBugs,
    pub budget: Budget,
    pub crashing: MemberSet,
    /// The voters that do not run until a step starts them.
    pub down: MemberSet,
    /// The only property that the search checks in actions and stops at. None means all properties.
    pub only: Option<&'static str>,
    /// Whether a single frame may be delayed. If not, a frame is delayed only because time passes while it is in
    /// flight.
    pub single_delays: bool,
    /// Pairs (agent, voter) that are never connected.
    pub apart: Vec<(usize, usize)>,
    /// The marks that the voters have stored at first.
    pub marks: Vec<u64>,
    pub disk: Disk,
    /// Whether a write of guests completes in an action of its own, as with [`Disk::Slow`].
    pub slow_guests: bool,
    pub order: Order,
    /// Whether agents and voters do not know each other at first.
    pub cold: bool,
    /// One in this many states is checked for what follows it in quiescence. 0 means none.
    pub quiescence_every: u64,
}

pub const fn units(count: u64) -> Duration {
    Duration::from_nanos(count)
}

/// Small constants that `Rules::check` accepts.
const SMALL: Rules = Rules {
    heartbeat: units(1),
    holder_lease: units(3),
    voter_lease: units(4),
    attempt: units(1),
    // A third of it is a pause.
    wait: units(3),
    patience: units(1),
    recall: units(1),
    run: 3,
    run_time: units(2),
    at_risk: units(1),
    fence_block: 8,
    floors: 1,
    pending_unlocks: 4,
    batch: 8,
};

/// Setters that assign their argument to a field, a slice of items to a list, places to a set of members, or a number
/// to a field of the budget.
macro_rules! setters {
    ($($field:ident: $type:ty),*; $($list:ident: $item:ty),*; $($set:ident),*; $($fault:ident),*) => {
        $(pub fn $field(mut self, $field: $type) -> Setting {
            self.$field = $field;
            self
        })*
        $(pub fn $list(mut self, items: &[$item]) -> Setting {
            self.$list = items.to_vec();
            self
        })*
        $(pub fn $set(mut self, places: &[usize]) -> Setting {
            self.$set = places.iter().copied().map(member).collect();
            self
        })*
        $(pub fn $fault(mut self, most: u8) -> Setting {
            self.budget.$fault = most;
            self
        })*
    };
}

impl Setting {
    /// Three members, one name, no clients, no faults, no time; two frames may be reordered.
    pub fn sound(name: &'static str, about: &'static str) -> Setting {
        let setting = Setting {
            name,
            about,
            names: 1,
            rules: SMALL,
            single_delays: true,
            quiescence_every: 64,
            ..Setting::default()
        };
        setting.members(3).reorders(2)
    }

    /// As [`Setting::sound`], without reordering and the quiescence check: the search is for one violation.
    pub fn control(name: &'static str, about: &'static str) -> Setting {
        Setting::sound(name, about).reorders(0).quiescence_every(0)
    }

    setters! {
        names: usize, single_delays: bool, disk: Disk, order: Order,
        slow_guests: bool, cold: bool, quiescence_every: u64, quarantined_answers: bool;
        apart: (usize, usize), marks: u64;
        crashing, down, renewed;
        time, delays, duplicates, voter_crashes, old_disks, agent_crashes, disconnects, downs, stalls, reorders,
        questions
    }

    /// Every voter may crash, and all marks are 0.
    pub fn members(mut self, count: usize) -> Setting {
        self.members = count;
        self.marks = vec![0; count];
        self.crashing = (0..count).map(member).collect();
        self
    }

    /// Adds one client on each of the first nodes.
    pub fn clients(self, scripts: &[&[Step]]) -> Setting {
        let scripts = scripts.iter().enumerate();
        scripts.fold(self, |setting, (at, steps)| setting.client(at, steps))
    }

    pub fn client(self, at: usize, steps: &[Step]) -> Setting {
        let (mut setting, steps) = (self.agent(at), steps.to_vec());
        setting.scripts.push(Script { at, steps });
        setting
    }

    pub fn agent(mut self, at: usize) -> Setting {
        self.agents = self.agents.with(member(at));
        self
    }

    pub fn bug(mut self, bug: ProtocolBug) -> Setting {
        self.bugs = self.bugs.with(bug);
        self
    }

    pub fn quarantine(mut self, quarantine: Duration) -> Setting {
        self.quarantine = Some(quarantine);
        self
    }

    pub fn answers(mut self, within: Duration) -> Setting {
        self.answers = Some(within);
        self
    }

    pub fn rules(mut self, change: fn(&mut Rules)) -> Setting {
        change(&mut self.rules);
        self
    }

    /// The rules after a restart: the others, with this change.
    pub fn new_rules(mut self, change: fn(&mut Rules)) -> Setting {
        change(self.new_rules.insert(self.rules));
        self
    }

    /// Whether there are guests: nodes without a voter. For a place after the members, [`Member`] stands for a guest.
    pub fn has_guests(&self) -> bool {
        self.agents.iter().any(|node| node.place() >= self.members)
    }

    /// The node at this place, as voters call it.
    pub fn node(&self, at: Member) -> Node {
        match at.place().checked_sub(self.members) {
            None => at.into(),
            Some(guest) => Node::client(guest as u32).expect("settings have few guests"),
        }
    }

    /// The place of the node that voters call so.
    pub fn place(&self, node: Node) -> Member {
        let guest = |number: u32| member(self.members + number as usize);
        let guest = node.client_number().map(guest);
        guest.or(node.member()).expect("a guest or a member")
    }

    /// The list of members.
    pub fn list(&self) -> Members {
        Members::new(self.members).expect("settings have few members")
    }

    pub fn only(mut self, property: &'static str) -> Setting {
        self.only = Some(property);
        self
    }

    /// The search must violate this property. It ignores the others.
    pub fn violates(mut self, property: &'static str) -> Setting {
        self.expect = Expect::Violates(property);
        self.only(property)
    }

    pub fn may_connect(&self, agent: Member, voter: Member) -> bool {
        !self.apart.contains(&(agent.place(), voter.place()))
    }

    pub fn request(&self, client: usize, step: usize) -> (Mode, &'static [usize]) {
        match self.scripts[client].steps[step] {
            Step::Lock(mode, names) | Step::LockWithin(mode, names, _) => (mode, names),
            other => panic!("{other:?} does not lock"),
        }
    }

    /// The name with this number: a, b, ...
    pub fn name_of(number: usize) -> Name {
        Name::new(&[b'a' + number as u8]).expect("a name of one byte")
    }
}

pub fn member(place: usize) -> Member {
    Member::at(place).expect("settings have few members")
}

/// A table of settings. A row is `"name" "what it shows": deviation(value) ...;`, and `$base` is the default from which
/// it deviates. Defines `all()`, the rows, and `named(name)`, one of them.
macro_rules! settings {
    ($base:path; $($name:literal $about:literal: $($field:ident($($value:expr),*))*;)*) => {
        pub fn all() -> Vec<Setting> {
            vec![$($base($name, $about)$(.$field($($value),*))*,)*]
        }

        pub fn named(name: &str) -> Option<Setting> {
            all().into_iter().find(|setting| setting.name == name)
        }
    };
}
pub(super) use settings;

#[test]
fn small_rules_are_accepted() {
    assert_eq!(SMALL.check(), Ok(()));
}
