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
    /// So many units, and one at least.
    pub fn of(units: usize) -> Self {
        Self {
            units: units.max(1),
            spent: 0,
        }
    }

    /// Notes that so much has been done.
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
