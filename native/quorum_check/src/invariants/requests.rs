//! Requests and their answers: each gets one, in time, and the right one.

use super::{Checker, Label};
use crate::simulation::clock::{Real, MILLISECOND, SECOND};
use crate::simulation::node::Node;
use quorum::agent::{Refusal, Request};
use quorum::message::{Mode, Token};
use quorum::time::Time;
use std::time::Duration;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A lock of these names.
    Lock {
        /// By their places.
        names: u32,
        /// How.
        mode: Mode,
    },
    /// Answered when a quorum has forgotten.
    Unlock {
        /// The lock.
        token: Token,
    },
    /// Answered at once.
    TryUnlock {
        /// The lock.
        token: Token,
    },
}

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Of which agent.
    pub node: usize,
    /// Who.
    pub client: usize,
    /// Of the agent.
    pub life: u64,
    /// What.
    pub what: What,
    /// When, truly.
    pub real: Real,
    /// When, by the agent's clock.
    pub now: Time,
    /// How long it may take.
    pub timeout: Duration,
    /// Whether it has been answered.
    pub answered: bool,
    /// Whether nobody waits for the answer any more.
    pub void: bool,
    /// Whether somebody else wants, has or had one of the names at the same time, or there is no quorum yet.
    contended: bool,
}

impl Asked {
    /// A request of now.
    #[must_use]
    pub fn new(
        node: usize,
        client: usize,
        nodes: &[Node],
        real: Real,
        what: What,
        timeout: Real,
    ) -> Asked {
        let seat = &nodes[node].agent;
        let timeout = Duration::from_nanos(timeout as u64);
        let (life, now) = (seat.life, seat.now(real));
        Asked {
            node,
            client,
            life,
            what,
            real,
            now,
            timeout,
            answered: false,
            void: false,
            contended: false,
        }
    }
}

/// How much later than its time an answer may come by the agent's clock: timers are late, and calls are bounded.
const GRACE: Duration = Duration::from_secs(1);

impl Checker {
    /// Something was asked for: the request's number.
    pub fn asked(&mut self, mut asked: Asked, nodes: &[Node], real: Real) -> Request {
        let request = Request(self.asked.len() as u64);
        if let What::Lock { names, .. } = asked.what {
            self.counts.count("locks asked");
            asked.contended =
                self.contend(names, real) || !ready(nodes, asked.node, self.quorum, real);
        }
        self.asked.push(asked);
        self.open.push(request);
        request
    }

    /// Whether these names are, or were a moment ago, of interest to somebody else, whose lock is contended, too,
    /// then.
    fn contend(&mut self, names: u32, real: Real) -> bool {
        let mut found = self.locks.iter().any(|lock| lock.names & names != 0);
        found |= self
            .gone
            .iter()
            .any(|lock| lock.names & names != 0 && lock.at > real - 3 * SECOND);
        for request in &self.open {
            let other = &mut self.asked[request.0 as usize];
            if matches!(other.what, What::Lock { names: others, .. } if others & names != 0) {
                other.contended = true;
                found = true;
            }
        }
        // One that was given up or refused a moment ago may still have to be taken back.
        let recent = self.asked.iter().rev().take(64);
        found |= recent
            .filter(|other| other.real > real - 5 * SECOND)
            .any(|other| match other.what {
                What::Lock { names: others, .. } => others & names != 0,
                _ => false,
            });
        found
    }

    /// The one that asked is dead.
    pub fn cancelled(&mut self, request: Request) {
        self.asked[request.0 as usize].void = true;
        self.open.retain(|other| *other != request);
    }

    /// Answered. None if it may not be: not asked, or answered before.
    pub(super) fn close(&mut self, request: Request, nodes: &[Node]) -> Option<Asked> {
        let asked = self
            .asked
            .get_mut(request.0 as usize)
            .filter(|asked| !asked.answered && !asked.void);
        let asked = asked.filter(|asked| nodes[asked.node].agent.life == asked.life);
        let Some(asked) = asked else {
            self.violated(Label::Answers, || {
                format!("r{} was answered, and did not wait for it", request.0)
            });
            return None;
        };
        asked.answered = true;
        let asked = asked.clone();
        self.open.retain(|other| *other != request);
        Some(asked)
    }

    /// With fewer than a quorum connected the answer comes in the same call.
    pub fn was_told_at_once(&mut self, request: Request, connected: usize) {
        if connected < self.quorum && !self.asked[request.0 as usize].answered {
            self.violated(Label::Answers, || {
                format!("r{} was not refused, with {connected} connected", request.0)
            });
        }
    }

    /// A lock was refused.
    pub fn refused(
        &mut self,
        request: Request,
        why: Refusal,
        nodes: &[Node],
        real: Real,
    ) -> Option<usize> {
        let asked = self.close(request, nodes)?;
        let What::Lock { .. } = asked.what else {
            self.violated(Label::Answers, || {
                format!("r{} was refused, and is no lock", request.0)
            });
            return None;
        };
        let seat = &nodes[asked.node].agent;
        match why {
            Refusal::NoQuorum => {
                self.counts.count("locks refused: no quorum");
                let told = nodes[asked.node].told;
                if told.len() >= self.quorum {
                    self.violated(Label::Answers, || {
                        format!("r{}: no quorum, with {told:?} connected", request.0)
                    });
                }
            }
            Refusal::Timeout => {
                self.counts.count("locks refused: timeout");
                if seat.now(real) < asked.now + asked.timeout {
                    self.violated(Label::Answers, || {
                        format!("r{} timed out before its time", request.0)
                    });
                }
                let last = self.quiet_since.is_some_and(|quiet| asked.real > quiet);
                let enough = asked.timeout >= Duration::from_secs(2);
                if last || self.calm && enough && !asked.contended {
                    self.violated(Label::Live, || {
                        format!("r{} was refused, and nobody was in its way", request.0)
                    });
                }
            }
        }
        Some(asked.client)
    }

    /// A lock was unlocked.
    pub fn unlocked(
        &mut self,
        request: Request,
        confirmed: bool,
        nodes: &[Node],
        real: Real,
    ) -> Option<usize> {
        let asked = self.close(request, nodes)?;
        let What::Unlock { token } = asked.what else {
            self.violated(Label::Answers, || {
                format!("r{} was unlocked, and is no unlock", request.0)
            });
            return None;
        };
        self.counts.count(if confirmed {
            "unlocks confirmed"
        } else {
            "unlocks not confirmed"
        });
        if self.calm {
            self.counts
                .took("unlock where all is well", real - asked.real);
            if !confirmed {
                self.violated(Label::Live, || {
                    format!("r{}: the unlock was not confirmed", request.0)
                });
            }
        }
        if confirmed && !self.any_order && !self.is_passed_on(asked.life, token) {
            let keep = self.voters_that_keep(nodes, asked.life, self.attempt_of(asked.life, token));
            if keep > self.members - self.quorum {
                self.violated(Label::Confirmed, || {
                    format!("t{} is kept by {keep} voters", token.0)
                });
            }
        }
        Some(asked.client)
    }

    /// A `try_unlock` was taken.
    pub fn accepted(&mut self, request: Request, nodes: &[Node], real: Real) {
        let Some(asked) = self.close(request, nodes) else {
            return;
        };
        if !matches!(asked.what, What::TryUnlock { .. }) {
            self.violated(Label::Answers, || {
                format!("r{} was accepted, and is no try_unlock", request.0)
            });
        }
        self.counts.count("try_unlocks accepted");
        if real > asked.real {
            self.counts.count("try_unlocks that had to wait");
        }
    }

    /// Whether the agent knew what was to be unlocked; and whether it should have.
    pub fn was_known(&mut self, request: Request, known: bool, had: bool) {
        let asked = &mut self.asked[request.0 as usize];
        let (node, life) = (asked.node, asked.life);
        if !known {
            asked.answered = true;
            self.open.retain(|other| *other != request);
        }
        let (What::Unlock { token } | What::TryUnlock { token }) =
            self.asked[request.0 as usize].what
        else {
            return;
        };
        let gone = self
            .gone
            .iter()
            .find(|lock| (lock.node, lock.life, lock.token) == (node, life, token));
        let lost = gone.is_some_and(|lock| lock.lost);
        if known && !had {
            self.violated(Label::Q8, || {
                format!("t{} was unlocked twice, or after it was lost", token.0)
            });
        }
        if !known && had && !lost {
            self.violated(Label::Answers, || {
                format!("t{} was not known, and never lost", token.0)
            });
        }
    }

    /// Whether something waits for longer than it may, at this agent, whose timer has just rung.
    pub fn agent_ticked(&mut self, node: usize, nodes: &[Node], real: Real) {
        let now = nodes[node].agent.now(real);
        for place in 0..self.open.len() {
            let request = self.open[place];
            let asked = &self.asked[request.0 as usize];
            let span = match asked.what {
                What::Lock { .. } => asked.timeout,
                What::Unlock { .. } | What::TryUnlock { .. } => self.rules.voter_lease,
            };
            if asked.node == node && now > asked.now + span + GRACE {
                let what = asked.what;
                let label = if matches!(what, What::TryUnlock { .. }) {
                    Label::Adr15
                } else {
                    Label::Answers
                };
                self.violated(label, || {
                    format!("r{} ({what:?}) was not answered in time", request.0)
                });
            }
        }
    }

    /// Counts how long a lock took.
    pub(super) fn granted_after(&mut self, asked: &Asked, real: Real) {
        let span = real - asked.real;
        if self.calm && asked.contended {
            self.counts
                .took("lock where others want it, too, and all is well", span);
        } else if self.calm {
            self.counts
                .took("lock of a free name where all is well", span);
            self.counts.count("locks of a free name where all is well");
        } else if span > 10 * MILLISECOND {
            self.counts.count("locks that took more than 10 ms");
        }
    }
}

/// Whether all voters vote, and this agent has known a quorum for a second.
fn ready(nodes: &[Node], node: usize, quorum: usize, real: Real) -> bool {
    let vote = nodes
        .iter()
        .filter(|node| {
            node.voter
                .machine
                .as_ref()
                .is_some_and(|voter| voter.is_voting())
        })
        .count();
    vote >= quorum
        && nodes[node]
            .quorum_since
            .is_some_and(|since| real - since > SECOND)
}
