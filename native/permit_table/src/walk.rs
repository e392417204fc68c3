//! A walk over the slots of all processes, in bounded pieces, for inspections.

use crate::epochs::Pin;
use crate::holder::Holder;
use crate::holders::{Holders, CHUNK};
use crate::memory::OutOfMemory;
use crate::reading::Permits;
use crate::{keys::Node, slot::Slot};

/// Slots that are read in one piece: about a millisecond. With fewer, a reader spends most of its time rescheduling.
const SLOTS_PER_PIECE: usize = 64 * CHUNK;

/// A displaced slot takes as long as this many others: each takes a lock and a search.
const SLOTS_PER_DISPLACED: usize = 16;

/// A piece ends after this many rows.
const ROWS_PER_PIECE: usize = 4096;

/// The position of a walk over the holders: in the array of slots (0) or in the displaced slots; the index of the next
/// slot, or its word; and the sort key to continue from in that slot. The default is the start. Any value is safe.
pub type Cursor = (u64, u64, u64);

const ARRAY: u64 = 0;
const DISPLACED: u64 = 1;

impl<K> Holders<K> {
    /// Adds to the empty list a piece of what a process holds, from this sort key on. Returns the sort key to continue
    /// from.
    pub(crate) fn read_one<'a>(
        &self,
        pin: &'a Pin,
        holder: Holder,
        from: u64,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let Ok((slot, _lock)) = self.search(holder, Slot::holder) else {
            return Ok(None);
        };
        let next = slot.read(pin, None, from, rows)?;
        // The slot can have got another process in between.
        if rows.iter().any(|row| row.holder != holder.id()) {
            rows.clear();
        }
        Ok(next)
    }

    /// Appends a piece of what all processes hold, of all keys or of one, from the cursor on. Returns where to
    /// continue. After the array come the displaced slots.
    pub(crate) fn read_from<'a>(
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
        for chunk in index / CHUNK..self.slots.chunk_count() {
            index = index.max(chunk * CHUNK);
            let slots = self.slots.chunk(chunk).unwrap_or_default();
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
            let displaced = self.displaced.lock();
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
