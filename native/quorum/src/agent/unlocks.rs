//! Which unlocks a quorum has done, told by counting.
//!
//! Each unlock has an ordinal, and goes to all voters, through one line to each: so one number a voter says how far
//! it has come, and the quorum's place is the number that so many have reached. Nothing is kept for a single unlock,
//! but who waits for it.

use super::Request;
use crate::time::Time;
use std::collections::VecDeque;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Unlocks {
    issued: u64,
    done: u64,
    /// Callers of `unlock`, who wait until theirs is done: ordinal, when they no longer do.
    unlocking: VecDeque<(u64, Time, Request)>,
    /// Callers of `try_unlock`, who wait until fewer are pending: likewise.
    crowded: VecDeque<(u64, Time, Request)>,
}

impl Unlocks {
    /// One more. Its ordinal.
    pub(super) fn issue(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }

    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// How many wait for a quorum.
    pub(super) fn pending(&self) -> u64 {
        self.issued - self.done
    }

    pub(super) fn await_done(&mut self, until: Time, request: Request) {
        self.unlocking.push_back((self.issued, until, request));
    }

    pub(super) fn await_room(&mut self, until: Time, request: Request) {
        self.crowded.push_back((self.issued, until, request));
    }

    /// A quorum has come so far.
    pub(super) fn reached(&mut self, ordinal: u64) {
        self.done = self.done.max(ordinal);
    }

    /// Who has waited long enough for its unlock, and whether it is done.
    pub(super) fn unlocked(&mut self, now: Time) -> Option<(Request, bool)> {
        let (ordinal, until, request) = *self.unlocking.front()?;
        let done = ordinal <= self.done;
        (done || until <= now)
            .then(|| self.unlocking.pop_front())
            .flatten()
            .map(|_| (request, done))
    }

    /// Who has waited long enough for room among `most` pending ones.
    pub(super) fn accepted(&mut self, now: Time, most: u64) -> Option<Request> {
        let (ordinal, until, request) = *self.crowded.front()?;
        let room = ordinal.saturating_sub(self.done) <= most;
        (room || until <= now)
            .then(|| self.crowded.pop_front())
            .flatten()
            .map(|_| request)
    }

    /// When the next one has waited long enough.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.unlocking
            .front()
            .into_iter()
            .chain(self.crowded.front())
            .map(|(_, until, _)| *until)
            .min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unlocking.is_empty() && self.crowded.is_empty()
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        for (_, until, _) in self.unlocking.iter_mut().chain(&mut self.crowded) {
            *until = until.relative_to(now);
        }
    }
}
