//! Divides names into partitions, for what is too much to keep for each name.
//!
//! The partition is the FNV-1a hash (Fowler, Noll, Vo) of the name, scattered, modulo the number of partitions: the
//! same on all members.

use crate::message::{scatter, Name};

/// Below `partitions`, which is at least one.
pub(crate) fn partition(name: &Name, partitions: usize) -> usize {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    (scatter(hash) % partitions as u64) as usize
}
