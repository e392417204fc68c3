//! Coverage: how often each event was seen in a search. A model in which nothing fails proves nothing.
//!
//! The counts are of actions tried, and one action may be tried from many states. They are not part of the state.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! coverage {
    ($($(#[$doc:meta])* $point:ident: $text:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CoverPoint {
            $($(#[$doc])* $point,)*
        }

        const TEXTS: &[&str] = &[$($text,)*];
    };
}

coverage! {
    GrantedRead: "read locks granted",
    GrantedWrite: "write locks granted",
    PassedOn: "locks passed on within a node",
    TimedOut: "timeouts",
    NoQuorum: "refusals without a quorum",
    Lost: "locks lost",
    AtRisk: "locks at risk",
    Unlocked: "unlocks confirmed",
    UnlockedUnsure: "unlocks not confirmed",
    Confirmed: "votes to confirm",
    Asserted: "votes asserted",
    AssertedInQuarantine: "votes asserted in quarantine",
    /// A voter did not know the session.
    Mismatched: "sessions restarted",
    Synced: "syncs",
    Revoked: "revocations reported to agents",
    /// Votes that were given unasked, in notices.
    Given: "votes given unasked",
    TakenBack: "provisional votes taken back",
    /// A voter found a connection closed.
    VoterDown: "connections that voters found closed",
    Tried: "tries",
    GaveBack: "requests that gave their votes back",
    Recalled: "recalls",
    Ended: "dead agents ended",
    FloorTold: "fence floors reported",
    FloorLost: "fence floors lost by both voters",
    Superseded: "voters superseded",
    /// The last agent that settled is that of a guest.
    GuestSettled: "quarantines that a guest ended",
    GuestsBegin: "files that say that there may be guests",
    GuestsEnd: "files that say that there are none",
    Busy: "votes refused because of others",
    Queued: "requests queued by a voter",
    RefusedQuarantine: "votes refused in quarantine",
    RefusedLearning: "votes refused while fences are learned",
    RefusedStoring: "votes refused while a fence is stored",
    RefusedGuest: "votes refused while a guest is stored",
    Quiescence: "quiescence checks",
}

#[derive(Debug)]
pub struct Coverage([AtomicU64; TEXTS.len()]);

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage([const { AtomicU64::new(0) }; TEXTS.len()])
    }
}

impl Coverage {
    pub fn count(&self, point: CoverPoint) {
        self.0[point as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let seen: Vec<String> = counts
            .zip(TEXTS)
            .filter(|(count, _)| *count > 0)
            .map(|(count, text)| format!("{count} {text}"))
            .collect();
        f.write_str(&seen.join(", "))
    }
}
