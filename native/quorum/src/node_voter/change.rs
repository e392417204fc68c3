//! A change of the members that this node drives.
//!
//! ```text
//!   ready    the nodes of both lists can do it, and agents with votes answer
//!   prepare  a quorum of the members promises a ballot
//!   accept   a quorum of the members accepts the record: it is decided
//!   over     a quorum of the new members votes, and no lock needs the old ones
//! ```
//!
//! A reset has the first step and the last one only: see `reset.rs`.
//!
//! A node that has lost its file drives a change to the same nodes, with its new identity. A node that has accepted a
//! record drives the decision of that record when two leases have passed without a decision.

use crate::time::Time;
use crate::view::{Ballot, NodeName, Record, ViewId};
use crate::view_message::Readiness;
use std::collections::{BTreeMap, BTreeSet};

/// The answer to a change or a reset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ChangeAnswer {
    /// The view with this number is in use, and members that left are not needed any more.
    Done(u64),
    /// Nothing was proposed.
    NotReady(Vec<(NodeName, Why)>),
    /// Another change is not over, or was decided instead.
    Changing(Record),
    /// Too few members answered. The record may still be decided.
    Unknown(Record),
    /// The record is decided, and too few of its members vote yet.
    Starting(Record),
    /// A reset is refused: these members outside the list run.
    Running(Vec<NodeName>),
}

/// Why a node cannot take part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It does not answer.
    Down,
    /// It has another lease, in milliseconds.
    Lease(u64),
    /// It cannot write its state file.
    StateFile(String),
    /// It has a view of another cluster.
    OtherCluster(u64),
    /// The agents of these nodes have votes there and do not answer.
    NoAnswerOfAgents(Vec<NodeName>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Ready,
    Prepare {
        promises: BTreeMap<NodeName, Option<(Ballot, Record)>>,
    },
    Accept {
        accepted: BTreeSet<NodeName>,
    },
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Change {
    /// Of the caller, if there is one.
    pub(super) request: Option<u64>,
    /// Whether it makes a new cluster.
    pub(super) is_reset: bool,
    /// The new list, in ascending order. Empty: it only helps to decide what others have accepted.
    pub(super) names: Vec<NodeName>,
    /// The view that it changes, or leaves.
    pub(super) base: Record,
    pub(super) step: Step,
    /// When the step began, and when the questions are repeated.
    pub(super) since: Time,
    pub(super) again: Time,
    pub(super) nonce: u64,
    pub(super) answers: BTreeMap<NodeName, (ViewId, Readiness)>,
    pub(super) ballot: Ballot,
    /// What it wants, and what it proposes: the same, or a record that was accepted earlier.
    pub(super) wanted: Option<Record>,
    pub(super) proposed: Option<Record>,
}

impl Change {
    pub(super) fn begin(&mut self, step: Step, now: Time) {
        (self.step, self.since, self.again) = (step, now, now);
        self.answers.clear();
    }
}
