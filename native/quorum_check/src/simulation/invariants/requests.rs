//! Requests: each gets one answer, in time, and of the right kind.

use super::label::Label;
use super::records::{Asked, Question};
use super::{Checker, View};
use crate::simulation::clock::{Real, SECOND};
use crate::simulation::node::Node;
use quorum::agent::{Refusal, Request};
use quorum::members::{Member, MemberSet};
use quorum::protocol_bug::ProtocolBug;
use quorum::voter::Voter;
use std::time::Duration;

/// How late an answer may be by the agent's clock. Timers fire up to 400 ms late.
const GRACE: Duration = Duration::from_secs(1);

impl Checker {
    /// A client sends a request, which gets the next number.
    pub fn asked(
        &mut self,
        (node, client): (usize, usize),
        question: Question,
        timeout: Real,
        view: View<'_>,
    ) -> Request {
        let request = Request(self.asked.len() as u64);
        let mut asked = Asked {
            node,
            client,
            lifetime: view.lifetime(node),
            question,
            real: view.real,
            now: view.nodes[node].agent_host.now(view.real),
            timeout: Duration::from_nanos(timeout as u64),
            answered: false,
            canceled: false,
            contended: false,
        };
        if let Question::Lock { names, .. } = question {
            if timeout == 0 {
                self.summary.count("tries");
            }
            let contended = self.contend(names, view.real);
            asked.contended = contended || !self.is_ready(view, node);
        }
        self.asked.push(asked);
        self.open.push(request);
        request
    }

    /// Whether a quorum of voters votes, and this agent has known a quorum for a second.
    fn is_ready(&self, view: View<'_>, node: usize) -> bool {
        let votes = |node: &Node| node.voter.as_ref().is_some_and(Voter::is_voting);
        let voting = view
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| votes(node));
        let voting = voting.filter_map(|(place, _)| Member::at(place)).collect();
        let since = view.nodes[node].quorum_since;
        self.is_quorum(voting) && since.is_some_and(|since| view.real - since > SECOND)
    }

    /// Whether another client requests, holds or recently held one of the names. Such requests become contended, too.
    fn contend(&mut self, names: u32, real: Real) -> bool {
        let locks = |asked: &Asked| match asked.question {
            Question::Lock { names: others, .. } => others & names != 0,
            Question::Unlock { .. } | Question::UnlockAsync { .. } => false,
        };
        let held = self.locks.iter().any(|lock| lock.names & names != 0);
        let recent = |at: Real| at > real - 3 * SECOND;
        let mut past = self.past.iter();
        let past = past.any(|past| past.lock.names & names != 0 && recent(past.at));
        let mut found = held || past;
        for request in &self.open {
            let other = &mut self.asked[request.0 as usize];
            if locks(other) {
                other.contended = true;
                found = true;
            }
        }
        // The agent may still have to return votes of a recent request that failed.
        let mut others = self.asked.iter().rev().take(64);
        found || others.any(|other| other.real > real - 5 * SECOND && locks(other))
    }

    pub fn canceled(&mut self, request: Request) {
        self.asked[request.0 as usize].canceled = true;
        self.open.retain(|other| *other != request);
    }

    /// A request is answered. Returns None if no answer is allowed.
    pub(super) fn close(&mut self, request: Request, view: View<'_>) -> Option<Asked> {
        let asked = self.asked.get_mut(request.0 as usize).filter(|asked| {
            let lifetime = view.lifetime(asked.node);
            !asked.answered && !asked.canceled && asked.lifetime == lifetime
        });
        let Some(asked) = asked else {
            let text = || format!("r{} was answered and did not wait", request.0);
            self.violated(Label::Answers, text);
            return None;
        };
        asked.answered = true;
        let asked = asked.clone();
        self.open.retain(|other| *other != request);
        Some(asked)
    }

    /// Without a quorum of connected members, a request must be refused in its call.
    pub fn answered_at_once(&mut self, request: Request, connected: MemberSet) {
        let asked = &self.asked[request.0 as usize];
        let is_lock = matches!(asked.question, Question::Lock { .. });
        if is_lock && !asked.answered && !self.is_quorum(connected) {
            let text = || format!("r{} was not refused, with {connected:?}", request.0);
            self.violated(Label::Answers, text);
        }
    }

    /// Returns the client of the request.
    pub fn refused(&mut self, request: Request, why: Refusal, view: View<'_>) -> Option<usize> {
        let asked = self.close(request, view)?;
        if !matches!(asked.question, Question::Lock { .. }) {
            let text = || format!("r{} was refused and is no lock request", request.0);
            self.violated(Label::Answers, text);
            return None;
        }
        let node = &view.nodes[asked.node];
        match why {
            Refusal::NoQuorum => {
                self.summary.count("locks refused: no quorum");
                let connected = node.connected;
                if self.is_quorum(connected) {
                    let text = || format!("r{}: no quorum, with {connected:?}", request.0);
                    self.violated(Label::Answers, text);
                }
            }
            Refusal::Timeout if asked.timeout.is_zero() => self.summary.count("tries refused"),
            Refusal::Timeout => {
                self.summary.count("locks refused: timeout");
                if node.agent_host.now(view.real) < asked.now + asked.timeout {
                    let text = || format!("r{} timed out too early", request.0);
                    self.violated(Label::Answers, text);
                }
                let text = || format!("r{} was refused, and no client was in its way", request.0);
                let free = asked.timeout >= Duration::from_secs(2) && !asked.contended;
                if self.healed_at.is_some_and(|healed| asked.real > healed) {
                    self.violated(Label::PR1, text);
                } else if self.plan.is_fault_free() && free {
                    self.violated(Label::PR2, text);
                }
            }
        }
        Some(asked.client)
    }

    /// Returns the client of the request.
    pub fn unlocked(&mut self, request: Request, confirmed: bool, view: View<'_>) -> Option<usize> {
        let asked = self.close(request, view)?;
        let Question::Unlock { token } = asked.question else {
            let text = || format!("r{} was unlocked and is no unlock request", request.0);
            self.violated(Label::Answers, text);
            return None;
        };
        self.summary.count(if confirmed {
            "unlocks confirmed"
        } else {
            "unlocks not confirmed"
        });
        if self.plan.is_fault_free() && !confirmed {
            let text = || format!("r{}: the unlock was not confirmed", request.0);
            self.violated(Label::PR2, text);
        }
        if confirmed && !self.options.bugs.have(ProtocolBug::AnyOrder) {
            self.check_forgotten(asked.lifetime, token, view);
        }
        Some(asked.client)
    }

    pub fn accepted(&mut self, request: Request, view: View<'_>) {
        let Some(asked) = self.close(request, view) else {
            return;
        };
        if !matches!(asked.question, Question::UnlockAsync { .. }) {
            let text = || format!("r{} was accepted and is no unlock_async", request.0);
            self.violated(Label::Answers, text);
        }
        self.summary.count("asynchronous unlocks accepted");
        if view.real > asked.real {
            self.summary.count("asynchronous unlocks that had to wait");
        }
    }

    /// An agent returned from an unlock: whether it `known` the lock, and whether its client `held` it.
    pub fn was_known(&mut self, request: Request, known: bool, held: bool) {
        let asked = &mut self.asked[request.0 as usize];
        let (Question::Unlock { token } | Question::UnlockAsync { token }) = asked.question else {
            unreachable!("only an unlock is known or not");
        };
        let id = (asked.node, asked.lifetime, token);
        if !known {
            asked.answered = true;
            self.open.retain(|other| *other != request);
        }
        let past = self.past.iter().find(|past| past.lock.id == id);
        let lost = past.is_some_and(|past| past.lost);
        if known && !held {
            let text = || format!("t{} was unlocked twice, or after its loss", token.0);
            self.violated(Label::Q8, text);
        }
        if !known && held && !lost {
            let text = || format!("t{} was unknown and never lost", token.0);
            self.violated(Label::Answers, text);
        }
    }

    /// The timer of an agent fired. No request to it may have waited for too long.
    pub fn after_timer(&mut self, node: usize, view: View<'_>) {
        let now = view.nodes[node].agent_host.now(view.real);
        for place in 0..self.open.len() {
            let request = self.open[place];
            let asked = &self.asked[request.0 as usize];
            let question = asked.question;
            let (most, label) = match question {
                Question::Lock { .. } if asked.timeout.is_zero() => {
                    (self.plan.rules.attempt, Label::Answers)
                }
                Question::Lock { .. } => (asked.timeout, Label::Answers),
                Question::Unlock { .. } => (self.plan.rules.voter_lease, Label::Answers),
                Question::UnlockAsync { .. } => (self.plan.rules.voter_lease, Label::Batches),
            };
            if asked.node == node && now > asked.now + most + GRACE {
                let text = || format!("r{} ({question:?}) was not answered in time", request.0);
                self.violated(label, text);
            }
        }
    }
}
