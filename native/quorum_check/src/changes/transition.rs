//! Transitions: what happens next without a fault, and each fault.

use super::setting::{Fault, Setting, Step, LEASE, LIMIT};
use super::state::{Client, Flight, Node, State, Violation};
use crate::random::Random;
use crate::shared::Shared;
use quorum::agent::Request;
use quorum::message::{Fence, Lifetime, Mode, Name};
use quorum::node_agent::{NodeAgent, NodeAgentSetup};
use quorum::node_voter::{NodeVoter, NodeVoterSetup};
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::view::{NodeName, Role};
use std::time::Duration;

/// A machine whose timer fires this often at one moment fires it endlessly.
const MOST_TICKS: usize = 100;

/// How long a client waits before it repeats a request that was refused.
const PAUSE: Duration = Duration::from_millis(100);

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// No fault.
    Next,
    /// At this node, if it is a crash.
    Fault(Fault, usize),
}

pub struct Transition<'a> {
    pub setting: &'a Setting,
    pub state: State,
    pub trace: Option<Vec<String>>,
}

impl<'a> Transition<'a> {
    pub fn new(setting: &'a Setting, state: State, traced: bool) -> Transition<'a> {
        Transition {
            setting,
            state,
            trace: traced.then(Vec::new),
        }
    }

    /// All machines have just started, and their nodes are connected.
    pub fn first(setting: &'a Setting) -> Transition<'a> {
        let now = Time(0);
        let nodes = (0..setting.nodes).map(|node| Node {
            is_alive: true,
            voters: 0,
            agents: 0,
            voter: Shared::new(NodeVoter::new(voter_setup(setting, node, 0), None, now)),
            agent: Shared::new(NodeAgent::new(agent_setup(setting, node, 0), now)),
            file: None,
        });
        let client = Client {
            next: 0,
            waits: false,
            request: 0,
            held: None,
            from: now,
        };
        let state = State {
            now,
            nodes: nodes.collect(),
            flights: Vec::new(),
            clients: vec![client; setting.scripts.len()],
            fence: Fence::default(),
            records: Vec::new(),
            left: None,
            violation: None,
        };
        let mut first = Transition::new(setting, state, false);
        for node in 0..setting.nodes {
            first.call_voter(node, |_, _| ());
            first.connect(node);
        }
        first
    }

    pub fn perform(&mut self, action: Action) {
        match action {
            Action::Next => self.happen(),
            Action::Fault(fault, node) => {
                self.note(|| format!("FAULT: {fault:?} at n{node}"));
                self.state.left = self.state.left.map(|left| left - 1);
                self.fail(fault, node);
            }
        }
        if self.state.has_two_holders(self.setting) {
            self.violated("Q1", "two clients hold the lock".into());
        }
    }

    fn fail(&mut self, fault: Fault, node: usize) {
        match fault {
            Fault::Loss => {
                let flight = self.state.flights.remove(0);
                self.note(|| describe(&flight));
            }
            Fault::Delay => {
                let flight = self.state.flights.remove(0);
                self.note(|| describe(&flight));
                self.state.flights.push(flight);
            }
            Fault::Hurry => self.pass_time(),
            Fault::VoterCrash => self.start_voter(node),
            Fault::AgentCrash => self.start_agent(node),
            Fault::LostFile => {
                self.state.nodes[node].file = None;
                self.start_voter(node);
            }
            Fault::Death => self.die(node),
        }
    }

    fn happen(&mut self) {
        if !self.state.flights.is_empty() {
            let flight = self.state.flights.remove(0);
            self.note(|| describe(&flight));
            return self.arrive(&flight);
        }
        let clients = 0..self.state.clients.len();
        match clients.into_iter().find(|client| self.may_step(*client)) {
            Some(client) => self.step(client),
            None => self.pass_time(),
        }
    }

    fn arrive(&mut self, flight: &Flight) {
        match flight {
            Flight::Message {
                from,
                to,
                role,
                envelope,
            } => {
                let (from, envelope) = (name(*from), envelope.clone());
                match role {
                    Role::Voter => self.call_voter(*to, |voter, now| {
                        voter.receive(now, &from, envelope);
                    }),
                    Role::Agent => self.call_agent(*to, |agent, now| {
                        agent.receive(now, &from, envelope);
                    }),
                }
            }
            Flight::Write {
                node,
                number,
                content,
            } => {
                self.state.nodes[*node].file = Some(content.clone());
                self.call_voter(*node, |voter, now| voter.stored(now, *number));
            }
        }
    }

    fn may_step(&self, client: usize) -> bool {
        let Client {
            next, waits, from, ..
        } = self.state.clients[client];
        if waits || self.state.is_done(self.setting, client) || from > self.state.now {
            return false;
        }
        match self.setting.scripts[client].1[next] {
            Step::Await(other, step) => self.state.clients[other].next >= step,
            Step::Finished(other) => self.state.is_done(self.setting, other),
            _ => true,
        }
    }

    fn step(&mut self, client: usize) {
        let (node, steps) = &self.setting.scripts[client];
        let own = &mut self.state.clients[client];
        let (node, step) = (*node, steps[own.next]);
        own.request += 1;
        let request = client as u64 * 1000 + own.request;
        self.note(|| format!("client {client} on n{node}: {step:?}"));
        let own = &mut self.state.clients[client];
        match step {
            Step::Lock => {
                own.waits = true;
                let names = Name::new(b"x").expect("a short name").into();
                self.call_agent(node, |agent, now| {
                    let agent = agent.agent();
                    agent.lock(now, Request(request), names, Mode::Write, LIMIT);
                });
            }
            Step::Unlock => {
                own.next += 1;
                if let Some(token) = own.held.take() {
                    self.call_agent(node, |agent, now| {
                        agent.agent().unlock_async(now, token, Request(request));
                    });
                }
            }
            Step::Change(list) | Step::Reset(list) => {
                own.waits = true;
                let names = list.iter().map(|node| name(*node)).collect();
                self.call_voter(node, |voter, now| match step {
                    Step::Reset(_) => voter.reset(now, request, names),
                    _ => voter.change(now, request, names),
                });
            }
            Step::Die => self.die(node),
            Step::Pause(ms) => {
                own.from = self.state.now + Duration::from_millis(ms);
                own.next += 1;
            }
            Step::Await(..) | Step::Finished(_) => own.next += 1,
            Step::Begin => {
                own.next += 1;
                self.state.left = Some(self.setting.most);
            }
        }
    }

    /// Time passes to the next deadline.
    fn pass_time(&mut self) {
        let alive = self.state.nodes.iter().filter(|node| node.is_alive);
        let machines = alive.flat_map(|node| [node.voter.deadline(), node.agent.deadline()]);
        let clients = self.state.clients.iter().map(|client| client.from);
        let clients = clients.filter(|from| *from > self.state.now);
        let next = machines.flatten().chain(clients).min();
        let Some(next) = next.filter(|next| *next < Time(0) + LIMIT * 2) else {
            return self.violated("PR5", "nothing happens any more".into());
        };
        self.state.now = self.state.now.max(next);
        self.note(|| "time passes".into());
        for node in 0..self.state.nodes.len() {
            self.tick(node);
        }
        if self.state.now > Time(0) + LIMIT {
            self.violated("PR5", "the clients are not done".into());
        }
    }

    fn tick(&mut self, node: usize) {
        for _ in 0..MOST_TICKS {
            let (seen, now) = (&self.state.nodes[node], self.state.now);
            let is_due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
            let (voter, agent) = (is_due(seen.voter.deadline()), is_due(seen.agent.deadline()));
            if !seen.is_alive || !voter && !agent {
                return;
            }
            if voter {
                self.call_voter(node, |voter, now| voter.tick(now));
            }
            if agent {
                self.call_agent(node, |agent, now| agent.tick(now));
            }
        }
        self.violated("Machine", format!("a timer of n{node} fires endlessly"));
    }

    /// A voter's process starts, after another one has crashed.
    fn start_voter(&mut self, node: usize) {
        self.state
            .flights
            .retain(|flight| !matches!(**flight, Flight::Write { node: of, .. } if of == node));
        let seen = &mut self.state.nodes[node];
        seen.voters += 1;
        let setup = voter_setup(self.setting, node, seen.voters);
        let file = seen.file.as_ref().map(|file| (**file).clone());
        seen.voter = Shared::new(NodeVoter::new(setup, file, self.state.now));
        // The caller of a change asks again.
        let scripts = self.setting.scripts.iter();
        for (client, (at, steps)) in self.state.clients.iter_mut().zip(scripts) {
            let step = steps.get(client.next);
            let changes = matches!(step, Some(Step::Change(_) | Step::Reset(_)));
            if *at == node && client.waits && changes {
                client.waits = false;
                client.from = self.state.now + PAUSE;
            }
        }
        self.call_voter(node, |_, _| ());
    }

    fn start_agent(&mut self, node: usize) {
        let seen = &mut self.state.nodes[node];
        seen.agents += 1;
        let setup = agent_setup(self.setting, node, seen.agents);
        seen.agent = Shared::new(NodeAgent::new(setup, self.state.now));
        let scripts = self.setting.scripts.iter();
        for (client, (at, steps)) in self.state.clients.iter_mut().zip(scripts) {
            if *at == node {
                client.held = None;
                let locks = matches!(steps.get(client.next), Some(Step::Lock));
                client.waits &= !locks;
            }
        }
        self.connect(node);
    }

    /// Its agent learns that all nodes are connected.
    fn connect(&mut self, node: usize) {
        for about in 0..self.state.nodes.len() {
            if self.state.nodes[about].is_alive {
                self.call_agent(node, |agent, now| agent.up(now, &name(about)));
            }
        }
    }

    fn die(&mut self, node: usize) {
        self.state.nodes[node].is_alive = false;
        let scripts = self.setting.scripts.iter();
        for (client, (at, _)) in self.state.clients.iter_mut().zip(scripts) {
            if *at == node {
                client.held = None;
            }
        }
        self.state.flights.retain(|flight| match **flight {
            Flight::Message { to, .. } => to != node,
            Flight::Write { node: of, .. } => of != node,
        });
        for other in 0..self.state.nodes.len() {
            self.call_agent(other, |agent, now| agent.down(now, &name(node)));
            self.call_voter(other, |voter, now| voter.down(now, &name(node)));
        }
    }

    /// After a refusal, or another answer that is no success.
    pub(super) fn again(&mut self, client: usize) {
        let client = &mut self.state.clients[client];
        client.waits = false;
        client.from = self.state.now + PAUSE;
    }

    pub(super) fn violated(&mut self, property: &'static str, text: String) {
        self.note(|| format!("{property} IS VIOLATED: {text}"));
        let violation = Violation { property, text };
        self.state.violation.get_or_insert(violation);
    }

    pub(super) fn note(&mut self, note: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let ms = self.state.now.0 as f64 / 1e6;
            trace.push(format!("{ms:9.3} {}", note()));
        }
    }
}

pub(super) fn name(node: usize) -> NodeName {
    NodeName::new(&format!("n{node}")).expect("a short name")
}

fn voter_setup(setting: &Setting, node: usize, start: u8) -> NodeVoterSetup {
    NodeVoterSetup {
        node: name(node),
        seeds: setting.first.iter().map(|node| name(*node)).collect(),
        lease_ms: LEASE.as_millis() as u64,
        rules: Rules::of(LEASE),
        bugs: setting.bugs,
        durable: true,
        clients: true,
        random: Random::new(256 * node as u64 + u64::from(start)).word(),
    }
}

fn agent_setup(setting: &Setting, node: usize, start: u8) -> NodeAgentSetup {
    NodeAgentSetup {
        node: name(node),
        seeds: setting.first.iter().map(|node| name(*node)).collect(),
        rules: Rules::of(LEASE),
        bugs: setting.bugs,
        lifetime: Lifetime(1 + 256 * (1 + node as u64) + u64::from(start)),
    }
}

fn describe(flight: &Flight) -> String {
    match flight {
        Flight::Message {
            from,
            to,
            role,
            envelope,
        } => {
            let number = envelope.view.number;
            format!(
                "n{from} -> n{to} {role:?} in {number}: {:?}",
                envelope.content
            )
        }
        Flight::Write { node, content, .. } => format!("n{node} has written {:?}", **content),
    }
}
