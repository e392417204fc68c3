//! proptest strategies for any frame that agents and voters can send.

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use quorum::frame::{MAX_FENCE, MAX_NAME, MAX_NAMES};
use quorum::message::{
    Ack, Batch, Digest, Fence, Floor, Frame, Generation, Lifetime, Mode, Name, Names, Notice, Op,
    Reason, Reply, Session, Token, Turn, Verdict,
};
use quorum::time::Time;
use std::num::NonZeroU8;

/// Numbers of all encoded lengths.
fn number() -> impl Strategy<Value = u64> {
    (0..=64u32, any::<u64>()).prop_map(|(bits, word)| word.checked_shr(64 - bits).unwrap_or(0))
}

fn epoch() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0), 1 => any::<u32>()]
}

fn stamp() -> impl Strategy<Value = Time> {
    prop_oneof![any::<i64>(), Just(i64::MIN), Just(i64::MAX), -100..100i64].prop_map(Time)
}

fn lifetime() -> impl Strategy<Value = Lifetime> {
    number().prop_map(Lifetime)
}

fn token() -> impl Strategy<Value = Token> {
    number().prop_map(Token)
}

fn fence() -> impl Strategy<Value = Fence> {
    prop_oneof![
        number().prop_map(|word| word.min(MAX_FENCE)),
        Just(MAX_FENCE)
    ]
    .prop_map(Fence)
}

fn session() -> impl Strategy<Value = Session> {
    (lifetime(), number()).prop_map(|(voter, generation)| Session {
        voter,
        generation: Generation(generation),
    })
}

/// Any name. Most are short.
pub fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        8 => vec(any::<u8>(), 1..=20),
        1 => vec(any::<u8>(), 120..=140),
        1 => any::<u8>().prop_map(|byte| vec![byte; MAX_NAME]),
    ]
    .prop_map(|bytes| Name::new(&bytes).unwrap())
}

/// The names of any lock. Most locks have one name.
pub fn names() -> impl Strategy<Value = Names> {
    prop_oneof![
        8 => name().prop_map(Names::from),
        4 => btree_set(name(), 2..=6).prop_map(|set| Names::new(set.into_iter().collect()).unwrap()),
        1 => any::<u8>().prop_map(|byte| {
            let names = (0..MAX_NAMES as u8).map(|place| Name::new(&[place, byte]).unwrap());
            Names::new(names.collect()).unwrap()
        }),
    ]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Read), Just(Mode::Write)]
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![Just(Turn::Unknown), Just(Turn::Earlier), Just(Turn::Nobody)]
}

fn ascending() -> impl Strategy<Value = Vec<Token>> {
    btree_set(token(), 0..=12).prop_map(|set| set.into_iter().collect())
}

/// Any operation.
pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (
            token(),
            mode(),
            turn(),
            fence(),
            any::<NonZeroU8>(),
            names()
        )
            .prop_map(|(token, mode, turn, guess, run, names)| Op::Lock {
                token,
                mode,
                turn,
                guess,
                run,
                names
            }),
        (token(), fence()).prop_map(|(token, fence)| Op::Confirm { token, fence }),
        (token(), mode(), fence(), names()).prop_map(|(token, mode, fence, names)| Op::Assert {
            token,
            mode,
            fence,
            names
        }),
        (token(), fence()).prop_map(|(token, fence)| Op::Unlock { token, fence }),
        names().prop_map(|names| Op::Leave { names }),
        (token(), token(), ascending()).prop_map(|(from, to, live)| Op::Sync { from, to, live }),
        Just(Op::Settled),
        name().prop_map(|name| Op::Revoke { name }),
    ]
}

fn reason() -> impl Strategy<Value = Reason> {
    prop_oneof![
        Just(Reason::Readers),
        Just(Reason::Writer),
        Just(Reason::Turn),
        Just(Reason::Quarantine),
        Just(Reason::Storing),
    ]
}

/// Any reply.
pub fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        fence().prop_map(|fence| Reply::Yes { fence }),
        reason().prop_map(|reason| Reply::No { reason }),
        Just(Reply::Confirmed),
        Just(Reply::Missing),
        ascending().prop_map(|missing| Reply::Synced { missing }),
    ]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        (vec(reply(), 0..=20), number(), vec(token(), 0..=5)).prop_map(
            |(replies, digest, revoked)| Verdict::Done {
                replies,
                digest: Digest(digest),
                revoked
            }
        ),
        option::of(session()).prop_map(|named| Verdict::Mismatch { named }),
        Just(Verdict::OtherEpoch),
    ]
}

/// Any frame.
pub fn frame() -> impl Strategy<Value = Frame> {
    let batch = (
        epoch(),
        lifetime(),
        option::of(session()),
        number(),
        stamp(),
        vec(op(), 0..=20),
    );
    let ack = (epoch(), lifetime(), session(), number(), stamp(), verdict());
    let notice = (epoch(), lifetime(), vec(name(), 0..=8), any::<bool>());
    let floor = (epoch(), lifetime(), option::of((any::<bool>(), fence())));
    prop_oneof![
        batch.prop_map(|(epoch, agent, session, seq, stamp, ops)| {
            Frame::Batch(Batch {
                epoch,
                agent,
                session,
                seq,
                stamp,
                ops,
            })
        }),
        ack.prop_map(|(epoch, agent, session, seq, stamp, verdict)| {
            Frame::Ack(Ack {
                epoch,
                agent,
                session,
                seq,
                stamp,
                verdict,
            })
        }),
        notice.prop_map(|(epoch, voter, hints, speak)| {
            Frame::Notice(Notice {
                epoch,
                voter,
                hints,
                speak,
            })
        }),
        floor.prop_map(|(epoch, asker, fence)| {
            Frame::Floor(match fence {
                None => Floor::Ask { epoch, asker },
                Some((true, fence)) => Floor::Told {
                    epoch,
                    asker,
                    fence,
                },
                Some((false, origin)) => Floor::Lost {
                    epoch,
                    asker,
                    origin,
                },
            })
        }),
    ]
}
