//! Watches a history from outside and says which promise was broken first.
//!
//! It sees all: each frame as it is sent and heard, each answer, and the machines themselves after each event, with
//! the clock of the node they live on. What it knows of the protocol is only what the invariants say.
//!
//! Why after each event is often enough: between two events of an agent nothing can become held, because a lease only
//! runs out; so two holders at any instant are two holders right after the event that made the second one.

mod ending;
mod locks;
mod probe;
mod requests;
mod votes;
mod wire;

pub use requests::{Asked, What};

use crate::simulation::clock::Real;
use crate::simulation::node::Node;
use crate::simulation::plan::{Plan, MOST_NAMES};
use crate::simulation::summary::Summary;
use crate::simulation::Settings;
use quorum::agent::Request;
use quorum::lease::Standing;
use quorum::message::{Fence, Mode, Name, Names, Token};
use quorum::rules::Rules;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// What was broken. The numbers are those of the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    /// At any instant at most one writer, or only readers, find `held` true.
    Q1,
    /// A vote that counts for a holder is one that its voter keeps: it has not run out there.
    Q2,
    /// No vote of an older lifetime or generation counts.
    Q3,
    /// A voter in quarantine grants nothing.
    Q4,
    /// Fences of writers grow, per name.
    Q5,
    /// A fence is written down by a quorum before the lock is granted.
    Q6,
    /// An unlock touches its own token only.
    Q7,
    /// Once it was given back a lock is not held, nor asked for, ever again.
    Q8,
    /// After quiet all is empty.
    Q9,
    /// A lock that failed leaves nothing.
    Q10,
    /// A lock of many names is all or nothing.
    Q11,
    /// At a voter no two votes are against each other.
    Votes,
    /// To each voter there is at most one unanswered batch; each `try_unlock` is accepted (ADR 15).
    Adr15,
    /// Each request is answered, once, and in time.
    Answers,
    /// An unlock that is confirmed was forgotten by a quorum.
    Confirmed,
    /// Who holds no longer is told at once; a second after the lease, at the latest.
    Lost,
    /// Where nothing goes wrong nothing is lost, and a free name is to be had.
    Live,
    /// Who is forced out hears of it.
    Forced,
    /// Frames can be read, and answers are as many as questions.
    Wire,
    /// Machines sleep until something is to be done.
    Spin,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The first promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub label: Label,
    /// How.
    pub text: String,
}

/// A lock that somebody has, as far as the answers go.
#[derive(Clone, Debug)]
struct Lock {
    node: usize,
    life: u64,
    token: Token,
    attempt: Token,
    names: u32,
    mode: Mode,
    fence: Fence,
    granted: Real,
    revoked: Option<Real>,
}

/// A lock that somebody had.
#[derive(Clone, Debug)]
struct Gone {
    node: usize,
    life: u64,
    token: Token,
    attempt: Token,
    names: u32,
    standing: Arc<Standing>,
    at: Real,
    lost: bool,
}

/// What voters have said of a token.
#[derive(Clone, Debug, Default)]
struct Promise {
    granted: bool,
    /// For each voter: its life, and how far it has written the fence down.
    said: BTreeMap<usize, (u64, Fence)>,
}

/// Watches one history.
#[derive(Debug)]
pub struct Checker {
    /// The first.
    pub violation: Option<Violation>,
    /// Since when all is well.
    pub quiet_since: Option<Real>,
    quorum: usize,
    members: usize,
    rules: Rules,
    drift: i64,
    calm: bool,
    any_order: bool,
    blind: Vec<Label>,
    names: Vec<Name>,
    bits: BTreeMap<Name, u32>,
    asked: Vec<Asked>,
    open: Vec<Request>,
    locks: Vec<Lock>,
    standings: BTreeMap<(u64, Token), Arc<Standing>>,
    gone: Vec<Gone>,
    last_writers: [Fence; MOST_NAMES],
    forced: [Option<Real>; MOST_NAMES],
    promises: BTreeMap<(u64, Token), Promise>,
    highest: Fence,
    sent: BTreeMap<(usize, usize), wire::Sent>,
    unlock_sent: BTreeSet<(u64, Token, usize)>,
    hearing: Option<wire::Hearing>,
    heard: BTreeMap<(usize, usize), Real>,
    empty_since: Option<Real>,
    agent_death: bool,
    counts: Summary,
}

impl Checker {
    /// Of a history of this kind.
    #[must_use]
    pub fn new(plan: &Plan, settings: &Settings) -> Checker {
        let name = |place: usize| Name::new(format!("{place}").as_bytes()).expect("a short name");
        let names: Vec<Name> = (0..plan.hot + plan.cold).map(name).collect();
        Checker {
            violation: None,
            quiet_since: None,
            quorum: plan.members / 2 + 1,
            members: plan.members,
            rules: plan.rules,
            drift: plan.drift,
            calm: plan.calm(),
            any_order: settings
                .bugs
                .have(quorum::protocol_bug::ProtocolBug::AnyOrder),
            blind: settings.blind.clone(),
            bits: names
                .iter()
                .enumerate()
                .map(|(place, name)| (name.clone(), 1 << place))
                .collect(),
            names,
            asked: Vec::new(),
            open: Vec::new(),
            locks: Vec::new(),
            standings: BTreeMap::new(),
            gone: Vec::new(),
            last_writers: [Fence(0); MOST_NAMES],
            forced: [None; MOST_NAMES],
            promises: BTreeMap::new(),
            highest: Fence(0),
            sent: BTreeMap::new(),
            unlock_sent: BTreeSet::new(),
            hearing: None,
            heard: BTreeMap::new(),
            empty_since: None,
            agent_death: false,
            counts: Summary::default(),
        }
    }

    /// A promise is broken. The first is kept; one that is not looked for is none.
    pub fn violated(&mut self, label: Label, text: impl FnOnce() -> String) {
        if self.violation.is_none() && !self.blind.contains(&label) {
            self.violation = Some(Violation {
                label,
                text: text(),
            });
        }
    }

    /// The name at this place.
    #[must_use]
    pub fn name(&self, place: usize) -> Name {
        self.names[place].clone()
    }

    /// Those whose bits are set: some.
    #[must_use]
    pub fn names_of(&self, bits: u32) -> Names {
        Names::new(
            places(bits)
                .map(|place| self.names[place].clone())
                .collect(),
        )
        .expect("a few names, each once")
    }

    fn bits_of(&self, names: &Names) -> u32 {
        names
            .iter()
            .map(|name| self.bits.get(name).copied().unwrap_or(0))
            .sum()
    }

    /// The highest fence that any voter has given.
    #[must_use]
    pub fn highest_fence(&self) -> Fence {
        self.highest
    }

    /// The agent of `node` is dead: so are those who asked it and those who held by it.
    pub fn agent_died(&mut self, node: usize) {
        self.agent_death = true;
        for request in std::mem::take(&mut self.open) {
            if self.asked[request.0 as usize].node == node {
                self.asked[request.0 as usize].void = true;
            } else {
                self.open.push(request);
            }
        }
        self.locks.retain(|lock| lock.node != node);
        self.gone.retain(|lock| lock.node != node);
        self.sent.retain(|(from, _), _| *from != node);
        self.heard.retain(|(agent, _), _| *agent != node);
    }

    /// Adds what it has counted.
    pub fn sum_up(&mut self, summary: &mut Summary) {
        *summary += &self.counts;
    }
}

/// The places of the bits that are set.
fn places(bits: u32) -> impl Iterator<Item = usize> {
    (0..MOST_NAMES).filter(move |place| bits & 1 << place != 0)
}

/// Whether two locks exclude each other.
fn against(a: (u32, Mode), b: (u32, Mode)) -> bool {
    a.0 & b.0 != 0 && (a.1 == Mode::Write || b.1 == Mode::Write)
}

/// The agent of a node, which lives.
fn agent(nodes: &[Node], node: usize) -> Option<&quorum::agent::Agent> {
    nodes[node].agent.machine.as_ref()
}
