//! Counts the unlocks that a quorum of voters has executed.
//!
//! Each unlock has an ordinal and goes to all voters, in the same order to each. One number per voter, the last
//! ordinal that it has executed, is therefore enough. The quorum's number is the highest one that a quorum has
//! reached. Only unlocks with a waiting caller take memory.

use super::output::Request;
use crate::time::Time;
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Unlocks {
    issued: u64,
    done: u64,
    /// Callers of `unlock`, with the ordinal that they wait for and their deadline.
    unlocking: VecDeque<(u64, Time, Request)>,
    /// Callers of `try_unlock` that wait until fewer unlocks are pending, likewise.
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

    /// How many unlocks a quorum has not executed yet.
    pub(super) fn pending(&self) -> u64 {
        self.issued - self.done
    }

    pub(super) fn await_done(&mut self, until: Time, request: Request) {
        self.unlocking.push_back((self.issued, until, request));
    }

    pub(super) fn await_accepted(&mut self, until: Time, request: Request) {
        self.throttled.push_back((self.issued, until, request));
    }

    /// A quorum has executed the unlocks up to `ordinal`.
    pub(super) fn reached(&mut self, ordinal: u64) {
        self.done = self.done.max(ordinal);
    }

    /// Takes the next caller of `unlock` whose wait is over, and whether its unlock is executed.
    pub(super) fn unlocked(&mut self, now: Time) -> Option<(Request, bool)> {
        let (ordinal, until, request) = *self.unlocking.front()?;
        let done = ordinal <= self.done;
        (done || until <= now)
            .then(|| self.unlocking.pop_front())
            .flatten()
            .map(|_| (request, done))
    }

    /// Takes the next caller of `try_unlock` whose wait is over: at most `most` unlocks are pending, or its deadline
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
        self.unlocking
            .front()
            .into_iter()
            .chain(self.throttled.front())
            .map(|(_, until, _)| *until)
            .min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unlocking.is_empty() && self.throttled.is_empty()
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        for (_, until, _) in self.unlocking.iter_mut().chain(&mut self.throttled) {
            *until = until.relative_to(now);
        }
    }
}
