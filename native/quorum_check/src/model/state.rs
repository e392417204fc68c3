//! A state: all machines, clients and frames at one moment.
//!
//! The moment is always 0. When time passes, all times become relative to the new moment, so that two states that
//! differ only in when they are reached are equal.

use crate::model::setting::{member, Budget, Setting, Step};
use crate::shared::Shared;
use quorum::agent::Agent;
use quorum::members::{Member, MemberSet};
use quorum::message::{Fence, Frame, Lifetime, Name, Token};
use quorum::time::Time;
use quorum::voter::Voter;
use std::collections::BTreeSet;
use std::time::Duration;

pub const NOW: Time = Time(0);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// In the order of their nodes.
    pub agents: Vec<AgentState>,
    /// One for each member.
    pub voters: Vec<VoterState>,
    /// One for each script.
    pub clients: Vec<Client>,
    /// Frames in flight: sorted, or in the order in which they were sent, depending on the setting.
    pub flights: Vec<Shared<Flight>>,
    /// For each name, the highest fence that a writer was granted.
    pub fences: Vec<Fence>,
    pub left: Budget,
    /// The question that a quorum has not answered, if there is one.
    pub question: Option<Question>,
    /// The first violation by an action. It is not visible in the states before and after the action.
    pub violation: Option<Violation>,
    /// The number of actions before this state in a random walk, 0 otherwise. It makes all states of a walk different,
    /// because stateright ends a walk at a state that it has visited.
    pub depth: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentState {
    pub member: Member,
    /// How many agents of this member have crashed.
    pub lifetime: u8,
    pub machine: Shared<Agent>,
    /// The members that it believes to be connected.
    pub connected: MemberSet,
    /// Those whose voters found the connection closed. The agent is informed, too, before it is connected again.
    pub closed: MemberSet,
    /// Whether it is not scheduled at its deadline.
    pub stalled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VoterState {
    /// How often a voter of this member has started.
    pub starts: u8,
    /// None before its start.
    pub machine: Option<Shared<Voter>>,
    /// Its life, and the highest one of its earlier starts.
    pub life: u32,
    pub highest_life: u32,
    pub disk: Stored,
    /// What was on the disk before the first start.
    pub old_disk: Stored,
    /// The highest mark that it has stored on any of its disks.
    pub last_mark: Fence,
    pub storing: Option<Fence>,
    /// The values of the guest flag that the disk is writing, the oldest first.
    pub storing_guests: Vec<bool>,
    pub stalled: bool,
}

/// The state file of a voter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stored {
    pub life: u32,
    pub mark: Fence,
    /// No vote was promised for longer.
    pub lease: Duration,
    /// Whether guests may have votes.
    pub guests: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// The index of its next step.
    pub next: usize,
    pub phase: Phase,
    /// The locks that it unlocked or lost. They must never be held again.
    pub past: Vec<Token>,
}

/// What a client does now. `step` is the index of the step that began it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    Idle,
    Waits {
        step: usize,
    },
    Holds {
        step: usize,
        token: Token,
    },
    Unlocks {
        step: usize,
        token: Token,
    },
}

/// A question to all voters which names have votes, and the answers so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Question {
    /// How long ago it began.
    pub age: u8,
    /// The clients that held a lock then, and by which step.
    pub held: Vec<(usize, Phase)>,
    pub answered: MemberSet,
    pub voted: BTreeSet<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flight {
    pub from: Member,
    pub to: Member,
    pub frame: Frame,
    /// Whether time has passed since it was sent.
    pub delayed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Violation {
    pub property: &'static str,
    pub text: String,
}

/// Member and lifetime can be read from the number: `a1021` is the second agent of member 2.
pub fn agent_lifetime(member: Member, lifetime: u8) -> Lifetime {
    Lifetime(1000 + 10 * member.place() as u64 + u64::from(lifetime))
}

/// As [`agent_lifetime`], from 2000, in the low bits.
pub fn voter_lifetime(member: Member, life: u32, starts: u8) -> Lifetime {
    Lifetime::new(life, 2000 + 10 * member.place() as u32 + u32::from(starts))
}

impl AgentState {
    pub fn lifetime(&self) -> Lifetime {
        agent_lifetime(self.member, self.lifetime)
    }
}

impl VoterState {
    /// A mark is on disk.
    pub fn store_mark(&mut self, mark: Fence) {
        self.disk.mark = mark;
        self.last_mark = self.last_mark.max(mark);
    }

    /// Whether it started with an old disk, and no later voter has replaced it.
    pub fn is_stale(&self) -> bool {
        self.life <= self.highest_life
    }

    /// The next write of guests is on disk. Returns whether the voter is informed: the file says that there may be
    /// some, and no later write is in progress.
    pub fn store_guests(&mut self) -> bool {
        self.disk.guests = self.storing_guests.remove(0);
        self.disk.guests && self.storing_guests.is_empty()
    }
}

impl State {
    pub fn agent_of(&self, member: Member) -> Option<usize> {
        self.agents.iter().position(|agent| agent.member == member)
    }

    /// The voters that run.
    pub fn running(&self) -> impl Iterator<Item = &Shared<Voter>> {
        self.voters.iter().filter_map(|seen| seen.machine.as_ref())
    }

    pub fn satisfies(&self, property: &str) -> bool {
        let violation = self.violation.as_ref();
        violation.is_none_or(|violation| violation.property != property)
    }

    /// The step that a client can do now. Skips steps that wait for what has already happened, and steps that unlock
    /// when nothing is held.
    pub fn enabled_step(&self, setting: &Setting, client: usize) -> Option<usize> {
        let phase = self.clients[client].phase;
        let idle = phase == Phase::Idle;
        let holds = matches!(phase, Phase::Holds { .. });
        let steps = &setting.scripts[client].steps;
        for (at, step) in steps.iter().enumerate().skip(self.clients[client].next) {
            match step {
                Step::Await(other) if self.is_done(setting, *other) => {}
                Step::Await(other) if matches!(self.clients[*other].phase, Phase::Holds { .. }) => {
                }
                Step::Later(units) if self.has_passed(setting, *units) => {}
                Step::Await(_) | Step::Later(_) => return None,
                Step::Lock(..) | Step::LockWithin(..) => return idle.then_some(at),
                Step::Unlock | Step::UnlockAsync | Step::Die if idle => {}
                Step::Unlock | Step::UnlockAsync => return holds.then_some(at),
                Step::Die => return Some(at),
                Step::Revoke(_) | Step::Disconnect(..) | Step::Connect(..) | Step::Crash(_) => {
                    return (idle || holds).then_some(at)
                }
            }
        }
        None
    }

    /// Whether this many units of time have passed. In quiescence, they have.
    fn has_passed(&self, setting: &Setting, units: u8) -> bool {
        let left = self.left.time;
        left == Budget::UNLIMITED || setting.budget.time - left >= units
    }

    /// Whether a client holds nothing, waits for nothing, will request nothing, and will cause no fault.
    pub fn is_done(&self, setting: &Setting, client: usize) -> bool {
        let acts = |step: &Step| {
            !matches!(
                step,
                Step::Unlock | Step::UnlockAsync | Step::Die | Step::Await(_) | Step::Later(_)
            )
        };
        let Client { next, phase, .. } = &self.clients[client];
        let mut left = setting.scripts[client].steps.iter().skip(*next);
        *phase == Phase::Idle && !left.any(acts)
    }

    pub fn all_done(&self, setting: &Setting) -> bool {
        (0..self.clients.len()).all(|client| self.is_done(setting, client))
    }

    pub fn waits(&self, client: usize) -> bool {
        let phase = self.clients[client].phase;
        matches!(phase, Phase::Waits { .. } | Phase::Unlocks { .. })
    }

    /// Whether a client finds a lock held.
    pub fn holds(&self, setting: &Setting, client: usize) -> bool {
        let Phase::Holds { token, .. } = self.clients[client].phase else {
            return false;
        };
        let agent = self.agent_of(member(setting.scripts[client].at));
        agent.is_some_and(|agent| self.agents[agent].machine.held(token, NOW))
    }

    /// An arbitrary number, to choose a sample of the states.
    pub fn sample(&self) -> u64 {
        let agents = self.agents.iter().map(|agent| agent.machine.hash_value());
        agents
            .chain(self.running().map(Shared::hash_value))
            .chain(self.flights.iter().map(Shared::hash_value))
            .fold(0, u64::wrapping_add)
            >> 8
    }
}
