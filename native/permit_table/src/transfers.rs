//! Several permits at once, and permits that a holder gives to another process.

use crate::counters::Event;
use crate::epochs::Pin;
use crate::holder::Holder;
use crate::keys::{Key, Node};
use crate::ledger::Gift;
use crate::memory::OutOfMemory;
use crate::queues::Notice;
use crate::slot::{NotHeld, Slot};
use crate::table::Table;
use equivalent::Equivalent;
use std::hash::Hash;
use std::num::NonZeroU64;

/// The result of [`Table::give`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The other process has the permits.
    Given,
    /// The giver has fewer. Nothing has changed.
    NotHeld,
    /// The other process is not alive. Nothing has changed.
    NotAlive,
}

impl<K: Key, N: Notice> Table<K, N> {
    /// Releases several permits of a key: all or none.
    ///
    /// # Errors
    /// [`NotHeld`] if the holder has fewer: nothing has changed.
    ///
    /// # Cost
    /// As [`Table::release`], plus a lock of the ledger, and 0.5 µs per waiter that is granted.
    pub fn release_many<Q: Hash + Equivalent<K>>(
        &self,
        pin: &Pin,
        holder: Holder,
        query: &Q,
        permits: NonZeroU64,
        here: N::Here<'_>,
    ) -> Result<(), NotHeld> {
        let permits = permits.get();
        let Some(node) = self.held_at_least(holder, query, permits) else {
            self.counters.count(pin, Event::NotHeld);
            return Err(NotHeld);
        };
        let slot = self.holders.find(holder);
        let taken = slot.map_or(0, |slot| slot.take(node, permits));
        if taken < permits {
            let rest = permits - taken;
            self.ledger.take(holder, node, rest);
        }
        self.counters.add(pin, Event::Released, permits);
        self.lower(node, permits, here);
        Ok(())
    }

    /// Gives permits of a key to another process: all or none. The count does not change, so no waiter is affected.
    ///
    /// `watch` is called if `target` was never given a permit and has never waited. It must ensure that
    /// [`Table::release_all`] is called after the death of `target`, and happens before that call. It returns false if
    /// `target` is not alive. It must not call this table.
    ///
    /// # Errors
    /// [`OutOfMemory`] (as an `E`), or the error of `watch`. Then nothing has changed.
    ///
    /// # Cost
    /// About 0.2 µs: two locks of the ledger.
    pub fn give<Q: Hash + Equivalent<K>, E: From<OutOfMemory>>(
        &self,
        pin: &Pin,
        giver: Holder,
        target: Holder,
        query: &Q,
        permits: NonZeroU64,
        watch: impl FnOnce() -> Result<bool, E>,
    ) -> Result<Given, E> {
        let permits = permits.get();
        let Some(node) = self.held_at_least(giver, query, permits) else {
            return Ok(Given::NotHeld);
        };
        if giver.word() == target.word() {
            return Ok(Given::Given);
        }
        let slot = self.holders.find(giver);
        let from_slot = || slot.map_or(0, |slot: &Slot<K>| slot.take(node, permits));
        let gift = Gift {
            node,
            permits,
            is_apart: !self.holders.has(target),
        };
        if !self.ledger.give(giver, target, gift, from_slot, watch)? {
            return Ok(Given::NotAlive);
        }
        let event = Event::Transferred;
        self.counters.add(pin, event, permits);
        Ok(Given::Given)
    }

    /// The node of a key, if the holder has at least `permits` of it. Only calls of the holder can make it fewer.
    fn held_at_least<Q: Hash + Equivalent<K>>(
        &self,
        holder: Holder,
        query: &Q,
        permits: u64,
    ) -> Option<&Node<K>> {
        let order = self.order(query);
        let slot = self.holders.find(holder);
        let own = slot.and_then(|slot| slot.held(query, order));
        let credited = self.ledger.held(holder, query, order);
        let held = own.into_iter().chain(credited);
        let (node, held) = held.reduce(|(node, permits), (_, more)| (node, permits + more))?;
        if held < permits {
            return None;
        }
        // SAFETY: the holder has permits of it (K6), and keeps them during this call.
        Some(unsafe { node.as_ref() })
    }
}
