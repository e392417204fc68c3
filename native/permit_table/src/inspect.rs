//! Inspection: reads which holders have which permits, in bounded pieces.
//!
//! The result is exact if no call changes the table during the walk. Otherwise it is a fair snapshot:
//! - What stays unchanged during the whole walk is reported once. What changes during the walk may be reported or not.
//! - Nothing is reported that was never true, except for a value that changes and changes back between two loads.
//! - A process that inherits (`holder.rs`) keeps what the dead process held. Of two processes with the same word, one
//!   of them dead, both may be reported.
//!
//! Only two kinds of holders wait for an inspection. A holder of more than two keys, or of permits that other threads
//! have recorded, waits while its overflow is copied. A holder whose place is taken (H4) waits while a displaced slot
//! is read. The inspection itself can wait some microseconds for a callback that decides about a slot (H1).
//!
//! The totals are not computed here: [`Table::usage`] adds them up without a walk over the keys.

use crate::holder::Holder;
use crate::keys::Key;
use crate::queues::{Notice, QueueInfo};
use crate::reading::Permits;
use crate::walk::Cursor;
use crate::{epochs, memory::OutOfMemory, table::Table};
use equivalent::Equivalent;
use std::hash::Hash;

/// A key with this many bytes on the heap takes about as long to report as a small one.
const BYTES_PER_KEY: usize = 1024;

impl<K: Key, N: Notice> Table<K, N> {
    /// Calls `visit` with keys that have permits in use, and with the number of these permits. The sort key of the keys
    /// never changes. The first key is the one after `after`; 0 is before all keys. Reads about `limit` keys: idle keys
    /// count, large keys count as several. Returns where to continue, or `None` at the end.
    pub fn keys_after(
        &self,
        after: u64,
        limit: usize,
        mut visit: impl FnMut(&K, u64),
    ) -> Option<u64> {
        let pin = epochs::pin();
        let mut next = None;
        let mut read = 0;
        let mut last = after;
        self.keys.walk(&pin, after, |node, reached| {
            // Keys of the same sort key are read in one piece, so the next piece can start after that sort key. A
            // marked link of a smaller sort key can come first. Each piece ends after the sort key at which it started.
            if read >= limit.max(1) && reached > last && last > after {
                next = Some(last);
                return false;
            }
            read += 1;
            last = reached;
            // SAFETY: found under the pin.
            let node = unsafe { node.as_ref() };
            match node.count.permits() {
                None | Some(0) => {}
                Some(in_use) => {
                    read += node.key.heap_bytes() / BYTES_PER_KEY;
                    visit(&node.key, in_use);
                }
            }
            true
        });
        next
    }

    /// Calls `visit` with a piece of what all holders have, from the cursor on. A piece covers about 65,000 slots (a
    /// displaced one counts as 16), or some 4,000 keys if these come first. The rows of one holder follow each other,
    /// and may continue in the next piece. Returns where to continue, or `None` at the end.
    ///
    /// # Errors
    /// [`OutOfMemory`]: `visit` has not been called.
    pub fn permits_from(
        &self,
        cursor: Cursor,
        visit: impl FnMut(Permits<'_, K>),
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let pin = epochs::pin();
        let mut rows = Vec::new();
        let next = self.holders.read_from(&pin, None, cursor, &mut rows)?;
        rows.into_iter().for_each(visit);
        Ok(next)
    }

    /// Whether a process that was visited as a holder still has a slot. If not, it has died since, and its permits have
    /// been released. `visit` may call this.
    pub fn knows(&self, holder: Holder) -> bool {
        self.holders.has(holder)
    }

    /// As [`Table::permits_from`], for one key only.
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
        let Some(node) = self.keys.get(&pin, self.sort_key(query), query) else {
            return Ok(None);
        };
        let mut rows = Vec::new();
        let next = self
            .holders
            .read_from(&pin, Some(node), cursor, &mut rows)?;
        rows.into_iter().for_each(visit);
        Ok(next)
    }

    /// Calls `visit` with a piece of the keys that requests wait for, from a position on; at first `(0, 0)`. Returns
    /// where to continue, or `None` at the end.
    ///
    /// # Errors
    /// [`OutOfMemory`]: `visit` has not been called.
    pub fn queues_from(
        &self,
        from: (usize, u64),
        mut visit: impl FnMut(&K, QueueInfo),
    ) -> Result<Option<(usize, u64)>, OutOfMemory> {
        let pin = epochs::pin();
        let mut queues = Vec::new();
        let next = self.queues.copy(&pin, from, &mut queues)?;
        let queues = queues.into_iter();
        queues.for_each(|(node, info)| visit(&node.key, info));
        Ok(next)
    }

    /// Calls `visit` with a piece of what one holder has: about 1,000 keys at most. `from` is 0 for the first piece.
    /// Returns where to continue, or `None` at the end.
    ///
    /// # Errors
    /// [`OutOfMemory`]: `visit` has not been called.
    pub fn held(
        &self,
        holder: Holder,
        from: u64,
        visit: impl FnMut(Permits<'_, K>),
    ) -> Result<Option<u64>, OutOfMemory> {
        let pin = epochs::pin();
        let mut rows = Vec::new();
        let next = self.holders.read_one(&pin, holder, from, &mut rows)?;
        rows.into_iter().for_each(visit);
        Ok(next)
    }
}
