//! F1, of any bytes at all.

use quorum::frame::{decode, encode};
use quorum::message::Frame;

/// What postcard alone makes of a frame. It knows the bounds, but takes numbers that are longer than they need be.
pub fn by_postcard(bytes: &[u8]) -> Option<Frame> {
    let (frame, left) = postcard::take_from_bytes(bytes.get(1..)?).ok()?;
    (bytes[0] == 1 && left.is_empty()).then_some(frame)
}

/// A frame is what `decode` takes, and it takes each. (But for those that are too long.)
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
                    "{error}: but it is how {frame:?} is encoded"
                );
            }
        }
    }
}
