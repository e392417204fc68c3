//! The encoding, in a file: `tests/golden/v1.txt` has one line for each kind of frame, operation and reply, with its
//! name and bytes. A released encoding must not change: a difference here is a difference between nodes.
//!
//! If the format changes before a release, run the test and store what it prints.

use quorum::frame::{decode, encode, VERSION};
use quorum::message::{
    Ack, Batch, Digest, Fence, Frame, Generation, Given, Life, Lifetime, Mode, Name, Names, Notice,
    Op, Priority, Reason, Recall, Reply, Session, Token, Verdict, VoterState, VoterStatus,
};
use quorum::time::Time;
use std::collections::BTreeSet;
use std::num::NonZeroU16;

const GOLDEN: &str = include_str!("../golden/v1.txt");

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
        agent,
        session: Some(session()),
        seq: 17,
        stamp: Time(1_000_000_000),
        clock: 1000,
        ops,
    })
}

fn status(state: VoterState) -> VoterStatus {
    VoterStatus { clock: 1000, state }
}

fn ack(verdict: Verdict) -> Frame {
    let agent = Lifetime(300);
    Frame::Ack(Ack {
        status: status(VoterState::Voting),
        agent,
        session: session(),
        seq: 17,
        stamp: Time(1_000_000_000),
        verdict,
    })
}

fn notice(given: Vec<Given>, recalls: Vec<Recall>, wants_batch: bool) -> Frame {
    Frame::Notice(Notice {
        status: status(VoterState::Voting),
        voter: Lifetime(1),
        generation: Generation(2),
        seq: 300,
        given,
        recalls,
        wants_batch,
    })
}

fn in_state(state: VoterState) -> Frame {
    Frame::Notice(Notice {
        status: status(state),
        voter: Lifetime(1),
        generation: Generation(2),
        seq: 0,
        given: vec![],
        recalls: vec![],
        wants_batch: false,
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
    let lock = |token, mode, wait, names| Op::Lock {
        token,
        mode,
        clock: 999,
        first: Token(128),
        wait,
        run: if mode == write {
            NonZeroU16::MAX
        } else {
            NonZeroU16::MIN
        },
        names,
    };
    let recall = Recall {
        token,
        priority: Priority {
            clock: 998,
            agent: Lifetime(300),
            token: Token(7),
        },
        mode: write,
    };
    let mut all = vec![
        Frame::Batch(Batch {
            agent: Lifetime(u64::MAX),
            session: None,
            seq: 0,
            stamp: Time(-2),
            clock: 0,
            ops: vec![],
        }),
        batch(vec![
            Op::Settled { kept: true },
            Op::Unlock { token, fence },
            lock(Token(130), Mode::Read, false, both.clone()),
        ]),
        ack(Verdict::Done {
            replies: vec![],
            digest: Digest(u64::MAX),
            revoked: tokens(&[9, 5, 128]),
        }),
        done(vec![Reply::Yes { fence }, Reply::Missing]),
        ack(Verdict::Mismatch {
            named: None,
            others: vec![],
        }),
        ack(Verdict::Mismatch {
            named: Some(session()),
            others: vec![Lifetime(1), Lifetime(300)],
        }),
        notice(vec![], vec![], true),
        notice(
            vec![
                Given {
                    token: Token(9),
                    fence,
                },
                Given { token, fence },
            ],
            vec![],
            false,
        ),
        notice(vec![], vec![recall], false),
        Frame::Life(Life::Ask {
            asker: Lifetime(128),
        }),
        Frame::Life(Life::Answer {
            asker: Lifetime(128),
            voter: Lifetime::new(3, 1),
            seen: Lifetime(128),
        }),
    ];
    let ops = [
        lock(token, write, false, names(&["orders/7"])),
        lock(token, write, true, names(&["orders/7"])),
        Op::Confirm { token, fence },
        Op::Assert {
            token,
            mode: Mode::Read,
            fence,
            continues: true,
            names: both,
        },
        Op::Unlock { token, fence },
        Op::Sync {
            from: Token(0),
            to: Token(1000),
            live: tokens(&[1, 127, 128, 999]),
        },
        Op::Settled { kept: true },
        Op::Revoke {
            name: Name::new(&[0, 0xff]).unwrap(),
        },
        Op::EndAgent {
            agent: Lifetime(300),
        },
    ];
    let reasons = [
        Reason::Busy,
        Reason::Queued,
        Reason::Quarantine,
        Reason::Storing,
    ];
    let states = [
        VoterState::Voting,
        VoterState::Quarantined,
        VoterState::NoStore,
    ];
    let replies = [
        Reply::Yes { fence },
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
    all.extend(states.into_iter().map(in_state));
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
            Verdict::Mismatch { named, others } => {
                let named = named.is_some();
                ("mismatch", format!("named={named},others={}", others.len()))
            }
        },
        Frame::Notice(notice) => {
            let (given, recalls) = (notice.given.len(), notice.recalls.len());
            let (state, wants_batch) = (name_of_state(notice.status.state), notice.wants_batch);
            let detail = match given + recalls {
                0 if !wants_batch => state.into(),
                _ => format!("{state},given={given},recalls={recalls},wants_batch={wants_batch}"),
            };
            ("notice", detail)
        }
        Frame::Life(Life::Ask { .. }) => ("ask", String::new()),
        Frame::Life(Life::Answer { .. }) => ("answer", String::new()),
    };
    format!("{kind}({detail})")
}

fn name_of_op(op: &Op) -> String {
    match op {
        Op::Lock { mode, wait, .. } => format!("lock({},wait={wait})", name_of_mode(*mode)),
        Op::Confirm { .. } => "confirm".into(),
        Op::Assert { mode, .. } => format!("assert({})", name_of_mode(*mode)),
        Op::Unlock { .. } => "unlock".into(),
        Op::Sync { .. } => "sync".into(),
        Op::Settled { .. } => "settled".into(),
        Op::Revoke { .. } => "revoke".into(),
        Op::EndAgent { .. } => "end_agent".into(),
    }
}

fn name_of_state(state: VoterState) -> &'static str {
    match state {
        VoterState::Voting => "voting",
        VoterState::Quarantined => "quarantined",
        VoterState::NoStore => "no_store",
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
            Reason::Busy => "no(busy)".into(),
            Reason::Queued => "no(queued)".into(),
            Reason::Quarantine => "no(quarantine)".into(),
            Reason::Storing => "no(storing)".into(),
        },
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
