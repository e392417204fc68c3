//! A voter's state of each name: the holders, the highest fence, the queue.
//!
//! An entry exists while a request has a vote for the name or waits for it.

use super::floors::Floors;
use crate::message::{Fence, Generation, Mode, Name, Names, Reason, Token, Turn};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Identifies a vote. A generation identifies the lease of one agent, and tokens are unique per agent.
pub(super) type VoteId = (Generation, Token);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holders {
    Free,
    Writer(VoteId),
    Readers(BTreeSet<VoteId>),
}

/// A queue position of a rejected request. A waiting writer also blocks readers that arrive later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    generation: Generation,
    mode: Mode,
    expires: Time,
    /// Until when the voter keeps the name for this waiter, after it sent the hint.
    kept: Time,
    /// Orders the positions of all names: tickets grow for positions at the end of a queue, and fall for positions at
    /// the front. Each position has its own ticket.
    ticket: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    holders: Holders,
    fence: Fence,
    line: Vec<Waiting>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VoterNames {
    entries: BTreeMap<Name, Entry>,
    floors: Floors,
    /// The expiries of queue positions, with their names.
    expiries: BTreeSet<(Time, Name)>,
    /// The hints to send.
    hints: BTreeMap<Generation, Vec<Name>>,
    /// Names for which readers of the current batch got votes and still have their queue positions. Later readers of
    /// the same agent in this batch may use the position, too.
    seated: BTreeSet<Name>,
    /// The last ticket at an end.
    tickets: i64,
    /// The last ticket at a front.
    fronts: i64,
    now: Time,
    /// For how long a name is kept for the waiter that got the hint.
    keep: Duration,
}

impl VoterNames {
    pub(super) fn new(floors: usize, keep: Duration, now: Time) -> VoterNames {
        VoterNames {
            entries: BTreeMap::new(),
            floors: Floors::new(floors),
            expiries: BTreeSet::new(),
            hints: BTreeMap::new(),
            seated: BTreeSet::new(),
            tickets: 0,
            fronts: 0,
            now,
            keep,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Why `generation` cannot get a vote for `name`; `None` if it can.
    pub(super) fn refusal(
        &self,
        name: &Name,
        generation: Generation,
        mode: Mode,
        turn: Turn,
    ) -> Option<Reason> {
        let entry = self.entries.get(name)?;
        if let Some(reason) = entry.conflict(mode) {
            return Some(reason);
        }
        let ahead = entry
            .line
            .iter()
            .take_while(|waiting| waiting.generation != generation);
        let mut ahead = ahead.filter(|waiting| match (turn, mode) {
            (Turn::Nobody, _) => false,
            (_, Mode::Read) => waiting.mode == Mode::Write,
            (Turn::Earlier, Mode::Write) => true,
            (Turn::Unknown, Mode::Write) => waiting.kept > self.now,
        });
        ahead.next().map(|_| Reason::Turn)
    }

    /// Why a vote would conflict with the existing votes; `None` if it would not.
    pub(super) fn conflict(&self, name: &Name, mode: Mode) -> Option<Reason> {
        self.entries.get(name)?.conflict(mode)
    }

    /// Records a vote. There must be no conflict.
    pub(super) fn record(&mut self, name: &Name, id: VoteId, mode: Mode, fence: Fence) {
        let entry = self.entry(name);
        entry.fence = entry.fence.max(fence);
        if mode == Mode::Write {
            entry.line.retain(|waiting| waiting.generation != id.0);
        }
        match (&mut entry.holders, mode) {
            (holders, Mode::Write) => *holders = Holders::Writer(id),
            (Holders::Readers(readers), Mode::Read) => {
                readers.insert(id);
            }
            (holders, Mode::Read) => *holders = Holders::Readers(BTreeSet::from([id])),
        }
        if mode == Mode::Read {
            self.seated.insert(name.clone());
        }
        self.floors.seen(fence);
    }

    /// The batch of `generation` is complete: requests that got votes leave their queues.
    pub(super) fn batch_done(&mut self, generation: Generation) {
        for name in std::mem::take(&mut self.seated) {
            self.leave(&name, generation);
        }
    }

    pub(super) fn forget(&mut self, name: &Name, id: VoteId) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        match &mut entry.holders {
            Holders::Writer(writer) if *writer == id => entry.holders = Holders::Free,
            Holders::Readers(readers) => {
                readers.remove(&id);
                if readers.is_empty() {
                    entry.holders = Holders::Free;
                }
            }
            _ => {}
        }
        self.freed(name);
    }

    pub(super) fn votes_for(&self, name: &Name) -> Vec<VoteId> {
        match self.entries.get(name).map(|entry| &entry.holders) {
            None | Some(Holders::Free) => Vec::new(),
            Some(Holders::Writer(id)) => vec![*id],
            Some(Holders::Readers(readers)) => readers.iter().copied().collect(),
        }
    }

    /// `generation` was rejected. It keeps its positions in the queues of all its names or gets new ones at their
    /// ends; or at their fronts, if the first voter has chosen it. All its positions have the same ticket, and each
    /// queue is in the order of tickets. With a separate order per queue, two requests for the same names would wait
    /// for each other.
    pub(super) fn wait(
        &mut self,
        names: &Names,
        generation: Generation,
        (mode, turn): (Mode, Turn),
        expires: Time,
    ) {
        for name in names.iter() {
            self.seated.remove(name);
        }
        let front = turn == Turn::Nobody;
        let ticket = if front {
            self.fronts -= 1;
            self.fronts
        } else {
            self.ticket(names, generation)
        };
        let kept = Time::NEVER;
        let place = Waiting {
            generation,
            mode,
            expires,
            kept,
            ticket,
        };
        for name in names.iter() {
            let line = &mut self.entry(name).line;
            let same = |waiting: &Waiting| waiting.generation == generation;
            if front {
                line.retain(|waiting| !same(waiting));
                line.insert(0, place.clone());
            } else if let Some(at) = line.iter().position(same) {
                line[at] = place.clone();
            } else {
                line.push(place.clone());
            }
            self.expiries.insert((expires, name.clone()));
        }
    }

    /// The ticket of the position of `generation`, if it is the same in all these queues; otherwise a new one.
    fn ticket(&mut self, names: &Names, generation: Generation) -> i64 {
        let place =
            |names: &VoterNames, name| Some(names.entries.get(name)?.place(generation)?.ticket);
        let mut tickets = names.iter().map(|name| place(self, name));
        let first = tickets.next().flatten();
        let one = first.filter(|first| tickets.all(|ticket| ticket == Some(*first)));
        one.unwrap_or_else(|| {
            names.iter().for_each(|name| self.leave(name, generation));
            self.tickets += 1;
            self.tickets
        })
    }

    /// Removes the position of `generation`.
    pub(super) fn leave(&mut self, name: &Name, generation: Generation) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry
            .line
            .retain(|waiting| waiting.generation != generation);
        self.freed(name);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.expiries.first().map(|(expires, _)| *expires)
    }

    /// Advances the time and removes expired queue positions, at most `most` per call.
    pub(super) fn advance(&mut self, now: Time, most: usize) {
        self.now = now;
        for _ in 0..most {
            if self.deadline().is_none_or(|expires| expires > now) {
                break;
            }
            let Some((_, name)) = self.expiries.pop_first() else {
                break;
            };
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.line.retain(|waiting| waiting.expires > now);
                self.freed(&name);
            }
        }
    }

    /// Takes the hints since the last call, by generation.
    pub(super) fn hints(&mut self) -> BTreeMap<Generation, Vec<Name>> {
        std::mem::take(&mut self.hints)
    }

    pub(super) fn fence(&self, name: &Name) -> Fence {
        self.entries
            .get(name)
            .map_or_else(|| self.floors.of(name), |entry| entry.fence)
    }

    /// Raises the fence of `name` to at least `fence`.
    pub(super) fn raise(&mut self, name: &Name, fence: Fence) {
        match self.entries.get_mut(name) {
            Some(entry) => entry.fence = entry.fence.max(fence),
            None => self.floors.keep(name, fence),
        }
        self.floors.seen(fence);
    }

    /// Raises the fences of all names to at least `fence`.
    pub(super) fn raise_all(&mut self, fence: Fence) {
        self.floors.raise(fence);
        for entry in self.entries.values_mut() {
            entry.fence = entry.fence.max(fence);
        }
    }

    pub(super) fn highest(&self) -> Fence {
        self.floors.highest()
    }

    fn entry(&mut self, name: &Name) -> &mut Entry {
        let fence = self.floors.of(name);
        let entry = || Entry {
            holders: Holders::Free,
            fence,
            line: Vec::new(),
        };
        self.entries.entry(name.clone()).or_insert_with(entry)
    }

    /// A holder or waiter has left `name`: sends hints to the next waiters, and removes the entry if there is neither
    /// holder nor waiter.
    fn freed(&mut self, name: &Name) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let first = entry.line.first().map(|waiting| waiting.mode);
        let turn = match (&entry.holders, first) {
            (Holders::Free, Some(Mode::Write)) => 1,
            (Holders::Free | Holders::Readers(_), Some(Mode::Read)) => entry.line.len(),
            (Holders::Free, None) => {
                let fence = entry.fence;
                self.entries.remove(name);
                self.floors.keep(name, fence);
                return;
            }
            _ => 0,
        };
        let turn = entry
            .line
            .iter_mut()
            .take(turn)
            .take_while(|waiting| Some(waiting.mode) == first);
        for waiting in turn.filter(|waiting| waiting.kept <= self.now) {
            waiting.kept = self.now + self.keep;
            self.hints
                .entry(waiting.generation)
                .or_default()
                .push(name.clone());
        }
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.now = Time(0);
        let lines = self.entries.values().flat_map(|entry| &entry.line);
        let tickets: BTreeSet<i64> = lines.map(|waiting| waiting.ticket).collect();
        self.tickets = tickets.len() as i64;
        self.fronts = 0;
        for waiting in self.entries.values_mut().flat_map(|entry| &mut entry.line) {
            waiting.expires = waiting.expires.relative_to(now);
            waiting.kept = waiting.kept.relative_to(now);
            // Only the order of tickets matters.
            waiting.ticket = tickets.range(..=waiting.ticket).count() as i64;
        }
        let expiries = std::mem::take(&mut self.expiries);
        self.expiries = expiries
            .into_iter()
            .map(|(expires, name)| (expires.relative_to(now), name))
            .collect();
    }
}

impl Entry {
    fn place(&self, generation: Generation) -> Option<&Waiting> {
        self.line
            .iter()
            .find(|waiting| waiting.generation == generation)
    }

    fn conflict(&self, mode: Mode) -> Option<Reason> {
        match (&self.holders, mode) {
            (Holders::Writer(_), _) => Some(Reason::Writer),
            (Holders::Readers(_), Mode::Write) => Some(Reason::Readers),
            (Holders::Free, _) | (Holders::Readers(_), Mode::Read) => None,
        }
    }
}
