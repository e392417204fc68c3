//! The view of a node, and what its voter waits for.

use super::output::{Awaits, Phase, ViewStatus};
use super::{NodeVoter, Stage};
use crate::view::NodeName;

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
