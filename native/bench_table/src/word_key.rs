//! Keys like the small ones of the native library (`canal_lock_nif/src/key/encoded_key.rs`): one word for the types
//! of the parts, and up to four words for the parts. They have the same size, are hashed two words at a time, and are
//! compared in the same way: the shape, and as many words as the shape has.

use equivalent::Equivalent;
use permit_table::{Key, OutOfMemory, Query};
use std::hash::{Hash, Hasher};

/// A part of one word: an atom, a small integer.
const IMMEDIATE: u64 = 1;
/// `TUPLE + N`: a tuple of `N` parts.
const TUPLE: u64 = 0x10;
/// `BINARY + N`: a binary of `N` bytes.
const BINARY: u64 = 0x40;
/// The VM's words for an atom and for the integer 0. Successive integers differ by 16.
const SOME_ATOM: u64 = 0x0002_4a0b;
const SMALL_ZERO: u64 = 0xf;

/// A stored key.
#[repr(C)]
pub struct WordKey {
    shape: u64,
    words: [u64; 4],
}

impl Key for WordKey {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// The query for a [`WordKey`] of `N` words.
#[derive(Clone, Copy)]
pub struct Words<const N: usize> {
    shape: u64,
    words: [u64; N],
}

/// A key like an atom: one word.
pub fn atom(number: u64) -> Words<1> {
    Words {
        shape: IMMEDIATE,
        words: [SOME_ATOM + (number << 6)],
    }
}

/// A key like `{app, 12345}`: two words.
pub fn tuple(number: u64) -> Words<2> {
    Words {
        shape: (TUPLE + 2) << 16 | IMMEDIATE << 8 | IMMEDIATE,
        words: [SOME_ATOM, SMALL_ZERO + (number << 4)],
    }
}

/// A key like a binary of 32 bytes: four words.
pub fn binary(number: u64) -> Words<4> {
    Words {
        shape: BINARY + 32,
        words: [u64::from_le_bytes(*b"01234567"), 0, !0, number],
    }
}

impl<const N: usize> Hash for Words<N> {
    #[inline(always)]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let pair = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
        hasher.write_u128(pair(self.shape, self.words[0]));
        let mut pairs = self.words[1..].chunks_exact(2);
        for two in &mut pairs {
            hasher.write_u128(pair(two[0], two[1]));
        }
        if let [last] = pairs.remainder() {
            hasher.write_u64(*last);
        }
    }
}

impl<const N: usize> Equivalent<WordKey> for Words<N> {
    #[inline(always)]
    fn equivalent(&self, key: &WordKey) -> bool {
        self.shape == key.shape
            && self
                .words
                .iter()
                .zip(&key.words)
                .all(|(wanted, word)| wanted == word)
    }
}

impl<const N: usize> Query<WordKey> for Words<N> {
    fn to_key(&self) -> Result<WordKey, OutOfMemory> {
        let mut words = [0; 4];
        words[..N].copy_from_slice(&self.words);
        Ok(WordKey {
            shape: self.shape,
            words,
        })
    }
}
