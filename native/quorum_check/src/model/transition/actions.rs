//! The actions: steps of clients, frames, time, and faults.

use super::outputs::request;
use super::Transition;
use crate::model::action::Action;
use crate::model::setting::{member, units, Budget, Setting, Step};
use crate::model::state::{agent_lifetime, Flight, Phase, NOW};
use crate::votes::Before;
use quorum::agent::{Agent, Request};
use quorum::members::Member;
use quorum::message::{Ack, Batch, Frame, Names, Token};
use quorum::time::Time;

/// The step of the unlock after a client's last step.
const AFTER_LAST: usize = 99;

pub(super) fn spend(budget: &mut u8, count: u8) {
    if *budget != Budget::UNLIMITED {
        *budget -= count;
    }
}

impl Transition<'_> {
    pub fn perform(&mut self, action: Action) {
        match action {
            Action::Step(client) => self.step(client),
            Action::Deliver(place) => self.deliver(place, false),
            Action::Duplicate(place) => self.deliver(place, true),
            Action::Reorder(place) => {
                spend(&mut self.state.left.reorders, 1);
                let flight = self.state.flights.remove(place);
                self.state.flights.push(flight);
            }
            Action::Delay(place) => {
                spend(&mut self.state.left.delays, 1);
                self.state.flights[place].change(|flight| flight.delayed = true);
            }
            Action::PassTime => self.pass_time(),
            Action::StallAgent(agent, stalled) => self.stall_agent(agent, stalled),
            Action::StallVoter(voter, stalled) => self.stall_voter(voter, stalled),
            Action::CrashVoter(voter) => {
                spend(&mut self.state.left.voter_crashes, 1);
                self.crash_voter(voter, false);
            }
            Action::CrashWithOldDisk(voter) => {
                spend(&mut self.state.left.voter_crashes, 1);
                spend(&mut self.state.left.old_disks, 1);
                self.crash_voter(voter, true);
            }
            Action::CrashAgent(agent) => self.crash_agent(agent),
            Action::Disconnect(agent, voter) => {
                if !self.state.agents[agent].closed.contains(voter) {
                    spend(&mut self.state.left.disconnects, 1);
                }
                self.disconnect(agent, voter);
            }
            Action::Connect(agent, voter) => self.connect(agent, voter),
            Action::VoterDown(agent, voter) => {
                spend(&mut self.state.left.downs, 1);
                self.voter_down(agent, voter);
            }
            Action::Stored(voter) => self.stored(voter),
            Action::GuestsStored(voter) => self.guests_stored(voter),
            Action::Ask => self.ask(),
            Action::Answer(voter) => self.answer(voter),
        }
    }

    fn agent_of_client(&self, client: usize) -> usize {
        self.agent_at(self.setting.scripts[client].at)
    }

    fn agent_at(&self, place: usize) -> usize {
        let agent = self.state.agent_of(member(place));
        agent.expect("a node with an agent")
    }

    pub fn step(&mut self, client: usize) {
        let at = self.state.enabled_step(self.setting, client);
        let at = at.expect("a step that the client can do");
        let agent = self.agent_of_client(client);
        let phase = self.state.clients[client].phase;
        self.state.clients[client].next = at + 1;
        match self.setting.scripts[client].steps[at] {
            Step::Lock(..) => self.lock(agent, client, at, u64::MAX),
            Step::LockWithin(_, _, timeout) => self.lock(agent, client, at, timeout),
            Step::Unlock => self.unlock(agent, client, at, |agent, token, request| {
                agent.unlock(NOW, token, request)
            }),
            Step::UnlockAsync => self.unlock_async(agent, client, at),
            Step::Die => {
                match phase {
                    Phase::Waits { step } => {
                        self.state.clients[client].phase = Phase::Idle;
                        self.call_agent(agent, |agent| agent.cancel(NOW, request(client, step)));
                    }
                    Phase::Holds { .. } => self.unlock_async(agent, client, at),
                    Phase::Idle | Phase::Unlocks { .. } => {}
                }
                self.state.clients[client].phase = Phase::Idle;
            }
            Step::Revoke(name) => {
                self.call_agent(agent, |agent| agent.revoke(NOW, Setting::name_of(name)))
            }
            Step::Disconnect(at, voter) => self.disconnect(self.agent_at(at), member(voter)),
            Step::Connect(at, voter) => self.connect(self.agent_at(at), member(voter)),
            Step::Crash(voter) => {
                let is_first = self.state.voters[voter].machine.is_none();
                self.crash_voter(member(voter), false);
                for agent in (0..self.state.agents.len()).filter(|_| is_first) {
                    self.connect(agent, member(voter));
                }
            }
            Step::Await(_) | Step::Later(_) => unreachable!("enabled_step skips it"),
        }
    }

    /// A client that still holds a lock after its last step dies.
    pub fn finish_client(&mut self, client: usize) {
        self.unlock_async(self.agent_of_client(client), client, AFTER_LAST);
        self.state.clients[client].phase = Phase::Idle;
    }

    fn lock(&mut self, agent: usize, client: usize, step: usize, timeout: u64) {
        self.state.clients[client].phase = Phase::Waits { step };
        let (mode, names) = self.setting.request(client, step);
        let names = names.iter().map(|name| Setting::name_of(*name)).collect();
        let names = Names::new(names).expect("names of the setting");
        self.call_agent(agent, |agent| {
            agent.lock(NOW, request(client, step), names, mode, units(timeout));
        });
    }

    fn unlock_async(&mut self, agent: usize, client: usize, step: usize) {
        self.unlock(agent, client, step, |agent, token, request| {
            agent.unlock_async(NOW, token, request)
        });
    }

    /// From this call on the client does not hold the lock, whatever the agent answers.
    fn unlock(
        &mut self,
        agent: usize,
        client: usize,
        step: usize,
        unlock: impl FnOnce(&mut Agent, Token, Request) -> bool,
    ) {
        let Phase::Holds { token, .. } = self.state.clients[client].phase else {
            return;
        };
        self.state.clients[client].past.push(token);
        self.state.clients[client].phase = Phase::Unlocks { step, token };
        if !self.call_agent(agent, |agent| unlock(agent, token, request(client, step))) {
            self.note(|| format!("t{} was not held anymore", token.0));
            self.state.clients[client].phase = Phase::Idle;
        }
    }

    /// With `again`, the frame also stays in flight.
    pub fn deliver(&mut self, place: usize, again: bool) {
        let flight = self.state.flights[place].clone();
        if again {
            spend(&mut self.state.left.duplicates, 1);
            let counted = self.state.left.delays != Budget::UNLIMITED;
            self.state.flights[place].change(|flight| flight.delayed = counted);
        } else {
            self.state.flights.remove(place);
        }
        let (sender, frame) = (flight.from, flight.frame.clone());
        let from = self.setting.node(sender);
        match &flight.frame {
            Frame::Batch(batch) => self.deliver_batch(&flight, batch),
            Frame::Life(_) => {
                self.call_voter(flight.to, |voter| voter.receive(NOW, from, frame.clone()))
            }
            Frame::Ack(_) | Frame::Notice(_) => {
                let agent = self.state.agent_of(flight.to);
                let agent = agent.expect("frames to missing agents are dropped at once");
                self.call_agent(agent, |agent| agent.receive(NOW, sender, frame));
            }
        }
    }

    fn deliver_batch(&mut self, flight: &Flight, batch: &Batch) {
        let me = flight.to;
        let voter = self.state.voters[me.place()].machine.as_ref();
        let voter = voter.expect("frames to missing voters are dropped at once");
        let before = Before::new(voter, Some(batch), NOW);
        let from = self.setting.node(flight.from);
        self.call_voter(me, |voter| voter.receive(NOW, from, flight.frame.clone()));
        self.check_votes(me, &before, Some(batch));
    }

    /// The frames in flight are delayed from now on.
    pub fn pass_time(&mut self) {
        spend(&mut self.state.left.time, 1);
        self.pass_question();
        let counted = self.state.left.delays != Budget::UNLIMITED;
        let lease = self.setting.rules.holder_lease.as_nanos();
        let oldest = -i64::try_from(lease).expect("a small rule");
        let mut delayed = 0;
        for flight in &mut self.state.flights {
            delayed += u8::from(!flight.delayed);
            flight.change(|flight| {
                flight.delayed = counted;
                match &mut flight.frame {
                    Frame::Batch(Batch { stamp, .. }) | Frame::Ack(Ack { stamp, .. }) => {
                        *stamp = Time((stamp.0 - 1).max(oldest));
                    }
                    Frame::Notice(_) | Frame::Life(_) => {}
                }
            });
        }
        spend(&mut self.state.left.delays, delayed);
        for agent in &mut self.state.agents {
            agent.machine.change(|agent| agent.rebase(Time(1)));
        }
        for voter in &mut self.state.voters {
            if let Some(machine) = &mut voter.machine {
                machine.change(|voter| voter.rebase(Time(1)));
            }
        }
        for place in 0..self.setting.members {
            if !self.state.voters[place].stalled {
                self.tick_voter(member(place));
            }
        }
        for agent in 0..self.state.agents.len() {
            if !self.state.agents[agent].stalled {
                self.tick_agent(agent);
            }
        }
    }

    pub fn stall_agent(&mut self, agent: usize, stalled: bool) {
        self.state.agents[agent].stalled = stalled;
        if stalled {
            spend(&mut self.state.left.stalls, 1);
        } else {
            self.tick_agent(agent);
        }
    }

    pub fn stall_voter(&mut self, me: Member, stalled: bool) {
        self.state.voters[me.place()].stalled = stalled;
        if stalled {
            spend(&mut self.state.left.stalls, 1);
        } else {
            self.tick_voter(me);
        }
    }

    /// With `old`, the new voter finds the disk as it was before the first start.
    fn crash_voter(&mut self, me: Member, old: bool) {
        let voter = &mut self.state.voters[me.place()];
        voter.storing = None;
        voter.storing_guests.clear();
        voter.stalled = false;
        if old {
            voter.disk = voter.old_disk;
        }
        self.run_voter(me, None);
    }

    /// An agent and its clients die, and another agent starts. New clients continue with the remaining steps.
    fn crash_agent(&mut self, agent: usize) {
        spend(&mut self.state.left.agent_crashes, 1);
        let old = &self.state.agents[agent];
        let (member, lifetime, connected) = (old.member, old.lifetime, old.connected);
        self.state.agents[agent] = self.new_agent(member, lifetime + 1, connected);
        for (client, script) in self.state.clients.iter_mut().zip(&self.setting.scripts) {
            if script.at == member.place() {
                (client.phase, client.past) = (Phase::Idle, Vec::new());
            }
        }
        // The new agent would ignore answers to its predecessor.
        let dead = agent_lifetime(member, lifetime);
        self.state.flights.retain(|flight| {
            !matches!(&flight.frame, Frame::Ack(ack) if flight.to == member && ack.agent == dead)
        });
        for other in connected.iter() {
            self.call_agent(agent, |agent| agent.up(NOW, other));
        }
    }

    pub fn connect(&mut self, agent: usize, other: Member) {
        let me = self.state.agents[agent].member;
        if !self.setting.may_connect(me, other) {
            return;
        }
        let connected = &mut self.state.agents[agent].connected;
        *connected = connected.with(other);
        self.call_agent(agent, |agent| agent.up(NOW, other));
    }

    /// Frames in flight may still arrive.
    pub fn disconnect(&mut self, agent: usize, other: Member) {
        let seen = &mut self.state.agents[agent];
        (seen.connected, seen.closed) = (seen.connected.without(other), seen.closed.without(other));
        self.call_agent(agent, |agent| agent.down(NOW, other));
    }

    /// A voter finds a connection closed. It drops no votes.
    fn voter_down(&mut self, agent: usize, me: Member) {
        let seen = &mut self.state.agents[agent];
        seen.closed = seen.closed.with(me);
        let node = self.setting.node(seen.member);
        self.tick_voter(me);
        let before = self.state.voters[me.place()].machine.as_ref();
        let before = before.map(|voter| Before::new(voter, None, NOW));
        self.call_voter(me, |voter| voter.down(NOW, node));
        self.check_votes(me, &before.unwrap_or_default(), None);
    }

    /// Q4 and Q7.
    fn check_votes(&mut self, me: Member, before: &Before, batch: Option<&Batch>) {
        let wait = self.rules_of_voter(me.place()).wait;
        let Some(voter) = self.state.voters[me.place()].machine.clone() else {
            return;
        };
        for vote in before.premature(&voter, batch) {
            let vote = format!("a vote for t{} of {:?}", vote.token.0, vote.agent);
            self.violated("Q4", format!("{me:?} granted {vote} in quarantine"));
        }
        for vote in before.dropped(&voter, batch) {
            if !vote.may_be_taken_back(NOW, wait) {
                let vote = format!("the vote for t{} of {:?}", vote.token.0, vote.agent);
                self.violated(
                    "Q7",
                    format!("{me:?} forgot {vote}, which was not returned"),
                );
            }
        }
    }

    pub fn stored(&mut self, me: Member) {
        let voter = &mut self.state.voters[me.place()];
        let fence = voter.storing.take().expect("a fence that is being stored");
        voter.store_mark(fence);
        self.written(me, Some(fence), false);
    }

    pub fn guests_stored(&mut self, me: Member) {
        if self.state.voters[me.place()].store_guests() {
            self.written(me, None, true);
        }
    }
}
