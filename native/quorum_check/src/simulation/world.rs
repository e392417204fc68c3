//! The world: the nodes, the network, and one queue of events, ordered by time and then by when they were scheduled.

use crate::random::Random;
use crate::simulation::clock::{Clock, Real, MICROSECOND, MILLISECOND, SECOND};
use crate::simulation::event::{Event, Role};
use crate::simulation::invariants::{Checker, View};
use crate::simulation::network::Network;
use crate::simulation::node::Node;
use crate::simulation::options::Options;
use crate::simulation::plan::Plan;
use crate::simulation::summary::Summary;
use crate::simulation::trace::Trace;
use quorum::members::Member;
use std::collections::{BTreeMap, BTreeSet};

pub struct World {
    pub random: Random,
    pub real: Real,
    pub plan: Plan,
    pub trace: Trace,
    pub summary: Summary,
    pub network: Network,
    pub nodes: Vec<Node>,
    pub checker: Checker,
    /// Whether all faults are over and clients send no new requests.
    pub healed: bool,
    pub options: Options,
    /// From when on the probes may start.
    pub probe_after: Real,
    pub probed: bool,
    /// The pairs of an agent's node and a voter that will be informed that they are disconnected.
    pub closing: BTreeSet<(usize, usize)>,
    /// Those of which the voter was informed, and the agent was not yet.
    pub half_closed: BTreeSet<(usize, usize)>,
    /// When all voters must vote. None: not yet known, or checked.
    pub must_vote_at: Option<Real>,
    /// For the questions which names have votes, so that these change nothing else.
    pub live_random: Random,
    lifetimes: u64,
    /// By time, and of one time by when they were scheduled.
    queue: BTreeMap<(Real, u64), Event>,
    order: u64,
}

impl World {
    /// All nodes are down, and no event is scheduled.
    pub fn new(seed: u64, options: &Options, heartbeats: bool) -> World {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random, options);
        let nodes = (0..plan.nodes()).map(|_| node(&mut random, &plan));
        World {
            nodes: nodes.collect(),
            network: Network::new(plan.nodes(), plan.conditions),
            checker: Checker::new(&plan, options),
            trace: Trace::new(options.lines, heartbeats),
            summary: Summary::default(),
            healed: false,
            options: options.clone(),
            probe_after: 0,
            probed: false,
            closing: BTreeSet::new(),
            half_closed: BTreeSet::new(),
            must_vote_at: None,
            live_random: Random::new(!seed),
            lifetimes: 0,
            queue: BTreeMap::new(),
            order: 0,
            real: 0,
            random,
            plan,
        }
    }

    /// Lets the checker observe the nodes.
    pub fn check<R>(&mut self, check: impl FnOnce(&mut Checker, View<'_>) -> R) -> R {
        let (nodes, real) = (&self.nodes, self.real);
        check(&mut self.checker, View { nodes, real })
    }

    pub fn push(&mut self, at: Real, event: Event) {
        self.order += 1;
        let at = at.max(self.real);
        self.queue.insert((at, self.order), event);
    }

    /// The next event. Its time becomes the present.
    pub fn pop(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.real = at;
        Some(event)
    }

    /// Adds a line to the trace. Only its time counts for the hash.
    pub fn log(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.real, &[], line);
    }

    /// The lifetime of a new machine.
    pub fn new_lifetime(&mut self) -> u64 {
        self.lifetimes += 1;
        self.lifetimes
    }

    /// Informs the agent of `node` after `delay` whether `about` is connected. Agents are informed about members only.
    pub fn inform(&mut self, node: usize, about: usize, up: bool, delay: Real) {
        if !self.is_guest(about) {
            self.push(self.real + delay, Event::Connection { node, about, up });
        }
    }

    /// Sets the timer of a machine to its deadline, if that has changed. The timer fires slightly late.
    pub fn arm(&mut self, node: usize, role: Role) {
        let deadline = self.nodes[node].deadline(role);
        let host = self.nodes[node].host_mut(role);
        if deadline == host.armed {
            return;
        }
        (host.armed, host.version) = (deadline, host.version + 1);
        let (version, clock) = (host.version, host.clock);
        if let Some(deadline) = deadline {
            let late = self.lateness();
            let at = clock.when(self.real, deadline).saturating_add(late);
            self.push(at, Event::Timer(node, role, version));
        }
    }

    fn lateness(&mut self) -> Real {
        let most = match self.healed {
            true => 10 * MILLISECOND,
            false => self.plan.lateness,
        };
        self.random.spread(MICROSECOND, most)
    }

    /// Sets both timers again, because a clock has changed.
    pub fn rearm(&mut self, node: usize) {
        for role in [Role::Agent, Role::Voter] {
            self.nodes[node].host_mut(role).armed = None;
            self.arm(node, role);
        }
    }

    pub fn is_guest(&self, node: usize) -> bool {
        node >= self.plan.members
    }

    pub fn member(place: usize) -> Member {
        Member::at(place).expect("a node with a voter")
    }
}

fn node(random: &mut Random, plan: &Plan) -> Node {
    let rate = random.between(-plan.drift, plan.drift);
    let rate = random.pick(&[rate, plan.drift, -plan.drift]);
    // Clocks of two machines are unrelated, and may be negative.
    let mut clock = || Clock::new(0, random.between(-1000 * SECOND, 1_000_000 * SECOND), rate);
    Node::new(clock(), clock(), plan.clients)
}
