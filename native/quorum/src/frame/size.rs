//! The encoded size of an operation, computed without encoding it.

use crate::bounds::{MAX_NAME, MAX_NAMES, MAX_TOKENS};
use crate::message::{Name, Names, Op};

/// The limit for the sum of [`wire_size`] over a batch. This is enough for 1,000 locks of
/// names of 200 bytes, so with usual names the operation count limits a batch first. Any single operation fits.
pub const BATCH_BYTES: usize = 256 << 10;

/// The maximum length of a 64-bit number, in bytes.
const NUMBER: usize = 10;
/// The maximum length of a fence: it is at most 2^62.
const FENCE: usize = 9;
/// The maximum length of a run.
const RUN: usize = 3;
/// The length of a kind, a mode, a flag, or a count of names.
const SMALL: usize = 1;
/// The maximum length of a count of tokens, or of the length of a name.
const COUNT: usize = 2;

const LOCK: usize = SMALL + NUMBER + SMALL + NUMBER + NUMBER + SMALL + RUN + SMALL;
const ASSERT: usize = SMALL + NUMBER + SMALL + FENCE + SMALL + SMALL;
const SYNC: usize = SMALL + NUMBER + NUMBER + COUNT;

// Every single operation must fit a batch.
const _: () = assert!(LOCK + MAX_NAMES * (COUNT + MAX_NAME) <= BATCH_BYTES);
const _: () = assert!(SYNC + MAX_TOKENS * NUMBER <= BATCH_BYTES);

/// The maximum number of bytes of an operation in a batch: every number counts with its maximum length. A batch is a
/// valid frame while the sum is at most [`BATCH_BYTES`]. The cost is one length check per name.
#[must_use]
pub fn wire_size(op: &Op) -> usize {
    match op {
        Op::Lock { names, .. } => LOCK + size_of_names(names),
        Op::Confirm { .. } | Op::Unlock { .. } => SMALL + NUMBER + FENCE,
        Op::Assert { names, .. } => ASSERT + size_of_names(names),
        Op::Sync { live, .. } => SYNC + NUMBER * live.len(),
        Op::Settled { .. } => 2 * SMALL,
        Op::Revoke { name } => SMALL + size_of_name(name),
        Op::EndAgent { .. } => SMALL + NUMBER,
    }
}

fn size_of_names(names: &Names) -> usize {
    names.iter().map(size_of_name).sum()
}

fn size_of_name(name: &Name) -> usize {
    COUNT + name.bytes().len()
}
