//! The error of every operation that could not allocate memory.

/// The allocator had no memory. The operation has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;
