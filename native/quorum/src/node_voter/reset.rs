//! A new cluster of the survivors, after too many members are lost. Each node of the list stores the new view, and
//! leaves the old cluster by that. None votes before all have; then they wait for a lease, because holders may count on
//! votes of the old cluster.

use crate::message::Fence;
use crate::time::Time;
use crate::view::{Id, NodeName, Record};
use std::collections::{BTreeMap, BTreeSet};

/// The lost members may have recorded higher fences than the survivors know. A voter gives fewer than 2^40 in a year.
pub(super) const FENCES: u64 = 1 << 40;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reset {
    pub(super) request: u64,
    pub(super) names: Vec<NodeName>,
    /// Members of the old view outside the list: none may run.
    pub(super) others: Vec<NodeName>,
    pub(super) since: Time,
    pub(super) again: Time,
    pub(super) nonce: u64,
    pub(super) counted: BTreeMap<NodeName, (Id, Fence)>,
    pub(super) running: BTreeSet<NodeName>,
    /// The new view, when all of the list have answered.
    pub(super) record: Option<Record>,
    pub(super) taken: BTreeSet<NodeName>,
}

impl Reset {
    pub(super) fn deadline(&self) -> Time {
        self.again
    }
}
