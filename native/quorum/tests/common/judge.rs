//! F1 for any bytes.

use quorum::frame::{decode, encode, VERSION};
use quorum::message::Frame;

/// The frame that postcard alone decodes. It checks the limits but accepts numbers that are not in their shortest
/// form.
pub fn by_postcard(bytes: &[u8]) -> Option<Frame> {
    let (frame, left) = postcard::take_from_bytes(bytes.get(1..)?).ok()?;
    (bytes[0] == VERSION && left.is_empty()).then_some(frame)
}

/// Asserts that `decode` accepts exactly the encodings of frames, except frames that are too long.
pub fn judge(bytes: &[u8]) {
    match decode(bytes) {
        Ok(frame) => {
            assert_eq!(encode(&frame), bytes);
            assert_eq!(by_postcard(bytes), Some(frame));
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if let Some(frame) = by_postcard(bytes) {
                assert!(
                    encode(&frame) != bytes,
                    "{error}, but the bytes are the encoding of {frame:?}"
                );
            }
        }
    }
}
