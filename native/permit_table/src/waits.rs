//! Waiting for permits: requests that wait, are cancelled, or get another capacity.
//!
//! - **P11 FIFO**, **P12 No missed grant**: the key's word has WAITERS before the request looks for free permits for
//!   the last time. A release before that is seen by the request, a later one sees WAITERS and takes the lock (W1, W2).
//! - **P13 A wait ends exactly once**: W3.

use crate::buckets::{Buckets, Capacity, Demand};
use crate::counters::Event;
use crate::epochs::Pin;
use crate::holder::Holder;
use crate::keys::{Inserted, Key, NewNode, Node, Query};
use crate::memory::OutOfMemory;
use crate::queues::{InHand, Locked, Notice, Request};
use crate::slot::Slot;
use crate::sync::seeded;
use crate::table::Table;
use equivalent::Equivalent;
use std::hash::Hash;

/// The result of [`Table::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The caller has the permits, and gets no notice. The number of permits of the key out, these included.
    Permit(u64),
    /// The request waits. It ends by a notice, by [`Table::cancel`], or by the death of its process.
    Waiting,
    /// Too many requests wait. Nothing has changed.
    Full,
    /// The table closes. Nothing has changed.
    Closed,
}

/// A request that may wait.
#[derive(Debug)]
pub struct Ask<N> {
    /// The permits and the capacity.
    pub demand: Demand,
    /// The most requests that may wait for the key before this one.
    pub max_waiting: usize,
    /// Finds the request when it is cancelled: any number that the caller can compute again.
    pub digest: u64,
    /// The time, in any unit, which [`Table::queues_from`] returns.
    pub now: u64,
    /// Tells the end of the request.
    pub notice: N,
}

/// A node with a queue, which is ended on drop if no request waits.
struct Queued<'a, 'l, K, N: Notice> {
    shard: &'l mut Locked<'a, K, N>,
    node: &'l Node<K>,
    /// A request whose call has not succeeded yet. On drop, by a panic, it leaves the queue.
    unsettled: Option<u64>,
}

impl<K, N: Notice> Drop for Queued<'_, '_, K, N> {
    fn drop(&mut self) {
        if let Some(number) = self.unsettled {
            self.shard.withdraw(self.node, number);
        }
        self.shard.end_if_empty(self.node);
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
        ask: Ask<N>,
        watch: impl FnOnce() -> Result<(), E>,
        here: N::Here<'_>,
    ) -> Result<Waited, E> {
        let order = self.order(query);
        let max_waiting = ask.max_waiting;
        let find = || self.keys.get(pin, order, query);
        let refused = |shard: &Locked<'_, K, N>, found: Option<&Node<K>>| {
            if shard.is_closed() {
                return Some(Waited::Closed);
            }
            shard.is_full(found, max_waiting).then_some(Waited::Full)
        };
        // Before the process gets a slot and is watched (P2).
        if let Some(refused) = refused(&self.parts().lock(order), find()) {
            return Ok(refused);
        }
        let slot = self.holders.claim(holder, watch)?;
        let mut new = None;
        let mut shard = self.parts().lock(order);
        loop {
            let found = find();
            if let Some(refused) = refused(&shard, found) {
                return Ok(refused);
            }
            let too_soon = match found {
                Some(node) if seeded("w1_looked_before_the_bit") => {
                    self.try_acquire_node(slot, node, ask.demand)?.ok()
                }
                _ => None,
            };
            if let Some(out) = too_soon {
                return Ok(Waited::Permit(out));
            }
            let opened = match found {
                Some(node) if shard.has_queue(node) => Some(node),
                Some(node) => shard.open(order, || node.buckets.set_waiters().then_some(node))?,
                None => {
                    let made = match new.take() {
                        Some(made) => made,
                        None => NewNode::with(Buckets::with_waiters(), query, order)?,
                    };
                    shard.open(order, || match self.keys.insert(pin, query, made) {
                        Inserted::New(node) => Some(node),
                        Inserted::Present(returned) => {
                            new = Some(returned);
                            None
                        }
                    })?
                }
            };
            // `None`: the node has died, or another caller has inserted the key.
            if let Some(node) = opened {
                let queued = Queued {
                    shard: &mut shard,
                    node,
                    unsettled: None,
                };
                return Ok(self.acquire_or_push(slot, holder, queued, ask, here)?);
            }
        }
    }

    fn acquire_or_push(
        &self,
        slot: &Slot<K>,
        holder: Holder,
        mut queued: Queued<'_, '_, K, N>,
        ask: Ask<N>,
        here: N::Here<'_>,
    ) -> Result<Waited, OutOfMemory> {
        let Ask {
            demand,
            digest,
            now,
            notice,
            ..
        } = ask;
        let node = queued.node;
        if !seeded("w1_looked_before_the_bit") {
            if let Ok(out) = self.try_acquire_node(slot, node, demand)? {
                return Ok(Waited::Permit(out));
            }
        }
        let request = Request {
            holder,
            demand,
            digest,
            since: now,
            notice,
        };
        let number = queued.shard.next_number();
        if !queued.shard.push(node, request)? {
            return Ok(Waited::Full);
        }
        queued.unsettled = Some(number);
        if seeded("w1_looked_before_the_bit") {
            queued.unsettled = None;
            return Ok(Waited::Waiting);
        }
        let mut hand = InHand { node, permits: 0 };
        // It was refused above, and the count has not decreased since. So this can only collect.
        let settled = queued.shard.settle(&mut hand, here);
        debug_assert!(settled);
        queued.unsettled = None;
        Ok(Waited::Waiting)
    }

    /// Ends a request of `holder` that waits: one with this digest whose notice `is_it` accepts. Returns false if there
    /// is none, because it has ended: then its process has been told.
    ///
    /// # Cost
    /// About 0.3 µs, and 0.5 µs per waiter that is granted because of it.
    pub fn cancel(
        &self,
        pin: &Pin,
        holder: Holder,
        digest: u64,
        is_it: impl Fn(&N) -> bool,
        here: N::Here<'_>,
    ) -> bool {
        let mut last = None;
        while let Some(wait) = self.ledger.wait_after(holder, digest, last) {
            // SAFETY: pinned before.
            if unsafe { self.parts().cancel(pin, &wait, &is_it, here) } {
                return true;
            }
            last = Some(wait);
        }
        false
    }

    /// Counts a request that was cancelled because of a timeout.
    pub fn count_timeout(&self, pin: &Pin) {
        self.counters.count(pin, Event::TimedOut);
    }

    /// Gives all requests that wait for a key this capacity, in pieces: the next one if it is called with the number
    /// that the last one has returned; the first one with `None`. Returns `None` if no more follow.
    ///
    /// # Errors
    /// [`OutOfMemory`]: some requests have the capacity. It can be called again.
    ///
    /// # Cost
    /// A piece takes about 0.1 ms.
    pub fn resized<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        query: &Q,
        capacity: Capacity,
        before: Option<u64>,
        here: N::Here<'_>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let order = self.order(query);
        let Some(node) = self.keys.get(pin, order, query) else {
            return Ok(None);
        };
        let before = before.unwrap_or_else(|| self.parts().lock(order).next_number());
        let has_more = self.parts().resize(node, capacity, before, here)?;
        Ok(has_more.then_some(before))
    }

    /// The number of requests that wait for a key.
    pub fn waiting<Q: Hash + Equivalent<K>>(&self, pin: &Pin, query: &Q) -> usize {
        let node = self.keys.get(pin, self.order(query), query);
        node.map_or(0, |node| self.queues.len_of(node))
    }

    /// Limits the number of requests that wait, of all keys together.
    pub fn set_max_waiting(&self, max_waiting: usize) {
        self.queues.set_max_waiting(max_waiting);
    }

    /// Ends up to `limit` requests, because the table closes: their notices are told so. Returns whether none is left.
    /// After the first call no request starts to wait, until [`Table::reopen`] is called.
    /// What the ended ones had collected can be granted to others.
    pub fn close(&self, limit: usize, here: N::Here<'_>) -> bool {
        let _pin = crate::epochs::pin();
        self.parts().close(limit, here)
    }

    /// Allows requests to wait again, after [`Table::close`].
    pub fn reopen(&self) {
        self.parts().reopen();
    }
}
