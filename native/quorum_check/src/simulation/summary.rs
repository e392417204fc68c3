//! Counts of what happened in histories. They show that the histories exercise the protocol.

use crate::simulation::clock::{Real, SECOND};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    counts: BTreeMap<&'static str, u64>,
    /// The longest time from healing until all tables were empty, without agent crashes.
    pub until_empty: Real,
}

impl Summary {
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: &'static str, more: u64) {
        *self.counts.entry(what).or_default() += more;
    }

    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }
}

impl AddAssign<&Summary> for Summary {
    fn add_assign(&mut self, other: &Summary) {
        for (what, more) in &other.counts {
            self.add(what, *more);
        }
        self.until_empty = self.until_empty.max(other.until_empty);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.counts {
            writeln!(f, "  {count:>12}  {what}")?;
        }
        let seconds = self.until_empty as f64 / SECOND as f64;
        let what = "until empty, without agent crashes (longest)";
        writeln!(f, "  {seconds:>10.3} s  {what}")
    }
}
