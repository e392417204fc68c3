//! What is said on the wire: who may say it, and when.

use super::{probe, Checker, Label};
use crate::simulation::clock::Real;
use crate::simulation::node::Node;
use quorum::message::{Ack, Batch, Floor, Frame, Op, Reply, Session, Verdict};
use quorum::time::Time;

/// The last batch from an agent to a voter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    seq: u64,
    at: Time,
    life: u64,
    session: Option<Session>,
    answered: bool,
}

/// A batch that a voter is hearing at the moment.
#[derive(Debug)]
pub(super) struct Hearing {
    pub(super) voter: usize,
    pub(super) batch: Batch,
    pub(super) voted: bool,
    pub(super) kept: Vec<probe::Kept>,
    pub(super) done: bool,
}

impl Checker {
    /// An agent sends something.
    pub fn agent_sends(
        &mut self,
        node: usize,
        to: usize,
        frame: &Frame,
        nodes: &[Node],
        real: Real,
    ) {
        let Frame::Batch(batch) = frame else {
            self.violated(Label::Wire, || {
                format!("the agent of n{node} sends {frame:?}")
            });
            return;
        };
        let (life, now) = (nodes[node].agent.life, nodes[node].agent.now(real));
        let before = self.sent.insert(
            (node, to),
            Sent {
                seq: batch.seq,
                at: now,
                life,
                session: batch.session,
                answered: false,
            },
        );
        if let Some(before) = before.filter(|before| before.life == life) {
            if before.seq >= batch.seq {
                self.violated(Label::Adr15, || {
                    format!("n{node} to n{to}: {} after {}", batch.seq, before.seq)
                });
            }
            if !before.answered && now < before.at + self.rules.attempt {
                let text = || {
                    format!(
                        "n{node} to n{to}: {} while {} is not answered",
                        batch.seq, before.seq
                    )
                };
                self.violated(Label::Adr15, text);
            }
        }
        self.counts.add("operations", batch.ops.len() as u64);
        for op in &batch.ops {
            let again = match op {
                Op::Lock { token, .. } | Op::Confirm { token, .. } | Op::Assert { token, .. } => {
                    vec![*token]
                }
                Op::Sync { live, .. } => {
                    self.counts.count("syncs");
                    live.clone()
                }
                Op::Unlock { token, .. } => {
                    self.unlock_sent.insert((life, *token, to));
                    Vec::new()
                }
                Op::Leave { .. } | Op::Settled | Op::Revoke { .. } => Vec::new(),
            };
            if let Some(token) = again
                .iter()
                .find(|token| self.unlock_sent.contains(&(life, **token, to)))
            {
                self.violated(Label::Q8, || {
                    format!("n{node} to n{to}: t{} after its unlock: {op:?}", token.0)
                });
            }
        }
    }

    /// An agent was told of a member: what was on its way then is not waited for.
    pub fn told(&mut self, node: usize, about: usize) {
        self.sent.remove(&(node, about));
    }

    /// An agent is about to hear something.
    pub fn agent_hears(
        &mut self,
        from: usize,
        node: usize,
        frame: &Frame,
        nodes: &[Node],
        real: Real,
    ) {
        if let Frame::Notice(notice) = frame {
            // From another life of the voter: the last batch was for one that is dead.
            let sent = self.sent.get_mut(&(node, from));
            let other = |sent: &&mut Sent| {
                sent.session
                    .is_some_and(|session| session.voter != notice.voter)
            };
            if let Some(sent) = sent.filter(other) {
                sent.answered = true;
            }
        }
        let Frame::Ack(ack) = frame else { return };
        if ack.agent != nodes[node].agent.lifetime() {
            self.counts.count("answers for an agent that is dead");
            return;
        }
        match ack.verdict {
            Verdict::Done { .. } => {
                self.heard.insert((node, from), real);
            }
            Verdict::Mismatch { named } => {
                self.counts.count("mismatches heard");
                // A late answer, to an earlier batch, is one to all that name the same session: it is over.
                if let Some(sent) = self
                    .sent
                    .get_mut(&(node, from))
                    .filter(|sent| sent.session == named)
                {
                    sent.answered = true;
                }
            }
            Verdict::OtherEpoch => {
                self.violated(Label::Wire, || format!("n{node} is told of another epoch"));
            }
        }
        if let Some(sent) = self
            .sent
            .get_mut(&(node, from))
            .filter(|sent| sent.seq == ack.seq)
        {
            sent.answered = true;
        }
    }

    /// A voter is about to hear something.
    pub fn voter_hears(&mut self, node: usize, frame: &Frame, nodes: &[Node]) {
        let (Frame::Batch(batch), Some(voter)) = (frame, &nodes[node].voter.machine) else {
            return;
        };
        let kept = if batch.ops.is_empty() {
            Vec::new()
        } else {
            probe::kept(voter)
        };
        self.hearing = Some(Hearing {
            voter: node,
            batch: batch.clone(),
            voted: voter.is_voting(),
            kept,
            done: false,
        });
    }

    /// A voter says something.
    pub fn voter_sends(&mut self, node: usize, frame: &Frame, nodes: &[Node]) {
        match frame {
            Frame::Ack(ack) => self.voter_answers(node, ack, nodes),
            Frame::Notice(notice) => {
                self.counts.add("hints", notice.hints.len() as u64);
                self.counts.count("notices");
            }
            Frame::Floor(Floor::Ask { .. }) => self.counts.count("floors asked"),
            Frame::Floor(Floor::Told { .. }) => self.counts.count("floors told"),
            Frame::Floor(Floor::Lost { .. }) => self.counts.count("floors lost, too"),
            Frame::Batch(_) => self.violated(Label::Wire, || {
                format!("the voter of n{node} sends {frame:?}")
            }),
        }
    }

    fn voter_answers(&mut self, node: usize, ack: &Ack, nodes: &[Node]) {
        let Some(mut hearing) = self.hearing.take().filter(|hearing| {
            hearing.voter == node
                && hearing.batch.seq == ack.seq
                && hearing.batch.agent == ack.agent
                && !hearing.done
        }) else {
            self.violated(Label::Wire, || {
                format!("n{node} answers what it was not asked: {ack:?}")
            });
            return;
        };
        if let Verdict::Done {
            replies, revoked, ..
        } = &ack.verdict
        {
            hearing.done = true;
            if !revoked.is_empty() {
                self.counts.count("answers that revoke");
            }
            self.take_replies(&hearing, replies, nodes);
        }
        self.hearing = Some(hearing);
    }

    fn take_replies(&mut self, hearing: &Hearing, replies: &[Reply], nodes: &[Node]) {
        let answered = |op: &&Op| {
            !matches!(
                op,
                Op::Unlock { .. } | Op::Leave { .. } | Op::Settled | Op::Revoke { .. }
            )
        };
        let ops: Vec<&Op> = hearing.batch.ops.iter().filter(answered).collect();
        let node = hearing.voter;
        let seat = &nodes[node].voter;
        if ops.len() != replies.len() {
            let text = || format!("n{node} answers {replies:?} to {ops:?}");
            self.violated(Label::Wire, text);
            return;
        }
        let votes = hearing.voted || seat.machine.as_ref().is_some_and(|voter| voter.is_voting());
        let agent = hearing.batch.agent.0;
        let own = hearing
            .kept
            .iter()
            .filter(|vote| vote.agent == hearing.batch.agent);
        let mut asserted: Vec<_> = own.map(|vote| vote.token).collect();
        for (op, reply) in ops.into_iter().zip(replies) {
            let said = match (op, reply) {
                (Op::Lock { token, .. }, Reply::Yes { fence }) => {
                    // One that was asserted is there, and is no new vote.
                    if !votes && !asserted.contains(token) {
                        self.violated(Label::Q4, || {
                            format!("n{node} grants t{} and does not vote", token.0)
                        });
                    }
                    self.counts.count("votes");
                    Some((*token, *fence))
                }
                (Op::Assert { token, .. }, Reply::Yes { fence }) => {
                    self.counts.count("votes asserted");
                    asserted.push(*token);
                    Some((*token, *fence))
                }
                (Op::Confirm { token, fence }, Reply::Confirmed) => {
                    self.counts.count("fences confirmed");
                    Some((*token, *fence))
                }
                (
                    Op::Lock { .. } | Op::Assert { .. } | Op::Confirm { .. },
                    Reply::No { reason },
                ) => {
                    self.counts.count(refusal(*reason));
                    None
                }
                (Op::Confirm { .. }, Reply::Missing) | (Op::Sync { .. }, Reply::Synced { .. }) => {
                    None
                }
                (op, reply) => {
                    self.violated(Label::Wire, || {
                        format!("n{node} answers {reply:?} to {op:?}")
                    });
                    None
                }
            };
            if let Some((token, fence)) = said {
                self.highest = self.highest.max(fence);
                let promise = self.promises.entry((agent, token)).or_default();
                let known = promise.said.entry(node).or_insert((seat.life, fence));
                *known = if known.0 == seat.life {
                    (seat.life, known.1.max(fence))
                } else {
                    (seat.life, fence)
                };
            }
        }
    }
}

fn refusal(reason: quorum::message::Reason) -> &'static str {
    use quorum::message::Reason;
    match reason {
        Reason::Readers => "votes refused: readers",
        Reason::Writer => "votes refused: a writer",
        Reason::Turn => "votes refused: not in turn",
        Reason::Quarantine => "votes refused: quarantine",
        Reason::Storing => "votes refused: storing",
    }
}
