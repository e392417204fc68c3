//! F3: every message of agents and voters fits into a frame, and an agent knows when a batch is full.

use crate::common::frames::op;
use proptest::prelude::*;
use quorum::frame::{
    decode, encode, wire_size, BATCH_BYTES, MAX_BATCH, MAX_FENCE, MAX_FRAME, MAX_NAME, MAX_NAMES,
    MAX_NOTICE, MAX_OPS, MAX_OTHERS, MAX_TOKENS,
};
use quorum::message::{
    Ack, Batch, Digest, Fence, Frame, Generation, Given, Lifetime, Mode, Name, Names, Notice, Op,
    Priority, Recall, Reply, Session, Token, Verdict, VoterState, VoterStatus,
};
use quorum::time::Time;
use std::num::NonZeroU16;

proptest! {
    #[test]
    fn f3_wire_size_is_an_upper_bound(op in op()) {
        let batch = |ops| encode(&Frame::Batch(batch(ops))).len();
        let bytes = batch(vec![op.clone()]) - batch(vec![]);
        prop_assert!(bytes <= wire_size(&op), "{} bytes", bytes);
    }
}

fn batch(ops: Vec<Op>) -> Batch {
    let session = Session {
        voter: Lifetime(u64::MAX),
        generation: Generation(u64::MAX),
    };
    Batch {
        agent: Lifetime(u64::MAX),
        session: Some(session),
        seq: u64::MAX,
        stamp: Time::LONG_AGO,
        clock: u64::MAX,
        ops,
    }
}

/// `count` names of the greatest length.
fn longest(count: usize) -> Vec<Name> {
    let name =
        |place: usize| [vec![place as u8, (place >> 8) as u8], vec![0; MAX_NAME - 2]].concat();
    (0..count)
        .map(|place| Name::new(&name(place)).unwrap())
        .collect()
}

/// `count` tokens of the greatest length.
fn tokens(count: usize) -> Vec<Token> {
    (0..count as u64)
        .rev()
        .map(|place| Token(u64::MAX - place))
        .collect()
}

#[test]
fn f3_wire_size_is_exact_for_the_longest_operations() {
    let token = Token(u64::MAX);
    let (mode, fence) = (Mode::Write, Fence(MAX_FENCE));
    let names = Names::new(longest(MAX_NAMES)).unwrap();
    let longest = [
        Op::Lock {
            token,
            mode,
            clock: u64::MAX,
            first: token,
            wait: true,
            run: NonZeroU16::MAX,
            names: names.clone(),
        },
        Op::Confirm { token, fence },
        Op::Assert {
            token,
            mode,
            fence,
            continues: true,
            names,
        },
        Op::Unlock { token, fence },
        Op::Sync {
            from: token,
            to: token,
            live: tokens(MAX_TOKENS),
        },
        Op::Settled { kept: true },
        Op::Revoke {
            name: longest(1).remove(0),
        },
        Op::EndAgent {
            agent: Lifetime(u64::MAX),
        },
    ];
    let empty = encode(&Frame::Batch(batch(vec![]))).len();
    for op in longest {
        let bytes = encode(&Frame::Batch(batch(vec![op.clone()]))).len() - empty;
        assert_eq!(bytes, wire_size(&op), "{op:?}");
    }
}

#[test]
fn f3_a_batch_filled_to_the_last_byte_is_a_frame() {
    let token = Token(u64::MAX);
    let unlock = Op::Unlock {
        token,
        fence: Fence(MAX_FENCE),
    };
    let mut ops = vec![unlock; 3000];
    let left = |ops: &[Op]| BATCH_BYTES - ops.iter().map(wire_size).sum::<usize>();
    while left(&ops) > 5 * MAX_NAME {
        ops.push(Op::Revoke {
            name: longest(1).remove(0),
        });
    }
    ops.push(Op::Sync {
        from: token,
        to: token,
        live: tokens((left(&ops) - 600) / 10),
    });
    let name = left(&ops)
        - wire_size(&Op::Revoke {
            name: Name::new(&[1]).unwrap(),
        })
        + 1;
    ops.push(Op::Revoke {
        name: Name::new(&vec![1; name]).unwrap(),
    });
    assert_eq!(left(&ops), 0);
    assert!(ops.len() > 128, "the count takes two bytes");
    assert_eq!(encode(&Frame::Batch(batch(ops))).len(), MAX_BATCH);
}

/// The longest answers to the longest batches: as many replies and missing tokens as a batch can cause.
#[test]
fn f3_the_answer_to_any_batch_fits_into_a_frame() {
    let status = VoterStatus {
        clock: u64::MAX,
        state: VoterState::NoStore,
    };
    let Batch {
        agent,
        session,
        seq,
        stamp,
        ..
    } = batch(vec![]);
    let synced = || Reply::Synced {
        missing: tokens(MAX_TOKENS),
    };
    let syncs = BATCH_BYTES / (10 * MAX_TOKENS);
    let mut replies = vec![
        Reply::Yes {
            fence: Fence(MAX_FENCE)
        };
        MAX_OPS - syncs - 1
    ];
    replies.extend((0..=syncs).map(|_| synced()));
    let revoked = tokens(MAX_TOKENS);
    let verdict = Verdict::Done {
        replies,
        digest: Digest(u64::MAX),
        revoked,
    };
    let session = session.unwrap();
    let mismatch = Verdict::Mismatch {
        named: Some(session),
        others: vec![agent; MAX_OTHERS],
    };
    let [ack, mismatch] = [verdict, mismatch].map(|verdict| {
        Frame::Ack(Ack {
            status,
            agent,
            session,
            seq,
            stamp,
            verdict,
        })
    });
    let token = Token(u64::MAX);
    let recall = Recall {
        token,
        priority: Priority {
            clock: u64::MAX,
            agent,
            token,
        },
        mode: Mode::Write,
    };
    let notice = Frame::Notice(Notice {
        status,
        voter: agent,
        generation: Generation(u64::MAX),
        seq: u64::MAX,
        given: vec![
            Given {
                token,
                fence: Fence(MAX_FENCE)
            };
            MAX_NOTICE
        ],
        recalls: vec![recall; MAX_NOTICE],
        wants_batch: true,
    });
    for frame in [ack, mismatch, notice] {
        let bytes = encode(&frame);
        assert!(bytes.len() <= MAX_FRAME, "{} bytes", bytes.len());
        assert_eq!(decode(&bytes), Ok(frame));
    }
}
