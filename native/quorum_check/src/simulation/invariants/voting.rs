//! PR6, at the end of a history: when the quarantines are over, all voters vote.

use super::label::Label;
use super::{Checker, View};
use quorum::message::VoterState;
use quorum::voter::Voter;

impl Checker {
    /// A voter that waits for its disk votes again when the write completes.
    pub fn check_all_vote(&mut self, view: View<'_>) {
        for (place, node) in view.nodes[..self.members].iter().enumerate() {
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
