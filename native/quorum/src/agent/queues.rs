//! Queues of the requests of this node.
//!
//! Requests of one node for the same name wait here in their order of arrival and ask the voters one at a time,
//! because a voter would reject the second one anyway. Readers ask together. A request for several names joins all
//! their queues at once, so no two such requests wait for each other.

use super::output::Request;
use crate::message::{Mode, Name, Names};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Queue {
    /// Whether a writer asks for the name or has it.
    writer: bool,
    /// How many readers ask for the name or have it.
    readers: usize,
    waiting: VecDeque<Request>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Queues(BTreeMap<Name, Queue>);

impl Queues {
    /// Adds `request` to the ends of the queues of its names.
    pub(super) fn join(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            self.0
                .entry(name.clone())
                .or_default()
                .waiting
                .push_back(request);
        }
    }

    /// Moves `request` from waiting to asking, if it is first in all its queues and no lock or asking request
    /// conflicts with it. Returns whether it did.
    pub(super) fn start(&mut self, request: Request, names: &Names, mode: Mode) -> bool {
        let free = |queue: &Queue| !queue.writer && (mode == Mode::Read || queue.readers == 0);
        let first = |queue: &Queue| queue.waiting.front() == Some(&request);
        if !names.iter().all(|name| {
            self.0
                .get(name)
                .is_some_and(|queue| free(queue) && first(queue))
        }) {
            return false;
        }
        for name in names.iter() {
            let queue = self.0.get_mut(name).expect("it was joined");
            queue.waiting.pop_front();
            match mode {
                Mode::Write => queue.writer = true,
                Mode::Read => queue.readers += 1,
            }
        }
        true
    }

    /// `request`, the first that waits, has them from another writer of this node.
    pub(super) fn passed(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            if let Some(queue) = self.0.get_mut(name) {
                debug_assert_eq!(queue.waiting.front(), Some(&request));
                queue.waiting.pop_front();
            }
        }
    }

    /// Removes an asking request or a holder of `names`.
    pub(super) fn remove(&mut self, names: &Names, mode: Mode) {
        for name in names.iter() {
            let queue = self.0.get_mut(name).expect("it was joined");
            match mode {
                Mode::Write => queue.writer = false,
                Mode::Read => queue.readers -= 1,
            }
            self.sweep(name);
        }
    }

    /// Removes a waiting request.
    pub(super) fn leave(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            let queue = self.0.get_mut(name).expect("it was joined");
            // Found soon if the requests leave in their order, as they do when many of them time out.
            if let Some(position) = queue.waiting.iter().position(|waiting| *waiting == request) {
                queue.waiting.remove(position);
            }
            self.sweep(name);
        }
    }

    /// The first waiting request for `name`.
    pub(super) fn first(&self, name: &Name) -> Option<Request> {
        self.0.get(name)?.waiting.front().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sweep(&mut self, name: &Name) {
        if self
            .0
            .get(name)
            .is_some_and(|queue| !queue.writer && queue.readers == 0 && queue.waiting.is_empty())
        {
            self.0.remove(name);
        }
    }
}
