//! Ways of being wrong that others have been wrong in, for the tests that must notice each.
//!
//! A machine asks [`Weaknesses::have`] where a rule of the protocol stands; in a library that is shipped the answer
//! is a constant no, and the rule stands there alone. The letters are those of the design's counter-examples.

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolBug {
    /// E, and A1 and A2, which are dsync's: a voter that has forgotten everything grants at once.
    NoQuarantine,
    /// B1: an agent counts votes of an incarnation of the voter that is gone.
    ForgottenVotesCount,
    /// D1: half of an even number of votes is enough for a reader.
    ReadHalf,
    /// F1: a writer takes the highest number it heard, plus one, and tells nobody.
    FenceNotWritten,
    /// F2: it tells, and does not wait until a quorum has written it down.
    FenceNotAwaited,
    /// An agent passes a lock on that it took one fence for: each gets the next number.
    FencesNotTaken,
    /// The agent counts on its votes for as long as the voter keeps them, counted from when the answer came.
    LeaseFromAnswer,
    /// A voter drops the votes of an agent whose lease is over, and goes on under the same generation.
    SameGeneration,
    /// A voter forgets a lock that was revoked, and does not wait for its holder to know.
    RevokedForgotten,
    /// An agent goes on counting the vote of a token after it was taken back.
    UnlockKeepsHeld,
    /// A voter that another process takes over does not ask again for what was being stored.
    NotStoredAgain,
    /// A voter takes batches in any order, and the same one again. This one must do no harm: see the protocol.
    AnyOrder,
}

/// Those that a machine has: none, but in a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Weaknesses {
    #[cfg(feature = "model")]
    bits: u16,
}

impl Weaknesses {
    /// None.
    pub const NONE: Weaknesses = Weaknesses {
        #[cfg(feature = "model")]
        bits: 0,
    };

    /// With `bug`, too.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn with(self, bug: ProtocolBug) -> Weaknesses {
        Weaknesses {
            bits: self.bits | 1 << bug as u16,
        }
    }

    /// Whether the rule is broken here.
    #[inline(always)]
    #[must_use]
    pub fn have(self, bug: ProtocolBug) -> bool {
        #[cfg(feature = "model")]
        let has = self.bits & 1 << bug as u16 != 0;
        #[cfg(not(feature = "model"))]
        let has = {
            let _ = bug;
            false
        };
        has
    }
}
