//! Recovers lost fences: asks the other voters for theirs, and answers such questions. `learning.rs` decides when the
//! answers are enough.

use super::learning::Learning;
use super::{Stage, Voter};
use crate::members::Member;
use crate::message::{Floor, Frame, Lifetime, EPOCH};

impl Voter {
    /// The quarantine is over, and the fences are lost: starts the recovery.
    pub(super) fn learn(&mut self) {
        let learning = Learning::new(self.setup.fences.origin, self.now);
        self.stage = Stage::Learning(learning);
        self.ask();
        // A single member has no other member to ask.
        self.finish_recovery();
    }

    /// During the recovery, asks all members that have not sent their fences.
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
            asker: self.setup.lifetime,
        };
        self.send(member, Frame::Floor(ask));
    }

    /// Handles a question or answer of another voter. Ignores answers to earlier lifetimes of this voter.
    pub(super) fn floor(&mut self, from: Member, floor: Floor) {
        let me = self.setup.lifetime;
        match floor {
            Floor::Ask {
                epoch: EPOCH,
                asker,
            } => self.asked(from, asker),
            Floor::Told {
                epoch: EPOCH,
                asker,
                fence,
            } if asker == me => self.answered(|learning| learning.known(from, fence)),
            Floor::Lost {
                epoch: EPOCH,
                asker,
                origin,
            } if asker == me => self.answered(|learning| learning.lost(from, origin)),
            Floor::Ask { .. } | Floor::Told { .. } | Floor::Lost { .. } => {}
        }
    }

    /// Answers a voter that has lost its fences. A voter in quarantine does not answer, because it does not know yet
    /// whether its fences are valid.
    fn asked(&mut self, from: Member, asker: Lifetime) {
        let epoch = EPOCH;
        match self.stage {
            Stage::Quarantine { .. } => {}
            Stage::Learning(learning) => {
                let origin = self.setup.fences.origin;
                let answer = Floor::Lost {
                    epoch,
                    asker,
                    origin,
                };
                self.send(from, Frame::Floor(answer));
                // The member did not answer earlier and is available now.
                if learning.waits_for(from) {
                    self.ask_one(from);
                }
            }
            Stage::Voting => {
                let fence = self.names.highest();
                let answer = Floor::Told {
                    epoch,
                    asker,
                    fence,
                };
                self.send(from, Frame::Floor(answer));
            }
        }
    }

    fn answered(&mut self, answer: impl FnOnce(&mut Learning)) {
        if let Stage::Learning(learning) = &mut self.stage {
            answer(learning);
            self.finish_recovery();
        }
    }

    fn finish_recovery(&mut self) {
        let Stage::Learning(learning) = self.stage else {
            return;
        };
        if let Some(floor) = learning.learned(self.members()) {
            self.names.raise_all(floor);
            self.reserve(floor.next());
            self.stage = Stage::Voting;
        }
    }
}
