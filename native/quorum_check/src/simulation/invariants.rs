//! The checker: it observes a history and reports the first violation of an invariant ([`label`]).
//!
//! It sees each frame when it is sent and when it is received, each answer, and the machines after each event, with the
//! clocks of their hosts. It knows nothing of the protocol but the invariants.
//!
//! A check after each event is enough. Between two events of an agent no lock can become held, because a lease only
//! expires. So two holders at any instant are two holders right after the event that made the second one a holder.

mod emptiness;
pub mod label;
mod live;
mod locks;
pub mod records;
mod requests;
mod votes;
mod wire;

use crate::simulation::clock::Real;
use crate::simulation::node::Node;
use crate::simulation::options::Options;
use crate::simulation::plan::{Plan, MOST_NAMES};
use crate::simulation::summary::Summary;
use crate::votes::Before;
use label::{Label, Violation};
use quorum::agent::{Agent, Request};
use quorum::lease::Standing;
use quorum::members::MemberSet;
use quorum::message::{Fence, Mode, Name, Names, Token};
use quorum::time::Time;
use quorum::voter::Voter;
use records::{Asked, LiveQuestion, Lock, PastLock, Received, Sent};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug)]
pub struct Checker {
    pub violation: Option<Violation>,
    pub healed_at: Option<Real>,
    pub summary: Summary,
    plan: Plan,
    options: Options,
    names: Vec<Name>,
    asked: Vec<Asked>,
    open: Vec<Request>,
    locks: Vec<Lock>,
    past: Vec<PastLock>,
    /// For each name, the highest fence of a writer.
    last_writers: [Fence; MOST_NAMES],
    /// For each name, when it was last revoked.
    revoked: [Option<Real>; MOST_NAMES],
    /// The attempts that were granted.
    granted: BTreeSet<(u64, Token)>,
    /// The voter that was called last.
    before: Before,
    sent: BTreeMap<(usize, usize), Sent>,
    unlock_sent: BTreeSet<(u64, Token, usize)>,
    received: Option<Received>,
    /// For each agent and voter, when the agent last received an answer.
    heard: BTreeMap<(usize, usize), Real>,
    empty_since: Option<Real>,
    agent_crashed: bool,
    /// Of the agent that is called: locks that are not held before the call.
    lapsed: Vec<(Token, Arc<Standing>)>,
    live_questions: Vec<LiveQuestion>,
}

impl Checker {
    pub fn new(plan: &Plan, options: &Options) -> Checker {
        let name = |place: usize| Name::new(format!("{place}").as_bytes()).expect("a short name");
        let names: Vec<Name> = (0..plan.hot + plan.cold).map(name).collect();
        Checker {
            violation: None,
            healed_at: None,
            summary: Summary::default(),
            plan: plan.clone(),
            options: options.clone(),
            names,
            asked: Vec::new(),
            open: Vec::new(),
            locks: Vec::new(),
            past: Vec::new(),
            last_writers: [Fence(0); MOST_NAMES],
            revoked: [None; MOST_NAMES],
            granted: BTreeSet::new(),
            before: Before::default(),
            sent: BTreeMap::new(),
            unlock_sent: BTreeSet::new(),
            received: None,
            heard: BTreeMap::new(),
            empty_since: None,
            agent_crashed: false,
            lapsed: Vec::new(),
            live_questions: Vec::new(),
        }
    }

    /// Keeps the first violation, unless its invariant is ignored.
    pub fn violated(&mut self, label: Label, text: impl FnOnce() -> String) {
        if self.violation.is_none() && !self.options.ignored.contains(&label) {
            let text = text();
            self.violation = Some(Violation { label, text });
        }
    }

    pub fn name(&self, place: usize) -> Name {
        self.names[place].clone()
    }

    pub fn names_of(&self, bits: u32) -> Names {
        let names = places(bits).map(|place| self.names[place].clone());
        Names::new(names.collect()).expect("a few different names")
    }

    /// Whether these members are a quorum.
    pub fn is_quorum(&self, members: MemberSet) -> bool {
        members.len() >= self.plan.list().quorum()
    }

    fn is_guest(&self, node: usize) -> bool {
        node >= self.plan.members
    }

    /// The clients of a crashed agent die, and its locks end.
    pub fn agent_crashed(&mut self, node: usize) {
        self.agent_crashed = true;
        for request in std::mem::take(&mut self.open) {
            if self.asked[request.0 as usize].node == node {
                self.asked[request.0 as usize].canceled = true;
            } else {
                self.open.push(request);
            }
        }
        self.locks.retain(|lock| lock.id.0 != node);
        self.past.retain(|past| past.lock.id.0 != node);
        self.sent.retain(|(from, _), _| *from != node);
        self.heard.retain(|(agent, _), _| *agent != node);
    }
}

fn places(bits: u32) -> impl Iterator<Item = usize> {
    (0..MOST_NAMES).filter(move |place| bits & 1 << place != 0)
}

/// Whether two locks exclude each other.
fn conflict(a: (u32, Mode), b: (u32, Mode)) -> bool {
    a.0 & b.0 != 0 && (a.1 == Mode::Write || b.1 == Mode::Write)
}

/// The nodes at a moment.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub nodes: &'a [Node],
    pub real: Real,
}

impl<'a> View<'a> {
    /// The agent of a node, if it is up, and the time by its clock.
    fn agent(self, node: usize) -> Option<(&'a Agent, Time)> {
        let seen = &self.nodes[node];
        Some((seen.agent.as_ref()?, seen.agent_host.now(self.real)))
    }

    /// The voter of a node, if it is up.
    fn voter(self, node: usize) -> Option<&'a Voter> {
        self.nodes[node].voter.as_ref()
    }

    /// That of the agent of a node, also if it is down.
    fn lifetime(self, node: usize) -> u64 {
        self.nodes[node].agent_host.lifetime
    }
}
