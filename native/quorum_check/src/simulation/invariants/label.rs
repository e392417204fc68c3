//! The labels of the invariants. `docs/promises.md` describes Q1 to Q15, and the progress properties PR1, PR2 and PR6.

macro_rules! labels {
    ($($(#[$doc:meta])* $label:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Label {
            $($(#[$doc])* $label,)*
        }

        impl Label {
            pub const ALL: &'static [Label] = &[$(Label::$label),*];
        }
    };
}

labels! {
    /// At any instant, `held` is true for at most one writer, or for readers only.
    Q1,
    /// A vote that counts for a holder is kept by its voter, and has not expired there.
    Q2,
    /// No vote of an earlier lifetime or generation counts.
    Q3,
    /// A voter in quarantine grants nothing, and votes only for locks that continue an earlier vote.
    Q4,
    /// Fences of a name's writers grow.
    Q5,
    /// A quorum records a fence before the lock is granted.
    Q6,
    /// An unlock affects only its own token.
    Q7,
    /// After its unlock, a lock is never held or requested again.
    Q8,
    /// Once quiescent, all tables are empty.
    Q9,
    /// A failed lock request leaves nothing.
    Q10,
    /// A lock of several names has all of them or none.
    Q11,
    /// A voter gives no fence by an old state file.
    Q14,
    /// A lock that was not held is not held again, and one that is held is in the answers of a quorum of voters.
    Q15,
    /// Once healed, every lock request is granted.
    PR1,
    /// Without faults, no lock is lost or at risk, every unlock is confirmed, and a free name is granted.
    PR2,
    /// Once healed, each voter votes, two seconds after the last quarantine at the latest. Otherwise PR1 would depend
    /// on fewer voters.
    PR6,
    /// A guest has no vote at a voter whose state file does not have the guest.
    V7,
    /// The votes of a voter, and those that agents count there, do not conflict.
    Votes,
    /// A voter takes a vote that it gave unasked back only if it has not heard its agent for `wait`.
    Given,
    /// An agent has at most one unanswered batch to each voter, and it accepts each `unlock_async` (ADR 15 of AtlasDB).
    Batches,
    /// Each request is answered once, in time, and with an answer of its kind.
    Answers,
    /// A quorum has forgotten the vote of a confirmed unlock.
    Confirmed,
    /// A holder is informed of a lost lock at once, and at most a second after the end of its lease.
    Lost,
    /// Without faults, a holder is informed of a revocation within three seconds.
    Revoked,
    /// Frames can be decoded, and a batch has as many replies as requests.
    Wire,
    /// Machines sleep until they have something to do.
    Spin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub label: Label,
    pub text: String,
}
