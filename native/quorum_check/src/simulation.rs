//! Histories of a cluster, each made from one number: nodes with clocks that are wrong, a network that loses,
//! doubles, delays and reorders, machines that die and pause, clients that lock. The machines are the real ones, and
//! so are the bytes between them; all else is drawn from the seed, so that whatever goes wrong goes wrong again.
//!
//! ```text
//!   plan      what kind of history it is        world     the queue of events, and the loop
//!   network   what becomes of a frame           machines  calls of agents and voters, and what comes of them
//!   clock     what a node takes for the time    clients   who locks
//!   node      who lives where                   faults    who dies, and which link
//! ```
//!
//! [`invariants`](crate::invariants) watches.

pub mod clients;
pub mod clock;
pub mod faults;
mod machines;
pub mod network;
pub mod node;
pub mod plan;
pub use crate::random;
pub mod search;
pub mod summary;
pub mod trace;
pub mod world;

use crate::invariants::{Label, Violation};
use faults::Fault;
use plan::Plan;
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use std::fmt;
use summary::Summary;

/// What is asked of histories beyond their seeds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many nodes, if not as drawn.
    pub members: Option<usize>,
    /// Which faults, if not as drawn.
    pub faults: Option<Vec<Fault>>,
    /// Whether all want one name, to write, and keep it for long: the shortest way to two that have it.
    pub fight: bool,
    /// Other constants.
    pub rules: Option<fn(Rules) -> Rules>,
    /// What the machines do wrong.
    pub bugs: ProtocolBugs,
    /// How wrong clocks are, in parts per million.
    pub drift: i64,
    /// Whether an agent's clock stands still while it is paused. It must not.
    pub agent_sleeps: bool,
    /// Whether wall clocks always show the same. They must not, where too many lose their fences at once.
    pub wall_stands: bool,
    /// Which promises are not looked at: to see that another one falls, too.
    pub blind: Vec<Label>,
    /// How many lines of the trace are kept.
    pub lines: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            members: None,
            faults: None,
            fight: false,
            rules: None,
            bugs: ProtocolBugs::NONE,
            drift: 10_000,
            agent_sleeps: false,
            wall_stands: false,
            blind: Vec::new(),
            lines: 0,
        }
    }
}

/// What came of a history.
#[derive(Debug)]
pub struct Outcome {
    /// Of which number.
    pub seed: u64,
    /// What was broken, if something was.
    pub violation: Option<Violation>,
    /// What happened, in numbers.
    pub summary: Summary,
    /// The same for the same history.
    pub hash: u64,
    /// What kind it was.
    pub plan: Plan,
    /// The last lines of its trace, if they were wanted.
    pub lines: Vec<String>,
}

/// One history.
#[must_use]
pub fn run(seed: u64, settings: &Settings) -> Outcome {
    world::World::new(seed, settings).run(seed)
}

/// How many lines before a violation are told.
pub const TOLD: usize = 60;

/// One history again, for people: with the lines of its trace.
#[must_use]
pub fn again(seed: u64, settings: &Settings) -> Outcome {
    run(
        seed,
        &Settings {
            lines: settings.lines.max(TOLD),
            ..settings.clone()
        },
    )
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            Some(Violation { label, text }) => {
                writeln!(f, "seed {}: {label} is broken: {text}", self.seed)?
            }
            None => writeln!(f, "seed {}: all is well", self.seed)?,
        }
        writeln!(
            f,
            "  cargo run --release -p quorum_check --bin simulate -- --seed {} --trace",
            self.seed
        )
    }
}
