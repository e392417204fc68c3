//! F2: measures the memory that `decode` allocates. A separate test program, because it replaces the global
//! allocator.

mod common;

use common::counting::{allocated, bounded, Counting, FRAME, NO_FRAME};
use common::frames::frame;
use common::raw::Raw;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use quorum::frame::{encode, MAX_NAMES, MAX_NOTICE, MAX_OPS, MAX_TOKENS, VERSION};
use quorum::message::Op;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

proptest! {
    #[test]
    fn f2_frames(frame in frame()) {
        bounded(&encode(&frame));
    }

    /// Puts a number of any size where a count may be.
    #[test]
    fn f2_corrupt_frames(frame in frame(), at in any::<Index>(), bits in 0..=64u32, cut in any::<Index>()) {
        let mut bytes = encode(&frame);
        let at = at.index(bytes.len());
        let number = Raw::default().number(u64::MAX.checked_shr(64 - bits).unwrap_or(0)).0;
        bytes.splice(at..=at, number);
        bounded(&bytes);
        bounded(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn f2_likely_bytes(kind in 0..4u8, rest in vec(prop_oneof![0..8u8, 0..4u8, any::<u8>()], 0..200)) {
        bounded(&[&[VERSION, kind], rest.as_slice()].concat());
    }

    /// Nested counts, each as large as possible: the most expensive input that the fuzzer found.
    #[test]
    fn f2_nested_counts(sets in 0..40usize, count in 1..=MAX_NAMES, live in any::<bool>()) {
        let mut inner = (0..sets).fold(Raw::default(), |raw, _| tiny(raw.byte(2).assertion(), count)).0;
        if live {
            inner.extend(Raw::default().byte(4).number(0).number(0).number(100).0);
            inner.resize(inner.len() + 100, 0);
        }
        bounded(&Raw::batch().number(MAX_OPS.min(inner.len()) as u64).0.into_iter().chain(inner).collect::<Vec<_>>());
    }
}

/// Appends `count` names of one byte, in ascending order.
fn tiny(raw: Raw, count: usize) -> Raw {
    let counted = raw.number(count as u64);
    (0..count).fold(counted, |raw, place| raw.name(1, place as u8))
}

/// A batch whose count is `ops` and whose content is `sets` lists of names.
fn sets(ops: usize, sets: usize) -> Raw {
    (0..sets).fold(Raw::batch().number(ops as u64), |raw, _| {
        tiny(raw.byte(2).assertion(), MAX_NAMES)
    })
}

/// The frames with the most memory per byte, each at its longest, complete and without the last byte.
#[test]
fn f2_most_expensive_frames() {
    let assert = |count| tiny(Raw::assert(), count);
    let many = Raw::batch().number(1000);
    let asserts = (0..1000).fold(many, |raw, _| tiny(raw.byte(2).assertion(), 1));
    let sync = Raw::op(4).number(0).number(0);
    let frames = [
        ("settled", Raw::batch().bytes_of(MAX_OPS, &[5, 1])),
        ("confirmed", Raw::done().bytes(MAX_OPS, 2).end()),
        ("live", sync.tokens(MAX_TOKENS)),
        (
            "revoked",
            Raw::done().number(0).number(0).tokens(MAX_TOKENS),
        ),
        (
            "given",
            Raw::notice()
                .bytes_of(MAX_NOTICE, &[1, 1])
                .number(0)
                .byte(0),
        ),
        ("a name", assert(1)),
        ("two names", assert(2)),
        ("many names", assert(MAX_NAMES)),
        ("asserts", asserts),
        ("sets", sets(1000, 1000)),
    ];
    for (name, Raw(bytes)) in frames {
        let (all, whole) = allocated(&bytes);
        println!("{name}: {} bytes, {all} allocated", bytes.len());
        assert!(whole, "{name}");
        bounded(&bytes);
        bounded(&bytes[..bytes.len() - 1]);
    }
}

/// The factors are exact, not loose upper bounds.
#[test]
fn f2_factors_are_exact() {
    let Raw(frame) = sets(1000, 1000);
    let (all, whole) = allocated(&frame);
    assert!(whole && all > (FRAME - 1) * frame.len());
    let Raw(none) = sets(MAX_OPS, MAX_OPS / 134 + 1);
    assert!(allocated(&none).0 > (NO_FRAME - 2) * none.len());
    bounded(&none);
}

/// A count without elements after it allocates nothing.
#[test]
fn f2_a_count_alone_allocates_nothing() {
    for count in [2, MAX_OPS as u64, 1 << 32, u64::MAX] {
        for before in [Raw::batch(), Raw::done(), Raw::notice()] {
            assert_eq!(allocated(&before.number(count).byte(0).0), (0, false));
        }
        let sync = Raw::op(4).number(0).number(0);
        assert_eq!(
            allocated(&sync.number(count).byte(0).0),
            (size_of::<Op>(), false)
        );
    }
}
