//! Counts of what happened in histories. They show that the histories exercise the protocol.

use crate::simulation::clock::{Real, SECOND};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    counts: BTreeMap<&'static str, u64>,
    longest: BTreeMap<&'static str, Real>,
}

impl Summary {
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: &'static str, more: u64) {
        *self.counts.entry(what).or_default() += more;
    }

    pub fn took(&mut self, what: &'static str, span: Real) {
        let longest = self.longest.entry(what).or_default();
        *longest = (*longest).max(span);
    }

    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    pub fn longest(&self, what: &str) -> Real {
        self.longest.get(what).copied().unwrap_or(0)
    }
}

impl AddAssign<&Summary> for Summary {
    fn add_assign(&mut self, other: &Summary) {
        for (what, more) in &other.counts {
            self.add(what, *more);
        }
        for (what, span) in &other.longest {
            self.took(what, *span);
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.counts {
            writeln!(f, "  {count:>12}  {what}")?;
        }
        for (what, span) in &self.longest {
            let seconds = *span as f64 / SECOND as f64;
            writeln!(f, "  {seconds:>10.3} s  {what} (longest)")?;
        }
        Ok(())
    }
}
