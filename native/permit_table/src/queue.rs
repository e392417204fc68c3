//! The queue of one key: its lanes, and which of their waiters is granted next. It knows no locks.
//!
//! ```text
//!   queue    waiter 17 has collected 1
//!     lane   capacity 6    waiter 17 (2 permits), waiter 21 (1), waiter 22 (5)     oldest first
//!     lane   capacity 4    waiter 19 (1)
//! ```
//!
//! A lane has the waiters with one capacity. They are granted strictly first in, first out: only the *candidate* of a
//! lane, its oldest waiter whose permits fit its capacity, can have permits. So a request that needs more permits than
//! its capacity blocks no other, and a request that needs several is not overtaken by smaller ones.
//!
//! Of several lanes, the oldest candidate that can be granted is. The oldest candidate of all also **collects**: it
//! takes each free permit until it has all of them. Any other candidate gets all its permits at once or none. If two
//! collected, each could have the permits that the other one needs.
//!
//! A call that gives the key another capacity changes that of all lanes, and moves no waiter. So several lanes can have
//! the same capacity. New waiters join the first of these. Until it is empty, the others have only waiters that are
//! older, so all waiters with one capacity are still granted in their order.
//!
//! All waiters of a shared key (`shared_word.rs`) have one capacity. The limit of the key decides which of them
//! can be a candidate.

use crate::memory::{reserve, OutOfMemory};
use crate::permit_count::Capacity;
use crate::slot::Slot;
use crate::sorted_list::SortedList;
use std::mem;
use std::ptr::NonNull;

/// The most lanes of a queue. To find the next waiter, all lanes are compared: with these many, for about a
/// microsecond. Requests with one more capacity are refused.
pub(crate) const MAX_LANES: usize = 256;

/// A request that waits.
pub(crate) struct Waiter<K, N> {
    pub(crate) permits: u64,
    /// The slot of its process, with an overflow. It exists until the request has ended (W5).
    pub(crate) slot: NonNull<Slot<K>>,
    /// The identity word of its process.
    pub(crate) id: u64,
    pub(crate) request_hash: u64,
    /// When it began to wait, by the clock of the caller.
    pub(crate) since: u64,
    pub(crate) notice: N,
}

// SAFETY: it points to a slot that exists while it waits, and slots are shared between threads.
unsafe impl<K: Send + Sync, N: Send> Send for Waiter<K, N> {}

struct Lane<K, N> {
    capacity: Capacity,
    /// Waiters with smaller numbers need more permits than the capacity or the limit.
    passed: u64,
    /// The sum of these permits, as [`Queue::wanted`].
    passed_permits: u64,
    /// By their numbers, which increase with the time at which they began to wait.
    waiters: SortedList<Waiter<K, N>>,
}

/// Waiters of a key.
pub(crate) struct Queue<K, N> {
    /// None is empty.
    lanes: Vec<Lane<K, N>>,
    pub(crate) len: usize,
    /// Waiters that need more permits are passed over. Only [`Queue::set_limit`] sets one: those that join need no more
    /// than the capacity that they pass.
    limit: Capacity,
    /// The permits of all waiters. Only that of a shared key is read, and cannot wrap: it is at most 2^20 per waiter.
    wanted: u64,
    /// The number of the waiter that has collected permits, and these permits. At most one has (W4).
    collected: (u64, u64),
}

/// The waiter that gets permits next.
#[derive(Clone, Copy)]
pub(crate) struct Pick {
    lane: usize,
    pub(crate) number: u64,
    /// All that it needs, or some that it collects.
    pub(crate) permits: u64,
    pub(crate) is_last: bool,
}

/// The work that may be done while a queue is locked has been done.
pub(crate) struct Spent;

impl<K, N> Default for Queue<K, N> {
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            len: 0,
            limit: Capacity::MAX,
            wanted: 0,
            collected: (0, 0),
        }
    }
}

impl<K, N> Lane<K, N> {
    /// The oldest waiter whose permits fit the capacity and the limit: its number, and its permits. A step passes one
    /// whose permits do not.
    fn candidate(
        &mut self,
        limit: Capacity,
        steps: &mut usize,
    ) -> Result<Option<(u64, u64)>, Spent> {
        let most = self.capacity.min(limit).permits();
        while let Some(&(number, ref first)) = self.waiters.from(self.passed).next() {
            if first.permits <= most {
                return Ok(Some((number, first.permits)));
            }
            *steps = steps.checked_sub(1).ok_or(Spent)?;
            self.passed = number + 1;
            self.passed_permits = self.passed_permits.wrapping_add(first.permits);
        }
        Ok(None)
    }

    /// All waiters are looked at again.
    fn pass_none(&mut self) {
        (self.passed, self.passed_permits) = (0, 0);
    }
}

impl<K, N> Queue<K, N> {
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The waiter that has waited longest, and its number.
    pub(crate) fn oldest(&self) -> Option<&(u64, Waiter<K, N>)> {
        let lanes = self.lanes.iter();
        let firsts = lanes.filter_map(|lane| lane.waiters.from(0).next());
        firsts.min_by_key(|(number, _)| *number)
    }

    pub(crate) fn find(&self, number: u64) -> Option<&Waiter<K, N>> {
        let mut lanes = self.lanes.iter();
        lanes.find_map(|lane| lane.waiters.find(number, |_| true))
    }

    /// Whether a request with this capacity can join.
    pub(crate) fn has_room(&self, capacity: Capacity) -> bool {
        self.lanes.len() < MAX_LANES || self.lane(capacity).is_some()
    }

    fn lane(&self, capacity: Capacity) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.capacity == capacity)
    }

    /// The waiter that gets permits next, if `in_use` permits are in use without those to be distributed.
    pub(crate) fn pick(&mut self, in_use: u64, steps: &mut usize) -> Result<Option<Pick>, Spent> {
        let (mut oldest, mut granted): (Option<(Pick, u64)>, Option<Pick>) = (None, None);
        let (collector, collected) = self.collected;
        for (lane, of) in self.lanes.iter_mut().enumerate() {
            let free = of.capacity.free(in_use);
            let Some((number, permits)) = of.candidate(self.limit, steps)? else {
                continue;
            };
            let had = if number == collector { collected } else { 0 };
            let pick = Pick {
                lane,
                number,
                permits: permits - had,
                is_last: true,
            };
            if oldest.is_none_or(|(other, _)| number < other.number) {
                oldest = Some((pick, free));
            }
            if pick.permits <= free && granted.is_none_or(|other| number < other.number) {
                granted = Some(pick);
            }
        }
        let Some((oldest, free)) = oldest else {
            return Ok(None);
        };
        if free == 0 || oldest.permits <= free {
            return Ok(granted);
        }
        Ok(Some(Pick {
            permits: free,
            is_last: false,
            ..oldest
        }))
    }

    /// The waiter that was picked.
    pub(crate) fn picked(&self, pick: Pick) -> &Waiter<K, N> {
        let waiter = self.lanes[pick.lane].waiters.find(pick.number, |_| true);
        waiter.expect("picked under the same lock")
    }

    /// Records permits that the oldest candidate has collected.
    pub(crate) fn collect(&mut self, pick: Pick) {
        let (number, collected) = self.collected;
        let had = if number == pick.number { collected } else { 0 };
        debug_assert!(had == collected, "only one has collected permits (W4)");
        self.collected = (pick.number, had + pick.permits);
    }

    /// The waiter that has collected permits, and how many.
    pub(crate) fn collector(&self) -> Option<(&Waiter<K, N>, u64)> {
        let (number, collected) = self.collected;
        (collected > 0).then(|| {
            let collector = self.find(number);
            (collector.expect("it waits (W4)"), collected)
        })
    }

    /// Removes a waiter, with the permits that it has collected.
    pub(crate) fn remove(&mut self, number: u64) -> Option<(Waiter<K, N>, u64)> {
        let mut lanes = self.lanes.iter_mut().enumerate();
        let (lane, removed) = lanes.find_map(|(index, lane)| {
            let removed = lane.waiters.remove(number, |_| true);
            removed.map(|removed| (index, removed))
        })?;
        self.wanted = self.wanted.wrapping_sub(removed.permits);
        let of = &mut self.lanes[lane];
        if number < of.passed {
            of.passed_permits = of.passed_permits.wrapping_sub(removed.permits);
        }
        if self.lanes[lane].waiters.is_empty() {
            // In their order: new waiters join the first lane with their capacity.
            self.lanes.remove(lane);
        }
        self.len -= 1;
        let collected = match self.collected {
            (collector, _) if collector == number => self.take_collected(),
            _ => 0,
        };
        Some((removed, collected))
    }

    /// The permits that a waiter has collected. It has none after that.
    pub(crate) fn take_collected(&mut self) -> u64 {
        mem::take(&mut self.collected).1
    }

    /// Gives all waiters another capacity. None has collected permits.
    pub(crate) fn resize(&mut self, capacity: Capacity) {
        for lane in &mut self.lanes {
            lane.capacity = capacity;
            lane.pass_none();
        }
    }

    /// Changes the limit of a shared key. No waiter has collected permits.
    pub(crate) fn set_limit(&mut self, limit: Capacity) {
        if self.limit != limit {
            self.limit = limit;
            self.lanes.iter_mut().for_each(Lane::pass_none);
        }
    }

    /// How many more permits the waiters need, without those that were passed over; and how many the oldest of them
    /// needs in all, or 0. Only right for a settled queue of a shared key, which has one lane.
    pub(crate) fn need(&self) -> (u64, u64) {
        let Some(lane) = self.lanes.first() else {
            return (0, 0);
        };
        let next = lane.waiters.from(lane.passed).next();
        let next = next.map_or(0, |(_, waiter)| waiter.permits);
        let passed = lane.passed_permits.wrapping_add(self.collected.1);
        (self.wanted.wrapping_sub(passed), next)
    }

    /// Adds a waiter with a number that is greater than all before. `record` is called when its memory is reserved.
    pub(crate) fn push(
        &mut self,
        capacity: Capacity,
        number: u64,
        waiter: Waiter<K, N>,
        record: impl FnOnce() -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let permits = waiter.permits;
        if let Some(lane) = self.lane(capacity) {
            let vacancy = self.lanes[lane].waiters.reserve(number)?;
            record()?;
            vacancy.insert(waiter);
        } else {
            reserve(&mut self.lanes, 1)?;
            let mut waiters = SortedList::default();
            let vacancy = waiters.reserve(number)?;
            record()?;
            vacancy.insert(waiter);
            self.lanes.push(Lane {
                capacity,
                passed: 0,
                passed_permits: 0,
                waiters,
            });
        }
        self.len += 1;
        self.wanted = self.wanted.wrapping_add(permits);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A lane without a waiter would stay until the queue ends, and count towards [`MAX_LANES`].
    #[test]
    fn waiter_that_cannot_be_made_leaves_no_lane() {
        let mut queue = Queue::<u64, ()>::default();
        let waiter = Waiter {
            permits: 1,
            slot: NonNull::dangling(),
            id: 1,
            request_hash: 0,
            since: 0,
            notice: (),
        };
        let pushed = queue.push(Capacity::of(1, 1), 1, waiter, || Err(OutOfMemory));
        let state = (pushed, queue.len, queue.lanes());
        assert_eq!(state, (Err(OutOfMemory), 0, 0));
    }
}
