//! A node: an agent, a voter and the clients of the agent. Each of the two machines may be dead, or paused (its
//! events wait), and is told the time by a clock of its own: a lease of the holder's side may be found to be over too
//! early, one of the voter's side too late.

use super::clients::Client;
use super::clock::{Clock, Real};
use super::world::Event;
use quorum::agent::Agent;
use quorum::members::MemberSet;
use quorum::message::{Fence, Lifetime};
use quorum::time::Time;
use quorum::voter::Voter;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The agent.
    Agent,
    /// The voter.
    Voter,
}

/// Where a machine lives.
#[derive(Debug)]
pub struct Seat<M> {
    /// The machine, if it lives.
    pub machine: Option<M>,
    /// Which life it is: the lifetime, too. No two machines have had the same.
    pub life: u64,
    /// What it is told the time by.
    pub clock: Clock,
    /// Whether it is paused.
    pub paused: bool,
    /// What has happened since it was paused.
    pub backlog: Vec<Event>,
    /// For when the timer is set.
    pub armed: Option<Time>,
    /// Of the timer: one that was set before is none.
    pub version: u64,
    /// How many times running the machine wanted to be woken at once.
    pub spins: u32,
}

impl<M> Seat<M> {
    /// Empty.
    #[must_use]
    pub fn new(clock: Clock) -> Seat<M> {
        Seat {
            machine: None,
            life: 0,
            clock,
            paused: false,
            backlog: Vec::new(),
            armed: None,
            version: 0,
            spins: 0,
        }
    }

    /// What its clock shows.
    #[must_use]
    pub fn now(&self, real: Real) -> Time {
        self.clock.at(real)
    }

    /// A new life begins.
    pub fn begin(&mut self, life: u64, machine: M) {
        self.life = life;
        self.machine = Some(machine);
        (self.armed, self.spins) = (None, 0);
    }

    /// It ends. What waited for it is gone, too.
    pub fn end(&mut self) {
        self.machine = None;
        self.paused = false;
        self.backlog.clear();
        self.armed = None;
        self.version += 1;
    }

    /// As the machines call it.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        Lifetime(self.life)
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// The client side.
    pub agent: Seat<Agent>,
    /// The voting side.
    pub voter: Seat<Voter>,
    /// Of whom the agent was told that they are connected.
    pub told: MemberSet,
    /// Since when they are a quorum.
    pub quorum_since: Option<Real>,
    /// Whether a flush of the agent is on its way.
    pub drains: bool,
    /// The highest mark on its disk.
    pub stored: Option<Fence>,
    /// Marks on their way to the disk: those of a process that dies may get there or not.
    pub storing: Vec<Fence>,
    /// Which process calls the voter: what was begun by another one is told to nobody.
    pub process: u64,
    /// Whether it dies with the next call, and not all that comes of that is done.
    pub doomed: bool,
    /// Whether there is none, though the voter lives: whatever happens to the voter is lost.
    pub orphaned: bool,
    /// Those who lock.
    pub clients: Vec<Client>,
}

impl Node {
    /// Whether that machine is paused.
    #[must_use]
    pub fn paused(&self, part: Part) -> bool {
        match part {
            Part::Agent => self.agent.paused,
            Part::Voter => self.voter.paused,
        }
    }

    /// Whether that machine lives.
    #[must_use]
    pub fn alive(&self, part: Part) -> bool {
        match part {
            Part::Agent => self.agent.machine.is_some(),
            Part::Voter => self.voter.machine.is_some(),
        }
    }

    /// For what happens to it while it is paused.
    pub fn backlog(&mut self, part: Part) -> &mut Vec<Event> {
        match part {
            Part::Agent => &mut self.agent.backlog,
            Part::Voter => &mut self.voter.backlog,
        }
    }

    /// Pauses it, or lets it go on.
    pub fn set_paused(&mut self, part: Part, paused: bool) {
        match part {
            Part::Agent => self.agent.paused = paused,
            Part::Voter => self.voter.paused = paused,
        }
    }
}
