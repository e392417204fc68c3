//! Calls of agents and voters, and their outputs: frames, answers, timers. The checker observes each.

use crate::frame_text::{describe, is_heartbeat};
use crate::simulation::clock::{Real, MICROSECOND, MILLISECOND};
use crate::simulation::event::{Event, Role};
use crate::simulation::invariants::label::Label;
use crate::simulation::invariants::Checker;
use crate::simulation::network::Route;
use crate::simulation::node::{Activity, StateFile};
use crate::simulation::world::World;
use quorum::agent::{Agent, AgentOutput, AgentSetup};
use quorum::frame;
use quorum::members::Node as NodeId;
use quorum::message::{Fence, Frame, Lifetime, Send, VoterState};
use quorum::time::Time;
use quorum::voter::{Voter, VoterOutput, VoterSetup};

/// A machine whose timer was due at once this many times in a row spins.
const MOST_SPINS: u32 = 20_000;
/// The longest time from a machine's last event to its flush.
const FLUSH: Real = 500 * MICROSECOND;
/// The longest time until a new agent is informed that a member is connected.
const CONNECT: Real = 200 * MILLISECOND;

impl World {
    /// Starts an agent, unless one is up, or its node has left.
    pub fn start_agent(&mut self, node: usize) {
        if self.nodes[node].is_up(Role::Agent) || self.nodes[node].gone {
            return;
        }
        let lifetime = self.new_lifetime();
        let setup = AgentSetup {
            members: self.plan.list(),
            rules: self.plan.rules,
            bugs: self.options.bugs,
            lifetime: Lifetime(lifetime),
        };
        let now = self.nodes[node].agent_host.now(self.real);
        self.nodes[node].start_agent(lifetime, Agent::new(setup, now));
        self.half_closed.retain(|(agent, _)| *agent != node);
        self.log(|| format!("n{node} agent starts: a{lifetime}"));
        for about in 0..self.plan.members {
            let delay = if about == node {
                0
            } else {
                self.random.spread(MICROSECOND, CONNECT)
            };
            self.inform(node, about, true, delay);
        }
        for client in 0..self.nodes[node].clients.len() {
            let pause = match self.nodes[node].clients[client].activity {
                // It has outlived its agent.
                Activity::Holding(_) => self.random.spread(MILLISECOND, self.plan.hold),
                _ => self.think(),
            };
            self.schedule_client(node, client, pause);
        }
        self.arm(node, Role::Agent);
    }

    /// Starts a voter, unless one is up or the node is a guest.
    pub fn start_voter(&mut self, node: usize) {
        if !self.nodes[node].is_up(Role::Voter) && !self.is_guest(node) {
            self.begin_life(node, None);
        }
    }

    /// Starts a voter as its host does: a life above the stored one, and above the one that another voter has `seen`,
    /// is stored first. In that case the file was old. The voter then starts with the last mark of all its disks, and
    /// there may be guests.
    fn begin_life(&mut self, node: usize, seen: Option<u32>) {
        let found = &mut self.nodes[node];
        let last = found.disk;
        let file = StateFile {
            life: last.life.max(seen.unwrap_or(0)) + 1,
            mark: seen.map_or(last.mark, |_| found.last_mark),
            lease: last.lease.max(self.plan.rules.voter_lease),
            guests: last.guests || seen.is_some() && self.plan.guests > 0,
            is_old: last.is_old && seen.is_none(),
        };
        let (life, mark) = (file.life, file.mark);
        found.earlier_disks.push(last);
        found.disk = file;
        let number = self.new_lifetime();
        let setup = VoterSetup {
            members: self.plan.list(),
            me: World::member(node),
            rules: self.plan.rules,
            bugs: self.options.bugs,
            lifetime: Lifetime::new(life, number as u32),
            quarantine: self.options.quarantine.unwrap_or(file.lease),
            guests: file.guests,
            begins: false,
            mark,
            durable: true,
        };
        let now = self.nodes[node].voter_host.now(self.real);
        self.nodes[node].has_old_mark = file.is_old;
        let seen = &mut self.nodes[node];
        seen.numbers.clear();
        seen.quarantine = Some((now + setup.quarantine, file.guests));
        seen.start_voter(setup.lifetime, Voter::new(setup, now));
        self.closing.retain(|(_, voter)| *voter != node);
        if self.healed {
            self.schedule_voting();
        }
        self.log(|| format!("n{node} voter starts: v{life}/{number}, mark {}", mark.0));
        self.call_voter(node, |_, _| ());
    }

    /// Another voter knows a later life. Writes that were in progress are those of an earlier life.
    fn supersede(&mut self, node: usize, seen: Lifetime) {
        self.summary.count("voters superseded");
        self.log(|| format!("n{node} voter superseded by life {}", seen.life()));
        self.nodes[node].storing.clear();
        self.nodes[node].storing_guests.clear();
        self.begin_life(node, Some(seen.life()));
    }

    /// Calls an agent, if it is up.
    pub fn call_agent(&mut self, node: usize, call: impl FnOnce(&mut Agent, Time)) {
        let late = self.plan.late_flushes;
        let waits = !self.healed && late > 0 && self.random.chance(late);
        let now = self.nodes[node].agent_host.now(self.real);
        let lifetime = self.nodes[node].agent_host.lifetime;
        self.check(|checker, view| checker.before_agent(node, view));
        let Some(agent) = &mut self.nodes[node].agent else {
            return;
        };
        call(agent, now);
        if !waits {
            agent.flush(now);
        }
        let outputs = agent.outputs();
        if waits && !self.nodes[node].flush_scheduled {
            self.nodes[node].flush_scheduled = true;
            let delay = self.random.between(1, FLUSH);
            self.push(self.real + delay, Event::Flush(node, lifetime));
        }
        self.carry_out_agent(node, outputs);
        self.check(|checker, view| checker.after_agent(node, view));
        self.arm(node, Role::Agent);
    }

    /// The mailbox of an agent is empty.
    pub fn flush(&mut self, node: usize) {
        self.nodes[node].flush_scheduled = false;
        let now = self.nodes[node].agent_host.now(self.real);
        let Some(agent) = &mut self.nodes[node].agent else {
            return;
        };
        agent.flush(now);
        let outputs = agent.outputs();
        self.carry_out_agent(node, outputs);
        self.arm(node, Role::Agent);
    }

    fn carry_out_agent(&mut self, node: usize, outputs: Vec<AgentOutput>) {
        for output in outputs {
            if !matches!(output, AgentOutput::Send(_) | AgentOutput::GaveBack) {
                self.log(|| format!("n{node} {output:?}"));
            }
            match output {
                AgentOutput::Send(Send { to, frame }) => {
                    let to = to.member().expect("agents send to members").place();
                    self.check(|checker, view| checker.agent_sends(node, to, &frame, view));
                    self.send(node, to, &frame);
                }
                AgentOutput::Granted {
                    request,
                    token,
                    attempt,
                    path: _,
                    fence,
                    standing,
                } => {
                    let client = self.check(|checker, view| {
                        checker.granted(request, (token, attempt), fence, standing, view)
                    });
                    if let Some(client) = client {
                        self.client_holds(node, client, token);
                    }
                }
                AgentOutput::Refused { request, why } => {
                    let client = self.check(|checker, view| checker.refused(request, why, view));
                    self.client_answered(node, client, request);
                }
                AgentOutput::Unlocked { request, confirmed } => {
                    let client =
                        self.check(|checker, view| checker.unlocked(request, confirmed, view));
                    self.client_answered(node, client, request);
                }
                AgentOutput::Accepted { request } => {
                    self.check(|checker, view| checker.accepted(request, view));
                }
                AgentOutput::GaveBack => self.summary.count("requests that gave their votes back"),
                AgentOutput::AtRisk { token } => {
                    self.check(|checker, view| checker.at_risk(node, token, view));
                }
                AgentOutput::Lost { token, why } => {
                    self.check(|checker, view| checker.lost(node, token, why, view));
                }
            }
        }
    }

    /// Calls a voter, if it is up.
    pub fn call_voter(&mut self, node: usize, call: impl FnOnce(&mut Voter, Time)) {
        let now = self.nodes[node].voter_host.now(self.real);
        let Some(voter) = &mut self.nodes[node].voter else {
            return;
        };
        self.checker.before_voter(voter, now);
        call(voter, now);
        let outputs = voter.outputs();
        let shown = &mut self.nodes[node].voter_shown;
        *shown = (*shown).max(now);
        self.carry_out_voter(node, outputs);
        self.shorten_lease(node);
        self.watch_quarantine(node, now);
        self.check(|checker, view| checker.after_voter(node, view));
        self.arm(node, Role::Voter);
    }

    fn carry_out_voter(&mut self, node: usize, outputs: Vec<VoterOutput>) {
        for output in outputs {
            match output {
                VoterOutput::Send(Send { to, frame }) => {
                    self.check(|checker, view| checker.voter_sends(node, &frame, view));
                    let to = self.nodes[node].place_of(to);
                    self.send(node, to, &frame);
                }
                VoterOutput::StoreGuests(guests) => self.write_guests(node, guests),
                VoterOutput::Superseded { seen } => return self.supersede(node, seen),
                VoterOutput::Ready => unreachable!("no view begins"),
                VoterOutput::Store(fence) => {
                    self.summary.count("fences stored");
                    self.nodes[node].storing.push(fence);
                    let lifetime = self.nodes[node].voter_host.lifetime;
                    let delay = self.random.spread(10 * MICROSECOND, self.plan.store);
                    let stored = Event::Stored(node, lifetime, fence);
                    self.push(self.real + delay, stored);
                }
            }
        }
    }

    /// Writes of guests are made one after the other.
    fn write_guests(&mut self, node: usize, guests: bool) {
        self.summary.count(match guests {
            true => "guests begin",
            false => "guests end",
        });
        let delay = self.random.spread(10 * MICROSECOND, self.plan.store);
        let real = self.real;
        let seen = &mut self.nodes[node];
        seen.storing_guests.push_back(guests);
        seen.guests_stored_at = seen.guests_stored_at.max(real + delay);
        let (lifetime, at) = (seen.voter_host.lifetime, seen.guests_stored_at);
        self.push(at, Event::GuestsStored(node, lifetime));
    }

    pub fn guests_stored(&mut self, node: usize) {
        let informs = self.nodes[node].store_guests();
        self.log(|| format!("n{node} stored whether there are guests, some: {informs}"));
        if informs {
            self.call_voter(node, |voter, now| voter.guests_stored(now));
        }
    }

    fn watch_quarantine(&mut self, node: usize, now: Time) {
        let seen = &mut self.nodes[node];
        let voter = seen.voter.as_ref();
        let over = voter.is_some_and(|voter| voter.state() != VoterState::Quarantined);
        if let Some((until, with_guests)) = seen.quarantine.take_if(|_| over) {
            if with_guests && now >= until {
                self.summary.count("quarantines with guests");
            }
        }
    }

    /// A voter that votes has ended its quarantine, and with it the promises of earlier lives.
    fn shorten_lease(&mut self, node: usize) {
        let lease = self.plan.rules.voter_lease;
        let seen = &mut self.nodes[node];
        if seen.voter.as_ref().is_some_and(Voter::is_voting) {
            seen.disk.lease = lease;
        }
    }

    pub fn stored(&mut self, node: usize, fence: Fence) {
        let seen = &mut self.nodes[node];
        seen.storing.retain(|other| *other != fence);
        seen.store(fence);
        self.log(|| format!("n{node} stored {}", fence.0));
        self.call_voter(node, |voter, now| voter.stored(now, fence));
    }

    /// Adds a frame to the trace: when it is sent, with its route, and when it arrives.
    fn note_frame(&mut self, from: usize, to: usize, frame: &Frame, sent: Option<Route>) {
        let real = self.real;
        let line = || {
            let delay = |at: Real| format!("{:.3} ms", (at - real) as f64 / MILLISECOND as f64);
            let route = match sent {
                None => " arrived".into(),
                Some(Route { arrives: None, .. }) => " lost".into(),
                Some(route) => {
                    let arrivals = [route.arrives, route.duplicate].into_iter().flatten();
                    let delays: Vec<String> = arrivals.map(delay).collect();
                    format!(" in {}", delays.join(" and "))
                }
            };
            format!("n{from} -> n{to}{route}: {}", describe(frame))
        };
        let words = [from as u64, to as u64];
        if is_heartbeat(frame) {
            self.trace.note_heartbeat(real, &words, line);
        } else {
            self.trace.note(real, &words, line);
        }
    }

    fn send(&mut self, from: usize, to: usize, frame: &Frame) {
        let bytes = frame::encode(frame);
        self.trace.bytes(&bytes);
        let route = self.network.route(&mut self.random, self.real, from, to);
        let role = Role::of_receiver(frame);
        self.summary.count("frames");
        for (what, happened) in [
            ("frames lost", route.arrives.is_none()),
            ("frames duplicated", route.duplicate.is_some()),
            ("frames held back", route.held_back),
        ] {
            if happened {
                self.summary.count(what);
            }
        }
        self.note_frame(from, to, frame, Some(route));
        let event = Event::Frame {
            from,
            to,
            role,
            bytes: bytes.into(),
        };
        for at in [route.arrives, route.duplicate].into_iter().flatten() {
            self.push(at, event.clone());
        }
    }

    /// A frame arrives at a machine that is up.
    pub fn arrive(&mut self, from: usize, to: usize, role: Role, bytes: &[u8]) {
        let frame = match frame::decode(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                let text = || format!("a frame of n{from} cannot be decoded: {error:?}");
                return self.checker.violated(Label::Wire, text);
            }
        };
        self.note_frame(from, to, &frame, None);
        match role {
            Role::Agent => {
                self.check(|checker, view| checker.agent_receives(from, to, &frame, view));
                let sender = World::member(from);
                self.call_agent(to, |agent, now| agent.receive(now, sender, frame));
                self.check(|checker, view| checker.check_conflicts(from, view));
            }
            Role::Voter => {
                self.check(|checker, view| checker.voter_receives(from, to, &frame, view));
                let sender = match self.is_guest(from) {
                    true => self.number(to, from),
                    false => World::member(from).into(),
                };
                self.call_voter(to, |voter, now| voter.receive(now, sender, frame));
                self.check(Checker::after_batch);
            }
        }
    }

    /// How a voter calls a guest.
    fn number(&mut self, voter: usize, guest: usize) -> NodeId {
        let seen = &mut self.nodes[voter];
        let (is_new, before) = (seen.number_of(guest).is_none(), seen.numbers.len());
        let number = seen.give_number(guest);
        if is_new && seen.numbers.len() == before {
            self.summary.count("numbers of guests used again");
        }
        number
    }

    /// A voter is informed that the node of an agent is disconnected, unless both have been connected again since.
    pub fn closed(&mut self, voter: usize, node: usize) {
        if !self.closing.remove(&(node, voter)) || self.healed {
            return;
        }
        if self.nodes[node].connected.contains(World::member(voter)) {
            self.half_closed.insert((node, voter));
        }
        let number = match self.is_guest(node) {
            true => self.nodes[voter].number_of(node),
            false => Some(World::member(node).into()),
        };
        let Some(number) = number else {
            return;
        };
        self.summary.count("connections that voters found closed");
        self.log(|| format!("n{voter} voter is informed: n{node} down"));
        self.call_voter(voter, |voter, now| voter.down(now, number));
    }

    /// An agent is informed that a member is connected or disconnected. After healing no link is down. Before both are
    /// connected again, both are informed that they were not.
    pub fn connection(&mut self, node: usize, about: usize, up: bool) {
        let half_closed = self.half_closed.remove(&(node, about));
        if up && half_closed {
            self.connection(node, about, false);
        }
        if !up && self.healed && !half_closed {
            return;
        }
        if up && self.closing.contains(&(node, about)) {
            self.handle(Event::Closed { voter: about, node });
        }
        let change = if up { "up" } else { "down" };
        self.log(|| format!("n{node} is informed: n{about} {change}"));
        let member = World::member(about);
        let seen = &mut self.nodes[node];
        seen.connected = if up {
            seen.connected.with(member)
        } else {
            seen.connected.without(member)
        };
        let is_quorum = self.checker.is_quorum(seen.connected);
        seen.quorum_since = is_quorum.then(|| seen.quorum_since.unwrap_or(self.real));
        self.checker.connection(node, about);
        let inform = if up { Agent::up } else { Agent::down };
        self.call_agent(node, |agent, now| inform(agent, now, member));
    }

    /// A timer fires. If the clock has been slower than expected, it is set again.
    pub fn timer(&mut self, node: usize, role: Role, version: u64) {
        let real = self.real;
        let host = self.nodes[node].host_mut(role);
        if host.version != version {
            return;
        }
        let now = host.now(real);
        if host.armed.take().is_none_or(|deadline| deadline > now) {
            return self.arm(node, role);
        }
        self.trace
            .note_heartbeat(real, &[node as u64], || format!("n{node} {role:?} ticks"));
        match role {
            Role::Agent => {
                self.call_agent(node, |agent, now| agent.tick(now));
                self.check(|checker, view| checker.after_timer(node, view));
            }
            Role::Voter => self.call_voter(node, |voter, now| voter.tick(now)),
        }
        self.arm(node, role);
        let host = self.nodes[node].host_mut(role);
        let now = host.now(real);
        let due = host.armed.is_some_and(|deadline| deadline <= now);
        host.spins = if due { host.spins + 1 } else { 0 };
        if host.spins > MOST_SPINS {
            let text = || format!("n{node}: the timer of the {role:?} is always due at once");
            self.checker.violated(Label::Spin, text);
        }
    }
}
