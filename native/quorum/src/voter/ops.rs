//! Executes the operations of a batch, one after the other.

use super::names::VoteId;
use super::{Stage, Voter};
use crate::members::{Member, MemberSet};
use crate::message::{Fence, Generation, Mode, Name, Names, Op, Reason, Reply, Token, Turn};
use crate::protocol_bug::ProtocolBug;
use std::num::NonZeroU8;

impl Voter {
    pub(super) fn apply(&mut self, from: Member, generation: Generation, op: Op) -> Option<Reply> {
        match op {
            Op::Lock {
                token,
                mode,
                turn,
                guess,
                run,
                names,
            } => {
                let fences = (guess, run);
                Some(self.lock((generation, token), mode, turn, fences, names))
            }
            Op::Confirm { token, fence } => Some(self.confirm((generation, token), fence)),
            Op::Assert {
                token,
                mode,
                fence,
                names,
            } => Some(self.assert((generation, token), mode, fence, names)),
            Op::Unlock { token, fence } => {
                self.unlock((generation, token), fence);
                None
            }
            Op::Leave { names } => {
                names
                    .iter()
                    .for_each(|name| self.names.leave(name, generation));
                None
            }
            Op::Sync { from, to, live } => Some(self.sync(generation, from, to, live)),
            Op::Settled => {
                if let Stage::Quarantine { settled, .. } = &mut self.stage {
                    *settled = settled.with(from);
                }
                self.advance(self.now);
                None
            }
            Op::Revoke { name } => {
                self.revoke(&name);
                None
            }
        }
    }

    fn lock(
        &mut self,
        id: VoteId,
        mode: Mode,
        turn: Turn,
        (guess, run): (Fence, NonZeroU8),
        names: Names,
    ) -> Reply {
        let (generation, token) = id;
        if self.vote(id).is_some() {
            return Reply::Yes {
                fence: self.highest_of(&names),
            };
        }
        if self.stage != Stage::Voting {
            return Reply::No {
                reason: Reason::Quarantine,
            };
        }
        let expires = self.now + self.setup.rules.wait;
        let refusal = |name| self.names.refusal(name, generation, mode, turn);
        if let Some(reason) = names.iter().find_map(refusal) {
            self.names.wait(&names, generation, (mode, turn), expires);
            return Reply::No { reason };
        }
        let highest = self.highest_of(&names);
        let fence = match mode {
            Mode::Read => highest,
            Mode::Write if self.setup.bugs.have(ProtocolBug::FenceNotWritten) => highest,
            Mode::Write => guess.max(highest.after(run)),
        };
        // Every fence of the run must be new.
        let spent = mode == Mode::Write
            && fence.first(run) <= highest
            && !self.setup.bugs.have(ProtocolBug::FenceNotWritten);
        if mode == Mode::Write && (spent || !self.reserve(fence)) {
            return Reply::No {
                reason: Reason::Storing,
            };
        }
        self.add_vote(generation, token, mode, fence, names);
        Reply::Yes { fence }
    }

    fn confirm(&mut self, id: VoteId, fence: Fence) -> Reply {
        let Some(vote) = self.vote(id) else {
            return Reply::Missing;
        };
        let names = vote.names.clone();
        if !self.reserve(fence) {
            return Reply::No {
                reason: Reason::Storing,
            };
        }
        names.iter().for_each(|name| self.names.raise(name, fence));
        Reply::Confirmed
    }

    fn assert(&mut self, id: VoteId, mode: Mode, fence: Fence, names: Names) -> Reply {
        let (generation, token) = id;
        if self.vote(id).is_none() {
            if let Some(reason) = names
                .iter()
                .find_map(|name| self.names.conflict(name, mode))
            {
                return Reply::No { reason };
            }
            if !self.reserve(fence) {
                return Reply::No {
                    reason: Reason::Storing,
                };
            }
            self.add_vote(generation, token, mode, fence, names);
        }
        Reply::Yes { fence }
    }

    fn unlock(&mut self, id: VoteId, fence: Fence) {
        let (generation, token) = id;
        let Some(vote) = self.leases.live(generation).remove(token) else {
            return;
        };
        // A fence above the stored mark is not recorded here. It need not be: the voters that confirmed it have it.
        if self.reserve(fence) {
            vote.names
                .iter()
                .for_each(|name| self.names.raise(name, fence));
        }
        self.forget_names(generation, token, &vote);
    }

    fn sync(&mut self, generation: Generation, from: Token, to: Token, live: Vec<Token>) -> Reply {
        let lease = self.leases.live(generation);
        let unlisted = lease.unlisted(from, to, &live);
        let missing = live
            .into_iter()
            .filter(|token| lease.vote(*token).is_none())
            .collect();
        for token in unlisted {
            let vote = self.leases.live(generation).remove(token);
            vote.into_iter()
                .for_each(|vote| self.forget_names(generation, token, &vote));
        }
        Reply::Synced { missing }
    }

    /// Marks the votes of `name` as revoked. They stay, so no other request gets the name, until their agents release
    /// them or their leases expire.
    fn revoke(&mut self, name: &Name) {
        let mut holders = MemberSet::EMPTY;
        for (generation, token) in self.names.votes_for(name) {
            let Some(lease) = self.leases.get_mut(generation) else {
                continue;
            };
            holders = holders.with(lease.member);
            if self.setup.bugs.have(ProtocolBug::RevokedForgotten) {
                let vote = lease.remove(token);
                vote.into_iter()
                    .for_each(|vote| self.forget_names(generation, token, &vote));
            } else {
                lease.revoke(token);
            }
        }
        // The answers to the next batches of these agents list the revoked votes.
        holders
            .iter()
            .for_each(|member| self.notice(member, Vec::new(), true));
    }
}
