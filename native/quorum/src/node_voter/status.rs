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
            (Stage::Storing(_), _) => vec![(self.setup.node.clone(), Awaits::Report)],
            (Stage::Member(Some(learning)), _) => {
                let what = match record.before.is_empty() {
                    true => Awaits::Accepted,
                    false => Awaits::Report,
                };
                all(learning.missing(record), what)
            }
            (Stage::Member(None), Some(voter)) => {
                let awaited = voter.awaited().into_iter();
                let nodes: Vec<NodeName> = awaited
                    .map(|node| self.clients.name(node, record))
                    .collect();
                match voter.is_voting() {
                    _ if voter.is_over(self.now) => Vec::new(),
                    _ if nodes.is_empty() => vec![(self.setup.node.clone(), Awaits::Lease)],
                    true => all(nodes, Awaits::Kept),
                    false => all(nodes, Awaits::Settled),
                }
            }
            _ => Vec::new(),
        }
    }
}
