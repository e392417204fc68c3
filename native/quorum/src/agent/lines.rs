//! Queues of the requests of this node.
//!
//! Requests of one node for the same name wait here in their order of arrival and ask the voters one at a time,
//! because a voter would reject the second one anyway. Readers ask together. A request for several names joins all
//! their queues at once, so no two such requests wait for each other.

use super::output::Request;
use crate::message::{Mode, Name, Names};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Line {
    /// Whether a writer asks for the name or has it.
    writer: bool,
    /// How many readers ask for the name or have it.
    readers: usize,
    asking: BTreeSet<Request>,
    /// Whether the last granted request waited for requests of other nodes. The next one probably will, too.
    contended: bool,
    waiting: VecDeque<Request>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lines(BTreeMap<Name, Line>);

impl Lines {
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
        let free = |line: &Line| !line.writer && (mode == Mode::Read || line.readers == 0);
        let first = |line: &Line| line.waiting.front() == Some(&request);
        if !names.iter().all(|name| {
            self.0
                .get(name)
                .is_some_and(|line| free(line) && first(line))
        }) {
            return false;
        }
        for name in names.iter() {
            let Some(line) = self.0.get_mut(name) else {
                continue;
            };
            line.waiting.pop_front();
            line.asking.insert(request);
            match mode {
                Mode::Write => line.writer = true,
                Mode::Read => line.readers += 1,
            }
        }
        true
    }

    /// `request` is granted. `refused`: whether voters rejected it before, because of other requests.
    pub(super) fn granted(&mut self, request: Request, names: &Names, refused: bool) {
        for name in names.iter() {
            if let Some(line) = self.0.get_mut(name) {
                line.asking.remove(&request);
                line.contended = refused;
            }
        }
    }

    /// Whether a request for `names` probably has to wait for requests of other nodes.
    pub(super) fn contended(&self, names: &Names) -> bool {
        names
            .iter()
            .any(|name| self.0.get(name).is_some_and(|line| line.contended))
    }

    /// `request`, the first that waits, has them from another writer of this node.
    pub(super) fn passed(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            if let Some(line) = self.0.get_mut(name) {
                debug_assert_eq!(line.waiting.front(), Some(&request));
                line.waiting.pop_front();
            }
        }
    }

    /// Removes an asking request or a holder of `names`.
    pub(super) fn remove(&mut self, request: Option<Request>, names: &Names, mode: Mode) {
        for name in names.iter() {
            let Some(line) = self.0.get_mut(name) else {
                continue;
            };
            line.asking.retain(|asking| Some(*asking) != request);
            match mode {
                Mode::Write => line.writer = false,
                Mode::Read => line.readers -= 1,
            }
            self.sweep(name);
        }
    }

    /// Removes a waiting request.
    pub(super) fn leave(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            let Some(line) = self.0.get_mut(name) else {
                continue;
            };
            line.waiting.retain(|waiting| *waiting != request);
            self.sweep(name);
        }
    }

    /// The first waiting request for `name`.
    pub(super) fn first(&self, name: &Name) -> Option<Request> {
        self.waiting(name).next()
    }

    pub(super) fn waiting(&self, name: &Name) -> impl Iterator<Item = Request> + '_ {
        let line = self.0.get(name);
        line.into_iter()
            .flat_map(|line| line.waiting.iter().copied())
    }

    pub(super) fn asking(&self, name: &Name) -> Vec<Request> {
        self.0
            .get(name)
            .map(|line| line.asking.iter().copied().collect())
            .unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sweep(&mut self, name: &Name) {
        if self
            .0
            .get(name)
            .is_some_and(|line| !line.writer && line.readers == 0 && line.waiting.is_empty())
        {
            self.0.remove(name);
        }
    }
}
