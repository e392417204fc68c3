//! Shared keys: keys whose limit is divided among several tables (`shared_word.rs`).
//!
//! Their permits are held, released and given as those of other keys. Only the decision differs: a call is granted from
//! the share of this table, which [`Table::set_share`] sets.

use crate::epochs::Pin;
use crate::holder::Holder;
use crate::inspect::Piece;
use crate::keys::{Key, NewNode, Node, Query};
use crate::memory::OutOfMemory;
use crate::permit_count::{Acquired, Capacity, Demand, PermitCount};
use crate::queues::{Losing, Notice};
use crate::shared_word::Share;
use crate::slot::Slot;
use crate::sync::yield_now;
use crate::table::Table;
use equivalent::Equivalent;
use std::hash::Hash;

/// What a table has and needs of a shared key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareUse {
    /// The number of permits that may be in use.
    pub share: u64,
    /// The capacity that the agent set last.
    pub passed: Option<Capacity>,
    /// The number of permits in use, with those that a waiter has collected.
    pub in_use: u64,
    /// Requests that wait.
    pub waiting: usize,
    /// How many more permits these need. The first of them that needs no more than the limit counts, and all behind it.
    /// Wrong until the queue is settled ([`Table::set_share`]).
    pub need: u64,
    /// How many permits that first one needs in all, or 0 if there is none.
    pub next: u64,
    /// Whether a call was refused since the last [`Table::take_share`].
    pub was_refused: bool,
    /// Whether a permit of the share was acquired since then. False without a share.
    pub was_used: bool,
}

impl<K: Key, N: Notice> Table<K, N> {
    /// Acquires permits of the share of a shared key for `holder`: all that are demanded, or none. Returns `None` if
    /// the agent has set another capacity than that of the demand, or the key is not shared. Then nothing has
    /// changed, and the caller must tell the agent its capacity.
    ///
    /// A refusal sets a mark for [`Table::take_share`], unless the demand is above the capacity. `watch` is as for
    /// [`Table::acquire`].
    ///
    /// # Errors
    /// [`OutOfMemory`] (as an `E`), or the error of `watch`. Then nothing has changed.
    ///
    /// # Cost
    /// As [`Table::acquire`].
    #[inline(always)]
    pub fn acquire_shared<Q: Hash + Equivalent<K>, E: From<OutOfMemory>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        demand: impl Into<Demand>,
        watch: impl FnOnce() -> Result<(), E>,
    ) -> Result<Option<Acquired>, E> {
        let (sort_key, mut demand) = (self.sort_key(query), demand.into());
        demand.capacity = demand.capacity.of_shared();
        let Some((node, seen)) = self.keys.get_with_word(pin, sort_key, query) else {
            return Ok(None);
        };
        if !seen.has_passed(demand.capacity) {
            return Ok(None);
        }
        if seen.admits_shared(demand).is_none() {
            if demand.is_satisfiable() {
                node.count.note_refusal(seen);
            }
            return Ok(Some(Acquired::Full));
        }
        let slot = self.holders.claim(holder, watch)?;
        let acquire = |count: &PermitCount| count.acquire_shared(demand);
        let acquired = self.acquire_node(slot, node, demand.permits, acquire)?;
        if acquired == Some(Acquired::Full) {
            node.count.note_refusal(node.count.read());
        }
        Ok(acquired)
    }

    /// Gives this table a share of a key: any number, also below the number of permits in use. These stay in use. The
    /// key is inserted if needed; then it is shared. The caller must never pass it to [`Table::acquire`] or
    /// [`Table::resize`], or to [`Table::wait`] without [`WaitRequest::is_shared`].
    ///
    /// A waiter loses the permits that it has collected. Then the call grants waiters for at most 50 µs. It returns the
    /// number of permits in use, and true if no other waiter can be granted. If it returns false, call
    /// [`Table::settle`] until that returns true. Until then, other callers can overtake the waiters.
    ///
    /// At most the returned number of permits, or the share if that is larger, is in use until the next call.
    ///
    /// [`WaitRequest::is_shared`]: crate::WaitRequest::is_shared
    ///
    /// # Errors
    /// [`OutOfMemory`], if the key is inserted. Then nothing has changed.
    ///
    /// # Cost
    /// 0.2 µs, and 0.5 µs per waiter that is granted.
    pub fn set_share<Q: Query<K>>(
        &self,
        pin: &Pin,
        query: &Q,
        share: &Share,
        context: N::Context<'_>,
    ) -> Result<(u64, bool), OutOfMemory> {
        let sort_key = self.sort_key(query);
        let mut new = None;
        loop {
            if let Some(node) = self.keys.get(pin, sort_key, query) {
                if let Some(set) = self.queues.set_share(node, share, context) {
                    return Ok(set);
                }
            }
            let made = match new.take() {
                Some(made) => made,
                None => NewNode::with(PermitCount::with_share(share), query, sort_key)?,
            };
            match self.keys.insert(pin, query, made) {
                Ok(_) => return Ok((0, true)),
                Err(returned) => new = Some(returned),
            }
        }
    }

    /// The permits of a shared key that `holder` holds are *lost* from now on: they stay on its record until it
    /// releases or gives them, and the count of the key leaves them out. A release takes lost permits first. Returns
    /// how many were not lost before.
    ///
    /// The share must have ended: the last call of [`Table::set_share`] has set the share 0, and no capacity. Otherwise
    /// nothing is lost. So no permit of a later share can be lost. While the share has ended, permits that are given
    /// are lost.
    ///
    /// If a call of the holder is running, a permit that it acquires, and one more for each that it releases, may not
    /// be lost.
    ///
    /// # Errors
    /// [`OutOfMemory`]. Then nothing has changed.
    ///
    /// # Cost
    /// 0.3 µs. Each release of the key takes a lock until all lost permits are released.
    pub fn lose<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
    ) -> Result<u64, OutOfMemory> {
        let Some(node) = self.keys.get(pin, self.sort_key(query), query) else {
            return Ok(0);
        };
        loop {
            if let Some(lost) = self.try_lose(pin, holder, node)? {
                return Ok(lost);
            }
            yield_now();
        }
    }

    /// `None`: the process has died, or its slot belongs to another one, or that is not decided yet. To decide it can
    /// need the locks that this call has.
    fn try_lose(
        &self,
        pin: &Pin,
        holder: Holder,
        node: &Node<K>,
    ) -> Result<Option<u64>, OutOfMemory> {
        // It keeps a displaced slot, and is locked before the queue (O3).
        let Ok((slot, _displaced)) = self.holders.search(holder, Slot::holder) else {
            return Ok(Some(0));
        };
        let mut guard = self.queues.lock(node.sort_key());
        if !node.count.read().is_ended() {
            return Ok(Some(0));
        }
        let Some(mut losing) = Losing::of(&mut guard, node, holder.id())? else {
            return Ok(Some(0));
        };
        // Not before WAITERS is set: now each release waits for the lock, if the record is not lower already.
        let held = slot.permits_of(pin, node, holder.id())?;
        Ok(held.map(|held| losing.lose(held)))
    }

    /// What the table has and needs of a shared key: `None` if it has no such key. Clears the marks of a refusal
    /// and of an acquire.
    ///
    /// # Cost
    /// 0.1 µs: a lock.
    pub fn take_share<Q: Hash + Equivalent<K>>(&self, pin: &Pin, query: &Q) -> Option<ShareUse> {
        let node = self.keys.get(pin, self.sort_key(query), query)?;
        let (was_refused, was_used) = node.count.take_marks();
        let (seen, waiting, (need, next)) = self.queues.need_of(node);
        Some(ShareUse {
            share: seen.share()?,
            passed: seen.passed(),
            in_use: seen.in_use(),
            waiting,
            need,
            next,
            was_refused,
            was_used,
        })
    }

    /// The shared keys, each with the share and the number of permits in use, as [`Table::keys_after`]. Includes those
    /// of which nothing is in use.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn shares_after<'a>(
        &'a self,
        pin: &'a Pin,
        after: u64,
        limit: usize,
    ) -> Result<Piece<(&'a K, u64, u64), u64>, OutOfMemory> {
        self.nodes_after(pin, after, limit, |node| {
            let seen = node.count.read();
            Some((&node.key, seen.share()?, seen.in_use()))
        })
    }
}
