//! Locks that are passed on from one process of this node to the next, on the same votes.
//!
//! ```text
//!   asked for with    Lock t1 x, a run of 3     two more of this node wait for x: the voters take three fences
//!   granted           t1, fence 7
//!   given back        t2, fence 8               the next one has it: no message
//!   given back        t3, fence 9
//!   given back        Unlock t1, fence 9        the last of the run, or nobody waits here any more
//! ```
//!
//! To voters it is one lock, whose fence is the last of the run: higher than all before, and written down by a quorum
//! before the first was granted. So it is for each fence of the run, and no other writer is given one of them. To
//! holders each is a lock of its own, with a standing of its own: what was given back is over before the next one is
//! granted.
//!
//! A run is as long as the line here was when it was asked for, and has a time; so others wait no longer for many
//! locks than they would for one that is held for a while. The idea is that of lock cohorts (Dice, Marathe and Shavit,
//! "Lock Cohorting", PPoPP 2012): a lock is cheap to pass on where it is already.

use super::request::Pending;
use super::{Agent, AgentOutput, Request};
use crate::lease::Standing;
use crate::members::MemberSet;
use crate::message::{Mode, Name, Token};
use crate::protocol_bug::ProtocolBug;
use std::num::NonZeroU8;
use std::sync::Arc;

impl Agent {
    /// How many locks may come of an attempt of `request`, with those that wait behind it here.
    pub(super) fn run(&self, request: Request) -> NonZeroU8 {
        let name = self.requests.get(&request).and_then(writes_one);
        let Some(name) = name.filter(|_| !self.setup.bugs.have(ProtocolBug::FencesNotTaken)) else {
            return NonZeroU8::MIN;
        };
        let next = self.lines.waiting(name).map_while(|next| {
            self.requests
                .get(&next)
                .filter(|pending| writes_one(pending).is_some())
        });
        let run = next.take(self.setup.rules.run - 1).count() + 1;
        u8::try_from(run)
            .ok()
            .and_then(NonZeroU8::new)
            .unwrap_or(NonZeroU8::MIN)
    }

    /// Its holder does not need it any more: the next one of this node has it, if there is one and it may; or it is
    /// given up. None if there is no such lock.
    pub(super) fn release(&mut self, token: Token) -> Option<Released> {
        let attempt = self.locks.attempt_of(token)?;
        if let Some(next) = self.next_of_run(attempt) {
            self.pass(attempt, next);
            return Some(Released::Passed);
        }
        self.give_up(attempt).then_some(Released::GivenUp)
    }

    /// Who is to have the lock next, if it may be passed on. One that is at risk may not: whoever gets a lock can count
    /// on it for a while.
    fn next_of_run(&self, attempt: Token) -> Option<Request> {
        let lock = self.locks.get(attempt)?;
        let left = lock.pass_until.is_some_and(|until| self.now < until)
            || self.setup.bugs.have(ProtocolBug::FencesNotTaken);
        let (votes, quorum) = (lock.standing.votes(), lock.standing.quorum());
        let safe = self.locks.lease.until(votes, quorum) >= self.now + self.setup.rules.at_risk;
        let name = lock.names.alone()?;
        let next = self.lines.first(name)?;
        let fits = self.requests.get(&next).and_then(writes_one).is_some();
        (left && safe && fits).then_some(next)
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
        self.lines.passed(next, &lock.names);
        let votes = lock.standing.votes();
        let standing = Arc::new(Standing::new(votes, lock.standing.quorum()));
        if !self.setup.bugs.have(ProtocolBug::UnlockKeepsHeld) {
            lock.standing.set(MemberSet::EMPTY);
        }
        let before = std::mem::replace(&mut lock.token, token);
        lock.fence = lock.fence.next();
        lock.pass_until = lock.pass_until.filter(|_| lock.fence < lock.last);
        lock.since = self.now;
        lock.standing = Arc::clone(&standing);
        self.out.push(AgentOutput::Granted {
            request: next,
            token,
            attempt,
            fence: lock.fence,
            standing,
        });
        self.locks.passed(token, before, attempt);
    }
}

/// What became of a lock that was given back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Released {
    /// Another one of this node has it.
    Passed,
    /// The voters are to forget it.
    GivenUp,
}

/// The name, if it is for one name and to write: such locks can be passed on.
fn writes_one(pending: &Pending) -> Option<&Name> {
    pending
        .names
        .alone()
        .filter(|_| pending.mode == Mode::Write)
}
