//! Transitions: an action calls the machines, and their outputs are carried out.
//!
//! Properties of what happens, as opposed to what is, are checked here. The state keeps the first violation.

mod actions;
mod outputs;
mod questions;

use crate::model::setting::{member, Budget, Disk, Order, Setting};
use crate::model::state::{
    agent_lifetime, voter_lifetime, AgentState, Client, State, Stored, Violation, VoterState, NOW,
};
use crate::shared::Shared;
use quorum::agent::{Agent, AgentOutput, AgentSetup};
use quorum::lease::Standing;
use quorum::members::{Member, MemberSet};
use quorum::message::{Fence, Lifetime, Token};
use quorum::rules::Rules;
use quorum::voter::{Voter, VoterOutput, VoterSetup};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// A machine whose timer fires this often at one moment fires it endlessly.
const MOST_TICKS: usize = 100;

pub struct Transition<'a> {
    pub setting: &'a Setting,
    pub state: State,
    pub trace: Option<Vec<String>>,
}

impl<'a> Transition<'a> {
    pub fn new(setting: &'a Setting, state: State, traced: bool) -> Transition<'a> {
        Transition {
            setting,
            state,
            trace: traced.then(Vec::new),
        }
    }

    /// To the first state: all machines have just started and do not know each other.
    pub fn first(setting: &'a Setting) -> Transition<'a> {
        let state = State {
            agents: Vec::new(),
            voters: Vec::new(),
            clients: vec![Client::default(); setting.scripts.len()],
            flights: Vec::new(),
            fences: vec![Fence(0); setting.names],
            left: Budget {
                time: Budget::UNLIMITED,
                ..setting.budget
            },
            question: None,
            violation: None,
            depth: 0,
        };
        let mut first = Transition::new(setting, state, false);
        for member in setting.agents.iter() {
            let agent = first.new_agent(member, 0, MemberSet::EMPTY);
            first.state.agents.push(agent);
        }
        for place in 0..setting.members {
            let disk = Stored {
                mark: Fence(setting.marks[place]),
                lease: setting.rules.voter_lease,
                ..Stored::default()
            };
            first.state.voters.push(VoterState {
                disk,
                old_disk: disk,
                last_mark: disk.mark,
                ..VoterState::default()
            });
        }
        for place in (0..setting.members).map(member) {
            if !setting.down.contains(place) {
                first.run_voter(place, None);
            }
        }
        for agent in 0..first.state.agents.len() {
            let voters = (0..setting.members).map(member);
            for voter in voters.filter(|voter| !setting.down.contains(*voter)) {
                first.connect(agent, voter);
            }
        }
        first
    }

    fn new_agent(&self, member: Member, lifetime: u8, connected: MemberSet) -> AgentState {
        let setup = AgentSetup {
            members: self.setting.list(),
            rules: *self.rules_of_agent(member),
            bugs: self.setting.bugs,
            lifetime: agent_lifetime(member, lifetime),
        };
        AgentState {
            member,
            lifetime,
            machine: Shared::new(Agent::new(setup, NOW)),
            connected,
            closed: MemberSet::EMPTY,
            stalled: false,
        }
    }

    /// Starts the voter as its host does: a life above the stored one, and above the one that another voter has `seen`,
    /// is stored first. In that case the file was old. The voter then starts with the last mark of all its disks, and
    /// there may be guests.
    fn run_voter(&mut self, me: Member, seen: Option<u32>) {
        let (setting, place) = (self.setting, me.place());
        self.state.voters[place].starts += 1;
        let rules = *self.rules_of_voter(place);
        let voter = &mut self.state.voters[place];
        voter.highest_life = voter.highest_life.max(voter.life);
        let mark = match seen {
            None => voter.disk.mark,
            Some(_) => voter.last_mark,
        };
        voter.life = voter.disk.life.max(seen.unwrap_or(0)) + 1;
        voter.disk = Stored {
            life: voter.life,
            mark,
            lease: voter.disk.lease.max(rules.voter_lease),
            guests: voter.disk.guests || seen.is_some() && setting.has_guests(),
        };
        let setup = VoterSetup {
            members: setting.list(),
            me,
            rules,
            bugs: setting.bugs,
            lifetime: voter_lifetime(me, voter.life, voter.starts),
            quarantine: setting.quarantine.unwrap_or(voter.disk.lease),
            guests: voter.disk.guests,
            begins: false,
            mark,
            durable: true,
        };
        let mut machine = Voter::new(setup, NOW);
        if setting.disk == Disk::Fast {
            // As after the first grant. A voter refuses that one until it has stored a block, which would only make
            // all histories longer. Those with a slow disk have it.
            let block = Fence(mark.0 + rules.fence_block);
            voter.store_mark(block);
            machine.stored(NOW, block);
        }
        voter.machine = Some(Shared::new(machine));
        self.call_voter(me, |_| ());
    }

    /// Another voter knows a later life.
    fn supersede(&mut self, me: Member, seen: Lifetime) {
        self.note(|| format!("{me:?} was superseded by life {}", seen.life()));
        let voter = &mut self.state.voters[me.place()];
        (voter.storing, voter.stalled) = (None, false);
        voter.storing_guests.clear();
        self.run_voter(me, Some(seen.life()));
    }

    /// A voter that restarts may have other rules.
    fn rules_of_voter(&self, place: usize) -> &Rules {
        let restarted = self.state.voters[place].starts > 1;
        let new = self.setting.new_rules.as_ref();
        new.filter(|_| restarted).unwrap_or(&self.setting.rules)
    }

    fn rules_of_agent(&self, member: Member) -> &Rules {
        let is_new = self.setting.renewed.contains(member);
        let new = self.setting.new_rules.as_ref();
        new.filter(|_| is_new).unwrap_or(&self.setting.rules)
    }

    fn violated(&mut self, property: &'static str, text: String) {
        self.note(|| format!("{property} IS VIOLATED: {text}"));
        if self.setting.only.is_none_or(|only| only == property) {
            let violation = Violation { property, text };
            self.state.violation.get_or_insert(violation);
        }
    }

    fn note(&mut self, note: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(note());
        }
    }

    /// Sorts the frames in flight if the setting ignores their order: equal states must compare equal.
    pub fn sort_flights(&mut self) {
        if self.setting.order == Order::Any {
            self.state.flights.sort_by_key(|flight| {
                (flight.to, flight.from, flight.delayed, flight.hash_value())
            });
        }
    }

    fn call_agent<R: Default>(&mut self, agent: usize, call: impl FnOnce(&mut Agent) -> R) -> R {
        let called = catch_unwind(AssertUnwindSafe(|| {
            self.state.agents[agent].machine.change(|agent| {
                let lease = agent.lease();
                let holds = |standing: &Standing| lease.holds(standing, || NOW);
                let before = agent.standings().into_iter();
                let before = before.map(|(token, of)| (token, holds(&of), of));
                let before: Vec<(Token, bool, Arc<Standing>)> = before.collect();
                let result = call(agent);
                agent.flush(NOW);
                let unlocked = |token| agent.locks().all(|lock| lock.token != token);
                let after = before.into_iter().filter(|(.., of)| holds(of));
                let wrong = after.filter(|(token, held, _)| !held || unlocked(*token));
                let wrong: Vec<(Token, bool)> =
                    wrong.map(|(token, held, _)| (token, held)).collect();
                (result, wrong, agent.outputs())
            })
        }));
        let member = self.state.agents[agent].member;
        let Ok((result, wrong, outputs)) = called else {
            self.violated("Machine", format!("the agent of {member:?} panicked"));
            return R::default();
        };
        for (token, was_held) in wrong {
            let (property, was) = match was_held {
                true => ("Q8", "was unlocked"),
                false => ("Q15", "was not held"),
            };
            let text = format!("t{} {was}, and its holder finds it held", token.0);
            self.violated(property, text);
        }
        let granted = |output: &AgentOutput| match output {
            AgentOutput::Granted { token, .. } => Some(*token),
            _ => None,
        };
        let granted: Vec<Token> = outputs.iter().filter_map(granted).collect();
        for output in outputs {
            self.carry_out(agent, output);
        }
        // A lock may be granted and revoked in one call. Then the client is informed of both.
        for token in granted {
            let mut clients = self.state.clients.iter();
            let past = clients.any(|client| client.past.contains(&token));
            if !past && !self.state.agents[agent].machine.held(token, NOW) {
                self.violated("Q1", format!("t{} was granted and is not held", token.0));
            }
        }
        result
    }

    fn call_voter(&mut self, me: Member, call: impl FnOnce(&mut Voter)) {
        let Some(machine) = &mut self.state.voters[me.place()].machine else {
            return;
        };
        let called = catch_unwind(AssertUnwindSafe(|| {
            machine.change(|voter| {
                call(voter);
                voter.outputs()
            })
        }));
        let Ok(outputs) = called else {
            return self.violated("Machine", format!("the voter of {me:?} panicked"));
        };
        let (mut stored, mut guests, mut superseded) = (None, false, None);
        for output in outputs {
            match output {
                VoterOutput::Send(send) => self.send(me, send),
                VoterOutput::Store(fence) if self.setting.disk == Disk::Slow => {
                    self.note(|| format!("{me:?} starts to store {}", fence.0));
                    let storing = &mut self.state.voters[me.place()].storing;
                    *storing = (*storing).max(Some(fence));
                }
                VoterOutput::Store(fence) => {
                    self.note(|| format!("{me:?} stores {}", fence.0));
                    self.state.voters[me.place()].store_mark(fence);
                    stored = Some(fence);
                }
                VoterOutput::StoreGuests(some) => guests |= self.write_guests(me, some),
                VoterOutput::Superseded { seen } => superseded = Some(seen),
                VoterOutput::Ready => unreachable!("no view begins"),
            }
        }
        if let Some(seen) = superseded {
            return self.supersede(me, seen);
        }
        if stored.is_some() || guests {
            return self.written(me, stored, guests);
        }
        let lease = self.rules_of_voter(me.place()).voter_lease;
        let voter = &mut self.state.voters[me.place()];
        if voter
            .machine
            .as_ref()
            .is_some_and(|voter| voter.is_voting())
        {
            // The quarantine is over, and with it the promises of earlier lives.
            voter.disk.lease = lease;
        }
    }

    /// A fence, or that there are guests, is on disk.
    fn written(&mut self, me: Member, fence: Option<Fence>, guests: bool) {
        self.call_voter(me, |voter| {
            if let Some(fence) = fence {
                voter.stored(NOW, fence);
            }
            if guests {
                voter.guests_stored(NOW);
            }
        });
    }

    /// Starts a write of guests. Returns whether the voter is informed of it at once.
    fn write_guests(&mut self, me: Member, some: bool) -> bool {
        self.note(|| format!("{me:?} stores that there are guests: {some}"));
        let slow = self.setting.slow_guests;
        let voter = &mut self.state.voters[me.place()];
        voter.storing_guests.push(some);
        !slow && voter.store_guests()
    }

    fn tick_agent(&mut self, agent: usize) {
        for _ in 0..MOST_TICKS {
            let deadline = self.state.agents[agent].machine.deadline();
            if deadline.is_none_or(|deadline| deadline > NOW) {
                return;
            }
            self.call_agent(agent, |agent| agent.tick(NOW));
        }
        let member = self.state.agents[agent].member;
        let text = format!("the timer of the agent of {member:?} fires endlessly");
        self.violated("Machine", text);
    }

    fn tick_voter(&mut self, me: Member) {
        for _ in 0..MOST_TICKS {
            let Some(voter) = &self.state.voters[me.place()].machine else {
                return;
            };
            if voter.deadline().is_none_or(|deadline| deadline > NOW) {
                return;
            }
            self.call_voter(me, |voter| voter.tick(NOW));
        }
        let text = format!("the timer of the voter of {me:?} fires endlessly");
        self.violated("Machine", text);
    }
}
