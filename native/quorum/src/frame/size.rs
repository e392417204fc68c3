//! How much of a batch an operation fills, told without writing it.

use super::{BATCH_BYTES, MAX_NAME, MAX_NAMES, MAX_TOKENS};
use crate::message::{Name, Names, Op};

/// A number of 64 bits, at most.
const NUMBER: usize = 10;
/// A fence, at most.
const FENCE: usize = 9;
/// A kind, a mode, a flag, a run, a count of names.
const SMALL: usize = 1;
/// A count of tokens or the length of a name, at most.
const COUNT: usize = 2;

const LOCK: usize = SMALL + NUMBER + SMALL + SMALL + FENCE + SMALL + SMALL;
const SYNC: usize = SMALL + NUMBER + NUMBER + COUNT;

// Or there would be operations that no batch can carry.
const _: () = assert!(LOCK + MAX_NAMES * (COUNT + MAX_NAME) <= BATCH_BYTES);
const _: () = assert!(SYNC + MAX_TOKENS * NUMBER <= BATCH_BYTES);

/// How many bytes an operation takes in a batch, at most; numbers count as if they were long. As long as the sum is
/// not above [`BATCH_BYTES`], the batch is a frame that others accept. Costs a look at each name's length.
#[must_use]
pub fn wire_size(op: &Op) -> usize {
    match op {
        Op::Lock { names, .. } => LOCK + size_of_names(names),
        Op::Confirm { .. } | Op::Unlock { .. } => SMALL + NUMBER + FENCE,
        Op::Assert { names, .. } => SMALL + NUMBER + SMALL + FENCE + SMALL + size_of_names(names),
        Op::Leave { names } => SMALL + SMALL + size_of_names(names),
        Op::Sync { live, .. } => SYNC + NUMBER * live.len(),
        Op::Settled => SMALL,
        Op::Revoke { name } => SMALL + size_of_name(name),
    }
}

fn size_of_names(names: &Names) -> usize {
    names.iter().map(size_of_name).sum()
}

fn size_of_name(name: &Name) -> usize {
    COUNT + name.bytes().len()
}
