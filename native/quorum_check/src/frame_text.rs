//! Frames as text, for traces.
//!
//! Lifetimes appear as `a7` (agent) and `v7` (voter), sessions as `v7.2` (voter and generation), tokens as `t7`.

use quorum::message::{Batch, Floor, Frame, Name, Names, Op, Reply, Session, Token, Turn, Verdict};

/// Whether the frame is a heartbeat or the answer to one. Most frames are.
pub fn is_heartbeat(frame: &Frame) -> bool {
    match frame {
        Frame::Batch(batch) => batch.ops.is_empty(),
        Frame::Ack(ack) => match &ack.verdict {
            Verdict::Done {
                replies, revoked, ..
            } => replies.is_empty() && revoked.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

pub fn describe(frame: &Frame) -> String {
    match frame {
        Frame::Batch(batch) => describe_batch(batch),
        Frame::Ack(ack) => {
            let verdict = match &ack.verdict {
                Verdict::Done {
                    replies, revoked, ..
                } => {
                    let mut parts: Vec<String> = replies.iter().map(describe_reply).collect();
                    if !revoked.is_empty() {
                        parts.push(format!("revoked {}", tokens(revoked)));
                    }
                    parts.join(" ")
                }
                other => format!("{other:?}"),
            };
            let session = session(&ack.session);
            format!(
                "ack {} of a{} in {session} at {}: {verdict}",
                ack.seq, ack.agent.0, ack.stamp.0
            )
        }
        Frame::Notice(notice) => {
            let hints: Vec<String> = notice.hints.iter().map(name).collect();
            let speak = if notice.speak { " speak" } else { "" };
            format!("notice of v{} [{}]{speak}", notice.voter.0, hints.join(" "))
        }
        Frame::Floor(Floor::Ask { asker, .. }) => format!("floor? of v{}", asker.0),
        Frame::Floor(Floor::Told { asker, fence, .. }) => {
            format!("floor {} for v{}", fence.0, asker.0)
        }
        Frame::Floor(Floor::Lost { asker, origin, .. }) => {
            format!("no floor, origin {}, for v{}", origin.0, asker.0)
        }
    }
}

fn describe_batch(batch: &Batch) -> String {
    let (seq, agent, stamp) = (batch.seq, batch.agent.0, batch.stamp.0);
    let session = batch.session.as_ref().map_or("no session".into(), session);
    let ops: Vec<String> = batch.ops.iter().map(describe_op).collect();
    let ops = ops.join(" ");
    format!("batch {seq} of a{agent} in {session} at {stamp}: {ops}")
}

fn describe_op(op: &Op) -> String {
    match op {
        Op::Lock {
            token,
            mode,
            turn,
            guess,
            run,
            names: locked,
        } => {
            let turn = match turn {
                Turn::Unknown => "",
                Turn::Earlier => " in turn",
                Turn::Nobody => " has its turn",
            };
            let (token, guess, locked) = (token.0, guess.0, names(locked));
            format!("lock(t{token} {mode:?} {locked} guess {guess} run {run}{turn})")
        }
        Op::Confirm { token, fence } => format!("confirm(t{} {})", token.0, fence.0),
        Op::Assert {
            token,
            mode,
            fence,
            names: locked,
        } => {
            let (token, locked, fence) = (token.0, names(locked), fence.0);
            format!("assert(t{token} {mode:?} {locked} {fence})")
        }
        Op::Unlock { token, fence } => format!("unlock(t{} {})", token.0, fence.0),
        Op::Leave { names: left } => format!("leave({})", names(left)),
        Op::Sync { from, to, live } => {
            format!("sync(t{}..t{} live {})", from.0, to.0, tokens(live))
        }
        Op::Settled => "settled".into(),
        Op::Revoke { name: revoked } => format!("revoke({})", name(revoked)),
    }
}

fn describe_reply(reply: &Reply) -> String {
    match reply {
        Reply::Yes { fence } => format!("yes({})", fence.0),
        Reply::No { reason } => format!("no({reason:?})"),
        Reply::Confirmed => "confirmed".into(),
        Reply::Missing => "missing".into(),
        Reply::Synced { missing } => format!("synced(missing {})", tokens(missing)),
    }
}

fn session(session: &Session) -> String {
    format!("v{}.{}", session.voter.0, session.generation.0)
}

fn tokens(tokens: &[Token]) -> String {
    let tokens: Vec<String> = tokens.iter().map(|token| format!("t{}", token.0)).collect();
    format!("[{}]", tokens.join(" "))
}

fn name(name: &Name) -> String {
    name.bytes().escape_ascii().to_string()
}

fn names(names: &Names) -> String {
    let names: Vec<String> = names.iter().map(name).collect();
    names.join("+")
}
