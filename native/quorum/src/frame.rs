//! Frames as bytes: the format that nodes speak, in versions.
//!
//! Frames come from other nodes, perhaps of another version or out of order. So whatever bytes there are, [`decode`]
//! answers with a frame or with an error, never with a panic, and what it allocates is bounded by what it was given.
//!
//! # The format, version 1
//!
//! It is postcard's (<https://postcard.jamesmunns.com/wire-format>) behind a byte that tells the version. All of it:
//!
//! ```text
//!   number    7 bits a byte, the lowest first; all but the last byte have the highest bit set. Below 2^64; an epoch
//!             below 2^32. In as few bytes as can be: a last byte of 00 behind another one is an error
//!   signed    the number  2s  for s >= 0,  -2s - 1  for s < 0
//!   flag      00 or 01
//!   maybe X   00, or 01 X
//!   list X    a number, the count; then each X
//!   name      a number, the length, 1 to MAX_NAME; then the bytes
//!   names     list name: 1 to MAX_NAMES, each greater than the one before, byte by byte
//!   tokens    list number: at most MAX_TOKENS
//!   ascending tokens, each greater than the one before
//!   fence     number, at most MAX_FENCE
//!   run       a byte, 01 to ff
//!   mode      00 read, 01 write
//!   turn      00 unknown, 01 earlier, 02 nobody
//!   reason    00 readers, 01 writer, 02 turn, 03 quarantine, 04 storing
//!   session   number (the voter's incarnation), number (the generation)
//!
//!   frame     01 (the version), then
//!     00 batch    number epoch, number agent, maybe session, number seq, signed stamp, list op: at most MAX_OPS
//!     01 ack      number epoch, number agent, session, number seq, signed stamp, then
//!       00 done         list reply: at most MAX_OPS; number digest, tokens revoked
//!       01 mismatch     maybe session named
//!       02 other epoch
//!     02 notice   number epoch, number voter, list name hints: at most MAX_HINTS; flag speak
//!     03 floor, then
//!       00 ask          number epoch, number asker
//!       01 told         number epoch, number asker, fence
//!       02 lost         number epoch, number asker, fence origin
//!
//!   op                                                       reply
//!     00 lock     number token, mode, turn,                    00 yes        fence
//!                 fence guess, run, names                      01 no         reason
//!     01 confirm  number token, fence                          02 confirmed
//!     02 assert   number token, mode, fence, names             03 missing
//!     03 unlock   number token, fence                          04 synced     ascending missing
//!     04 leave    names
//!     05 sync     number from, number to, ascending live
//!     06 settled
//!     07 revoke  name
//! ```
//!
//! - **F1** Each frame has one encoding, and each that is accepted is the one: `decode(encode(f)) == f`, and
//!   `encode(decode(b)) == b`.
//! - **F2** `decode` allocates at most 48 bytes for each byte of a frame, all told: so much where a batch consists of
//!   operations of a byte. For what is no frame it may be 76, since counts within counts are believed as far as there
//!   are bytes for each. A count is compared with its bound, and with the bytes that are left, before memory is asked
//!   for.
//! - **F3** What a legal agent or voter has to say fits: see [`MAX_FRAME`].
//!
//! A change of the format is a new version: a number for the first byte, and a file `tests/golden/v2.txt` beside the
//! first one. Operations and the like are added at the end of their lists.

mod bounds;
mod error;
mod input;
mod size;

pub(crate) use bounds::{fence, hints, live, missing, ops, replies, revoked};
pub use error::{Bound, FrameError};
pub use size::wire_size;

use crate::message::Frame;
use input::Input;
use postcard::ser_flavors::Flavor;
use serde::Deserialize;

/// The first byte of all frames.
pub const VERSION: u8 = 1;
/// The longest name, in bytes. It leaves room for paths and URLs, and [`MAX_NAMES`] of them fit a frame.
pub const MAX_NAME: usize = 1024;
/// The most names of one lock.
pub const MAX_NAMES: usize = 64;
/// The most operations of a batch, and replies of an answer.
pub const MAX_OPS: usize = 4096;
/// The most tokens of a list: the live ones of a `Sync`, those that are missing, those that are revoked.
pub const MAX_TOKENS: usize = 4096;
/// The most names that one notice hints at. The longest of them fit a frame together, so a voter need only count.
pub const MAX_HINTS: usize = 256;
/// The highest fence: what comes from elsewhere and is higher is an error.
pub const MAX_FENCE: u64 = 1 << 62;

/// How many bytes of operations, told by [`wire_size`], an agent puts into a batch at most. A thousand locks of names
/// of 200 bytes: the count ends a batch sooner than this does where names are usual. Any single operation fits.
pub const BATCH_BYTES: usize = 256 << 10;

/// The most bytes of a batch that are not operations.
const BATCH_HEAD: usize = 60;

/// The longest frame that is a batch.
///
/// Shorter than [`MAX_FRAME`] so that each batch, whoever made it, can be answered: see there.
pub const MAX_BATCH: usize = BATCH_HEAD + BATCH_BYTES;

/// The longest frame, in bytes.
///
/// Everything fits that can be said. A batch is no longer than [`MAX_BATCH`]. Its answer has no more replies than the
/// batch had operations, each of at most 10 bytes but for `Synced`, which is shorter than its `Sync`; and revoked
/// tokens of 10 bytes each: 40 KiB and [`MAX_BATCH`] and 40 KiB. A notice has 256 names of 1026 bytes.
///
/// It is half of what Erlang's distribution keeps for a slow connection before it makes senders wait (`+zdbbl`,
/// 1 MiB), so that no single frame does that.
pub const MAX_FRAME: usize = 512 << 10;

/// The kind of a batch, its second byte.
const BATCH: u8 = 0;

/// The frame as bytes.
///
/// The frame has to be within all bounds; that it is not is an error of whoever made it, and nobody will accept it.
#[must_use]
pub fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_into(frame, &mut bytes);
    bytes
}

/// As [`encode`], into `bytes`, whose content goes and whose memory is used again.
pub fn encode_into(frame: &Frame, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.push(VERSION);
    let written = postcard::serialize_with_flavor(frame, Output(bytes));
    debug_assert_eq!(
        written,
        Ok(()),
        "memory takes what is written, and all lists tell their lengths"
    );
    debug_assert_eq!(
        decode(bytes).as_ref(),
        Ok(frame),
        "a frame that others will not accept"
    );
}

/// The frame that these bytes are: all of them.
///
/// # Errors
/// What is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<Frame, FrameError> {
    match bytes.first() {
        None => return Err(FrameError::CutShort),
        Some(&VERSION) => {}
        Some(&version) => return Err(FrameError::Version { version }),
    }
    let most = if bytes.get(1) == Some(&BATCH) {
        MAX_BATCH
    } else {
        MAX_FRAME
    };
    if bytes.len() > most {
        return Err(FrameError::TooLong {
            bytes: bytes.len(),
            most,
        });
    }
    bounds::forget_broken();
    let mut deserializer = postcard::Deserializer::from_flavor(Input::new(&bytes[1..]));
    let frame = Frame::deserialize(&mut deserializer);
    let left = deserializer.finalize().unwrap_or_default();
    let at = bytes.len() - left;
    match frame {
        Ok(frame) if left == 0 => Ok(frame),
        Ok(_) => Err(FrameError::LeftOver { bytes: left }),
        Err(postcard::Error::DeserializeUnexpectedEnd) => Err(FrameError::CutShort),
        Err(_) => Err(match bounds::broken() {
            Some(bound) => FrameError::Bound { bound, at },
            None => FrameError::Malformed { at },
        }),
    }
}

/// Where postcard writes: at the end of a vector that is the caller's. (Its own are made anew for each frame.)
struct Output<'a>(&'a mut Vec<u8>);

impl Flavor for Output<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
