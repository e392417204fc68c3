//! What comes of it: what the machines want done, and what it means for the promises.

use super::Turn;
use crate::model::coverage::CoverPoint;
use crate::model::kept::Kept;
use crate::model::setting::{Disk, Setting};
use crate::model::state::{Flight, Phase, VoterSeat};
use crate::model::words;
use quorum::agent::{AgentOutput, Refusal, Request};
use quorum::members::Member;
use quorum::message::{
    Ack, Batch, Fence, Floor, Frame, Mode, Op, Reason, Reply, Send, Token, Verdict,
};

impl Turn<'_> {
    pub(super) fn send(&mut self, from: Member, send: Send) {
        let Send { to, frame } = send;
        self.count_frame(&frame);
        let reaches = match &frame {
            Frame::Batch(_) | Frame::Floor(_) => self.state.voters[to.place()].machine.is_some(),
            Frame::Ack(ack) => self
                .state
                .seat_of(to)
                .is_some_and(|seat| self.state.agents[seat].lifetime() == ack.agent),
            Frame::Notice(_) => self.state.seat_of(to).is_some(),
        };
        self.note(|| {
            format!(
                "{}{}",
                words::frame(from, to, &frame),
                if reaches { "" } else { " (to nobody)" }
            )
        });
        if reaches {
            self.state.flights.push(Kept::new(Flight {
                from,
                to,
                frame,
                late: false,
            }));
        }
    }

    pub(super) fn do_for_agent(&mut self, seat: usize, output: AgentOutput) {
        let member = self.state.agents[seat].member;
        match output {
            AgentOutput::Send(send) => {
                if let Frame::Batch(batch) = &send.frame {
                    self.look_for_renewals(seat, batch);
                }
                self.send(member, send);
            }
            AgentOutput::Granted {
                request,
                token,
                attempt,
                fence,
                ..
            } => {
                if attempt != token {
                    self.coverage.count(CoverPoint::Passed);
                }
                self.granted(seat, request, token, fence);
            }
            AgentOutput::Refused { request, why } => {
                self.note(|| format!("{member:?} refuses client {}: {why:?}", request.0 / 100));
                self.coverage.count(match why {
                    Refusal::Timeout => CoverPoint::TimedOut,
                    Refusal::NoQuorum => CoverPoint::NoQuorum,
                });
                self.answered(request, |phase| matches!(phase, Phase::Asked { .. }));
            }
            AgentOutput::Unlocked { request, confirmed } => {
                self.note(|| {
                    format!(
                        "{member:?} tells client {}: unlocked, {confirmed}",
                        request.0 / 100
                    )
                });
                self.coverage.count(if confirmed {
                    CoverPoint::Unlocked
                } else {
                    CoverPoint::UnlockedUnsure
                });
                self.answered(request, |phase| matches!(phase, Phase::Returns { .. }));
            }
            AgentOutput::Accepted { request } => {
                self.note(|| format!("{member:?} tells client {}: accepted", request.0 / 100));
                self.answered(request, |phase| matches!(phase, Phase::Returns { .. }));
            }
            AgentOutput::AtRisk { token } => {
                self.note(|| format!("{member:?}: {} is at risk", token.0));
                self.coverage.count(CoverPoint::AtRisk);
            }
            AgentOutput::Lost { token, why } => {
                self.note(|| format!("{member:?}: {} is lost, {why:?}", token.0));
                self.coverage.count(CoverPoint::Lost);
                for (client, script) in self.state.clients.iter_mut().zip(&self.setting.scripts) {
                    let holds =
                        matches!(client.phase, Phase::Holds { token: held, .. } if held == token);
                    if script.at == member.place() && holds {
                        client.phase = Phase::Idle;
                        client.past.push(token);
                    }
                }
            }
        }
    }

    /// An answer, to a client that waits for it or died since.
    pub(super) fn answered(&mut self, request: Request, waited: fn(&Phase) -> bool) {
        let (client, step) = ((request.0 / 100) as usize, (request.0 % 100) as usize);
        let phase = self.state.clients[client].phase;
        let same = match phase {
            Phase::Asked { step: asked } => asked == step,
            Phase::Returns { step: asked, .. } => asked == step,
            Phase::Idle | Phase::Holds { .. } => false,
        };
        if same && waited(&phase) {
            self.state.clients[client].phase = Phase::Idle;
        }
    }

    pub(super) fn granted(&mut self, seat: usize, request: Request, token: Token, fence: Fence) {
        let (client, step) = ((request.0 / 100) as usize, (request.0 % 100) as usize);
        self.note(|| format!("CLIENT {client} HOLDS {} with fence {}", token.0, fence.0));
        if self.state.clients[client].phase != (Phase::Asked { step }) {
            return self.broke(
                "P0",
                format!("client {client} was granted what it did not wait for"),
            );
        }
        self.state.clients[client].phase = Phase::Holds { step, token };
        let (mode, names) = self.setting.asked(client, step);
        self.coverage.count(if mode == Mode::Write {
            CoverPoint::GrantedWrite
        } else {
            CoverPoint::GrantedRead
        });
        for number in names {
            let before = self.state.fences[*number];
            if fence < before || mode == Mode::Write && fence == before {
                self.broke(
                    "Q5",
                    format!(
                        "fence {} is not past {}, a writer's before it",
                        fence.0, before.0
                    ),
                );
            }
            if mode == Mode::Write {
                self.state.fences[*number] = fence.max(before);
                let name = Setting::name_of(*number);
                // One that has restarted without a disk will learn it, from these.
                let knows = |seat: &VoterSeat| {
                    let unsure = seat.life > 0 && self.setting.disk == Disk::None;
                    seat.machine
                        .as_ref()
                        .is_some_and(|voter| unsure || voter.fence(&name) >= fence)
                };
                let written = self.state.voters.iter().filter(|seat| knows(seat)).count();
                if written < self.members(self.state.agents[seat].member).quorum() {
                    self.broke(
                        "Q6",
                        format!(
                            "fence {} was granted, and {written} voters know it",
                            fence.0
                        ),
                    );
                }
            }
        }
    }

    /// Q8: nothing asks for a vote for what was given back, unless the same batch takes it back, or another client of
    /// the node has the lock on the same votes.
    pub(super) fn look_for_renewals(&mut self, seat: usize, batch: &Batch) {
        let member = self.state.agents[seat].member.place();
        let mut past = Vec::new();
        for (client, script) in self.state.clients.iter().zip(&self.setting.scripts) {
            if script.at == member {
                past.extend(client.past.iter().copied());
            }
        }
        let passed = |token: &Token| {
            let mut locks = self.state.agents[seat].machine.locks();
            locks.any(|lock| lock.attempt == *token)
        };
        past.retain(|token| !passed(token));
        for token in past {
            let renews = batch.ops.iter().any(|op| match op {
                Op::Assert { token: named, .. } | Op::Lock { token: named, .. } => *named == token,
                Op::Sync { live, .. } => live.contains(&token),
                _ => false,
            });
            let takes_back = batch
                .ops
                .iter()
                .any(|op| matches!(op, Op::Unlock { token: named, .. } if *named == token));
            if renews && !takes_back {
                self.broke(
                    "Q8",
                    format!(
                        "m{member} asks for a vote for {}, which was given back",
                        token.0
                    ),
                );
            }
        }
    }

    pub(super) fn count_frame(&self, frame: &Frame) {
        match frame {
            Frame::Batch(batch) => batch.ops.iter().for_each(|op| match op {
                Op::Lock {
                    turn: quorum::message::Turn::Nobody,
                    ..
                } => self.coverage.count(CoverPoint::AskedRest),
                Op::Assert { .. } => self.coverage.count(CoverPoint::Asserted),
                _ => {}
            }),
            Frame::Ack(Ack {
                verdict: Verdict::Done {
                    replies, revoked, ..
                },
                ..
            }) => {
                if !revoked.is_empty() {
                    self.coverage.count(CoverPoint::Revoked);
                }
                replies.iter().for_each(|reply| match reply {
                    Reply::Confirmed => self.coverage.count(CoverPoint::Confirmed),
                    Reply::Synced { .. } => self.coverage.count(CoverPoint::Synced),
                    Reply::No {
                        reason: Reason::Turn,
                    } => self.coverage.count(CoverPoint::RefusedTurn),
                    Reply::No {
                        reason: Reason::Quarantine,
                    } => self.coverage.count(CoverPoint::RefusedQuarantine),
                    Reply::No {
                        reason: Reason::Storing,
                    } => self.coverage.count(CoverPoint::RefusedStoring),
                    _ => {}
                });
            }
            Frame::Ack(Ack {
                verdict: Verdict::Mismatch { .. },
                ..
            }) => self.coverage.count(CoverPoint::Mismatched),
            Frame::Notice(notice) if !notice.hints.is_empty() => {
                self.coverage.count(CoverPoint::Hinted)
            }
            Frame::Floor(Floor::Told { .. }) => self.coverage.count(CoverPoint::FloorTold),
            Frame::Floor(Floor::Lost { .. }) => self.coverage.count(CoverPoint::FloorLost),
            Frame::Ack(_) | Frame::Notice(_) | Frame::Floor(_) => {}
        }
    }
}
