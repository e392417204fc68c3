//! A node: an agent, the clients of the agent, and a voter, unless it is a guest.
//!
//! Each machine may be down or paused, and has a clock of its own. So a holder may find its lease expired too early,
//! and a voter too late.

use crate::simulation::clock::{Clock, Real};
use crate::simulation::event::{Event, Role};
use quorum::agent::{Agent, Request};
use quorum::members::{MemberSet, Node as NodeId};
use quorum::message::{Fence, Lifetime, Token};
use quorum::time::Time;
use quorum::voter::Voter;
use std::collections::VecDeque;
use std::time::Duration;

/// What a machine runs on.
#[derive(Debug, Default)]
pub struct Host {
    /// No two machines of a history share one.
    pub lifetime: u64,
    pub clock: Clock,
    pub paused: bool,
    /// The events since it was paused.
    pub backlog: Vec<Event>,
    /// The deadline for which the timer is set.
    pub armed: Option<Time>,
    /// Increases whenever the timer is set.
    pub version: u64,
    /// How many times in a row the timer was due at once.
    pub spins: u32,
}

impl Host {
    pub fn now(&self, real: Real) -> Time {
        self.clock.at(real)
    }

    pub fn lifetime(&self) -> Lifetime {
        Lifetime(self.lifetime)
    }

    fn start(&mut self, lifetime: u64) {
        self.lifetime = lifetime;
        (self.armed, self.spins) = (None, 0);
    }

    fn crash(&mut self) {
        self.paused = false;
        self.backlog.clear();
        self.armed = None;
        self.version += 1;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    #[default]
    Idle,
    Waiting(Request),
    Holding(Token),
    Unlocking(Request),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Client {
    pub activity: Activity,
    /// The agent that granted its last lock.
    pub agent: u64,
    /// Increases with each new activity. Events for an earlier version are ignored.
    pub version: u64,
}

/// The state file of a voter.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateFile {
    pub life: u32,
    pub mark: Fence,
    /// No vote was promised for longer.
    pub lease: Duration,
    /// Whether guests may have votes.
    pub guests: bool,
    /// Whether the mark is that of an earlier life, since a fault has replaced the file.
    pub is_old: bool,
}

#[derive(Debug, Default)]
pub struct Node {
    /// None while it is down.
    pub agent: Option<Agent>,
    pub agent_host: Host,
    /// None while it is down.
    pub voter: Option<Voter>,
    pub voter_host: Host,
    /// The highest time that the voter was called with. Its clock may have been set back since.
    pub voter_shown: Time,
    /// The members that the agent believes to be connected.
    pub connected: MemberSet,
    /// Since when these are a quorum.
    pub quorum_since: Option<Real>,
    pub flush_scheduled: bool,
    /// What is on its disk.
    pub disk: StateFile,
    /// What was on its disk at the end of each earlier life.
    pub earlier_disks: Vec<StateFile>,
    /// The highest mark that was on any of its disks.
    pub last_mark: Fence,
    /// Whether the voter started with the mark of an old file.
    pub has_old_mark: bool,
    /// The fences that are being written. If the voter crashes, each write completes or not.
    pub storing: Vec<Fence>,
    /// The values of the guest flag that the disk is writing, the oldest first. At a crash of the voter, the first ones
    /// complete.
    pub storing_guests: VecDeque<bool>,
    /// When the last of them completes.
    pub guests_stored_at: Real,
    /// The guests that the voter's host has numbered: the place is the number.
    pub numbers: Vec<Option<usize>>,
    /// Until when the voter's quarantine lasts at most, and whether there may be guests.
    pub quarantine: Option<(Time, bool)>,
    /// Whether it is a guest that has left and does not return.
    pub gone: bool,
    pub clients: Vec<Client>,
}

impl Node {
    pub fn new(agent: Clock, voter: Clock, clients: usize) -> Node {
        let host = |clock| Host {
            clock,
            ..Host::default()
        };
        Node {
            agent_host: host(agent),
            voter_host: host(voter),
            voter_shown: Time::LONG_AGO,
            clients: vec![Client::default(); clients],
            ..Node::default()
        }
    }

    pub fn start_agent(&mut self, lifetime: u64, agent: Agent) {
        self.agent = Some(agent);
        self.agent_host.start(lifetime);
        (self.connected, self.quorum_since) = (MemberSet::EMPTY, None);
        self.flush_scheduled = false;
    }

    pub fn start_voter(&mut self, lifetime: Lifetime, voter: Voter) {
        self.voter = Some(voter);
        self.voter_shown = Time::LONG_AGO;
        self.voter_host.start(lifetime.0);
    }

    /// A write of this mark has completed.
    pub fn store(&mut self, mark: Fence) {
        self.disk.mark = self.disk.mark.max(mark);
        self.last_mark = self.last_mark.max(mark);
    }

    /// The next write of guests has completed. Returns whether the voter is informed: the file says that there may be
    /// some, and no later write is in progress.
    pub fn store_guests(&mut self) -> bool {
        let Some(guests) = self.storing_guests.pop_front() else {
            return false;
        };
        self.disk.guests = guests;
        guests && self.storing_guests.is_empty()
    }

    /// How this voter calls a guest.
    pub fn number_of(&self, guest: usize) -> Option<NodeId> {
        let place = self
            .numbers
            .iter()
            .position(|known| *known == Some(guest))?;
        number(place)
    }

    /// As [`Node::number_of`]. A guest without a number gets the lowest one of which the voter knows no guest.
    pub fn give_number(&mut self, guest: usize) -> NodeId {
        if let Some(known) = self.number_of(guest) {
            return known;
        }
        let voter = self.voter.as_ref();
        let knows =
            |place| voter.is_some_and(|voter| number(place).is_some_and(|of| voter.knows(of)));
        let free = (0..self.numbers.len()).find(|place| !knows(*place));
        let place = free.unwrap_or(self.numbers.len());
        if free.is_none() {
            self.numbers.push(None);
        }
        self.numbers[place] = Some(guest);
        number(place).expect("a few guests")
    }

    /// The node that the voter calls so.
    pub fn place_of(&self, node: NodeId) -> usize {
        let Some(number) = node.client_number() else {
            return node.member().expect("a member or a guest").place();
        };
        let guest = self.numbers.get(number as usize).copied().flatten();
        guest.expect("the voter knows only guests that have numbers")
    }

    pub fn crash(&mut self, role: Role) {
        match role {
            Role::Agent => self.agent = None,
            Role::Voter => self.voter = None,
        }
        self.host_mut(role).crash();
    }

    pub fn host(&self, role: Role) -> &Host {
        match role {
            Role::Agent => &self.agent_host,
            Role::Voter => &self.voter_host,
        }
    }

    pub fn host_mut(&mut self, role: Role) -> &mut Host {
        match role {
            Role::Agent => &mut self.agent_host,
            Role::Voter => &mut self.voter_host,
        }
    }

    pub fn is_up(&self, role: Role) -> bool {
        match role {
            Role::Agent => self.agent.is_some(),
            Role::Voter => self.voter.is_some(),
        }
    }

    pub fn deadline(&self, role: Role) -> Option<Time> {
        match role {
            Role::Agent => self.agent.as_ref().and_then(Agent::deadline),
            Role::Voter => self.voter.as_ref().and_then(Voter::deadline),
        }
    }
}

fn number(place: usize) -> Option<NodeId> {
    NodeId::client(u32::try_from(place).ok()?)
}
