//! The nodes, the network, and one queue of events.

use super::plan::{Options, Plan};
use super::records::{Broken, Checks, Operator};
use crate::random::Random;
use crate::simulation::clock::{Clock, Real, MILLISECOND, SECOND};
use crate::simulation::network::Network;
use quorum::envelope::{Content, Envelope};
use quorum::message::{Lifetime, Token};
use quorum::node_agent::NodeAgent;
use quorum::node_voter::{NodeVoter, State};
use quorum::rules::Rules;
use quorum::view::NodeName;
use quorum::view::Role;
use std::collections::BTreeMap;
use std::time::Duration;

/// A history with more events does not end.
const MOST_EVENTS: u64 = 3_000_000;

#[derive(Clone, Debug)]
pub enum Event {
    Arrive {
        from: usize,
        to: usize,
        role: Role,
        envelope: Box<Envelope>,
    },
    Timer(usize, Role, u64),
    /// A write of the voter of this life is complete.
    Stored(usize, u64, u64, Box<State>),
    Client(usize, u64),
    Connection {
        node: usize,
        about: usize,
        up: bool,
    },
    Fault,
    Start(usize, Role),
    Crash(usize, Role),
    Cut(Vec<(usize, usize)>, Real),
    Mend(Vec<(usize, usize)>),
    /// Whether it repeats.
    Operator(bool),
    Disaster,
    Return(usize),
    Heal,
    Check,
    /// A question to all voters which names have votes.
    Ask,
    /// The voter of this node answers the question with this number.
    Answer(usize, usize),
}

/// A machine and its host.
pub struct Host<M> {
    pub machine: Option<M>,
    pub clock: Clock,
    /// Of the machine's start.
    pub life: u64,
    pub version: u64,
}

impl<M> Host<M> {
    fn new(clock: Clock) -> Host<M> {
        Host {
            machine: None,
            clock,
            life: 0,
            version: 0,
        }
    }
}

/// What the client of a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Idle,
    Waiting(u64, Real),
    Holding(Token),
}

pub struct Node {
    pub voter: Host<NodeVoter>,
    pub agent: Host<NodeAgent>,
    pub file: Option<State>,
    /// When it was lost last.
    pub lost_at: Option<Real>,
    /// When its last write is complete.
    pub stored_at: Real,
    pub activity: Activity,
    pub version: u64,
    /// Turned off by the operator: it does not restart by itself.
    pub off: bool,
}

pub struct World {
    pub random: Random,
    pub real: Real,
    pub plan: Plan,
    pub options: Options,
    pub network: Network,
    pub nodes: Vec<Node>,
    pub names: Vec<NodeName>,
    pub checks: Checks,
    pub operator: Operator,
    pub healed: bool,
    pub counts: BTreeMap<&'static str, u64>,
    pub lines: Vec<String>,
    /// For questions, so that these change nothing else.
    pub questions_random: Random,
    lives: u64,
    queue: BTreeMap<(Real, u64), Event>,
    order: u64,
}

/// What became of a history.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub broken: Option<Broken>,
    pub counts: BTreeMap<&'static str, u64>,
    pub lines: Vec<String>,
    pub plan: Plan,
}

pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options);
    world.start();
    let mut events = 0;
    while let Some(event) = world.pop() {
        events += 1;
        if events > MOST_EVENTS {
            world.broken("Spin", || "too many events".into());
        }
        world.handle(event);
        if world.checks.broken.is_some() || world.is_over() {
            break;
        }
    }
    *world.counts.entry("events").or_default() += events;
    Outcome {
        seed,
        broken: world.checks.broken,
        counts: world.counts,
        lines: world.lines,
        plan: world.plan,
    }
}

impl World {
    fn new(seed: u64, options: &Options) -> World {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random, options);
        let mut clock = || {
            let rate = random.between(-plan.drift, plan.drift);
            let rate = random.pick(&[rate, plan.drift, -plan.drift]);
            Clock::new(0, random.between(-1000 * SECOND, 1_000_000 * SECOND), rate)
        };
        let nodes = (0..plan.nodes).map(|_| Node {
            voter: Host::new(clock()),
            agent: Host::new(clock()),
            file: None,
            lost_at: None,
            stored_at: 0,
            activity: Activity::Idle,
            version: 0,
            off: false,
        });
        let names = (0..plan.nodes).map(|node| NodeName::new(&format!("n{node}")));
        World {
            nodes: nodes.collect(),
            names: names.flatten().collect(),
            network: Network::new(plan.nodes, plan.conditions),
            checks: Checks::default(),
            operator: Operator::new(plan.first),
            healed: false,
            counts: BTreeMap::new(),
            lines: Vec::new(),
            options: options.clone(),
            questions_random: Random::new(!seed),
            lives: 0,
            queue: BTreeMap::new(),
            order: 0,
            real: 0,
            random,
            plan,
        }
    }

    fn start(&mut self) {
        for node in 0..self.plan.nodes {
            let late = self.random.spread(1, 100 * MILLISECOND);
            self.push(late, Event::Start(node, Role::Voter));
            let late = self.random.spread(1, 100 * MILLISECOND);
            self.push(late, Event::Start(node, Role::Agent));
        }
        let first = self.plan.lease() * 2;
        self.push(first, Event::Operator(true));
        if self.plan.fault_gap.is_some() {
            self.schedule_fault(first);
        }
        if let Some(disaster) = self.plan.disaster {
            self.push(first + disaster, Event::Disaster);
        }
        self.push(first + self.plan.active, Event::Heal);
        self.push(first, Event::Ask);
    }

    pub fn rules(&self) -> Rules {
        Rules::of(Duration::from_millis(self.plan.lease_ms))
    }

    pub fn push(&mut self, at: Real, event: Event) {
        self.order += 1;
        let at = at.max(self.real);
        self.queue.insert((at, self.order), event);
    }

    fn pop(&mut self) -> Option<Event> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.real = at;
        Some(event)
    }

    pub fn new_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    pub fn lifetime(&mut self) -> Lifetime {
        Lifetime(self.new_life() << 8 | 1)
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn log(&mut self, line: impl FnOnce() -> String) {
        if self.options.trace {
            let at = self.real as f64 / MILLISECOND as f64;
            self.lines.push(format!("{at:12.3} {}", line()));
        }
    }

    pub fn broken(&mut self, label: &'static str, text: impl FnOnce() -> String) {
        if self.checks.broken.is_none() {
            let text = text();
            self.log(|| format!("{label}: {text}"));
            self.checks.broken = Some(Broken { label, text });
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive {
                from,
                to,
                role,
                envelope,
            } => self.arrive(from, to, role, *envelope),
            Event::Timer(node, role, version) => self.timer(node, role, version),
            Event::Stored(node, life, number, state) => self.stored(node, life, number, *state),
            Event::Client(node, version) => {
                if self.nodes[node].version == version {
                    self.step_client(node);
                }
            }
            Event::Connection { node, about, up } => self.connection(node, about, up),
            Event::Fault => self.inject(),
            Event::Start(node, Role::Voter) => self.start_voter(node),
            Event::Start(node, Role::Agent) => self.start_agent(node),
            Event::Crash(node, role) if !self.healed => {
                let span = self.random.spread(MILLISECOND, SECOND);
                self.crash(node, role, span);
            }
            Event::Crash(..) => {}
            Event::Cut(links, span) if !self.healed => self.cut(links, span),
            Event::Cut(..) => {}
            Event::Mend(links) => self.mend(links),
            Event::Operator(repeats) => self.operate(repeats),
            Event::Disaster => self.disaster(),
            Event::Return(node) => self.come_back(node),
            Event::Heal => self.heal(),
            Event::Check => self.check_progress(),
            Event::Ask => self.ask(),
            Event::Answer(number, node) => self.answer(number, node),
        }
        self.check_holders();
    }

    pub fn send(&mut self, from: usize, to: usize, role: Role, envelope: Envelope) {
        let route = self.network.route(&mut self.random, self.real, from, to);
        if let Content::View(_) = envelope.content {
            self.log(|| {
                format!(
                    "n{from} -> n{to} {role:?}: {:?} {:?}",
                    envelope.view.number, envelope.content
                )
            });
        }
        for at in [route.arrives, route.duplicate].into_iter().flatten() {
            let envelope = Box::new(envelope.clone());
            self.push(
                at,
                Event::Arrive {
                    from,
                    to,
                    role,
                    envelope,
                },
            );
        }
    }

    fn is_over(&self) -> bool {
        self.checks.passed
    }
}
