//! Questions between voters, and their answers: what a voter may have forgotten. `lives.rs` decides whether its file is
//! an old one. `learning.rs` decides when the answers are enough to replace lost fences.

use super::learning::Learning;
use super::{Stage, Voter, VoterOutput};
use crate::members::{Member, MemberSet};
use crate::message::{Floor, Frame, Known, Lifetime};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;

impl Voter {
    /// The quarantine is over, and the fences are lost: starts the recovery.
    pub(super) fn learn(&mut self) {
        let (members, me) = (self.members(), self.member());
        let learning = Learning::new(members, me, self.setup.fences.origin, self.now);
        self.stage = Stage::Learning(Box::new(learning));
        self.ask();
        // A single member has no other member to ask.
        self.finish_recovery();
    }

    /// Asks all members whose answer this voter needs.
    pub(super) fn ask(&mut self) {
        let next = self.now + self.setup.rules.attempt;
        match &mut self.stage {
            Stage::Quarantine { again } => {
                let asks = !self.lives.unanswered().is_empty();
                *again = if asks { next } else { Time(i64::MAX) };
            }
            Stage::Learning(learning) => {
                let once = self.setup.bugs.have(ProtocolBug::AskedOnce);
                learning.again = if once { Time(i64::MAX) } else { next };
            }
            Stage::Ready | Stage::Voting | Stage::Superseded { .. } => {}
        }
        let needed = self.needed();
        needed.iter().for_each(|member| self.ask_one(member));
    }

    /// Asks a member that has just become available, if this voter needs its answer.
    pub(super) fn ask_if_needed(&mut self, member: Member) {
        let has_answered = match &self.stage {
            Stage::Learning(learning) => !learning.unanswered().contains(member),
            _ => false,
        };
        if self.needed().contains(member) && !has_answered {
            self.ask_one(member);
        }
    }

    /// The members to ask: in quarantine those that may know a later life of this voter, then those that may know its
    /// fences.
    fn needed(&self) -> MemberSet {
        match &self.stage {
            Stage::Quarantine { .. } => self.lives.unanswered(),
            Stage::Learning(learning) => learning.missing(),
            Stage::Ready | Stage::Voting | Stage::Superseded { .. } => MemberSet::EMPTY,
        }
    }

    fn ask_one(&mut self, member: Member) {
        let ask = Floor::Ask {
            asker: self.setup.lifetime,
        };
        self.send(member, Frame::Floor(ask));
    }

    /// Handles a question or answer of another voter.
    pub(super) fn floor(&mut self, from: Member, floor: Floor) {
        match floor {
            Floor::Ask { asker } => self.asked(from, asker),
            Floor::Answer {
                asker,
                voter,
                seen,
                known,
            } => {
                self.lives.hear(from, voter);
                // Not an answer to an earlier lifetime of this voter.
                if asker == self.setup.lifetime {
                    self.answered(from, seen, known);
                }
            }
        }
    }

    /// Answers in every stage. A voter in quarantine does not know yet whether its fences are valid. Nor does a
    /// misconfigured one: voters of another list may have given higher fences.
    fn asked(&mut self, from: Member, asker: Lifetime) {
        let known = match self.stage {
            Stage::Superseded { .. } => return,
            _ if self.misconfigured => Known::Quarantine,
            Stage::Quarantine { .. } | Stage::Ready => Known::Quarantine,
            Stage::Learning(_) => Known::Lost {
                origin: self.setup.fences.origin,
            },
            Stage::Voting => Known::Told {
                fence: self.names.highest(),
            },
        };
        let answer = Floor::Answer {
            asker,
            voter: self.setup.lifetime,
            seen: self.lives.hear(from, asker),
            known,
        };
        self.send(from, Frame::Floor(answer));
        // The member did not answer earlier and is available now.
        self.ask_if_needed(from);
    }

    fn answered(&mut self, from: Member, seen: Lifetime, known: Known) {
        self.lives.answered(from);
        self.heard_of_me(seen);
        match (&mut self.stage, known) {
            (Stage::Quarantine { again }, _) => {
                if self.lives.unanswered().is_empty() {
                    *again = Time(i64::MAX);
                }
            }
            (Stage::Learning(learning), Known::Told { fence }) => {
                learning.known(from, fence);
                self.finish_recovery();
            }
            (Stage::Learning(learning), Known::Lost { origin }) => {
                learning.lost(from, origin);
                self.finish_recovery();
            }
            (Stage::Learning(_), Known::Quarantine) => {}
            (Stage::Ready | Stage::Voting | Stage::Superseded { .. }, _) => {}
        }
    }

    /// Another member knows this lifetime of this voter.
    pub(super) fn heard_of_me(&mut self, seen: Lifetime) {
        let me = self.lifetime();
        // No life is above the highest one, which no correct voter has.
        let is_later = seen != me && seen.life() >= me.life() && seen.life() < u32::MAX;
        if is_later && !self.setup.bugs.have(ProtocolBug::StaleBelieved) {
            self.stage = Stage::Superseded { seen };
            self.out.push(VoterOutput::Superseded { seen });
        }
    }

    pub(super) fn is_superseded(&self) -> bool {
        matches!(self.stage, Stage::Superseded { .. })
    }

    fn finish_recovery(&mut self) {
        let Stage::Learning(learning) = &self.stage else {
            return;
        };
        if let Some(floor) = learning.learned() {
            self.stage = Stage::Voting;
            self.names.raise_all(floor);
            self.mark_covers(self.names.highest());
        }
    }
}
