//! The end of a history: once quiescent, no table has an entry (Q9, Q10), except for the guests that are still there.

use super::label::Label;
use super::{probe, Checker};
use crate::simulation::clock::Real;
use crate::simulation::node::Node;

impl Checker {
    /// Whether all tables are empty, and all requests answered.
    pub fn is_empty(&self, nodes: &[Node]) -> bool {
        let empty = |node: &Node| agent_is_empty(node) && voter_is_empty(node);
        self.open.is_empty() && nodes.iter().all(empty)
    }

    /// Records when, after healing, everything was empty for the first time.
    pub(super) fn watch_empty(&mut self, nodes: &[Node], real: Real) {
        let (Some(healed), None) = (self.healed_at, self.empty_since) else {
            return;
        };
        if self.is_empty(nodes) {
            self.empty_since = Some(real);
            if !self.agent_crashed {
                let what = "until empty, without agent crashes";
                self.summary.took(what, real - healed);
            }
            self.summary.count("histories that became empty");
        }
    }

    pub fn check_all_empty(&mut self, nodes: &[Node]) {
        for (place, node) in nodes.iter().enumerate() {
            if !agent_is_empty(node) {
                let text = || format!("the agent of n{place} is not empty: {:?}", node.agent);
                self.violated(Label::Q9, text);
            }
            let Some(voter) = node.voter.as_ref().filter(|_| !voter_is_empty(node)) else {
                continue;
            };
            for vote in probe::votes(voter) {
                let answers = self.answers.get(&(vote.agent.0, vote.token));
                let granted = answers.is_some_and(|answers| answers.granted);
                let label = if granted { Label::Q9 } else { Label::Q10 };
                let text = || {
                    let (token, agent) = (vote.token.0, vote.agent.0);
                    format!("n{place} keeps a vote for t{token} of a{agent}")
                };
                self.violated(label, text);
            }
            let text = || format!("the voter of n{place} is not empty: {voter:?}");
            self.violated(Label::Q9, text);
        }
        if let Some(request) = self.open.first() {
            let asked = &self.asked[request.0 as usize];
            let text = format!("r{} was never answered: {asked:?}", request.0);
            self.violated(Label::Answers, || text);
        }
    }
}

fn agent_is_empty(node: &Node) -> bool {
    node.agent.as_ref().is_none_or(|agent| agent.is_empty())
}

fn voter_is_empty(node: &Node) -> bool {
    node.voter.as_ref().is_none_or(|voter| voter.is_empty())
}
