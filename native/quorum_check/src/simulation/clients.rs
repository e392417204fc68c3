//! Clients: they lock, hold, unlock, lose patience, die, and force others out.

use super::clock::{Real, MICROSECOND, MILLISECOND, SECOND};
use super::node::Part;
use super::world::{Event, World};
use crate::invariants::{Asked, What};
use quorum::agent::Request;
use quorum::message::{Mode, Names, Token};
use std::time::Duration;

/// What a client is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Nothing.
    Nothing,
    /// It waits for a lock.
    Waiting(Request),
    /// It has one.
    Holding(Token),
    /// It waits for the answer to its unlock.
    Unlocking(Request),
}

/// A client.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// At the moment.
    pub doing: Doing,
    /// An event of an earlier version comes too late.
    pub version: u64,
}

impl World {
    /// Something will occur to this client `span` from now. What was to occur to it before will not.
    pub fn later(&mut self, node: usize, client: usize, span: Real) {
        let known = &mut self.nodes[node].clients[client];
        known.version += 1;
        let version = known.version;
        self.push(
            self.real + span,
            Event::Client {
                node,
                client,
                version,
            },
        );
    }

    /// The client turns to something else.
    pub fn client_does(&mut self, node: usize, client: usize, doing: Doing, span: Real) {
        self.nodes[node].clients[client].doing = doing;
        self.later(node, client, span);
    }

    /// How long it thinks before it locks again.
    pub fn think(&mut self) -> Real {
        // Some at once, so that an answer and a new request meet.
        if self.random.chance(300) {
            return self.random.between(1, MILLISECOND);
        }
        self.random.between(1, 2 * self.plan.think)
    }

    /// What was to occur to a client does.
    pub fn client_acts(&mut self, node: usize, client: usize) {
        match self.nodes[node].clients[client].doing {
            Doing::Nothing if self.quiet => {}
            Doing::Nothing => self.ask_for_lock(node, client),
            Doing::Waiting(request) => self.dies_waiting(node, client, request),
            Doing::Holding(token) => self.gives_back(node, client, token),
            // Only the answer ends it.
            Doing::Unlocking(_) => {}
        }
    }

    fn ask_for_lock(&mut self, node: usize, client: usize) {
        if self.random.chance(self.plan.forced) {
            self.force(node);
        }
        let (names, bits) = self.some_names();
        let mode = if self.random.chance(self.plan.readers) {
            Mode::Read
        } else {
            Mode::Write
        };
        let timeout = self.random.spread(5 * MILLISECOND, 20 * SECOND);
        let request = self.lock(node, client, names, bits, mode, timeout);
        if self.nodes[node].clients[client].doing == Doing::Waiting(request)
            && self.random.chance(100)
        {
            let span = self.random.spread(100 * MICROSECOND, 5 * SECOND);
            self.later(node, client, span);
        }
    }

    /// Asks for a lock on behalf of a client.
    pub fn lock(
        &mut self,
        node: usize,
        client: usize,
        names: Names,
        bits: u32,
        mode: Mode,
        timeout: Real,
    ) -> Request {
        let what = What::Lock { names: bits, mode };
        let request = self.asks(node, client, what, timeout);
        self.nodes[node].clients[client].doing = Doing::Waiting(request);
        self.nodes[node].clients[client].version += 1;
        self.say(|| {
            format!(
                "n{node} client {client} asks r{}: {mode:?} {names:?} for {} ms",
                request.0,
                timeout / MILLISECOND
            )
        });
        let patience = Duration::from_nanos(timeout as u64);
        let connected = self.nodes[node].told.len();
        self.agent(node, |agent, now| {
            agent.lock(now, request, names, mode, patience)
        });
        self.checker.was_told_at_once(request, connected);
        request
    }

    /// The checker hears of a request and gives it its number.
    fn asks(&mut self, node: usize, client: usize, what: What, timeout: Real) -> Request {
        let asked = Asked::new(node, client, &self.nodes, self.real, what, timeout);
        self.checker.asked(asked, &self.nodes, self.real)
    }

    fn some_names(&mut self) -> (Names, u32) {
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
        let names = self.checker.names_of(bits);
        (names, bits)
    }

    fn dies_waiting(&mut self, node: usize, client: usize, request: Request) {
        self.summary.count("clients that died waiting");
        self.say(|| format!("n{node} client {client} dies waiting for r{}", request.0));
        self.checker.cancelled(request);
        self.agent(node, |agent, now| agent.cancel(now, request));
        let pause = self.think();
        self.client_does(node, client, Doing::Nothing, pause);
    }

    fn gives_back(&mut self, node: usize, client: usize, token: Token) {
        let kept = self.checker.has(node, self.nodes[node].agent.life, token);
        let waits = self.random.chance(500);
        let what = if waits {
            What::Unlock { token }
        } else {
            What::TryUnlock { token }
        };
        let request = self.asks(node, client, what, 0);
        let how = if waits { "unlocks" } else { "tries to unlock" };
        self.say(|| {
            format!(
                "n{node} client {client} {how} t{} (r{})",
                token.0, request.0
            )
        });
        self.checker
            .gave_up(node, self.nodes[node].agent.life, token, self.real);
        // Before the call: its answer may come in it.
        self.nodes[node].clients[client].doing = if waits {
            Doing::Unlocking(request)
        } else {
            Doing::Nothing
        };
        let mut known = false;
        self.agent(node, |agent, now| {
            known = if waits {
                agent.unlock(now, token, request)
            } else {
                agent.try_unlock(now, token, request)
            };
        });
        self.checker.was_known(request, known, kept);
        if !known {
            self.nodes[node].clients[client].doing = Doing::Nothing;
        }
        if self.nodes[node].clients[client].doing == Doing::Nothing {
            let pause = self.think();
            self.later(node, client, pause);
        }
        if known && self.random.chance(50) {
            self.gives_back_twice(node, client, token);
        }
    }

    /// The second time it is not there.
    fn gives_back_twice(&mut self, node: usize, client: usize, token: Token) {
        let request = self.asks(node, client, What::TryUnlock { token }, 0);
        let mut known = true;
        self.agent(node, |agent, now| {
            known = agent.try_unlock(now, token, request)
        });
        self.checker.was_known(request, known, false);
    }

    /// Somebody has a name forced open.
    fn force(&mut self, node: usize) {
        let place = self.random.below((self.plan.hot + self.plan.cold) as i64) as usize;
        let name = self.checker.name(place);
        self.summary.count("forced unlocks");
        self.say(|| format!("n{node} forces {name:?} open"));
        self.checker.revoked(place, self.real);
        self.agent(node, |agent, now| agent.revoke(now, name));
    }

    /// A lock was granted to a client.
    pub fn client_has(&mut self, node: usize, client: usize, token: Token) {
        let most = if self.quiet {
            MILLISECOND
        } else {
            self.plan.hold
        };
        let hold = if self.random.chance(600) {
            self.random.spread(10 * MICROSECOND, most)
        } else {
            self.random.between(1, most)
        };
        self.client_does(node, client, Doing::Holding(token), hold);
    }

    /// An answer came that lets the client go on.
    pub fn client_goes_on(&mut self, node: usize, client: usize, request: Request) {
        let doing = self.nodes[node].clients[client].doing;
        if doing == Doing::Waiting(request) || doing == Doing::Unlocking(request) {
            let pause = self.think();
            self.client_does(node, client, Doing::Nothing, pause);
        }
    }

    /// Its agent is dead, and so is it: others come in its place.
    pub fn clients_die(&mut self, node: usize) {
        for client in 0..self.nodes[node].clients.len() {
            let known = &mut self.nodes[node].clients[client];
            known.doing = Doing::Nothing;
            known.version += 1;
        }
    }

    /// No more locks: those that wait do so until they are answered, those that hold give back soon.
    pub fn clients_end(&mut self) {
        for node in 0..self.nodes.len() {
            for client in 0..self.nodes[node].clients.len() {
                if let Doing::Holding(_) = self.nodes[node].clients[client].doing {
                    let span = self.random.below(SECOND);
                    self.later(node, client, span);
                }
                if let Doing::Waiting(_) = self.nodes[node].clients[client].doing {
                    let span = self.random.below(SECOND);
                    self.later(node, client, span);
                }
            }
        }
    }

    /// Each node locks the same name, once: when all is well again each must get it.
    pub fn probe(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].paused(Part::Agent) || !self.nodes[node].alive(Part::Agent) {
                continue;
            }
            let names = self.checker.names_of(1);
            self.summary.count("probes");
            self.lock(node, 0, names, 1, Mode::Write, 60 * SECOND);
        }
    }
}
