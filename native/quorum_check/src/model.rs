//! Search of all that can happen, on the machines themselves.
//!
//! A [`Setting`] says who takes part, what clients do and what may go wrong how often. The
//! states are all that can come of it, in any order: [`State`] holds real agents and voters, and an
//! [`Action`] tells one of them something. A checker walks through the states, each once, and looks at the
//! [`promises`] in each.
//!
//! # What is searched, and what is not
//!
//! *Time* is in whole units of the setting's rules, and the same for all. (The simulation has clocks that drift.)
//! Within a unit anything may happen in any order.
//!
//! *Frames* come within the unit in which they were sent, in any order, unless they are late: then at any later time,
//! or never. So loss needs no action of its own: a lost frame is one that has not come yet, and what follows from its
//! loss follows while it is in flight. How many may be late in one history is a bound of the setting
//! ([`Budget`]`::delays`), as are crashes, duplicates and time; a search whose space is closed has
//! seen every history within these bounds.
//!
//! *A crash* of a voter is one action with its restart. A voter that is down for some time is one whose frames are
//! late until it starts: the others cannot tell the difference. *Ticks* come with the unit in which they are due,
//! before anything else happens in it, unless the machine is late: then when it is scheduled again, with anything in
//! between.
//!
//! # What is left out, and why nothing is lost by it
//!
//! - Two frames in flight that are equal are delivered once each, but the search follows only one order of the two.
//! - A duplicate is made when the frame comes for the first time: before that it makes no difference.
//! - Answers to a dead life of an agent are thrown away when it dies, and frames to those that do not run when they
//!   are sent. The agent would look at the life that they name, and ignore them.
//! - A stamp older than the lease of a holder is as old as one just as old: neither gives the holder anything.
//! - When all clients are through there is no lock left to be held, nor one to be granted: the search ends there, and
//!   a calm end shows what the tables still hold ([`quiescence`]).
//! - Ticks of several machines that are due at the same time are done in one order: each works on itself alone, and
//!   what they send can be taken in any order.
//!
//! Not used: symmetry of voters (the first one that is ready is asked first) and of agents (the same, for what they
//! share a member with).

pub mod controls;
pub mod coverage;
pub mod kept;
pub mod promises;
pub mod quiescence;
pub mod search;
pub mod setting;
pub mod settings;
pub mod state;
mod turn;
mod words;

use coverage::Coverage;
use quorum::members::Member;
use quorum::message::Mode;
use quorum::time::Time;
use setting::{member, Budget, Order, Setting, Step};
use state::{Phase, State};
use stateright::{Model, Property};
use std::sync::Arc;
use turn::Turn;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// This client does its next step.
    Step(usize),
    /// The frame at this place comes.
    Deliver(usize),
    /// It comes, and may come again.
    DeliverAgain(usize),
    /// The frame at this place, which is the next, comes after all others that are in flight.
    Defer(usize),
    /// The frame at this place, which is the next, is late from now on.
    HoldBack(usize),
    /// Time passes by a unit.
    Pass,
    /// This agent is not scheduled from now on.
    AgentLate(usize),
    /// It is scheduled again.
    AgentAwake(usize),
    /// This voter is not scheduled from now on.
    VoterLate(Member),
    /// It is scheduled again.
    VoterAwake(Member),
    /// This voter crashes, and starts again.
    CrashVoter(Member),
    /// This voter, which did not run, starts.
    StartVoter(Member),
    /// This agent crashes, and starts again.
    CrashAgent(usize),
    /// This agent hears that the member is not connected.
    Cut(usize, Member),
    /// It hears that it is.
    Join(usize, Member),
    /// What this voter is storing is stored.
    Stored(Member),
}

/// A setting, ready to be searched.
#[derive(Clone)]
pub struct Search {
    /// What is searched.
    pub setting: Arc<Setting>,
    /// What was seen.
    pub coverage: Arc<Coverage>,
    first: State,
    walking: bool,
}

impl Search {
    /// Of `setting`: all of it, or, `walking`, by random walks.
    ///
    /// # Panics
    /// If the voters of the setting never come to vote.
    #[must_use]
    pub fn new(setting: Setting, walking: bool) -> Search {
        let coverage = Arc::new(Coverage::default());
        let mut turn = Turn::first(&setting, &coverage);
        if !setting.cold {
            make_acquainted(&mut turn);
        }
        turn.settle_order();
        let first = State {
            left: setting.budget,
            ..turn.state
        };
        Search {
            setting: Arc::new(setting),
            coverage: Arc::default(),
            first,
            walking,
        }
    }

    /// What comes of an action, and what happened in words, if anybody wants to read them.
    #[must_use]
    pub fn play(&self, state: &State, action: Action, noted: bool) -> (State, Vec<String>) {
        let mut turn = Turn::new(&self.setting, &self.coverage, state.clone(), noted);
        match action {
            Action::Step(client) => turn.step(client),
            Action::Deliver(place) => turn.deliver(place, false),
            Action::DeliverAgain(place) => turn.deliver(place, true),
            Action::Defer(place) => turn.defer(place),
            Action::HoldBack(place) => turn.hold_back(place),
            Action::Pass => turn.pass(),
            Action::AgentLate(seat) => turn.agent_late(seat, true),
            Action::AgentAwake(seat) => turn.agent_late(seat, false),
            Action::VoterLate(voter) => turn.voter_late(voter, true),
            Action::VoterAwake(voter) => turn.voter_late(voter, false),
            Action::CrashVoter(voter) => turn.crash_voter(voter),
            Action::StartVoter(voter) => turn.join_voter(voter),
            Action::CrashAgent(seat) => turn.crash_agent(seat),
            Action::Cut(seat, voter) => turn.cut(seat, voter),
            Action::Join(seat, voter) => turn.join(seat, voter),
            Action::Stored(voter) => turn.stored(voter),
        }
        turn.settle_order();
        if self.walking {
            turn.state.steps += 1;
        }
        (turn.state, turn.notes.unwrap_or_default())
    }

    /// An action in words.
    #[must_use]
    pub fn words(&self, state: &State, action: Action) -> String {
        let agent = |seat: usize| format!("agent of {:?}", state.agents[seat].member);
        let frame = |place: usize| {
            let flight = &state.flights[place];
            words::frame(flight.from, flight.to, &flight.frame)
        };
        match action {
            Action::Step(client) => {
                let at = state
                    .step_of(&self.setting, client)
                    .expect("an action that can be");
                let told = words::step(&self.setting, client, at);
                format!(
                    "client {client} of m{} {told}",
                    self.setting.scripts[client].at
                )
            }
            Action::Deliver(place) if state.flights[place].late => {
                format!("late comes {}", frame(place))
            }
            Action::Deliver(place) => format!("comes {}", frame(place)),
            Action::DeliverAgain(place) => {
                format!("comes, and not for the last time, {}", frame(place))
            }
            Action::Defer(place) => format!("not yet comes {}", frame(place)),
            Action::HoldBack(place) => format!("held back is {}", frame(place)),
            Action::Pass => "time passes".into(),
            Action::AgentLate(seat) => format!("{} falls asleep", agent(seat)),
            Action::AgentAwake(seat) => format!("{} wakes up", agent(seat)),
            Action::VoterLate(voter) => format!("voter of {voter:?} falls asleep"),
            Action::VoterAwake(voter) => format!("voter of {voter:?} wakes up"),
            Action::CrashVoter(voter) => format!("voter of {voter:?} crashes and restarts"),
            Action::StartVoter(voter) => format!("voter of {voter:?} starts"),
            Action::CrashAgent(seat) => format!("{} crashes and restarts", agent(seat)),
            Action::Cut(seat, voter) => format!("{} is cut off from {voter:?}", agent(seat)),
            Action::Join(seat, voter) => format!("{} is connected to {voter:?}", agent(seat)),
            Action::Stored(voter) => format!("voter of {voter:?} has stored its mark"),
        }
    }
}

/// Lets all meet, and the quarantine of the first start end.
fn make_acquainted(turn: &mut Turn<'_>) {
    for _ in 0..100 {
        while !turn.state.flights.is_empty() {
            turn.deliver(0, false);
        }
        if turn
            .state
            .voters
            .iter()
            .filter_map(|seat| seat.machine.as_ref())
            .all(|voter| voter.is_voting())
        {
            return;
        }
        turn.pass();
    }
    panic!("voters that never vote: {:#?}", turn.state);
}

impl Model for Search {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.first.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() || state.is_over(&self.setting) {
            return;
        }
        if let Some(client) = self.setting.disaster {
            return self.disastrous(state, client, actions);
        }
        self.usual(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.play(state, action, false).0)
    }

    fn properties(&self) -> Vec<Property<Search>> {
        vec![
            Property::always("Q1", |search, state| {
                promises::exclusive(&search.setting, state) && is_kept("Q1", state)
            }),
            Property::always("Q2", |search, state| {
                promises::leases_outlast(&search.setting, state)
            }),
            Property::always("Q3", |search, state| {
                promises::sessions_are_current(&search.setting, state)
            }),
            Property::always("Q4", |_, state| is_kept("Q4", state)),
            Property::always("Q5", |_, state| is_kept("Q5", state)),
            Property::always("Q6", |_, state| is_kept("Q6", state)),
            Property::always("Q7", |_, state| is_kept("Q7", state)),
            Property::always("Q8", |search, state| {
                promises::past_is_past(&search.setting, state) && is_kept("Q8", state)
            }),
            Property::always("Q9", |search, state| search.ends_well(state)),
            Property::always("Q11", |search, state| {
                promises::all_or_nothing(&search.setting, state)
            }),
            Property::always("P0", |_, state| is_kept("P0", state)),
            Property::sometimes("a writer holds", |search, state| {
                promises::holders(&search.setting, state).1 == 1
            }),
            Property::sometimes("two readers hold", |search, state| {
                promises::holders(&search.setting, state).0 == 2
            }),
            Property::sometimes("all are through", |search, state: &State| {
                state.is_over(&search.setting)
            }),
        ]
    }
}

impl Search {
    /// Whatever may happen next.
    fn usual(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        let clients = 0..self.setting.scripts.len();
        actions.extend(
            clients
                .filter(|client| state.step_of(&self.setting, *client).is_some())
                .map(Action::Step),
        );
        let fresh = state.flights.iter().filter(|flight| !flight.late).count();
        let mut first = true;
        for (place, flight) in state.flights.iter().enumerate() {
            let seen = place > 0 && state.flights[place - 1] == *flight;
            let sent = self.setting.order == Order::Sent && !flight.late;
            let turn = !sent || first;
            if sent && first && left.defers > 0 && fresh > 1 {
                actions.push(Action::Defer(place));
            }
            let counted = left.delays > 0 && left.delays != Budget::ALWAYS;
            if sent && first && counted && self.setting.holding_back {
                actions.push(Action::HoldBack(place));
            }
            first &= flight.late;
            if turn && !seen {
                actions.push(Action::Deliver(place));
                if left.duplicates > 0 {
                    actions.push(Action::DeliverAgain(place));
                }
            }
        }
        if left.time > 0 && (left.delays == Budget::ALWAYS || fresh <= usize::from(left.delays)) {
            actions.push(Action::Pass);
        }
        for (seat, agent) in state.agents.iter().enumerate() {
            let due = agent
                .machine
                .deadline()
                .is_some_and(|deadline| deadline <= Time(1));
            if agent.late {
                actions.push(Action::AgentAwake(seat));
            } else if left.lates > 0 && due {
                actions.push(Action::AgentLate(seat));
            }
            if left.agent_crashes > 0 {
                actions.push(Action::CrashAgent(seat));
            }
            for place in (0..self.setting.members).map(member) {
                if agent.connected.contains(place) {
                    if left.cuts > 0 {
                        actions.push(Action::Cut(seat, place));
                    }
                } else if state.voters[place.place()].machine.is_some()
                    && self.setting.meet(agent.member, place)
                {
                    actions.push(Action::Join(seat, place));
                }
            }
        }
        for (place, voter) in state.voters.iter().enumerate() {
            let place = member(place);
            let Some(machine) = &voter.machine else {
                actions.push(Action::StartVoter(place));
                continue;
            };
            if voter.late {
                actions.push(Action::VoterAwake(place));
            } else if left.lates > 0
                && machine
                    .deadline()
                    .is_some_and(|deadline| deadline <= Time(1))
            {
                actions.push(Action::VoterLate(place));
            }
            if left.voter_crashes > 0 && self.setting.crashing.contains(place) {
                actions.push(Action::CrashVoter(place));
            }
            if voter.storing.is_some() {
                actions.push(Action::Stored(place));
            }
        }
    }

    /// As [`Setting::disaster`] wants it.
    fn disastrous(&self, state: &State, client: usize, actions: &mut Vec<Action>) {
        self.usual(state, actions);
        let seat = state.seat_of(member(self.setting.scripts[client].at));
        let fault = |action: &Action| match action {
            Action::CrashVoter(_) | Action::StartVoter(_) => Some(true),
            Action::Cut(cut, from) => {
                Some(Some(*cut) == seat && self.setting.crashing.contains(*from))
            }
            Action::Join(..) => Some(false),
            _ => None,
        };
        let holds = matches!(state.clients[client].phase, Phase::Holds { .. });
        let due = holds && actions.iter().any(|action| fault(action) == Some(true));
        actions.retain(|action| fault(action).map_or(!due, |wanted| wanted && due));
    }
}

fn is_kept(promise: &str, state: &State) -> bool {
    state
        .broken
        .as_ref()
        .is_none_or(|broken| broken.promise != promise)
}

impl Search {
    /// Q9 and Q10, for states where all are through and for some of the others.
    fn ends_well(&self, state: &State) -> bool {
        if state.broken.is_some() || self.setting.quiescence_every == 0 {
            return true;
        }
        let chosen =
            state.is_over(&self.setting) || state.mixed() % self.setting.quiescence_every == 0;
        !chosen || quiescence::ends_well(&self.setting, &self.coverage, state).is_ok()
    }
}

impl Setting {
    /// What a client asks for at this step.
    ///
    /// # Panics
    /// If it asks for nothing there.
    #[must_use]
    pub fn asked(&self, client: usize, step: usize) -> (Mode, &'static [usize]) {
        match self.scripts[client].steps[step] {
            Step::Lock(mode, names) | Step::LockWithin(mode, names, _) => (mode, names),
            other => panic!("{other:?} asks for nothing"),
        }
    }
}

impl State {
    /// The step that a client can do now. Steps that wait for what has come, or give back what is not held, are
    /// passed over.
    #[must_use]
    pub fn step_of(&self, setting: &Setting, client: usize) -> Option<usize> {
        let phase = self.clients[client].phase;
        let steps = &setting.scripts[client].steps;
        for (at, step) in steps.iter().enumerate().skip(self.clients[client].next) {
            let idle = phase == Phase::Idle;
            let holds = matches!(phase, Phase::Holds { .. });
            match step {
                Step::Await(other) if self.is_through(setting, *other) => {}
                Step::Await(other) if matches!(self.clients[*other].phase, Phase::Holds { .. }) => {
                }
                Step::Later(units) if setting.budget.time - self.left.time >= *units => {}
                Step::Await(_) | Step::Later(_) => return None,
                Step::Lock(..) | Step::LockWithin(..) => return idle.then_some(at),
                Step::Unlock | Step::TryUnlock if idle => {}
                Step::Unlock | Step::TryUnlock => return holds.then_some(at),
                Step::Die if idle => {}
                Step::Die => return Some(at),
                Step::Revoke(_) => return (idle || holds).then_some(at),
            }
        }
        None
    }

    /// Whether a client holds nothing, waits for nothing, and will ask for nothing.
    #[must_use]
    pub fn is_through(&self, setting: &Setting, client: usize) -> bool {
        let asks = |step: &Step| {
            matches!(
                step,
                Step::Lock(..) | Step::LockWithin(..) | Step::Revoke(_)
            )
        };
        let steps = &setting.scripts[client].steps;
        self.clients[client].phase == Phase::Idle
            && !steps.iter().skip(self.clients[client].next).any(asks)
    }

    /// Whether all clients are through.
    #[must_use]
    pub fn is_over(&self, setting: &Setting) -> bool {
        (0..self.clients.len()).all(|client| self.is_through(setting, client))
    }

    /// Whether a client waits for an answer.
    #[must_use]
    pub fn waits(&self, client: usize) -> bool {
        matches!(
            self.clients[client].phase,
            Phase::Asked { .. } | Phase::Returns { .. }
        )
    }

    /// Some number, for the choice of a few states.
    #[must_use]
    pub fn mixed(&self) -> u64 {
        let agents = self.agents.iter().map(|seat| seat.machine.hash_value());
        let voters = self
            .voters
            .iter()
            .filter_map(|seat| seat.machine.as_ref())
            .map(|voter| voter.hash_value());
        let flights = self.flights.iter().map(|flight| flight.hash_value());
        agents
            .chain(voters)
            .chain(flights)
            .fold(0, u64::wrapping_add)
            >> 8
    }
}
