//! What a search has seen happen, counted: a model in which nothing ever goes wrong proves nothing.
//!
//! Counts are of actions tried, and an action may be tried from many states. They are not part of the state.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! coverage {
    ($($(#[$doc:meta])* $point:ident: $told:literal,)*) => {
        /// Something that machines do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CoverPoint {
            $($(#[$doc])* $point,)*
        }

        const TOLD: &[&str] = &[$($told,)*];
    };
}

coverage! {
    /// A reader's lock.
    GrantedRead: "read locks granted",
    /// A writer's lock.
    GrantedWrite: "write locks granted",
    /// From one client of a node to another.
    Passed: "locks passed on",
    /// The first voter has said that it is a request's turn, and the others are asked.
    AskedRest: "votes asked for because it is one's turn",
    /// In time it was not to be had.
    TimedOut: "timeouts",
    /// Too few were connected.
    NoQuorum: "refusals for want of a quorum",
    /// The holder is told.
    Lost: "locks lost",
    /// The holder is told.
    AtRisk: "locks at risk",
    /// Known to a quorum.
    Unlocked: "unlocks confirmed",
    /// Not known to a quorum in time.
    UnlockedUnsure: "unlocks not confirmed",
    /// The fence is told to a voter.
    Confirmed: "fences confirmed",
    /// A held lock is told to a voter.
    Asserted: "votes asserted",
    /// The same, while the voter does not vote.
    AssertedInQuarantine: "votes asserted in quarantine",
    /// A voter did not know the session.
    Mismatched: "sessions begun anew",
    /// The agent has told a voter what it still has.
    Synced: "syncs",
    /// The holder's agent has heard that its lock is revoked.
    Revoked: "revoked locks told",
    /// A waiter is told.
    Hinted: "hints",
    /// A voter has told another how far its fences went.
    FloorTold: "floors told",
    /// A voter has told another that it has lost its fences, too.
    FloorLost: "floors lost, too",
    /// A vote refused for a writer that waits, or out of turn.
    RefusedTurn: "votes refused for somebody's turn",
    /// A vote refused in quarantine.
    RefusedQuarantine: "votes refused in quarantine",
    /// A vote refused while the fence is stored.
    RefusedStoring: "votes refused while storing",
    /// A calm end was played.
    Quiescence: "calm ends",
}

/// The counts.
#[derive(Debug)]
pub struct Coverage([AtomicU64; TOLD.len()]);

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage([const { AtomicU64::new(0) }; TOLD.len()])
    }
}

impl Coverage {
    /// Once more.
    pub fn count(&self, point: CoverPoint) {
        self.0[point as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often.
    #[must_use]
    pub fn seen(&self, point: CoverPoint) -> u64 {
        self.0[point as usize].load(Ordering::Relaxed)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self
            .0
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .zip(TOLD);
        let told: Vec<String> = seen
            .filter(|(count, _)| *count > 0)
            .map(|(count, told)| format!("{count} {told}"))
            .collect();
        f.write_str(&told.join(", "))
    }
}
