//! The words of a key: borrowed during a call (an encoded term), or owned, inline or on the heap (an encoded key).

use super::encoding::{tag, tag_and_size, with_size};
use crate::enif::{self, ErlNifTerm};
use ahash::RandomState;
use permit_table::{inject, OutOfMemory};
use rustler::sys::ErlNifEnv;
use std::hash::{Hash, Hasher};
use std::{ptr, sync::OnceLock};

/// The words of a key during a call. It is compared with stored keys, and new keys are made from it.
pub(crate) struct EncodedTerm<'a> {
    pub(super) words: &'a [u64],
    /// If the words do not determine the term: the term, and how many bytes of it were read.
    pub(super) opaque: Option<(ErlNifTerm, usize)>,
}

impl<'a> EncodedTerm<'a> {
    #[inline(always)]
    pub(super) fn of(words: &'a [u64]) -> Self {
        let opaque = None;
        Self { words, opaque }
    }

    // `words` and `opaque_term` save instructions: direct reads of the fields compile to longer comparisons.
    #[inline(always)]
    fn words(&self) -> &[u64] {
        self.words
    }

    #[inline(always)]
    fn opaque_term(&self) -> Option<ErlNifTerm> {
        self.opaque.map(|(term, _)| term)
    }

    /// A hash that is equal for equal keys. It is independent of the hash that a table uses.
    pub(crate) fn digest(&self) -> u64 {
        seed().hash_one(self)
    }
}

impl Hash for EncodedTerm<'_> {
    #[inline(always)]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut pairs = self.words.chunks_exact(2);
        for pair in &mut pairs {
            hasher.write_u128(u128::from(pair[0]) | u128::from(pair[1]) << 64);
        }
        if let [last] = pairs.remainder() {
            hasher.write_u64(*last);
        }
    }
}

/// The seed of hashes that never leave this operating system process.
pub(super) fn seed() -> &'static RandomState {
    // If `RandomState::new` panics, the cell stays empty and the next call tries again.
    static SEED: OnceLock<RandomState> = OnceLock::new();
    SEED.get_or_init(RandomState::new)
}

/// Words of a small key. A table's node has three more words, so both fit on one cache line.
const INLINE: usize = 5;

/// The least memory of an environment that contains a copied term, in bytes (measured on OTP 25).
const ENVIRONMENT_BYTES: usize = 2400;

/// The words of a key:
///
/// ```text
///   small   the words of the encoding, padded with zeros
///   large   BOXED and the number of words, their address; for an opaque term: environment, copy, its size in bytes
/// ```
#[repr(C)]
pub(super) struct EncodedKey {
    words: [u64; INLINE],
}

impl EncodedKey {
    pub(super) const EMPTY: Self = Self { words: [0; INLINE] };

    /// The key of a term. A small one needs no memory, so it cannot fail.
    pub(super) fn of(term: &EncodedTerm<'_>) -> Result<Self, OutOfMemory> {
        let read = term.words();
        if read.len() <= INLINE && term.opaque.is_none() {
            let mut words = [0; INLINE];
            words[..read.len()].copy_from_slice(read);
            return Ok(Self { words });
        }
        inject::out_of_memory()?;
        let mut encoding = Vec::new();
        let reserved = encoding.try_reserve_exact(read.len());
        reserved.map_err(|_| OutOfMemory)?;
        encoding.extend_from_slice(read);
        let encoding = Box::into_raw(encoding.into_boxed_slice()).cast::<u64>();
        let first = with_size(tag::BOXED, read.len());
        let address = encoding.expose_provenance() as u64;
        let (environment, copy, size) = term.opaque.map_or((0, 0, 0), |(opaque, bytes)| {
            let (environment, copy) = enif::copy_to_new_env(opaque);
            let environment = environment.expose_provenance() as u64;
            vm_allocator::add(ENVIRONMENT_BYTES + bytes);
            (environment, enif::word(copy), bytes as u64)
        });
        let words = [first, address, environment, copy, size];
        Ok(Self { words })
    }

    #[inline(always)]
    pub(super) fn is_equal(&self, term: &EncodedTerm<'_>) -> bool {
        let words = term.words();
        // Word by word: wider reads of words that have just been written one by one stall.
        let is_prefix = |own: &[u64]| words.iter().zip(own).all(|(read, own)| read == own);
        if words.len() <= INLINE && term.opaque_term().is_none() {
            // No encoding is a prefix of another, and the first word of a large key is not a term's. So the words after
            // the term's need no comparison.
            return is_prefix(&self.words);
        }
        self.words[0] == with_size(tag::BOXED, words.len())
            && self.boxed_words().is_some_and(is_prefix)
            && match term.opaque_term() {
                None => true,
                Some(term) => self.is_copy_of(term),
            }
    }

    /// Whether the key has a copy of a term, and this term is `=:=` to it.
    #[inline(always)]
    pub(super) fn is_copy_of(&self, term: ErlNifTerm) -> bool {
        self.copy().is_some_and(|copy| enif::identical(copy, term))
    }

    /// The encoding. For a small key, zeros follow.
    pub(super) fn words(&self) -> &[u64] {
        self.boxed_words().unwrap_or(&self.words)
    }

    fn boxed_words(&self) -> Option<&[u64]> {
        // SAFETY: allocated in `of`, and owned until `drop`.
        self.boxed_place().map(|place| unsafe { &*place })
    }

    fn boxed_place(&self) -> Option<*mut [u64]> {
        let (tag, length) = tag_and_size(self.words[0]);
        let first = ptr::with_exposed_provenance_mut::<u64>(self.words[1] as usize);
        (tag == tag::BOXED).then(|| ptr::slice_from_raw_parts_mut(first, length))
    }

    /// The copy of a term that its words do not determine.
    pub(super) fn copy(&self) -> Option<ErlNifTerm> {
        // SAFETY: the word of a term in an environment that the key owns until `drop`.
        self.environment()
            .map(|_| unsafe { enif::from_word(self.words[3]) })
    }

    fn environment(&self) -> Option<*mut ErlNifEnv> {
        let has_copy = tag_and_size(self.words[0]).0 == tag::BOXED && self.words[2] != 0;
        has_copy.then(|| ptr::with_exposed_provenance_mut(self.words[2] as usize))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let words = self.boxed_words().map_or(0, size_of_val);
        match self.environment() {
            Some(_) => words + self.copy_bytes(),
            None => words,
        }
    }

    /// The bytes of the copy and its environment, if there is one.
    fn copy_bytes(&self) -> usize {
        ENVIRONMENT_BYTES + self.words[4] as usize
    }

    /// The address of an interned key, if this is its encoding.
    pub(super) fn interned_address(&self) -> Option<u64> {
        (self.words[0] == tag::INTERNED).then_some(self.words[1])
    }
}

impl Drop for EncodedKey {
    fn drop(&mut self) {
        if let Some(environment) = self.environment() {
            // SAFETY: made in `of`, and owned; the copy is not used after this.
            unsafe { enif::free_env(environment) };
            vm_allocator::subtract(self.copy_bytes());
        }
        if let Some(place) = self.boxed_place() {
            // SAFETY: from `Box::into_raw` in `of`, and dropped once.
            drop(unsafe { Box::from_raw(place) });
        }
    }
}
