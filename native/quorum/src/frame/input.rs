//! The bytes of a frame, as postcard reads them; and numbers in their shortest form only.
//!
//! A number that is longer than it need be ends in a byte of 00 behind one with the highest bit set. Postcard reads
//! numbers, flags and tags of `Option` byte by byte, the bytes of names all at once. A flag or a tag with the highest
//! bit set is an error anyway; so where a byte of 00 follows one with that bit set, it is the end of such a number.
//! (A field of the type `u8` or `i8` would spoil this. There is none.)

use postcard::de_flavors::Flavor;
use postcard::{Error, Result};

/// What is left of a frame.
pub(super) struct Input<'a> {
    left: &'a [u8],
    /// The last byte that was read by itself.
    last: u8,
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input {
            left: bytes,
            last: 0,
        }
    }
}

impl<'a> Flavor<'a> for Input<'a> {
    /// How many bytes are left.
    type Remainder = usize;
    type Source = &'a [u8];

    #[inline]
    fn pop(&mut self) -> Result<u8> {
        let (&byte, left) = self
            .left
            .split_first()
            .ok_or(Error::DeserializeUnexpectedEnd)?;
        if byte == 0 && self.last >= 0x80 {
            return Err(Error::DeserializeBadVarint);
        }
        (self.left, self.last) = (left, byte);
        Ok(byte)
    }

    /// Postcard compares it with the counts of lists: one that is higher is not told to whoever makes the list.
    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }

    #[inline]
    fn try_take_n(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, left) = self
            .left
            .split_at_checked(count)
            .ok_or(Error::DeserializeUnexpectedEnd)?;
        self.left = left;
        Ok(taken)
    }

    fn finalize(self) -> Result<usize> {
        Ok(self.left.len())
    }
}
