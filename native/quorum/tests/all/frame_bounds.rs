//! The limits of the format, one by one, and the errors of invalid frames.

use crate::common::raw::Raw;
use quorum::frame::{
    decode, FrameError, MAX_BATCH, MAX_FENCE, MAX_FRAME, MAX_NAME, MAX_NAMES, MAX_NOTICE, MAX_OPS,
    MAX_OTHERS, MAX_TOKENS, VERSION,
};

/// Asserts that `most` is a frame and that `more` breaks a limit.
fn bounded(limit: &str, most: Raw, more: Raw) {
    assert!(decode(&most.0).is_ok(), "{limit}: {:?}", decode(&most.0));
    match decode(&more.0) {
        Err(FrameError::Malformed { at }) => {
            assert!(at > 2 && at <= more.0.len(), "{limit}: at {at}");
        }
        other => panic!("{limit}: {other:?}"),
    }
}

#[test]
fn each_bound_is_exact() {
    let settled = |count| {
        let counted = Raw::batch().number(count as u64);
        (0..count).fold(counted, |raw, _| raw.byte(5).byte(1))
    };
    bounded("ops", settled(MAX_OPS), settled(MAX_OPS + 1));
    let confirmed = |count| Raw::done().bytes(count, 2).end();
    bounded("replies", confirmed(MAX_OPS), confirmed(MAX_OPS + 1));
    let live = |count| Raw::op(4).number(0).number(9999).tokens(count);
    bounded("live", live(MAX_TOKENS), live(MAX_TOKENS + 1));
    let missing = |count| Raw::reply(3).tokens(count).end();
    bounded("missing", missing(MAX_TOKENS), missing(MAX_TOKENS + 1));
    let revoked = |count| Raw::done().number(0).number(0).tokens(count);
    bounded("revoked", revoked(MAX_TOKENS), revoked(MAX_TOKENS + 1));
    // Token and fence: two bytes.
    let given = |count| {
        let counted = Raw::notice().number(count as u64);
        (0..count)
            .fold(counted, |raw, _| raw.number(1).number(2))
            .number(0)
            .byte(0)
    };
    bounded("given", given(MAX_NOTICE), given(MAX_NOTICE + 1));
    // Token, clock, agent and token of a priority, and a mode: five bytes.
    let recalls = |count| {
        let recall = |raw: Raw, _| raw.number(1).number(2).number(3).number(4).byte(0);
        let counted = Raw::notice().number(0).number(count as u64);
        (0..count).fold(counted, recall).byte(0)
    };
    bounded("recalls", recalls(MAX_NOTICE), recalls(MAX_NOTICE + 1));
    let others = |count| Raw::mismatch().tokens(count);
    bounded("others", others(MAX_OTHERS), others(MAX_OTHERS + 1));
    let assert = |count| Raw::assert().names(count);
    bounded("names", assert(MAX_NAMES), assert(MAX_NAMES + 1));
    bounded("names", assert(1), assert(0).byte(0));
    let revoke = |length| Raw::op(6).name(length, b'a');
    bounded("name", revoke(MAX_NAME), revoke(MAX_NAME + 1));
    bounded("name", revoke(1), revoke(0));
}

#[test]
fn a_fence_above_the_highest_is_rejected() {
    let confirm = |fence| Raw::op(1).number(5).number(fence);
    let unlock = |fence| Raw::op(3).number(5).number(fence);
    let assert = |fence| Raw::op(2).number(5).byte(1).number(fence).byte(0).names(1);
    let yes = |fence| Raw::reply(0).number(fence).end();
    let given = |fence| {
        Raw::notice()
            .number(1)
            .number(5)
            .number(fence)
            .number(0)
            .byte(0)
    };
    let all: [&dyn Fn(u64) -> Raw; 5] = [&confirm, &unlock, &given, &assert, &yes];
    for frame in all {
        bounded("fence", frame(MAX_FENCE), frame(MAX_FENCE + 1));
    }
}

#[test]
fn a_run_has_at_least_one_fence() {
    let lock = |run| {
        let mode = Raw::op(0).number(5).byte(1);
        let priority = mode.number(1).number(5);
        priority.byte(0).number(run).names(1)
    };
    for run in [1, 2, u16::MAX.into()] {
        assert!(decode(&lock(run).0).is_ok(), "{run}");
    }
    assert!(matches!(
        decode(&lock(0).0),
        Err(FrameError::Malformed { .. })
    ));
}

#[test]
fn ordered_lists_ascend_strictly() {
    let names = |first, second| Raw::assert().number(2).name(1, first).name(1, second);
    let two = |raw: Raw, first, second| raw.number(2).number(first).number(second);
    let live = |first, second| two(Raw::op(4).number(0).number(9), first, second);
    let missing = |first, second| two(Raw::reply(3), first, second).end();
    for second in [1, 2] {
        bounded("order", names(1, 3), names(2, second));
        bounded("order", live(1, 3), live(2, second.into()));
        bounded("order", missing(1, 3), missing(2, second.into()));
    }
    let longer = |first, second| Raw::assert().number(2).name(first, b'a').name(second, b'a');
    bounded("order", longer(1, 2), longer(2, 1));
}

#[test]
fn a_count_above_the_bytes_left_is_rejected() {
    let none = Raw::notice().number(0).number(0).byte(0);
    for count in [2, 100, u32::MAX.into(), 1 << 62, u64::MAX] {
        let given = Raw::notice().number(count).byte(0);
        let ops = Raw::batch().number(count).byte(5);
        let names = Raw::assert().number(count).byte(1);
        for more in [given, ops, names] {
            bounded("count", none.clone(), more);
        }
    }
    // The length of a name is not a count of elements: `decode` tries to read that many bytes, and they are missing.
    for length in [2, 1 << 20, u64::MAX] {
        assert_eq!(
            decode(&Raw::op(6).number(length).byte(0).0),
            Err(FrameError::CutShort)
        );
    }
}

#[test]
fn the_version_is_checked_first() {
    assert_eq!(decode(&[]), Err(FrameError::CutShort));
    assert_eq!(decode(&[VERSION]), Err(FrameError::CutShort));
    for version in [0, 2, 3, 255] {
        assert_eq!(decode(&[version]), Err(FrameError::Version { version }));
        assert_eq!(
            decode(&vec![version; MAX_FRAME + 1]),
            Err(FrameError::Version { version })
        );
    }
}

#[test]
fn a_frame_that_is_too_long_is_not_read() {
    for (kind, most) in [
        (0, MAX_BATCH),
        (1, MAX_FRAME),
        (2, MAX_FRAME),
        (3, MAX_FRAME),
        (99, MAX_FRAME),
    ] {
        let mut bytes = [vec![VERSION, kind], vec![0x80; most - 1]].concat();
        let error = FrameError::TooLong {
            bytes: most + 1,
            most,
        };
        assert_eq!(decode(&bytes), Err(error));
        bytes.pop();
        assert!(!matches!(decode(&bytes), Err(FrameError::TooLong { .. })));
    }
}

#[test]
fn unknown_kinds_and_long_numbers_are_malformed() {
    let flag = |flag| Raw::notice().number(0).number(0).byte(flag);
    let clock = |bytes: &[u8]| [&[VERSION, 0, 7, 0, 1, 0], bytes].concat();
    let voter = |bytes: &[u8]| [&[VERSION, 2, 0, 0], bytes].concat();
    let wrong = [
        ("frame", vec![VERSION, 4], 2),
        ("operation", Raw::op(8).0, 9),
        ("reply", Raw::reply(5).0, 12),
        ("reason", Raw::reply(1).byte(4).0, 13),
        ("state", vec![VERSION, 2, 0, 3], 4),
        ("flag", flag(2).0, 10),
        ("maybe", vec![VERSION, 0, 7, 2], 4),
        (
            "voter of 65 bits",
            voter(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 3]),
            14,
        ),
        ("longer kind", vec![VERSION, 0x80, 0], 2),
        ("longer clock", clock(&[0x80, 0, 0]), 7),
        ("longer voter", voter(&[0x88, 0x80, 0, 0, 0, 0]), 6),
        ("longer count", voter(&[8, 1, 2, 0x80, 0, 0]), 8),
        ("longer token", voter(&[8, 1, 2, 1, 0x81, 0, 0, 0]), 9),
    ];
    for (what, bytes, at) in wrong {
        assert_eq!(decode(&bytes), Err(FrameError::Malformed { at }), "{what}");
    }
}

#[test]
fn error_texts() {
    let sentences = [
        (
            FrameError::Version { version: 3 },
            "a frame of version 3; this node supports version 1",
        ),
        (
            FrameError::TooLong { bytes: 9, most: 8 },
            "a frame of 9 bytes; at most 8 are allowed",
        ),
        (
            FrameError::Malformed { at: 5 },
            "a frame with an invalid byte at or before offset 5",
        ),
        (
            FrameError::LeftOver { bytes: 3 },
            "a frame followed by 3 more bytes",
        ),
    ];
    for (error, sentence) in sentences {
        assert_eq!(error.to_string(), sentence);
    }
}
