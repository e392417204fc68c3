//! Which assertions a voter must refuse while it is in quarantine (V3), for both checks.

use quorum::message::{Batch, Op, Token, VoterState};
use quorum::time::Time;
use quorum::voter::Voter;

/// The locks that a batch asserts though they continue no vote. Empty if the voter is not in quarantine when it
/// receives the batch at `now`. Not those after a `Settled`, which may end the quarantine.
pub fn refused(voter: &Voter, batch: &Batch, now: Time) -> Vec<Token> {
    let until_settled = batch.ops.iter().take_while(|op| **op != Op::Settled);
    let asserted = until_settled.filter_map(|op| match op {
        Op::Assert {
            token,
            continues: false,
            ..
        } => Some(*token),
        _ => None,
    });
    let asserted: Vec<Token> = asserted.collect();
    // A clone is expensive, and a correct agent seldom sends such a batch.
    let in_quarantine = || {
        let mut voter = voter.clone();
        voter.tick(now);
        voter.state() == VoterState::Quarantined
    };
    match !asserted.is_empty() && in_quarantine() {
        true => asserted,
        false => Vec::new(),
    }
}
