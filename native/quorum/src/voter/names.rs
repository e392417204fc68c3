//! What a voter knows of each name: who has its vote, how far its fence went, who waits.
//!
//! A name is there while somebody has a vote for it or waits for it, and no longer.

use super::floors::Floors;
use crate::message::{Fence, Generation, Mode, Name, Names, Reason, Token, Turn};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A vote, by whose it is: a generation is one agent's lease, and tokens are its own.
pub(super) type VoteId = (Generation, Token);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holders {
    Nobody,
    Writer(VoteId),
    Readers(BTreeSet<VoteId>),
}

/// A place in the line of those that were refused. A writer's is a gate, too: readers that come later wait behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    generation: Generation,
    mode: Mode,
    expires: Time,
    /// Until when the name is kept for it: it was told that it is its turn.
    kept: Time,
    /// Grows from place to place, whatever the names; and falls from place to place of those at the front. Each place
    /// has one of its own.
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
    /// When some place in the line of a name expires.
    expiries: BTreeSet<(Time, Name)>,
    /// Whose turn it may be, to be told.
    hints: BTreeMap<Generation, Vec<Name>>,
    /// Names of which readers of the batch that is being done have votes, and still their places: others of the same
    /// agent that come with them are in time, too.
    seated: BTreeSet<Name>,
    /// Of the last place at an end.
    tickets: i64,
    /// Of the last place at a front.
    fronts: i64,
    now: Time,
    /// How long a name is kept for the one that was hinted at.
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

    /// Why `generation` cannot have a vote for `name`, if it cannot.
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

    /// Why there is no room for one more vote besides those that are given, if there is none.
    pub(super) fn conflict(&self, name: &Name, mode: Mode) -> Option<Reason> {
        self.entries.get(name)?.conflict(mode)
    }

    /// Gives a vote. There must be no conflict.
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

    /// The batch of `generation` is done: those that have votes wait no longer.
    pub(super) fn batch_done(&mut self, generation: Generation) {
        for name in std::mem::take(&mut self.seated) {
            self.leave(&name, generation);
        }
    }

    /// Takes a vote back, if it is there.
    pub(super) fn forget(&mut self, name: &Name, id: VoteId) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        match &mut entry.holders {
            Holders::Writer(writer) if *writer == id => entry.holders = Holders::Nobody,
            Holders::Readers(readers) => {
                readers.remove(&id);
                if readers.is_empty() {
                    entry.holders = Holders::Nobody;
                }
            }
            _ => {}
        }
        self.freed(name);
    }

    /// Who has a vote for `name`.
    pub(super) fn holders(&self, name: &Name) -> Vec<VoteId> {
        match self.entries.get(name).map(|entry| &entry.holders) {
            None | Some(Holders::Nobody) => Vec::new(),
            Some(Holders::Writer(id)) => vec![*id],
            Some(Holders::Readers(readers)) => readers.iter().copied().collect(),
        }
    }

    /// `generation` was refused, and keeps its place in the lines of all its names, or gets one at their ends; or at
    /// their fronts, if it is its turn at the first voter. It is one place: with the same ticket in each line, and
    /// lines are in the order of their tickets. If each line had an order of its own, two that want the same names
    /// would wait for each other.
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

    /// Of its place in all these lines, if it is one; or of a new one.
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

    /// `generation` waits no longer.
    pub(super) fn leave(&mut self, name: &Name, generation: Generation) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry
            .line
            .retain(|waiting| waiting.generation != generation);
        self.freed(name);
    }

    /// When the next place in a line expires.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.expiries.first().map(|(expires, _)| *expires)
    }

    /// It is `now`. Takes places away that have expired, at most so many at once.
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

    /// Whom to tell of which names since the last call.
    pub(super) fn hints(&mut self) -> BTreeMap<Generation, Vec<Name>> {
        std::mem::take(&mut self.hints)
    }

    /// How far the fence of `name` went.
    pub(super) fn fence(&self, name: &Name) -> Fence {
        self.entries
            .get(name)
            .map_or_else(|| self.floors.of(name), |entry| entry.fence)
    }

    /// It went at least so far.
    pub(super) fn raise(&mut self, name: &Name, fence: Fence) {
        match self.entries.get_mut(name) {
            Some(entry) => entry.fence = entry.fence.max(fence),
            None => self.floors.keep(name, fence),
        }
        self.floors.seen(fence);
    }

    /// Those of all names went at least so far.
    pub(super) fn raise_all(&mut self, fence: Fence) {
        self.floors.raise(fence);
        for entry in self.entries.values_mut() {
            entry.fence = entry.fence.max(fence);
        }
    }

    /// None went further.
    pub(super) fn highest(&self) -> Fence {
        self.floors.highest()
    }

    fn entry(&mut self, name: &Name) -> &mut Entry {
        let fence = self.floors.of(name);
        let entry = || Entry {
            holders: Holders::Nobody,
            fence,
            line: Vec::new(),
        };
        self.entries.entry(name.clone()).or_insert_with(entry)
    }

    /// Somebody has left `name`: it may be the turn of the first in the line, and perhaps nobody is left at all.
    fn freed(&mut self, name: &Name) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let first = entry.line.first().map(|waiting| waiting.mode);
        let turn = match (&entry.holders, first) {
            (Holders::Nobody, Some(Mode::Write)) => 1,
            (Holders::Nobody | Holders::Readers(_), Some(Mode::Read)) => entry.line.len(),
            (Holders::Nobody, None) => {
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
            // What counts is who was earlier.
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
            (Holders::Nobody, _) | (Holders::Readers(_), Mode::Read) => None,
        }
    }
}
