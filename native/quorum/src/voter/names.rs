//! A voter's state of each name: the holders, the highest fence, and the requests that wait.
//!
//! An entry exists while a request has a vote for the name or waits for it.
//!
//! Requests wait in the order of their priorities, the same at all voters. A request for several names has one
//! position in the queues of all of them. A request *fits* if no vote conflicts with it, and no older request that
//! waits. When a vote or a position goes, the oldest requests that fit get a hint, and the voter keeps the names for
//! them for a short time. A request that does not ask in this time is passed over: younger ones may go first. It gets
//! a hint again at the next change. After two misses its position is removed, and so is one that was not asked for
//! again within `wait`: an agent that is alive asks again each `attempt`. So the position of a dead agent delays
//! others for a short time only.
//!
//! If a request waits for a vote, the voter *recalls* the vote: it sends the vote's agent the priority of that request.

use super::counts::Counts;
use super::floors::Floors;
use crate::message::{Fence, Generation, Mode, Name, Names, Priority, Recall, Token};
use crate::rules::Rules;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Identifies a vote or a position. A generation identifies the lease of one agent, and tokens are unique per agent.
pub(super) type VoteId = (Generation, Token);

/// A position is removed after this many hints in a row that its agent did not follow.
const MOST_MISSES: u8 = 2;

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
    pub(super) names: Names,
    /// For how long names are kept for it after a hint.
    pub(super) keep: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Position {
    request: Waiting,
    expires: Time,
    /// Until when the names are kept for it, since its last hint.
    kept: Option<Time>,
    /// How many hints in a row it did not follow.
    misses: u8,
}

impl Position {
    fn is_passed_over(&self) -> bool {
        self.misses > 0 && self.kept.is_none()
    }
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

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
    Expires(VoteId),
    Kept(VoteId),
    Recall(Name),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct VoterNames {
    entries: BTreeMap<Name, Entry>,
    positions: BTreeMap<VoteId, Position>,
    /// How many of them each lease has, and each partition.
    of_leases: Counts<Generation>,
    of_partitions: Counts<usize>,
    floors: Floors,
    timers: BTreeSet<(Time, Timer)>,
    /// Names to look at after this event, and whether a vote or a position has gone.
    changed: BTreeMap<Name, bool>,
    /// Hints and recalls to send, by lease.
    news: BTreeMap<Generation, (Vec<Token>, Vec<Recall>)>,
    now: Time,
    /// How long a position stays after it was asked for.
    wait: Duration,
    /// The first and the longest pause between two recalls.
    recall: (Duration, Duration),
    /// How long after the conflict began an older writer's vote is recalled.
    patience: Duration,
}

impl VoterNames {
    pub(super) fn new(rules: &Rules, now: Time) -> VoterNames {
        VoterNames {
            entries: BTreeMap::new(),
            positions: BTreeMap::new(),
            of_leases: Counts::new(),
            of_partitions: Counts::new(),
            floors: Floors::new(rules.partitions),
            timers: BTreeSet::new(),
            changed: BTreeMap::new(),
            news: BTreeMap::new(),
            now,
            wait: rules.wait,
            recall: (rules.recall, rules.heartbeat.max(rules.recall)),
            patience: rules.keep,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a request must wait: a vote conflicts with it, or an older request that waits.
    pub(super) fn is_blocked(&self, name: &Name, priority: Priority, mode: Mode) -> bool {
        let Some(entry) = self.entries.get(name) else {
            return false;
        };
        let blocks = |(_, id): (&Priority, &VoteId)| {
            self.positions.get(id).is_some_and(|p| !p.is_passed_over())
        };
        entry.conflicts(mode)
            || entry.queue.as_ref().is_some_and(|queue| {
                queue.writers.range(..priority).any(blocks)
                    || (mode == Mode::Write && queue.readers.range(..priority).any(blocks))
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
        self.remove_position(id, false);
        for name in names.iter() {
            let entry = self.entry(name);
            entry.fence = entry.fence.max(fence);
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
                self.changed.entry(name.clone()).or_default();
            }
        }
        self.floors.seen(fence);
    }

    /// Removes the vote of `id` for `name`.
    pub(super) fn forget(&mut self, name: &Name, id: VoteId) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        match &mut entry.holders {
            Holders::Writer(writer, _) if *writer == id => entry.holders = Holders::Free,
            Holders::Readers(readers) => {
                readers.remove(&id);
                if readers.is_empty() {
                    entry.holders = Holders::Free;
                }
            }
            _ => {}
        }
        if entry.queue.is_some() {
            self.changed.insert(name.clone(), true);
        } else if entry.holders == Holders::Free {
            self.remove_entry(name);
        }
    }

    pub(super) fn votes_for(&self, name: &Name) -> Vec<VoteId> {
        match self.entries.get(name).map(|entry| &entry.holders) {
            None | Some(Holders::Free) => Vec::new(),
            Some(Holders::Writer(id, _)) => vec![*id],
            Some(Holders::Readers(readers)) => readers.keys().copied().collect(),
        }
    }

    /// Gives a request a position, or renews it. An earlier attempt of the same request loses its position.
    pub(super) fn wait(&mut self, id: VoteId, request: Waiting) {
        let expires = self.now + self.wait;
        if let Some(position) = self.positions.get_mut(&id) {
            self.timers.remove(&(position.expires, Timer::Expires(id)));
            self.timers.insert((expires, Timer::Expires(id)));
            position.expires = expires;
            if position.misses > 0 || position.kept.is_some() {
                // It has followed its hint too late, or others were faster: it waits as before.
                position.misses = 0;
                if let Some(kept) = position.kept.take() {
                    self.timers.remove(&(kept, Timer::Kept(id)));
                }
                for name in request.names.iter() {
                    self.changed.entry(name.clone()).or_default();
                }
            }
            return;
        }
        for name in request.names.iter() {
            let positions = self.entry(name).positions(request.mode);
            let earlier = positions.insert(request.priority, id);
            if let Some(earlier) = earlier {
                self.remove_position(earlier, false);
                self.entry(name)
                    .positions(request.mode)
                    .insert(request.priority, id);
            }
            self.changed.entry(name.clone()).or_default();
        }
        self.timers.insert((expires, Timer::Expires(id)));
        let position = Position {
            request,
            expires,
            kept: None,
            misses: 0,
        };
        for name in position.request.names.iter() {
            self.of_partitions.add(self.floors.index(name));
        }
        self.of_leases.add(id.0);
        self.positions.insert(id, position);
    }

    /// Removes the position of `id`, if it has one.
    pub(super) fn leave(&mut self, id: VoteId) {
        self.remove_position(id, true);
    }

    /// Removes a position of the lease. Returns whether there was one.
    pub(super) fn leave_one(&mut self, generation: Generation) -> bool {
        let all = (generation, Token(0))..=(generation, Token(u64::MAX));
        let id = self.positions.range(all).next().map(|(id, _)| *id);
        id.map(|id| self.leave(id)).is_some()
    }

    pub(super) fn has_position(&self, id: VoteId) -> bool {
        self.positions.contains_key(&id)
    }

    /// How many positions the lease has.
    pub(super) fn positions_of(&self, generation: Generation) -> usize {
        self.of_leases.of(&generation)
    }

    /// How many positions there are, and how many in the partition that has most.
    pub(super) fn queues(&self) -> (usize, usize) {
        (self.positions.len(), self.of_partitions.most())
    }

    /// The positions of the lease with tokens in `from..to`.
    pub(super) fn waiting_in(&self, generation: Generation, from: Token, to: Token) -> Vec<Token> {
        // BTreeMap panics on a range that ends before it begins; this is an empty range instead.
        let range = (generation, from)..(generation, to.max(from));
        self.positions
            .range(range)
            .map(|((_, token), _)| *token)
            .collect()
    }

    fn remove_position(&mut self, id: VoteId, freed: bool) {
        let Some(position) = self.positions.remove(&id) else {
            return;
        };
        self.of_leases.remove(id.0);
        self.timers.remove(&(position.expires, Timer::Expires(id)));
        if let Some(kept) = position.kept {
            self.timers.remove(&(kept, Timer::Kept(id)));
        }
        let Waiting {
            priority,
            mode,
            names,
            ..
        } = position.request;
        for name in names.iter() {
            self.of_partitions.remove(self.floors.index(name));
            if let Some(entry) = self.entries.get_mut(name) {
                entry.positions(mode).remove(&priority);
                *self.changed.entry(name.clone()).or_default() |= freed;
            }
        }
    }

    fn remove_entry(&mut self, name: &Name) {
        if let Some(entry) = self.entries.remove(name) {
            self.floors.keep(name, entry.fence);
        }
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
            match self.timers.pop_first() {
                Some((_, Timer::Expires(id))) => self.leave(id),
                Some((_, Timer::Kept(id))) => self.miss(id),
                Some((_, Timer::Recall(name))) => {
                    self.changed.entry(name).or_default();
                }
                None => {}
            }
        }
    }

    /// The request did not follow its hint in time.
    fn miss(&mut self, id: VoteId) {
        let Some(position) = self.positions.get_mut(&id) else {
            return;
        };
        position.kept = None;
        position.misses += 1;
        if position.misses >= MOST_MISSES {
            return self.leave(id);
        }
        for name in position.request.names.clone().iter() {
            self.changed.entry(name.clone()).or_default();
        }
    }

    /// Looks at the changed names: makes hints and recalls, and removes names that are not used.
    pub(super) fn look_at_changes(&mut self) {
        while let Some((name, freed)) = self.changed.pop_first() {
            let Some(entry) = self.entries.get(&name) else {
                continue;
            };
            if !entry.is_waited_for() {
                self.forget_queue(&name);
                continue;
            }
            for id in self.to_hint(entry, freed) {
                self.hint(id);
            }
            self.recall(name);
        }
    }

    /// No request waits for `name` any more.
    fn forget_queue(&mut self, name: &Name) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        if let Some(mut queue) = entry.queue.take() {
            queue.take_recall(name, &mut self.timers);
        }
        if entry.holders == Holders::Free {
            self.remove_entry(name);
        }
    }

    /// The requests for a name that fit and have no hint, oldest first.
    fn to_hint(&self, entry: &Entry, freed: bool) -> Vec<VoteId> {
        let mut fitting = Vec::new();
        let Some(queue) = entry.queue.as_ref() else {
            return fitting;
        };
        if matches!(entry.holders, Holders::Writer(..)) {
            return fitting;
        }
        let (mut writers, mut readers) = (queue.writers.iter(), queue.readers.iter());
        let (mut writer, mut reader) = (writers.next(), readers.next());
        let mut reads = matches!(entry.holders, Holders::Readers(_));
        loop {
            let id = match (writer, reader) {
                (Some((a, id)), b) if b.is_none_or(|(b, _)| a < b) => {
                    writer = writers.next();
                    *id
                }
                (_, Some((_, id))) => {
                    reader = readers.next();
                    *id
                }
                _ => return fitting,
            };
            let Some(position) = self.positions.get(&id) else {
                continue;
            };
            let request = &position.request;
            let may_go = request.mode == Mode::Read || !reads;
            let blocked = |name| self.is_blocked(name, request.priority, request.mode);
            let fits = may_go && !request.names.iter().any(blocked);
            let hinted = fits && position.kept.is_none() && (position.misses == 0 || freed);
            if hinted {
                fitting.push(id);
            }
            if !position.is_passed_over() || hinted {
                match request.mode {
                    Mode::Write => return fitting,
                    Mode::Read => reads = true,
                }
            }
        }
    }

    fn hint(&mut self, id: VoteId) {
        let now = self.now;
        let Some(position) = self.positions.get_mut(&id) else {
            return;
        };
        let kept = now + position.request.keep;
        position.kept = Some(kept);
        self.timers.insert((kept, Timer::Kept(id)));
        self.news.entry(id.0).or_default().0.push(id.1);
    }

    /// Recalls the votes for a name if a request waits for them: at once if it is older than they are and than the one
    /// of the last recall, otherwise when a recall is due.
    fn recall(&mut self, name: Name) {
        let oldest = self
            .entries
            .get(&name)
            .and_then(|entry| self.oldest_in_conflict(entry));
        let Some(Entry {
            holders,
            queue: Some(queue),
            ..
        }) = self.entries.get_mut(&name)
        else {
            return;
        };
        let last = queue.take_recall(&name, &mut self.timers);
        let Some((by, mode)) = oldest else {
            return;
        };
        // An older writer gives no vote back, and one that is granted usually unlocks soon.
        let patient = matches!(holders, Holders::Writer(_, clock) if *clock < by.clock);
        let (first, longest) = self.recall;
        let recalled = match last {
            Some(last) if last.by <= by && last.next > self.now => last,
            None if patient => Recalled {
                by,
                next: self.now + self.patience,
                pause: first,
            },
            last => {
                let holders = match holders {
                    Holders::Free => Vec::new(),
                    Holders::Writer(id, _) => vec![*id],
                    // An older reader gives no vote back, and a granted one has no run to end.
                    Holders::Readers(readers) => {
                        let younger = readers.iter().filter(|(_, clock)| **clock >= by.clock);
                        younger.map(|(id, _)| *id).collect()
                    }
                };
                for (generation, token) in holders {
                    self.news.entry(generation).or_default().1.push(Recall {
                        token,
                        priority: by,
                        mode,
                    });
                }
                let pause = last.map_or(first, |last| last.pause);
                Recalled {
                    by,
                    next: self.now + pause,
                    pause: (pause * 2).min(longest),
                }
            }
        };
        self.timers.insert((recalled.next, Timer::Recall(name)));
        queue.recalled = Some(recalled);
    }

    /// The oldest waiting request that conflicts with the votes of a name.
    fn oldest_in_conflict(&self, entry: &Entry) -> Option<(Priority, Mode)> {
        let waiting = entry.queue.as_ref()?;
        let first = |queue: &BTreeMap<Priority, VoteId>| {
            let mut positions = queue.iter();
            let position = positions.find(|(_, id)| {
                self.positions
                    .get(id)
                    .is_some_and(|position| !position.is_passed_over())
            });
            position.map(|(priority, _)| *priority)
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

    /// Takes the hints and recalls since the last call, by lease.
    pub(super) fn news(&mut self) -> BTreeMap<Generation, (Vec<Token>, Vec<Recall>)> {
        std::mem::take(&mut self.news)
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
        for (id, position) in &mut self.positions {
            position.expires = position.expires.relative_to(now);
            self.timers.insert((position.expires, Timer::Expires(*id)));
            position.kept = position.kept.map(|kept| kept.relative_to(now));
            let timer = position.kept.map(|kept| (kept, Timer::Kept(*id)));
            self.timers.extend(timer);
        }
        for (name, entry) in &mut self.entries {
            let queue = entry.queue.as_mut();
            if let Some(recalled) = queue.and_then(|queue| queue.recalled.as_mut()) {
                recalled.next = recalled.next.relative_to(now);
                self.timers
                    .insert((recalled.next, Timer::Recall(name.clone())));
            }
        }
    }
}

impl Queue {
    fn take_recall(
        &mut self,
        name: &Name,
        timers: &mut BTreeSet<(Time, Timer)>,
    ) -> Option<Recalled> {
        let recalled = self.recalled.take()?;
        timers.remove(&(recalled.next, Timer::Recall(name.clone())));
        Some(recalled)
    }
}

impl Entry {
    fn positions(&mut self, mode: Mode) -> &mut BTreeMap<Priority, VoteId> {
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
