//! Locks that are held: by one writer or by readers (Q1), with growing fences (Q5) that a quorum has recorded (Q6),
//! until they are unlocked (Q8) or lost.

use super::label::Label;
use super::records::{Id, Lock, PastLock, Question};
use super::{conflict, places, Checker, View};
use crate::simulation::clock::{Real, SECOND};
use crate::votes;
use quorum::agent::{Loss, Request};
use quorum::lease::Standing;
use quorum::members::{Member, MemberSet};
use quorum::message::{Fence, Mode, Token};
use std::sync::Arc;

/// How many past locks the checker still checks.
const PAST_LOCKS: usize = 24;

impl Checker {
    /// Returns the client of the request.
    pub fn granted(
        &mut self,
        request: Request,
        (token, attempt): (Token, Token),
        fence: Fence,
        standing: Arc<Standing>,
        view: View<'_>,
    ) -> Option<usize> {
        let asked = self.close(request, view)?;
        let Question::Lock { names, mode } = asked.question else {
            let text = || format!("r{} was granted and is no lock request", request.0);
            self.violated(Label::Answers, text);
            return None;
        };
        self.summary.count(match mode {
            Mode::Write => "writers granted",
            Mode::Read => "readers granted",
        });
        if names.count_ones() > 1 {
            self.summary.count("locks of several names granted");
        }
        if self.is_guest(asked.node) {
            self.summary.count("locks granted to guests");
        }
        let lock = Lock {
            id: (asked.node, asked.lifetime, token),
            attempt,
            names,
            mode,
            fence,
            standing,
            granted: view.real,
            revoked: None,
        };
        self.check_fence(&lock);
        self.check_written(&lock, view);
        self.check_granted(&lock);
        self.locks.push(lock);
        Some(asked.client)
    }

    /// Each attempt is granted once, and passed on only after that.
    fn check_granted(&mut self, lock: &Lock) {
        let ((node, lifetime, token), attempt) = (lock.id, lock.attempt);
        let passed_on = token != attempt;
        if self.granted.insert((lifetime, attempt)) == passed_on {
            let text = || {
                let (token, attempt) = (token.0, attempt.0);
                format!(
                    "n{node} t{token} of t{attempt}: granted twice, or passed on and never granted"
                )
            };
            self.violated(Label::Q8, text);
        }
        if passed_on {
            self.summary.count("locks passed on");
            if self.has(node, lifetime, token) {
                let text = || format!("n{node} t{} is two locks", token.0);
                self.violated(Label::Q8, text);
            }
        }
    }

    fn check_fence(&mut self, lock: &Lock) {
        let (mode, fence, token) = (lock.mode, lock.fence, lock.id.2);
        for place in places(lock.names) {
            let last = self.last_writers[place];
            let grows = match mode {
                Mode::Write => fence > last,
                Mode::Read => fence >= last,
            };
            if !grows {
                let text = || {
                    let (token, fence, last) = (token.0, fence.0, last.0);
                    format!("t{token} ({mode:?}, name {place}) has fence {fence}, after {last}")
                };
                self.violated(Label::Q5, text);
            }
            if mode == Mode::Write {
                self.last_writers[place] = last.max(fence);
            }
        }
    }

    /// Q6. A lock that is passed on may have lost some of the votes since its fence was recorded.
    fn check_written(&mut self, lock: &Lock, view: View<'_>) {
        let ((node, _, token), attempt, fence) = (lock.id, lock.attempt, lock.fence);
        let Some((agent, now)) = view.agent(node).filter(|_| lock.mode == Mode::Write) else {
            return;
        };
        let passed_on = token != attempt;
        let voters = match passed_on {
            true => self.plan.list().iter().collect(),
            false => votes::counted(agent, attempt, now),
        };
        let knows = |member: &Member| {
            let Some(voter) = view.voter(member.place()) else {
                // It may have recorded the fence before it crashed.
                return true;
            };
            // One with an old disk may have known the fence. It does not vote before it has its last mark.
            let is_stale = view.nodes[member.place()].has_old_mark;
            let mut names = places(lock.names).map(|place| &self.names[place]);
            is_stale || names.all(|name| voter.fence(name) >= fence)
        };
        let written: MemberSet = voters.iter().filter(knows).collect();
        if !self.is_quorum(written) {
            let text = || {
                let (attempt, fence) = (attempt.0, fence.0);
                format!("t{attempt} has fence {fence}, which {written:?} recorded")
            };
            self.violated(Label::Q6, text);
        }
    }

    pub fn has(&self, node: usize, lifetime: u64, token: Token) -> bool {
        let id = (node, lifetime, token);
        self.locks.iter().any(|lock| lock.id == id)
    }

    pub fn unlocking(&mut self, node: usize, lifetime: u64, token: Token, real: Real) {
        self.end((node, lifetime, token), real, false);
    }

    fn end(&mut self, id: Id, at: Real, lost: bool) {
        let Some(found) = self.locks.iter().position(|lock| lock.id == id) else {
            return;
        };
        let lock = self.locks.swap_remove(found);
        if self.past.len() == PAST_LOCKS {
            self.past.remove(0);
        }
        self.past.push(PastLock { lock, at, lost });
    }

    pub fn lost(&mut self, node: usize, token: Token, why: Loss, view: View<'_>) {
        let id = (node, view.lifetime(node), token);
        self.summary.count(if why == Loss::Quorum {
            "locks lost"
        } else {
            "locks revoked"
        });
        if let Some(lock) = self.locks.iter().find(|lock| lock.id == id) {
            // The revocation of a name may affect a lock that was granted shortly after it.
            let recently = |place: usize| {
                let revoked = self.revoked[place];
                revoked.is_some_and(|at| lock.granted < at + 3 * SECOND)
            };
            let revoked = lock.revoked.is_some() || places(lock.names).any(recently);
            if self.plan.is_fault_free() && (why == Loss::Quorum || !revoked) {
                let text = || format!("n{node} t{} was lost without a fault", token.0);
                self.violated(Label::PR2, text);
            }
            return self.end(id, view.real, true);
        }
        // The call that unlocks may find that the lock is lost.
        match self.past.iter_mut().find(|past| past.lock.id == id) {
            Some(past) if past.at == view.real && !past.lost => past.lost = true,
            _ => {
                let text = || format!("n{node} t{} was lost and not held", token.0);
                self.violated(Label::Lost, text);
            }
        }
    }

    pub fn at_risk(&mut self, node: usize, token: Token, view: View<'_>) {
        self.summary.count("locks at risk");
        let lifetime = view.lifetime(node);
        if self.plan.is_fault_free() {
            let text = || format!("n{node} t{} is at risk without a fault", token.0);
            self.violated(Label::PR2, text);
        }
        // The call that unlocks may find that the lock was at risk before.
        let id = (node, lifetime, token);
        let mut past = self.past.iter();
        let unlocking = past.any(|past| (past.lock.id, past.at) == (id, view.real));
        if !self.has(node, lifetime, token) && !unlocking {
            let text = || format!("n{node} t{} is at risk and not held", token.0);
            self.violated(Label::Lost, text);
        }
    }

    /// An agent revokes a name, at the voters with which it has sessions.
    pub fn revoked(&mut self, node: usize, place: usize, view: View<'_>) {
        self.revoked[place] = Some(view.real);
        let status = view.nodes[node]
            .agent
            .iter()
            .flat_map(|agent| agent.status());
        let reached = status.filter(|status| status.connected && status.session.is_some());
        let reached = reached.map(|status| status.member).collect();
        if !self.is_quorum(reached) {
            return;
        }
        let locks = self.locks.iter_mut();
        for lock in locks.filter(|lock| lock.names & 1 << place != 0) {
            lock.revoked.get_or_insert(view.real);
        }
    }

    pub fn after_agent(&mut self, node: usize, view: View<'_>) {
        self.check_lapsed(node, view);
        let Some((agent, now)) = view.agent(node) else {
            return;
        };
        for place in 0..self.locks.len() {
            let (owner, _, token) = self.locks[place].id;
            if owner != node {
                continue;
            }
            if !agent.held(token, now) {
                let text = || format!("n{node} t{} is not held, unknown to its holder", token.0);
                self.violated(Label::Lost, text);
                continue;
            }
            self.check_alone(place, view);
            self.check_heard(place, view.real);
        }
        for voter in 0..self.plan.members {
            self.check_counted(node, voter, view);
        }
        self.check_past(node, view);
        self.check_revoked(view.real);
        self.watch_empty(view);
    }

    fn check_alone(&mut self, place: usize, view: View<'_>) {
        let lock = &self.locks[place];
        let held = |other: &Lock| {
            let (node, _, token) = other.id;
            view.agent(node)
                .is_some_and(|(agent, now)| agent.held(token, now))
        };
        let others = self.locks.iter().enumerate();
        let rival = others.filter(|(at, _)| *at != place).find(|(_, other)| {
            conflict((lock.names, lock.mode), (other.names, other.mode)) && held(other)
        });
        if let Some((_, other)) = rival {
            let describe = |lock: &Lock| {
                let (node, _, token) = lock.id;
                let (token, mode, fence) = (token.0, lock.mode, lock.fence.0);
                format!("n{node} t{token} ({mode:?}, fence {fence})")
            };
            let text = format!("both are held: {} and {}", describe(lock), describe(other));
            self.violated(Label::Q1, || text);
        }
    }

    /// An agent that has not heard from a quorum for a lease and a second holds no lock.
    fn check_heard(&mut self, place: usize, real: Real) {
        let (node, _, token) = self.locks[place].id;
        let lease = self.plan.rules.holder_lease.as_nanos() as Real;
        let most = lease + lease * (self.plan.drift + 1_000) / 1_000_000 + SECOND;
        let recent = |(_, at): &(&(usize, usize), &Real)| real - **at <= most;
        let heard = self.heard.range((node, 0)..(node + 1, 0)).filter(recent);
        let heard = heard
            .filter_map(|((_, voter), _)| Member::at(*voter))
            .collect();
        if !self.is_quorum(heard) {
            let text = || {
                let token = token.0;
                format!("n{node} t{token} is held, and no quorum answered for a lease")
            };
            self.violated(Label::Lost, text);
        }
    }

    fn check_past(&mut self, node: usize, view: View<'_>) {
        let Some((agent, now)) = view.agent(node) else {
            return;
        };
        let lifetime = view.lifetime(node);
        let mut past = self.past.iter().map(|past| &past.lock);
        let held = past.find(|lock| {
            let (owner, of, token) = lock.id;
            let held = || agent.held(token, now) || agent.lease().holds(&lock.standing, || now);
            (owner, of) == (node, lifetime) && held()
        });
        if let Some((_, _, token)) = held.map(|lock| lock.id) {
            let text = || format!("n{node} t{} was unlocked or lost, and is held", token.0);
            self.violated(Label::Q8, text);
        }
    }

    fn check_revoked(&mut self, real: Real) {
        if !self.plan.is_fault_free() {
            return;
        }
        let late = |lock: &&Lock| lock.revoked.is_some_and(|at| real - at > 3 * SECOND);
        if let Some((_, _, token)) = self.locks.iter().find(late).map(|lock| lock.id) {
            let text = || format!("t{} was revoked, unknown to its holder", token.0);
            self.violated(Label::Revoked, text);
        }
    }
}
