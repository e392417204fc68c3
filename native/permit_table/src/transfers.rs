//! Permits that a holder gives to another process.

use crate::counters::Event;
use crate::epochs::Pin;
use crate::holder::Holder;
use crate::keys::Key;
use crate::memory::OutOfMemory;
use crate::overflow::lock_both;
use crate::queues::{Losing, Notice};
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
    /// Gives permits of a key to another process: all or none. The count does not change, so no waiter is affected.
    ///
    /// `watch` is called if `target` has no slot: it has not called the table, and was never given a permit. It must
    /// ensure that [`Table::release_all`] is called after the death of `target`, and happens before that call. It
    /// returns false if `target` is not alive. It must not call this table.
    ///
    /// # Errors
    /// [`OutOfMemory`] (as an `E`), or the error of `watch`. Then nothing has changed.
    ///
    /// # Cost
    /// About 0.2 µs: the locks of two overflows, and for a shared key that of its queue.
    pub fn give<Q: Hash + Equivalent<K>, E: From<OutOfMemory>>(
        &self,
        pin: &Pin,
        giver: Holder,
        target: Holder,
        query: &Q,
        permits: NonZeroU64,
        mut watch: impl FnMut() -> Result<bool, E>,
    ) -> Result<Given, E> {
        let permits = permits.get();
        let Some((own, node)) = self.held_at_least(giver, query, permits) else {
            return Ok(Given::NotHeld);
        };
        if giver.id() == target.id() {
            return Ok(Given::Given);
        }
        loop {
            let Some((slot, _lock)) = self.holders.slot_of_other(target, &mut watch)? else {
                return Ok(Given::NotAlive);
            };
            let overflow = slot.overflow_or_new()?;
            // Its permits can be lost (W7).
            let is_shared = node.count.read().share().is_some();
            let mut queue = is_shared.then(|| self.queues.lock(node.sort_key()));
            let (own_record, mut record) =
                lock_both((own.overflow(), giver.id()), (overflow, target.id()));
            if slot.holder() != target.id() {
                // The process has died since, and its slot may have got another one (O2).
                continue;
            }
            let losing = queue
                .as_mut()
                .map(|queue| Losing::of(queue, node, target.id()));
            let losing = losing.transpose()?.flatten();
            record.reserve(node)?;
            slot.begin(|| self.holders.now());
            // From here on nothing can fail or panic.
            let rest = permits - own.take_inline(node, permits);
            if let Some(mut own_record) = own_record.filter(|_| rest > 0) {
                own_record.take(node, rest);
            }
            record.credit(node, permits);
            if let Some(mut losing) = losing {
                losing.receive(giver.id(), permits);
            }
            break;
        }
        self.counters.add(pin, Event::Transferred, permits);
        Ok(Given::Given)
    }
}
