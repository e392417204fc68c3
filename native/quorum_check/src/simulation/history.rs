//! A history: the loop over its events, and its outcome.

use crate::simulation::clock::{Real, SECOND};
use crate::simulation::event::{Event, Recovery, Role};
use crate::simulation::invariants::label::{Label, Violation};
use crate::simulation::invariants::Checker;
use crate::simulation::node::Node;
use crate::simulation::options::Options;
use crate::simulation::plan::Plan;
use crate::simulation::summary::Summary;
use crate::simulation::world::World;
use quorum::protocol_bug::ProtocolBug;
use std::fmt;

/// A history with more events does not end.
const MOST_EVENTS: u64 = 3_000_000;
/// How long after the last quarantine all voters must vote.
const VOTE_WITHIN: Real = 2 * SECOND;
/// Lines of the trace before a violation.
const LINES: usize = 60;

#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub violation: Option<Violation>,
    pub summary: Summary,
    pub hash: u64,
    pub plan: Plan,
    pub long: bool,
    pub lines: Vec<String>,
}

pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = World::new(seed, options, options.lines > LINES);
    world.start();
    let mut events = 0;
    while let Some(event) = world.pop() {
        events += 1;
        if events > MOST_EVENTS {
            let text = || format!("more than {MOST_EVENTS} events");
            world.checker.violated(Label::Spin, text);
        }
        let ends = matches!(event, Event::End);
        world.handle(event);
        if ends || world.checker.violation.is_some() || world.is_over() {
            break;
        }
    }
    world.summary.count("histories");
    if world.plan.is_fault_free() {
        world.summary.count("histories without faults");
    }
    if world.plan.guests > 0 {
        world.summary.count("histories with guests");
    }
    if world.plan.nodes() >= 100 {
        world.summary.count("histories with 100 agents");
    }
    world.summary.add("events", events);
    world.summary += &world.checker.summary;
    world.trace.note(world.real, &[events], || "the end".into());
    Outcome {
        seed,
        violation: world.checker.violation,
        summary: world.summary,
        hash: world.trace.hash(),
        plan: world.plan,
        long: options.long,
        lines: world.trace.into_lines(),
    }
}

pub fn replay(seed: u64, options: &Options) -> Outcome {
    let options = Options {
        lines: options.lines.max(LINES),
        ..options.clone()
    };
    run(seed, &options)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed;
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            Some(Violation { label, text }) => {
                writeln!(f, "seed {seed}: {label:?} violated: {text}")?
            }
            None => writeln!(f, "seed {seed}: no violation")?,
        }
        let long = if self.long { " --long" } else { "" };
        writeln!(
            f,
            "  cargo run --release -p quorum_check --bin simulate --{long} --seed {seed} --trace"
        )
    }
}

impl World {
    fn start(&mut self) {
        for node in 0..self.plan.members {
            self.start_voter(node);
            self.start_agent(node);
        }
        self.start_guests();
        if !self.plan.is_fault_free() {
            self.schedule_fault();
        }
        self.push(self.plan.active, Event::Heal);
        self.push(0, Event::LiveQuestion);
    }

    pub fn handle(&mut self, event: Event) {
        if let Some((node, role, lifetime)) = event.machine() {
            let node = &mut self.nodes[node];
            if node.host(role).paused {
                return node.host_mut(role).backlog.push(event);
            }
            let is_past = lifetime.is_some_and(|lifetime| lifetime != node.host(role).lifetime);
            if !node.is_up(role) || is_past {
                return;
            }
        }
        match event {
            Event::Frame {
                from,
                to,
                role,
                bytes,
            } => self.arrive(from, to, role, &bytes),
            Event::Timer(node, role, version) => self.timer(node, role, version),
            Event::Flush(node, _) => self.flush(node),
            Event::Stored(node, _, fence) => self.stored(node, fence),
            Event::GuestsStored(node, _) => self.guests_stored(node),
            Event::Client(node, client, version) => {
                if self.nodes[node].clients[client].version == version {
                    self.step_client(node, client);
                }
            }
            Event::Connection { node, about, up } => self.connection(node, about, up),
            Event::Closed { voter, node } => self.closed(voter, node),
            Event::Fault => self.inject(),
            Event::LiveQuestion => self.live_question(),
            Event::LiveAnswer { question, voter } => self.live_answer(question, voter),
            Event::Cut(links, span) if !self.healed => self.cut(links, span),
            Event::Cut(..) => {}
            Event::Recovery(recovery) => self.recover(recovery),
            Event::Heal => self.end_faults(),
            // Probes may be running by then.
            Event::Empty if self.probed => {}
            Event::Empty | Event::End => self.check(Checker::check_all_empty),
            Event::Probe => self.start_probes(),
            Event::Voting if self.must_vote_at == Some(self.real) => {
                self.must_vote_at = None;
                self.check(Checker::check_all_vote);
            }
            Event::Voting => {}
        }
    }

    /// Some guests come later.
    fn start_guests(&mut self) {
        for guest in self.plan.members..self.nodes.len() {
            if self.random.chance(700) {
                self.start_agent(guest);
            } else {
                let at = self.random.below(self.plan.active);
                let start = Recovery::Start(guest, Role::Agent);
                self.push(at, Event::Recovery(start));
            }
        }
    }

    /// From here on, no fault excuses the machines.
    fn end_faults(&mut self) {
        self.log(|| "all faults end".into());
        self.healed = true;
        let any_order = self.options.bugs.have(ProtocolBug::AnyOrder);
        let mut late = self.network.last_arrival().max(self.real);
        if any_order {
            // The votes that this bug leaves behind are found at a heartbeat.
            late += 4 * self.plan.rules.heartbeat.as_nanos() as Real;
        }
        self.heal();
        self.schedule_voting();
        self.finish_clients();
        // The vote of a crashed agent stays for a lease, and a clock may be slow by the time that it stood still.
        // Frames sent before may still arrive. After a lease without frames, they have no effect.
        let lease = self.plan.rules.voter_lease.as_nanos() as Real;
        let empty = self.real + lease * 102 / 100 + 32 * SECOND;
        self.checker.healed_at = Some(self.real);
        if !any_order {
            self.push(empty, Event::Empty);
        }
        // Most probes start as soon as all tables are empty, some when no earlier frame can arrive, and a few when all
        // heartbeats have been answered as well.
        let after = if any_order { late } else { self.real };
        self.probe_after = self
            .random
            .weighted(&[(60, after), (30, late), (10, empty.max(late))]);
        self.push(empty.max(late) + SECOND, Event::Probe);
    }

    /// All voters must vote soon after their quarantines, even if no agent settles.
    pub fn schedule_voting(&mut self) {
        let real = self.real;
        let until = |node: &Node| {
            let quarantine = node.quarantine.map(|(until, _)| until);
            let until = quarantine.map_or(node.voter_shown, |until| until.max(node.voter_shown));
            node.voter_host.clock.when(real, until)
        };
        let last = self.nodes.iter().map(until).max();
        let at = last.unwrap_or(real) + VOTE_WITHIN;
        self.must_vote_at = Some(at);
        self.push(at, Event::Voting);
    }

    fn start_probes(&mut self) {
        if !self.probed {
            self.probed = true;
            self.check(Checker::check_all_empty);
            self.probe();
            self.push(self.real + 75 * SECOND, Event::End);
        }
    }

    /// Whether the cluster is quiescent, all voters vote and the probes have been answered. Starts the probes if they
    /// can start.
    fn is_over(&mut self) -> bool {
        if !self.healed
            || self.real < self.probe_after
            || !self.check(|checker, view| checker.is_empty(view))
        {
            return false;
        }
        if !self.probed {
            self.start_probes();
            return false;
        }
        self.must_vote_at.is_none()
    }
}
