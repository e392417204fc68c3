//! A search of a setting: its bounds, its strategy, and its report.

use crate::model::action::Action;
use crate::model::quiescence;
use crate::model::quorum_model::QuorumModel;
use crate::model::setting::{Expect, Setting};
use crate::model::state::State;
use crate::random::Random;
use stateright::{Checker, Chooser, Expectation, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Generated states, repeated ones included, after which the search stops (approximately).
    pub states: usize,
    /// Time after which it stops (approximately).
    pub time: Duration,
    /// With one thread, the trace of a violation is among the shortest.
    pub threads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// All states, those with the shortest histories first.
    BreadthFirst,
    /// Random histories of at most `length` actions.
    RandomWalks { length: usize, seed: u64 },
}

#[derive(Clone, Debug)]
pub struct Report {
    pub name: &'static str,
    pub expect: Expect,
    pub strategy: Strategy,
    /// Different states. In random walks, all states are different.
    pub unique: usize,
    /// Generated states, repeated ones included.
    pub generated: usize,
    /// The most actions before a state.
    pub depth: usize,
    pub complete: bool,
    pub elapsed: Duration,
    pub violations: Vec<(&'static str, String)>,
    pub unseen: Vec<&'static str>,
}

impl Report {
    pub fn as_expected(&self) -> bool {
        match self.expect {
            Expect::Holds => self.violations.is_empty(),
            Expect::Violates(label) => self.violations.iter().any(|(found, _)| *found == label),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let rate = self.generated as f64 / seconds.max(0.001);
        let Report {
            name,
            unique,
            generated,
            depth,
            ..
        } = self;
        match self.strategy {
            Strategy::BreadthFirst => {
                let end = if self.complete { "complete" } else { "stopped" };
                write!(
                    f,
                    "{name}: {unique} states ({generated} generated), depth {depth}, {end}"
                )?;
            }
            Strategy::RandomWalks { length, seed } => write!(
                f,
                "{name}: {generated} states in walks of up to {length} actions from seed {seed}"
            )?,
        }
        write!(f, ", {seconds:.1} s, {rate:.0} states/s")?;
        if !self.unseen.is_empty() {
            write!(f, "\n  never seen: {}", self.unseen.join(", "))?;
        }
        for (property, trace) in &self.violations {
            write!(f, "\n  {property} IS VIOLATED:\n{trace}")?;
        }
        Ok(())
    }
}

pub fn search(setting: Setting, strategy: Strategy, bounds: Bounds) -> Report {
    let until = match setting.only {
        None => HasDiscoveries::AnyFailures,
        Some(property) => HasDiscoveries::AnyOf(BTreeSet::from([property])),
    };
    let model = QuorumModel::new(setting, strategy != Strategy::BreadthFirst);
    let started = Instant::now();
    let checker = model
        .checker()
        .threads(bounds.threads)
        .timeout(bounds.time)
        .target_state_count(bounds.states)
        .finish_when(until);
    match strategy {
        Strategy::BreadthFirst => report(strategy, bounds, started, checker.spawn_bfs().join()),
        Strategy::RandomWalks { length, seed } => {
            let checker = checker.target_max_depth(length);
            let walks = checker.spawn_simulation(seed, WeightedChooser);
            report(strategy, bounds, started, walks.join())
        }
    }
}

fn report(
    strategy: Strategy,
    bounds: Bounds,
    started: Instant,
    checker: impl Checker<QuorumModel>,
) -> Report {
    let elapsed = started.elapsed();
    let model = checker.model();
    let mut violations = Vec::new();
    let mut unseen = Vec::new();
    let mut found = checker.discoveries();
    for property in model.properties() {
        let name = property.name;
        let watched = model.setting.only.is_none_or(|only| only == name);
        match (property.expectation, found.remove(name)) {
            (Expectation::Sometimes, None) => unseen.push(name),
            (Expectation::Always, Some(path)) if watched => {
                violations.push((name, trace(model, name, path.into_vec())))
            }
            _ => {}
        }
    }
    let unbounded = checker.state_count() < bounds.states && elapsed < bounds.time;
    Report {
        name: model.setting.name,
        expect: model.setting.expect,
        strategy,
        unique: checker.unique_state_count(),
        generated: checker.state_count(),
        depth: checker.max_depth(),
        complete: strategy == Strategy::BreadthFirst && violations.is_empty() && unbounded,
        elapsed,
        violations,
        unseen,
    }
}

/// A continuation that does not become quiescent repeats itself. The trace shows its last lines.
const MOST_LINES: usize = 100;

/// One line for each action, with its outputs.
fn trace(model: &QuorumModel, property: &str, path: Vec<(State, Option<Action>)>) -> String {
    let mut lines = Vec::new();
    for (number, (state, action)) in path.iter().enumerate() {
        let Some(action) = action else { continue };
        let (_, outputs) = model.perform(state, *action, true);
        let outputs = match outputs.is_empty() {
            true => "no output".into(),
            false => outputs.join("; "),
        };
        let action = action.describe(&model.setting, state);
        lines.push(format!("    {:3}. {action} => {outputs}", number + 1));
    }
    let last = path.last().filter(|_| property == "PR1");
    for (lost, fate) in [(false, "arrive"), (true, "are lost")] {
        let Some((last, _)) = last else { continue };
        let (result, after) = quiescence::play(&model.setting, last, lost, true);
        if let Err(left) = result {
            lines.push(format!(
                "    no further fault, the frames in flight {fate}:"
            ));
            let after = &after[after.len().saturating_sub(MOST_LINES)..];
            lines.extend(after.iter().map(|line| format!("         {line}")));
            lines.push(format!("    {left}"));
        }
    }
    lines.join("\n")
}

/// Chooses actions for random walks: most are normal operation and few are faults, so that clients make progress.
#[derive(Clone)]
struct WeightedChooser;

impl Chooser<QuorumModel> for WeightedChooser {
    type State = Random;

    fn new_state(&self, seed: u64) -> Random {
        Random::new(seed)
    }

    fn choose_initial_state(&self, _: &mut Random, _: &[State]) -> usize {
        0
    }

    fn choose_action(&self, random: &mut Random, _: &State, actions: &[Action]) -> usize {
        let weight = |action: &Action| match action {
            Action::Deliver(_) | Action::Stored(_) | Action::GuestsStored(_) => 40,
            Action::Step(_) | Action::Answer(_) => 20,
            Action::PassTime
            | Action::StallAgent(_, false)
            | Action::StallVoter(_, false)
            | Action::Connect(..) => 10,
            Action::Duplicate(_) | Action::Reorder(_) | Action::Delay(_) => 2,
            Action::Ask
            | Action::StallAgent(_, true)
            | Action::StallVoter(_, true)
            | Action::CrashVoter(_)
            | Action::CrashWithOldDisk(_)
            | Action::CrashAgent(_)
            | Action::Disconnect(..)
            | Action::VoterDown(..) => 1,
        };
        let weights = actions.iter().enumerate();
        let weights: Vec<(i64, usize)> = weights.map(|(place, of)| (weight(of), place)).collect();
        random.weighted(&weights)
    }
}
