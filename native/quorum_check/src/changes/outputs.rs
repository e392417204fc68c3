//! Calls of the machines, and what they request.

use super::state::Flight;
use super::transition::{name, Transition};
use crate::shared::Shared;
use quorum::agent::AgentOutput;
use quorum::envelope::Post;
use quorum::message::{Fence, Token};
use quorum::node_agent::{NodeAgent, NodeAgentOutput};
use quorum::node_voter::{ChangeAnswer, NodeVoter, NodeVoterOutput};
use quorum::time::Time;
use quorum::view::Record;
use std::panic::{catch_unwind, AssertUnwindSafe};

impl Transition<'_> {
    pub(super) fn call_voter(&mut self, node: usize, call: impl FnOnce(&mut NodeVoter, Time)) {
        let (now, seen) = (self.state.now, &mut self.state.nodes[node]);
        if !seen.is_alive {
            return;
        }
        let called = catch_unwind(AssertUnwindSafe(|| {
            seen.voter.change(|voter| {
                call(voter, now);
                voter.outputs()
            })
        }));
        let Ok(outputs) = called else {
            return self.violated("Machine", format!("the voter of n{node} panicked"));
        };
        for output in outputs {
            match output {
                NodeVoterOutput::Post(post) => self.send(node, post),
                NodeVoterOutput::Store(number, content) => {
                    self.state.flights.push(Shared::new(Flight::Write {
                        node,
                        number,
                        content: Shared::new(*content),
                    }));
                }
                NodeVoterOutput::Answer(request, answer) => self.changed(request, &answer),
                NodeVoterOutput::Took(record) => self.took(record),
                NodeVoterOutput::Lost
                | NodeVoterOutput::OtherCluster(..)
                | NodeVoterOutput::OtherList(_) => {}
            }
        }
    }

    pub(super) fn call_agent(&mut self, node: usize, call: impl FnOnce(&mut NodeAgent, Time)) {
        let (now, seen) = (self.state.now, &mut self.state.nodes[node]);
        if !seen.is_alive {
            return;
        }
        let called = catch_unwind(AssertUnwindSafe(|| {
            seen.agent.change(|agent| {
                call(agent, now);
                agent.flush(now);
                agent.outputs()
            })
        }));
        let Ok(outputs) = called else {
            return self.violated("Machine", format!("the agent of n{node} panicked"));
        };
        for output in outputs {
            match output {
                NodeAgentOutput::Post(post) => self.send(node, post),
                NodeAgentOutput::Agent(output) => self.of_agent(node, output),
                NodeAgentOutput::Adopted(record) => {
                    self.note(|| format!("the agent of n{node} adopts {}", record.id.number));
                }
                NodeAgentOutput::OtherCluster { .. } => {}
            }
        }
    }

    fn send(&mut self, from: usize, post: Post) {
        let to = (0..self.state.nodes.len()).find(|node| name(*node) == post.to);
        let Some(to) = to.filter(|to| self.state.nodes[*to].is_alive) else {
            return;
        };
        self.state.flights.push(Shared::new(Flight::Message {
            from,
            to,
            role: post.role,
            envelope: post.envelope,
        }));
    }

    fn of_agent(&mut self, node: usize, output: AgentOutput) {
        match output {
            AgentOutput::Granted {
                request,
                token,
                fence,
                ..
            } => self.granted((request.0 / 1000) as usize, token, fence),
            AgentOutput::Refused { request, .. } => self.again((request.0 / 1000) as usize),
            AgentOutput::Lost { token, .. } => self.lost(node, token),
            _ => {}
        }
    }

    fn granted(&mut self, client: usize, token: Token, fence: Fence) {
        self.note(|| format!("CLIENT {client} HOLDS t{} with fence {}", token.0, fence.0));
        let before = std::mem::replace(&mut self.state.fence, fence);
        if fence <= before {
            self.violated("Q5", format!("fence {} after {}", fence.0, before.0));
        }
        let own = &mut self.state.clients[client];
        (own.held, own.waits) = (Some(token), false);
        own.next += 1;
    }

    fn lost(&mut self, node: usize, token: Token) {
        self.note(|| format!("n{node} has lost t{}", token.0));
        let scripts = self.setting.scripts.iter();
        let mut clients = self.state.clients.iter_mut().zip(scripts);
        let lost = clients.find(|(client, (at, _))| *at == node && client.held == Some(token));
        let Some((client, _)) = lost else {
            return;
        };
        client.held = None;
        if self.setting.keeps {
            self.violated("PR5", format!("t{} of n{node} is lost", token.0));
        }
    }

    fn changed(&mut self, request: u64, answer: &ChangeAnswer) {
        let client = (request / 1000) as usize;
        self.note(|| format!("client {client}: {answer:?}"));
        match answer {
            ChangeAnswer::Done(_) => {
                let own = &mut self.state.clients[client];
                own.waits = false;
                own.next += 1;
            }
            _ => self.again(client),
        }
    }

    /// There is one record for each number.
    fn took(&mut self, record: Record) {
        let mut known = self.state.records.iter();
        match known.find(|known| known.id == record.id) {
            None => self.state.records.push(Shared::new(record)),
            Some(known) if **known == record => {}
            Some(known) => {
                let text = format!("{:?} and {record:?}", **known);
                self.violated("Record", text);
            }
        }
    }
}
