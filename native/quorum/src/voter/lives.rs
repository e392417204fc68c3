//! The lives of the voters: finds out whether a voter started with an old state file.
//!
//! A voter counts its starts in its file. If the file is older than the voter's last start, because it comes from a
//! backup or because the voter ran without it since, then its mark is too low: fences would go back. The file itself
//! does not show this, but the other voters do. Each of them remembers the highest life of each voter that it heard
//! of.
//!
//! - A voter asks all others at its start, and again until each has answered or the quarantine is over. The question
//!   contains its life, and the answer contains that of the other voter. So a voter that restarts learns the lives of
//!   the others again.
//! - An agent's batch that names a session of a later life shows the same.
//! - A voter that learns of a life of its own that is not lower than the current one is *superseded*: it stops. See
//!   `VoterOutput::Superseded`.
//! - Two starts can have the same life, for example if a backup was restored twice. The random bits of their lifetimes
//!   differ. The one whose question arrives first keeps the life.
//!
//! A voter whose later life no other member knows is believed. This excludes only failures of several members at once:
//! its disk was restored, and all voters that knew the later life have restarted since without learning it again.

use crate::members::{Member, MemberSet, Members};
use crate::message::Lifetime;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lives {
    /// The highest lifetime of each other voter.
    seen: BTreeMap<Member, Lifetime>,
    /// The members that have not answered this voter.
    unanswered: MemberSet,
}

impl Lives {
    pub(super) fn new(members: Members, me: Member) -> Lives {
        let all: MemberSet = members.iter().collect();
        Lives {
            seen: BTreeMap::new(),
            unanswered: all.without(me),
        }
    }

    /// The highest lifetime of `from`, which has just named `lifetime`. Of two with the same life, the first.
    pub(super) fn hear(&mut self, from: Member, lifetime: Lifetime) -> Lifetime {
        let seen = self.seen.entry(from).or_insert(lifetime);
        if lifetime.life() > seen.life() {
            *seen = lifetime;
        }
        *seen
    }

    pub(super) fn answered(&mut self, from: Member) {
        self.unanswered = self.unanswered.without(from);
    }

    pub(super) fn unanswered(&self) -> MemberSet {
        self.unanswered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_life_is_kept_and_of_equal_ones_the_first() {
        let members = Members::new(3).unwrap();
        let (one, other) = (Member::at(1).unwrap(), Member::at(2).unwrap());
        let mut lives = Lives::new(members, Member::at(0).unwrap());
        let first = Lifetime::new(5, 9);
        assert_eq!(lives.hear(one, first), first);
        for known in [
            Lifetime::new(5, 1),
            Lifetime::new(5, 10),
            Lifetime::new(4, 99),
        ] {
            assert_eq!(lives.hear(one, known), first);
            assert_eq!(lives.hear(other, known).life(), 5);
        }
        let later = Lifetime::new(6, 0);
        assert_eq!(lives.hear(one, later), later);
        assert_eq!(lives.hear(one, first), later);
    }

    #[test]
    fn all_other_members_must_answer() {
        let mut lives = Lives::new(Members::new(3).unwrap(), Member::at(0).unwrap());
        for place in [1, 1, 2] {
            assert!(!lives.unanswered().is_empty());
            lives.answered(Member::at(place).unwrap());
        }
        assert!(lives.unanswered().is_empty());
    }
}
