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

use crate::epochs::Pin;
use crate::holder::Holder;
use crate::holders::CHUNK;
use crate::keys::{Key, Node};
use crate::memory::{reserve, OutOfMemory};
use crate::queues::{Notice, QueueInfo};
use crate::reading::Permits;
use crate::{slot::Slot, table::Table};
use equivalent::Equivalent;
use std::hash::Hash;

/// A key with this many bytes on the heap takes about as long to report as a small one.
const BYTES_PER_KEY: usize = 1024;

/// Slots that are read in one piece: about a millisecond. With fewer, a reader spends most of its time rescheduling.
const SLOTS_PER_PIECE: usize = 64 * CHUNK;

/// A displaced slot takes as long as this many others: each takes a lock and a search.
const SLOTS_PER_DISPLACED: usize = 16;

/// A piece ends after this many rows.
const ROWS_PER_PIECE: usize = 4096;

/// A piece of an answer, and the position of the next one: `None` at the end.
pub type Piece<Row, Position> = (Vec<Row>, Option<Position>);

/// The position of a walk over the holders: in the array of slots (0) or in the displaced slots; the index of the next
/// slot, or its word; and the sort key to continue from in that slot. The default is the start. Any value is safe.
pub type Cursor = (u64, u64, u64);

const ARRAY: u64 = 0;
const DISPLACED: u64 = 1;

impl<K: Key, N: Notice> Table<K, N> {
    /// Keys that have permits in use and are not shared, each with the number of these permits. The sort key of a key
    /// never changes. The first key is the one after `after`; 0 is before all keys. Reads about `limit` keys: idle keys
    /// count, large keys count as several.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn keys_after<'a>(
        &'a self,
        pin: &'a Pin,
        after: u64,
        limit: usize,
    ) -> Result<Piece<(&'a K, u64), u64>, OutOfMemory> {
        self.nodes_after(pin, after, limit, |node| {
            let seen = node.count.read();
            let is_own = seen.share().is_none() && !seen.is_dead() && seen.in_use() > 0;
            is_own.then(|| (&node.key, seen.in_use()))
        })
    }

    /// What `select` returns for the keys after `after`.
    pub(crate) fn nodes_after<'a, T>(
        &'a self,
        pin: &'a Pin,
        after: u64,
        limit: usize,
        select: impl Fn(&'a Node<K>) -> Option<T>,
    ) -> Result<Piece<T, u64>, OutOfMemory> {
        let mut keys = Vec::new();
        let mut next = None;
        let mut reserved = Ok(());
        let mut read = 0;
        let mut last = after;
        self.keys.walk(pin, after, |node, reached| {
            // Keys of the same sort key are read in one piece, so the next piece can start after that sort key. A
            // marked link of a smaller sort key can come first. Each piece ends after the sort key at which it started.
            if read >= limit.max(1) && reached > last && last > after {
                next = Some(last);
                return false;
            }
            read += 1;
            last = reached;
            // SAFETY: found under the pin.
            let node = unsafe { &*node.as_ptr() };
            if let Some(selected) = select(node) {
                read += node.key.heap_bytes() / BYTES_PER_KEY;
                reserved = reserve(&mut keys, 1);
                if reserved.is_ok() {
                    keys.push(selected);
                }
            }
            reserved.is_ok()
        });
        reserved.map(|()| (keys, next))
    }

    /// What all holders have, from the cursor on. A piece covers about 65,000 slots (a displaced one counts as 16), or
    /// some 4,000 keys if these come first. The rows of one holder follow each other, and may continue in the next one.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn permits_from<'a>(
        &'a self,
        pin: &'a Pin,
        cursor: Cursor,
    ) -> Result<Piece<Permits<'a, K>, Cursor>, OutOfMemory> {
        let mut rows = Vec::new();
        let next = self.read_from(pin, None, cursor, &mut rows)?;
        Ok((rows, next))
    }

    /// Whether a process that was reported as a holder still has a slot. If not, it has died since, and its permits
    /// have been released.
    pub fn knows(&self, holder: Holder) -> bool {
        self.holders.search(holder, Slot::holder).is_ok()
    }

    /// As [`Table::permits_from`], for one key only.
    ///
    /// # Errors
    /// As there.
    pub fn holders_from<'a, Q: Hash + Equivalent<K>>(
        &'a self,
        pin: &'a Pin,
        cursor: Cursor,
        query: &Q,
    ) -> Result<Piece<Permits<'a, K>, Cursor>, OutOfMemory> {
        let mut rows = Vec::new();
        let next = match self.keys.get(pin, self.sort_key(query), query) {
            Some(node) => self.read_from(pin, Some(node), cursor, &mut rows)?,
            None => None,
        };
        Ok((rows, next))
    }

    /// The keys that requests wait for, from a position on; at first `(0, 0)`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn queues_from<'a>(
        &'a self,
        pin: &'a Pin,
        from: (usize, u64),
    ) -> Result<Piece<QueueInfo<'a, K>, (usize, u64)>, OutOfMemory> {
        let mut queues = Vec::new();
        let next = self.queues.copy(pin, from, &mut queues)?;
        Ok((queues, next))
    }

    /// What one holder has: about 1,000 keys at most, from this sort key on. It is 0 for the first piece.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn held<'a>(
        &'a self,
        pin: &'a Pin,
        holder: Holder,
        from: u64,
    ) -> Result<Piece<Permits<'a, K>, u64>, OutOfMemory> {
        let mut rows = Vec::new();
        let Ok((slot, _lock)) = self.holders.search(holder, Slot::holder) else {
            return Ok((rows, None));
        };
        let next = slot.read(pin, None, from, &mut rows)?;
        // The slot can have got another process in between.
        if rows.iter().any(|row| row.holder != holder.id()) {
            rows.clear();
        }
        Ok((rows, next))
    }

    /// Appends a piece of what all processes hold, of all keys or of one, from the cursor on. Returns where to
    /// continue. After the array come the displaced slots.
    fn read_from<'a>(
        &self,
        pin: &'a Pin,
        only: Option<&'a Node<K>>,
        (part, next, mut sort_key): Cursor,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        if part != ARRAY {
            return self.read_displaced(pin, only, next, sort_key, 0, rows);
        }
        let mut index = next as usize;
        let mut slots_read = 0;
        for chunk in index / CHUNK..self.holders.slots.chunk_count() {
            index = index.max(chunk * CHUNK);
            let slots = self.holders.slots.chunk(chunk).unwrap_or_default();
            for slot in slots.iter().skip(index % CHUNK) {
                if slots_read >= SLOTS_PER_PIECE || rows.len() >= ROWS_PER_PIECE {
                    return Ok(Some((ARRAY, index as u64, sort_key)));
                }
                if let Some(sort_key) = slot.read(pin, only, sort_key, rows)? {
                    return Ok(Some((ARRAY, index as u64, sort_key)));
                }
                slots_read += 1;
                (index, sort_key) = (index + 1, 0);
            }
        }
        self.read_displaced(pin, only, 0, 0, slots_read, rows)
    }

    fn read_displaced<'a>(
        &self,
        pin: &'a Pin,
        only: Option<&'a Node<K>>,
        mut word: u64,
        mut sort_key: u64,
        mut slots_read: usize,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        loop {
            if slots_read >= SLOTS_PER_PIECE || rows.len() >= ROWS_PER_PIECE {
                return Ok(Some((DISPLACED, word, sort_key)));
            }
            let displaced = self.holders.displaced.lock();
            let Some((next_word, next)) = displaced.from(word).next() else {
                return Ok(None);
            };
            if *next_word > word {
                (word, sort_key) = (*next_word, 0);
            }
            // SAFETY: slots are freed under this lock.
            let slot = unsafe { next.0.as_ref() };
            if let Some(sort_key) = slot.read(pin, only, sort_key, rows)? {
                return Ok(Some((DISPLACED, word, sort_key)));
            }
            let Some(following) = word.checked_add(1) else {
                return Ok(None);
            };
            slots_read += SLOTS_PER_DISPLACED;
            (word, sort_key) = (following, 0);
        }
    }
}
