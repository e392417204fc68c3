//! One action: the machines are told of it, and what they want done is done.
//!
//! The promises that are about what happens, not about what is, are looked at here: the first one broken is noted in
//! the state.

mod acts;
mod outcomes;

use crate::model::coverage::Coverage;
use crate::model::kept::Kept;
use crate::model::setting::{member, Budget, Disk, Order, Setting};
use crate::model::state::{
    agent_lifetime, voter_lifetime, AgentSeat, Broken, Client, State, VoterSeat, NOW,
};
use quorum::agent::{Agent, AgentOutput, AgentSetup, Request};
use quorum::members::{Member, MemberSet, Members};
use quorum::message::{Fence, Frame, Lifetime, Op, Token};
use quorum::voter::{Fences, Voter, VoterOutput, VoterSetup};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// An action under way.
pub struct Turn<'a> {
    setting: &'a Setting,
    coverage: &'a Coverage,
    /// What has come of it so far.
    pub state: State,
    /// The same in words, if anybody wants to read them.
    pub notes: Option<Vec<String>>,
}

/// A client's question to its agent: the client and the step are in the number.
fn request(client: usize, step: usize) -> Request {
    Request((client * 100 + step) as u64)
}

/// Once less, unless it is not counted.
fn spend(budget: &mut u8, count: u8) {
    if *budget != Budget::ALWAYS {
        *budget -= count;
    }
}

impl<'a> Turn<'a> {
    /// Begins one.
    pub fn new(
        setting: &'a Setting,
        coverage: &'a Coverage,
        state: State,
        noted: bool,
    ) -> Turn<'a> {
        Turn {
            setting,
            coverage,
            state,
            notes: noted.then(Vec::new),
        }
    }

    /// The first state of all: everybody has just started, and knows nobody.
    pub fn first(setting: &'a Setting, coverage: &'a Coverage) -> Turn<'a> {
        let state = State {
            agents: Vec::new(),
            voters: Vec::new(),
            clients: vec![Client::default(); setting.scripts.len()],
            flights: Vec::new(),
            fences: vec![Fence(0); setting.names],
            left: Budget {
                time: Budget::ALWAYS,
                ..setting.budget
            },
            broken: None,
            steps: 0,
        };
        let mut turn = Turn::new(setting, coverage, state, false);
        for member in setting.agents.iter() {
            let machine = Kept::new(turn.new_agent(member, 0));
            let seat = AgentSeat {
                member,
                life: 0,
                machine,
                connected: MemberSet::EMPTY,
                late: false,
            };
            turn.state.agents.push(seat);
        }
        for place in 0..setting.members {
            let floor = setting.floors[place].map(Fence);
            let seat = VoterSeat {
                life: 0,
                machine: None,
                stored: floor.filter(|_| setting.disk != Disk::None),
                origin: Fence(setting.origins[place]),
                storing: None,
                late: false,
            };
            turn.state.voters.push(seat);
            if !setting.down.contains(member(place)) {
                turn.start_voter(member(place), floor);
            }
        }
        for seat in 0..turn.state.agents.len() {
            for place in (0..setting.members)
                .map(member)
                .filter(|place| !setting.down.contains(*place))
            {
                turn.join(seat, place);
            }
        }
        turn
    }

    fn members(&self, me: Member) -> Members {
        Members::new(self.setting.members, me.place()).expect("a member of the setting")
    }

    fn new_agent(&self, me: Member, life: u8) -> Agent {
        let setup = AgentSetup {
            members: self.members(me),
            rules: self.setting.rules,
            bugs: self.setting.bugs,
            lifetime: agent_lifetime(me, life),
            seed: me.place() as u64 + 1,
        };
        Agent::new(setup, NOW)
    }

    /// A voter that does not run starts, and knows of earlier fences what is told here.
    pub fn start_voter(&mut self, me: Member, floor: Option<Fence>) {
        let seat = &self.state.voters[me.place()];
        let setup = VoterSetup {
            members: self.members(me),
            rules: self.setting.rules,
            bugs: self.setting.bugs,
            lifetime: voter_lifetime(me, seat.life),
            fences: Fences {
                floor,
                origin: seat.origin,
                durable: self.setting.disk != Disk::None,
            },
        };
        self.state.voters[me.place()].machine = Some(Kept::new(Voter::new(setup, NOW)));
        self.tell_voter(me, |_| ());
    }

    /// A voter that did not run starts, and all agents are told that it is there.
    pub fn join_voter(&mut self, me: Member) {
        self.start_voter(me, self.setting.floors[me.place()].map(Fence));
        for seat in 0..self.state.agents.len() {
            self.join(seat, me);
        }
    }

    /// The first broken promise is the one that is told.
    fn broke(&mut self, promise: &'static str, how: String) {
        self.note(|| format!("{promise} IS BROKEN: {how}"));
        if self.setting.promise.is_none_or(|sought| sought == promise) {
            self.state.broken.get_or_insert(Broken { promise, how });
        }
    }

    fn note(&mut self, note: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push(note());
        }
    }

    /// Puts the frames in flight in the order that the setting wants. Equal states have to be equal.
    pub fn settle_order(&mut self) {
        if self.setting.order == Order::Any {
            self.state
                .flights
                .sort_by_key(|flight| (flight.to, flight.from, flight.late, flight.hash_value()));
        }
    }

    // --- What machines are told ---

    /// Tells an agent something, and does what it then wants done. An agent that panics has broken a promise, too.
    fn tell_agent<R: Default>(&mut self, seat: usize, tell: impl FnOnce(&mut Agent) -> R) -> R {
        let told = catch_unwind(AssertUnwindSafe(|| {
            self.state.agents[seat].machine.change(|agent| {
                let before = agent.standings();
                let result = tell(agent);
                agent.flush(NOW);
                let gone = before
                    .into_iter()
                    .filter(|(token, _)| agent.locks().all(|lock| lock.token != *token));
                let kept = gone
                    .filter(|(_, standing)| agent.lease().holds(standing, || NOW))
                    .map(|(token, _)| token);
                (result, kept.collect::<Vec<_>>(), agent.outputs())
            })
        }));
        let Ok((result, kept, outputs)) = told else {
            self.broke(
                "P0",
                format!("agent of {:?} panicked", self.state.agents[seat].member),
            );
            return R::default();
        };
        for token in kept {
            self.broke(
                "Q8",
                format!("{} was given back, and its holder finds it held", token.0),
            );
        }
        let granted = |output: &AgentOutput| match output {
            AgentOutput::Granted { token, .. } => Some(*token),
            _ => None,
        };
        let granted: Vec<Token> = outputs.iter().filter_map(granted).collect();
        for output in outputs {
            self.do_for_agent(seat, output);
        }
        // It may be revoked in the same moment: then that is told in the same moment, too.
        for token in granted {
            let past = self
                .state
                .clients
                .iter()
                .any(|client| client.past.contains(&token));
            if !past && !self.state.agents[seat].machine.held(token, NOW) {
                self.broke("Q1", format!("{} was granted, and is not held", token.0));
            }
        }
        result
    }

    fn tell_voter(&mut self, me: Member, mut tell: impl FnMut(&mut Voter)) {
        let mut stored = None;
        loop {
            let Some(machine) = &mut self.state.voters[me.place()].machine else {
                return;
            };
            let told = catch_unwind(AssertUnwindSafe(|| {
                machine.change(|voter| {
                    match stored.take() {
                        None => tell(voter),
                        Some(mark) => voter.stored(NOW, mark),
                    }
                    voter.outputs()
                })
            }));
            let Ok(outputs) = told else {
                return self.broke("P0", format!("voter of {me:?} panicked"));
            };
            for output in outputs {
                match output {
                    VoterOutput::Send(send) => self.send(me, send),
                    VoterOutput::Store(mark) if self.setting.disk == Disk::Slow => {
                        self.note(|| format!("{me:?} begins to store {}", mark.0));
                        let storing = &mut self.state.voters[me.place()].storing;
                        *storing = (*storing).max(Some(mark));
                    }
                    VoterOutput::Store(mark) => {
                        self.note(|| format!("{me:?} stores {}", mark.0));
                        self.state.voters[me.place()].stored = Some(mark);
                        stored = Some(mark);
                    }
                }
            }
            if stored.is_none() {
                return;
            }
        }
    }

    /// A machine that is told the time until it wants no more: not for ever.
    fn tick_agent(&mut self, seat: usize) {
        for _ in 0..100 {
            if self.state.agents[seat]
                .machine
                .deadline()
                .is_none_or(|deadline| deadline > NOW)
            {
                return;
            }
            self.tell_agent(seat, |agent| agent.tick(NOW));
        }
        self.broke(
            "P0",
            format!(
                "agent of {:?} is never done with ticking",
                self.state.agents[seat].member
            ),
        );
    }

    fn tick_voter(&mut self, me: Member) {
        for _ in 0..100 {
            let Some(voter) = &self.state.voters[me.place()].machine else {
                return;
            };
            if voter.deadline().is_none_or(|deadline| deadline > NOW) {
                return;
            }
            self.tell_voter(me, |voter| voter.tick(NOW));
        }
        self.broke("P0", format!("voter of {me:?} is never done with ticking"));
    }

    // --- Actions ---
}

/// Each vote that a voter keeps.
fn votes_of(voter: &Voter) -> Vec<(Lifetime, Token)> {
    voter
        .votes()
        .map(|(agent, _, token, ..)| (agent, token))
        .collect()
}

/// Whether the batch takes `token` back.
fn names_token(ops: &[Op], token: Token) -> bool {
    ops.iter().any(|op| match op {
        Op::Unlock { token: named, .. } => *named == token,
        Op::Sync { from, to, live } => (*from..*to).contains(&token) && !live.contains(&token),
        _ => false,
    })
}

fn answers_the_dead(frame: &Frame, to: Member, member: Member, life: u8) -> bool {
    matches!(frame, Frame::Ack(ack) if to == member && ack.agent == agent_lifetime(member, life))
}
