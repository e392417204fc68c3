//! The amount of work that a bounded step may do.

/// The amount of work that one step may do. One unit is one key that is read or freed: at most 0.4 µs, if no cache has
/// it.
///
/// A step does at least one unit of work, and can exceed its budget by work that cannot be divided. The caller accounts
/// for the units that were spent.
#[derive(Debug)]
pub struct Budget {
    units: usize,
    spent: usize,
}

impl Budget {
    /// A budget of `units`, at least 1.
    pub fn of(units: usize) -> Self {
        Self {
            units: units.max(1),
            spent: 0,
        }
    }

    /// Adds to the units that were spent.
    pub fn spend(&mut self, units: usize) {
        self.spent += units;
    }

    /// Units left.
    pub fn left(&self) -> usize {
        self.units.saturating_sub(self.spent)
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Units spent.
    pub fn spent(&self) -> usize {
        self.spent
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The caller accounts for all units spent, including indivisible work beyond the budget.
    #[test]
    fn work_beyond_the_budget_is_counted() {
        let mut budget = Budget::of(10);
        budget.spend(4);
        assert_eq!((budget.left(), budget.spent()), (6, 4));
        budget.spend(64);
        assert_eq!((budget.left(), budget.spent()), (0, 68));
        assert!(budget.is_spent());
        assert_eq!(Budget::of(0).left(), 1);
    }
}
