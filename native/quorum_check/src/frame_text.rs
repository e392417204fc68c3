//! Frames as text, for traces.
//!
//! Lifetimes appear as `a7` (agent) and `v3/7` (voter: life and number), sessions as `v3/7.2` (voter and generation),
//! tokens as `t7`.

use quorum::message::{
    Batch, Floor, Frame, Given, Known, Lifetime, Name, Names, Notice, Op, Recall, Reply, Session,
    Token, Verdict, VoterStatus,
};

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
            let (status, seq, agent, stamp) =
                (status(&ack.status), ack.seq, ack.agent.0, ack.stamp.0);
            format!("ack {seq} of a{agent} in {session} at {stamp}, {status}: {verdict}")
        }
        Frame::Notice(notice) => describe_notice(notice),
        Frame::Floor(Floor::Ask { asker }) => format!("{} asks", voter(*asker)),
        Frame::Floor(Floor::Answer {
            asker,
            voter: from,
            seen,
            known,
        }) => {
            let known = match known {
                Known::Quarantine => "in quarantine".into(),
                Known::Told { fence } => format!("floor {}", fence.0),
                Known::Lost { origin } => format!("no floor, origin {}", origin.0),
            };
            let [asker, from, seen] = [asker, from, seen].map(|lifetime| voter(*lifetime));
            format!("{from} answers {asker}: knows {seen}, {known}")
        }
    }
}

fn describe_notice(notice: &Notice) -> String {
    let (from, generation, seq) = (voter(notice.voter), notice.generation.0, notice.seq);
    let status = status(&notice.status);
    let given: Vec<String> = notice.given.iter().map(given).collect();
    let recalls: Vec<String> = notice.recalls.iter().map(recall).collect();
    let (given, recalls) = (given.join(" "), recalls.join(" "));
    let wants = if notice.wants_batch {
        " wants a batch"
    } else {
        ""
    };
    format!("notice of {from}.{generation} after batch {seq}, {status}: gives [{given}] recalls [{recalls}]{wants}")
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
            clock,
            first,
            wait,
            run,
            names: locked,
        } => {
            let wait = if *wait { " wait" } else { "" };
            let (token, first, locked) = (token.0, first.0, names(locked));
            format!("lock(t{token} {mode:?} {locked} at {clock}.t{first} run {run}{wait})")
        }
        Op::Confirm { token, fence } => format!("confirm(t{} {})", token.0, fence.0),
        Op::Assert {
            token,
            mode,
            fence,
            continues,
            names: locked,
        } => {
            let (token, locked, fence) = (token.0, names(locked), fence.0);
            let continues = if *continues { " continues" } else { "" };
            format!("assert(t{token} {mode:?} {locked} {fence}{continues})")
        }
        Op::Unlock { token, fence } => format!("unlock(t{} {})", token.0, fence.0),
        Op::Sync { from, to, live } => {
            format!("sync(t{}..t{} live {})", from.0, to.0, tokens(live))
        }
        Op::Settled => "settled".into(),
        Op::Revoke { name: revoked } => format!("revoke({})", name(revoked)),
        Op::EndAgent { agent } => format!("end(a{})", agent.0),
    }
}

fn describe_reply(reply: &Reply) -> String {
    match reply {
        Reply::Yes { fence } => format!("yes({})", fence.0),
        Reply::No { reason } => format!("no({reason:?})"),
        Reply::Missing => "missing".into(),
        Reply::Synced { missing } => format!("synced(missing {})", tokens(missing)),
    }
}

fn status(status: &VoterStatus) -> String {
    format!("{:?} clock {}", status.state, status.clock)
}

fn given(given: &Given) -> String {
    format!("t{} with {}", given.token.0, given.fence.0)
}

fn recall(recall: &Recall) -> String {
    let Recall {
        token,
        priority,
        mode,
    } = recall;
    let (clock, agent) = (priority.clock, priority.agent.0);
    format!("t{} by {clock}.a{agent} {mode:?}", token.0)
}

fn voter(lifetime: Lifetime) -> String {
    format!("v{}/{}", lifetime.life(), lifetime.0 as u32)
}

fn session(session: &Session) -> String {
    format!("{}.{}", voter(session.voter), session.generation.0)
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
