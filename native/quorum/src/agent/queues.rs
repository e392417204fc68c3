//! Queues of the requests of this node.
//!
//! Requests of one node for the same name wait here in their order of arrival and ask the voters one at a time,
//! because a voter would reject the second one anyway. Readers ask together. A request for several names joins all
//! their queues at once, so no two such requests wait for each other.
//!
//! A request that probably has to wait for requests of other nodes asks the sequencer first. This is so if the last one
//! for a name of the partition had to, or another node asked for its lock.

use super::output::Request;
use crate::groups::partition;
use crate::message::{Mode, Name, Names};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Queue {
    /// Whether a writer asks for the name or has it.
    writer: bool,
    /// How many readers ask for the name or have it.
    readers: usize,
    waiting: VecDeque<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queues {
    queues: BTreeMap<Name, Queue>,
    /// The partitions of names that other nodes want, too.
    contended: BTreeSet<usize>,
    partitions: usize,
}

impl Queues {
    pub(super) fn new(partitions: usize) -> Queues {
        Queues {
            queues: BTreeMap::new(),
            contended: BTreeSet::new(),
            partitions,
        }
    }

    /// Adds `request` to the ends of the queues of its names.
    pub(super) fn join(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            self.queues
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
            self.queues
                .get(name)
                .is_some_and(|queue| free(queue) && first(queue))
        }) {
            return false;
        }
        for name in names.iter() {
            let Some(queue) = self.queues.get_mut(name) else {
                continue;
            };
            queue.waiting.pop_front();
            match mode {
                Mode::Write => queue.writer = true,
                Mode::Read => queue.readers += 1,
            }
        }
        true
    }

    /// Notes whether requests of other nodes conflict with those of this node for `names`.
    pub(super) fn contend(&mut self, names: &Names, contended: bool) {
        if self.contended.is_empty() && !contended {
            return;
        }
        for name in names.iter() {
            let partition = partition(name, self.partitions);
            match contended {
                true => self.contended.insert(partition),
                false => self.contended.remove(&partition),
            };
        }
    }

    /// Whether a request for `names` probably has to wait for requests of other nodes.
    pub(super) fn contended(&self, names: &Names) -> bool {
        let mut partitions = names.iter().map(|name| partition(name, self.partitions));
        !self.contended.is_empty() && partitions.any(|place| self.contended.contains(&place))
    }

    /// `request`, the first that waits, has them from another writer of this node.
    pub(super) fn passed(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            if let Some(queue) = self.queues.get_mut(name) {
                debug_assert_eq!(queue.waiting.front(), Some(&request));
                queue.waiting.pop_front();
            }
        }
    }

    /// Removes an asking request or a holder of `names`.
    pub(super) fn remove(&mut self, names: &Names, mode: Mode) {
        for name in names.iter() {
            let Some(queue) = self.queues.get_mut(name) else {
                continue;
            };
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
            let Some(queue) = self.queues.get_mut(name) else {
                continue;
            };
            // Found soon if the requests leave in their order, as they do when many of them time out.
            if let Some(position) = queue.waiting.iter().position(|waiting| *waiting == request) {
                queue.waiting.remove(position);
            }
            self.sweep(name);
        }
    }

    /// The first waiting request for `name`.
    pub(super) fn first(&self, name: &Name) -> Option<Request> {
        self.waiting(name).next()
    }

    pub(super) fn waiting(&self, name: &Name) -> impl Iterator<Item = Request> + '_ {
        let queue = self.queues.get(name);
        queue
            .into_iter()
            .flat_map(|queue| queue.waiting.iter().copied())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    fn sweep(&mut self, name: &Name) {
        if self
            .queues
            .get(name)
            .is_some_and(|queue| !queue.writer && queue.readers == 0 && queue.waiting.is_empty())
        {
            self.queues.remove(name);
        }
    }
}
