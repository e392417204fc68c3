//! A voter's state of each name: the holders, the highest fence, and the requests that wait.
//!
//! An entry exists while a request has a vote for the name or waits for it.
//!
//! Requests wait in the order of their priorities, the same at all voters. A request for several names has one
//! position in the queues of all of them. A request *fits* if no vote conflicts with it, and no older request that
//! waits. When a vote or a position goes, the voter gives its vote to the oldest requests that fit. A request does not
//! count while its agent is *quiet*: younger ones may go first. So a dead agent delays others for a short time only.
//!
//! If a request waits for a vote, the voter *recalls* the vote: it sends the vote's agent the priority of that request.

use super::floors::Floors;
use crate::message::{Fence, Generation, Mode, Name, Names, Priority, Recall, Token};
use crate::rules::Rules;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::ops::Bound;
use std::time::Duration;

/// Identifies a vote or a position. A generation identifies the lease of one agent, and tokens are unique per agent.
pub(super) type VoteId = (Generation, Token);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holders {
    Free,
    /// With the clock of its priority.
    Writer(VoteId, u64),
    /// With the clocks of their priorities.
    Readers(BTreeMap<VoteId, u64>),
}

/// A waiting request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) priority: Priority,
    pub(super) mode: Mode,
    /// How many fences it takes.
    pub(super) run: NonZeroU16,
    pub(super) names: Names,
}

/// The last recall of a name's votes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Recalled {
    by: Priority,
    /// When it is repeated, and the pause after that.
    next: Time,
    pause: Duration,
}

/// The requests that wait for a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Queue {
    writers: BTreeMap<Priority, VoteId>,
    readers: BTreeMap<Priority, VoteId>,
    recalled: Option<Recalled>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    holders: Holders,
    fence: Fence,
    /// `None` if no request waits: most names are not contended, and there may be many.
    queue: Option<Box<Queue>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NameTable {
    entries: BTreeMap<Name, Entry>,
    positions: BTreeMap<VoteId, Waiting>,
    /// The leases whose agents have not been heard for long.
    quiet: BTreeSet<Generation>,
    floors: Floors,
    /// When the votes for a name are recalled again.
    timers: BTreeSet<(Time, Name)>,
    /// Names to look at after this event.
    changed: BTreeSet<Name>,
    /// Names that a request would get, if the voter could give its vote.
    unserved: BTreeSet<Name>,
    /// Recalls to send, by lease.
    recalls: BTreeMap<Generation, Vec<Recall>>,
    now: Time,
    /// The first and the longest pause between two recalls.
    recall: (Duration, Duration),
    /// How long after the conflict began an older writer's vote is recalled.
    patience: Duration,
}

impl NameTable {
    pub(super) fn new(rules: &Rules, now: Time) -> NameTable {
        NameTable {
            entries: BTreeMap::new(),
            positions: BTreeMap::new(),
            quiet: BTreeSet::new(),
            floors: Floors::new(rules.floors),
            timers: BTreeSet::new(),
            changed: BTreeSet::new(),
            unserved: BTreeSet::new(),
            recalls: BTreeMap::new(),
            now,
            recall: (rules.recall, rules.heartbeat.max(rules.recall)),
            patience: rules.patience,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.positions.is_empty()
            && self.quiet.is_empty()
            && self.timers.is_empty()
            && self.changed.is_empty()
            && self.unserved.is_empty()
    }

    /// Whether a request must wait: a vote conflicts with it, or an older request that waits.
    pub(super) fn is_blocked(&self, name: &Name, priority: Priority, mode: Mode) -> bool {
        let Some(entry) = self.entries.get(name) else {
            return false;
        };
        let counts = |(_, id): (&Priority, &VoteId)| !self.quiet.contains(&id.0);
        entry.conflicts(mode)
            || entry.queue.as_ref().is_some_and(|queue| {
                queue.writers.range(..priority).any(counts)
                    || (mode == Mode::Write && queue.readers.range(..priority).any(counts))
            })
    }

    /// Whether a vote would conflict with the existing votes.
    pub(super) fn conflicts(&self, name: &Name, mode: Mode) -> bool {
        self.entries
            .get(name)
            .is_some_and(|entry| entry.conflicts(mode))
    }

    /// Records a vote. There must be no conflict. The request does not wait any more.
    pub(super) fn record(
        &mut self,
        names: &Names,
        (id, clock): (VoteId, u64),
        mode: Mode,
        fence: Fence,
    ) {
        self.leave(id);
        for name in names.iter() {
            self.entry(name);
            let entry = self.entries.get_mut(name).expect("it was made");
            entry.fence = entry.fence.max(fence);
            if let (Holders::Free, Some(queue)) = (&entry.holders, &mut entry.queue) {
                // The next recall is the first one of this holder.
                queue.take_recall(name, &mut self.timers);
            }
            match (&mut entry.holders, mode) {
                (holders, Mode::Write) => *holders = Holders::Writer(id, clock),
                (Holders::Readers(readers), Mode::Read) => {
                    readers.insert(id, clock);
                }
                (holders, Mode::Read) => {
                    *holders = Holders::Readers(BTreeMap::from([(id, clock)]));
                }
            }
            if entry.queue.is_some() {
                self.changed.insert(name.clone());
            }
        }
        self.floors.seen(fence);
    }

    /// Removes the vote of `id` for `name`, which it has.
    pub(super) fn forget(&mut self, name: &Name, id: VoteId) {
        let entry = self.entries.get_mut(name).expect("it has a vote");
        match &mut entry.holders {
            Holders::Writer(writer, _) if *writer == id => entry.holders = Holders::Free,
            Holders::Readers(readers) => {
                readers.remove(&id);
                if readers.is_empty() {
                    entry.holders = Holders::Free;
                }
            }
            Holders::Free | Holders::Writer(..) => {}
        }
        if entry.queue.is_some() {
            self.changed.insert(name.clone());
        } else if entry.holders == Holders::Free {
            self.remove_entry(name);
        }
    }

    /// The names with votes that begin with `prefix`.
    pub(super) fn voted_names<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = &'a Name> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let entries = self.entries.range::<[u8], _>(from);
        let entries = entries.take_while(|(name, _)| name.bytes().starts_with(prefix));
        entries
            .filter(|(_, entry)| entry.holders != Holders::Free)
            .map(|(name, _)| name)
    }

    pub(super) fn votes_for(&self, name: &Name) -> Vec<VoteId> {
        match self.entries.get(name).map(|entry| &entry.holders) {
            None | Some(Holders::Free) => Vec::new(),
            Some(Holders::Writer(id, _)) => vec![*id],
            Some(Holders::Readers(readers)) => readers.keys().copied().collect(),
        }
    }

    /// Gives a request a position, if it has none. An earlier token of the same request loses its position.
    pub(super) fn wait(&mut self, id: VoteId, request: Waiting) {
        if self.positions.contains_key(&id) {
            return;
        }
        for name in request.names.iter() {
            let earlier = self
                .entry(name)
                .queue(request.mode)
                .get(&request.priority)
                .copied();
            earlier.map(|earlier| self.leave(earlier));
            self.entry(name)
                .queue(request.mode)
                .insert(request.priority, id);
            self.changed.insert(name.clone());
        }
        self.positions.insert(id, request);
    }

    /// Removes the position of `id`, if it has one. Returns its names.
    pub(super) fn leave(&mut self, id: VoteId) -> Option<Names> {
        let Waiting {
            priority,
            mode,
            names,
            ..
        } = self.positions.remove(&id)?;
        for name in names.iter() {
            self.entry(name).queue(mode).remove(&priority);
            self.changed.insert(name.clone());
        }
        Some(names)
    }

    /// Removes a position of the lease. Returns whether there was one.
    pub(super) fn leave_one(&mut self, generation: Generation) -> bool {
        let first = self.positions_of(generation, Token(0)).next();
        first.map(|id| self.leave(id)).is_some()
    }

    pub(super) fn waiting(&self, id: VoteId) -> Option<&Waiting> {
        self.positions.get(&id)
    }

    /// The positions of the lease, from a token on.
    pub(super) fn positions_of(
        &self,
        generation: Generation,
        from: Token,
    ) -> impl Iterator<Item = VoteId> + '_ {
        let all = (generation, from)..=(generation, Token(u64::MAX));
        self.positions.range(all).map(|(id, _)| *id)
    }

    /// How many requests wait.
    pub(super) fn queued(&self) -> usize {
        self.positions.len()
    }

    /// The agent of the lease has not been heard for long, or is heard again. Look at its positions next.
    pub(super) fn set_quiet(&mut self, generation: Generation, quiet: bool) {
        match quiet {
            true => self.quiet.insert(generation),
            false => self.quiet.remove(&generation),
        };
    }

    /// Whether a position counts has changed: its names are looked at.
    pub(super) fn look_at(&mut self, id: VoteId) {
        let names = self.positions.get(&id).map(|request| request.names.clone());
        self.changed
            .extend(names.iter().flat_map(Names::iter).cloned());
    }

    /// The voter can give votes again that it could not give: the names that wait for that are looked at.
    pub(super) fn look_at_unserved(&mut self) {
        self.changed.append(&mut self.unserved);
    }

    fn remove_entry(&mut self, name: &Name) {
        let entry = self.entries.remove(name).expect("it exists");
        self.floors.keep(name, entry.fence);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Advances the time, and handles at most `most` timers.
    pub(super) fn advance(&mut self, now: Time, most: usize) {
        self.now = now;
        for _ in 0..most {
            if self.deadline().is_none_or(|at| at > now) {
                return;
            }
            let due = self.timers.pop_first();
            self.changed.extend(due.map(|(_, name)| name));
        }
    }

    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The next name to look at. Look at it with [`NameTable::fitting`], then call [`NameTable::looked_at`].
    pub(super) fn next_changed(&self) -> Option<Name> {
        self.changed.first().cloned()
    }

    /// The oldest waiting request for a name that fits.
    pub(super) fn fitting(&self, name: &Name) -> Option<VoteId> {
        let entry = self.entries.get(name)?;
        let queue = entry.queue.as_ref()?;
        if matches!(entry.holders, Holders::Writer(..)) {
            return None;
        }
        let (mut writers, mut readers) = (
            queue.writers.iter().peekable(),
            queue.readers.iter().peekable(),
        );
        // Once a reader counts, no younger writer fits.
        let mut reads = matches!(entry.holders, Holders::Readers(_));
        loop {
            let reader_first = match (writers.peek(), readers.peek()) {
                (Some((writer, _)), Some((reader, _))) => reader < writer,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            let (priority, id) = if reader_first {
                readers.next()?
            } else {
                writers.next()?
            };
            if self.quiet.contains(&id.0) {
                continue;
            }
            let mode = if reader_first {
                Mode::Read
            } else {
                Mode::Write
            };
            let request = &self.positions[id];
            let blocked = |name| self.is_blocked(name, *priority, mode);
            if (reader_first || !reads) && !request.names.iter().any(blocked) {
                return Some(*id);
            }
            if !reader_first {
                return None;
            }
            reads = true;
        }
    }

    /// All requests that fit were served, or (`unserved`) cannot be now. Recalls votes that others wait for, and
    /// removes what is not used.
    pub(super) fn looked_at(&mut self, name: Name, unserved: bool) {
        self.changed.remove(&name);
        self.unserved.remove(&name);
        let Some(entry) = self.entries.get_mut(&name) else {
            return;
        };
        if entry.is_waited_for() {
            if unserved {
                self.unserved.insert(name.clone());
            }
            return self.recall(name);
        }
        if let Some(mut queue) = entry.queue.take() {
            queue.take_recall(&name, &mut self.timers);
        }
        if entry.holders == Holders::Free {
            self.remove_entry(&name);
        }
    }

    /// Recalls the votes for a name if a request waits for them: at once if it is older than they are and than the one
    /// of the last recall, otherwise when a recall is due.
    fn recall(&mut self, name: Name) {
        let oldest = self.oldest_in_conflict(&self.entries[&name]);
        let entry = self.entries.get_mut(&name).expect("it is waited for");
        let queue = entry.queue.as_mut().expect("it is waited for");
        let last = queue.take_recall(&name, &mut self.timers);
        let Some((by, mode)) = oldest else {
            return;
        };
        // An older writer gives no vote back, and one that is granted usually unlocks soon.
        let patient = matches!(entry.holders, Holders::Writer(_, clock) if clock < by.clock);
        let (first, longest) = self.recall;
        let recalled = match last {
            Some(last) if last.by <= by && last.next > self.now => last,
            None if patient => Recalled {
                by,
                next: self.now + self.patience,
                pause: first,
            },
            last => {
                let holders = match &entry.holders {
                    Holders::Free => Vec::new(),
                    Holders::Writer(id, _) => vec![*id],
                    // An older reader gives no vote back, and a granted one has no run to end.
                    Holders::Readers(readers) => {
                        let younger = readers.iter().filter(|(_, clock)| **clock >= by.clock);
                        younger.map(|(id, _)| *id).collect()
                    }
                };
                for (generation, token) in holders {
                    let recall = Recall {
                        token,
                        priority: by,
                        mode,
                    };
                    self.recalls.entry(generation).or_default().push(recall);
                }
                let pause = last.map_or(first, |last| last.pause);
                Recalled {
                    by,
                    next: self.now + pause,
                    pause: (pause * 2).min(longest),
                }
            }
        };
        self.timers.insert((recalled.next, name));
        queue.recalled = Some(recalled);
    }

    /// The oldest waiting request that conflicts with the votes of a name.
    fn oldest_in_conflict(&self, entry: &Entry) -> Option<(Priority, Mode)> {
        let waiting = entry.queue.as_ref()?;
        let first = |queue: &BTreeMap<Priority, VoteId>| {
            let mut counting = queue.iter().filter(|(_, id)| !self.quiet.contains(&id.0));
            counting.next().map(|(priority, _)| *priority)
        };
        let writer = first(&waiting.writers).map(|priority| (priority, Mode::Write));
        match entry.holders {
            Holders::Free => None,
            Holders::Readers(_) => writer,
            Holders::Writer(..) => {
                let reader = first(&waiting.readers).map(|priority| (priority, Mode::Read));
                writer.into_iter().chain(reader).min()
            }
        }
    }

    /// Takes the recalls since the last call, by lease.
    pub(super) fn take_recalls(&mut self) -> BTreeMap<Generation, Vec<Recall>> {
        std::mem::take(&mut self.recalls)
    }

    pub(super) fn fence(&self, name: &Name) -> Fence {
        let entry = self.entries.get(name);
        entry.map_or_else(|| self.floors.of(name), |entry| entry.fence)
    }

    pub(super) fn highest_of(&self, names: &Names) -> Fence {
        names
            .iter()
            .map(|name| self.fence(name))
            .max()
            .unwrap_or_default()
    }

    /// Raises the fences of `names` to at least `fence`.
    pub(super) fn raise(&mut self, names: &Names, fence: Fence) {
        for name in names.iter() {
            match self.entries.get_mut(name) {
                Some(entry) => entry.fence = entry.fence.max(fence),
                None => self.floors.keep(name, fence),
            }
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
        let floors = &self.floors;
        let entry = || Entry {
            holders: Holders::Free,
            fence: floors.of(name),
            queue: None,
        };
        self.entries.entry(name.clone()).or_insert_with(entry)
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.now = Time(0);
        self.timers.clear();
        for (name, entry) in &mut self.entries {
            let queue = entry.queue.as_mut();
            if let Some(recalled) = queue.and_then(|queue| queue.recalled.as_mut()) {
                recalled.next = recalled.next.relative_to(now);
                self.timers.insert((recalled.next, name.clone()));
            }
        }
    }
}

impl Queue {
    fn take_recall(
        &mut self,
        name: &Name,
        timers: &mut BTreeSet<(Time, Name)>,
    ) -> Option<Recalled> {
        let recalled = self.recalled.take()?;
        timers.remove(&(recalled.next, name.clone()));
        Some(recalled)
    }
}

impl Entry {
    fn queue(&mut self, mode: Mode) -> &mut BTreeMap<Priority, VoteId> {
        let queue = self.queue.get_or_insert_default();
        match mode {
            Mode::Write => &mut queue.writers,
            Mode::Read => &mut queue.readers,
        }
    }

    fn is_waited_for(&self) -> bool {
        let queue = self.queue.as_ref();
        queue.is_some_and(|queue| !queue.writers.is_empty() || !queue.readers.is_empty())
    }

    fn conflicts(&self, mode: Mode) -> bool {
        match (&self.holders, mode) {
            (Holders::Free, _) | (Holders::Readers(_), Mode::Read) => false,
            (Holders::Writer(..), _) | (Holders::Readers(_), Mode::Write) => true,
        }
    }
}
