//! Who holds what: looking at a table from outside, a bounded piece at a time.
//!
//! All of it is exact at quiet points and a fair snapshot otherwise: what was so all the time of a walk is told once,
//! what came or went meanwhile may be told or not, and nothing is told that was never so (unless it changed there and
//! back between two loads). Nobody waits for it but a holder of more than two keys, while the list of its keys is
//! copied or searched, and those whose place is taken (H4). What all of it comes to is no matter of this module:
//! [`Table::usage`] adds it up without looking at any key.

use crate::epochs;
use crate::holders::Holder;
use crate::keys::Key;
use crate::memory::OutOfMemory;
use crate::table::Table;
use equivalent::Equivalent;
use std::hash::Hash;

/// To tell a key of so many bytes on the heap takes about as long as a small one.
const BYTES_PER_KEY: usize = 1024;

/// How far a walk over the holders has come; [`Cursor::default`] is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(usize);

impl Cursor {
    /// As a number, to be kept where there are only numbers.
    pub fn to_number(self) -> u64 {
        self.0 as u64
    }

    /// The inverse of [`Cursor::to_number`]. Any number is safe.
    pub fn from_number(number: u64) -> Self {
        Self(number.try_into().unwrap_or(usize::MAX))
    }
}

/// Permits of one key that one holder has.
#[derive(Debug)]
pub struct Permits<'a, K> {
    /// The identity word of the holder.
    pub holder: u64,
    /// The key.
    pub key: &'a K,
    /// How many.
    pub permits: u64,
}

impl<K: Key> Table<K> {
    /// Calls `visit` with keys that have permits out and with their number, in an order that never changes, from
    /// the first one behind `after` on (0 is before all). Looks at about `limit` keys, idle ones included and large
    /// ones counted as several; answers from where to go on, or nothing at the end.
    pub fn keys_after(
        &self,
        after: u64,
        limit: usize,
        mut visit: impl FnMut(&K, u64),
    ) -> Option<u64> {
        let pin = epochs::pin();
        let mut next = None;
        let mut seen = 0;
        let mut last = after;
        self.keys.walk(&pin, after, |node, order| {
            // A run of one order is looked at as a whole: the next piece begins behind it.
            if seen >= limit.max(1) && order != last {
                next = Some(last);
                return false;
            }
            seen += 1;
            last = order;
            // SAFETY: found under the pin.
            let node = unsafe { node.as_ref() };
            match node.buckets.permits() {
                None | Some(0) => {}
                Some(out) => {
                    seen += node.key.heap_bytes() / BYTES_PER_KEY;
                    visit(&node.key, out);
                }
            }
            true
        });
        next
    }

    /// Calls `visit` with the permits of the next thousands of places for processes that have ever been used; the last
    /// piece has what is held by those without a place of their own. Answers where to go on, or nothing at the end. A
    /// piece is as long as what is held in a thousand places, at least.
    ///
    /// # Errors
    /// [`OutOfMemory`]: nothing has been visited then.
    pub fn permits_from(
        &self,
        cursor: Cursor,
        mut visit: impl FnMut(Permits<'_, K>),
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let pin = epochs::pin();
        let mut seen = Vec::new();
        let next = self.holders.gather_from(&pin, cursor.0, None, &mut seen)?;
        for seen in &seen {
            visit(Permits {
                holder: seen.holder,
                key: &seen.node.key,
                permits: seen.permits,
            });
        }
        Ok(next.map(Cursor))
    }

    /// As [`Table::permits_from`], of one key only: calls `visit` with the holder's identity word and the number of
    /// permits.
    ///
    /// # Errors
    /// As there.
    pub fn holders_from<Q: Hash + Equivalent<K>>(
        &self,
        cursor: Cursor,
        query: &Q,
        mut visit: impl FnMut(u64, u64),
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let pin = epochs::pin();
        let Some(wanted) = self.keys.get(&pin, self.order(query), query) else {
            return Ok(None);
        };
        let mut seen = Vec::new();
        let next = self
            .holders
            .gather_from(&pin, cursor.0, Some(wanted), &mut seen)?;
        for seen in &seen {
            visit(seen.holder, seen.permits);
        }
        Ok(next.map(Cursor))
    }

    /// Calls `visit` with what one holder has.
    ///
    /// # Errors
    /// [`OutOfMemory`]: nothing has been visited then.
    ///
    /// # Cost
    /// O(keys held).
    pub fn held(&self, holder: Holder, mut visit: impl FnMut(&K, u64)) -> Result<(), OutOfMemory> {
        let pin = epochs::pin();
        let mut seen = Vec::new();
        self.holders.gather(&pin, holder, &mut seen)?;
        for seen in &seen {
            visit(&seen.node.key, seen.permits);
        }
        Ok(())
    }
}
