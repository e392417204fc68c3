//! Passes locks on from one process of this node to the next, with the same votes.
//!
//! ```text
//!   requested         Lock t1 x, run of 3       two more requests wait here: each voter gives three fences
//!   granted           t1, fence 7
//!   released          t2, fence 8               the next request has the lock: no message
//!   released          t3, fence 9
//!   released          Unlock t1, fence 9        the end of the run, or no request waits here
//! ```
//!
//! Voters see one lock, whose fence is the last of the run. That fence is higher than all earlier ones, and a quorum
//! has recorded it before the first lock of the run is granted. The same holds for each fence of the run, and no
//! other writer gets one of them. Each holder has its own lock with its own standing: a released lock is no longer
//! held before the next one is granted.
//!
//! A run has at most as many locks as this node's queue had requests when it was requested. After another node has
//! asked for the lock (*recall*), it also has a time limit. Other nodes therefore wait no longer for a run than for
//! one lock that is held for that time. The technique is lock cohorting (Dice, Marathe and Shavit, "Lock Cohorting",
//! PPoPP 2012): passing a lock on within a node is cheap.

use super::locks::Released;
use super::output::{AgentOutput, Path, Request};
use super::request::Pending;
use super::Agent;
use crate::lease::Standing;
use crate::members::MemberSet;
use crate::message::{Mode, Name, Token};
use crate::protocol_bug::ProtocolBug;
use std::num::NonZeroU16;
use std::sync::Arc;

impl Agent {
    /// How many locks an attempt of `request` may serve: the request and the writers behind it in this node's queue.
    pub(super) fn run(&self, request: Request) -> NonZeroU16 {
        let name = self.requests.get(&request).and_then(writes_one);
        let Some(name) = name.filter(|_| !self.setup.bugs.have(ProtocolBug::FencesNotTaken)) else {
            return NonZeroU16::MIN;
        };
        let next = self.queues.waiting(name).map_while(|next| {
            self.requests
                .get(&next)
                .filter(|pending| writes_one(pending).is_some())
        });
        let run = next.take(self.setup.rules.run - 1).count() + 1;
        u16::try_from(run)
            .ok()
            .and_then(NonZeroU16::new)
            .unwrap_or(NonZeroU16::MIN)
    }

    /// The holder releases the lock. It is passed on to the next request of this node if possible; otherwise its
    /// votes are released. `None` if there is no such lock.
    pub(super) fn release(&mut self, token: Token) -> Option<Released> {
        let attempt = self.locks.attempt_of(token)?;
        if let Some(next) = self.next_of_run(attempt) {
            self.pass(attempt, next);
            return Some(Released::Passed);
        }
        self.give_up(attempt).map(Released::VotesReleased)
    }

    /// The next request for the lock, if it may be passed on. A lock at risk is not passed on, so that a new holder
    /// has it for some time.
    fn next_of_run(&self, attempt: Token) -> Option<Request> {
        let lock = self.locks.get(attempt)?;
        let in_time = lock.pass_until.is_none_or(|until| self.now < until);
        let left =
            in_time && lock.fence < lock.last || self.setup.bugs.have(ProtocolBug::FencesNotTaken);
        let standing = &lock.standing;
        let until = self.locks.lease.until(standing.votes(), standing.quorums());
        let safe = until >= self.now + self.setup.rules.at_risk;
        let name = lock.names.single()?;
        let next = self.queues.first(name)?;
        let fits = self.requests.get(&next).and_then(writes_one).is_some();
        (left && safe && fits).then_some(next)
    }

    /// A request of another node waits for the lock: from now on the run has a time limit.
    pub(super) fn end_run_soon(&mut self, attempt: Token) {
        let until = self.now + self.setup.rules.run_time;
        if let Some(lock) = self.locks.get_mut(attempt) {
            lock.pass_until.get_or_insert(until);
            self.queues.contend(&lock.names, true);
        }
    }

    fn pass(&mut self, attempt: Token, next: Request) {
        let token = self.next;
        let (Some(lock), Some(pending)) =
            (self.locks.get_mut(attempt), self.requests.remove(&next))
        else {
            return;
        };
        self.next = Token(token.0 + 1);
        self.timers.remove(&(pending.timer(), next));
        self.queues.passed(next, &lock.names);
        let votes = lock.standing.votes();
        let standing = Arc::new(Standing::new(votes, lock.standing.quorums().clone()));
        if !self.setup.bugs.have(ProtocolBug::UnlockKeepsHeld) {
            lock.standing.set(MemberSet::EMPTY);
        }
        let before = std::mem::replace(&mut lock.token, token);
        lock.fence = lock.fence.next();
        lock.since = self.now;
        lock.standing = Arc::clone(&standing);
        self.out.push(AgentOutput::Granted {
            request: next,
            token,
            attempt,
            path: Path::Passed,
            fence: lock.fence,
            standing,
        });
        self.locks.index_passed(before, token, attempt);
    }
}

/// The name, if the request is for one name and for writing. Only such locks can be passed on.
fn writes_one(pending: &Pending) -> Option<&Name> {
    pending
        .names
        .single()
        .filter(|_| pending.mode == Mode::Write)
}
