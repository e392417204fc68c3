//! F1: each frame has exactly one encoding, and any bytes decode to a frame or an error.

use crate::common::frames::frame;
use crate::common::judge::{by_postcard, judge};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use quorum::frame::{decode, encode, encode_into, FrameError, VERSION};
use quorum::message::{Batch, Fence, Frame, Lifetime, Op, Token};
use quorum::time::Time;

/// A way to corrupt a frame.
#[derive(Clone, Debug)]
enum Harm {
    Flip(Index, u8),
    Put(Index, u8),
    Cut(Index),
    Drop(Index),
    /// Replaces a byte with a number of this many bits.
    Number(Index, u32),
    /// Makes the number that ends at this byte one byte longer, if one ends there.
    Longer(Index),
    /// Continues with the rest of another frame.
    Splice(Index, Index, Vec<u8>),
    Twice(Index, Index),
}

fn harm() -> impl Strategy<Value = Harm> {
    let place = any::<Index>;
    prop_oneof![
        3 => (place(), 0..8u8).prop_map(|(at, bit)| Harm::Flip(at, 1 << bit)),
        2 => (place(), any::<u8>()).prop_map(|(at, byte)| Harm::Put(at, byte)),
        1 => place().prop_map(Harm::Cut),
        1 => place().prop_map(Harm::Drop),
        2 => (place(), 0..=70u32).prop_map(|(at, bits)| Harm::Number(at, bits)),
        2 => place().prop_map(Harm::Longer),
        1 => (place(), place(), frame()).prop_map(|(at, from, other)| Harm::Splice(at, from, encode(&other))),
        1 => (place(), place()).prop_map(|(from, to)| Harm::Twice(from, to)),
    ]
}

fn harmed(mut bytes: Vec<u8>, harm: Harm) -> Vec<u8> {
    if bytes.is_empty() {
        return bytes;
    }
    let length = bytes.len();
    match harm {
        Harm::Flip(at, bit) => bytes[at.index(length)] ^= bit,
        Harm::Put(at, byte) => bytes[at.index(length)] = byte,
        Harm::Cut(at) => bytes.truncate(at.index(length)),
        Harm::Drop(at) => drop(bytes.remove(at.index(length))),
        Harm::Number(at, bits) => {
            let mut number = vec![0xff; (bits / 7) as usize];
            number.push(0x7f >> (7 - bits % 7));
            let at = at.index(length);
            bytes.splice(at..=at, number);
        }
        Harm::Longer(at) => {
            let at = at.index(length);
            bytes[at] |= 0x80;
            bytes.insert(at + 1, 0);
        }
        Harm::Splice(at, from, other) => {
            bytes.truncate(at.index(length));
            bytes.extend(&other[from.index(other.len())..]);
        }
        Harm::Twice(from, to) => {
            let (from, to) = (from.index(length), to.index(length));
            let copy = bytes[from.min(to)..from.max(to)].to_vec();
            bytes.splice(to..to, copy);
        }
    }
    bytes
}

proptest! {
    #[test]
    fn f1_decode_returns_the_encoded_frame(frame in frame(), mut buffer in vec(any::<u8>(), 0..100)) {
        let bytes = encode(&frame);
        prop_assert_eq!(decode(&bytes), Ok(frame.clone()));
        prop_assert_eq!(by_postcard(&bytes), Some(frame.clone()));
        encode_into(&frame, &mut buffer);
        prop_assert_eq!(buffer, bytes);
    }

    #[test]
    fn f1_any_bytes_are_a_frame_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        judge(&bytes);
    }

    /// Valid version and frequent byte values, so that more of each frame is read.
    #[test]
    fn f1_likely_bytes_are_a_frame_or_an_error(
        kind in 0..4u8,
        rest in vec(prop_oneof![0..8u8, 0..4u8, any::<u8>()], 0..60),
    ) {
        judge(&[&[VERSION, kind], rest.as_slice()].concat());
    }

    #[test]
    fn f1_a_corrupt_frame_is_another_frame_or_an_error(frame in frame(), harms in vec(harm(), 1..4)) {
        judge(&harms.into_iter().fold(encode(&frame), harmed));
    }

    /// Also if the count before the cut is valid.
    #[test]
    fn a_truncated_frame_is_an_error(frame in frame(), at in any::<Index>()) {
        let bytes = encode(&frame);
        let error = decode(&bytes[..at.index(bytes.len())]).unwrap_err();
        let short = matches!(error, FrameError::CutShort | FrameError::Malformed { .. });
        prop_assert!(short, "{}", error);
    }

    #[test]
    fn bytes_after_a_frame_are_an_error(frame in frame(), more in vec(any::<u8>(), 1..4)) {
        let bytes = [encode(&frame), more.clone()].concat();
        prop_assert_eq!(decode(&bytes), Err(FrameError::LeftOver { bytes: more.len() }));
    }
}

fn confirm(fence: Fence) -> Frame {
    let token = Token(1);
    Frame::Batch(Batch {
        agent: Lifetime(1),
        session: None,
        seq: 1,
        stamp: Time(1),
        clock: 1,
        ops: vec![Op::Confirm { token, fence }],
    })
}

#[test]
fn encode_into_reuses_memory() {
    let mut bytes = Vec::with_capacity(100);
    let before = bytes.as_ptr();
    for _ in 0..3 {
        encode_into(&confirm(Fence(9)), &mut bytes);
        assert_eq!(bytes.as_ptr(), before);
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "encoded a frame that decode does not accept")]
fn encoding_a_frame_that_breaks_a_bound_panics() {
    let _ = encode(&confirm(Fence(quorum::frame::MAX_FENCE + 1)));
}
