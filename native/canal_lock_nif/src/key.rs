//! What is stored as a key: any term, compared by `=:=`.
//!
//! A key passes through these forms:
//!
//! - [`ErlNifTerm`]: the argument of a call. It becomes a [`Reading`] (`read.rs`), unless it is long.
//! - [`Reading`]: words on the stack, the encoding of the term (`encoding.rs`); or the address of an interned key. It
//!   is compared with stored keys, and becomes a [`TermKey`] if it is new.
//! - [`TermKey`]: a stored key, which is the same words, inline or on the heap; or a shared
//!   [`Interned`]. It becomes a term again when it is shown (`decode.rs`).
//! - [`Handle`](interned::Handle): a long key that a dirty scheduler has read (`interned.rs`). It becomes a [`Reading`]
//!   of one address.
//!
//! Which encoding a term has depends on its value alone, so equal terms become equal keys.

pub(crate) mod decode;
mod encoding;
pub(crate) mod interned;
pub(crate) mod read;
mod stack;

use crate::enif::{self, ErlNifTerm};
use encoding::{size_of, tag, with_size};
use interned::Interned;
use permit_table::Key;
use read::Reading;
use rustler::sys::{enif_free_env, ErlNifEnv};
use std::ptr;
use std::sync::Arc;

/// Words that are stored in the key itself. They leave just room for the three words of a node on one cache line.
const INLINE: usize = 5;

/// What an environment with a copied term in it costs at least, in bytes (measured on OTP 25).
const ENVIRONMENT_BYTES: usize = 2400;

/// A stored key:
///
/// ```text
///   inline     the words of the encoding, and zeros
///   boxed      BOXED and their number, their address; if they do not tell everything: environment, copy, its size
///   interned   INTERNED, the address of what is shared
/// ```
#[repr(C)]
pub(crate) struct TermKey {
    words: [u64; INLINE],
}

impl TermKey {
    /// A key of these words. An interned one is counted by the caller.
    fn inline(encoding: &[u64]) -> Self {
        let mut words = [0; INLINE];
        words[..encoding.len()].copy_from_slice(encoding);
        Self { words }
    }

    /// With the term, if the encoding does not tell everything, and how many bytes of it were read.
    fn boxed(encoding: Box<[u64]>, whole: Option<(ErlNifTerm, usize)>) -> Self {
        let first = with_size(tag::BOXED, encoding.len());
        let address = Box::into_raw(encoding).cast::<u64>().expose_provenance() as u64;
        let (environment, copy, size) = whole.map_or((0, 0, 0), |(term, size)| {
            let (environment, copy) = enif::copied_apart(term);
            (environment.expose_provenance(), enif::word(copy), size)
        });
        Self {
            words: [first, address, environment as u64, copy, size as u64],
        }
    }

    /// Is it the key that was read so?
    #[inline(always)]
    fn is(&self, reading: &Reading<'_>) -> bool {
        let words = reading.words();
        // Word by word: wider reads of what has just been written word by word stall.
        let begins = |own: &[u64]| words.iter().zip(own).all(|(read, own)| read == own);
        if words.len() <= INLINE && reading.whole().is_none() {
            // No encoding is the beginning of another one, and a key that is not inline begins with a word of its own
            // kind: so what follows needs no look.
            return begins(&self.words);
        }
        self.words[0] == with_size(tag::BOXED, words.len())
            && self.encoding().is_some_and(begins)
            && match reading.whole() {
                None => true,
                Some(term) => self.copy().is_some_and(|copy| enif::identical(copy, term)),
            }
    }

    /// The encoding, if it is on the heap.
    fn encoding(&self) -> Option<&[u64]> {
        // SAFETY: ours from `boxed` to `drop`.
        self.encoding_place().map(|place| unsafe { &*place })
    }

    fn encoding_place(&self) -> Option<*mut [u64]> {
        let (tag, length) = size_of(self.words[0]);
        let first = ptr::with_exposed_provenance_mut::<u64>(self.words[1] as usize);
        (tag == tag::BOXED).then(|| ptr::slice_from_raw_parts_mut(first, length))
    }

    /// The copy of the term, where the words do not tell everything.
    fn copy(&self) -> Option<ErlNifTerm> {
        // SAFETY: the word of a term in an environment that is ours until `drop`.
        self.environment()
            .map(|_| unsafe { enif::from_word(self.words[3]) })
    }

    fn environment(&self) -> Option<*mut ErlNifEnv> {
        let is_copied = size_of(self.words[0]).0 == tag::BOXED && self.words[2] != 0;
        is_copied.then(|| ptr::with_exposed_provenance_mut(self.words[2] as usize))
    }

    fn interned(&self) -> Option<&Interned> {
        // SAFETY: from an `Arc`, and counted since `Reading::to_key` until `drop`.
        self.interned_place().map(|place| unsafe { &*place })
    }

    fn interned_place(&self) -> Option<*const Interned> {
        (self.words[0] == tag::INTERNED)
            .then(|| ptr::with_exposed_provenance(self.words[1] as usize))
    }
}

impl Key for TermKey {
    /// Of an interned key all of it, though others may share it: without them it would be all ours.
    fn heap_bytes(&self) -> usize {
        if let Some(interned) = self.interned() {
            return interned.key.heap_bytes();
        }
        let encoding = self.encoding().map_or(0, size_of_val);
        match self.environment() {
            Some(_) => encoding + ENVIRONMENT_BYTES + self.words[4] as usize,
            None => encoding,
        }
    }
}

impl Drop for TermKey {
    fn drop(&mut self) {
        if let Some(place) = self.interned_place() {
            // SAFETY: from an `Arc`, counted since `Reading::to_key`, and dropped once.
            drop(unsafe { Arc::from_raw(place) });
        }
        if let Some(environment) = self.environment() {
            // SAFETY: ours since `boxed`; the copy is not used after this.
            unsafe { enif_free_env(environment) };
        }
        if let Some(place) = self.encoding_place() {
            // SAFETY: from `Box::into_raw` in `boxed`, and dropped once.
            drop(unsafe { Box::from_raw(place) });
        }
    }
}
