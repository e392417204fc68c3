//! Who holds what: looking at a table from outside, a bounded piece at a time.
//!
//! All of it is exact at quiet points and a fair snapshot otherwise: what was so all the time of a walk is told once,
//! what came or went meanwhile may be told or not, and nothing is told that was never so (unless it changed there and
//! back between two loads). A process that inherits (`holders.rs`) goes on with what the dead one held, and of two
//! processes with one word, of which one is dead, both may be told. Only two kinds of holders wait for it: one of more
//! than two keys, while the list of its keys is copied or searched, and one whose place is taken (H4). It waits where a
//! callback decides whose a slot is (H1), for microseconds. What all of it comes to is no matter of this module:
//! [`Table::usage`] adds it up without looking at any key.

use crate::epochs;
use crate::holders::{Cursor, Holder};
use crate::keys::Key;
use crate::out_of_memory::OutOfMemory;
use crate::slot::Permits;
use crate::table::Table;
use equivalent::Equivalent;
use std::hash::Hash;

/// To tell a key of so many bytes on the heap takes about as long as a small one.
const BYTES_PER_KEY: usize = 1024;

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
        self.keys.walk(&pin, after, |node, reached| {
            // A run of one order is looked at as a whole: the next piece begins behind it. A marked link of a smaller
            // order may come first, and no piece ends where it began.
            if seen >= limit.max(1) && reached > last && last > after {
                next = Some(last);
                return false;
            }
            seen += 1;
            last = reached;
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

    /// Calls `visit` with a piece of what the holders have, from the cursor on: with the permits of some ten thousand
    /// places for processes, or some thousand keys. What one holder has comes in a row, which may be continued by the
    /// next piece. Returns where to go on, or nothing at the end.
    ///
    /// # Errors
    /// [`OutOfMemory`]: nothing has been visited then.
    pub fn permits_from(
        &self,
        cursor: Cursor,
        visit: impl FnMut(Permits<'_, K>),
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let pin = epochs::pin();
        let mut seen = Vec::new();
        let next = self.holders.gather_from(&pin, cursor, None, &mut seen)?;
        seen.into_iter().for_each(visit);
        Ok(next)
    }

    /// Whether a process that was visited as a holder is still known. If not, it has died since, and its permits have
    /// been released. `visit` may ask.
    pub fn knows(&self, holder: Holder) -> bool {
        self.holders.has(holder)
    }

    /// As [`Table::permits_from`], of one key only.
    ///
    /// # Errors
    /// As there.
    pub fn holders_from<Q: Hash + Equivalent<K>>(
        &self,
        cursor: Cursor,
        query: &Q,
        visit: impl FnMut(Permits<'_, K>),
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let pin = epochs::pin();
        let Some(wanted) = self.keys.get(&pin, self.order(query), query) else {
            return Ok(None);
        };
        let mut seen = Vec::new();
        let next = self
            .holders
            .gather_from(&pin, cursor, Some(wanted), &mut seen)?;
        seen.into_iter().for_each(visit);
        Ok(next)
    }

    /// Calls `visit` with a piece of what one holder has, some thousand keys at most; `from` is 0 at first. Returns
    /// from where to go on, or nothing at the end.
    ///
    /// # Errors
    /// [`OutOfMemory`]: nothing has been visited then.
    pub fn held(
        &self,
        holder: Holder,
        from: u64,
        visit: impl FnMut(Permits<'_, K>),
    ) -> Result<Option<u64>, OutOfMemory> {
        let pin = epochs::pin();
        let mut seen = Vec::new();
        let next = self.holders.gather(&pin, holder, from, &mut seen)?;
        seen.into_iter().for_each(visit);
        Ok(next)
    }
}
