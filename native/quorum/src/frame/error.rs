//! What is wrong with bytes that are no frame.

use super::{MAX_FENCE, MAX_HINTS, MAX_NAME, MAX_NAMES, MAX_OPS, MAX_TOKENS, VERSION};
use std::error::Error;
use std::fmt;

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameError {
    /// They begin with another version of the format.
    Version {
        /// The first byte.
        version: u8,
    },
    /// There are more than a frame of its kind can have. They have not been looked at.
    TooLong {
        /// How many there are.
        bytes: usize,
        /// How many there can be.
        most: usize,
    },
    /// They end before the frame does.
    CutShort,
    /// They end after it.
    LeftOver {
        /// How many are too many.
        bytes: usize,
    },
    /// A bound is broken.
    Bound {
        /// Which.
        bound: Bound,
        /// Where: the first byte that was not read any more.
        at: usize,
    },
    /// A kind or a flag that does not exist; a number that is too high for its field or not in its shortest form.
    Malformed {
        /// Where: the first byte that was not read any more, or the one that cannot stand there.
        at: usize,
    },
}

/// What all frames keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// A list counts no more elements than there are bytes behind the count.
    Count,
    /// At most [`MAX_OPS`] operations.
    Ops,
    /// At most [`MAX_OPS`] replies.
    Replies,
    /// At most [`MAX_TOKENS`] live tokens.
    Live,
    /// At most [`MAX_TOKENS`] missing tokens.
    Missing,
    /// At most [`MAX_TOKENS`] revoked tokens.
    Revoked,
    /// At most [`MAX_HINTS`] hints.
    Hints,
    /// From 1 to [`MAX_NAMES`] names of a lock.
    Names,
    /// Names of 1 to [`MAX_NAME`] bytes.
    Name,
    /// The names of a lock, and live and missing tokens, ascend.
    Order,
    /// No fence above [`MAX_FENCE`].
    Fence,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Version { version } => {
                write!(
                    f,
                    "a frame of version {version}; this node speaks version {VERSION}"
                )
            }
            FrameError::TooLong { bytes, most } => {
                write!(f, "a frame of {bytes} bytes, where {most} are the most")
            }
            FrameError::CutShort => write!(f, "a frame that is cut short"),
            FrameError::LeftOver { bytes } => write!(f, "a frame, and {bytes} bytes behind it"),
            FrameError::Bound { bound, at } => write!(f, "a frame with {bound}, before byte {at}"),
            FrameError::Malformed { at } => {
                write!(f, "a frame that is malformed at or before byte {at}")
            }
        }
    }
}

impl fmt::Display for Bound {
    /// How it is broken.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Count => write!(f, "a count of more elements than there are bytes"),
            Bound::Ops => write!(f, "more than {MAX_OPS} operations"),
            Bound::Replies => write!(f, "more than {MAX_OPS} replies"),
            Bound::Live => write!(f, "more than {MAX_TOKENS} live tokens"),
            Bound::Missing => write!(f, "more than {MAX_TOKENS} missing tokens"),
            Bound::Revoked => write!(f, "more than {MAX_TOKENS} revoked tokens"),
            Bound::Hints => write!(f, "more than {MAX_HINTS} hints"),
            Bound::Names => write!(f, "a lock of no names or of more than {MAX_NAMES}"),
            Bound::Name => write!(f, "a name of no bytes or of more than {MAX_NAME}"),
            Bound::Order => write!(f, "names or tokens that do not ascend"),
            Bound::Fence => write!(f, "a fence above {MAX_FENCE}"),
        }
    }
}

impl Error for FrameError {}
