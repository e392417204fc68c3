//! The loop: one event after the other, each at its moment. Whatever waits is in one queue, ordered by time and then
//! by when it was put there, so that a seed is one history.

use super::clients::{Client, Doing};
use super::clock::{Clock, Real, MICROSECOND, MILLISECOND, SECOND};
use super::faults::Mend;
use super::network::Network;
use super::node::{Node, Part, Seat};
use super::plan::Plan;
use super::random::Random;
use super::summary::Summary;
use super::trace::Trace;
use super::{Outcome, Settings, TOLD};
use crate::invariants::{Checker, Label};
use quorum::members::MemberSet;
use quorum::message::{Fence, Frame};
use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// What can happen.
#[derive(Clone, Debug)]
pub enum Event {
    /// A frame arrives, for this machine of that node.
    Arrives {
        /// Who sent it.
        from: usize,
        /// To whom.
        to: usize,
        /// Which machine of theirs.
        part: Part,
        /// The frame.
        bytes: Rc<[u8]>,
    },
    /// The deadline of a machine has come.
    Timer {
        /// The node.
        node: usize,
        /// Its machine.
        part: Part,
        /// See [`Seat::version`].
        version: u64,
    },
    /// The agent's mailbox is empty.
    Drained {
        /// The node.
        node: usize,
        /// The life of its agent.
        life: u64,
    },
    /// The disk has taken a mark.
    Stored {
        /// The node.
        node: usize,
        /// See [`Node::process`].
        process: u64,
        /// The mark.
        mark: Fence,
    },
    /// A client does what is next.
    Client {
        /// The node.
        node: usize,
        /// Which of its clients.
        client: usize,
        /// See [`Client::version`].
        version: u64,
    },
    /// The agent is told that a member came or went.
    Told {
        /// The node.
        node: usize,
        /// The other.
        about: usize,
        /// Whether it came.
        up: bool,
    },
    /// Something goes wrong.
    Fault,
    /// Something ends to go wrong.
    Mend(Mend),
    /// All faults end, and clients lock no more.
    Quiet,
    /// All must be empty by now.
    Empty,
    /// All must be empty, and each node locks once more.
    Probe,
    /// The end.
    End,
}

/// An event and its place in the queue.
#[derive(Debug)]
struct Scheduled(Real, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// No history has more events: one that does goes round in circles.
const MOST_EVENTS: u64 = 3_000_000;

/// A history while it happens.
pub struct World {
    /// All its chance.
    pub random: Random,
    /// The time.
    pub real: Real,
    /// What kind it is.
    pub plan: Plan,
    /// What happened.
    pub trace: Trace,
    /// What happened, in numbers.
    pub summary: Summary,
    /// Between the nodes.
    pub network: Network,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Who watches.
    pub checker: Checker,
    /// Whether faults are over.
    pub quiet: bool,
    /// A fault that the protocol does not survive: the agent's clock stands still while it is paused.
    pub agent_sleeps: bool,
    /// See [`Settings::wall_stands`].
    pub wall_stands: bool,
    /// What the machines are to do wrong.
    pub bugs: ProtocolBugs,
    /// From when on each node may be asked to lock once more.
    probe_after: Real,
    /// Whether it has.
    probed: bool,
    lives: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
}

impl World {
    /// Before the first event.
    #[must_use]
    pub fn new(seed: u64, settings: &Settings) -> World {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random, settings);
        let nodes = (0..plan.members)
            .map(|_| node(&mut random, &plan))
            .collect();
        let mut world = World {
            network: Network::new(plan.members, plan.manner),
            checker: Checker::new(&plan, settings),
            trace: Trace::new(settings.lines, settings.lines > TOLD),
            summary: Summary::default(),
            quiet: false,
            agent_sleeps: settings.agent_sleeps,
            wall_stands: settings.wall_stands,
            bugs: settings.bugs,
            probe_after: 0,
            probed: false,
            lives: 0,
            queue: BinaryHeap::new(),
            order: 0,
            real: 0,
            random,
            plan,
            nodes,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for node in 0..self.nodes.len() {
            self.voter_starts(node);
            self.agent_starts(node);
        }
        if !self.plan.calm() {
            let gap = self.random.between(1, 2 * self.plan.fault_gap);
            self.push(self.real + gap, Event::Fault);
        }
        self.push(self.plan.active, Event::Quiet);
    }

    /// Something will happen.
    pub fn push(&mut self, at: Real, event: Event) {
        self.order += 1;
        self.queue
            .push(Reverse(Scheduled(at.max(self.real), self.order, event)));
    }

    /// A line of the trace; it counts for the hash by its moment alone.
    pub fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.note(self.real, &[], line);
    }

    /// The next life of a machine.
    pub fn new_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// All of it.
    #[must_use]
    pub fn run(mut self, seed: u64) -> Outcome {
        let mut events = 0;
        while let Some(Reverse(Scheduled(at, _, event))) = self.queue.pop() {
            self.real = at;
            events += 1;
            if events > MOST_EVENTS {
                self.checker
                    .violated(Label::Spin, || format!("more than {MOST_EVENTS} events"));
            }
            let ends = matches!(event, Event::End);
            self.happens(event);
            if ends || self.checker.violation.is_some() || self.is_over() {
                break;
            }
        }
        self.summary.count("histories");
        self.summary.count(if self.plan.calm() {
            "histories without faults"
        } else {
            "histories with faults"
        });
        self.summary.add("events", events);
        self.checker.sum_up(&mut self.summary);
        self.trace
            .note(self.real, &[events], || String::from("the end"));
        Outcome {
            seed,
            violation: self.checker.violation,
            summary: self.summary,
            hash: self.trace.hash(),
            plan: self.plan,
            lines: self.trace.lines(),
        }
    }

    fn happens(&mut self, event: Event) {
        if let Some((node, part)) = whose(&event) {
            let known = &mut self.nodes[node];
            if known.paused(part) {
                return known.backlog(part).push(event);
            }
            if !known.alive(part) || (part == Part::Voter && known.orphaned) {
                return;
            }
        }
        match event {
            Event::Arrives {
                from,
                to,
                part,
                bytes,
            } => self.arrives(from, to, part, &bytes),
            Event::Timer {
                node,
                part,
                version,
            } => self.timer(node, part, version),
            Event::Drained { node, life } => {
                if self.nodes[node].agent.life == life {
                    self.drained(node);
                }
            }
            Event::Stored {
                node,
                process,
                mark,
            } => {
                if self.nodes[node].process == process {
                    self.has_stored(node, mark);
                }
            }
            Event::Client {
                node,
                client,
                version,
            } => {
                if self.nodes[node].clients[client].version == version {
                    self.client_acts(node, client);
                }
            }
            Event::Told { node, about, up } => self.is_told(node, about, up),
            Event::Fault => self.fault(),
            Event::Mend(mend) => self.mend(mend),
            Event::Quiet => self.turns_quiet(),
            // Those that lock once more may be on their way by then.
            Event::Empty if self.probed => {}
            Event::Empty | Event::End => self.checker.all_empty(&self.nodes),
            Event::Probe => self.probes(),
        }
    }

    /// From here on there is nothing to excuse the machines by.
    fn turns_quiet(&mut self) {
        self.say(|| String::from("quiet"));
        self.quiet = true;
        let mut late = self.network.last_arrival().max(self.real);
        if self.bugs.have(ProtocolBug::AnyOrder) {
            // What it leaves behind is found at a heartbeat.
            late += 4 * self.plan.rules.heartbeat.as_nanos() as Real;
        }
        self.mend_all();
        self.clients_end();
        // A vote of an agent that is dead stays for a lease, and a clock may be behind by what it stood still. What
        // was sent before comes as late as it comes: after a lease of silence it means nothing any more.
        let lease = self.plan.rules.voter_lease.as_nanos() as Real;
        let empty = self.real + lease * 102 / 100 + 32 * SECOND;
        self.checker.quiet_since = Some(self.real);
        if !self.bugs.have(ProtocolBug::AnyOrder) {
            self.push(empty, Event::Empty);
        }
        // What is empty may as well be asked at once; in some histories only when nothing of before can come any
        // more, and in a few when all that is told by heartbeats has been told for long.
        let any_order = self.bugs.have(ProtocolBug::AnyOrder);
        let after = if any_order { late } else { self.real };
        self.probe_after = self
            .random
            .weighted(&[(60, after), (30, late), (10, empty.max(late))]);
        self.push(empty.max(late) + SECOND, Event::Probe);
    }

    /// All must be empty, and each node locks once more.
    fn probes(&mut self) {
        if !self.probed {
            self.probed = true;
            self.checker.all_empty(&self.nodes);
            self.probe();
            self.push(self.real + 75 * SECOND, Event::End);
        }
    }

    /// Whether nothing else can come.
    fn is_over(&mut self) -> bool {
        if !self.quiet || self.real < self.probe_after || !self.checker.is_empty(&self.nodes) {
            return false;
        }
        if self.probed {
            return true;
        }
        self.probes();
        false
    }
}

/// The machine that it happens to, if it happens to one.
fn whose(event: &Event) -> Option<(usize, Part)> {
    match event {
        Event::Arrives { to, part, .. } => Some((*to, *part)),
        Event::Timer { node, part, .. } => Some((*node, *part)),
        Event::Stored { node, .. } => Some((*node, Part::Voter)),
        Event::Drained { node, .. } | Event::Client { node, .. } | Event::Told { node, .. } => {
            Some((*node, Part::Agent))
        }
        _ => None,
    }
}

/// To which machine of a node a frame goes.
#[must_use]
pub fn part_for(frame: &Frame) -> Part {
    match frame {
        Frame::Batch(_) | Frame::Floor(_) => Part::Voter,
        Frame::Ack(_) | Frame::Notice(_) => Part::Agent,
    }
}

fn node(random: &mut Random, plan: &Plan) -> Node {
    let rate = random.between(-plan.drift, plan.drift);
    let rate = random.pick(&[rate, plan.drift, -plan.drift]);
    // Any origin: clocks of two nodes have nothing to do with one another, and may well be negative.
    let mut clock = || Clock::new(0, random.between(-1000 * SECOND, 1_000_000 * SECOND), rate);
    let (agent, voter) = (clock(), clock());
    Node {
        agent: Seat::new(agent),
        voter: Seat::new(voter),
        told: MemberSet::EMPTY,
        quorum_since: None,
        drains: false,
        stored: None,
        storing: Vec::new(),
        process: 0,
        doomed: false,
        orphaned: false,
        clients: vec![
            Client {
                doing: Doing::Nothing,
                version: 0
            };
            plan.clients
        ],
    }
}

/// How long after a machine's last event its mailbox is empty, at most.
pub const DRAIN: Real = 500 * MICROSECOND;
/// How soon a new agent is told whom it is connected with, at most.
pub const MEET: Real = 200 * MILLISECOND;
