//! The view of a node, and what its voter waits for.

use super::{NodeVoter, Stage};
use crate::view::{NodeName, Record};

/// Whether a voter votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It votes.
    Voting,
    /// It does not vote yet.
    Starting,
    /// This node is no member of the view.
    Client,
    /// There is no view yet.
    NoView,
}

/// What a voter waits for from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// That it starts, with the same list.
    Start,
    /// That its disk has written the view, or its report of the view before.
    Report,
    /// That its agent settles.
    Settled,
    /// That its agent says that no lock relies on the view before.
    Kept,
}

/// The view of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewStatus {
    /// The view, if there is one.
    pub record: Option<Record>,
    /// Whether the voter of this node votes.
    pub phase: Phase,
    /// Whom it waits for, and for what.
    pub waits_for: Vec<(NodeName, Awaits)>,
}

impl NodeVoter {
    /// The view of this node, and what its voter waits for.
    #[must_use]
    pub fn status(&self) -> ViewStatus {
        let is_voting = self.voter.as_ref().is_some_and(|voter| voter.is_voting());
        let phase = match &self.stage {
            Stage::Starting(_) => Phase::NoView,
            Stage::Outside => Phase::Client,
            _ if is_voting => Phase::Voting,
            _ => Phase::Starting,
        };
        ViewStatus {
            record: self.state.record.clone(),
            phase,
            waits_for: self.waits_for(),
        }
    }

    fn waits_for(&self) -> Vec<(NodeName, Awaits)> {
        let all = |nodes: Vec<NodeName>, what| nodes.into_iter().map(|node| (node, what)).collect();
        let (Some(record), stage) = (&self.state.record, &self.stage) else {
            return all(self.unheard(), Awaits::Start);
        };
        match (stage, &self.voter) {
            (Stage::Storing { .. }, _) => vec![(self.setup.node.clone(), Awaits::Report)],
            (Stage::Member(Some(learning)), _) => all(learning.missing(record), Awaits::Report),
            (Stage::Member(None), Some(voter)) => {
                let awaited = voter.awaited().into_iter();
                let nodes = awaited
                    .map(|node| self.clients.name(node, record))
                    .collect();
                let what = match voter.is_voting() {
                    true => Awaits::Kept,
                    false => Awaits::Settled,
                };
                all(nodes, what)
            }
            _ => Vec::new(),
        }
    }
}
