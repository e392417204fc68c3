//! Encodes and decodes frames: the format that nodes exchange.
//!
//! A frame comes from another node, which may be faulty. For any bytes, [`decode`] returns a frame or an error. It
//! never panics, and the memory it allocates is bounded by the length of its input.
//!
//! # The format, version 1
//!
//! Byte 0 is the version. The rest is postcard's encoding (<https://postcard.jamesmunns.com/wire-format>):
//!
//! ```text
//!   number    7 bits per byte, lowest bits first; every byte but the last has the highest bit set. Below 2^64,
//!             a run below 2^16. Shortest form only: a last byte of 00 after another byte is an error
//!   signed    the number  2s  for s >= 0,  -2s - 1  for s < 0
//!   flag      00 or 01
//!   maybe X   00 (none), or 01 X
//!   list X    number, the count; then each X
//!   name      number, the length, 1 to MAX_NAME; then the bytes
//!   names     list name: 1 to MAX_NAMES, each greater than the one before, byte by byte
//!   tokens    list number: at most MAX_TOKENS
//!   ascending tokens, each greater than the one before
//!   fence     number, at most MAX_FENCE
//!   run       number, at least 1
//!   mode      00 read, 01 write
//!   priority  number clock, number agent, number token
//!   reason    00 busy, 01 queued, 02 quarantine, 03 storing
//!   state     00 voting, 01 quarantined, 02 no store
//!   status    number clock, state
//!   session   number (the voter's lifetime), number (the generation)
//!
//!   frame     01 (the version), then
//!     00 batch    number agent, maybe session, number seq, signed stamp, number clock,
//!                 list op: at most MAX_OPS
//!     01 ack      status, number agent, session, number seq, signed stamp, then
//!       00 done         list reply: at most MAX_OPS; number digest, tokens revoked
//!       01 mismatch     maybe session named, list number others: at most MAX_OTHERS
//!     02 notice   status, number voter, number generation, number seq,
//!                 list (number token, fence) given: at most MAX_NOTICE;
//!                 list (number token, priority, mode) recalls: at most MAX_NOTICE; flag wants batch
//!     03 life, then
//!       00 ask          number asker
//!       01 answer       number asker, number voter, number seen
//!
//!   op                                                       reply
//!     00 lock     number token, mode, number clock,            00 yes        fence
//!                 number first, flag wait, run, names          01 no         reason
//!     01 confirm  number token, fence                          02 missing
//!     02 assert   number token, mode, fence,                   03 synced     ascending missing
//!                 flag continues, names
//!     03 unlock   number token, fence
//!     04 sync     number from, number to, ascending live
//!     05 settled  flag kept
//!     06 revoke   name
//!     07 end agent     number agent
//! ```
//!
//! - **F1** Each frame has exactly one encoding, and `decode` accepts no other: `decode(encode(f)) == f`, and
//!   `encode(decode(b)) == b`.
//! - **F2** `decode` allocates at most 28 bytes in total for each byte of a valid frame. Assertions of many names of
//!   one byte reach this limit. For invalid input the limit is 75 bytes, because a nested count is trusted as
//!   long as enough bytes follow it. `decode` compares each count with its limit and with the bytes that are left
//!   before it allocates.
//! - **F3** Every message that a correct agent or voter sends fits into a frame: see [`MAX_FRAME`].
//!
//! A library speaks one version, [`VERSION`], and nodes with different versions refuse each other. A change of a
//! released format needs a new version, and the first one also a way to run a cluster of two versions.

mod error;
mod input;
mod size;

pub use crate::bounds::{
    MAX_FENCE, MAX_NAME, MAX_NAMES, MAX_NOTICE, MAX_OPS, MAX_OTHERS, MAX_TOKENS, VERSION,
};
pub use error::FrameError;
pub use size::{wire_size, BATCH_BYTES};

use crate::envelope::Content;
use crate::message::Frame;
use input::Input;
use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

/// The most bytes of a batch besides its operations.
const BATCH_HEAD: usize = 65;

/// The longest batch, in bytes.
///
/// It is shorter than [`MAX_FRAME`], so the answer to any valid batch fits into a frame: see there.
pub const MAX_BATCH: usize = BATCH_HEAD + BATCH_BYTES;

/// The longest frame, in bytes.
///
/// Every valid message fits. A batch has at most [`MAX_BATCH`] bytes. Its answer has at most one reply per operation,
/// and a reply has at most 10 bytes, except `Synced`, which is shorter than its `Sync`. Revoked tokens take 10 bytes
/// each. An answer thus has at most 40 KiB + [`MAX_BATCH`] + 40 KiB. A notice has at most 256 votes of 19 bytes and
/// 256 recalls of 41.
///
/// The limit is half of the 1 MiB that Erlang's distribution buffers for a slow connection before it suspends senders
/// (`+zdbbl`), so no single frame suspends a sender.
pub const MAX_FRAME: usize = 512 << 10;

/// The kind byte of a batch: the second byte of its frame.
const BATCH: u8 = 0;
/// The kind byte of a message about views. No frame has it.
const VIEW: u8 = 4;

/// Encodes `frame`.
///
/// The frame must keep all limits. Otherwise the caller has a bug, and no node accepts the bytes.
#[must_use]
pub fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_into(frame, &mut bytes);
    bytes
}

/// Encodes `frame` into `bytes`. Replaces the content of `bytes` and reuses its memory.
pub fn encode_into(frame: &Frame, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.push(VERSION);
    write(frame, bytes);
    debug_assert_eq!(
        decode(bytes).as_ref(),
        Ok(frame),
        "encoded a frame that decode does not accept"
    );
}

/// As [`encode_into`], for a frame or a message about views.
pub fn encode_content(content: &Content, bytes: &mut Vec<u8>) {
    match content {
        Content::Frame(frame) => encode_into(frame, bytes),
        Content::View(message) => {
            bytes.clear();
            bytes.extend([VERSION, VIEW]);
            write(message, bytes);
            debug_assert_eq!(
                decode_content(bytes).as_ref(),
                Ok(content),
                "encoded a message that decode_content does not accept"
            );
        }
    }
}

fn write(value: &impl Serialize, bytes: &mut Vec<u8>) {
    let written = postcard::serialize_with_flavor(value, Output(bytes));
    debug_assert_eq!(
        written,
        Ok(()),
        "a vector accepts any byte, and every list has a length"
    );
}

/// Decodes `bytes` as exactly one frame.
///
/// # Errors
/// Why the bytes are not a frame.
pub fn decode(bytes: &[u8]) -> Result<Frame, FrameError> {
    let most = if bytes.get(1) == Some(&BATCH) {
        MAX_BATCH
    } else {
        MAX_FRAME
    };
    read(bytes, 1, most)
}

/// Decodes `bytes` as exactly one frame or one message about views.
///
/// # Errors
/// Why the bytes are neither.
pub fn decode_content(bytes: &[u8]) -> Result<Content, FrameError> {
    match bytes.get(1) {
        Some(&VIEW) => read(bytes, 2, MAX_FRAME).map(Content::View),
        _ => decode(bytes).map(Content::Frame),
    }
}

/// Reads what begins at byte `from`.
fn read<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    from: usize,
    most: usize,
) -> Result<T, FrameError> {
    match bytes.first() {
        None => return Err(FrameError::CutShort),
        Some(&VERSION) => {}
        Some(&version) => return Err(FrameError::Version { version }),
    }
    if bytes.len() > most {
        return Err(FrameError::TooLong {
            bytes: bytes.len(),
            most,
        });
    }
    let mut deserializer = postcard::Deserializer::from_flavor(Input::new(&bytes[from..]));
    let value = T::deserialize(&mut deserializer);
    let left = deserializer.finalize().unwrap_or_default();
    let at = bytes.len() - left;
    match value {
        Ok(value) if left == 0 => Ok(value),
        Ok(_) => Err(FrameError::LeftOver { bytes: left }),
        Err(postcard::Error::DeserializeUnexpectedEnd) => Err(FrameError::CutShort),
        Err(_) => Err(FrameError::Malformed { at }),
    }
}

/// Lets postcard append to the caller's vector. postcard's own outputs allocate for each frame.
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
