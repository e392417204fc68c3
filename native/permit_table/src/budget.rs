//! How much a bounded step may do.

/// What one step may do, in units of a key that is looked at or freed: at most 0.4 µs, if it is in no cache.
///
/// A step does something at least, and may exceed its budget by what cannot be divided. How much it has done is for
/// the caller to account for.
#[derive(Debug)]
pub struct Budget {
    units: usize,
    spent: usize,
}

impl Budget {
    /// This many units, and at least one.
    pub fn of(units: usize) -> Self {
        Self {
            units: units.max(1),
            spent: 0,
        }
    }

    /// Notes that this many units of work are done.
    pub fn spend(&mut self, units: usize) {
        self.spent += units;
    }

    /// Units that are left.
    pub fn left(&self) -> usize {
        self.units.saturating_sub(self.spent)
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Units that have been spent.
    pub fn spent(&self) -> usize {
        self.spent
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What a step has done counts as time of its caller, also what it could not divide.
    #[test]
    fn what_exceeds_a_budget_is_told_too() {
        let mut budget = Budget::of(10);
        budget.spend(4);
        assert_eq!((budget.left(), budget.spent()), (6, 4));
        budget.spend(64);
        assert_eq!((budget.left(), budget.spent()), (0, 68));
        assert!(budget.is_spent());
        assert_eq!(Budget::of(0).left(), 1);
    }
}
