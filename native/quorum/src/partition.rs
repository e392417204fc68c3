//! Divides names into partitions, for what is too much to keep for each name.
//!
//! The partition is the FxHash (of Firefox and rustc) of the length and the bytes of the name, scattered, modulo the
//! number of partitions: the same on all members.

use crate::message::{scatter, Name};

/// Below `partitions`, which is at least one.
pub(crate) fn partition(name: &Name, partitions: usize) -> usize {
    let bytes = name.bytes();
    let hash = bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    (scatter(hash) % partitions as u64) as usize
}
