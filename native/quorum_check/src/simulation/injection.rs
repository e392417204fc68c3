//! Fault injection. Each fault recovers after a random time, and all of them when the history heals.

use crate::simulation::clock::{Real, MICROSECOND, MILLISECOND, SECOND, STANDS_STILL};
use crate::simulation::event::{Event, Recovery, Role};
use crate::simulation::fault::Fault;
use crate::simulation::node::{Node, StateFile};
use crate::simulation::world::World;
use quorum::voter::Voter;

impl World {
    pub fn inject(&mut self) {
        if self.healed {
            return;
        }
        let fault = self.random.weighted(&self.plan.faults);
        self.summary.count(fault.label());
        let node = self.target(fault);
        self.log(|| format!("{} (n{node})", fault.label()));
        self.inject_kind(fault, node);
        self.schedule_fault();
    }

    /// Members, of which there may be fewer than guests, as often as guests.
    fn target(&mut self, fault: Fault) -> usize {
        let (members, guests) = (self.plan.members as i64, self.plan.guests as i64);
        let is_guest = guests > 0
            && (fault == Fault::GuestLeaves || !fault.is_of_voter() && self.random.chance(500));
        let node = match is_guest {
            true => members + self.random.below(guests),
            false => self.random.below(members),
        };
        node as usize
    }

    pub fn schedule_fault(&mut self) {
        let gap = self.random.between(1, 2 * self.plan.fault_gap);
        self.push(self.real + gap, Event::Fault);
    }

    fn recover_after(&mut self, span: Real, recovery: Recovery) {
        self.push(self.real + span, Event::Recovery(recovery));
    }

    fn inject_kind(&mut self, fault: Fault, node: usize) {
        let span = self.span();
        match fault {
            Fault::VoterCrash => self.crash(node, Role::Voter, span),
            Fault::VoterMoves => self.move_voter(node, span),
            Fault::AgentCrash => self.crash(node, Role::Agent, span),
            Fault::NodeCrash => self.crash_node(node, span),
            Fault::VotersCrash => {
                for node in 0..self.plan.members {
                    if self.random.chance(600) {
                        self.crash(node, Role::Voter, span);
                    }
                }
            }
            Fault::AllCrash => self.crash_all(span),
            Fault::OldDisk => self.restore_old_disk(node, span),
            Fault::GuestLeaves => {
                if self.is_guest(node) && !self.nodes[node].gone {
                    self.summary.count("guests that left");
                    self.crash(node, Role::Agent, span);
                    self.nodes[node].gone = true;
                }
            }
            Fault::NodePause => {
                self.pause(node, Role::Agent, span);
                self.pause(node, Role::Voter, span);
            }
            Fault::AgentPause => self.pause(node, Role::Agent, span),
            Fault::VoterPause => self.pause(node, Role::Voter, span),
            Fault::Clock => self.change_clock(node),
            Fault::CutOneWay
            | Fault::CutBothWays
            | Fault::Partition
            | Fault::Isolation
            | Fault::Stall
            | Fault::Flap
            | Fault::BadLink => self.inject_link(fault, node, span),
        }
    }

    fn inject_link(&mut self, fault: Fault, node: usize, span: Real) {
        // A guest has links to members only.
        let others = match self.is_guest(node) {
            true => self.plan.members,
            false => self.nodes.len() - 1,
        };
        if others == 0 {
            return;
        }
        let other = self.random.below(others as i64) as usize;
        let other = match self.is_guest(node) {
            true => other,
            false => (node + 1 + other) % self.nodes.len(),
        };
        match fault {
            Fault::CutOneWay => self.cut(vec![(node, other)], span),
            Fault::CutBothWays => self.cut(vec![(node, other), (other, node)], span),
            Fault::Partition => {
                let side: Vec<bool> = self.nodes.iter().map(|_| self.random.chance(500)).collect();
                self.cut(self.links(|a, b| side[a] != side[b]), span);
            }
            Fault::Isolation => self.cut(self.links(|a, b| (a == node) != (b == node)), span),
            Fault::Stall => self.network.stall(node, other, self.real + span),
            Fault::Flap => {
                let delay = self.random.spread(MILLISECOND, SECOND);
                self.inform(node, other, false, 0);
                self.close(node, other);
                self.inform(node, other, true, delay);
            }
            _ => {
                let loses = self.random.chance(500);
                let (lost, held_back) = if loses { (700, 0) } else { (0, 300) };
                self.network.degrade(node, other, lost, held_back);
                self.recover_after(span, Recovery::Link(node, other));
            }
        }
    }

    /// A voter crashes, and restarts soon. Some of its links are cut about then, and the others are restored.
    fn move_voter(&mut self, node: usize, span: Real) {
        let mut cut = Vec::new();
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let links = [(node, other), (other, node)];
            if self.random.chance(500) {
                cut.extend(links);
                continue;
            }
            for (from, to) in links {
                self.network.mend(from, to);
                self.inform_up(from, to);
            }
        }
        let down = self.random.spread(MILLISECOND, SECOND);
        self.crash(node, Role::Voter, down);
        // While it is down, or soon after its start.
        let start = self.random.pick(&[0, down]);
        let delay = self.random.spread(MICROSECOND, SECOND);
        self.push(self.real + start + delay, Event::Cut(cut, span));
    }

    /// How long a fault lasts: sometimes longer than the leases.
    fn span(&mut self) -> Real {
        let lease = self.plan.rules.voter_lease.as_nanos() as Real;
        let (share, shortest, longest) = self.plan.long_spans;
        if self.random.chance(share) {
            self.random.between(shortest, longest)
        } else {
            self.random.spread(MILLISECOND, lease)
        }
    }

    fn links(&self, which: impl Fn(usize, usize) -> bool) -> Vec<(usize, usize)> {
        let all = 0..self.nodes.len();
        all.clone()
            .flat_map(|a| all.clone().map(move |b| (a, b)))
            .filter(|(a, b)| a != b && !(self.is_guest(*a) && self.is_guest(*b)) && which(*a, *b))
            .collect()
    }

    fn crash_all(&mut self, span: Real) {
        for node in 0..self.nodes.len() {
            let more = self.random.spread(MILLISECOND, 5 * SECOND);
            self.crash_node(node, span + more);
        }
    }

    fn crash_node(&mut self, node: usize, span: Real) {
        self.crash(node, Role::Agent, span);
        self.crash(node, Role::Voter, span);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.inform_down(other, node);
        }
    }

    /// Informs an agent and a voter that they are disconnected, one after the other, with the plan's probability.
    fn inform_down(&mut self, node: usize, about: usize) {
        if !self.is_guest(about) && self.random.chance(self.plan.informed) {
            let delay = self.random.spread(MILLISECOND, 5 * SECOND);
            self.inform(node, about, false, delay);
            self.close(node, about);
        }
    }

    fn close(&mut self, node: usize, about: usize) {
        if node != about && !self.is_guest(about) {
            let delay = self.random.spread(MILLISECOND, 5 * SECOND);
            self.closing.insert((node, about));
            self.push(self.real + delay, Event::Closed { voter: about, node });
        }
    }

    fn crash(&mut self, node: usize, role: Role, span: Real) {
        if !self.nodes[node].is_up(role) {
            return;
        }
        self.log(|| format!("n{node} {role:?} crashes"));
        self.nodes[node].crash(role);
        match role {
            Role::Agent => {
                self.checker.agent_crashed(node);
                self.clients_die(node);
            }
            Role::Voter => self.end_writes(node),
        }
        self.recover_after(span, Recovery::Start(node, role));
    }

    /// The voter of a node restarts with the file of an earlier life, if it had one. Only while all voters vote: of
    /// several that restart at once, none knows the later life of another.
    fn restore_old_disk(&mut self, node: usize, span: Real) {
        let votes = |node: &Node| node.voter.as_ref().is_some_and(Voter::is_voting);
        let members = self.plan.members;
        if members == 1 || !self.nodes[..members].iter().all(votes) {
            return;
        }
        self.crash(node, Role::Voter, span);
        let count = self.nodes[node].earlier_disks.len() as i64;
        if count > 0 && self.random.chance(800) {
            let at = self.random.below(count) as usize;
            let is_old = true;
            let old = self.nodes[node].earlier_disks[at];
            self.nodes[node].disk = StateFile { is_old, ..old };
            self.summary.count("old disks");
        }
    }

    /// Each write of a fence that was in progress has completed, or has not. Of those of guests, the first
    /// ones have.
    fn end_writes(&mut self, node: usize) {
        for fence in std::mem::take(&mut self.nodes[node].storing) {
            if self.random.chance(500) {
                self.nodes[node].store(fence);
            }
        }
        let writes = self.nodes[node].storing_guests.len() as i64;
        for _ in 0..self.random.between(0, writes) {
            self.nodes[node].store_guests();
        }
        self.nodes[node].storing_guests.clear();
    }

    fn pause(&mut self, node: usize, role: Role, span: Real) {
        let real = self.real;
        let seen = &mut self.nodes[node];
        if !seen.is_up(role) || seen.host(role).paused {
            return;
        }
        seen.host_mut(role).paused = true;
        if role == Role::Agent && self.options.agent_clocks_pause {
            seen.agent_host.clock.set_rate(real, STANDS_STILL);
        }
        self.log(|| format!("n{node} {role:?} pauses"));
        self.recover_after(span, Recovery::Resume(node, role));
    }

    pub fn cut(&mut self, links: Vec<(usize, usize)>, span: Real) {
        for (from, to) in &links {
            self.network.cut(*from, *to);
            self.inform_down(*from, *to);
        }
        self.recover_after(span, Recovery::Links(links));
    }

    /// Informs an agent that a link to a member is restored.
    fn inform_up(&mut self, node: usize, about: usize) {
        let delay = self.random.spread(MILLISECOND, 3 * SECOND);
        self.inform(node, about, true, delay);
    }

    fn change_clock(&mut self, node: usize) {
        let (real, drift) = (self.real, self.plan.drift);
        let between = self.random.between(-drift, drift);
        let rate = self.random.pick(&[-drift, drift, between]);
        let jump = self.random.spread(MILLISECOND, 10 * SECOND);
        let change = self.random.below(4);
        let seen = &mut self.nodes[node];
        let stands = seen.agent_host.paused && self.options.agent_clocks_pause;
        match change {
            0 if !stands => {
                seen.agent_host.clock.set_rate(real, rate);
                seen.voter_host.clock.set_rate(real, rate);
            }
            1 => seen.agent_host.clock.jump(real, jump),
            2 => {
                let back = jump.min(3 * SECOND);
                seen.voter_host.clock.jump(real, -back);
            }
            _ => {
                seen.voter_host.clock.set_rate(real, STANDS_STILL);
                self.recover_after(jump.min(3 * SECOND), Recovery::Clock(node));
            }
        }
        self.log(|| format!("n{node} clock: change {change}, rate {rate}, jump {jump}"));
        self.rearm(node);
    }

    pub fn recover(&mut self, recovery: Recovery) {
        match recovery {
            Recovery::Start(node, Role::Agent) => self.start_agent(node),
            Recovery::Start(node, Role::Voter) => self.start_voter(node),
            Recovery::Resume(node, role) => self.resume(node, role),
            Recovery::Link(from, to) => self.network.degrade(from, to, 0, 0),
            Recovery::Clock(node) => {
                self.set_normal_rate(node, Role::Voter);
                self.rearm(node);
            }
            Recovery::Links(links) => {
                for (from, to) in links {
                    self.network.restore(from, to);
                    self.inform_up(from, to);
                }
            }
        }
    }

    fn set_normal_rate(&mut self, node: usize, role: Role) {
        let rate = self.random.between(-self.plan.drift, self.plan.drift);
        let clock = &mut self.nodes[node].host_mut(role).clock;
        clock.set_rate(self.real, rate);
    }

    fn resume(&mut self, node: usize, role: Role) {
        if !self.nodes[node].host(role).paused {
            return;
        }
        self.log(|| format!("n{node} {role:?} resumes"));
        self.nodes[node].host_mut(role).paused = false;
        if role == Role::Agent && self.options.agent_clocks_pause {
            self.set_normal_rate(node, role);
        }
        let mut missed = std::mem::take(&mut self.nodes[node].host_mut(role).backlog);
        if !self.plan.conditions.in_order && self.random.chance(500) {
            self.random.shuffle(&mut missed);
        } else if self.random.chance(500) {
            // The timer fires last instead of when it was due.
            missed.sort_by_key(|event| matches!(event, Event::Timer(..)));
        }
        for event in missed {
            self.push(self.real, event);
        }
        self.rearm(node);
    }

    pub fn heal(&mut self) {
        self.network.heal();
        for node in 0..self.nodes.len() {
            for role in [Role::Agent, Role::Voter] {
                self.resume(node, role);
                self.recover(Recovery::Start(node, role));
            }
            self.recover(Recovery::Clock(node));
            for about in 0..self.plan.members {
                let delay = self.random.spread(MILLISECOND, 200 * MILLISECOND);
                self.inform(node, about, true, delay);
            }
        }
    }
}
