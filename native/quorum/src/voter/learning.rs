//! Decides when the answers of other voters are enough for a voter that has lost its fences, and above which fence it
//! begins. `recovery.rs` exchanges the messages.
//!
//! The answers are enough in one of two cases:
//!
//! - *At least [`co_quorum`](crate::members::Members::co_quorum) members have sent their fences.* One of them was in
//!   each earlier quorum, so no lock was granted with a fence above theirs. This rule is exact and needs no clock.
//! - *All other members have answered*, but too few have sent fences. Either they start for the first time, or too many
//!   have lost their fences at once, or the list has changed. The voter then begins above all fences received and above
//!   each [`origin`](super::Fences::origin), of the others and its own. The fences that it recorded in an earlier
//!   lifetime were given before its own start, so they are at most its own origin if its clock and those of the others
//!   are right: no voter gives fences faster than a clock advances, also if each of its lives uses up a block. The
//!   highest origin also compensates for clocks that differ, unless a clock is set back: the clock that was the highest
//!   at the start of the cluster is now ahead by at least as much as the fences have grown.
//!
//! With fewer answers the voter waits, although its own clock would allow it to begin. The missing members may be
//! those that know their fences, and a clock can be wrong. The only cost is that all members must start once.
//!
//! # Which answers count
//!
//! - *Fences of a voter that itself began above origins* are as valid as those of a voter that lost nothing. If the
//!   clocks were right, it repeats no fence. If they were wrong, its own votes are already affected.
//! - *Fences of a voter that had reported them lost* count: it has recovered them since.
//! - *Fences of a voter that has lost them since, and says so,* count: they were correct when the asker's quarantine
//!   ended. No earlier lifetime of the asker recorded fences that were given later.
//! - *A late `Lost` of a voter that now votes* is as valid as when it was sent, for the same reason.
//! - *A repeated answer* counts once. *An answer to an earlier lifetime of the asker* is ignored, because it names
//!   that lifetime.

use crate::members::{Member, MemberSet, Members};
use crate::message::Fence;
use crate::time::Time;

/// The answers so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Learning {
    members: Members,
    /// All members except this voter's.
    others: MemberSet,
    /// When the voter asks again.
    pub(super) again: Time,
    /// The members that have sent their fences.
    known: MemberSet,
    /// The highest fence received.
    floor: Fence,
    /// The members that have lost their fences, and have not sent any since.
    lost: MemberSet,
    /// The highest of their origins and its own.
    origin: Fence,
}

impl Learning {
    pub(super) fn new(members: Members, me: Member, origin: Fence, again: Time) -> Learning {
        let all: MemberSet = members.iter().collect();
        Learning {
            members,
            others: all.without(me),
            again,
            known: MemberSet::EMPTY,
            floor: Fence(0),
            lost: MemberSet::EMPTY,
            origin,
        }
    }

    /// `from` votes, and its highest fence is `fence`.
    pub(super) fn known(&mut self, from: Member, fence: Fence) {
        self.known = self.known.with(from);
        self.lost = self.lost.without(from);
        self.floor = self.floor.max(fence);
    }

    pub(super) fn lost(&mut self, from: Member, origin: Fence) {
        if !self.known.contains(from) {
            self.lost = self.lost.with(from);
        }
        self.origin = self.origin.max(origin);
    }

    /// The members to ask: those that have not sent their fences. One that had lost them may have recovered them.
    pub(super) fn missing(&self) -> MemberSet {
        self.others.minus(self.known)
    }

    /// The members that have not answered at all.
    pub(super) fn unanswered(&self) -> MemberSet {
        self.missing().minus(self.lost)
    }

    /// The fence above which the voter begins, if the answers are enough.
    pub(super) fn learned(&self) -> Option<Fence> {
        if self.known.len() >= self.members.co_quorum() {
            return Some(self.floor);
        }
        let all = self.unanswered().is_empty();
        all.then(|| self.floor.max(self.origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(place: usize) -> Member {
        Member::at(place).unwrap()
    }

    fn learning() -> Learning {
        learning_of(4)
    }

    /// Of the last of `count` members.
    fn learning_of(count: usize) -> Learning {
        Learning::new(
            Members::new(count).unwrap(),
            at(count - 1),
            Fence(100),
            Time(0),
        )
    }

    #[test]
    fn a_co_quorum_of_fences_is_enough_without_clocks() {
        for (count, enough) in [(2, 1), (3, 2), (4, 2), (5, 3)] {
            let mut learning = learning_of(count);
            // In clusters where all others are just enough, the last answer would also satisfy the second rule.
            for place in 0..enough - 1 {
                learning.known(at(place), Fence(10 + place as u64));
                learning.known(at(place), Fence(3));
                assert_eq!(learning.learned(), None, "{place} of {count}");
            }
            learning.known(at(enough - 1), Fence(7));
            let highest = if enough > 1 {
                10 + enough as u64 - 2
            } else {
                7
            };
            assert_eq!(learning.learned(), Some(Fence(highest)));
        }
    }

    #[test]
    fn answers_of_all_others_are_enough_with_origins() {
        let mut learning = learning();
        learning.lost(at(0), Fence(90));
        learning.lost(at(1), Fence(110));
        learning.lost(at(1), Fence(110));
        assert_eq!(learning.learned(), None);
        learning.known(at(2), Fence(50));
        assert_eq!(learning.learned(), Some(Fence(110)));
        // The voter's own origin counts, and so do fences received.
        let mut learning = self::learning();
        (0..2).for_each(|place| learning.lost(at(place), Fence(0)));
        learning.lost(at(2), Fence(1));
        assert_eq!(learning.learned(), Some(Fence(100)));
        let mut learning = self::learning();
        (0..2).for_each(|place| learning.lost(at(place), Fence(0)));
        learning.known(at(2), Fence(1000));
        assert_eq!(learning.learned(), Some(Fence(1000)));
    }

    #[test]
    fn a_single_member_needs_no_answers() {
        assert!(learning_of(1).missing().is_empty());
        assert_eq!(learning_of(1).learned(), Some(Fence(100)));
    }

    #[test]
    fn fences_replace_a_lost_answer_but_not_vice_versa() {
        for late in [false, true] {
            let mut learning = learning_of(3);
            if !late {
                learning.lost(at(0), Fence(200));
            }
            learning.known(at(0), Fence(5));
            if late {
                learning.lost(at(0), Fence(200));
            }
            assert_eq!(learning.learned(), None);
            assert_eq!(learning.missing(), MemberSet::EMPTY.with(at(1)));
            learning.known(at(1), Fence(6));
            assert_eq!(learning.learned(), Some(Fence(6)), "no origin counts");
        }
    }
}
