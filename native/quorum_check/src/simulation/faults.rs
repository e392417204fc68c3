//! What goes wrong, and how it ends. All that a fault does ends by itself, or at last when the history turns quiet.

use super::clock::{Real, MICROSECOND, MILLISECOND, SECOND, STANDS_STILL};
use super::node::Part;
use super::plan::Fences;
use super::world::{Event, World};
use quorum::members::Member;
use quorum::message::Fence;
use std::fmt;

/// What wall clocks show when a history begins: some day in 2026.
const WALL: u64 = 1_780_000_000_000_000_000;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A voter dies and comes again.
    VoterDies,
    /// An agent dies, and those that locked by it, and comes again.
    AgentDies,
    /// A voter lives, and the process around it dies in the middle of something; another one takes it over.
    VoterIsTakenOver,
    /// A whole node.
    NodeDies,
    /// Several voters at once, or one right after the other.
    VotersDie,
    /// All nodes.
    AllDie,
    /// All nodes, or some of them, and what was on their disks is gone.
    DisksDie,
    /// A whole node is stopped and goes on later as if nothing had been: SIGSTOP, a system that sleeps.
    NodePauses,
    /// Only its agent.
    AgentPauses,
    /// Only its voter.
    VoterPauses,
    /// From one node to another nothing goes.
    CutOneWay,
    /// Between two nodes.
    CutBothWays,
    /// Some nodes hear nothing of the others.
    Partition,
    /// One node hears nothing.
    Isolation,
    /// Something long is on a line before all else.
    Stall,
    /// An agent is told that a link is gone that is not.
    Flap,
    /// A link loses much, or holds much back.
    BadLink,
    /// Clocks run at another rate, or jump the harmless way.
    Clock,
}

impl Fault {
    /// Each kind.
    pub const ALL: &'static [Fault] = &[
        Fault::VoterDies,
        Fault::AgentDies,
        Fault::VoterIsTakenOver,
        Fault::NodeDies,
        Fault::VotersDie,
        Fault::AllDie,
        Fault::DisksDie,
        Fault::NodePauses,
        Fault::AgentPauses,
        Fault::VoterPauses,
        Fault::CutOneWay,
        Fault::CutBothWays,
        Fault::Partition,
        Fault::Isolation,
        Fault::Stall,
        Fault::Flap,
        Fault::BadLink,
        Fault::Clock,
    ];

    /// By what name it is counted.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Fault::VoterDies => "fault: a voter dies",
            Fault::AgentDies => "fault: an agent dies",
            Fault::VoterIsTakenOver => "fault: a voter is taken over",
            Fault::NodeDies => "fault: a node dies",
            Fault::VotersDie => "fault: several voters die",
            Fault::AllDie => "fault: all nodes die",
            Fault::DisksDie => "fault: nodes die with their disks",
            Fault::NodePauses => "fault: a node pauses",
            Fault::AgentPauses => "fault: an agent pauses",
            Fault::VoterPauses => "fault: a voter pauses",
            Fault::CutOneWay => "fault: cut one way",
            Fault::CutBothWays => "fault: cut both ways",
            Fault::Partition => "fault: partition",
            Fault::Isolation => "fault: isolation",
            Fault::Stall => "fault: a line stands still",
            Fault::Flap => "fault: flap",
            Fault::BadLink => "fault: a bad link",
            Fault::Clock => "fault: a clock",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// The end of a fault.
#[derive(Clone, Debug)]
pub enum Mend {
    /// It begins a new life.
    Starts(usize, Part),
    /// It goes on.
    Resumes(usize, Part),
    /// Another process calls the voter.
    TakesOver(usize),
    /// These links are whole again.
    Links(Vec<(usize, usize)>),
    /// This link is no worse than others.
    Link(usize, usize),
    /// This node's clocks go on.
    Clock(usize),
}

impl World {
    /// A fault, and when the next one is.
    pub fn fault(&mut self) {
        if self.quiet {
            return;
        }
        let fault = self.random.weighted(&self.plan.faults);
        self.summary.count(fault.label());
        let node = self.random.below(self.nodes.len() as i64) as usize;
        self.say(|| format!("{fault} (n{node})"));
        self.inflict(fault, node);
        let gap = self.random.between(1, 2 * self.plan.fault_gap);
        self.push(self.real + gap, Event::Fault);
    }

    fn inflict(&mut self, fault: Fault, node: usize) {
        let span = self.span();
        match fault {
            Fault::VoterDies => self.dies_for(node, Part::Voter, span),
            Fault::AgentDies => self.dies_for(node, Part::Agent, span),
            Fault::VoterIsTakenOver => self.nodes[node].doomed = true,
            Fault::NodeDies => self.node_dies_for(node, span),
            Fault::VotersDie => {
                for node in 0..self.nodes.len() {
                    if self.random.chance(600) {
                        self.dies_for(node, Part::Voter, span);
                    }
                }
            }
            Fault::AllDie => drop(self.nodes_die(1000, span)),
            Fault::DisksDie => {
                let share = self.random.pick(&[1000, 1000, 600]);
                for node in self.nodes_die(share, span) {
                    self.nodes[node].stored = None;
                }
            }
            Fault::NodePauses => {
                self.pauses_for(node, Part::Agent, span);
                self.pauses_for(node, Part::Voter, span);
            }
            Fault::AgentPauses => self.pauses_for(node, Part::Agent, span),
            Fault::VoterPauses => self.pauses_for(node, Part::Voter, span),
            Fault::Clock => self.clock_goes_wrong(node),
            links => self.trouble_links(links, node, span),
        }
    }

    fn trouble_links(&mut self, fault: Fault, node: usize, span: Real) {
        let others = self.nodes.len() as i64 - 1;
        if others == 0 {
            return;
        }
        let other = (node + 1 + self.random.below(others) as usize) % self.nodes.len();
        match fault {
            Fault::CutOneWay => self.cut(vec![(node, other)], span),
            Fault::CutBothWays => self.cut(vec![(node, other), (other, node)], span),
            Fault::Partition => {
                let side: Vec<bool> = self.nodes.iter().map(|_| self.random.chance(500)).collect();
                self.cut(self.pairs(|a, b| side[a] != side[b]), span);
            }
            Fault::Isolation => self.cut(self.pairs(|a, b| (a == node) != (b == node)), span),
            Fault::Stall => self.network.stand_still(node, other, self.real + span),
            Fault::Flap => {
                let soon = self.random.spread(MILLISECOND, SECOND);
                self.tell(node, other, false, 0);
                self.tell(node, other, true, soon);
            }
            _ => {
                let (lost, held_back) = if self.random.chance(500) {
                    (700, 0)
                } else {
                    (0, 300)
                };
                self.network.worsen(node, other, lost, held_back);
                self.push(self.real + span, Event::Mend(Mend::Link(node, other)));
            }
        }
    }

    /// How long it goes on: now and then for longer than the leases.
    fn span(&mut self) -> Real {
        let lease = self.plan.rules.voter_lease.as_nanos() as Real;
        if self.random.chance(300) {
            self.random.between(lease * 7 / 10, lease * 13 / 10)
        } else {
            self.random.spread(MILLISECOND, lease)
        }
    }

    fn pairs(&self, which: impl Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
        let all = 0..self.nodes.len();
        all.clone()
            .flat_map(|a| all.clone().map(move |b| (a, b)))
            .filter(|(a, b)| a != b && which(*a, *b))
            .collect()
    }

    /// All nodes, or each with that chance, of a thousand.
    fn nodes_die(&mut self, share: i64, span: Real) -> Vec<usize> {
        let mut dead = Vec::new();
        for node in 0..self.nodes.len() {
            if self.random.chance(share) {
                let more = self.random.spread(MILLISECOND, 5 * SECOND);
                self.node_dies_for(node, span + more);
                dead.push(node);
            }
        }
        dead
    }

    fn node_dies_for(&mut self, node: usize, span: Real) {
        self.dies_for(node, Part::Agent, span);
        self.dies_for(node, Part::Voter, span);
        for other in 0..self.nodes.len() {
            if other != node && self.random.chance(self.plan.told) {
                let soon = self.random.spread(MILLISECOND, 5 * SECOND);
                self.tell(other, node, false, soon);
            }
        }
    }

    /// It dies and begins anew later.
    fn dies_for(&mut self, node: usize, part: Part, span: Real) {
        if !self.nodes[node].alive(part) {
            return;
        }
        self.say(|| format!("n{node} {part:?} dies"));
        match part {
            Part::Agent => {
                self.checker.agent_died(node);
                self.nodes[node].agent.end();
                self.clients_die(node);
            }
            Part::Voter => {
                self.nodes[node].voter.end();
                self.process_dies(node);
            }
        }
        self.push(self.real + span, Event::Mend(Mend::Starts(node, part)));
    }

    /// What was on its way to the disk has arrived there, or has not.
    fn process_dies(&mut self, node: usize) {
        for mark in std::mem::take(&mut self.nodes[node].storing) {
            if self.random.chance(500) {
                self.nodes[node].stored = self.nodes[node].stored.max(Some(mark));
            }
        }
    }

    /// From now on this process calls the voter, which may have begun or gone on.
    pub fn voter_is_called_by(&mut self, node: usize, process: u64) {
        let known = &mut self.nodes[node];
        (known.process, known.doomed, known.orphaned) = (process, false, false);
    }

    /// The process of a voter dies, and another one will take it over.
    pub fn orphan_voter(&mut self, node: usize) {
        self.say(|| format!("n{node} the voter's process dies"));
        self.nodes[node].orphaned = true;
        self.process_dies(node);
        let soon = self.random.spread(MICROSECOND, SECOND);
        self.push(self.real + soon, Event::Mend(Mend::TakesOver(node)));
    }

    fn takes_over(&mut self, node: usize) {
        if !self.nodes[node].orphaned {
            return;
        }
        self.summary.count("voters taken over");
        let process = self.new_life();
        self.voter_is_called_by(node, process);
        self.say(|| format!("n{node} the voter is taken over"));
        self.voter(node, |voter, now| voter.interrupted(now));
        self.rearm(node);
    }

    fn pauses_for(&mut self, node: usize, part: Part, span: Real) {
        let orphaned = part == Part::Voter && self.nodes[node].orphaned;
        if self.nodes[node].alive(part) && !self.nodes[node].paused(part) && !orphaned {
            self.say(|| format!("n{node} {part:?} pauses"));
            self.nodes[node].set_paused(part, true);
            if part == Part::Agent && self.agent_sleeps {
                self.nodes[node]
                    .agent
                    .clock
                    .set_rate(self.real, STANDS_STILL);
            }
            self.push(self.real + span, Event::Mend(Mend::Resumes(node, part)));
        }
    }

    fn cut(&mut self, links: Vec<(usize, usize)>, span: Real) {
        for (from, to) in &links {
            self.network.cut(*from, *to);
            if self.random.chance(self.plan.told) {
                let soon = self.random.spread(MILLISECOND, 5 * SECOND);
                self.tell(*from, *to, false, soon);
            }
        }
        self.push(self.real + span, Event::Mend(Mend::Links(links)));
    }

    /// The agent of `node` will be told whether `about` is connected.
    pub fn tell(&mut self, node: usize, about: usize, up: bool, soon: Real) {
        self.push(self.real + soon, Event::Told { node, about, up });
    }

    fn clock_goes_wrong(&mut self, node: usize) {
        let (real, drift) = (self.real, self.plan.drift);
        let between = self.random.between(-drift, drift);
        let rate = self.random.pick(&[-drift, drift, between]);
        let jump = self.random.spread(MILLISECOND, 10 * SECOND);
        let what = self.random.below(4);
        let sleeps = self.nodes[node].agent.paused && self.agent_sleeps;
        let known = &mut self.nodes[node];
        match what {
            0 if !sleeps => {
                known.agent.clock.set_rate(real, rate);
                known.voter.clock.set_rate(real, rate);
            }
            1 => known.agent.clock.jump(real, jump),
            2 => known.voter.clock.jump(real, -jump.min(3 * SECOND)),
            _ => {
                known.voter.clock.set_rate(real, STANDS_STILL);
                self.push(real + jump.min(3 * SECOND), Event::Mend(Mend::Clock(node)));
            }
        }
        self.say(|| format!("n{node} clock: what {what}, rate {rate}, jump {jump}"));
        self.rearm(node);
    }

    /// A fault ends.
    pub fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Starts(node, Part::Agent) => self.agent_starts(node),
            Mend::Starts(node, Part::Voter) => self.voter_starts(node),
            Mend::Resumes(node, part) => self.resumes(node, part),
            Mend::TakesOver(node) => self.takes_over(node),
            Mend::Link(from, to) => self.network.worsen(from, to, 0, 0),
            Mend::Clock(node) => {
                let rate = self.random.between(-self.plan.drift, self.plan.drift);
                self.nodes[node].voter.clock.set_rate(self.real, rate);
                self.rearm(node);
            }
            Mend::Links(links) => {
                for (from, to) in links {
                    self.network.mend(from, to);
                    let soon = self.random.spread(MILLISECOND, 3 * SECOND);
                    self.tell(from, to, true, soon);
                }
            }
        }
    }

    fn resumes(&mut self, node: usize, part: Part) {
        if !self.nodes[node].paused(part) {
            return;
        }
        self.say(|| format!("n{node} {part:?} goes on"));
        self.nodes[node].set_paused(part, false);
        if part == Part::Agent && self.agent_sleeps {
            let rate = self.random.between(-self.plan.drift, self.plan.drift);
            self.nodes[node].agent.clock.set_rate(self.real, rate);
        }
        let mut missed = std::mem::take(self.nodes[node].backlog(part));
        if !self.plan.manner.in_order && self.random.chance(500) {
            self.random.shuffle(&mut missed);
        } else if self.random.chance(500) {
            // The timer comes last instead of when it was due.
            missed.sort_by_key(|event| matches!(event, Event::Timer { .. }));
        }
        for event in missed {
            self.push(self.real, event);
        }
        self.rearm(node);
    }

    /// All that is broken is made whole, at once.
    pub fn mend_all(&mut self) {
        self.network.calm();
        for node in 0..self.nodes.len() {
            for part in [Part::Agent, Part::Voter] {
                self.resumes(node, part);
                self.mend(Mend::Starts(node, part));
            }
            self.nodes[node].doomed = false;
            self.mend(Mend::TakesOver(node));
            self.mend(Mend::Clock(node));
            for about in 0..self.nodes.len() {
                let soon = self.random.spread(MILLISECOND, 200 * MILLISECOND);
                self.tell(node, about, true, soon);
            }
        }
    }

    /// With which floor a voter begins its next life.
    pub fn floor(&mut self, node: usize) -> Option<Fence> {
        let floor = match self.plan.fences {
            Fences::Durable => self.nodes[node].stored,
            Fences::Lost => None,
        };
        if floor.is_none() {
            self.summary.count("voters without fences");
        }
        floor
    }

    /// What a wall clock shows that is right. It counts nanoseconds, not microseconds: that for each second of a
    /// history, with its crashes, there is as much more room for fences as in the hours that it stands for.
    #[must_use]
    pub fn wall(&self) -> Fence {
        Fence(if self.wall_stands {
            0
        } else {
            WALL + self.real as u64
        })
    }

    /// By what other members an agent is called in its own words.
    #[must_use]
    pub fn member(place: usize) -> Member {
        Member::at(place).expect("no more nodes than members")
    }
}
