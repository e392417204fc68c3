//! A search from its beginning to its report.

use crate::model::quiescence;
use crate::model::setting::Setting;
use crate::model::state::State;
use crate::model::{Action, Search};
use stateright::{Checker, Chooser, Expectation, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How far a search may go.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// States made, the same one made again included, after which it is cut; about.
    pub states: usize,
    /// Time after which it is cut; about.
    pub time: Duration,
    /// Threads. With one, a trace that is found is among the shortest.
    pub threads: usize,
}

/// In which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All states, those with the shortest histories first.
    Broad,
    /// Random histories of at most so many actions, from this seed.
    Walks {
        /// The length.
        length: usize,
        /// The seed.
        seed: u64,
    },
}

/// What came of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// Of the setting.
    pub name: &'static str,
    /// In which way.
    pub way: Way,
    /// Different states; in walks, all.
    pub states: usize,
    /// States made, with those that were known.
    pub made: usize,
    /// The most actions before a state.
    pub depth: usize,
    /// Whether every state within the setting's bounds was seen.
    pub closed: bool,
    /// How long it took.
    pub took: Duration,
    /// Promises that were broken, each with a history.
    pub broken: Vec<(&'static str, String)>,
    /// What is to be seen and was not.
    pub unseen: Vec<&'static str>,
    /// What was done.
    pub coverage: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        let rate = self.made as f64 / seconds.max(0.001);
        write!(f, "{}: ", self.name)?;
        match self.way {
            Way::Broad => {
                let end = if self.closed { "closed" } else { "cut" };
                write!(
                    f,
                    "{} states ({} made), depth {}, {end}",
                    self.states, self.made, self.depth
                )?;
            }
            Way::Walks { length, seed } => {
                write!(
                    f,
                    "{} states in walks of up to {length} from seed {seed}",
                    self.made
                )?;
            }
        }
        writeln!(f, ", {seconds:.1} s, {rate:.0}/s")?;
        if !self.unseen.is_empty() {
            writeln!(f, "  never seen: {}", self.unseen.join(", "))?;
        }
        write!(f, "  {}", self.coverage)?;
        for (promise, trace) in &self.broken {
            write!(f, "\n  {promise} IS BROKEN:\n{trace}")?;
        }
        Ok(())
    }
}

/// Searches until a promise is broken, all is seen, or a bound is reached.
#[must_use]
pub fn search(setting: Setting, way: Way, bounds: Bounds) -> Report {
    run(setting, way, bounds, HasDiscoveries::AnyFailures)
}

/// Searches until this promise is broken, whatever else is.
#[must_use]
pub fn search_for(mut setting: Setting, promise: &'static str, way: Way, bounds: Bounds) -> Report {
    setting.promise = Some(promise);
    run(
        setting,
        way,
        bounds,
        HasDiscoveries::AnyOf(BTreeSet::from([promise])),
    )
}

fn run(setting: Setting, way: Way, bounds: Bounds, until: HasDiscoveries) -> Report {
    let name = setting.name;
    let model = Search::new(setting, way != Way::Broad);
    let coverage = Arc::clone(&model.coverage);
    let begun = Instant::now();
    let checker = model
        .checker()
        .threads(bounds.threads)
        .timeout(bounds.time)
        .target_state_count(bounds.states)
        .finish_when(until);
    match way {
        Way::Broad => report(
            name,
            way,
            bounds,
            begun,
            checker.spawn_bfs().join(),
            &coverage.clone(),
        ),
        Way::Walks { length, seed } => {
            let checker = checker
                .target_max_depth(length)
                .spawn_simulation(seed, Weather);
            report(name, way, bounds, begun, checker.join(), &coverage)
        }
    }
}

fn report(
    name: &'static str,
    way: Way,
    bounds: Bounds,
    begun: Instant,
    checker: impl Checker<Search>,
    coverage: &impl fmt::Display,
) -> Report {
    let took = begun.elapsed();
    // Before histories are played again for their words.
    let coverage = coverage.to_string();
    let model = checker.model();
    let mut broken = Vec::new();
    let mut unseen = Vec::new();
    let mut found = checker.discoveries();
    for property in model.properties() {
        match (property.expectation, found.remove(property.name)) {
            (Expectation::Sometimes, None) => unseen.push(property.name),
            (Expectation::Always, Some(path)) => {
                broken.push((property.name, trace(model, property.name, path.into_vec())))
            }
            _ => {}
        }
    }
    let closed = way == Way::Broad
        && broken.is_empty()
        && checker.state_count() < bounds.states
        && took < bounds.time;
    Report {
        name,
        way,
        states: checker.unique_state_count(),
        made: checker.state_count(),
        depth: checker.max_depth(),
        closed,
        took,
        broken,
        unseen,
        coverage,
    }
}

/// Of a calm end that does not end, as much is told: it goes round in circles by then.
const LAST: usize = 100;

/// One line for each action: who, what, and what came of it.
fn trace(model: &Search, promise: &str, path: Vec<(State, Option<Action>)>) -> String {
    let mut lines = Vec::new();
    for (number, (state, action)) in path.iter().enumerate() {
        if let Some(action) = action {
            let (_, notes) = model.play(state, *action, true);
            let came = if notes.is_empty() {
                "nothing".into()
            } else {
                notes.join("; ")
            };
            lines.push(format!(
                "    {:3}. {} => {came}",
                number + 1,
                model.words(state, *action)
            ));
        }
    }
    if let (true, Some((last, _))) = (promise == "Q9", path.last()) {
        for lost in [false, true] {
            let (result, notes) =
                quiescence::play(&model.setting, &model.coverage, last, lost, true);
            if let Err(left) = result {
                lines.push(format!(
                    "    then it is calm{}:",
                    if lost {
                        ", and what was in flight is lost"
                    } else {
                        ""
                    }
                ));
                lines.extend(
                    notes[notes.len().saturating_sub(LAST)..]
                        .iter()
                        .map(|note| format!("         {note}")),
                );
                lines.push(format!("    {left}"));
            }
        }
    }
    lines.join("\n")
}

/// Chooses actions for walks: most are of every day, few are faults, so that histories come to something.
#[derive(Clone)]
pub struct Weather;

impl Chooser<Search> for Weather {
    type State = u64;

    fn new_state(&self, seed: u64) -> u64 {
        seed
    }

    fn choose_initial_state(&self, _: &mut u64, _: &[State]) -> usize {
        0
    }

    fn choose_action(&self, random: &mut u64, _: &State, actions: &[Action]) -> usize {
        let weight = |action: &Action| match action {
            Action::Deliver(_) | Action::Stored(_) => 40,
            Action::Step(_) => 20,
            Action::Pass | Action::AgentAwake(_) | Action::VoterAwake(_) | Action::Join(..) => 10,
            Action::StartVoter(_) => 5,
            Action::DeliverAgain(_) | Action::Defer(_) | Action::HoldBack(_) => 2,
            Action::AgentLate(_)
            | Action::VoterLate(_)
            | Action::CrashVoter(_)
            | Action::CrashAgent(_)
            | Action::Cut(..) => 1,
        };
        let all: u64 = actions.iter().map(weight).sum();
        let mut chosen = next_random(random) % all;
        for (place, action) in actions.iter().enumerate() {
            match chosen.checked_sub(weight(action)) {
                Some(rest) => chosen = rest,
                None => return place,
            }
        }
        unreachable!("less than the sum of all")
    }
}

/// SplitMix64.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
