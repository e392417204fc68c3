//! What goes into a voter and comes out of it, but for frames.

use crate::members::Members;
use crate::message::{Fence, Incarnation, Send};
use crate::protocol_bug::Weaknesses;
use crate::rules::Rules;

/// What a voter starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VoterSetup {
    /// The list.
    pub members: Members,
    /// The constants.
    pub rules: Rules,
    /// None, but in a model.
    pub bugs: Weaknesses,
    /// Of this life: random.
    pub incarnation: Incarnation,
    /// What is known of the fences of earlier lives.
    pub fences: Fences,
}

/// What is known of the fences of earlier lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fences {
    /// No fence past it was given: what was stored last. None: it is lost, or there was no earlier life; the voter
    /// asks the others before it votes.
    pub floor: Option<Fence>,
    /// A number that no fence given in earlier lives has reached, if wall clocks are right: the microseconds that the
    /// wall clock shows at the start. (Fences grow by a run with each attempt to lock, and by less than a million a
    /// second.) It counts only where so many have lost their fences that the others do not know them: see
    /// `voter/learning.rs`. What is past [`MAX_FENCE`](crate::frame::MAX_FENCE) is taken for that.
    pub origin: Fence,
    /// Whether they are stored. Then the voter gives no fence before it has been told that it is
    /// ([`VoterOutput::Store`], [`stored`](super::Voter::stored)).
    pub durable: bool,
}

/// What a voter wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VoterOutput {
    /// Send it.
    Send(Send),
    /// Store this number so that it survives a crash, in place of an earlier one; then call
    /// [`stored`](super::Voter::stored).
    Store(Fence),
}
