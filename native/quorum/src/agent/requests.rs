//! The requests of this node: those that are queued behind others, and those that ask.

use super::output::Request;
use super::queues::Queues;
use super::request::{Asking, Pending};
use crate::members::Member;
use crate::message::{Mode, Name, Names, Token};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Requests {
    pending: BTreeMap<Request, Pending>,
    /// The request of each token that asks.
    asking: BTreeMap<Token, Request>,
    timers: BTreeSet<(Time, Request)>,
    pub(super) queues: Queues,
    /// Requests that may ask, because they are first in the queues of this node.
    ready: VecDeque<Request>,
}

impl Requests {
    pub(super) fn insert(&mut self, request: Request, pending: Pending) {
        self.queues.join(request, &pending.names);
        self.timers.insert((pending.timer(), request));
        self.ready.push_back(request);
        self.pending.insert(request, pending);
    }

    pub(super) fn get(&self, request: Request) -> Option<&Pending> {
        self.pending.get(&request)
    }

    /// The request of a token that asks.
    pub(super) fn asking(&self, token: Token) -> Option<Request> {
        self.asking.get(&token).copied()
    }

    /// Changes a request, which exists.
    pub(super) fn change<T>(
        &mut self,
        request: Request,
        change: impl FnOnce(&mut Pending) -> T,
    ) -> T {
        let pending = self.pending.get_mut(&request).expect("it is pending");
        let before = pending.timer();
        let changed = change(pending);
        let after = pending.timer();
        if after != before {
            self.timers.remove(&(before, request));
            self.timers.insert((after, request));
        }
        changed
    }

    /// Changes the state of a request that asks.
    pub(super) fn change_asking<T>(
        &mut self,
        request: Request,
        change: impl FnOnce(&mut Asking) -> T,
    ) -> T {
        self.change(request, |pending| {
            change(pending.asking.as_mut().expect("it asks"))
        })
    }

    /// The next request that may ask, if it is still there.
    pub(super) fn next_ready(&mut self) -> Option<Request> {
        while let Some(request) = self.ready.pop_front() {
            if self
                .pending
                .get(&request)
                .is_some_and(|pending| pending.asking.is_none())
            {
                return Some(request);
            }
        }
        None
    }

    /// It may not ask yet.
    pub(super) fn not_ready(&mut self, request: Request) {
        self.ready.push_front(request);
    }

    /// Removes the request from the queues, if it is first in all of them and nothing conflicts with it.
    pub(super) fn leave_queues(&mut self, request: Request) -> bool {
        let pending = self.pending.get(&request).expect("it is pending");
        self.queues.start(request, &pending.names, pending.mode)
    }

    /// The request asks with a new token. An earlier one is forgotten.
    pub(super) fn ask(&mut self, request: Request, asking: Asking) {
        let token = asking.token;
        let before = self.change(request, |pending| pending.asking.replace(asking));
        if let Some(before) = before {
            self.asking.remove(&before.token);
        }
        self.asking.insert(token, request);
    }

    /// Removes a request that is granted: its names stay taken.
    pub(super) fn take(&mut self, request: Request) -> Pending {
        let pending = self.pending.remove(&request).expect("it is pending");
        self.timers.remove(&(pending.timer(), request));
        if let Some(asking) = &pending.asking {
            self.asking.remove(&asking.token);
        }
        pending
    }

    /// Removes the first request in the queue of its name, which gets the lock of another one.
    pub(super) fn take_passed(&mut self, request: Request) {
        let pending = self.take(request);
        self.queues.passed(request, &pending.names);
    }

    /// Removes a request that is not granted, if it exists. The next ones in the queues may ask.
    pub(super) fn drop(&mut self, request: Request) -> Option<Pending> {
        self.pending.get(&request)?;
        let pending = self.take(request);
        match pending.asking {
            Some(_) => self.free(&pending.names, pending.mode),
            None => {
                self.queues.leave(request, &pending.names);
                self.wake(&pending.names);
            }
        }
        Some(pending)
    }

    /// A request that asked for `names`, or a lock of them, is gone. The next ones in the queues may ask.
    pub(super) fn free(&mut self, names: &Names, mode: Mode) {
        self.queues.remove(names, mode);
        self.wake(names);
    }

    /// The first requests in the queues of `names` may ask.
    pub(super) fn wake(&mut self, names: &Names) {
        let first = names.iter().filter_map(|name| self.queues.first(name));
        self.ready.extend(first);
    }

    /// The first waiting request for `name`, if it is a writer of this name only: it can get the lock of another one.
    pub(super) fn next_writer(&self, name: &Name) -> Option<Request> {
        self.queues
            .first(name)
            .filter(|request| self.writes_one(*request))
    }

    fn writes_one(&self, request: Request) -> bool {
        self.pending.get(&request).is_some_and(Pending::writes_one)
    }

    /// The requests that ask, with their tokens from `from` on.
    pub(super) fn tokens(&self, from: Token) -> impl Iterator<Item = (Token, Request)> + '_ {
        self.asking
            .range(from..)
            .map(|(token, request)| (*token, *request))
    }

    /// The requests that ask.
    pub(super) fn all_asking(&self) -> Vec<Request> {
        self.asking.values().copied().collect()
    }

    pub(super) fn is_asking(&self) -> bool {
        !self.asking.is_empty()
    }

    /// The state of a request that asks.
    pub(super) fn asking_of(&self, request: Request) -> &Asking {
        let asking = self
            .pending
            .get(&request)
            .and_then(|pending| pending.asking.as_ref());
        asking.expect("it asks")
    }

    /// The tokens with a vote of `member`.
    pub(super) fn voted(&self, member: Member) -> impl Iterator<Item = Token> + '_ {
        let voted =
            move |(_, request): &(&Token, &Request)| self.asking_of(**request).voted(member);
        self.asking.iter().filter(voted).map(|(token, _)| *token)
    }

    /// Each request that asks, with its votes.
    #[cfg(feature = "model")]
    pub(super) fn with_votes(&self) -> impl Iterator<Item = (&Pending, &Asking)> {
        self.asking
            .values()
            .map(|request| (&self.pending[request], self.asking_of(*request)))
    }

    /// The next request whose time has come.
    pub(super) fn due(&self, now: Time) -> Option<Request> {
        self.timers
            .first()
            .filter(|(at, _)| *at <= now)
            .map(|(_, request)| *request)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Any request.
    pub(super) fn first(&self) -> Option<Request> {
        self.pending.keys().next().copied()
    }

    pub(super) fn count(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
            && self.asking.is_empty()
            && self.timers.is_empty()
            && self.queues.is_empty()
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.pending
            .values_mut()
            .for_each(|pending| pending.rebase(now));
        let timers = self
            .pending
            .iter()
            .map(|(request, pending)| (pending.timer(), *request));
        self.timers = timers.collect();
    }
}
