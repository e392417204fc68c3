//! Frames: which machine may send one, and when.

use super::label::Label;
use super::records::{Received, Sent};
use super::{Checker, View};
use crate::votes;
use quorum::message::{Ack, Batch, Frame, Life, Notice, Op, Reason, Reply, Verdict, VoterState};

impl Checker {
    pub fn agent_sends(&mut self, node: usize, to: usize, frame: &Frame, view: View<'_>) {
        let Frame::Batch(batch) = frame else {
            let text = || format!("the agent of n{node} sends {frame:?}");
            return self.violated(Label::Wire, text);
        };
        let host = &view.nodes[node].agent_host;
        let sent = Sent {
            seq: batch.seq,
            at: host.now(view.real),
            lifetime: host.lifetime,
            session: batch.session,
            answered: false,
        };
        let before = self.sent.insert((node, to), sent);
        if let Some(before) = before.filter(|before| before.lifetime == sent.lifetime) {
            let text = || format!("n{node} to n{to}: batch {} after {}", sent.seq, before.seq);
            let early = !before.answered && sent.at < before.at + self.plan.rules.attempt;
            if before.seq >= sent.seq || early {
                self.violated(Label::Batches, text);
            }
        }
        for op in &batch.ops {
            self.check_unlocked(node, to, host.lifetime, op);
        }
    }

    /// Q8: after an unlock, no operation names its token again.
    fn check_unlocked(&mut self, node: usize, to: usize, lifetime: u64, op: &Op) {
        let again = match op {
            Op::Lock { token, .. } | Op::Confirm { token, .. } | Op::Assert { token, .. } => {
                std::slice::from_ref(token)
            }
            Op::Sync { live, .. } => {
                self.summary.count("syncs");
                live
            }
            Op::Unlock { token, .. } => {
                self.unlock_sent.insert((lifetime, *token, to));
                &[]
            }
            Op::Settled { .. } | Op::Revoke { .. } => &[],
            Op::EndAgent { .. } => {
                self.summary.count("dead agents ended");
                if self.is_guest(node) {
                    self.summary.count("dead agents of guests ended");
                }
                &[]
            }
        };
        let unlocked = |token: &&_| self.unlock_sent.contains(&(lifetime, **token, to));
        if let Some(token) = again.iter().find(unlocked) {
            let text = || format!("n{node} to n{to}: t{} after its unlock: {op:?}", token.0);
            self.violated(Label::Q8, text);
        }
    }

    /// An agent is informed about the connection to a member. It does not wait for earlier answers anymore.
    pub fn connection(&mut self, node: usize, about: usize) {
        self.sent.remove(&(node, about));
    }

    pub fn agent_receives(&mut self, from: usize, node: usize, frame: &Frame, view: View<'_>) {
        let sent = self.sent.get_mut(&(node, from));
        let ack = match frame {
            Frame::Ack(ack) => ack,
            Frame::Notice(notice) => {
                // From another lifetime of the voter: the last batch was for a voter that has crashed.
                let session = sent.as_ref().and_then(|sent| sent.session);
                if let Some(sent) = sent {
                    // Or from a voter that has begun since.
                    let is_early = session.is_none() && notice.wants_batch;
                    sent.answered |=
                        is_early || session.is_some_and(|session| session.voter != notice.voter);
                }
                return;
            }
            Frame::Batch(_) | Frame::Life(_) => return,
        };
        if ack.agent != view.nodes[node].agent_host.lifetime() {
            return self.summary.count("answers to an earlier lifetime");
        }
        if let Some(sent) = sent {
            sent.answered |= sent.seq == ack.seq;
            // A late mismatch answers all batches that name the same session, which has ended.
            let mismatch = |named| sent.session == named;
            sent.answered |=
                matches!(ack.verdict, Verdict::Mismatch { named, .. } if mismatch(named));
        }
        match ack.verdict {
            Verdict::Done { .. } => drop(self.heard.insert((node, from), view.real)),
            Verdict::Mismatch { .. } => self.summary.count("mismatches received"),
        }
    }

    pub fn voter_receives(&mut self, from: usize, node: usize, frame: &Frame, view: View<'_>) {
        let (Frame::Batch(batch), Some(voter)) = (frame, view.voter(node)) else {
            return;
        };
        self.received = Some(Received {
            from,
            voter: node,
            batch: batch.clone(),
            was_quarantined: voter.state() == VoterState::Quarantined,
            answered: false,
        });
    }

    pub fn voter_sends(&mut self, node: usize, frame: &Frame, view: View<'_>) {
        match frame {
            Frame::Ack(ack) => self.voter_answers(node, ack, view),
            Frame::Notice(notice) => {
                self.summary.add("recalls", notice.recalls.len() as u64);
                self.voter_gives(node, notice, view);
            }
            Frame::Life(Life::Ask { .. }) => self.summary.count("lives asked for"),
            Frame::Life(Life::Answer { .. }) => self.summary.count("lives told"),
            Frame::Batch(_) => {
                let text = || format!("the voter of n{node} sends {frame:?}");
                self.violated(Label::Wire, text);
            }
        }
    }

    /// A voter keeps the votes that it gives unasked.
    fn voter_gives(&mut self, node: usize, notice: &Notice, view: View<'_>) {
        let Some(voter) = view.voter(node).filter(|_| !notice.given.is_empty()) else {
            return;
        };
        let votes = votes::votes(voter);
        for given in &notice.given {
            self.summary.count("votes given unasked");
            let id = (notice.generation, given.token);
            if !votes.iter().any(|vote| (vote.lease, vote.token) == id) {
                let text = || {
                    format!(
                        "n{node} gives t{} a vote that it does not keep",
                        given.token.0
                    )
                };
                self.violated(Label::Wire, text);
            }
        }
    }

    fn voter_answers(&mut self, node: usize, ack: &Ack, view: View<'_>) {
        let answers = |received: &Received| {
            let Batch { seq, agent, .. } = received.batch;
            received.voter == node && (seq, agent) == (ack.seq, ack.agent) && !received.answered
        };
        let Some(mut received) = self.received.take().filter(answers) else {
            let text = || format!("n{node} answers without a question: {ack:?}");
            return self.violated(Label::Wire, text);
        };
        if let Verdict::Done {
            replies, revoked, ..
        } = &ack.verdict
        {
            received.answered = true;
            if !revoked.is_empty() {
                self.summary.count("answers that revoke");
            }
            self.check_replies(&received, replies, view);
        }
        self.received = Some(received);
    }

    fn check_replies(&mut self, received: &Received, replies: &[Reply], view: View<'_>) {
        let answered = |op: &&Op| {
            !matches!(
                op,
                Op::Unlock { .. } | Op::Settled { .. } | Op::Revoke { .. } | Op::EndAgent { .. }
            )
        };
        let ops: Vec<&Op> = received.batch.ops.iter().filter(answered).collect();
        let node = received.voter;
        if ops.len() != replies.len() {
            let text = || format!("n{node} answers {replies:?} to {ops:?}");
            return self.violated(Label::Wire, text);
        }
        for (op, reply) in ops.into_iter().zip(replies) {
            match (op, reply) {
                (Op::Assert { continues, .. }, Reply::Yes { .. }) => {
                    self.summary.count("votes asserted");
                    if received.was_quarantined && *continues {
                        self.summary.count("votes continued");
                        if self.is_guest(received.from) {
                            self.summary.count("votes of guests continued");
                        }
                    }
                }
                (Op::Confirm { fence: sent, .. }, Reply::Yes { fence }) => {
                    self.summary.count(match fence < sent {
                        true => refusal(Reason::Storing),
                        false => "fences confirmed",
                    });
                }
                (Op::Lock { .. } | Op::Assert { .. }, Reply::No { reason }) => {
                    self.summary.count(refusal(*reason));
                    let is_guest = self.is_guest(received.from);
                    let is_stored = view.nodes[node].disk.guests;
                    if is_guest && !is_stored && *reason == Reason::Storing {
                        self.summary.count("votes refused: guest not stored");
                    }
                }
                (Op::Lock { .. }, Reply::Yes { .. })
                | (Op::Confirm { .. }, Reply::Missing)
                | (Op::Sync { .. }, Reply::Synced { .. }) => {}
                (op, reply) => {
                    let text = || format!("n{node} answers {reply:?} to {op:?}");
                    self.violated(Label::Wire, text);
                }
            }
        }
    }
}

fn refusal(reason: Reason) -> &'static str {
    match reason {
        Reason::Busy => "votes refused: busy",
        Reason::Queued => "votes refused: queued",
        Reason::Quarantine => "votes refused: quarantine",
        Reason::Storing => "votes refused: storing",
    }
}
