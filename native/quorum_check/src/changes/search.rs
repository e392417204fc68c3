//! The settings as models of stateright, and their searches.

use super::setting::{Fault, Setting};
use super::state::{Flight, State};
use super::transition::{Action, Transition};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::fmt;
use std::time::{Duration, Instant};

/// More steps before faults may happen than any setting needs.
const MOST_STEPS: usize = 10_000;

/// What a search has found.
pub struct Report {
    pub name: &'static str,
    pub states: usize,
    pub depth: usize,
    pub elapsed: Duration,
    /// The label of what is violated, and the trace.
    pub violation: Option<(&'static str, String)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, states, depth) = (self.name, self.states, self.depth);
        let seconds = self.elapsed.as_secs_f64();
        write!(f, "{name}: {states} states, depth {depth}, {seconds:.1} s")?;
        if let Some((label, trace)) = &self.violation {
            write!(f, "\n  {label} IS VIOLATED:\n{trace}")?;
        }
        Ok(())
    }
}

/// Searches all histories of the setting, until one violates a property.
pub fn search(setting: Setting) -> Report {
    let name = setting.name;
    let began = Instant::now();
    let checker = ChangeModel::new(setting)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let model = checker.model();
    let path = checker.discoveries().into_values().next();
    let violation = path.map(|path| {
        let (label, lines) = model.trace(path.into_actions());
        (label, lines.join("\n"))
    });
    Report {
        name,
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        elapsed: began.elapsed(),
        violation,
    }
}

struct ChangeModel {
    setting: Setting,
    first: State,
}

impl ChangeModel {
    /// The first state is the one in which faults may happen.
    fn new(setting: Setting) -> ChangeModel {
        let mut first = Transition::first(&setting);
        for _ in 0..MOST_STEPS {
            if first.state.left.is_some() {
                break;
            }
            first.perform(Action::Next);
        }
        assert!(first.state.left.is_some(), "the faults never begin");
        let first = first.state;
        ChangeModel { setting, first }
    }

    fn trace(&self, actions: Vec<Action>) -> (&'static str, Vec<String>) {
        let mut traced = Transition::new(&self.setting, self.first.clone(), true);
        actions
            .into_iter()
            .for_each(|action| traced.perform(action));
        let violation = traced.state.violation.expect("a violation");
        (violation.property, traced.trace.unwrap_or_default())
    }
}

impl Model for ChangeModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.first.clone()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() || state.are_all_done(&self.setting) {
            return;
        }
        actions.push(Action::Next);
        if state.left.is_none_or(|left| left == 0) {
            return;
        }
        let next = state.flights.first();
        for fault in self.setting.faults.iter().copied() {
            let is_possible = match fault {
                Fault::Loss => next.is_some_and(|next| matches!(**next, Flight::Message { .. })),
                Fault::Delay => state.flights.len() > 1,
                Fault::Hurry => next.is_some(),
                _ => {
                    let nodes = self.setting.crashing.iter().copied();
                    let alive = nodes.filter(|node| state.nodes[*node].is_alive);
                    actions.extend(alive.map(|node| Action::Fault(fault, node)));
                    false
                }
            };
            if is_possible {
                actions.push(Action::Fault(fault, 0));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = Transition::new(&self.setting, state.clone(), false);
        next.perform(action);
        Some(next.state)
    }

    fn properties(&self) -> Vec<Property<ChangeModel>> {
        vec![Property::always("all", |_, state: &State| {
            state.violation.is_none()
        })]
    }
}
