//! The queues of all keys: one per key that a request waits for (`queue.rs`), and how permits get to their waiters.
//!
//! A waiter is granted its permits by **settling** its queue. A call that releases permits of a key with a queue locks
//! the queue and settles it with these permits undistributed: they go to waiters without being released in between.
//! Only what no waiter can have lowers the count. So the count of the key, which callers of acquire see, does not fall
//! while a permit is handed over, and no caller can take the permit of a waiter.
//!
//! # Invariants
//!
//! - **W1** While the lock is free and no call for the key is running, no waiter could be granted its permits. For the
//!   candidate of each lane, `count + permits - collected > capacity`, and for the oldest candidate
//!   `count >= capacity`. (For a shared key, `CountSeen::out` and `Capacity::SHARED`.) A table that closes is an
//!   exception.
//! - **W2** WAITERS is set if and only if the key has a queue or lost permits, and changes only under the lock. While
//!   it is set, the count decreases only under the lock. (Callers with a larger capacity can increase it.)
//! - **W3** A request leaves the queue once, under the lock: it is granted, cancelled, or its table closes. Its
//!   message, if it gets one, is sent under the lock of its process's overflow, in the same step in which it leaves
//!   that record. `cancel` looks for it there. So a process that finds its request gone has the message.
//! - **W4** Only the oldest candidate has collected permits. They are on the record of its process, too.
//! - **W5** A waiter enters the queue after it is on its process's record (`overflow.rs`), and leaves the record under
//!   the lock of the queue. A death takes all requests of its process out of the queues before it releases what is on
//!   record, and before the slot is vacated. So settling need not know whether the process of a waiter is alive: what
//!   it credits is released by the death.
//! - **W6** Permits are undistributed only during one call, which cannot be interrupted. If it panics, they are
//!   released without being handed over.
//! - **W7** Permits of a shared key can be *lost*: they are on the record of their process, and not in the count. The
//!   shard of the key has how many these are (`lost.rs`): of a process, at most as many as on its record, with those of
//!   a release that waits for the lock. A release takes lost permits first. So it lowers the count only by what that
//!   includes.

use crate::holders::coarse;
use crate::keys::Node;
use crate::lost::Lost;
use crate::memory::{reserve, OutOfMemory};
use crate::overflow::{Overflow, Wait};
use crate::permit_count::{Capacity, CountSeen};
use crate::queue::{Pick, Queue, Spent, Waiter};
use crate::shared_word::Share;
use crate::slot::Slot;
use crate::sorted_list::SortedList;
use crate::sync::{sized, Mutex, MutexGuard};
use crate::{epochs::Pin, inject};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Locks of the queues: more than the schedulers of large machines, so two keys with queues rarely share one. Each
/// takes 48 bytes.
const SHARDS: usize = sized(2, 4, 256);

/// Grants, or steps of another kind, after which the lock is free for a moment: about 50 µs.
const STEPS: usize = sized(2, 64, 64);

/// Lanes whose comparison takes as long as the rest of a step.
const LANES_PER_STEP: usize = 16;

/// Queues that are copied while their shard is locked: at most 50 µs.
const QUEUES_PER_PIECE: usize = 256;

/// The queue of a key, as inspections see it.
#[derive(Debug)]
pub struct QueueInfo<'a, K> {
    /// The key.
    pub key: &'a K,
    /// Requests that wait.
    pub waiting: usize,
    /// The identity word of the process that has waited longest.
    pub oldest: u64,
    /// When that process began to wait: [`WaitRequest::now`](crate::WaitRequest::now).
    pub since: u64,
}

/// Sends the end of a request to its process.
pub trait Notice: Send + 'static {
    /// What a call needs in order to send it: the environment of the call.
    type Context<'a>: Copy;

    /// The time in microseconds, by a clock that never goes back. [`WaitRequest::now`](crate::WaitRequest::now) is from
    /// the same clock.
    fn now_us() -> u64;

    /// Sends it. Called under locks, so it must not call the table. A process that is not alive any more gets nothing,
    /// which is no error.
    fn send(self, context: Self::Context<'_>, end: WaitEnd);
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Its process has the permits. The number of permits in use at that instant, these included.
    Granted(u64),
    /// The table closes.
    Closed,
}

/// Sends nothing: for tables in which no request waits.
impl Notice for () {
    type Context<'a> = ();

    fn now_us() -> u64 {
        0
    }

    fn send(self, (): (), _end: WaitEnd) {}
}

/// The queue of a node.
struct KeyQueue<K, N> {
    node: NonNull<Node<K>>,
    queue: Queue<K, N>,
}

// SAFETY: it points to a node that is alive (K6), and nodes are shared between threads.
unsafe impl<K: Send + Sync, N: Send> Send for KeyQueue<K, N> {}

impl<K, N> KeyQueue<K, N> {
    fn is_of(&self, node: &Node<K>) -> bool {
        ptr::eq(self.node.as_ptr(), node)
    }
}

struct Shard<K, N> {
    /// No request starts to wait here any more, and none is granted.
    closed: bool,
    next_number: u64,
    /// By the sort keys of their keys.
    queues: SortedList<KeyQueue<K, N>>,
    lost: Lost,
}

/// The queues of all keys of a table.
pub(crate) struct Queues<K, N> {
    shards: Vec<Mutex<Shard<K, N>>>,
    /// Requests that wait, of all keys together.
    waiting: AtomicUsize,
    pub(crate) max_waiting: AtomicUsize,
    /// Requests that were granted so far.
    pub(crate) handed_over: AtomicU64,
    /// How long the requests have waited that were granted or timed out.
    pub(crate) wait_us: AtomicU64,
    /// The longest of these waits, since it was taken.
    pub(crate) longest_wait_us: AtomicU64,
}

/// The queues of one shard, locked.
pub(crate) struct QueueGuard<'a, K, N: Notice> {
    shard: MutexGuard<'a, Shard<K, N>>,
    queues: &'a Queues<K, N>,
}

/// Permits of a process can be lost, while the queue of their key is locked (W7).
pub(crate) struct Losing<'a, 'l, K, N: Notice> {
    guard: &'l mut QueueGuard<'a, K, N>,
    node: &'l Node<K>,
    word: u64,
}

impl<'a, 'l, K, N: Notice> Losing<'a, 'l, K, N> {
    /// Permits can be lost if the share of the key has ended, or others are lost already. Memory for one more process
    /// is reserved.
    pub(crate) fn of(
        guard: &'l mut QueueGuard<'a, K, N>,
        node: &'l Node<K>,
        word: u64,
    ) -> Result<Option<Self>, OutOfMemory> {
        let can_lose = match node.count.read().is_ended() {
            true => node.count.set_waiters(),
            false => guard.shard.lost.has(node),
        };
        if !can_lose {
            return Ok(None);
        }
        let losing = Self { guard, node, word };
        losing.guard.shard.lost.reserve(node, word)?;
        Ok(Some(losing))
    }

    /// All permits on the record of the process are lost. Returns how many of them were not.
    pub(crate) fn lose(&mut self, held: u64) -> u64 {
        let lost = &mut self.guard.shard.lost;
        let more = held.saturating_sub(lost.of(self.node, self.word));
        lost.add(self.node, self.word, more);
        self.node.count.release_locked(more);
        more
    }

    /// The process gets permits from another one. They stay lost, and all are if the share has ended.
    pub(crate) fn receive(&mut self, giver: u64, permits: u64) {
        let lost = &mut self.guard.shard.lost;
        let already = permits.min(lost.of(self.node, giver));
        let all = match self.node.count.read().is_ended() {
            true => permits,
            false => already,
        };
        lost.add(self.node, self.word, all);
        lost.take(self.node, giver, already);
        self.node.count.release_locked(all - already);
    }
}

impl<K, N: Notice> Drop for Losing<'_, '_, K, N> {
    fn drop(&mut self) {
        self.guard.shard.lost.take(self.node, self.word, 0);
        self.guard.end_if_empty(self.node);
    }
}

/// Permits that are counted and on no record (W6). On drop they are released.
pub(crate) struct Undistributed<'a, K> {
    pub(crate) node: &'a Node<K>,
    pub(crate) permits: u64,
}

impl<K> Undistributed<'_, K> {
    /// Lowers the count by them.
    fn release(&mut self) {
        let permits = mem::take(&mut self.permits);
        if permits > 0 {
            self.node.count.release_locked(permits);
        }
    }
}

impl<K> Drop for Undistributed<'_, K> {
    fn drop(&mut self) {
        self.release();
    }
}

/// A request that is counted and does not wait yet. On drop it is not counted any more.
struct Reservation<'a>(&'a AtomicUsize);

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl<K, N> Shard<K, N> {
    fn queue(&self, node: &Node<K>) -> Option<&Queue<K, N>> {
        let found = self.queues.find(node.sort_key(), |of| of.is_of(node))?;
        Some(&found.queue)
    }

    fn queue_mut(&mut self, node: &Node<K>) -> Option<&mut Queue<K, N>> {
        let found = self.queues.find_mut(node.sort_key(), |of| of.is_of(node))?;
        Some(&mut found.queue)
    }
}

fn slot_of<'a, K, N>(waiter: &Waiter<K, N>) -> &'a Slot<K> {
    // SAFETY: it exists until the request has ended (W5), and callers use it under the lock of the queue.
    unsafe { &*waiter.slot.as_ptr().cast_const() }
}

/// Takes the permits that a waiter has collected off its record.
fn take_collected<K, N>(node: &Node<K>, queue: &mut Queue<K, N>) -> u64 {
    if let Some((collector, collected)) = queue.collector() {
        let mut record = overflow_of(collector).lock();
        record.return_collected(node, collected);
    }
    queue.take_collected()
}

fn overflow_of<'a, K, N>(waiter: &Waiter<K, N>) -> &'a Overflow<K> {
    let overflow = slot_of(waiter).overflow();
    overflow.expect("made before the request waits")
}

impl<K, N: Notice> QueueGuard<'_, K, N> {
    /// Whether a request is refused because `max_waiting` requests wait for the key, or requests with too many
    /// different capacities, or because the table is full.
    pub(crate) fn is_full(
        &self,
        node: Option<&Node<K>>,
        capacity: Capacity,
        max_waiting: usize,
    ) -> bool {
        let queue = node.and_then(|node| self.shard.queue(node));
        queue.map_or(0, |queue| queue.len) >= max_waiting
            || queue.is_some_and(|queue| !queue.has_room(capacity))
            || self.queues.len() >= self.queues.max_waiting.load(Relaxed)
    }

    /// Whether the table closes.
    pub(crate) fn is_closed(&self) -> bool {
        self.shard.closed
    }

    /// Gives a node a queue, if it has none. If `set` is called, it must set WAITERS of the node that it returns. If it
    /// returns `None`, nothing has changed.
    pub(crate) fn open<'n>(
        &mut self,
        sort_key: u64,
        set: impl FnOnce() -> Option<&'n Node<K>>,
    ) -> Result<Option<&'n Node<K>>, OutOfMemory> {
        let vacancy = self.shard.queues.reserve(sort_key)?;
        let node = set();
        if let Some(node) = node {
            vacancy.insert(KeyQueue {
                node: node.into(),
                queue: Queue::default(),
            });
        }
        Ok(node)
    }

    pub(crate) fn has_queue(&self, node: &Node<K>) -> bool {
        self.shard.queue(node).is_some()
    }

    /// Ends the queue of a node if no request waits. Without lost permits, releases need no lock any more.
    pub(crate) fn end_if_empty(&mut self, node: &Node<K>) {
        if self.shard.queue(node).is_some_and(|queue| queue.len > 0) {
            return;
        }
        let queues = &mut self.shard.queues;
        queues.remove(node.sort_key(), |of| of.is_of(node));
        if node.count.has_waiters() && !self.shard.lost.has(node) {
            node.count.clear_waiters();
        }
    }

    /// Queues a request for a node with a queue. Returns its number, or `None` if the table is full.
    pub(crate) fn push(
        &mut self,
        node: &Node<K>,
        capacity: Capacity,
        waiter: Waiter<K, N>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let Some(reservation) = self.queues.reservation() else {
            return Ok(None);
        };
        let number = self.shard.next_number;
        let (record, hash) = (overflow_of(&waiter), waiter.request_hash);
        let add = || record.lock().add_wait(node, hash, number);
        let queue = self.shard.queue_mut(node).expect("it has a queue");
        queue.push(capacity, number, waiter, add)?;
        self.shard.next_number += 1;
        mem::forget(reservation);
        Ok(Some(number))
    }

    /// Distributes permits, and free ones, to the waiters of a node. What no waiter can have lowers the count. Returns
    /// false if it has made [`STEPS`] steps and more follow.
    pub(crate) fn settle(
        &mut self,
        permits: &mut Undistributed<'_, K>,
        context: N::Context<'_>,
    ) -> bool {
        let node = permits.node;
        let mut steps = STEPS;
        loop {
            inject::panic();
            let closed = self.is_closed();
            let seen = node.count.read();
            let (pick, lanes) = match self.shard.queue_mut(node) {
                // It is not dead (K6).
                Some(queue) if !closed => {
                    let out = seen.out() - permits.permits;
                    (queue.pick(out, &mut steps), queue.lanes())
                }
                _ => (Ok(None), 0),
            };
            let pick = match pick {
                Ok(Some(pick)) => pick,
                Ok(None) => {
                    permits.release();
                    self.end_if_empty(node);
                    return true;
                }
                Err(Spent) => return false,
            };
            // Not before: the queue is not empty while the lock is free.
            if steps == 0 {
                return false;
            }
            let here = pick.permits.min(permits.permits);
            if pick.permits > here && !node.count.acquire_locked(seen, pick.permits - here) {
                // A caller has acquired or was refused in between. That is no step: one that collects must not end
                // without it.
                continue;
            }
            steps = steps.saturating_sub(1 + lanes / LANES_PER_STEP);
            // From here to the credit nothing can fail or panic.
            let in_use = seen.in_use() - permits.permits + pick.permits;
            permits.permits -= here;
            self.grant(node, pick, in_use, context);
        }
    }

    /// Gives permits to a waiter. If it then has all its permits, its process gets the message.
    fn grant(&mut self, node: &Node<K>, pick: Pick, in_use: u64, context: N::Context<'_>) {
        let queue = self.shard.queue_mut(node).expect("picked from it");
        let now_us = N::now_us();
        if !pick.is_last {
            queue.collect(pick);
            let collector = queue.picked(pick);
            let mut record = overflow_of(collector).lock();
            slot_of(collector).begin(|| coarse(now_us));
            return record.collect(node, pick.permits);
        }
        let removed = queue.remove(pick.number);
        let (waiter, collected) = removed.expect("picked under the same lock");
        let mut record = overflow_of(&waiter).lock();
        slot_of(&waiter).begin(|| coarse(now_us));
        record.return_collected(node, collected);
        record.end_wait(node, waiter.request_hash, pick.number, waiter.permits);
        // Before the message: with it, its process does not find the request among those that wait.
        self.queues.waiting.fetch_sub(1, Relaxed);
        self.queues.handed_over.fetch_add(1, Relaxed);
        self.queues.count_wait(waiter.since, now_us);
        // Under both locks (W3).
        waiter.notice.send(context, WaitEnd::Granted(in_use));
    }

    /// Removes a waiter, and calls `end` with its notice. Returns the permits that it had collected, which are
    /// undistributed now.
    fn take(&mut self, node: &Node<K>, number: u64, end: impl FnOnce(N)) -> Option<u64> {
        let (waiter, collected) = self.shard.queue_mut(node)?.remove(number)?;
        let mut record = overflow_of(&waiter).lock();
        record.return_collected(node, collected);
        record.end_wait(node, waiter.request_hash, number, 0);
        // As in `grant`.
        self.queues.waiting.fetch_sub(1, Relaxed);
        // Under both locks (W3).
        end(waiter.notice);
        Some(collected)
    }

    /// Removes a waiter, and releases the permits that it had collected, without settling.
    pub(crate) fn withdraw(&mut self, node: &Node<K>, number: u64, end: impl FnOnce(N)) {
        let permits = self.take(node, number, end).unwrap_or(0);
        Undistributed { node, permits }.release();
        self.end_if_empty(node);
    }

    /// A waiter, and the node that it waits for.
    fn any(&mut self) -> Option<(NonNull<Node<K>>, u64)> {
        loop {
            let (_, of) = self.shard.queues.from(0).next()?;
            let node = of.node;
            if let Some((number, _)) = of.queue.oldest() {
                return Some((node, *number));
            }
            // A panic has left it.
            // SAFETY: it has a queue (K6).
            self.end_if_empty(unsafe { node.as_ref() });
        }
    }
}

/// The shard of a key.
fn index(sort_key: u64) -> usize {
    // The last bit of the sort key of a key is set. The first bits select its range in the table.
    (sort_key >> 1) as usize % SHARDS
}

impl<K, N: Notice> Queues<K, N> {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let mut shards = Vec::new();
        reserve(&mut shards, SHARDS)?;
        shards.extend((0..SHARDS).map(|_| {
            Mutex::new(Shard {
                closed: false,
                next_number: 1,
                queues: SortedList::default(),
                lost: Lost::default(),
            })
        }));
        Ok(Self {
            shards,
            waiting: AtomicUsize::new(0),
            max_waiting: AtomicUsize::new(usize::MAX),
            handed_over: AtomicU64::new(0),
            wait_us: AtomicU64::new(0),
            longest_wait_us: AtomicU64::new(0),
        })
    }

    /// Requests that wait, of all keys together.
    pub(crate) fn len(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Counts the wait of a request that ends now.
    pub(crate) fn count_wait(&self, since: u64, now_us: u64) {
        let wait_us = now_us.saturating_sub(since);
        self.wait_us.fetch_add(wait_us, Relaxed);
        self.longest_wait_us.fetch_max(wait_us, Relaxed);
    }

    /// Counts one more request, if the table has room. Threads that have different shards locked compete for it.
    fn reservation(&self) -> Option<Reservation<'_>> {
        let limit = self.max_waiting.load(Relaxed);
        let more = |waiting| (waiting < limit).then_some(waiting + 1);
        let taken = self.waiting.fetch_update(Relaxed, Relaxed, more);
        taken.ok().map(|_| Reservation(&self.waiting))
    }

    /// Requests that wait for a node.
    pub(crate) fn len_of(&self, node: &Node<K>) -> usize {
        let guard = self.lock(node.sort_key());
        guard.shard.queue(node).map_or(0, |queue| queue.len)
    }

    /// Copies the queues of one shard, from a sort key on. Returns where to continue: `None` beyond the last shard.
    pub(crate) fn copy<'a>(
        &self,
        _pin: &'a Pin,
        (index, from): (usize, u64),
        queues: &mut Vec<QueueInfo<'a, K>>,
    ) -> Result<Option<(usize, u64)>, OutOfMemory> {
        let Some(shard) = self.shards.get(index) else {
            return Ok(None);
        };
        let shard = shard.lock();
        let mut last = from;
        for (read, &(sort_key, ref of)) in shard.queues.from(from).enumerate() {
            if read >= QUEUES_PER_PIECE && sort_key > last {
                return Ok(Some((index, sort_key)));
            }
            last = sort_key;
            if let Some((_, oldest)) = of.queue.oldest() {
                reserve(queues, 1)?;
                queues.push(QueueInfo {
                    // SAFETY: it has a queue (K6), and the shard is locked. The node lives as long as the pin.
                    key: unsafe { &(*of.node.as_ptr()).key },
                    waiting: of.queue.len,
                    oldest: oldest.id,
                    since: oldest.since,
                });
            }
        }
        Ok(Some((index + 1, 0)))
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn has_lost(&self, sort_key: u64) -> bool {
        !self.lock(sort_key).shard.lost.is_empty()
    }

    /// Locks the queue of the key of this sort key.
    pub(crate) fn lock(&self, sort_key: u64) -> QueueGuard<'_, K, N> {
        self.lock_shard(index(sort_key))
    }

    fn lock_shard(&self, index: usize) -> QueueGuard<'_, K, N> {
        QueueGuard {
            shard: self.shards[index].lock(),
            queues: self,
        }
    }

    /// Lowers the count of a node by permits that are on no record any more, or hands them to waiters. What its process
    /// has lost is not counted.
    #[cold]
    pub(crate) fn hand_over(
        &self,
        node: &Node<K>,
        word: u64,
        mut permits: u64,
        context: N::Context<'_>,
    ) {
        let mut guard = self.lock(node.sort_key());
        permits -= guard.shard.lost.take(node, word, permits);
        self.settle_locked(guard, &mut Undistributed { node, permits }, context);
    }

    /// Settles the queue of a node. It is locked for a bounded time at once, at first by the caller.
    pub(crate) fn settle_locked<'a>(
        &'a self,
        mut guard: QueueGuard<'a, K, N>,
        permits: &mut Undistributed<'_, K>,
        context: N::Context<'_>,
    ) {
        while !guard.settle(permits, context) {
            drop(guard);
            guard = self.lock(permits.node.sort_key());
        }
    }

    /// Ends a request if `is_it` accepts its notice. Returns when it began to wait, or `None` if it does not wait any
    /// more.
    ///
    /// # Safety
    /// The pin is older than the reading of the wait from the record of its process.
    pub(crate) unsafe fn cancel(
        &self,
        _pin: &Pin,
        (number, node): Wait<K>,
        is_it: impl Fn(&N) -> bool,
        context: N::Context<'_>,
    ) -> Option<u64> {
        // SAFETY: the node was alive when the wait was read (O1), and is not freed while the pin lasts.
        let node = unsafe { node.as_ref() };
        let mut guard = self.lock(node.sort_key());
        let waiter = guard.shard.queue(node)?.find(number)?;
        if !is_it(&waiter.notice) {
            return None;
        }
        let since = waiter.since;
        inject::panic();
        let permits = guard.take(node, number, drop).expect("found above");
        self.settle_locked(guard, &mut Undistributed { node, permits }, context);
        Some(since)
    }

    /// Gives all waiters of a node another capacity, in one step, and settles the queue once. Returns whether it is
    /// settled, or `None` if there are more than `most` waiters. Then nothing has changed.
    pub(crate) fn resize(
        &self,
        node: &Node<K>,
        capacity: Capacity,
        most: usize,
        context: N::Context<'_>,
    ) -> Option<bool> {
        let mut guard = self.lock(node.sort_key());
        let Some(queue) = guard.shard.queue_mut(node) else {
            return Some(true);
        };
        if queue.len > most {
            return None;
        }
        let permits = take_collected(node, queue);
        queue.resize(capacity);
        // Declared behind the guard, so it is dropped before.
        let mut permits = Undistributed { node, permits };
        Some(guard.settle(&mut permits, context))
    }

    /// Changes the share and the limit of a shared key. Its waiter that has collected permits loses them, and the queue
    /// is settled for a bounded time. Returns the number of permits in use after that, and whether it is settled, or
    /// `None` if the node is dead.
    pub(crate) fn set_share(
        &self,
        node: &Node<K>,
        share: &Share,
        context: N::Context<'_>,
    ) -> Option<(u64, bool)> {
        let mut guard = self.lock(node.sort_key());
        let queue = guard.shard.queue_mut(node);
        let (permits, has_waiters) = queue.map_or((0, false), |queue| {
            let permits = take_collected(node, queue);
            queue.set_limit(share.limit);
            (permits, true)
        });
        // Declared behind the guard, so it is dropped before.
        let mut permits = Undistributed { node, permits };
        permits.permits += node.count.set_share(share, has_waiters)?;
        let is_settled = guard.settle(&mut permits, context);
        permits.release();
        // The sweep can have reclaimed it since.
        Some((node.count.permits().unwrap_or(0), is_settled))
    }

    /// The word of a node, the length of its queue, and [`Queue::need`], all at one instant.
    pub(crate) fn need_of(&self, node: &Node<K>) -> (CountSeen, usize, (u64, u64)) {
        let guard = self.lock(node.sort_key());
        let queue = guard.shard.queue(node);
        let (waiting, need) = queue.map_or((0, (0, 0)), |queue| (queue.len, queue.need()));
        (node.count.read(), waiting, need)
    }

    /// Settles the queue of a node for a bounded time. Returns whether it is settled.
    pub(crate) fn settle_step(&self, node: &Node<K>, context: N::Context<'_>) -> bool {
        let permits = 0;
        let mut nothing = Undistributed { node, permits };
        self.lock(node.sort_key()).settle(&mut nothing, context)
    }

    /// Ends up to `limit` requests, because the table closes. Returns whether none is left. After the first call no
    /// request starts to wait and none is granted, until [`Queues::reopen`].
    pub(crate) fn close(&self, limit: usize, context: N::Context<'_>) -> bool {
        for index in 0..SHARDS {
            self.lock_shard(index).shard.closed = true;
        }
        let mut ended = 0;
        for index in 0..SHARDS {
            let mut guard = self.lock_shard(index);
            while let Some((node, number)) = guard.any() {
                if ended == limit {
                    return false;
                }
                ended += 1;
                inject::panic();
                // SAFETY: it has a queue (K6).
                let node = unsafe { node.as_ref() };
                guard.withdraw(node, number, |notice| notice.send(context, WaitEnd::Closed));
                if ended % STEPS == 0 {
                    // Other calls that need the lock run in between.
                    drop(guard);
                    guard = self.lock_shard(index);
                }
            }
        }
        true
    }

    /// Requests can wait again. None waits.
    pub(crate) fn reopen(&self) {
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
        let orders = (0..SHARDS as u64).map(|sort_key| sort_key << 1 | 1);
        let indexes: BTreeSet<usize> = orders.map(index).collect();
        assert_eq!(indexes, (0..SHARDS).collect());
    }

    /// The limit holds for threads that have looked at it before the other one took a place.
    #[test]
    fn reservations_are_limited() {
        let queues = Queues::<u64, ()>::new().unwrap();
        queues.max_waiting.store(1, Relaxed);
        let reservation = queues.reservation();
        assert!(reservation.is_some() && queues.reservation().is_none());
        drop(reservation);
        assert_eq!(queues.len(), 0);
        assert!(queues.reservation().is_some());
    }
}
