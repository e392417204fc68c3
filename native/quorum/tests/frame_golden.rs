//! The encoding of each version, in a file: `tests/golden/v1.txt` has one line for each kind of frame, operation and
//! reply, with its name and bytes. A released encoding must not change: a difference here is a difference between
//! nodes.
//!
//! To add a version of the format, raise `frame::VERSION`, append the new messages to [`frames`], run the test, and
//! store what it prints in `tests/golden/v2.txt`. Keep the file of version 1, with a test that decodes it, while
//! nodes support version 1; otherwise delete it.

use quorum::frame::{decode, encode, MAX_FENCE, VERSION};
use quorum::message::{
    Ack, Batch, Digest, Fence, Floor, Frame, Generation, Lifetime, Mode, Name, Names, Notice, Op,
    Reason, Reply, Session, Token, Turn, Verdict,
};
use quorum::time::Time;
use std::collections::BTreeSet;
use std::num::NonZeroU8;

const GOLDEN: &str = include_str!("golden/v1.txt");

fn names(names: &[&str]) -> Names {
    Names::new(
        names
            .iter()
            .map(|name| Name::new(name.as_bytes()).unwrap())
            .collect(),
    )
    .unwrap()
}

fn tokens(tokens: &[u64]) -> Vec<Token> {
    tokens.iter().copied().map(Token).collect()
}

fn session() -> Session {
    Session {
        voter: Lifetime(0x0123_4567_89ab_cdef),
        generation: Generation(3),
    }
}

fn batch(ops: Vec<Op>) -> Frame {
    let agent = Lifetime(300);
    Frame::Batch(Batch {
        epoch: 0,
        agent,
        session: Some(session()),
        seq: 17,
        stamp: Time(1_000_000_000),
        ops,
    })
}

fn ack(verdict: Verdict) -> Frame {
    let agent = Lifetime(300);
    Frame::Ack(Ack {
        epoch: 0,
        agent,
        session: session(),
        seq: 17,
        stamp: Time(1_000_000_000),
        verdict,
    })
}

fn done(replies: Vec<Reply>) -> Frame {
    ack(Verdict::Done {
        replies,
        digest: Digest(0xfeed),
        revoked: vec![],
    })
}

fn frames() -> Vec<Frame> {
    let token = Token(129);
    let fence = Fence(70_000);
    let write = Mode::Write;
    let both = names(&["a", "bc"]);
    let lock = |token, mode, turn, guess, names| Op::Lock {
        token,
        mode,
        turn,
        guess,
        run: if mode == write {
            NonZeroU8::MAX
        } else {
            NonZeroU8::MIN
        },
        names,
    };
    let mut all = vec![
        Frame::Batch(Batch {
            epoch: 1,
            agent: Lifetime(u64::MAX),
            session: None,
            seq: 0,
            stamp: Time(-2),
            ops: vec![],
        }),
        batch(vec![
            Op::Settled,
            Op::Unlock { token, fence },
            lock(
                Token(130),
                Mode::Read,
                Turn::Unknown,
                Fence(0),
                both.clone(),
            ),
        ]),
        ack(Verdict::Done {
            replies: vec![],
            digest: Digest(u64::MAX),
            revoked: tokens(&[9, 5, 128]),
        }),
        done(vec![Reply::Confirmed, Reply::Missing]),
        ack(Verdict::Mismatch { named: None }),
        ack(Verdict::Mismatch {
            named: Some(session()),
        }),
        ack(Verdict::OtherEpoch),
        Frame::Notice(Notice {
            epoch: 0,
            voter: Lifetime(1),
            hints: vec![],
            speak: true,
        }),
        Frame::Notice(Notice {
            epoch: 0,
            voter: Lifetime(1),
            hints: [b"bc", b"a\0"].map(|name| Name::new(name).unwrap()).into(),
            speak: false,
        }),
        Frame::Floor(Floor::Ask {
            epoch: 0,
            asker: Lifetime(128),
        }),
        Frame::Floor(Floor::Told {
            epoch: 0,
            asker: Lifetime(128),
            fence: Fence(MAX_FENCE),
        }),
    ];
    let ops = [
        lock(token, write, Turn::Earlier, fence, names(&["orders/7"])),
        lock(token, write, Turn::Nobody, fence, names(&["orders/7"])),
        Op::Confirm { token, fence },
        Op::Assert {
            token,
            mode: Mode::Read,
            fence,
            names: both.clone(),
        },
        Op::Unlock { token, fence },
        Op::Leave { names: both },
        Op::Sync {
            from: Token(0),
            to: Token(1000),
            live: tokens(&[1, 127, 128, 999]),
        },
        Op::Settled,
        Op::Revoke {
            name: Name::new(&[0, 0xff]).unwrap(),
        },
    ];
    let reasons = [
        Reason::Readers,
        Reason::Writer,
        Reason::Turn,
        Reason::Quarantine,
        Reason::Storing,
    ];
    let replies = [
        Reply::Yes { fence },
        Reply::Confirmed,
        Reply::Missing,
        Reply::Synced {
            missing: tokens(&[127, 999]),
        },
    ];
    all.extend(ops.into_iter().map(|op| batch(vec![op])));
    all.extend(
        reasons
            .into_iter()
            .map(|reason| done(vec![Reply::No { reason }])),
    );
    all.extend(replies.into_iter().map(|reply| done(vec![reply])));
    all.push(Frame::Floor(Floor::Lost {
        epoch: 0,
        asker: Lifetime(128),
        origin: fence,
    }));
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

/// The name of a line. The matches have no `_` arm, so a new message does not compile without a name, and then fails
/// for lack of its line.
fn name(frame: &Frame) -> String {
    let (kind, detail) = match frame {
        Frame::Batch(Batch { ops, .. }) => (
            "batch",
            ops.iter().map(name_of_op).collect::<Vec<_>>().join("+"),
        ),
        Frame::Ack(Ack { verdict, .. }) => match verdict {
            Verdict::Done { replies, .. } => (
                "done",
                replies
                    .iter()
                    .map(name_of_reply)
                    .collect::<Vec<_>>()
                    .join("+"),
            ),
            Verdict::Mismatch { named } => ("mismatch", format!("named={}", named.is_some())),
            Verdict::OtherEpoch => ("other_epoch", String::new()),
        },
        Frame::Notice(Notice { hints, speak, .. }) => {
            ("notice", format!("hints={},speak={speak}", hints.len()))
        }
        Frame::Floor(Floor::Ask { .. }) => ("ask", String::new()),
        Frame::Floor(Floor::Told { .. }) => ("told", String::new()),
        Frame::Floor(Floor::Lost { .. }) => ("lost", String::new()),
    };
    format!("{kind}({detail})")
}

fn name_of_op(op: &Op) -> String {
    match op {
        Op::Lock { mode, turn, .. } => {
            format!("lock({},{})", name_of_mode(*mode), name_of_turn(*turn))
        }
        Op::Confirm { .. } => "confirm".into(),
        Op::Assert { mode, .. } => format!("assert({})", name_of_mode(*mode)),
        Op::Unlock { .. } => "unlock".into(),
        Op::Leave { .. } => "leave".into(),
        Op::Sync { .. } => "sync".into(),
        Op::Settled => "settled".into(),
        Op::Revoke { .. } => "revoke".into(),
    }
}

fn name_of_turn(turn: Turn) -> &'static str {
    match turn {
        Turn::Unknown => "unknown",
        Turn::Earlier => "earlier",
        Turn::Nobody => "nobody",
    }
}

fn name_of_mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "read",
        Mode::Write => "write",
    }
}

fn name_of_reply(reply: &Reply) -> String {
    match reply {
        Reply::Yes { .. } => "yes".into(),
        Reply::No { reason } => match reason {
            Reason::Readers => "no(readers)".into(),
            Reason::Writer => "no(writer)".into(),
            Reason::Turn => "no(turn)".into(),
            Reason::Quarantine => "no(quarantine)".into(),
            Reason::Storing => "no(storing)".into(),
        },
        Reply::Confirmed => "confirmed".into(),
        Reply::Missing => "missing".into(),
        Reply::Synced { .. } => "synced".into(),
    }
}

#[test]
fn the_encoding_is_unchanged() {
    let lines: Vec<_> = frames()
        .iter()
        .map(|frame| format!("{} = {}\n", name(frame), hex(&encode(frame))))
        .collect();
    let golden: String = GOLDEN
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(
        lines.concat() == golden,
        "golden/v{VERSION}.txt would be:\n{}",
        lines.concat()
    );
    let names: BTreeSet<_> = lines.iter().map(|line| line.split(" = ").next()).collect();
    assert_eq!(names.len(), lines.len(), "two lines have the same name");
}

#[test]
fn golden_frames_decode() {
    let golden = GOLDEN.lines().filter_map(|line| line.split_once(" = "));
    let decoded: Vec<_> = golden
        .map(|(name, hex)| (name, decode(&bytes(hex))))
        .collect();
    assert_eq!(decoded.len(), frames().len());
    for (frame, (line, decoded)) in frames().into_iter().zip(decoded) {
        assert_eq!(decoded, Ok(frame), "{line}");
    }
}
