//! Locks that are held: by one writer or by readers (Q1), under fences that grow (Q5) and are written down (Q6),
//! until they are given back (Q8) or lost.

use super::{against, agent, places, probe, Checker, Gone, Label, Lock, What};
use crate::simulation::clock::{Real, SECOND};
use crate::simulation::node::Node;
use quorum::agent::{Loss, Request};
use quorum::lease::Standing;
use quorum::message::{Fence, Mode, Token};
use std::sync::Arc;

/// For how many locks that were given back it is seen to that they are not held.
const REMEMBERED: usize = 24;

impl Checker {
    /// A lock was granted: to which client.
    pub fn granted(
        &mut self,
        request: Request,
        (token, attempt): (Token, Token),
        fence: Fence,
        standing: Arc<Standing>,
        nodes: &[Node],
        real: Real,
    ) -> Option<usize> {
        let asked = self.close(request, nodes)?;
        let What::Lock { names, mode } = asked.what else {
            self.violated(Label::Answers, || {
                format!("r{} was granted, and is no lock", request.0)
            });
            return None;
        };
        self.granted_after(&asked, real);
        self.counts.count(if mode == Mode::Write {
            "writers granted"
        } else {
            "readers granted"
        });
        if names.count_ones() > 1 {
            self.counts.count("locks of many names granted");
        }
        let (node, life) = (asked.node, asked.life);
        self.check_fence(names, mode, fence, token);
        self.check_written(node, life, attempt, names, mode, fence, nodes);
        self.check_granted(node, life, token, attempt);
        self.standings.insert((life, token), standing);
        self.locks.push(Lock {
            node,
            life,
            token,
            attempt,
            names,
            mode,
            fence,
            granted: real,
            revoked: None,
        });
        Some(asked.client)
    }

    /// Each attempt is granted once, and passed on only after that.
    fn check_granted(&mut self, node: usize, life: u64, token: Token, attempt: Token) {
        let passed = token != attempt;
        let promise = self.promises.entry((life, attempt)).or_default();
        if std::mem::replace(&mut promise.granted, true) != passed {
            self.violated(Label::Q8, || {
                format!(
                    "n{node} t{} of t{}: granted twice, or never",
                    token.0, attempt.0
                )
            });
        }
        let new = self.standings.keys().all(|known| *known != (life, token));
        if passed {
            self.counts.count("locks passed on");
            if !new {
                self.violated(Label::Q8, || format!("n{node} t{} is two locks", token.0));
            }
        }
    }

    fn check_fence(&mut self, names: u32, mode: Mode, fence: Fence, token: Token) {
        for place in places(names) {
            let last = self.last_writers[place];
            let grows = if mode == Mode::Write {
                fence > last
            } else {
                fence >= last
            };
            if !grows {
                let text = || {
                    format!(
                        "t{} of {mode:?} {place} has {}, after {}",
                        token.0, fence.0, last.0
                    )
                };
                self.violated(Label::Q5, text);
            }
            if mode == Mode::Write {
                self.last_writers[place] = last.max(fence);
            }
        }
    }

    /// Q6, twice: by what voters have said, and by what they know.
    #[allow(clippy::too_many_arguments)]
    fn check_written(
        &mut self,
        node: usize,
        life: u64,
        attempt: Token,
        names: u32,
        mode: Mode,
        fence: Fence,
        nodes: &[Node],
    ) {
        if mode == Mode::Read {
            return;
        }
        let Some(agent) = agent(nodes, node) else {
            return;
        };
        let said = self
            .promises
            .get(&(life, attempt))
            .map(|promise| promise.said.clone())
            .unwrap_or_default();
        let mut written = 0;
        for (voter, (voter_life, number)) in said {
            let current =
                probe::session(agent, voter).is_some_and(|session| session.voter.0 == voter_life);
            if !current || number < fence {
                continue;
            }
            written += 1;
            let seat = &nodes[voter].voter;
            let Some(machine) = seat.machine.as_ref().filter(|_| seat.life == voter_life) else {
                continue;
            };
            for place in places(names) {
                let known = probe::fence(machine, &self.names[place]);
                if known < fence {
                    let text = || {
                        format!(
                            "n{voter} knows {} of {place}, and has said {}",
                            known.0, fence.0
                        )
                    };
                    self.violated(Label::Q6, text);
                }
            }
        }
        if written < self.quorum {
            self.violated(Label::Q6, || {
                format!(
                    "t{} has {}, and {written} voters wrote it",
                    attempt.0, fence.0
                )
            });
        }
    }

    /// Whether that lock is still somebody's.
    #[must_use]
    pub fn has(&self, node: usize, life: u64, token: Token) -> bool {
        self.locks
            .iter()
            .any(|lock| (lock.node, lock.life, lock.token) == (node, life, token))
    }

    /// A lock is about to be given back.
    pub fn gave_up(&mut self, node: usize, life: u64, token: Token, real: Real) {
        self.ends(node, life, token, real, false);
    }

    fn ends(&mut self, node: usize, life: u64, token: Token, at: Real, lost: bool) -> bool {
        let found = self
            .locks
            .iter()
            .position(|lock| (lock.node, lock.life, lock.token) == (node, life, token));
        let Some(found) = found else { return false };
        let lock = self.locks.swap_remove(found);
        let standing = self
            .standings
            .remove(&(life, token))
            .expect("each lock has one");
        if self.gone.len() == REMEMBERED {
            self.gone.remove(0);
        }
        self.gone.push(Gone {
            node,
            life,
            token,
            attempt: lock.attempt,
            names: lock.names,
            standing,
            at,
            lost,
        });
        true
    }

    /// A holder was told that it is none any more.
    pub fn lost(&mut self, node: usize, nodes: &[Node], token: Token, why: Loss, real: Real) {
        let life = nodes[node].agent.life;
        self.counts.count(if why == Loss::Quorum {
            "locks lost"
        } else {
            "locks forced open"
        });
        let lock = self
            .locks
            .iter()
            .find(|lock| (lock.node, lock.life, lock.token) == (node, life, token))
            .cloned();
        if let Some(lock) = lock {
            // Whoever asked before a name was forced open may be meant, too.
            let forced =
                |place: usize| self.forced[place].is_some_and(|at| lock.granted < at + 3 * SECOND);
            let meant = lock.revoked.is_some() || places(lock.names).any(forced);
            if self.calm && (why == Loss::Quorum || !meant) {
                self.violated(Label::Live, || {
                    format!("n{node} t{} was lost, and nothing was wrong", token.0)
                });
            }
            self.ends(node, life, token, real, true);
            return;
        }
        // In the call that gives it back the agent may find that it is too late.
        let gone = self
            .gone
            .iter_mut()
            .find(|lock| (lock.node, lock.life, lock.token) == (node, life, token));
        match gone {
            Some(lock) if lock.at == real && !lock.lost => lock.lost = true,
            _ => self.violated(Label::Lost, || {
                format!("n{node} t{} was lost, and was nobody's", token.0)
            }),
        }
    }

    /// A holder was warned.
    pub fn at_risk(&mut self, node: usize, nodes: &[Node], token: Token, real: Real) {
        self.counts.count("locks at risk");
        let life = nodes[node].agent.life;
        if self.calm {
            self.violated(Label::Live, || {
                format!("n{node} t{} is at risk, and nothing is wrong", token.0)
            });
        }
        // The call that gives it back may find that it was, first.
        let now =
            |lock: &&Gone| (lock.node, lock.life, lock.token, lock.at) == (node, life, token, real);
        if !self.has(node, life, token) && !self.gone.iter().any(|lock| now(&lock)) {
            self.violated(Label::Lost, || {
                format!("n{node} t{} is at risk, and is nobody's", token.0)
            });
        }
    }

    /// Somebody has a name forced open.
    pub fn revoked(&mut self, place: usize, real: Real) {
        self.forced[place] = Some(real);
        for lock in self
            .locks
            .iter_mut()
            .filter(|lock| lock.names & 1 << place != 0)
        {
            lock.revoked.get_or_insert(real);
        }
    }

    /// The agent of `node` has done something.
    pub fn agent_did(&mut self, node: usize, nodes: &[Node], real: Real) {
        let Some(agent) = agent(nodes, node) else {
            return;
        };
        let now = nodes[node].agent.now(real);
        for place in 0..self.locks.len() {
            let lock = &self.locks[place];
            if lock.node != node {
                continue;
            }
            if !agent.held(lock.token, now) {
                let token = lock.token;
                self.violated(Label::Lost, || {
                    format!("n{node} t{} is not held, and nobody was told", token.0)
                });
                continue;
            }
            self.check_alone(place, nodes, real);
            self.check_heard(place, real);
            self.check_counted(place, None, nodes, real);
        }
        self.check_gone(node, nodes, real);
        self.watch_forced(real);
        self.watch_empty(nodes, real);
    }

    /// Q1.
    fn check_alone(&mut self, place: usize, nodes: &[Node], real: Real) {
        let lock = &self.locks[place];
        let rival = self.locks.iter().enumerate().find(|(other_place, other)| {
            *other_place != place
                && against((lock.names, lock.mode), (other.names, other.mode))
                && agent(nodes, other.node)
                    .is_some_and(|agent| agent.held(other.token, nodes[other.node].agent.now(real)))
        });
        if let Some((_, other)) = rival {
            let tell = |lock: &Lock| {
                format!(
                    "n{} t{} ({:?}, fence {})",
                    lock.node, lock.token.0, lock.mode, lock.fence.0
                )
            };
            let text = format!("both are held: {} and {}", tell(lock), tell(other));
            self.violated(Label::Q1, || text);
        }
    }

    /// Whoever has heard of fewer than a quorum for a lease and a second holds no more.
    fn check_heard(&mut self, place: usize, real: Real) {
        let lock = &self.locks[place];
        let mut heard: Vec<Real> = self
            .heard
            .iter()
            .filter(|((n, _), _)| *n == lock.node)
            .map(|(_, at)| *at)
            .collect();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        let lease = self.rules.holder_lease.as_nanos() as Real;
        let most = lease + lease * (self.drift + 1_000) / 1_000_000 + SECOND;
        if heard.get(self.quorum - 1).is_none_or(|at| real - at > most) {
            let text = format!(
                "n{} t{} is held, and a quorum was not heard for a lease",
                lock.node, lock.token.0
            );
            self.violated(Label::Lost, || text);
        }
    }

    /// Q8.
    fn check_gone(&mut self, node: usize, nodes: &[Node], real: Real) {
        let Some(agent) = agent(nodes, node) else {
            return;
        };
        let now = nodes[node].agent.now(real);
        let held = self.gone.iter().find(|lock| {
            lock.node == node
                && lock.life == nodes[node].agent.life
                && (agent.held(lock.token, now) || probe::holds(agent, &lock.standing, now))
        });
        if let Some(token) = held.map(|lock| lock.token) {
            self.violated(Label::Q8, || {
                format!("n{node} t{} was given back or lost, and is held", token.0)
            });
        }
    }

    /// Where all is well, whoever is forced out hears of it within three seconds.
    fn watch_forced(&mut self, real: Real) {
        if !self.calm {
            return;
        }
        let deaf = self
            .locks
            .iter()
            .find(|lock| lock.revoked.is_some_and(|at| real - at > 3 * SECOND));
        if let Some(token) = deaf.map(|lock| lock.token) {
            self.violated(Label::Forced, || {
                format!("t{} was forced out, and has not heard of it", token.0)
            });
        }
    }
}
