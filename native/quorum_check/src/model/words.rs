//! Frames and actions in words: a trace is read by people.

use crate::model::setting::{Setting, Step};
use quorum::members::Member;
use quorum::message::{Floor, Frame, Mode, Names, Op, Reply, Session, Token, Turn, Verdict};

/// Whom a number of a lifetime means: see `agent_lifetime` and `voter_lifetime`.
fn life(lifetime: quorum::message::Lifetime) -> String {
    let (place, life) = (lifetime.0 % 1000 / 10, lifetime.0 % 10);
    format!(
        "{}{place}.{life}",
        if lifetime.0 < 2000 {
            "agent "
        } else {
            "voter "
        }
    )
}

fn session(session: Option<Session>) -> String {
    session.map_or("no session".into(), |known| {
        format!("{}/{}", life(known.voter), known.generation.0)
    })
}

fn tokens(tokens: &[Token]) -> String {
    let told: Vec<String> = tokens.iter().map(|token| token.0.to_string()).collect();
    format!("[{}]", told.join(" "))
}

fn names(names: &Names) -> String {
    let told: Vec<String> = names
        .iter()
        .map(|name| name.bytes().escape_ascii().to_string())
        .collect();
    told.join("+")
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "read",
        Mode::Write => "write",
    }
}

fn op(op: &Op) -> String {
    match op {
        Op::Lock {
            token,
            mode: how,
            turn,
            guess,
            run,
            names: what,
        } => {
            let turn = match turn {
                Turn::Unknown => "",
                Turn::Earlier => " in turn",
                Turn::Nobody => " having its turn",
            };
            format!(
                "lock {} {} {}{turn} guess {} run {run}",
                token.0,
                mode(*how),
                names(what),
                guess.0
            )
        }
        Op::Confirm { token, fence } => format!("confirm {} fence {}", token.0, fence.0),
        Op::Assert {
            token,
            mode: how,
            fence,
            names: what,
        } => {
            format!(
                "assert {} {} {} fence {}",
                token.0,
                mode(*how),
                names(what),
                fence.0
            )
        }
        Op::Unlock { token, fence } => format!("unlock {} fence {}", token.0, fence.0),
        Op::Leave { names: what } => format!("leave {}", names(what)),
        Op::Sync { from, to, live } => format!("sync {}..{} live {}", from.0, to.0, tokens(live)),
        Op::Settled => "settled".into(),
        Op::Revoke { name } => format!("revoke {}", name.bytes().escape_ascii()),
    }
}

fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Yes { fence } => format!("yes fence {}", fence.0),
        Reply::No { reason } => format!("no, {reason:?}"),
        Reply::Confirmed => "confirmed".into(),
        Reply::Missing => "missing".into(),
        Reply::Synced { missing } => format!("synced, missing {}", tokens(missing)),
    }
}

/// From whom to whom, and what.
#[must_use]
pub fn frame(from: Member, to: Member, frame: &Frame) -> String {
    let told = match frame {
        Frame::Batch(batch) => {
            let ops: Vec<String> = batch.ops.iter().map(op).collect();
            let ops = if ops.is_empty() {
                "heartbeat".into()
            } else {
                ops.join(", ")
            };
            format!(
                "#{} of {} to {} at {}: {ops}",
                batch.seq,
                life(batch.agent),
                session(batch.session),
                batch.stamp.0
            )
        }
        Frame::Ack(ack) => {
            let verdict = match &ack.verdict {
                Verdict::Done {
                    replies, revoked, ..
                } => {
                    let replies: Vec<String> = replies.iter().map(reply).collect();
                    let revoked = if revoked.is_empty() {
                        "".into()
                    } else {
                        format!("; revoked {}", tokens(revoked))
                    };
                    format!(
                        "done{}{}{revoked}",
                        if replies.is_empty() { "" } else { ": " },
                        replies.join(", ")
                    )
                }
                Verdict::Mismatch { named } => format!("mismatch, named {}", session(*named)),
                Verdict::OtherEpoch => "another epoch".into(),
            };
            format!(
                "#{} at {} in {}: {verdict}",
                ack.seq,
                ack.stamp.0,
                session(Some(ack.session))
            )
        }
        Frame::Notice(notice) => {
            let hints: Vec<String> = notice
                .hints
                .iter()
                .map(|name| name.bytes().escape_ascii().to_string())
                .collect();
            let speak = if notice.speak { ", speak" } else { "" };
            format!(
                "notice of {}: hints [{}]{speak}",
                life(notice.voter),
                hints.join(" ")
            )
        }
        Frame::Floor(Floor::Ask { .. }) => "how far did the fences go?".into(),
        Frame::Floor(Floor::Told { fence, .. }) => format!("fences went to {}", fence.0),
        Frame::Floor(Floor::Lost { origin, .. }) => format!("fences are lost, {}", origin.0),
    };
    format!("{from:?} -> {to:?} {{{told}}}")
}

/// What a client does.
#[must_use]
pub fn step(setting: &Setting, client: usize, at: usize) -> String {
    let listed = |numbers: &[usize]| {
        let told: Vec<String> = numbers
            .iter()
            .map(|number| Setting::name_of(*number).bytes().escape_ascii().to_string())
            .collect();
        told.join("+")
    };
    match setting.scripts[client].steps[at] {
        Step::Lock(how, numbers) => format!("asks to {} {}", mode(how), listed(numbers)),
        Step::LockWithin(how, numbers, within) => {
            format!("asks to {} {} within {within}", mode(how), listed(numbers))
        }
        Step::Unlock => "unlocks".into(),
        Step::TryUnlock => "unlocks, and does not wait".into(),
        Step::Die => "dies".into(),
        Step::Revoke(number) => format!("revokes {}", listed(&[number])),
        Step::Later(units) => format!("waits until {units} have passed"),
        Step::Await(other) => format!("waits for client {other}"),
    }
}
