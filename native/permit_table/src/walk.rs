//! A walk over the slots of all processes, in bounded pieces, for inspections.

use crate::holder::Holder;
use crate::holders::{Holders, CHUNK};
use crate::memory::OutOfMemory;
use crate::reading::{Permits, Wanted};
use crate::slot::Slot;

/// Slots that are read in one piece: about a millisecond. With fewer, a reader spends most of its time rescheduling.
const SLOTS_PER_PIECE: usize = 64 * CHUNK;

/// A piece ends after this many rows.
const ROWS_PER_PIECE: usize = 4096;

/// The position of a walk over the holders; [`Cursor::default`] is the start. Any value is safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The array of slots, or the displaced slots.
    pub part: u64,
    /// The next slot: its index in the array, otherwise its word.
    pub slot: u64,
    /// The order to continue from in that slot.
    pub order: u64,
}

/// [`Cursor::part`]. Any other value is that of the displaced slots.
const ARRAY: u64 = 0;
const DISPLACED: u64 = 1;

impl Cursor {
    fn of(part: u64, slot: u64) -> Self {
        let order = 0;
        Self { part, slot, order }
    }
}

impl<K> Holders<K> {
    /// Appends a piece of what a process holds, from this order on. Returns the order to continue from.
    pub(crate) fn read_one<'a>(
        &self,
        wanted: Wanted<'a, K>,
        holder: Holder,
        from: u64,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let start = rows.len();
        let Ok((slot, _lock)) = self.search(holder, Slot::holder) else {
            return Ok(None);
        };
        let next = slot.read(wanted, from, rows)?;
        // The slot can have got another process in between.
        if rows[start..].iter().any(|row| row.holder != holder.word()) {
            rows.truncate(start);
        }
        Ok(next)
    }

    /// Appends a piece of what all processes hold, of all keys or of one, from the cursor on. Returns where to
    /// continue. After the array come the displaced slots.
    pub(crate) fn read_from<'a>(
        &self,
        wanted: Wanted<'a, K>,
        mut cursor: Cursor,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        let mut slots_read = 0;
        while cursor.part == ARRAY {
            let index = cursor.slot as usize;
            let Some(slots) = self.slots.rest_of_chunk(index) else {
                cursor = self.next_chunk(index);
                continue;
            };
            for slot in slots {
                if slots_read >= SLOTS_PER_PIECE || rows.len() >= ROWS_PER_PIECE {
                    return Ok(Some(cursor));
                }
                if let Some(order) = slot.read(wanted, cursor.order, rows)? {
                    return Ok(Some(Cursor { order, ..cursor }));
                }
                slots_read += 1;
                cursor = Cursor::of(ARRAY, cursor.slot + 1);
            }
        }
        self.read_displaced(wanted, cursor, rows)
    }

    /// The start of the next chunk that exists.
    fn next_chunk(&self, index: usize) -> Cursor {
        let mut chunks = index / CHUNK..self.slots.chunk_count();
        let next = chunks.find(|chunk| self.slots.chunk(*chunk).is_some());
        next.map_or(Cursor::of(DISPLACED, 0), |chunk| {
            Cursor::of(ARRAY, (chunk * CHUNK) as u64)
        })
    }

    fn read_displaced<'a>(
        &self,
        wanted: Wanted<'a, K>,
        mut cursor: Cursor,
        rows: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<Cursor>, OutOfMemory> {
        loop {
            if rows.len() >= ROWS_PER_PIECE {
                return Ok(Some(cursor));
            }
            let displaced = self.displaced.lock();
            let Some(next) = displaced.from(cursor.slot).next() else {
                return Ok(None);
            };
            if next.word > cursor.slot {
                cursor = Cursor::of(DISPLACED, next.word);
            }
            // SAFETY: slots are freed under this lock.
            let slot = unsafe { next.slot.as_ref() };
            if let Some(order) = slot.read(wanted, cursor.order, rows)? {
                return Ok(Some(Cursor { order, ..cursor }));
            }
            let Some(word) = cursor.slot.checked_add(1) else {
                return Ok(None);
            };
            cursor = Cursor::of(DISPLACED, word);
        }
    }
}
