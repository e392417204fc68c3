//! proptest strategies for any frame that agents and voters can send.

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use quorum::frame::{MAX_FENCE, MAX_NAME, MAX_NAMES};
use quorum::message::{
    Ack, Batch, Digest, Fence, Frame, Generation, Given, Life, Lifetime, Mode, Name, Names, Notice,
    Op, Priority, Reason, Recall, Reply, Session, Token, Verdict, VoterState, VoterStatus,
};
use quorum::time::Time;
use std::num::NonZeroU16;

/// Numbers of all encoded lengths.
fn number() -> impl Strategy<Value = u64> {
    (0..=64u32, any::<u64>()).prop_map(|(bits, word)| word.checked_shr(64 - bits).unwrap_or(0))
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

fn status() -> impl Strategy<Value = VoterStatus> {
    let state = prop_oneof![
        Just(VoterState::Voting),
        Just(VoterState::Quarantined),
        Just(VoterState::NoStore),
    ];
    (number(), state).prop_map(|(clock, state)| VoterStatus { clock, state })
}

fn recall() -> impl Strategy<Value = Recall> {
    (token(), number(), lifetime(), token(), mode()).prop_map(
        |(token, clock, agent, first, mode)| Recall {
            token,
            priority: Priority {
                clock,
                agent,
                token: first,
            },
            mode,
        },
    )
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
            (number(), token(), any::<bool>()),
            any::<NonZeroU16>(),
            names()
        )
            .prop_map(|(token, mode, (clock, first, wait), run, names)| Op::Lock {
                token,
                mode,
                clock,
                first,
                wait,
                run,
                names
            }),
        (token(), fence()).prop_map(|(token, fence)| Op::Confirm { token, fence }),
        (token(), mode(), fence(), any::<bool>(), names()).prop_map(
            |(token, mode, fence, continues, names)| Op::Assert {
                token,
                mode,
                fence,
                continues,
                names
            }
        ),
        (token(), fence()).prop_map(|(token, fence)| Op::Unlock { token, fence }),
        (token(), token(), ascending()).prop_map(|(from, to, live)| Op::Sync { from, to, live }),
        Just(Op::Settled { kept: true }),
        name().prop_map(|name| Op::Revoke { name }),
        lifetime().prop_map(|agent| Op::EndAgent { agent }),
    ]
}

fn reason() -> impl Strategy<Value = Reason> {
    prop_oneof![
        Just(Reason::Busy),
        Just(Reason::Queued),
        Just(Reason::Quarantine),
        Just(Reason::Storing),
    ]
}

/// Any reply.
pub fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        fence().prop_map(|fence| Reply::Yes { fence }),
        reason().prop_map(|reason| Reply::No { reason }),
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
        (option::of(session()), vec(lifetime(), 0..=3))
            .prop_map(|(named, others)| Verdict::Mismatch { named, others }),
    ]
}

/// Any frame.
pub fn frame() -> impl Strategy<Value = Frame> {
    let batch = (
        (lifetime(), option::of(session())),
        (number(), stamp()),
        number(),
        vec(op(), 0..=20),
    );
    let ack = (
        status(),
        lifetime(),
        session(),
        number(),
        stamp(),
        verdict(),
    );
    let notice = (
        (status(), lifetime(), number(), number()),
        vec(
            (token(), fence()).prop_map(|(token, fence)| Given { token, fence }),
            0..=8,
        ),
        vec(recall(), 0..=8),
        any::<bool>(),
    );
    let answer = (lifetime(), lifetime());
    let life = (lifetime(), option::of(answer));
    prop_oneof![
        batch.prop_map(|(head, (seq, stamp), clock, ops)| {
            let (agent, session) = head;
            Frame::Batch(Batch {
                agent,
                session,
                seq,
                stamp,
                clock,
                ops,
            })
        }),
        ack.prop_map(|(status, agent, session, seq, stamp, verdict)| {
            Frame::Ack(Ack {
                status,
                agent,
                session,
                seq,
                stamp,
                verdict,
            })
        }),
        notice.prop_map(
            |((status, voter, generation, seq), given, recalls, wants_batch)| {
                Frame::Notice(Notice {
                    status,
                    voter,
                    generation: Generation(generation),
                    seq,
                    given,
                    recalls,
                    wants_batch,
                })
            }
        ),
        life.prop_map(|(asker, answer)| {
            Frame::Life(match answer {
                None => Life::Ask { asker },
                Some((voter, seen)) => Life::Answer { asker, voter, seen },
            })
        }),
    ]
}
