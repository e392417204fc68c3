//! Questions between voters about their lives, and their answers: see `lives.rs`.

use super::{Stage, Voter, VoterOutput};
use crate::members::Member;
use crate::message::{Frame, Life, Lifetime};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;

impl Voter {
    /// Asks all members that have not answered, while it is in quarantine.
    pub(super) fn ask(&mut self) {
        let next = self.now + self.setup.rules.attempt;
        let unanswered = self.lives.unanswered();
        if let Stage::Quarantine { again } = &mut self.stage {
            *again = if unanswered.is_empty() {
                Time(i64::MAX)
            } else {
                next
            };
            unanswered.iter().for_each(|member| self.ask_one(member));
        }
    }

    /// Asks a member that has just become available, if this voter needs its answer.
    pub(super) fn ask_if_needed(&mut self, member: Member) {
        let is_needed = matches!(self.stage, Stage::Quarantine { .. });
        if is_needed && self.lives.unanswered().contains(member) {
            self.ask_one(member);
        }
    }

    fn ask_one(&mut self, member: Member) {
        let asker = self.setup.lifetime;
        self.send(member, Frame::Life(Life::Ask { asker }));
    }

    /// Handles a question or answer of another voter.
    pub(super) fn life(&mut self, from: Member, life: Life) {
        match life {
            Life::Ask { asker } => self.asked(from, asker),
            Life::Answer { asker, voter, seen } => {
                self.lives.hear(from, voter);
                // Not an answer to an earlier lifetime of this voter.
                if asker == self.setup.lifetime {
                    self.answered(from, seen);
                }
            }
        }
    }

    fn asked(&mut self, from: Member, asker: Lifetime) {
        let answer = Life::Answer {
            asker,
            voter: self.setup.lifetime,
            seen: self.lives.hear(from, asker),
        };
        self.send(from, Frame::Life(answer));
        // The member did not answer earlier and is available now.
        self.ask_if_needed(from);
    }

    fn answered(&mut self, from: Member, seen: Lifetime) {
        self.lives.answered(from);
        self.heard_of_me(seen);
        if let Stage::Quarantine { again } = &mut self.stage {
            if self.lives.unanswered().is_empty() {
                *again = Time(i64::MAX);
            }
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
}
