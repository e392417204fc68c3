//! Calls of the machines, and their outputs.

use super::plan::Setting;
use super::questions;
use super::world::{Activity, Event, World};
use crate::simulation::clock::{Real, MICROSECOND, MILLISECOND};
use quorum::agent::{AgentOutput, Request};
use quorum::envelope::Envelope;
use quorum::frame;
use quorum::message::Mode;
use quorum::node_agent::{NodeAgent, NodeAgentOutput, NodeAgentSetup};
use quorum::node_voter::{NodeVoter, NodeVoterOutput, NodeVoterSetup, State};
use quorum::time::Time;
use quorum::view::NodeName;
use quorum::view::Role;
use std::time::Duration;

/// How late a timer fires at most.
const LATE: Real = 2 * MILLISECOND;

impl World {
    pub fn index(&self, name: &NodeName) -> usize {
        let found = self.names.iter().position(|known| known == name);
        found.expect("a node of the plan")
    }

    pub fn list(&self, bits: u32) -> Vec<NodeName> {
        let places = (0..self.plan.nodes).filter(|place| bits & 1 << place != 0);
        places.map(|place| self.names[place].clone()).collect()
    }

    pub fn start_voter(&mut self, node: usize) {
        if self.nodes[node].voter.machine.is_some() || self.nodes[node].off {
            return;
        }
        let life = self.new_life();
        let setup = NodeVoterSetup {
            node: self.names[node].clone(),
            seeds: self.list(self.plan.first),
            lease_ms: self.plan.lease_ms,
            rules: self.rules(),
            bugs: self.options.bugs,
            durable: true,
            clients: true,
            random: self.random.word(),
        };
        self.log(|| format!("n{node} voter starts"));
        let file = self.nodes[node].file.clone();
        let host = &mut self.nodes[node].voter;
        host.life = life;
        self.nodes[node].stored_at = self.real;
        let host = &mut self.nodes[node].voter;
        let now = host.clock.at(self.real);
        host.machine = Some(NodeVoter::new(setup, file, now));
        self.call_voter(node, |_, _| ());
    }

    pub fn start_agent(&mut self, node: usize) {
        if self.nodes[node].agent.machine.is_some() || self.nodes[node].off {
            return;
        }
        let lifetime = self.lifetime();
        let setup = NodeAgentSetup {
            node: self.names[node].clone(),
            seeds: self.list(self.plan.first),
            rules: self.rules(),
            bugs: self.options.bugs,
            lifetime,
        };
        self.log(|| format!("n{node} agent starts"));
        let host = &mut self.nodes[node].agent;
        host.life = lifetime.0;
        let now = host.clock.at(self.real);
        host.machine = Some(NodeAgent::new(setup, now));
        for about in 0..self.plan.nodes {
            let delay = if about == node {
                0
            } else {
                self.random.spread(MICROSECOND, 50 * MILLISECOND)
            };
            self.push(
                self.real + delay,
                Event::Connection {
                    node,
                    about,
                    up: true,
                },
            );
        }
        self.call_agent(node, |_, _| ());
        let pause = self.think();
        self.becomes(node, Activity::Idle, pause);
    }

    pub fn call_voter(&mut self, node: usize, call: impl FnOnce(&mut NodeVoter, Time)) {
        let host = &mut self.nodes[node].voter;
        let now = host.clock.at(self.real);
        let life = host.life;
        let Some(voter) = &mut host.machine else {
            return;
        };
        call(voter, now);
        for output in voter.outputs() {
            match output {
                NodeVoterOutput::Post(post) => {
                    let to = self.index(&post.to);
                    self.send(node, to, post.role, post.envelope);
                }
                NodeVoterOutput::Store(number, state) => {
                    // One write after the other.
                    let delay = self.random.spread(10 * MICROSECOND, self.plan.store);
                    let at = self.nodes[node].stored_at.max(self.real) + delay;
                    self.nodes[node].stored_at = at;
                    self.push(at, Event::Stored(node, life, number, state));
                }
                NodeVoterOutput::Answer(request, answer) => self.answered(node, request, answer),
                NodeVoterOutput::Took(record) => {
                    self.log(|| format!("n{node} takes {record:?}"));
                    self.check_record(node, &record);
                }
                NodeVoterOutput::Lost => self.count("lost members"),
                NodeVoterOutput::OtherCluster(..) => self.count("other clusters"),
                NodeVoterOutput::OtherList(_) => self.count("other lists"),
            }
        }
        self.arm(node, Role::Voter);
    }

    pub fn call_agent(&mut self, node: usize, call: impl FnOnce(&mut NodeAgent, Time)) {
        let host = &mut self.nodes[node].agent;
        let now = host.clock.at(self.real);
        let Some(agent) = &mut host.machine else {
            return;
        };
        call(agent, now);
        agent.flush(now);
        for output in agent.outputs() {
            match output {
                NodeAgentOutput::Post(post) => {
                    let to = self.index(&post.to);
                    self.send(node, to, post.role, post.envelope);
                }
                NodeAgentOutput::Agent(output) => self.of_agent(node, output),
                NodeAgentOutput::Adopted(record) => {
                    self.log(|| format!("n{node} agent adopts {}", record.id.number))
                }
                NodeAgentOutput::OtherCluster { .. } => {}
            }
        }
        self.arm(node, Role::Agent);
    }

    fn of_agent(&mut self, node: usize, output: AgentOutput) {
        match output {
            AgentOutput::Granted {
                request,
                token,
                fence,
                standing,
                ..
            } => {
                self.log(|| format!("n{node} granted t{} fence {}", token.0, fence.0));
                if self.granted(node, request.0, token, fence, standing) {
                    let hold = self.random.spread(MILLISECOND, self.plan.hold);
                    self.becomes(node, Activity::Holding(token), hold);
                    if self.options.setting == Setting::Contended {
                        self.while_held(node, hold);
                    }
                } else {
                    self.call_agent(node, |agent, now| {
                        agent.agent().unlock_async(now, token, Request(request.0));
                    });
                }
            }
            AgentOutput::Refused { request, why } => {
                if matches!(self.nodes[node].activity, Activity::Waiting(own, _) if own == request.0)
                {
                    self.refused(node, why);
                    let pause = self.think();
                    self.becomes(node, Activity::Idle, pause);
                }
            }
            AgentOutput::Lost { token, .. } => {
                self.log(|| format!("n{node} lost t{}", token.0));
                self.lost(node, token);
                if self.nodes[node].activity == Activity::Holding(token) {
                    let pause = self.think();
                    self.becomes(node, Activity::Idle, pause);
                }
            }
            AgentOutput::Send(_) => unreachable!("it is a post"),
            AgentOutput::Unlocked { .. }
            | AgentOutput::Accepted { .. }
            | AgentOutput::AtRisk { .. }
            | AgentOutput::GaveBack => {}
        }
    }

    pub fn arrive(&mut self, from: usize, to: usize, role: Role, envelope: Envelope) {
        // As on the wire.
        let mut bytes = Vec::new();
        frame::encode_content(&envelope.content, &mut bytes);
        let content = frame::decode_content(&bytes).expect("it was encoded");
        let envelope = Envelope {
            view: envelope.view,
            content,
        };
        let from = self.names[from].clone();
        match role {
            Role::Voter => self.call_voter(to, |voter, now| voter.receive(now, &from, envelope)),
            Role::Agent => self.call_agent(to, |agent, now| agent.receive(now, &from, envelope)),
        }
    }

    pub fn stored(&mut self, node: usize, life: u64, number: u64, state: State) {
        if self.nodes[node].voter.life != life || self.nodes[node].voter.machine.is_none() {
            return;
        }
        self.log(|| {
            format!(
                "n{node} stored {number}: life {}, voted {}, mark {}",
                state.life, state.has_voted, state.mark.0
            )
        });
        self.nodes[node].file = Some(state);
        self.call_voter(node, |voter, now| voter.stored(now, number));
    }

    pub fn connection(&mut self, node: usize, about: usize, up: bool) {
        let name = self.names[about].clone();
        match up {
            true => self.call_agent(node, |agent, now| agent.up(now, &name)),
            false => self.call_agent(node, |agent, now| agent.down(now, &name)),
        }
    }

    fn arm(&mut self, node: usize, role: Role) {
        let seen = &mut self.nodes[node];
        let (deadline, clock, version) = match role {
            Role::Voter => (
                seen.voter.machine.as_ref().and_then(NodeVoter::deadline),
                seen.voter.clock,
                &mut seen.voter.version,
            ),
            Role::Agent => (
                seen.agent.machine.as_ref().and_then(NodeAgent::deadline),
                seen.agent.clock,
                &mut seen.agent.version,
            ),
        };
        *version += 1;
        let version = *version;
        if let Some(deadline) = deadline {
            let late = self.random.spread(MICROSECOND, LATE);
            let at = clock.when(self.real, deadline).saturating_add(late);
            self.push(at, Event::Timer(node, role, version));
        }
    }

    pub fn timer(&mut self, node: usize, role: Role, version: u64) {
        match role {
            Role::Voter if self.nodes[node].voter.version == version => {
                self.call_voter(node, |voter, now| voter.tick(now));
            }
            Role::Agent if self.nodes[node].agent.version == version => {
                self.call_agent(node, |agent, now| agent.tick(now));
            }
            _ => {}
        }
    }

    pub fn think(&mut self) -> Real {
        self.random.between(1, 2 * self.plan.think)
    }

    pub fn becomes(&mut self, node: usize, activity: Activity, delay: Real) {
        let seen = &mut self.nodes[node];
        seen.activity = activity;
        seen.version += 1;
        let version = seen.version;
        self.push(self.real + delay, Event::Client(node, version));
    }

    pub fn step_client(&mut self, node: usize) {
        if self.nodes[node].agent.machine.is_none() {
            return;
        }
        match self.nodes[node].activity {
            Activity::Idle if self.healed => {}
            Activity::Idle => {
                let name = self.random.below(self.plan.names as i64) as usize;
                self.lock(node, name, self.plan.timeout);
            }
            Activity::Waiting(..) => {}
            Activity::Holding(token) => {
                self.unlocked(node, token);
                let request = Request(self.new_life());
                self.call_agent(node, |agent, now| {
                    agent.agent().unlock_async(now, token, request);
                });
                let pause = self.think();
                self.becomes(node, Activity::Idle, pause);
            }
        }
    }

    pub fn lock(&mut self, node: usize, name: usize, timeout: Real) {
        let request = self.new_life();
        self.nodes[node].activity = Activity::Waiting(request, self.real);
        self.nodes[node].version += 1;
        self.asked(request, node, name);
        let names = questions::name(name).into();
        let timeout = Duration::from_nanos(timeout as u64);
        self.call_agent(node, |agent, now| {
            agent
                .agent()
                .lock(now, Request(request), names, Mode::Write, timeout);
        });
    }
}
