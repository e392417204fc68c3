//! Input of postcard that accepts numbers in their shortest form only.
//!
//! A number in a longer form ends in a byte 00 after a byte with the highest bit set. postcard reads numbers, flags
//! and tags of `Option` byte by byte, and the bytes of a name in one call. A flag or tag with the highest bit set is
//! an error anyway. A byte 00 after a byte with that bit set therefore always ends such a number. (A field of type
//! `u8` or `i8` would break this rule. There is none.)

use postcard::de_flavors::Flavor;
use postcard::{Error, Result};

/// The bytes of a frame that are not read yet.
pub(super) struct Input<'a> {
    left: &'a [u8],
    /// The last byte that [`Flavor::pop`] returned.
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
    /// The number of bytes left.
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

    /// postcard compares the hint with the count of a list, and passes no hint to the list's reader if the count is
    /// higher.
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
