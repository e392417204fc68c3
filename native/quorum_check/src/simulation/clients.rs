//! Clients: they lock, hold, unlock, revoke, and die while they wait.

use crate::simulation::clock::{Real, MICROSECOND, MILLISECOND, SECOND};
use crate::simulation::event::{Event, Role};
use crate::simulation::invariants::records::Question;
use crate::simulation::node::Activity;
use crate::simulation::world::World;
use quorum::agent::{Agent, Request};
use quorum::message::{Mode, Token};
use quorum::time::Time;
use std::time::Duration;

type Unlock = fn(&mut Agent, Time, Token, Request) -> bool;

impl World {
    /// Schedules the next step of a client, and cancels the one that was scheduled before.
    pub fn schedule_client(&mut self, node: usize, client: usize, delay: Real) {
        let seen = &mut self.nodes[node].clients[client];
        seen.version += 1;
        let version = seen.version;
        self.push(self.real + delay, Event::Client(node, client, version));
    }

    fn becomes(&mut self, node: usize, client: usize, activity: Activity, delay: Real) {
        self.nodes[node].clients[client].activity = activity;
        self.schedule_client(node, client, delay);
    }

    /// The time before the next lock. Sometimes very short, so that an answer and a new request meet.
    pub fn think(&mut self) -> Real {
        if self.random.chance(300) {
            return self.random.between(1, MILLISECOND);
        }
        self.random.between(1, 2 * self.plan.think)
    }

    pub fn step_client(&mut self, node: usize, client: usize) {
        match self.nodes[node].clients[client].activity {
            Activity::Idle if self.healed => {}
            Activity::Idle => self.request_lock(node, client),
            Activity::Waiting(request) => self.die_waiting(node, client, request),
            Activity::Holding(token) => self.unlock(node, client, token),
            // Only the answer ends it.
            Activity::Unlocking(_) => {}
        }
    }

    fn request_lock(&mut self, node: usize, client: usize) {
        if self.random.chance(self.plan.revocations) {
            self.revoke(node);
        }
        let bits = self.some_names();
        let reads = self.random.chance(self.plan.readers);
        let mode = if reads { Mode::Read } else { Mode::Write };
        let (shortest, longest) = self.plan.timeouts;
        let timeout = match self.random.chance(self.plan.tries) {
            true => 0,
            false => self.random.spread(shortest, longest),
        };
        let request = self.lock(node, client, bits, mode, timeout);
        let waits = self.nodes[node].clients[client].activity == Activity::Waiting(request);
        if waits && self.random.chance(100) {
            let span = self.random.spread(100 * MICROSECOND, 5 * SECOND);
            self.schedule_client(node, client, span);
        }
    }

    fn lock(
        &mut self,
        node: usize,
        client: usize,
        bits: u32,
        mode: Mode,
        timeout: Real,
    ) -> Request {
        let names = self.checker.names_of(bits);
        let question = Question::Lock { names: bits, mode };
        let request = self.register(node, client, question, timeout);
        self.nodes[node].clients[client].activity = Activity::Waiting(request);
        self.nodes[node].clients[client].version += 1;
        self.log(|| {
            let (request, timeout) = (request.0, timeout / MILLISECOND);
            format!(
                "n{node} client {client} requests r{request}: {mode:?} {names:?} for {timeout} ms"
            )
        });
        let timeout = Duration::from_nanos(timeout as u64);
        let connected = self.nodes[node].connected;
        self.call_agent(node, |agent, now| {
            agent.lock(now, request, names, mode, timeout)
        });
        self.checker.answered_at_once(request, connected);
        request
    }

    /// Registers a request with the checker, which numbers it.
    fn register(
        &mut self,
        node: usize,
        client: usize,
        question: Question,
        timeout: Real,
    ) -> Request {
        self.check(|checker, view| checker.asked((node, client), question, timeout, view))
    }

    fn some_names(&mut self) -> u32 {
        let count = if self.random.chance(200) {
            self.random.between(2, 4)
        } else {
            1
        };
        let mut bits = 0_u32;
        for _ in 0..count {
            let hot = self.plan.cold == 0 || self.random.chance(600);
            let place = if hot {
                self.random.below(self.plan.hot as i64)
            } else {
                self.plan.hot as i64 + self.random.below(self.plan.cold as i64)
            };
            bits |= 1 << place;
        }
        bits
    }

    fn die_waiting(&mut self, node: usize, client: usize, request: Request) {
        self.summary.count("clients that died waiting");
        self.log(|| format!("n{node} client {client} dies, waiting for r{}", request.0));
        self.checker.canceled(request);
        self.call_agent(node, |agent, now| agent.cancel(now, request));
        let pause = self.think();
        self.becomes(node, client, Activity::Idle, pause);
    }

    fn unlock(&mut self, node: usize, client: usize, token: Token) {
        let lifetime = self.nodes[node].clients[client].agent;
        let held = self.checker.has(node, lifetime, token);
        let waits = self.random.chance(500);
        let question = match waits {
            true => Question::Unlock { token },
            false => Question::UnlockAsync { token },
        };
        let request = self.register(node, client, question, 0);
        self.log(|| {
            format!(
                "n{node} client {client} requests r{}: {question:?}",
                request.0
            )
        });
        self.checker.unlocking(node, lifetime, token, self.real);
        // Before the call, which may answer at once.
        let (activity, unlock) = match waits {
            true => (Activity::Unlocking(request), Agent::unlock as Unlock),
            false => (Activity::Idle, Agent::unlock_async as Unlock),
        };
        self.nodes[node].clients[client].activity = activity;
        let mut known = false;
        self.call_agent(node, |agent, now| {
            known = unlock(agent, now, token, request)
        });
        self.checker.was_known(request, known, held);
        if !known {
            self.nodes[node].clients[client].activity = Activity::Idle;
        }
        if self.nodes[node].clients[client].activity == Activity::Idle {
            let pause = self.think();
            self.schedule_client(node, client, pause);
        }
        if known && self.random.chance(50) {
            self.unlock_again(node, client, token);
        }
    }

    /// The agent must not know the token anymore.
    fn unlock_again(&mut self, node: usize, client: usize, token: Token) {
        let request = self.register(node, client, Question::UnlockAsync { token }, 0);
        let mut known = true;
        self.call_agent(node, |agent, now| {
            known = agent.unlock_async(now, token, request)
        });
        self.checker.was_known(request, known, false);
    }

    fn revoke(&mut self, node: usize) {
        let place = self.random.below((self.plan.hot + self.plan.cold) as i64) as usize;
        let name = self.checker.name(place);
        self.log(|| format!("n{node} revokes {name:?}"));
        self.check(|checker, view| checker.revoked(node, place, view));
        self.call_agent(node, |agent, now| agent.revoke(now, name));
    }

    pub fn client_holds(&mut self, node: usize, client: usize, token: Token) {
        let most = if self.healed {
            MILLISECOND
        } else {
            self.plan.hold
        };
        let hold = if self.random.chance(600) {
            self.random.spread(10 * MICROSECOND, most)
        } else {
            self.random.between(1, most)
        };
        self.nodes[node].clients[client].agent = self.nodes[node].agent_host.lifetime;
        self.becomes(node, client, Activity::Holding(token), hold);
    }

    /// None if the answer was for no client.
    pub fn client_answered(&mut self, node: usize, client: Option<usize>, request: Request) {
        let Some(client) = client else { return };
        let activity = self.nodes[node].clients[client].activity;
        if [Activity::Waiting(request), Activity::Unlocking(request)].contains(&activity) {
            let pause = self.think();
            self.becomes(node, client, Activity::Idle, pause);
        }
    }

    /// The clients of an agent that crashed die, and others take their place.
    pub fn clients_die(&mut self, node: usize) {
        for client in &mut self.nodes[node].clients {
            let outlives =
                self.options.bare_tokens && matches!(client.activity, Activity::Holding(_));
            if !outlives {
                client.activity = Activity::Idle;
            }
            client.version += 1;
        }
    }

    /// Clients that wait die soon or are answered, and holders unlock soon.
    pub fn finish_clients(&mut self) {
        for node in 0..self.nodes.len() {
            for client in 0..self.nodes[node].clients.len() {
                let activity = self.nodes[node].clients[client].activity;
                if let Activity::Holding(_) | Activity::Waiting(_) = activity {
                    let span = self.random.below(SECOND);
                    self.schedule_client(node, client, span);
                }
            }
        }
    }

    /// Each node locks the same name once. In a healed cluster each must get it.
    pub fn probe(&mut self) {
        for node in 0..self.nodes.len() {
            let seen = &self.nodes[node];
            if !seen.agent_host.paused && seen.is_up(Role::Agent) {
                self.lock(node, 0, 1, Mode::Write, 60 * SECOND);
            }
        }
    }
}
