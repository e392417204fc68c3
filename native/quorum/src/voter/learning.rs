//! Decides when the answers of other voters are enough for a voter that has lost its fences, and above which fence it
//! begins. `recovery.rs` exchanges the messages.
//!
//! The voter begins when the answers are enough in each group of names that it votes for. (Not in one group after the
//! other: a mark that it stores says that it knows all of its fences.) They are enough in one of two cases:
//!
//! - *At least [`co_quorum`](crate::members::Members::co_quorum) voters of the group have sent their fences.* One of
//!   them was in each earlier quorum, so no lock was granted with a fence above theirs. This rule is exact and needs no
//!   clock.
//! - *All other members have answered*, but too few voters of the group have sent fences. Either they start for the
//!   first time, or too many have lost their fences at once, or the list has changed. (All members, not only those of
//!   the group: a group may consist of new members only. They must not vote while others still vote in an earlier
//!   list.) The voter then begins above all fences received and above each [`origin`](super::Fences::origin), of the
//!   others and its own. The fences that it recorded in an earlier lifetime were given before its own start, so they
//!   are at most its own origin if its clock and those of the others are right: no voter gives or stores fences faster
//!   than a clock advances, in any number of lives (`pace.rs`). The highest origin also compensates for clocks that
//!   differ, unless a clock is set back: the clock that was the highest at the start of the cluster is now ahead by at
//!   least as much as the fences have grown.
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
    /// The different groups that the voter is in.
    groups: Vec<MemberSet>,
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
    pub(super) fn new(
        members: Members,
        me: Member,
        groups: Vec<MemberSet>,
        origin: Fence,
        again: Time,
    ) -> Learning {
        let all: MemberSet = members.iter().collect();
        Learning {
            members,
            others: all.without(me),
            groups,
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

    pub(super) fn waits_for(&self, from: Member) -> bool {
        !self.known.contains(from) && !self.lost.contains(from)
    }

    /// The fence above which the voter begins, if the answers are enough.
    pub(super) fn learned(&self) -> Option<Fence> {
        let enough = |group: &MemberSet| self.known.and(*group).len() >= self.members.co_quorum();
        if self.groups.iter().all(enough) {
            return Some(self.floor);
        }
        let all = self.missing().minus(self.lost).is_empty();
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
        learning_in(Members::new(4).unwrap(), 3, &[0b1111])
    }

    fn learning_in(members: Members, me: usize, groups: &[u64]) -> Learning {
        let groups = groups.iter().map(|bits| MemberSet::from_bits(*bits));
        Learning::new(members, at(me), groups.collect(), Fence(100), Time(0))
    }

    /// Five members, of which three vote for each name. This voter is in two groups.
    #[test]
    fn the_answers_must_be_enough_in_each_group() {
        let members = Members::new(5).unwrap().with_replicas(3).unwrap();
        let of = || learning_in(members, 0, &[0b0_0111, 0b0_1101]);
        let mut learning = of();
        assert_eq!(learning.missing().bits(), 0b1_1110);
        for (place, fence) in [(1, 10), (2, 30)] {
            learning.known(at(place), Fence(fence));
            assert_eq!(learning.learned(), None);
        }
        learning.known(at(3), Fence(5));
        assert_eq!(learning.learned(), Some(Fence(30)), "no origin counts");
        // Member 4 is in none of its groups, and must answer if not enough of the others know their fences.
        let mut learning = of();
        (1..=2).for_each(|place| learning.known(at(place), Fence(10)));
        learning.lost(at(3), Fence(90));
        assert_eq!(learning.learned(), None);
        learning.lost(at(4), Fence(90));
        assert_eq!(learning.learned(), Some(Fence(100)), "the own origin");
    }

    #[test]
    fn a_co_quorum_of_fences_is_enough_without_clocks() {
        for (count, enough) in [(2, 1), (3, 2), (4, 2), (5, 3)] {
            let members = Members::new(count).unwrap();
            let mut learning = learning_in(members, 0, &[(1 << count) - 1]);
            // In clusters where all others are just enough, the last answer would also satisfy the second rule.
            for place in 1..enough {
                learning.known(at(place), Fence(10 + place as u64));
                learning.known(at(place), Fence(3));
                assert_eq!(learning.learned(), None, "{place} of {count}");
            }
            learning.known(at(enough), Fence(7));
            let highest = if enough > 1 {
                10 + enough as u64 - 1
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
        let members = Members::new(1).unwrap();
        assert!(learning_in(members, 0, &[1]).missing().is_empty());
        assert_eq!(learning_in(members, 0, &[1]).learned(), Some(Fence(100)));
    }

    #[test]
    fn fences_replace_a_lost_answer_but_not_vice_versa() {
        let members = Members::new(3).unwrap();
        for late in [false, true] {
            let mut learning = learning_in(members, 0, &[0b111]);
            if !late {
                learning.lost(at(1), Fence(200));
            }
            learning.known(at(1), Fence(5));
            if late {
                learning.lost(at(1), Fence(200));
            }
            assert_eq!(learning.learned(), None);
            assert_eq!(learning.missing(), MemberSet::EMPTY.with(at(2)));
            learning.known(at(2), Fence(6));
            assert_eq!(learning.learned(), Some(Fence(6)), "no origin counts");
        }
    }
}
