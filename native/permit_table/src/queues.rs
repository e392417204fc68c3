//! The queues of waiters: one per key that a request waits for.
//!
//! ```text
//!   shard of the key's order, a lock
//!     queue of a key (its word has WAITERS set)
//!       lane    capacity 6, permits 1:   waiter 17, waiter 21, waiter 22        oldest first
//!       lane    capacity 4, permits 2:   waiter 19
//! ```
//!
//! A waiter is granted its permits by **settling** its queue. A call that releases permits of a key with a queue locks
//! the queue and settles it with these permits **in hand**: they go to waiters without being released in between. Only
//! what no waiter can have lowers the count. So the count of the key, which callers of acquire see, does not fall while
//! a permit is handed over, and no caller can take the permit of a waiter.
//!
//! The waiters with the same capacity and number of permits are a **lane**. As all of a lane are granted or refused at
//! the same count, settling looks at the first of each lane only.
//!
//! # Several permits
//!
//! The oldest waiter that can be satisfied **collects**: it takes permits one by one, and they stay counted. So smaller
//! requests do not starve it. Any other waiter gets all its permits at once or none. If two waiters collected, each
//! could have the permits that the other one needs.
//!
//! # Invariants
//!
//! - **W1** While the lock is free, no waiter could be granted its permits: for each one that is satisfiable,
//!   `count + permits - collected > capacity`, and for the oldest of these `count >= capacity`.
//! - **W2** WAITERS is set if and only if the key has a queue, and changes only under the lock. While it is set, the
//!   count decreases only under the lock. (Callers with a larger capacity can increase it.)
//! - **W3** A request leaves the queue once, under the lock: it is granted, cancelled, or its table closes. Its
//!   message, if it gets one, is sent under the lock of its process's entry, in the same step in which it leaves the
//!   entry. `cancel` looks for it there. So a process that finds its request gone has the message.
//! - **W4** Only the oldest satisfiable waiter has collected permits.
//! - **W5** A waiter enters the queue after it is on its process's entry (`ledger.rs`), and leaves the entry under the
//!   lock of the queue. A death takes all requests of its process out of the queues before it releases its credits. So
//!   settling need not know whether the process of a waiter is alive: what it credits is released by the death.
//! - **W6** Permits are in hand only during one call, which cannot be interrupted. If it panics, they are released
//!   without being handed over.

use crate::buckets::{Capacity, Demand};
use crate::holder::Holder;
use crate::keys::Node;
use crate::ledger::{Ledger, Wait};
use crate::memory::{reserve, OutOfMemory};
use crate::sorted_list::{Ordered, SortedList};
use crate::sync::{seeded, sized, Mutex, MutexGuard};
use crate::{epochs::Pin, inject};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Locks of the queues. Keys with queues rarely share one.
const SHARDS: usize = sized(2, 4, 256);

/// Grants, or steps of another kind, after which the lock is free for a moment: about 50 µs.
const STEPS: usize = sized(2, 64, 64);

/// Lanes whose comparison takes as long as the rest of a step.
const LANES_PER_STEP: usize = 16;

/// Queues that are copied while their shard is locked: at most 50 µs.
const QUEUES_PER_PIECE: usize = 256;

/// The queue of a key, as inspections see it.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Requests that wait.
    pub waiting: usize,
    /// The identity word of the process that has waited longest.
    pub oldest: u64,
    /// When that process began to wait: [`Ask::now`](crate::Ask::now).
    pub since: u64,
}

/// Sends the end of a request to its process.
pub trait Notice: Send + 'static {
    /// What a call needs in order to tell it: the environment of the call.
    type Here<'a>: Copy;

    /// Tells the process. Called under locks, so it must not call the table. A process that is not alive any more is
    /// not told, which is no error.
    fn tell(self, here: Self::Here<'_>, told: Told);
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Its process has the permits. The number of permits out at that instant, these included.
    Granted(u64),
    /// The table closes.
    Closed,
}

/// For tables in which no request waits.
#[derive(Debug)]
pub enum NoNotice {}

impl Notice for NoNotice {
    type Here<'a> = ();

    fn tell(self, (): (), _told: Told) {
        match self {}
    }
}

/// A request that waits.
struct Waiter<N> {
    /// Increases with the time at which it began to wait.
    number: u64,
    holder: Holder,
    digest: u64,
    collected: u64,
    /// When it began to wait, as told by the caller.
    since: u64,
    notice: N,
}

impl<N> Ordered for Waiter<N> {
    fn order(&self) -> u64 {
        self.number
    }
}

struct Lane<N> {
    demand: Demand,
    waiters: SortedList<Waiter<N>>,
}

struct Queue<K, N> {
    node: NonNull<Node<K>>,
    order: u64,
    /// None is empty.
    lanes: Vec<Lane<N>>,
    len: usize,
}

// SAFETY: it points to a node that is alive (K6), and nodes are shared between threads.
unsafe impl<K: Send + Sync, N: Send> Send for Queue<K, N> {}

impl<K, N> Ordered for Queue<K, N> {
    fn order(&self) -> u64 {
        self.order
    }
}

pub(crate) struct Shard<K, N> {
    /// No request starts to wait here any more.
    closed: bool,
    next_number: u64,
    queues: SortedList<Queue<K, N>>,
}

/// A locked shard.
pub(crate) struct Locked<'a, K, N: Notice> {
    shard: MutexGuard<'a, Shard<K, N>>,
    queues: &'a Queues<K, N>,
    ledger: &'a Ledger<K>,
}

/// The queues of all keys of a table.
pub(crate) struct Queues<K, N> {
    shards: Vec<Mutex<Shard<K, N>>>,
    /// Requests that wait, of all keys together.
    waiting: AtomicUsize,
    max_waiting: AtomicUsize,
    handed_over: AtomicU64,
}

/// What the queues need of a table.
pub(crate) struct Parts<'a, K, N> {
    pub(crate) queues: &'a Queues<K, N>,
    pub(crate) ledger: &'a Ledger<K>,
}

impl<K, N> Clone for Parts<'_, K, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, N> Copy for Parts<'_, K, N> {}

/// A request to be queued.
pub(crate) struct Request<N> {
    pub(crate) holder: Holder,
    pub(crate) demand: Demand,
    pub(crate) digest: u64,
    pub(crate) since: u64,
    pub(crate) notice: N,
}

/// Permits that are counted and on no record (W6). On drop they are released.
pub(crate) struct InHand<'a, K> {
    pub(crate) node: &'a Node<K>,
    pub(crate) permits: u64,
}

impl<K> InHand<'_, K> {
    /// Lowers the count by them.
    fn release(&mut self) {
        let permits = mem::take(&mut self.permits);
        if permits > 0 {
            self.node.buckets.lower(permits);
        }
    }
}

impl<K> Drop for InHand<'_, K> {
    fn drop(&mut self) {
        self.release();
    }
}

/// One step of settling.
struct Pick {
    lane: usize,
    permits: u64,
}

impl<K, N> Queue<K, N> {
    /// The oldest waiter that can have permits in hand or free ones, if `out` permits are out without those in hand.
    fn pick(&self, out: u64) -> Option<Pick> {
        let heads = || {
            let lanes = self.lanes.iter().enumerate();
            let satisfiable = lanes.filter(|(_, lane)| lane.demand.is_satisfiable());
            satisfiable.map(|(index, lane)| (lane.first().number, index, lane))
        };
        let oldest = heads().map(|(number, _, _)| number).min()?;
        let picks = heads().filter_map(|(number, index, lane)| {
            let needed = lane.demand.permits - lane.first().collected;
            let free = lane.demand.capacity.free(out);
            let permits = if number == oldest || seeded("w4_all_collect") {
                needed.min(free)
            } else if needed <= free {
                needed
            } else {
                0
            };
            (permits > 0).then_some((number, index, permits))
        });
        let (_, lane, permits) = picks.min()?;
        Some(Pick { lane, permits })
    }

    /// The lane and the number of the waiter that has collected permits.
    fn collector(&self) -> Option<(usize, u64)> {
        let heads = self.lanes.iter().map(|lane| lane.first());
        let mut heads = heads.enumerate();
        let (lane, first) = heads.find(|(_, first)| first.collected > 0)?;
        Some((lane, first.number))
    }

    fn wait(&self, waiter: &Waiter<N>) -> Wait<K> {
        Wait {
            digest: waiter.digest,
            node: self.node,
            number: waiter.number,
        }
    }

    /// Removes a waiter of a lane. A lane without waiters is removed.
    fn remove(&mut self, lane: usize, number: u64) -> Option<Waiter<N>> {
        let waiters = &mut self.lanes[lane].waiters;
        let removed = waiters.remove(number, |_| true)?;
        if waiters.is_empty() {
            self.lanes.swap_remove(lane);
        }
        self.len -= 1;
        Some(removed)
    }

    fn lane(&self, demand: Demand) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.demand == demand)
    }

    /// Inserts a waiter, which is made after its memory is reserved.
    fn insert(
        &mut self,
        demand: Demand,
        number: u64,
        make: impl FnOnce() -> Result<Waiter<N>, OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        match self.lane(demand) {
            Some(lane) => {
                let vacancy = self.lanes[lane].waiters.reserve(number)?;
                vacancy.insert(make()?);
            }
            None => {
                reserve(&mut self.lanes, 1)?;
                self.lanes.push(Lane::of(demand, number, make)?);
            }
        }
        self.len += 1;
        Ok(())
    }

    /// Moves the oldest waiter with another capacity, and a smaller number than `before`, to the lane of this capacity.
    /// Returns false if there is none.
    fn move_oldest(&mut self, capacity: Capacity, before: u64) -> Result<bool, OutOfMemory> {
        let others = self.lanes.iter().enumerate();
        let others = others.filter(|(_, lane)| lane.demand.capacity != capacity);
        let oldest = others
            .map(|(index, lane)| (lane.first().number, index))
            .min();
        let Some((number, from)) = oldest.filter(|(number, _)| *number < before) else {
            return Ok(false);
        };
        let permits = self.lanes[from].demand.permits;
        let demand = Demand { capacity, permits };
        match self.lane(demand) {
            Some(to) => {
                let (lower, upper) = self.lanes.split_at_mut(from.max(to));
                let (lower, upper) = (&mut lower[from.min(to)], &mut upper[0]);
                let (source, target) = if from < to {
                    (lower, upper)
                } else {
                    (upper, lower)
                };
                target.waiters.reserve(number)?.insert(source.take(number));
            }
            None => {
                reserve(&mut self.lanes, 1)?;
                let source = &mut self.lanes[from];
                let moved = Lane::of(demand, number, || Ok(source.take(number)))?;
                self.lanes.push(moved);
            }
        }
        if self.lanes[from].waiters.is_empty() {
            self.lanes.swap_remove(from);
        }
        Ok(true)
    }

    fn is_of(&self, node: &Node<K>) -> bool {
        ptr::eq(self.node.as_ptr(), node)
    }
}

impl<N> Lane<N> {
    /// A lane with one waiter, which is made after its memory is reserved.
    fn of(
        demand: Demand,
        number: u64,
        make: impl FnOnce() -> Result<Waiter<N>, OutOfMemory>,
    ) -> Result<Self, OutOfMemory> {
        let mut waiters = SortedList::default();
        waiters.reserve(number)?.insert(make()?);
        Ok(Self { demand, waiters })
    }

    /// Removes a waiter of the lane.
    fn take(&mut self, number: u64) -> Waiter<N> {
        let taken = self.waiters.remove(number, |_| true);
        taken.expect("the caller has found it")
    }

    fn first(&self) -> &Waiter<N> {
        self.waiters.from(0).next().expect("no lane is empty")
    }
}

impl<K, N> Shard<K, N> {
    fn queue(&self, node: &Node<K>) -> Option<&Queue<K, N>> {
        self.queues.find(node.order(), |queue| queue.is_of(node))
    }

    /// Calls `with` with the queue of a node.
    fn with<T>(&mut self, node: &Node<K>, with: impl FnOnce(&mut Queue<K, N>) -> T) -> Option<T> {
        let queue = self
            .queues
            .find_mut(node.order(), |queue| queue.is_of(node))?;
        Some(with(queue))
    }
}

impl<K, N: Notice> Locked<'_, K, N> {
    /// Whether a request is refused because `max_waiting` requests wait for the key, or because the table is full.
    pub(crate) fn is_full(&self, node: Option<&Node<K>>, max_waiting: usize) -> bool {
        let queue = node.and_then(|node| self.shard.queue(node));
        let len = queue.map_or(0, |queue| queue.len);
        len >= max_waiting || self.queues.len() >= self.queues.max_waiting.load(Relaxed)
    }

    /// A waiter, and the node that it waits for.
    fn any(&mut self) -> Option<(NonNull<Node<K>>, u64)> {
        loop {
            let queue = self.shard.queues.from(0).next()?;
            let node = queue.node;
            if let Some(lane) = queue.lanes.first() {
                return Some((node, lane.first().number));
            }
            // A panic has left it.
            // SAFETY: it has a queue (K6).
            self.end_if_empty(unsafe { node.as_ref() });
        }
    }

    /// A step compares the first waiters of all lanes.
    fn cost_of_step(&self, node: &Node<K>) -> usize {
        let lanes = self.shard.queue(node).map_or(0, |queue| queue.lanes.len());
        1 + lanes / LANES_PER_STEP
    }

    /// Whether the table closes.
    pub(crate) fn is_closed(&self) -> bool {
        self.shard.closed && !seeded("w3_closed_not_asked")
    }

    /// Gives a node a queue, if it has none. If `set` is called, it must set WAITERS of the node that it returns. If it
    /// returns `None`, nothing has changed.
    pub(crate) fn open<'n>(
        &mut self,
        order: u64,
        set: impl FnOnce() -> Option<&'n Node<K>>,
    ) -> Result<Option<&'n Node<K>>, OutOfMemory> {
        let vacancy = self.shard.queues.reserve(order)?;
        let node = set();
        if let Some(node) = node {
            vacancy.insert(Queue {
                node: node.into(),
                order,
                lanes: Vec::new(),
                len: 0,
            });
        }
        Ok(node)
    }

    pub(crate) fn has_queue(&self, node: &Node<K>) -> bool {
        self.shard.queue(node).is_some()
    }

    /// Ends the queue of a node if no request waits.
    pub(crate) fn end_if_empty(&mut self, node: &Node<K>) {
        if self.shard.queue(node).is_none_or(|queue| queue.len > 0) {
            return;
        }
        let queues = &mut self.shard.queues;
        queues.remove(node.order(), |queue| queue.is_of(node));
        node.buckets.clear_waiters();
    }

    /// Queues a request for a node with a queue. Returns false if the table is full.
    pub(crate) fn push(
        &mut self,
        node: &Node<K>,
        request: Request<N>,
    ) -> Result<bool, OutOfMemory> {
        let (queues, ledger) = (self.queues, self.ledger);
        let Some(place) = queues.place() else {
            return Ok(false);
        };
        let Request {
            holder,
            demand,
            digest,
            since,
            notice,
        } = request;
        let number = self.shard.next_number;
        let wait = Wait {
            digest,
            node: node.into(),
            number,
        };
        let pushed = self.shard.with(node, |queue| {
            queue.insert(demand, number, || {
                ledger.add_wait(holder, wait)?;
                Ok(Waiter {
                    number,
                    holder,
                    digest,
                    collected: 0,
                    since,
                    notice,
                })
            })
        });
        pushed.expect("it has a queue")?;
        self.shard.next_number += 1;
        mem::forget(place);
        Ok(true)
    }

    /// Hands permits in hand, and free ones, to the waiters of a node. What no waiter can have lowers the count.
    /// Returns false if it has made [`STEPS`] steps and more follow.
    pub(crate) fn settle(&mut self, hand: &mut InHand<'_, K>, here: N::Here<'_>) -> bool {
        let node = hand.node;
        let mut steps = 0;
        loop {
            inject::panic();
            let queue = self.shard.queue(node);
            let pick = queue.and_then(|queue| {
                let word = node.buckets.permits();
                let out = word.expect("it has a queue (K6)") - hand.permits;
                Some((queue.pick(out)?, out))
            });
            let Some((Pick { lane, permits }, out)) = pick else {
                hand.release();
                self.end_if_empty(node);
                return true;
            };
            // Not before: the queue is not empty while the lock is free.
            if steps >= STEPS {
                return false;
            }
            let from_hand = permits.min(hand.permits);
            if permits > from_hand && !node.buckets.raise(out + hand.permits, permits - from_hand) {
                // A caller has acquired in between. That is no step: one that collects must not end without it.
                steps += usize::from(seeded("w1_failed_raise_is_a_step"));
                continue;
            }
            steps += self.cost_of_step(node);
            // From here to the credit nothing can fail or panic.
            hand.permits -= from_hand;
            self.grant(node, lane, permits, out + permits, here);
        }
    }

    /// Gives permits to the first waiter of a lane. If it then has all its permits, its process gets the message.
    fn grant(&mut self, node: &Node<K>, lane: usize, permits: u64, out: u64, here: N::Here<'_>) {
        let ledger = self.ledger;
        let granted = self.shard.with(node, |queue| {
            let demand = queue.lanes[lane].demand;
            let first = queue.lanes[lane].first();
            let (number, holder, collected) = (first.number, first.holder, first.collected);
            let wait = queue.wait(first);
            if collected + permits < demand.permits {
                ledger.collect(holder, &wait, permits);
                let waiters = &mut queue.lanes[lane].waiters;
                let first = waiters.find_mut(number, |_| true);
                first.expect("found above").collected += permits;
                return None;
            }
            let waiter = queue.remove(lane, number).expect("found above");
            let tell = || waiter.notice.tell(here, Told::Granted(out));
            ledger.end_wait(holder, &wait, (collected, demand.permits), tell);
            Some(())
        });
        if granted.expect("it has a queue").is_some() {
            self.queues.waiting.fetch_sub(1, Relaxed);
            self.queues.handed_over.fetch_add(1, Relaxed);
        }
    }

    /// Takes the permits that a waiter has collected in hand.
    fn take_collected(&mut self, node: &Node<K>, hand: &mut InHand<'_, K>) {
        let ledger = self.ledger;
        let is_kept = seeded("p6_resized_keeps_collected");
        self.shard.with(node, |queue| {
            let collector = queue.collector().filter(|_| !is_kept);
            let Some((lane, number)) = collector else {
                return;
            };
            let wait = queue.wait(queue.lanes[lane].first());
            let waiters = &mut queue.lanes[lane].waiters;
            let first = waiters.find_mut(number, |_| true);
            let first = first.expect("found above");
            ledger.take_collected(first.holder, &wait, first.collected);
            hand.permits += mem::take(&mut first.collected);
        });
    }

    /// The number of the next waiter.
    pub(crate) fn next_number(&self) -> u64 {
        self.shard.next_number
    }

    /// Removes a waiter, and calls `end` with its notice. Returns the permits that it had collected, which are in hand
    /// now.
    fn take(&mut self, node: &Node<K>, number: u64, end: impl FnOnce(N)) -> Option<u64> {
        let ledger = self.ledger;
        let collected = self.shard.with(node, |queue| {
            let mut lanes = 0..queue.lanes.len();
            let waiter = lanes.find_map(|lane| queue.remove(lane, number))?;
            let wait = queue.wait(&waiter);
            let (collected, end) = (waiter.collected, || end(waiter.notice));
            ledger.end_wait(waiter.holder, &wait, (collected, 0), end);
            Some(collected)
        })??;
        self.queues.waiting.fetch_sub(1, Relaxed);
        Some(collected)
    }

    /// Removes a waiter, and releases the permits that it had collected, without settling.
    pub(crate) fn withdraw(&mut self, node: &Node<K>, number: u64) {
        let permits = self.take(node, number, drop).unwrap_or(0);
        InHand { node, permits }.release();
    }
}

/// A request that is counted and does not wait yet. On drop it is not counted any more.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The shard of a key.
fn index(order: u64) -> usize {
    // The last bit of the order of a key is set. The first bits select its range in the table.
    (order >> 1) as usize % SHARDS
}

impl<K, N: Notice> Queues<K, N> {
    /// No queues.
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let mut shards = Vec::new();
        reserve(&mut shards, SHARDS)?;
        shards.extend((0..SHARDS).map(|_| {
            Mutex::new(Shard {
                closed: false,
                next_number: 1,
                queues: SortedList::default(),
            })
        }));
        Ok(Self {
            shards,
            waiting: AtomicUsize::new(0),
            max_waiting: AtomicUsize::new(usize::MAX),
            handed_over: AtomicU64::new(0),
        })
    }

    /// Requests that wait, of all keys together.
    pub(crate) fn len(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// A place for one more request, if the table has one. Threads that have different shards locked compete for it.
    fn place(&self) -> Option<Place<'_>> {
        let limit = self.max_waiting.load(Relaxed);
        let more = |waiting| (waiting < limit).then_some(waiting + 1);
        let taken = self.waiting.fetch_update(Relaxed, Relaxed, more);
        taken.ok().map(|_| Place(&self.waiting))
    }

    /// Requests that were granted so far.
    pub(crate) fn handed_over(&self) -> u64 {
        self.handed_over.load(Relaxed)
    }

    pub(crate) fn set_max_waiting(&self, max_waiting: usize) {
        self.max_waiting.store(max_waiting, Relaxed);
    }

    /// Copies the queues of one shard, from an order on. Returns where to continue: `None` beyond the last shard.
    pub(crate) fn copy<'a>(
        &self,
        _pin: &'a Pin,
        (shard, from): (usize, u64),
        lines: &mut Vec<(&'a Node<K>, Line)>,
    ) -> Result<Option<(usize, u64)>, OutOfMemory> {
        let index = shard;
        let Some(shard) = self.shards.get(index) else {
            return Ok(None);
        };
        let shard = shard.lock();
        let mut last = from;
        for (read, queue) in shard.queues.from(from).enumerate() {
            if read >= QUEUES_PER_PIECE && queue.order > last {
                return Ok(Some((index, queue.order)));
            }
            last = queue.order;
            let heads = queue.lanes.iter().map(Lane::first);
            if let Some(oldest) = heads.min_by_key(|first| first.number) {
                let line = Line {
                    waiting: queue.len,
                    oldest: oldest.holder.word(),
                    since: oldest.since,
                };
                reserve(lines, 1)?;
                // SAFETY: it has a queue (K6), and the shard is locked. The node lives as long as the pin.
                lines.push((unsafe { &*queue.node.as_ptr() }, line));
            }
        }
        Ok(Some((index + 1, 0)))
    }

    /// Requests that wait for a node.
    pub(crate) fn len_of(&self, node: &Node<K>) -> usize {
        let shard = self.shards[index(node.order())].lock();
        shard.queue(node).map_or(0, |queue| queue.len)
    }
}

impl<'a, K, N: Notice> Parts<'a, K, N> {
    /// Locks the queue of the key of this order.
    pub(crate) fn lock(self, order: u64) -> Locked<'a, K, N> {
        self.lock_shard(index(order))
    }

    fn lock_shard(self, index: usize) -> Locked<'a, K, N> {
        Locked {
            shard: self.queues.shards[index].lock(),
            queues: self.queues,
            ledger: self.ledger,
        }
    }

    /// Lowers the count of a node by permits that are on no record any more, or hands them to waiters.
    #[cold]
    pub(crate) fn hand_over(self, node: &Node<K>, permits: u64, here: N::Here<'_>) {
        let mut hand = InHand { node, permits };
        if seeded("w2_lowered_before_handed_over") {
            hand.release();
        }
        self.settle(&mut hand, here);
    }

    /// Settles the queue of a node. It is locked for a bounded time at once.
    fn settle(self, hand: &mut InHand<'_, K>, here: N::Here<'_>) {
        loop {
            let mut shard = self.lock(hand.node.order());
            let settled = shard.settle(hand, here);
            drop(shard);
            if settled {
                return;
            }
        }
    }

    /// Ends a request if `is_it` accepts its notice. Returns false if it does not wait any more.
    ///
    /// # Safety
    /// The pin is older than the reading of the wait from the ledger.
    pub(crate) unsafe fn cancel(
        self,
        _pin: &Pin,
        wait: &Wait<K>,
        is_it: impl Fn(&N) -> bool,
        here: N::Here<'_>,
    ) -> bool {
        // SAFETY: the node was alive when the wait was read (LG1), and is not freed while the pin lasts.
        let node = unsafe { wait.node.as_ref() };
        let mut shard = self.lock(node.order());
        let is_wanted = |queue: &Queue<K, N>| {
            let mut lanes = queue.lanes.iter();
            let is_it = |waiter: &Waiter<N>| is_it(&waiter.notice);
            lanes.any(|lane| lane.waiters.find(wait.number, is_it).is_some())
        };
        if !shard.shard.queue(node).is_some_and(is_wanted) {
            return false;
        }
        inject::panic();
        if seeded("w3_cancelled_without_the_lock") {
            drop(shard);
            shard = self.lock(node.order());
        }
        let Some(collected) = shard.take(node, wait.number, drop) else {
            return seeded("w3_cancelled_without_the_lock");
        };
        let forgotten = seeded("w4_collected_forgotten");
        let mut hand = InHand {
            node,
            permits: if forgotten { 0 } else { collected },
        };
        if seeded("w1_cancel_settles_nothing") {
            hand.release();
            shard.end_if_empty(node);
            return true;
        }
        if !shard.settle(&mut hand, here) {
            drop(shard);
            self.settle(&mut hand, here);
        } else if seeded("w2_bit_cleared_without_the_lock") && !shard.has_queue(node) {
            node.buckets.set_waiters();
            drop(shard);
            node.buckets.clear_waiters();
        }
        true
    }

    /// Gives a piece of the waiters of a node another capacity: the oldest of those that began to wait before `before`.
    /// Returns whether there are more.
    pub(crate) fn resize(
        self,
        node: &Node<K>,
        capacity: Capacity,
        before: u64,
        here: N::Here<'_>,
    ) -> Result<bool, OutOfMemory> {
        let mut shard = self.lock(node.order());
        let mut hand = InHand { node, permits: 0 };
        shard.take_collected(node, &mut hand);
        let steps = STEPS.div_ceil(shard.cost_of_step(node));
        let moved = shard.shard.with(node, |queue| {
            for _ in 0..steps {
                inject::panic();
                if !queue.move_oldest(capacity, before)? {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        if !shard.settle(&mut hand, here) {
            drop(shard);
            self.settle(&mut hand, here);
        }
        moved.unwrap_or(Ok(false))
    }

    /// Ends up to `limit` requests, because the table closes. Returns whether none is left. No request starts to wait
    /// after the first call, until [`Parts::reopen`].
    pub(crate) fn close(self, limit: usize, here: N::Here<'_>) -> bool {
        for index in 0..SHARDS {
            self.lock_shard(index).shard.closed = true;
        }
        let mut ended = 0;
        for index in 0..SHARDS {
            let mut shard = self.lock_shard(index);
            while let Some((node, number)) = shard.any() {
                if ended == limit {
                    return false;
                }
                ended += 1;
                inject::panic();
                // SAFETY: it has a queue (K6).
                let node = unsafe { node.as_ref() };
                let tell = |notice: N| notice.tell(here, Told::Closed);
                let permits = shard.take(node, number, tell).expect("found above");
                let mut hand = InHand { node, permits };
                // The table can be reopened before all have ended, so W1 must hold for the others.
                let settled = shard.settle(&mut hand, here);
                if !settled || ended % STEPS == 0 {
                    // Other calls that need the lock run in between.
                    drop(shard);
                    self.settle(&mut hand, here);
                    shard = self.lock_shard(index);
                }
            }
        }
        true
    }

    /// Requests can wait again.
    pub(crate) fn reopen(self) {
        for index in 0..SHARDS {
            self.lock_shard(index).shard.closed = false;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_have_different_locks() {
        let orders = (0..SHARDS as u64).map(|order| order << 1 | 1);
        let indexes: BTreeSet<usize> = orders.map(index).collect();
        assert_eq!(indexes, (0..SHARDS).collect());
    }

    /// The limit holds for threads that have looked at it before the other one took a place.
    #[test]
    fn places_are_limited() {
        let queues = Queues::<u64, NoNotice>::new().unwrap();
        queues.set_max_waiting(1);
        let place = queues.place();
        assert!(place.is_some() && queues.place().is_none());
        drop(place);
        assert_eq!(queues.len(), 0);
        assert!(queues.place().is_some());
    }
}
