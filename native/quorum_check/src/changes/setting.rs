//! Settings: the nodes, clients and faults of one search.

use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use std::time::Duration;

/// A set of nodes, given by their places.
pub type Nodes = &'static [usize];

/// One step of a client. All clients lock the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Locks. Repeats it after a refusal.
    Lock,
    /// Unlocks, if it has not lost the lock.
    Unlock,
    /// Changes the members, by the voter of its node. Repeats it until it is done.
    Change(Nodes),
    /// As `Change`: begins a new cluster of these nodes.
    Reset(Nodes),
    /// Its node dies for good.
    Die,
    /// Waits until that client has come to this step. The first one is 0.
    Await(usize, usize),
    /// Waits until that client has done all its steps, or is dead.
    Finished(usize),
    /// Waits this many milliseconds.
    Pause(u64),
    /// Faults may happen from now on. Client 1 does it, before all its other steps.
    Begin,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next message is lost.
    Loss,
    /// The next message or write happens after all others.
    Delay,
    /// Time passes although something is in flight.
    Hurry,
    /// A voter crashes and restarts.
    VoterCrash,
    /// An agent crashes and restarts, and its clients lose their locks.
    AgentCrash,
    /// A voter crashes and restarts without its file.
    LostFile,
    /// A node dies for good.
    Death,
}

/// The faults of messages, writes and timers.
pub const LATE: &[Fault] = &[Fault::Loss, Fault::Delay, Fault::Hurry];

#[derive(Clone, Debug, Default)]
pub struct Setting {
    pub name: &'static str,
    pub nodes: usize,
    /// The members of the first view.
    pub first: Nodes,
    /// The node and the steps of each client.
    pub scripts: Vec<(usize, Vec<Step>)>,
    /// How many faults of these kinds happen at most.
    pub most: u8,
    pub faults: Vec<Fault>,
    /// The nodes whose machines may crash, and that may die.
    pub crashing: Nodes,
    /// Whether no lock may be lost while its agent lives.
    pub keeps: bool,
    pub bugs: ProtocolBugs,
}

/// All members have this lease.
pub const LEASE: Duration = Duration::from_secs(1);

/// All clients must be done after this time.
pub const LIMIT: Duration = Duration::from_secs(20);

impl Setting {
    /// How many nodes there are, and the members of the first view.
    pub fn new(name: &'static str, nodes: usize, first: Nodes) -> Setting {
        Setting {
            name,
            nodes,
            first,
            ..Setting::default()
        }
    }

    pub fn client(mut self, node: usize, steps: &[Step]) -> Setting {
        self.scripts.push((node, steps.to_vec()));
        self
    }

    /// This many faults of these kinds may happen at most. Crashes and deaths only at the nodes `at`.
    pub fn faults(self, most: u8, faults: &[Fault], at: Nodes) -> Setting {
        Setting {
            most,
            faults: faults.to_vec(),
            crashing: at,
            ..self
        }
    }

    /// No lock may be lost while its agent lives.
    pub fn keeps(self) -> Setting {
        Setting {
            keeps: true,
            ..self
        }
    }

    pub fn bug(self, bug: ProtocolBug) -> Setting {
        Setting {
            bugs: self.bugs.with(bug),
            ..self
        }
    }
}
