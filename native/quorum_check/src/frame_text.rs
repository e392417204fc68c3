//! Frames as text, for traces.
//!
//! Lifetimes appear as `a7` (agent) and `v3/7` (voter: life and number), sessions as `v3/7.2` (voter and generation).
//! All else is as `Debug` shows it.

use quorum::message::{Frame, Life, Lifetime, Session, Verdict};

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
        Frame::Batch(batch) => {
            let session = batch.session.as_ref().map_or("no session".into(), session);
            let (seq, agent, stamp, ops) = (batch.seq, batch.agent.0, batch.stamp.0, &batch.ops);
            format!("batch {seq} of a{agent} in {session} at {stamp}: {ops:?}")
        }
        Frame::Ack(ack) => {
            let (seq, agent, stamp) = (ack.seq, ack.agent.0, ack.stamp.0);
            let (session, status, verdict) = (session(&ack.session), &ack.status, &ack.verdict);
            format!("ack {seq} of a{agent} in {session} at {stamp}, {status:?}: {verdict:?}")
        }
        Frame::Notice(notice) => {
            let (from, generation) = (voter(notice.voter), notice.generation.0);
            let (seq, status, wants) = (notice.seq, &notice.status, notice.wants_batch);
            let (given, recalls) = (&notice.given, &notice.recalls);
            format!(
                "notice of {from}.{generation} after batch {seq}, {status:?}: \
                 gives {given:?} recalls {recalls:?} wants a batch: {wants}"
            )
        }
        Frame::Life(Life::Ask { asker }) => format!("{} asks", voter(*asker)),
        Frame::Life(Life::Answer {
            asker,
            voter: from,
            seen,
        }) => {
            let [asker, from, seen] = [asker, from, seen].map(|lifetime| voter(*lifetime));
            format!("{from} answers {asker}: knows {seen}")
        }
    }
}

fn voter(lifetime: Lifetime) -> String {
    format!("v{}/{}", lifetime.life(), lifetime.0 as u32)
}

fn session(session: &Session) -> String {
    format!("{}.{}", voter(session.voter), session.generation.0)
}
