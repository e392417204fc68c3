//! The encoding of a term: a sequence of 64-bit words. Equal terms have equal words. Without an `OPAQUE` part, equal
//! words also mean equal terms (`=:=`).
//!
//! | term | words |
//! |---|---|
//! | an immediate: atom, local pid or port, small integer, `[]` | the machine word of the term, its two low bits set |
//! | an immediate without these bits | `WORD`, the machine word of the term |
//! | another integer of 64 bits, signed or unsigned | `INTEGER` or `UNSIGNED`, the integer |
//! | a float | `FLOAT`, its bits |
//! | a binary | `BYTES` and the length, the bytes |
//! | a non-empty list of integers from 0 to 255 | `STRING` and the length, one byte per element |
//! | any other proper list | `LIST` and the length, the elements |
//! | an improper list | `IMPROPER` and the number of elements, the elements, the tail |
//! | a tuple | `TUPLE` and the arity, the elements |
//! | a map | `MAP` and its size, each key with its value, in the VM's order |
//! | a larger integer; a pid or port of another node; a bitstring | `EXTERNAL` and the length, the external format |
//! | a reference, a fun, a native record | `OPAQUE`, a hash. The term is compared too: the words do not determine it |
//!
//! A key of the shared namespace has another first word (`namespace.rs`).
//!
//! A size is stored above the tag, in the same word. Bytes are padded with zeros to whole words. Both lowest bits of a
//! tag are 0. So an encoding determines its own length, and no encoding is a prefix of another.
//!
//! The VM iterates over equal maps in the same order as long as it runs. Its own hash relies on that
//! (`make_internal_hash`, "We rely on key-value iteration order being constant for identical maps").

/// The lowest byte of the first word of an encoding that does not begin with the term's machine word.
pub(super) mod tag {
    pub const WORD: u64 = 0x04;
    pub const INTEGER: u64 = 0x08;
    pub const UNSIGNED: u64 = 0x0c;
    pub const FLOAT: u64 = 0x10;
    pub const BYTES: u64 = 0x14;
    pub const STRING: u64 = 0x18;
    pub const LIST: u64 = 0x1c;
    pub const IMPROPER: u64 = 0x20;
    pub const TUPLE: u64 = 0x24;
    pub const MAP: u64 = 0x28;
    pub const EXTERNAL: u64 = 0x2c;
    pub const OPAQUE: u64 = 0x30;
    /// Not of a term: the address of an interned key follows.
    pub const INTERNED: u64 = 0x34;
}

const TAG_BITS: u32 = 8;

/// A tag with a size above it.
#[inline(always)]
pub(super) const fn with_size(tag: u64, size: usize) -> u64 {
    tag | (size as u64) << TAG_BITS
}

/// The tag of a word and the size above it.
pub(super) const fn tag_and_size(word: u64) -> (u64, usize) {
    (word & ((1 << TAG_BITS) - 1), (word >> TAG_BITS) as usize)
}

/// Whether the word may belong to an immediate. In all releases so far, terms on the heap of a process have other
/// lowest bits. If a release changes that, calls get slower but stay correct.
#[inline(always)]
pub(super) const fn looks_immediate(word: u64) -> bool {
    word & 3 == 3
}

/// Whether the word may belong to a non-empty list. As above, only speed depends on it.
#[inline(always)]
pub(super) const fn looks_like_list(word: u64) -> bool {
    word & 3 == 1
}

/// The bytes after the last whole word, padded with zeros. There must be at least one.
#[inline(always)]
pub(super) fn last_word(bytes: &[u8]) -> u64 {
    let rest = bytes.len() % 8;
    match bytes.last_chunk::<8>() {
        // These bytes are the highest of the last eight.
        Some(last) => u64::from_le_bytes(*last) >> (8 * (8 - rest)),
        None => bytes
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}
