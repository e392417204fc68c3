//! Counts the unlocks that voters have executed.
//!
//! Each unlock has an ordinal. Unlocks go to the voters that may have a vote, in the same order to each. One number per
//! voter, the last ordinal up to which it has executed all that it was sent, is therefore enough. Only unlocks with a
//! waiting caller take memory.

use super::output::Request;
use crate::members::{Member, MemberSet, Members};
use crate::time::Time;
use std::collections::VecDeque;

/// A caller of `unlock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Unlocking {
    ordinal: u64,
    until: Time,
    request: Request,
    /// The voters that may have a vote for the lock until they have executed the unlock.
    asked: MemberSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Unlocks {
    issued: u64,
    done: u64,
    unlocking: VecDeque<Unlocking>,
    /// Callers of `unlock_async` that wait until fewer unlocks are pending, with the ordinal that they wait for and
    /// their deadline.
    throttled: VecDeque<(u64, Time, Request)>,
}

impl Unlocks {
    /// Counts one more unlock and returns its ordinal.
    pub(super) fn issue(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }

    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// How many unlocks more than half of the members have not executed yet.
    pub(super) fn pending(&self) -> u64 {
        self.issued - self.done
    }

    pub(super) fn await_done(&mut self, until: Time, request: Request, asked: MemberSet) {
        let ordinal = self.issued;
        self.unlocking.push_back(Unlocking {
            ordinal,
            until,
            request,
            asked,
        });
    }

    pub(super) fn await_accepted(&mut self, until: Time, request: Request) {
        self.throttled.push_back((self.issued, until, request));
    }

    /// More than half of the members have executed the unlocks up to `ordinal`.
    pub(super) fn reached(&mut self, ordinal: u64) {
        self.done = self.done.max(ordinal);
    }

    /// Takes the callers of `unlock` whose wait is over, and whether a quorum has no vote for the lock any more.
    /// `executed` returns the number of a voter.
    pub(super) fn unlocked(
        &mut self,
        now: Time,
        members: Members,
        executed: impl Fn(Member) -> u64,
    ) -> Vec<(Request, bool)> {
        let mut over = Vec::new();
        self.unlocking.retain(|unlocking| {
            let done = unlocking.is_done(members, &executed);
            let waits = !done && unlocking.until > now;
            if !waits {
                over.push((unlocking.request, done));
            }
            waits
        });
        over
    }

    /// Takes the next caller of `unlock_async` whose wait is over: at most `most` unlocks are pending, or its deadline
    /// has passed.
    pub(super) fn accepted(&mut self, now: Time, most: u64) -> Option<Request> {
        let (ordinal, until, request) = *self.throttled.front()?;
        let accepted = ordinal.saturating_sub(self.done) <= most;
        (accepted || until <= now)
            .then(|| self.throttled.pop_front())
            .flatten()
            .map(|_| request)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let unlocking = self.unlocking.front().map(|unlocking| unlocking.until);
        let throttled = self.throttled.front().map(|(_, until, _)| *until);
        unlocking.into_iter().chain(throttled).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unlocking.is_empty() && self.throttled.is_empty()
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        for unlocking in &mut self.unlocking {
            unlocking.until = unlocking.until.relative_to(now);
        }
        for (_, until, _) in &mut self.throttled {
            *until = until.relative_to(now);
        }
    }
}

impl Unlocking {
    fn is_done(&self, members: Members, executed: impl Fn(Member) -> u64) -> bool {
        let is_done =
            |member: &Member| !self.asked.contains(*member) || executed(*member) >= self.ordinal;
        members.iter().filter(is_done).count() >= members.quorum()
    }
}
