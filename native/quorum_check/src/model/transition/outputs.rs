//! The outputs of an agent: frames to send, and answers to clients.

use super::Transition;
use crate::frame_text;
use crate::model::setting::{member, Setting};
use crate::model::state::{Flight, Phase};
use crate::shared::Shared;
use quorum::agent::{AgentOutput, Request};
use quorum::members::{Member, MemberSet};
use quorum::message::{Batch, Fence, Frame, Mode, Op, Send, Token};
use quorum::rules::Rules;

/// The number of a request contains the client and the index of its step.
pub(super) fn request(client: usize, step: usize) -> Request {
    Request((client * 100 + step) as u64)
}

fn client_and_step(request: Request) -> (usize, usize) {
    ((request.0 / 100) as usize, (request.0 % 100) as usize)
}

impl Transition<'_> {
    pub(super) fn send(&mut self, from: Member, send: Send) {
        let (to, frame) = (self.setting.place(send.to), send.frame);
        let agent = self.state.agent_of(to);
        let arrives = match &frame {
            Frame::Batch(_) | Frame::Life(_) => self.state.voters[to.place()].machine.is_some(),
            Frame::Ack(ack) => {
                agent.is_some_and(|agent| self.state.agents[agent].lifetime() == ack.agent)
            }
            Frame::Notice(_) => agent.is_some(),
        };
        let arrives = arrives && self.same_leases(from, to, &frame);
        self.note(|| {
            let dropped = if arrives { "" } else { " (dropped)" };
            let frame = frame_text::describe(&frame);
            format!("{from:?} -> {to:?} {{{frame}}}{dropped}")
        });
        if arrives {
            self.state.flights.push(Shared::new(Flight {
                from,
                to,
                frame,
                delayed: false,
            }));
        }
    }

    /// Machines with different leases ignore each other.
    fn same_leases(&self, from: Member, to: Member, frame: &Frame) -> bool {
        let leases = |rules: &Rules| (rules.holder_lease, rules.voter_lease);
        let voter = |member: Member| leases(self.rules_of_voter(member.place()));
        let agent = |member: Member| leases(self.rules_of_agent(member));
        match frame {
            Frame::Batch(_) => agent(from) == voter(to),
            Frame::Ack(_) | Frame::Notice(_) => voter(from) == agent(to),
            Frame::Life(_) => voter(from) == voter(to),
        }
    }

    pub(super) fn carry_out(&mut self, agent: usize, output: AgentOutput) {
        let member = self.state.agents[agent].member;
        if !matches!(output, AgentOutput::Send(_) | AgentOutput::Granted { .. }) {
            self.note(|| format!("{member:?}: {output:?}"));
        }
        match output {
            AgentOutput::Send(send) => {
                if let Frame::Batch(batch) = &send.frame {
                    self.check_renewals(agent, batch);
                }
                self.send(member, send);
            }
            AgentOutput::Granted {
                request,
                token,
                fence,
                ..
            } => self.granted(request, token, fence),
            AgentOutput::Refused { request, .. } => self.answered(request, false),
            AgentOutput::Unlocked { request, .. } | AgentOutput::Accepted { request } => {
                self.answered(request, true);
            }
            AgentOutput::GaveBack | AgentOutput::AtRisk { .. } => {}
            AgentOutput::Lost { token, .. } => {
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

    /// An answer to a client that waits for it, or that has died since.
    fn answered(&mut self, request: Request, unlocks: bool) {
        let (client, step) = client_and_step(request);
        let phase = &mut self.state.clients[client].phase;
        let waited = match *phase {
            Phase::Waits { step: asked } => !unlocks && asked == step,
            Phase::Unlocks { step: asked, .. } => unlocks && asked == step,
            Phase::Idle | Phase::Holds { .. } => false,
        };
        if waited {
            *phase = Phase::Idle;
        }
    }

    fn granted(&mut self, request: Request, token: Token, fence: Fence) {
        let (client, step) = client_and_step(request);
        self.note(|| format!("CLIENT {client} HOLDS t{} with fence {}", token.0, fence.0));
        if self.state.clients[client].phase != (Phase::Waits { step }) {
            let text = format!("client {client} was granted a lock that it did not wait for");
            return self.violated("Machine", text);
        }
        self.state.clients[client].phase = Phase::Holds { step, token };
        let (mode, names) = self.setting.request(client, step);
        for number in names {
            let before = self.state.fences[*number];
            if fence < before || mode == Mode::Write && fence == before {
                let (fence, before) = (fence.0, before.0);
                let text =
                    format!("fence {fence} does not exceed {before}, that of an earlier writer");
                self.violated("Q5", text);
            }
            if mode == Mode::Write {
                self.state.fences[*number] = fence.max(before);
                let name = Setting::name_of(*number);
                // One with an old disk may have known the fence. It does not vote before it has its last mark.
                let knows = |voter: &Member| {
                    let seen = &self.state.voters[voter.place()];
                    let voter = seen.machine.as_ref();
                    voter.is_some_and(|voter| seen.is_stale() || voter.fence(&name) >= fence)
                };
                let members = (0..self.setting.members).map(member);
                let written: MemberSet = members.filter(knows).collect();
                if written.len() < self.setting.list().quorum() {
                    let text = format!("{written:?} know fence {} at its grant", fence.0);
                    self.violated("Q6", text);
                }
            }
        }
    }

    /// Q8: no agent requests votes for a lock that was unlocked, unless the same batch unlocks it, or another client of
    /// the node holds the lock by the same votes.
    fn check_renewals(&mut self, agent: usize, batch: &Batch) {
        let seen = &self.state.agents[agent];
        let member = seen.member;
        let clients = self.state.clients.iter().zip(&self.setting.scripts);
        let past: Vec<Token> = clients
            .filter(|(_, script)| script.at == member.place())
            .flat_map(|(client, _)| client.past.iter().copied())
            .filter(|token| seen.machine.locks().all(|lock| lock.attempt != *token))
            .collect();
        for token in past {
            let renews = |op: &Op| match op {
                Op::Assert { token: named, .. } | Op::Lock { token: named, .. } => *named == token,
                Op::Sync { live, .. } => live.contains(&token),
                _ => false,
            };
            let unlocks =
                |op: &Op| matches!(op, Op::Unlock { token: named, .. } if *named == token);
            if batch.ops.iter().any(renews) && !batch.ops.iter().any(unlocks) {
                let token = token.0;
                let text = format!("{member:?} requests a vote for t{token} after its unlock");
                self.violated("Q8", text);
            }
        }
    }
}
