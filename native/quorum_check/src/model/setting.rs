//! What is searched: who takes part, what the clients do, what may go wrong and how often.

use quorum::members::{Member, MemberSet};
use quorum::message::{Mode, Name};
use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use quorum::rules::Rules;
use std::time::Duration;

/// What a client does, one thing after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask for all these names, by their numbers, and wait for the answer.
    Lock(Mode, &'static [usize]),
    /// As `Lock`; who has not got it after so many units of time gives up.
    LockWithin(Mode, &'static [usize], u64),
    /// Give back what is held, and wait for the answer. Nothing, if nothing is held.
    Unlock,
    /// Give it back by `try_unlock`.
    TryUnlock,
    /// Die, waiting or holding. Its agent is told.
    Die,
    /// Revoke the name with this number.
    Revoke(usize),
    /// Wait until that client holds something, or has done all it had to do.
    Await(usize),
    /// Wait until so many units of time have passed.
    Later(u8),
}

/// One client, and the member it lives on.
#[derive(Clone, Debug)]
pub struct Script {
    /// Whose agent it asks.
    pub at: usize,
    /// What it does. A lock held at the end stays held.
    pub steps: Vec<Step>,
}

/// How often each thing may happen in one history. What is `Budget::ALWAYS` is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Time passes by one unit.
    pub time: u8,
    /// A frame is in flight longer than the time at which it was sent: it may come at any time after, or never.
    pub delays: u8,
    /// A frame comes, and will come again, or not.
    pub duplicates: u8,
    /// A voter forgets all that is not stored, and starts anew.
    pub voter_crashes: u8,
    /// An agent and its clients are gone, and a new agent starts there.
    pub agent_crashes: u8,
    /// An agent is told that a member is disconnected.
    pub cuts: u8,
    /// A machine is not scheduled when its deadline has come, for any time.
    pub lates: u8,
    /// The frame that is next goes to the end of the line: see [`Order::Sent`].
    pub defers: u8,
}

impl Budget {
    /// As often as you like.
    pub const ALWAYS: u8 = u8::MAX;
}

/// What survives of the fences when a voter is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// The mark, and it is written at once.
    Fast,
    /// The mark; writing is a step of its own, and a crash may come before it.
    Slow,
    /// Nothing: the others have to be asked, or the wall clock.
    None,
}

/// Which of the frames in flight may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any of them.
    Any,
    /// The one that was sent first; or it goes to the end of the line, so often ([`Budget`]`::defers`). Late ones may
    /// come at any time. Most histories are left out, but those that are left are long ones: nearly all that is known
    /// to go wrong in systems like this one takes but a few frames out of order (Emmi, Qadeer, Rakamaric,
    /// "Delay-bounded scheduling", 2011).
    Sent,
}

/// One search.
#[derive(Clone, Debug)]
pub struct Setting {
    /// To ask for it by.
    pub name: &'static str,
    /// What it is for: one line.
    pub about: &'static str,
    /// How many members.
    pub members: usize,
    /// Which have an agent. Agents that are not there say nothing.
    pub agents: MemberSet,
    /// What the clients do.
    pub scripts: Vec<Script>,
    /// How many names there are.
    pub names: usize,
    /// The constants, in units of one nanosecond.
    pub rules: Rules,
    /// What is broken.
    pub bugs: ProtocolBugs,
    /// What may go wrong.
    pub budget: Budget,
    /// Which voters may crash.
    pub crashing: MemberSet,
    /// Which voters do not run at first; each may start once, at any time.
    pub down: MemberSet,
    /// The promise that is looked at in actions; none means all. A search does not go on from where one is broken.
    pub promise: Option<&'static str>,
    /// Whether single frames may be held back, at the price of a delay each; otherwise it is those that are in flight
    /// when time passes that are late.
    pub holding_back: bool,
    /// Agents, by their members, and members that they are never connected to.
    pub apart: Vec<(usize, usize)>,
    /// A client: as soon as it holds something, all crashes of voters happen, its agent is cut off from them, and all
    /// voters start, before anything else; and none of that happens at another time, or is undone. For directed
    /// searches.
    pub disaster: Option<usize>,
    /// What the voters know of fences at first, if they know anything.
    pub floors: Vec<Option<u64>>,
    /// What their wall clocks show then.
    pub origins: Vec<u64>,
    /// Whether wall clocks show the same for ever. Otherwise they show, when a voter restarts, the lowest number that
    /// is right, if it needs one: the highest fence that any voter knows of, or began with.
    pub wall_stands: bool,
    /// What survives.
    pub disk: Disk,
    /// In which order frames come.
    pub order: Order,
    /// Whether the search begins with agents and voters that do not know each other yet.
    pub cold: bool,
    /// From one in so many states, all weather is taken to be calm from then on, to see that it ends well.
    pub quiescence_every: u64,
}

/// So many units.
#[must_use]
pub const fn units(count: u64) -> Duration {
    Duration::from_nanos(count)
}

/// Small constants that `Rules::check` finds possible, but for the heartbeat (see [`small_rules`]).
const SMALL: Rules = Rules {
    heartbeat: units(1),
    holder_lease: units(3),
    voter_lease: units(4),
    quarantine: units(4),
    attempt: units(1),
    retry_base: units(1),
    retry_step: units(0),
    retry_most: units(1),
    wait: units(3),
    keep: units(1),
    run: 3,
    run_time: units(2),
    at_risk: units(1),
    fence_block: 8,
    fence_floors: 1,
    pending_unlocks: 4,
    batch: 8,
};

/// Small constants, all of them possible ones.
#[must_use]
pub fn small_rules() -> Rules {
    SMALL
}

impl Setting {
    /// `members` members, the first `agents` of which have an agent, and clients with these scripts on the first
    /// members, one each. One name; nothing goes wrong; no time passes.
    #[must_use]
    pub fn new(
        name: &'static str,
        about: &'static str,
        members: usize,
        scripts: &[&[Step]],
    ) -> Setting {
        let scripts: Vec<Script> = scripts
            .iter()
            .enumerate()
            .map(|(at, steps)| Script {
                at,
                steps: steps.to_vec(),
            })
            .collect();
        Setting {
            name,
            about,
            members,
            agents: scripts.iter().map(|script| member(script.at)).collect(),
            scripts,
            names: 1,
            rules: SMALL,
            bugs: ProtocolBugs::NONE,
            budget: Budget::default(),
            crashing: (0..members).map(member).collect(),
            down: MemberSet::EMPTY,
            promise: None,
            apart: Vec::new(),
            holding_back: true,
            disaster: None,
            floors: vec![Some(0); members],
            origins: vec![0; members],
            wall_stands: false,
            disk: Disk::Fast,
            order: Order::Sent,
            cold: false,
            quiescence_every: 64,
        }
    }

    /// Whether the agent of one member may be connected to another.
    #[must_use]
    pub fn meet(&self, agent: Member, other: Member) -> bool {
        !self.apart.contains(&(agent.place(), other.place()))
    }

    /// With this rule broken, too.
    #[must_use]
    pub fn broken(mut self, bug: ProtocolBug) -> Setting {
        self.bugs = self.bugs.with(bug);
        self
    }

    /// The name with this number: a, b, ...
    #[must_use]
    pub fn name_of(number: usize) -> Name {
        Name::new(&[b'a' + number as u8]).expect("a name of one byte")
    }
}

/// The member at `place`, which is one that exists.
#[must_use]
pub fn member(place: usize) -> Member {
    Member::at(place).expect("settings have few members")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rules_are_possible_ones() {
        assert_eq!(small_rules().check(), Ok(()));
    }
}
