//! How far the fences went, for a voter that has lost its own: it asks the other voters, and begins above all that
//! it heard.
//!
//! It is enough when one of these is true.
//!
//! - *So many that vote have told theirs that each quorum there ever was had one of them.* Then no lock was granted
//!   with a fence past what they told: this is exact, and needs no clock.
//! - *All others have answered*, and those that have told theirs are too few: all have just started for the first
//!   time, or too many have lost their fences at once. Then it begins above all that was told, and above each
//!   [`origin`](super::Fences::origin), those of the others and its own. What it wrote down in an earlier life was
//!   given before this one began, so it is not past its own origin, if its clock is right and the others' were. The
//!   highest of all origins also makes up for clocks that differ, as long as none is set back: somebody's clock was
//!   the highest when all began, and shows more by now than fences have grown since.
//!
//! With fewer answers it waits, though by its own clock it could begin: those that are not there may be the ones that
//! know, and a clock can be wrong. It costs nothing but that all members have to come up once.
//!
//! # What an answer is worth
//!
//! - *Told by one that votes by its clock.* As much as by one that has lost nothing: if the clocks were right, it
//!   gives no fence that it gave or wrote down before; if they were wrong, it is wrong already where it votes itself.
//! - *Told by one that had said that its fences are lost.* It knows them now, and is one of those that know.
//! - *Told by one that has lost them since, and says so.* What it told was true when the asker's quarantine was over,
//!   and is enough: what is given later, no earlier life of the asker wrote down.
//! - *Lost, and late, of one that votes meanwhile.* As good as when it was sent, for the same reason.
//! - *Twice*, it counts once; *for an earlier life of the asker*, it never comes here (it names that life).

use super::{Stage, Voter};
use crate::members::{Member, MemberSet, Members};
use crate::message::{Fence, Floor, Frame, Incarnation, EPOCH};
use crate::time::Time;

/// What a voter has been answered so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Learning {
    /// When it asks once more.
    pub(super) again: Time,
    /// Those that have told their fences.
    told: MemberSet,
    /// The highest that was told.
    floor: Fence,
    /// Those that have lost theirs, too, and have not told them since.
    lost: MemberSet,
    /// The highest of theirs and of its own.
    origin: Fence,
}

impl Learning {
    /// Nobody has answered yet.
    fn new(origin: Fence, again: Time) -> Learning {
        Learning {
            again,
            told: MemberSet::EMPTY,
            floor: Fence(0),
            lost: MemberSet::EMPTY,
            origin,
        }
    }

    /// `from` votes, and this is how far its fences went.
    fn told(&mut self, from: Member, fence: Fence) {
        self.told = self.told.with(from);
        self.lost = self.lost.without(from);
        self.floor = self.floor.max(fence);
    }

    /// `from` has lost its fences, too.
    fn lost(&mut self, from: Member, origin: Fence) {
        if !self.told.contains(from) {
            self.lost = self.lost.with(from);
        }
        self.origin = self.origin.max(origin);
    }

    /// Whom to ask: those that have not told their fences. One that had lost them may have learnt them by now.
    fn missing(&self, members: Members) -> MemberSet {
        let others: MemberSet = members.iter().collect();
        others.without(members.me()).minus(self.told)
    }

    /// Whether `from` has not answered yet.
    fn waits_for(&self, from: Member) -> bool {
        !self.told.contains(from) && !self.lost.contains(from)
    }

    /// How far the fences went, if enough have answered.
    fn learnt(&self, members: Members) -> Option<Fence> {
        if self.told.len() >= members.co_quorum() {
            return Some(self.floor);
        }
        let all = self.missing(members).minus(self.lost).is_empty();
        all.then(|| self.floor.max(self.origin))
    }
}

impl Voter {
    /// Its quarantine is over, and it has no fences.
    pub(super) fn learn(&mut self) {
        let learning = Learning::new(self.setup.fences.origin, self.now);
        self.stage = Stage::Learning(learning);
        self.ask();
        // Of one member there is nobody to ask.
        self.learnt();
    }

    /// Asks those that have not told how far their fences went, if it has to know.
    pub(super) fn ask(&mut self) {
        let Stage::Learning(learning) = &mut self.stage else {
            return;
        };
        learning.again = self.now + self.setup.rules.attempt;
        let missing = learning.missing(self.setup.members);
        missing.iter().for_each(|member| self.ask_one(member));
    }

    fn ask_one(&mut self, member: Member) {
        let ask = Floor::Ask {
            epoch: EPOCH,
            asker: self.setup.incarnation,
        };
        self.send(member, Frame::Floor(ask));
    }

    /// Another voter asks or answers. What is for an earlier life of this one is ignored.
    pub(super) fn floor(&mut self, from: Member, floor: Floor) {
        let me = self.setup.incarnation;
        match floor {
            Floor::Ask {
                epoch: EPOCH,
                asker,
            } => self.asked(from, asker),
            Floor::Told {
                epoch: EPOCH,
                asker,
                fence,
            } if asker == me => self.answered(|learning| learning.told(from, fence)),
            Floor::Lost {
                epoch: EPOCH,
                asker,
                origin,
            } if asker == me => self.answered(|learning| learning.lost(from, origin)),
            Floor::Ask { .. } | Floor::Told { .. } | Floor::Lost { .. } => {}
        }
    }

    /// Another voter has lost its fences. Who is in quarantine does not know yet what to say.
    fn asked(&mut self, from: Member, asker: Incarnation) {
        let epoch = EPOCH;
        match self.stage {
            Stage::Quarantine { .. } => {}
            Stage::Learning(learning) => {
                let origin = self.setup.fences.origin;
                let lost = Floor::Lost {
                    epoch,
                    asker,
                    origin,
                };
                self.send(from, Frame::Floor(lost));
                // It was not there when it was asked, and is now.
                if learning.waits_for(from) {
                    self.ask_one(from);
                }
            }
            Stage::Voting => {
                let fence = self.names.highest();
                let told = Floor::Told {
                    epoch,
                    asker,
                    fence,
                };
                self.send(from, Frame::Floor(told));
            }
        }
    }

    fn answered(&mut self, answer: impl FnOnce(&mut Learning)) {
        if let Stage::Learning(learning) = &mut self.stage {
            answer(learning);
            self.learnt();
        }
    }

    fn learnt(&mut self) {
        let Stage::Learning(learning) = self.stage else {
            return;
        };
        if let Some(floor) = learning.learnt(self.members()) {
            self.names.raise_all(floor);
            self.reserve(floor.next());
            self.stage = Stage::Voting;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(place: usize) -> Member {
        Member::at(place).unwrap()
    }

    fn learning() -> Learning {
        Learning::new(Fence(100), Time(0))
    }

    #[test]
    fn those_that_know_are_enough_and_no_clock_counts() {
        for (count, enough) in [(2, 1), (3, 2), (4, 2), (5, 3), (16, 8)] {
            let members = Members::new(count, 0).unwrap();
            let mut learning = learning();
            // Where the others are no more than enough, the last one would do by the other rule.
            for place in 1..enough {
                learning.told(at(place), Fence(10 + place as u64));
                learning.told(at(place), Fence(3));
                assert_eq!(learning.learnt(members), None, "{place} of {count}");
            }
            learning.told(at(enough), Fence(7));
            let highest = if enough > 1 {
                10 + enough as u64 - 1
            } else {
                7
            };
            assert_eq!(learning.learnt(members), Some(Fence(highest)));
        }
    }

    #[test]
    fn all_others_are_enough_by_the_clock() {
        let members = Members::new(4, 3).unwrap();
        let mut learning = learning();
        learning.lost(at(0), Fence(90));
        learning.lost(at(1), Fence(110));
        learning.lost(at(1), Fence(110));
        assert_eq!(learning.learnt(members), None);
        learning.told(at(2), Fence(50));
        assert_eq!(learning.learnt(members), Some(Fence(110)));
        // Its own, and what was told.
        let mut learning = self::learning();
        (0..2).for_each(|place| learning.lost(at(place), Fence(0)));
        learning.lost(at(2), Fence(1));
        assert_eq!(learning.learnt(members), Some(Fence(100)));
        let mut learning = self::learning();
        (0..2).for_each(|place| learning.lost(at(place), Fence(0)));
        learning.told(at(2), Fence(1000));
        assert_eq!(learning.learnt(members), Some(Fence(1000)));
    }

    #[test]
    fn one_member_has_nobody_to_ask() {
        let members = Members::new(1, 0).unwrap();
        assert!(learning().missing(members).is_empty());
        assert_eq!(learning().learnt(members), Some(Fence(100)));
    }

    #[test]
    fn what_is_told_replaces_that_it_was_lost_and_not_the_other_way_round() {
        let members = Members::new(3, 0).unwrap();
        for late in [false, true] {
            let mut learning = learning();
            if !late {
                learning.lost(at(1), Fence(200));
            }
            learning.told(at(1), Fence(5));
            if late {
                learning.lost(at(1), Fence(200));
            }
            assert_eq!(learning.learnt(members), None);
            assert_eq!(learning.missing(members), MemberSet::EMPTY.with(at(2)));
            learning.told(at(2), Fence(6));
            assert_eq!(learning.learnt(members), Some(Fence(6)), "exactly");
        }
    }
}
