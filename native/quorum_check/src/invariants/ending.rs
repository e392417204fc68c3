//! The end of a history: all is quiet, so nothing is kept anywhere (Q9, Q10).

use super::probe;
use super::{Checker, Label};
use crate::simulation::clock::Real;
use crate::simulation::node::Node;

impl Checker {
    /// Whether no machine keeps anything, and nobody waits for an answer.
    #[must_use]
    pub fn is_empty(&self, nodes: &[Node]) -> bool {
        self.open.is_empty()
            && nodes
                .iter()
                .all(|node| agent_is_empty(node) && voter_is_empty(node))
    }

    /// Notes when, after the end of all faults, all is empty for the first time.
    pub(super) fn watch_empty(&mut self, nodes: &[Node], real: Real) {
        let (Some(quiet), None) = (self.quiet_since, self.empty_since) else {
            return;
        };
        if self.is_empty(nodes) {
            self.empty_since = Some(real);
            let what = if self.agent_death {
                "all empty, after deaths of agents"
            } else {
                "all empty, of agents that live"
            };
            self.counts.took(what, real - quiet);
            self.counts.count("histories that became empty");
        }
    }

    /// All must be empty by now.
    pub fn all_empty(&mut self, nodes: &[Node]) {
        for (place, node) in nodes.iter().enumerate() {
            if !agent_is_empty(node) {
                self.violated(Label::Q9, || {
                    format!("n{place} is not empty: {:?}", node.agent.machine)
                });
            }
            let Some(voter) = &node.voter.machine else {
                continue;
            };
            if voter_is_empty(node) {
                continue;
            }
            for vote in probe::kept(voter) {
                let granted = self
                    .promises
                    .get(&(vote.agent.0, vote.token))
                    .is_some_and(|promise| promise.granted);
                let label = if granted { Label::Q9 } else { Label::Q10 };
                self.violated(label, || {
                    format!("n{place} keeps t{} of a{}", vote.token.0, vote.agent.0)
                });
            }
            self.violated(Label::Q9, || {
                format!("n{place} is not empty, somebody waits: {voter:?}")
            });
        }
        if let Some(request) = self.open.first() {
            let text = format!(
                "r{} was never answered: {:?}",
                request.0, self.asked[request.0 as usize]
            );
            self.violated(Label::Answers, || text);
        }
    }
}

fn agent_is_empty(node: &Node) -> bool {
    node.agent
        .machine
        .as_ref()
        .is_none_or(|agent| agent.is_empty())
}

fn voter_is_empty(node: &Node) -> bool {
    node.voter
        .machine
        .as_ref()
        .is_none_or(|voter| voter.is_empty())
}
