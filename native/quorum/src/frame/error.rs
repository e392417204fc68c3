//! Errors of `decode`.

use crate::bounds::VERSION;
use std::error::Error;
use std::fmt;

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameError {
    /// The first byte is not [`VERSION`].
    Version {
        /// The first byte.
        version: u8,
    },
    /// The bytes are longer than a frame of their kind can be. `decode` has not read them.
    TooLong {
        /// The number of bytes.
        bytes: usize,
        /// The most bytes of a frame of this kind.
        most: usize,
    },
    /// The bytes end before the frame does.
    CutShort,
    /// Bytes follow the frame.
    LeftOver {
        /// The number of bytes after the frame.
        bytes: usize,
    },
    /// A kind or a flag does not exist, a number is too large for its field or not in its shortest form, or a list, a
    /// name or a fence breaks its limit.
    Malformed {
        /// The offset of the invalid byte, or of the first byte that was not read.
        at: usize,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Version { version } => {
                write!(
                    f,
                    "a frame of version {version}; this node supports version {VERSION}"
                )
            }
            FrameError::TooLong { bytes, most } => {
                write!(f, "a frame of {bytes} bytes; at most {most} are allowed")
            }
            FrameError::CutShort => write!(f, "a truncated frame"),
            FrameError::LeftOver { bytes } => write!(f, "a frame followed by {bytes} more bytes"),
            FrameError::Malformed { at } => {
                write!(f, "a frame with an invalid byte at or before offset {at}")
            }
        }
    }
}

impl Error for FrameError {}
