//! Who goes first on this node.
//!
//! Requests of one node for the same name wait here, in the order in which they came, and ask the voters one after
//! the other: a voter would refuse the second anyhow. Readers ask together. A request for several names joins all
//! their lines at once, so no two of them wait for each other.

use super::Request;
use crate::message::{Mode, Name, Names};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Line {
    /// That a writer asks, or has it.
    writer: bool,
    /// How many readers ask, or have it.
    readers: usize,
    /// Those that ask.
    asking: BTreeSet<Request>,
    /// That the last one that was granted had others of other nodes before it, and so will the next.
    contended: bool,
    waiting: VecDeque<Request>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lines(BTreeMap<Name, Line>);

impl Lines {
    /// `request` comes last.
    pub(super) fn join(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            self.0
                .entry(name.clone())
                .or_default()
                .waiting
                .push_back(request);
        }
    }

    /// `request` is to ask, if it is the first for all its names and nobody is in its way.
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

    /// `request` asks no more: it has them. Whether it was refused before.
    pub(super) fn granted(&mut self, request: Request, names: &Names, refused: bool) {
        for name in names.iter() {
            if let Some(line) = self.0.get_mut(name) {
                line.asking.remove(&request);
                line.contended = refused;
            }
        }
    }

    /// Whether others of other nodes are likely to be before whoever asks for `names` now.
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

    /// One that asked, or had them, is gone.
    pub(super) fn gone(&mut self, request: Option<Request>, names: &Names, mode: Mode) {
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

    /// One that waited is gone.
    pub(super) fn leave(&mut self, request: Request, names: &Names) {
        for name in names.iter() {
            let Some(line) = self.0.get_mut(name) else {
                continue;
            };
            line.waiting.retain(|waiting| *waiting != request);
            self.sweep(name);
        }
    }

    /// The first that waits for `name`.
    pub(super) fn first(&self, name: &Name) -> Option<Request> {
        self.waiting(name).next()
    }

    /// Those that wait for `name`, in order.
    pub(super) fn waiting(&self, name: &Name) -> impl Iterator<Item = Request> + '_ {
        let line = self.0.get(name);
        line.into_iter()
            .flat_map(|line| line.waiting.iter().copied())
    }

    /// Those that ask for `name`.
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
