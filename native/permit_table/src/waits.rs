//! Waiting for permits: requests that wait, are cancelled, or get another capacity.
//!
//! - **P11 FIFO**, **P12 No missed grant**: the key's word has WAITERS before the request looks for free permits for
//!   the last time. A release before that is seen by the request, a later one sees WAITERS and takes the lock (W1, W2).
//! - **P13 A wait ends exactly once**: W3.

use crate::counters::Event;
use crate::epochs::Pin;
use crate::holder::Holder;
use crate::keys::{Key, NewNode, Node, Query};
use crate::memory::OutOfMemory;
use crate::permit_count::{Acquired, Capacity, Demand, PermitCount};
use crate::queue::Waiter;
use crate::queues::{Notice, QueueGuard, Undistributed};
use crate::table::Table;
use equivalent::Equivalent;
use std::hash::Hash;
use std::mem;
use std::sync::atomic::Ordering::Relaxed;

/// The result of [`Table::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The caller has the permits, and gets no notice. The number of permits of the key in use, these included.
    Permit(u64),
    /// The request waits. It ends by a notice, by [`Table::cancel`], or by the death of its process.
    Waiting,
    /// Too many requests wait. Nothing has changed.
    Full,
    /// The table closes. Nothing has changed.
    Closed,
    /// The key is not shared, or the agent has set another capacity than that of the demand. Nothing has changed.
    Declare,
}

/// A request that may wait.
#[derive(Debug)]
pub struct WaitRequest<N> {
    /// The permits and the capacity.
    pub demand: Demand,
    /// Whether it is for permits of the share of a shared key. A new queue has no limit before [`Table::set_share`] is
    /// called again.
    pub is_shared: bool,
    /// The most requests that may wait for the key before this one.
    pub max_waiting: usize,
    /// Finds the request when it is cancelled: any number that the caller can compute again.
    pub request_hash: u64,
    /// The time: [`Notice::now_us`].
    pub now: u64,
    /// Sends the end of the request.
    pub notice: N,
}

/// A request in the queue of a node, whose call has not succeeded yet. On drop, by an error or a panic, it leaves the
/// queue, and the queue ends if no request waits.
struct Joining<'a, 'l, K, N: Notice> {
    guard: &'l mut QueueGuard<'a, K, N>,
    node: &'l Node<K>,
    number: Option<u64>,
}

impl<K, N: Notice> Drop for Joining<'_, '_, K, N> {
    fn drop(&mut self) {
        match self.number {
            Some(number) => self.guard.withdraw(self.node, number, drop),
            None => self.guard.end_if_empty(self.node),
        }
    }
}

impl<K: Key, N: Notice> Table<K, N> {
    /// Acquires permits of a key for `holder`, or waits for them: the call does not wait, the request does.
    ///
    /// `watch` is as for [`Table::acquire`].
    ///
    /// # Errors
    /// [`OutOfMemory`] (as an `E`), or the error of `watch`. Then nothing has changed.
    ///
    /// # Cost
    /// About 0.5 µs: a lock of the key's queue, and O(log waiters).
    pub fn wait<Q: Query<K>, E: From<OutOfMemory>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        request: WaitRequest<N>,
        watch: impl FnOnce() -> Result<(), E>,
        context: N::Context<'_>,
    ) -> Result<Waited, E> {
        let mut demand = request.demand;
        let mut capacity = demand.capacity;
        if request.is_shared {
            demand.capacity = demand.capacity.of_shared();
            capacity = Capacity::SHARED;
        }
        let sort_key = self.sort_key(query);
        let find = || self.keys.get(pin, sort_key, query);
        let refusal = |guard: &QueueGuard<'_, K, N>, found: Option<&Node<K>>| {
            if guard.is_closed() {
                return Some(Waited::Closed);
            }
            // Only a call that has this lock can set another one.
            let has_passed = |node: &Node<K>| node.count.read().has_passed(demand.capacity);
            if request.is_shared && !found.is_some_and(has_passed) {
                return Some(Waited::Declare);
            }
            let is_above = request.is_shared && !demand.is_satisfiable();
            let is_full = is_above || guard.is_full(found, capacity, request.max_waiting);
            is_full.then_some(Waited::Full)
        };
        let slot = match self.holders.find(holder) {
            Some(slot) => slot,
            None => {
                // Before the process gets a slot and is watched (P2).
                if let Some(refused) = refusal(&self.queues.lock(sort_key), find()) {
                    return Ok(refused);
                }
                self.holders.claim(holder, watch)?
            }
        };
        let mut new = None;
        let mut guard = self.queues.lock(sort_key);
        let node = loop {
            let found = find();
            if let Some(refused) = refusal(&guard, found) {
                return Ok(refused);
            }
            let opened = match found {
                Some(node) if guard.has_queue(node) => Some(node),
                Some(node) => guard.open(sort_key, || node.count.set_waiters().then_some(node))?,
                None => {
                    let made = match new.take() {
                        Some(made) => made,
                        None => NewNode::with(PermitCount::with_waiters(), query, sort_key)?,
                    };
                    guard.open(sort_key, || match self.keys.insert(pin, query, made) {
                        Ok(node) => Some(node),
                        Err(returned) => {
                            new = Some(returned);
                            None
                        }
                    })?
                }
            };
            // `None`: the node has died, or another caller has inserted the key.
            if let Some(node) = opened {
                break node;
            }
        };
        let mut joining = Joining {
            guard: &mut guard,
            node,
            number: None,
        };
        // WAITERS is set by now (P12).
        let acquire = |count: &PermitCount| match request.is_shared {
            false => count.acquire(demand),
            true => count.acquire_shared(demand),
        };
        let acquired = self.acquire_node(slot, node, demand.permits, acquire)?;
        if let Some(Acquired::Permit(in_use)) = acquired {
            return Ok(Waited::Permit(in_use));
        }
        slot.overflow_or_new()?;
        let waiter = Waiter {
            permits: demand.permits,
            slot: slot.into(),
            id: holder.id(),
            request_hash: request.request_hash,
            since: request.now,
            notice: request.notice,
        };
        joining.number = joining.guard.push(node, capacity, waiter)?;
        if joining.number.is_none() {
            return Ok(Waited::Full);
        }
        // It was refused above, and the count has not decreased since. So this can only collect, or pass it over.
        let mut nothing = Undistributed { node, permits: 0 };
        let is_settled = joining.guard.settle(&mut nothing, context);
        mem::forget(joining);
        if !is_settled {
            self.queues.settle_locked(guard, &mut nothing, context);
        }
        Ok(Waited::Waiting)
    }

    /// Ends a request of `holder` that waits: one with this hash whose notice `is_it` accepts. Returns when it began to
    /// wait, or `None` if there is none, because it has ended: then its process has the message.
    ///
    /// # Cost
    /// About 0.3 µs, and 0.5 µs per waiter that is granted because of it.
    pub fn cancel(
        &self,
        pin: &Pin,
        holder: Holder,
        request_hash: u64,
        is_it: impl Fn(&N) -> bool,
        context: N::Context<'_>,
    ) -> Option<u64> {
        let overflow = self.holders.find(holder)?.overflow()?;
        let mut last = None;
        loop {
            // Not under the lock of the overflow (O3).
            let next = overflow.lock().wait_after(request_hash, last);
            let wait = next?;
            // SAFETY: pinned before.
            let ended = unsafe { self.queues.cancel(pin, wait, &is_it, context) };
            if ended.is_some() {
                return ended;
            }
            last = Some(wait);
        }
    }

    /// Counts a request that was cancelled because of a timeout, and that began to wait at `since`. Its caller gets the
    /// answer `full`.
    pub fn count_timeout(&self, pin: &Pin, since: u64) {
        self.queues.count_wait(since, N::now_us());
        self.counters.add(pin, Event::TimedOut, 1);
        self.count_refusal(pin);
    }

    /// Gives all requests that wait for a key this capacity, in one step. Then grants a piece of those that it admits.
    /// Returns whether none is left: otherwise [`Table::settle`] must be called. `None` if more than `most` requests
    /// wait. Then nothing has changed.
    ///
    /// # Cost
    /// About 50 µs.
    pub fn resize<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        query: &Q,
        capacity: Capacity,
        most: usize,
        context: N::Context<'_>,
    ) -> Option<bool> {
        let node = self.keys.get(pin, self.sort_key(query), query);
        node.map_or(Some(true), |node| {
            self.queues.resize(node, capacity, most, context)
        })
    }

    /// Grants a piece of the requests that can be granted after [`Table::resize`]. Returns whether none is left.
    ///
    /// # Cost
    /// About 50 µs.
    pub fn settle<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        query: &Q,
        context: N::Context<'_>,
    ) -> bool {
        let node = self.keys.get(pin, self.sort_key(query), query);
        node.is_none_or(|node| self.queues.settle_step(node, context))
    }

    /// The number of requests that wait for a key.
    pub fn waiting<Q: Hash + Equivalent<K>>(&self, pin: &Pin, query: &Q) -> usize {
        let node = self.keys.get(pin, self.sort_key(query), query);
        node.map_or(0, |node| self.queues.len_of(node))
    }

    /// Limits the number of requests that wait, of all keys together.
    pub fn set_max_waiting(&self, max_waiting: usize) {
        self.queues.max_waiting.store(max_waiting, Relaxed);
    }

    /// Ends up to `limit` requests, because the table closes: their processes get [`WaitEnd::Closed`](crate::WaitEnd).
    /// Returns true if none is left. After the first call no request starts to wait and none is granted, until
    /// [`Table::reopen`] is called.
    pub fn close(&self, limit: usize, context: N::Context<'_>) -> bool {
        let _pin = crate::epochs::pin();
        self.queues.close(limit, context)
    }

    /// Whether requests do not wait, because of [`Table::close`].
    pub fn is_closing(&self) -> bool {
        self.queues.lock(0).is_closed()
    }

    /// Allows requests to wait again, after [`Table::close`] has ended all.
    pub fn reopen(&self) {
        self.queues.reopen();
    }
}
