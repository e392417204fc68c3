//! The words of a term during a call. They are compared with stored keys, and new keys are made from them.

use crate::enif::ErlNifTerm;
use ahash::RandomState;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

/// The encoding of a term, or of the address of an interned key.
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

    /// Whether a stored key begins with the words. No encoding is a prefix of another, so the words after them need no
    /// comparison. Word by word: wider reads of words that have just been written one by one stall.
    #[inline(always)]
    pub(super) fn is_prefix_of(&self, own: &[u64]) -> bool {
        self.words.iter().zip(own).all(|(read, own)| read == own)
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
