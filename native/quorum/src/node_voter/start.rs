//! The first start of a cluster. Each node has made its file with a new identity. A node that has heard all others of
//! its list, each in answer to a question of its own, with the same list, knows that none of them has a view. It forms
//! view 0 of these identities; all others form the same one, or take it.
//!
//! A node that receives the record of a view instead takes that view. If the view has its identity, the node is a
//! member. If the view has its name with another identity, it is a lost member. Otherwise it is a client.

use crate::time::Time;
use crate::view::{Id, NodeName};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Start {
    /// Random, never 0.
    pub(super) number: u64,
    pub(super) again: Time,
    /// The others with the same list.
    pub(super) heard: BTreeMap<NodeName, Id>,
}

impl Start {
    pub(super) fn new(number: u64, now: Time) -> Start {
        Start {
            number: number.max(1),
            again: now,
            heard: BTreeMap::new(),
        }
    }
}
