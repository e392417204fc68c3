//! What is stored as a key: any term, compared by `=:=`.
//!
//! ```text
//!                shape                          words
//!   small        a tag per part, in a word      up to four words: what the parts are            (small.rs)
//!   encoded      LONG and the length            the address of the words of its encoding        (large.rs)
//!   copied       COPY                           environment, term, digest, size                 (large.rs)
//!   interned     INTERNED                       the address of one of the two above, shared     (interned.rs)
//! ```
//!
//! Which of the four a term becomes depends on nothing but the term, so equal terms become equal keys. The five
//! words leave just room for the three of a node on one cache line.

use crate::interned::Interned;
use permit_table::Key;
use rustler::sys::{enif_free_env, ErlNifEnv, ErlNifTerm};
use std::ptr;
use std::sync::Arc;

/// Tags of the parts of a key; one byte each. A shape is what its parts' tags are, first part highest.
pub(crate) mod tag {
    /// Followed by the word of an atom, a local pid or a small integer: the whole of the term.
    pub(crate) const IMMEDIATE: u64 = 1;
    /// Followed by the integer, 64 bits signed.
    pub(crate) const INTEGER: u64 = 2;
    /// Followed by the float's bits.
    pub(crate) const FLOAT: u64 = 3;
    /// The end of a proper list: not the same as `NIL`, or `[[a], []]` would read like `[[a, []]]`.
    pub(crate) const END: u64 = 4;
    /// The empty list.
    pub(crate) const NIL: u64 = 5;
    /// Not a part: an encoded key. The bits above are its length in words.
    pub(crate) const LONG: u64 = 6;
    /// Not a part: a copied key.
    pub(crate) const COPY: u64 = 7;
    /// Followed by the elements of a list, and by `END` or by `TAIL` and the tail.
    pub(crate) const LIST: u64 = 8;
    /// Followed by the tail of an improper list.
    pub(crate) const TAIL: u64 = 9;
    /// Followed by as many bytes as the bits above say.
    pub(crate) const BYTES: u64 = 10;
    /// Followed by as many elements as the bits above say.
    pub(crate) const ELEMENTS: u64 = 11;
    /// In a copied key's digest: followed by the sum of the pairs' digests.
    pub(crate) const MAP: u64 = 12;
    /// In a copied key's digest: followed by a hash of what only the VM can look into.
    pub(crate) const OPAQUE: u64 = 13;
    /// Not a part: an interned key.
    pub(crate) const INTERNED: u64 = 14;
    /// `TUPLE + N`: a tuple of N parts, in a small key.
    pub(crate) const TUPLE: u64 = 0x10;
    /// `BINARY + N`: a binary of N bytes, in a small key.
    pub(crate) const BINARY: u64 = 0x40;

    /// A tag with a number above it.
    pub(crate) const fn sized(tag: u64, size: usize) -> u64 {
        tag | (size as u64) << 8
    }
}

/// What an environment with a copied term in it costs at least, in bytes (measured on OTP 25).
const ENVIRONMENT_BYTES: usize = 2400;

/// A stored key.
#[repr(C)]
pub(crate) struct TermKey {
    shape: u64,
    words: [u64; 4],
}

impl TermKey {
    /// A small key; of the words those that the shape does not speak of are 0.
    pub(crate) fn small(shape: u64, words: [u64; 4]) -> Self {
        Self { shape, words }
    }

    /// Is it the small key of this shape and these words? Word by word: wider reads of what has just been written
    /// word by word would stall.
    #[inline(always)]
    pub(crate) fn is_small(&self, shape: u64, words: &[u64]) -> bool {
        self.shape == shape
            && words
                .iter()
                .zip(&self.words)
                .all(|(wanted, word)| wanted == word)
    }

    /// A key by its encoding.
    pub(crate) fn encoded(encoding: Box<[u64]>) -> Self {
        let shape = tag::sized(tag::LONG, encoding.len());
        let address = Box::into_raw(encoding).cast::<u64>().expose_provenance();
        Self {
            shape,
            words: [address as u64, 0, 0, 0],
        }
    }

    /// The encoding, if the key is stored by it.
    pub(crate) fn encoding(&self) -> Option<&[u64]> {
        // SAFETY: ours from `encoded` to `drop`.
        self.encoding_place().map(|place| unsafe { &*place })
    }

    /// A key by a copy of the term, in an environment of its own that the key owns from now on.
    pub(crate) fn copied(
        environment: *mut ErlNifEnv,
        copy: ErlNifTerm,
        digest: u64,
        size: usize,
    ) -> Self {
        Self {
            shape: tag::COPY,
            words: [
                environment.expose_provenance() as u64,
                crate::enif::word(copy),
                digest,
                size as u64,
            ],
        }
    }

    /// The copy and its digest, if the key is stored so.
    pub(crate) fn copy(&self) -> Option<(ErlNifTerm, u64)> {
        if self.shape != tag::COPY {
            return None;
        }
        // SAFETY: the word of a term in an environment that is ours until `drop`.
        let term = unsafe { crate::enif::from_word(self.words[1]) };
        Some((term, self.words[2]))
    }

    /// A key that is shared with all others who use it.
    pub(crate) fn of_interned(interned: Arc<Interned>) -> Self {
        let address = Arc::into_raw(interned).expose_provenance();
        Self {
            shape: tag::INTERNED,
            words: [address as u64, 0, 0, 0],
        }
    }

    /// What is shared, if the key is stored so.
    pub(crate) fn interned(&self) -> Option<&Interned> {
        // SAFETY: from `Arc::into_raw` in `of_interned`, and counted until `drop`.
        self.interned_place().map(|place| unsafe { &*place })
    }

    /// The same, to be had beyond the key.
    pub(crate) fn share_interned(&self) -> Option<Arc<Interned>> {
        // SAFETY: as in `interned`; the one that is made is counted by itself.
        self.interned_place().map(|place| unsafe {
            Arc::increment_strong_count(place);
            Arc::from_raw(place)
        })
    }

    fn interned_place(&self) -> Option<*const Interned> {
        (self.shape == tag::INTERNED).then(|| ptr::with_exposed_provenance(self.words[0] as usize))
    }

    /// Shape and words of a small key.
    pub(crate) fn parts(&self) -> (u64, &[u64]) {
        (self.shape, &self.words)
    }

    fn encoding_place(&self) -> Option<*mut [u64]> {
        if self.shape & 0xff != tag::LONG {
            return None;
        }
        let first = ptr::with_exposed_provenance_mut::<u64>(self.words[0] as usize);
        Some(ptr::slice_from_raw_parts_mut(
            first,
            (self.shape >> 8) as usize,
        ))
    }
}

impl Key for TermKey {
    /// Of an interned key all of it, though others may share it: without them it would be all ours.
    fn heap_bytes(&self) -> usize {
        if let Some(interned) = self.interned() {
            return interned.key().heap_bytes();
        }
        match self.encoding() {
            Some(encoding) => size_of_val(encoding),
            None if self.shape == tag::COPY => ENVIRONMENT_BYTES + self.words[3] as usize,
            None => 0,
        }
    }
}

impl Drop for TermKey {
    fn drop(&mut self) {
        if let Some(place) = self.interned_place() {
            // SAFETY: from `Arc::into_raw` in `of_interned`, and dropped once.
            drop(unsafe { Arc::from_raw(place) });
        } else if let Some(place) = self.encoding_place() {
            // SAFETY: from `Box::into_raw` in `encoded`, and dropped once.
            drop(unsafe { Box::from_raw(place) });
        } else if self.shape == tag::COPY {
            // SAFETY: ours since `copied`; the copy is not used after this.
            unsafe { enif_free_env(ptr::with_exposed_provenance_mut(self.words[0] as usize)) };
        }
    }
}
