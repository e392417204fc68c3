//! The end of a history: once quiescent, no table has an entry (Q9, Q10), except for the guests that are still there.
//! When the quarantines are over, all voters vote (PR6).

use super::label::Label;
use super::{Checker, View};
use crate::simulation::node::Node;
use crate::votes::votes;
use quorum::message::VoterState;
use quorum::voter::Voter;

impl Checker {
    /// Whether all tables are empty, and all requests answered.
    pub fn is_empty(&self, view: View<'_>) -> bool {
        let empty = |node: &Node| agent_is_empty(node) && voter_is_empty(node);
        self.open.is_empty() && view.nodes.iter().all(empty)
    }

    /// Records when, after healing, everything was empty for the first time.
    pub(super) fn watch_empty(&mut self, view: View<'_>) {
        let (Some(healed), None) = (self.healed_at, self.empty_since) else {
            return;
        };
        if self.is_empty(view) {
            self.empty_since = Some(view.real);
            if !self.agent_crashed {
                self.summary.until_empty = view.real - healed;
            }
            self.summary.count("histories that became empty");
        }
    }

    pub fn check_all_empty(&mut self, view: View<'_>) {
        for (place, node) in view.nodes.iter().enumerate() {
            if !agent_is_empty(node) {
                let text = || format!("the agent of n{place} is not empty: {:?}", node.agent);
                self.violated(Label::Q9, text);
            }
            let Some(voter) = node.voter.as_ref().filter(|_| !voter_is_empty(node)) else {
                continue;
            };
            for vote in votes(voter) {
                let granted = self.granted.contains(&(vote.agent.0, vote.token));
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

    /// A voter that waits for its disk votes again when the write completes.
    pub fn check_all_vote(&mut self, view: View<'_>) {
        for (place, node) in view.nodes[..self.plan.members].iter().enumerate() {
            let state = node.voter.as_ref().map(Voter::state);
            let votes = match state {
                Some(VoterState::Voting) => true,
                Some(VoterState::NoStore) => !node.storing.is_empty(),
                _ => false,
            };
            if !votes {
                self.violated(Label::PR6, || {
                    format!("the voter of n{place} does not vote: {state:?}")
                });
            }
        }
    }
}

fn agent_is_empty(node: &Node) -> bool {
    node.agent.as_ref().is_none_or(|agent| agent.is_empty())
}

fn voter_is_empty(node: &Node) -> bool {
    node.voter.as_ref().is_none_or(|voter| voter.is_empty())
}
