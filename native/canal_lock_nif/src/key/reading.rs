//! Readings: the words of a key during a call. A reading is compared with stored keys, and new keys are made from it.

use crate::enif::ErlNifTerm;
use ahash::RandomState;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

/// The words of a key during a call.
pub(crate) struct Reading<'a> {
    pub(super) words: &'a [u64],
    pub(super) opaque: Option<OpaqueTerm>,
}

/// A term that its words do not determine.
#[derive(Clone, Copy)]
pub(super) struct OpaqueTerm {
    pub(super) term: ErlNifTerm,
    /// How many bytes of it were read.
    pub(super) bytes: usize,
}

impl<'a> Reading<'a> {
    #[inline(always)]
    pub(super) fn of(words: &'a [u64]) -> Self {
        Self {
            words,
            opaque: None,
        }
    }

    // `words` and `opaque_term` save instructions: direct reads of the fields compile to longer comparisons.
    #[inline(always)]
    pub(super) fn words(&self) -> &[u64] {
        self.words
    }

    #[inline(always)]
    pub(super) fn opaque_term(&self) -> Option<ErlNifTerm> {
        self.opaque.map(|opaque| opaque.term)
    }

    /// A hash that is equal for equal keys. It is independent of the hash that a table uses.
    pub(crate) fn digest(&self) -> u64 {
        seed().hash_one(self)
    }
}

impl Hash for Reading<'_> {
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
