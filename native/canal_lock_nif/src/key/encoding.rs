//! The encoding of a term: a sequence of words that is the same for two terms if and only if they are `=:=`.
//!
//! | term | words |
//! |---|---|
//! | an immediate: atom, local pid, local port, small integer, `[]` | its own word; both of its lowest bits are set |
//! | an immediate whose word is not of that kind | `WORD`, its own word |
//! | another integer of 64 bits, signed or unsigned | `INTEGER` or `UNSIGNED`, the integer |
//! | a float | `FLOAT`, its bits |
//! | a binary | `BYTES` and the length, the bytes |
//! | a list of integers from 0 to 255, not empty | `STRING` and the length, a byte each |
//! | any other proper list | `LIST` and the length, the elements |
//! | an improper list | `IMPROPER` and the number of elements, these, the tail |
//! | a tuple | `TUPLE` and the arity, the elements |
//! | a map | `MAP` and its size, each key with its value, as the VM iterates |
//! | a larger integer; a pid or port of another node; a bitstring | `EXTERNAL` and the length, the external format |
//! | a reference, a fun | `OPAQUE`, a hash. The term is compared too: the words do not tell everything |
//!
//! A size stands above the tag, in the same word. Bytes are filled up with zeros to whole words. No tag has both of its
//! lowest bits set. So an encoding says where it ends, and none is the beginning of another.
//!
//! The VM iterates over equal maps in the same order as long as it runs: it relies on that itself, for its own hash
//! (`make_internal_hash`, "We rely on key-value iteration order being constant for identical maps").

/// What the first word of a term that is not immediate says, in its lowest byte.
pub(super) mod tag {
    pub(in crate::key) const WORD: u64 = 0x04;
    pub(in crate::key) const INTEGER: u64 = 0x08;
    pub(in crate::key) const UNSIGNED: u64 = 0x0c;
    pub(in crate::key) const FLOAT: u64 = 0x10;
    pub(in crate::key) const BYTES: u64 = 0x14;
    pub(in crate::key) const STRING: u64 = 0x18;
    pub(in crate::key) const LIST: u64 = 0x1c;
    pub(in crate::key) const IMPROPER: u64 = 0x20;
    pub(in crate::key) const TUPLE: u64 = 0x24;
    pub(in crate::key) const MAP: u64 = 0x28;
    pub(in crate::key) const EXTERNAL: u64 = 0x2c;
    pub(in crate::key) const OPAQUE: u64 = 0x30;
    /// Of a stored key: the encoding is elsewhere.
    pub(in crate::key) const BOXED: u64 = 0x34;
    /// Of a stored key, and of a reading: the address of what is shared follows.
    pub(in crate::key) const INTERNED: u64 = 0x38;
}

const TAG_BITS: u32 = 8;

/// A tag with a size above it.
#[inline(always)]
pub(super) const fn with_size(tag: u64, size: usize) -> u64 {
    tag | (size as u64) << TAG_BITS
}

/// The tag of a word, and the size above it.
pub(super) const fn size_of(word: u64) -> (u64, usize) {
    (word & ((1 << TAG_BITS) - 1), (word >> TAG_BITS) as usize)
}

/// Can the word be an immediate's? Terms on a heap have other lowest bits in all releases so far; nothing but time
/// depends on that.
#[inline(always)]
pub(super) const fn looks_immediate(word: u64) -> bool {
    word & 3 == 3
}

/// Can the word be that of a list which is not empty? As above.
#[inline(always)]
pub(super) const fn looks_like_list(word: u64) -> bool {
    word & 3 == 1
}

/// The bytes beyond the last whole word, filled up with zeros.
#[inline(always)]
pub(super) fn last_word(bytes: &[u8]) -> u64 {
    let rest = bytes.len() % 8;
    match bytes.last_chunk::<8>() {
        // They are the highest bytes of the last eight.
        Some(last) => u64::from_le_bytes(*last) >> (8 * (8 - rest)),
        None => bytes
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}
