//! Each call of a machine, and what comes of it: frames onto the network, answers to clients, the next timer; and the
//! checker is shown each.

use super::clock::{Real, MICROSECOND, MILLISECOND};
use super::network::Route;
use super::node::Part;
use super::trace::{describe, is_dull};
use super::world::{part_for, Event, World, DRAIN, MEET};
use crate::invariants::Label;
use quorum::agent::{Agent, AgentOutput, AgentSetup};
use quorum::frame;
use quorum::members::{MemberSet, Members};
use quorum::message::{Fence, Frame, Lifetime, Send};
use quorum::time::Time;
use quorum::voter::{Fences, Voter, VoterOutput, VoterSetup};

/// A machine that wants to be woken at once so many times running does nothing else.
const MOST_SPINS: u32 = 20_000;

impl World {
    fn members(&self, node: usize) -> Members {
        Members::new(self.nodes.len(), node).expect("a node is a member")
    }

    /// A new life of an agent, if it has none.
    pub fn agent_starts(&mut self, node: usize) {
        if self.nodes[node].alive(Part::Agent) {
            return;
        }
        let life = self.new_life();
        let setup = AgentSetup {
            members: self.members(node),
            rules: self.plan.rules,
            bugs: self.bugs,
            lifetime: Lifetime(life),
            seed: self.random.word(),
        };
        let now = self.nodes[node].agent.now(self.real);
        let known = &mut self.nodes[node];
        known.agent.begin(life, Agent::new(setup, now));
        (known.told, known.quorum_since, known.drains) = (MemberSet::EMPTY, None, false);
        self.say(|| format!("n{node} agent starts: a{life}"));
        for about in 0..self.nodes.len() {
            let soon = if about == node {
                0
            } else {
                self.random.spread(MICROSECOND, MEET)
            };
            self.tell(node, about, true, soon);
        }
        for client in 0..self.nodes[node].clients.len() {
            let pause = self.think();
            self.later(node, client, pause);
        }
        self.arm(node, Part::Agent);
    }

    /// A new life of a voter, if it has none.
    pub fn voter_starts(&mut self, node: usize) {
        if self.nodes[node].alive(Part::Voter) {
            return;
        }
        let floor = self.floor(node);
        let origin = self.wall();
        let life = self.new_life();
        let setup = VoterSetup {
            members: self.members(node),
            rules: self.plan.rules,
            bugs: self.bugs,
            lifetime: Lifetime(life),
            fences: Fences {
                floor,
                origin,
                durable: self.plan.fences == super::plan::Fences::Durable,
            },
        };
        let now = self.nodes[node].voter.now(self.real);
        self.nodes[node].voter.begin(life, Voter::new(setup, now));
        self.voter_is_called_by(node, life);
        self.say(|| format!("n{node} voter starts: v{life}, floor {floor:?}"));
        self.voter(node, |_, _| ());
    }

    /// A call of the agent of `node`, which lives and is not paused.
    pub fn agent(&mut self, node: usize, call: impl FnOnce(&mut Agent, Time)) {
        let drains = self.plan.drains;
        let waits = !self.quiet && drains > 0 && self.random.chance(drains);
        let seat = &mut self.nodes[node].agent;
        let (now, life) = (seat.now(self.real), seat.life);
        let Some(agent) = &mut seat.machine else {
            return;
        };
        call(agent, now);
        if !waits {
            agent.flush(now);
        }
        let outputs = agent.outputs();
        if waits && !self.nodes[node].drains {
            self.nodes[node].drains = true;
            let soon = self.random.between(1, DRAIN);
            self.push(self.real + soon, Event::Drained { node, life });
        }
        self.agent_said(node, outputs);
        self.checker.agent_did(node, &self.nodes, self.real);
        self.arm(node, Part::Agent);
    }

    /// The mailbox of the agent of `node` is empty.
    pub fn drained(&mut self, node: usize) {
        self.nodes[node].drains = false;
        let seat = &mut self.nodes[node].agent;
        let now = seat.now(self.real);
        let Some(agent) = &mut seat.machine else {
            return;
        };
        agent.flush(now);
        let outputs = agent.outputs();
        self.agent_said(node, outputs);
        self.arm(node, Part::Agent);
    }

    fn agent_said(&mut self, node: usize, outputs: Vec<AgentOutput>) {
        for output in outputs {
            match output {
                AgentOutput::Send(Send { to, frame }) => {
                    self.checker
                        .agent_sends(node, to.place(), &frame, &self.nodes, self.real);
                    self.send(node, to.place(), &frame);
                }
                AgentOutput::Granted {
                    request,
                    token,
                    attempt,
                    fence,
                    standing,
                } => {
                    self.say(|| {
                        format!(
                            "n{node} granted r{} t{} fence {}",
                            request.0, token.0, fence.0
                        )
                    });
                    let client = self.checker.granted(
                        request,
                        (token, attempt),
                        fence,
                        standing,
                        &self.nodes,
                        self.real,
                    );
                    if let Some(client) = client {
                        self.client_has(node, client, token);
                    }
                }
                AgentOutput::Refused { request, why } => {
                    self.say(|| format!("n{node} refused r{} {why:?}", request.0));
                    if let Some(client) = self.checker.refused(request, why, &self.nodes, self.real)
                    {
                        self.client_goes_on(node, client, request);
                    }
                }
                AgentOutput::Unlocked { request, confirmed } => {
                    self.say(|| format!("n{node} unlocked r{} {confirmed}", request.0));
                    if let Some(client) =
                        self.checker
                            .unlocked(request, confirmed, &self.nodes, self.real)
                    {
                        self.client_goes_on(node, client, request);
                    }
                }
                AgentOutput::Accepted { request } => {
                    self.say(|| format!("n{node} accepted r{}", request.0));
                    self.checker.accepted(request, &self.nodes, self.real);
                }
                AgentOutput::AtRisk { token } => {
                    self.say(|| format!("n{node} at risk t{}", token.0));
                    self.checker.at_risk(node, &self.nodes, token, self.real);
                }
                AgentOutput::Lost { token, why } => {
                    self.say(|| format!("n{node} lost t{} {why:?}", token.0));
                    self.checker.lost(node, &self.nodes, token, why, self.real);
                }
            }
        }
    }

    /// A call of the voter of `node`, which lives and is not paused.
    pub fn voter(&mut self, node: usize, call: impl FnOnce(&mut Voter, Time)) {
        let seat = &mut self.nodes[node].voter;
        let now = seat.now(self.real);
        let Some(voter) = &mut seat.machine else {
            return;
        };
        call(voter, now);
        let mut outputs = voter.outputs();
        if std::mem::take(&mut self.nodes[node].doomed) {
            let done = self.random.between(0, outputs.len() as i64);
            outputs.truncate(done as usize);
            self.orphan_voter(node);
        }
        self.voter_said(node, outputs);
        self.checker.voter_did(node, &self.nodes, self.real);
        self.arm(node, Part::Voter);
    }

    fn voter_said(&mut self, node: usize, outputs: Vec<VoterOutput>) {
        for output in outputs {
            match output {
                VoterOutput::Send(Send { to, frame }) => {
                    self.checker.voter_sends(node, &frame, &self.nodes);
                    self.send(node, to.place(), &frame);
                }
                VoterOutput::Store(mark) => {
                    self.summary.count("marks stored");
                    self.nodes[node].storing.push(mark);
                    let process = self.nodes[node].process;
                    let span = self.random.spread(10 * MICROSECOND, self.plan.store);
                    self.push(
                        self.real + span,
                        Event::Stored {
                            node,
                            process,
                            mark,
                        },
                    );
                }
            }
        }
    }

    /// The disk has taken a mark.
    pub fn has_stored(&mut self, node: usize, mark: Fence) {
        let known = &mut self.nodes[node];
        known.storing.retain(|other| *other != mark);
        known.stored = known.stored.max(Some(mark));
        self.say(|| format!("n{node} stored {}", mark.0));
        self.voter(node, |voter, now| voter.stored(now, mark));
    }

    fn send(&mut self, from: usize, to: usize, frame: &Frame) {
        let bytes = frame::encode(frame);
        self.trace.bytes(&bytes);
        let route = self.network.route(&mut self.random, self.real, from, to);
        let part = part_for(frame);
        self.summary.count("frames");
        self.summary.add("bytes", bytes.len() as u64);
        let Route {
            arrives,
            again,
            held_back,
        } = route;
        for (what, happened) in [
            ("frames lost", arrives.is_none()),
            ("frames doubled", again.is_some()),
            ("frames held back", held_back),
        ] {
            if happened {
                self.summary.count(what);
            }
        }
        let real = self.real;
        let line = || {
            let span = |at: Real| (at - real) as f64 / MILLISECOND as f64;
            let fate = arrives.map_or(String::from("lost"), |at| format!("{:.3} ms", span(at)));
            let twice = again.map_or(String::new(), |at| format!(" and {:.3} ms", span(at)));
            format!("n{from} -> n{to} [{fate}{twice}] {}", describe(frame))
        };
        let words = [from as u64, to as u64];
        if is_dull(frame) {
            self.trace.note_dull(real, &words, line);
        } else {
            self.trace.note(real, &words, line);
        }
        let bytes: std::rc::Rc<[u8]> = bytes.into();
        for at in [arrives, again].into_iter().flatten() {
            self.push(
                at,
                Event::Arrives {
                    from,
                    to,
                    part,
                    bytes: bytes.clone(),
                },
            );
        }
    }

    /// A frame arrives at a machine that lives.
    pub fn arrives(&mut self, from: usize, to: usize, part: Part, bytes: &[u8]) {
        let frame = match frame::decode(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                self.checker.violated(Label::Wire, || {
                    format!("a frame of n{from} cannot be read: {error:?}")
                });
                return;
            }
        };
        let line = || format!("n{from} => n{to} {}", describe(&frame));
        if is_dull(&frame) {
            self.trace
                .note_dull(self.real, &[from as u64, to as u64], line);
        } else {
            self.trace.note(self.real, &[from as u64, to as u64], line);
        }
        match part {
            Part::Agent => {
                self.checker
                    .agent_hears(from, to, &frame, &self.nodes, self.real);
                self.agent(to, |agent, now| {
                    agent.receive(now, World::member(from), frame)
                });
            }
            Part::Voter => {
                self.checker.voter_hears(to, &frame, &self.nodes);
                self.voter(to, |voter, now| {
                    voter.receive(now, World::member(from), frame)
                });
                self.checker.voter_heard(&self.nodes);
            }
        }
    }

    /// An agent is told that a member came or went. That it went is told no more once all is well.
    pub fn is_told(&mut self, node: usize, about: usize, up: bool) {
        if !up && self.quiet {
            return;
        }
        self.say(|| {
            format!(
                "n{node} is told: n{about} {}",
                if up { "up" } else { "down" }
            )
        });
        let member = World::member(about);
        let quorum = self.nodes.len() / 2 + 1;
        let known = &mut self.nodes[node];
        known.told = if up {
            known.told.with(member)
        } else {
            known.told.without(member)
        };
        known.quorum_since =
            (known.told.len() >= quorum).then(|| known.quorum_since.unwrap_or(self.real));
        self.checker.told(node, about);
        self.agent(node, |agent, now| {
            if up {
                agent.up(now, member)
            } else {
                agent.down(now, member)
            }
        });
    }

    /// A timer rings. Clocks that were too slow since it was set make it ring again.
    pub fn timer(&mut self, node: usize, part: Part, version: u64) {
        let real = self.real;
        let (armed, now, current) = match part {
            Part::Agent => (
                self.nodes[node].agent.armed,
                self.nodes[node].agent.now(real),
                self.nodes[node].agent.version,
            ),
            Part::Voter => (
                self.nodes[node].voter.armed,
                self.nodes[node].voter.now(real),
                self.nodes[node].voter.version,
            ),
        };
        if current != version {
            return;
        }
        let due = armed.is_some_and(|deadline| deadline <= now);
        match part {
            Part::Agent => self.nodes[node].agent.armed = None,
            Part::Voter => self.nodes[node].voter.armed = None,
        }
        if !due {
            return self.arm(node, part);
        }
        self.trace
            .note_dull(real, &[node as u64], || format!("n{node} {part:?} ticks"));
        match part {
            Part::Agent => {
                self.agent(node, |agent, now| agent.tick(now));
                self.checker.agent_ticked(node, &self.nodes, real);
            }
            Part::Voter => self.voter(node, |voter, now| voter.tick(now)),
        }
        self.arm(node, part);
        self.watch_spin(node, part);
    }

    fn watch_spin(&mut self, node: usize, part: Part) {
        let real = self.real;
        let known = &mut self.nodes[node];
        let (now, armed, spins) = match part {
            Part::Agent => (
                known.agent.now(real),
                known.agent.armed,
                &mut known.agent.spins,
            ),
            Part::Voter => (
                known.voter.now(real),
                known.voter.armed,
                &mut known.voter.spins,
            ),
        };
        *spins = if armed.is_some_and(|deadline| deadline <= now) {
            *spins + 1
        } else {
            0
        };
        if *spins > MOST_SPINS {
            self.checker.violated(Label::Spin, || {
                format!("n{node} {part:?} wants to be woken at once, for ever")
            });
        }
    }

    /// The clocks of `node` go on in another way.
    pub fn rearm(&mut self, node: usize) {
        self.nodes[node].agent.armed = None;
        self.nodes[node].voter.armed = None;
        self.arm(node, Part::Agent);
        self.arm(node, Part::Voter);
    }

    /// Sets the timer by the machine's deadline, if that is another one now. It will ring a little late.
    fn arm(&mut self, node: usize, part: Part) {
        let known = &mut self.nodes[node];
        let (deadline, armed, clock) = match part {
            Part::Agent => (
                known.agent.machine.as_ref().and_then(Agent::deadline),
                known.agent.armed,
                known.agent.clock,
            ),
            Part::Voter => (
                known.voter.machine.as_ref().and_then(Voter::deadline),
                known.voter.armed,
                known.voter.clock,
            ),
        };
        if deadline == armed {
            return;
        }
        let version = match part {
            Part::Agent => {
                (known.agent.armed, known.agent.version) = (deadline, known.agent.version + 1);
                known.agent.version
            }
            Part::Voter => {
                (known.voter.armed, known.voter.version) = (deadline, known.voter.version + 1);
                known.voter.version
            }
        };
        if let Some(deadline) = deadline {
            let lateness = if self.quiet {
                10 * MILLISECOND
            } else {
                self.plan.lateness
            };
            let late = self.random.spread(MICROSECOND, lateness);
            let at = clock.when(self.real, deadline).saturating_add(late);
            self.push(
                at,
                Event::Timer {
                    node,
                    part,
                    version,
                },
            );
        }
    }
}
