//! A setting as a stateright model: the first state, the actions of a state, and the properties.

use crate::model::action::Action;
use crate::model::properties;
use crate::model::quiescence;
use crate::model::setting::{member, Budget, Order, Setting};
use crate::model::state::State;
use crate::model::transition::Transition;
use crate::votes;
use quorum::message::Mode;
use quorum::time::Time;
use stateright::{Model, Property};
use std::sync::Arc;

/// Units of time within which all voters must vote after their start.
const MOST_START: usize = 100;

#[derive(Clone)]
pub struct QuorumModel {
    pub setting: Arc<Setting>,
    first: State,
    walking: bool,
}

impl QuorumModel {
    /// For a search of all states, or, if `walking`, for random walks.
    pub fn new(setting: Setting, walking: bool) -> QuorumModel {
        let mut first = Transition::first(&setting);
        if !setting.cold {
            start(&mut first);
        }
        first.sort_flights();
        let first = State {
            left: setting.budget,
            ..first.state
        };
        QuorumModel {
            setting: Arc::new(setting),
            first,
            walking,
        }
    }

    /// The state after an action, and the trace of the action if `traced`.
    pub fn perform(&self, state: &State, action: Action, traced: bool) -> (State, Vec<String>) {
        let mut next = Transition::new(&self.setting, state.clone(), traced);
        next.perform(action);
        next.sort_flights();
        if self.walking {
            next.state.depth += 1;
        }
        (next.state, next.trace.unwrap_or_default())
    }

    /// PR1, for the states in which all clients are done and for a sample of the others.
    fn becomes_quiescent(&self, state: &State) -> bool {
        let every = self.setting.quiescence_every;
        if state.violation.is_some() || every == 0 {
            return true;
        }
        let chosen = state.all_done(&self.setting) || state.sample() % every == 0;
        !chosen || quiescence::check(&self.setting, state).is_ok()
    }

    fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        let clients = 0..self.setting.scripts.len();
        let enabled = clients.filter(|client| state.enabled_step(&self.setting, *client).is_some());
        actions.extend(enabled.map(Action::Step));
        self.frames(state, actions);
        self.agents(state, actions);
        self.voters(state, actions);
        self.answers(state, actions);
    }

    fn answers(&self, state: &State, actions: &mut Vec<Action>) {
        let Some(question) = &state.question else {
            let mut clients = 0..self.setting.scripts.len();
            let is_held = clients.any(|client| state.holds(&self.setting, client));
            return actions.extend((is_held && state.left.questions > 0).then_some(Action::Ask));
        };
        let voters = (0..self.setting.members).map(member);
        let answers = voters.filter(|voter| {
            let machine = &state.voters[voter.place()].machine;
            let answers = |voter| votes::voted_names(voter, self.setting.quarantined_answers);
            !question.answered.contains(*voter) && machine.as_deref().and_then(answers).is_some()
        });
        actions.extend(answers.map(Action::Answer));
    }

    fn frames(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        let fresh = state.flights.iter().filter(|flight| !flight.delayed);
        let fresh = fresh.count();
        let mut first = true;
        for (place, flight) in state.flights.iter().enumerate() {
            let seen = place > 0 && state.flights[place - 1] == *flight;
            let ordered = self.setting.order == Order::Sent && !flight.delayed;
            if ordered && first && left.reorders > 0 && fresh > 1 {
                actions.push(Action::Reorder(place));
            }
            let counted = left.delays > 0 && left.delays != Budget::UNLIMITED;
            if ordered && first && counted && self.setting.single_delays {
                actions.push(Action::Delay(place));
            }
            if (!ordered || first) && !seen {
                actions.push(Action::Deliver(place));
                if left.duplicates > 0 {
                    actions.push(Action::Duplicate(place));
                }
            }
            first &= flight.delayed;
        }
        if left.time > 0 && (left.delays == Budget::UNLIMITED || fresh <= usize::from(left.delays))
        {
            actions.push(Action::PassTime);
        }
    }

    fn agents(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (place, agent) in state.agents.iter().enumerate() {
            if agent.stalled {
                actions.push(Action::StallAgent(place, false));
            } else if left.stalls > 0 && is_due(agent.machine.deadline()) {
                actions.push(Action::StallAgent(place, true));
            }
            if left.agent_crashes > 0 {
                actions.push(Action::CrashAgent(place));
            }
            for voter in (0..self.setting.members).map(member) {
                let is_closed = agent.closed.contains(voter);
                if agent.connected.contains(voter) {
                    if left.disconnects > 0 || is_closed {
                        actions.push(Action::Disconnect(place, voter));
                    }
                    if left.downs > 0 && !is_closed {
                        actions.push(Action::VoterDown(place, voter));
                    }
                } else if self.setting.budget.disconnects + self.setting.budget.downs > 0
                    && state.voters[voter.place()].machine.is_some()
                    && self.setting.may_connect(agent.member, voter)
                {
                    actions.push(Action::Connect(place, voter));
                }
            }
        }
    }

    fn voters(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        for (place, voter) in state.voters.iter().enumerate() {
            let place = member(place);
            let Some(machine) = &voter.machine else {
                continue;
            };
            if voter.stalled {
                actions.push(Action::StallVoter(place, false));
            } else if left.stalls > 0 && is_due(machine.deadline()) {
                actions.push(Action::StallVoter(place, true));
            }
            if left.voter_crashes > 0 && self.setting.crashing.contains(place) {
                actions.push(Action::CrashVoter(place));
                if left.old_disks > 0 {
                    actions.push(Action::CrashWithOldDisk(place));
                }
            }
            if voter.storing.is_some() {
                actions.push(Action::Stored(place));
            }
            if !voter.storing_guests.is_empty() {
                actions.push(Action::GuestsStored(place));
            }
        }
    }
}

/// Whether the timer fires within the next unit of time.
fn is_due(deadline: Option<Time>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Time(1))
}

/// Delivers all frames until every voter votes: the quarantine of the first start is over.
fn start(next: &mut Transition<'_>) {
    for _ in 0..MOST_START {
        while !next.state.flights.is_empty() {
            next.deliver(0, false);
        }
        if next.state.running().all(|voter| voter.is_voting()) {
            return;
        }
        next.pass_time();
    }
    panic!("the voters never vote: {:#?}", next.state);
}

impl Model for QuorumModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.first.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() || state.all_done(&self.setting) {
            return;
        }
        self.possible(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.perform(state, action, false).0)
    }

    fn properties(&self) -> Vec<Property<QuorumModel>> {
        vec![
            Property::always("Q1", |model, state| {
                properties::exclusive(&model.setting, state) && state.satisfies("Q1")
            }),
            Property::always("Q2", |_, state| properties::leases_outlast(state)),
            Property::always("Q3", |_, state| properties::sessions_are_current(state)),
            Property::always("Q4", |_, state: &State| state.satisfies("Q4")),
            Property::always("Q5", |_, state: &State| state.satisfies("Q5")),
            Property::always("Q6", |_, state: &State| state.satisfies("Q6")),
            Property::always("Q7", |_, state: &State| state.satisfies("Q7")),
            Property::always("Q8", |model, state| {
                properties::past_locks_are_not_held(&model.setting, state) && state.satisfies("Q8")
            }),
            Property::always("Votes", |model, state| {
                properties::counted_votes_are_exclusive(&model.setting, state)
            }),
            Property::always("PR1", QuorumModel::becomes_quiescent),
            Property::always("Q11", |model, state| {
                properties::all_or_nothing(&model.setting, state)
            }),
            Property::always("Q14", |_, state| properties::old_disks_are_not_used(state)),
            Property::always("Q15", |_, state: &State| state.satisfies("Q15")),
            Property::always("V7", |_, state| {
                properties::guests_with_votes_are_stored(state)
            }),
            Property::always("Machine", |_, state: &State| state.satisfies("Machine")),
            Property::sometimes("a writer holds", |model, state| {
                properties::holders(&model.setting, state, Mode::Write) > 0
            }),
            Property::sometimes("two readers hold", |model, state| {
                properties::holders(&model.setting, state, Mode::Read) > 1
            }),
            Property::sometimes("all clients are done", |model, state: &State| {
                state.all_done(&model.setting)
            }),
        ]
    }
}
