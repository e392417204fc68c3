//! Reads the slots of other processes, for inspections. The head of `slot.rs` proves that it may.

use crate::epochs::Pin;
use crate::holders::TIME_UNIT_US;
use crate::keys::Node;
use crate::memory::{reserve, OutOfMemory};
use crate::overflow::OverflowGuard;
use crate::slot::{InlineKey, Slot};
use crate::sync::Ordering;
use std::ptr;

/// How often an inline key is read while it changes during the read. After that it is left out: its process acquires
/// and releases without a pause, and holds none of these keys all the time. Any number is correct: with more, fewer
/// keys are left out, and a reader can take longer.
const READ_ATTEMPTS: usize = 8;

/// Rows of one overflow that are copied while its lock is held: about 50 µs.
const ROWS_PER_PIECE: usize = 1024;

/// Permits of one key that one holder has.
#[derive(Debug)]
pub struct Permits<'a, K> {
    /// The identity word of the holder.
    pub holder: u64,
    /// The key.
    pub key: &'a K,
    /// The number of permits.
    pub permits: u64,
    /// When the holder began to hold permits of any key, in microseconds, by the clock of
    /// [`Notice::now_us`](crate::Notice::now_us). Too late by up to one interval of
    /// [`Table::advance_clock`](crate::Table::advance_clock).
    pub since: u64,
}

/// Keys, each with its permits.
type Counted<'a, K> = Vec<(&'a Node<K>, u64)>;

impl<K> InlineKey<K> {
    /// Node and permits at one instant, if there are permits.
    fn read<'a>(&self, _pin: &'a Pin) -> Option<(&'a Node<K>, u64)> {
        for _ in 0..READ_ATTEMPTS {
            let before = self.node.load(Ordering::Acquire);
            // Acquire: H2.
            let permits = self.permits.load(Ordering::Acquire);
            if permits == 0 {
                return None;
            }
            let node = self.node.load(Ordering::Acquire);
            // Otherwise permits of one key could be reported for the next.
            if ptr::eq(before, node) {
                // SAFETY: read under the pin, after permits > 0: see "Reading slots of other processes".
                return Some((unsafe { &*node }, permits));
            }
        }
        None
    }
}

impl<K> Slot<K> {
    /// Appends a row for each key of its process, or for `only` one: for one piece of the keys whose sort key is at
    /// least `from`. Returns the sort key at which the next piece begins, if there is one. While the overflow is
    /// copied, a call that needs it waits for its lock.
    pub(crate) fn read<'a>(
        &self,
        pin: &'a Pin,
        only: Option<&'a Node<K>>,
        from: u64,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let start = rows.len();
        loop {
            rows.truncate(start);
            let Some(holder) = self.settled_holder() else {
                return Ok(None);
            };
            let overflow = self.overflow();
            let record = overflow.map(|overflow| overflow.lock());
            let (keys, next) = self.keys(pin, only, from, record.as_ref())?;
            // A key can have moved to an overflow that has just been made.
            let is_complete = record.is_some() || self.overflow().is_none();
            drop(record);
            let since = u64::from(self.since()) * TIME_UNIT_US;
            reserve(rows, keys.len())?;
            rows.extend(keys.into_iter().map(|(node, permits)| Permits {
                holder,
                key: &node.key,
                permits,
                since,
            }));
            // Otherwise its process has died. Another process may have the slot now, or the slot is RETIRING and may
            // keep its word.
            if is_complete && holder == self.holder() {
                return Ok(next);
            }
        }
    }

    /// The permits of one key, with what a request has collected. `None` if another process has the slot, or the slot
    /// is RETIRING: the caller may have a lock, so it does not wait for that.
    pub(crate) fn permits_of(
        &self,
        pin: &Pin,
        node: &Node<K>,
        word: u64,
    ) -> Result<Option<u64>, OutOfMemory> {
        let before = self.holder();
        let record = self.overflow().map(|overflow| overflow.lock());
        let (keys, _) = self.keys(pin, Some(node), 0, record.as_ref())?;
        let is_complete = record.is_some() || self.overflow().is_none();
        let is_same = before == word && self.holder() == word;
        Ok((is_complete && is_same).then(|| keys.iter().map(|(_, permits)| permits).sum()))
    }

    /// The permits of one piece of the keys, and the sort key at which the next one begins. A piece covers a range
    /// of sort keys, in the slot and in the overflow. So a key that moves between two pieces is reported once.
    fn keys<'a>(
        &self,
        pin: &'a Pin,
        only: Option<&'a Node<K>>,
        from: u64,
        record: Option<&OverflowGuard<'_, K>>,
    ) -> Result<(Counted<'a, K>, Option<u64>), OutOfMemory> {
        let (from, to) = only.map_or((from, u64::MAX), |only| (only.sort_key(), only.sort_key()));
        // A key that is released and acquired again can move from the first inline key to the second during this. It
        // must not be reported twice: the later read counts.
        let [first, second] = self.inline.each_ref().map(|key| key.read(pin));
        let is_moved =
            |(node, _): &(&Node<K>, u64)| second.is_some_and(|(other, _)| ptr::eq(other, *node));
        let mut inline = [first.filter(|first| !is_moved(first)), second];
        let mut keys = Vec::new();
        let mut end = to;
        let mut last = from;
        let listed = record.iter().flat_map(|record| record.rows(from));
        let listed = listed.take_while(|(sort_key, _)| *sort_key <= to);
        for (copied, &(sort_key, ref row)) in listed.enumerate() {
            if copied >= ROWS_PER_PIECE && sort_key > last {
                end = sort_key - 1;
                break;
            }
            last = sort_key;
            let here = inline.iter_mut();
            let here = here.filter_map(|key| key.take_if(|(node, _)| row.is_of(node)));
            let permits = row.counted() + here.map(|(_, permits)| permits).sum::<u64>();
            if permits > 0 {
                reserve(&mut keys, 1)?;
                // SAFETY: on record with permits while this thread has the lock (O1), so alive while the pin lasts.
                keys.push((unsafe { &*row.node.as_ptr().cast_const() }, permits));
            }
        }
        reserve(&mut keys, inline.len())?;
        keys.extend(inline.into_iter().flatten());
        let is_in_piece = |node: &Node<K>| (from..=end).contains(&node.sort_key());
        keys.retain(|(node, _)| is_in_piece(node) && only.is_none_or(|only| ptr::eq(only, *node)));
        Ok((keys, (end < to).then(|| end + 1)))
    }
}
