//! Executes the operations of a batch, one after the other.

use super::names::{VoteId, Waiting};
use super::{Stage, Voter};
use crate::bounds::MAX_FENCE;
use crate::members::Node;
use crate::message::{
    Fence, Frame, Generation, Lifetime, Mode, Name, Names, Op, Priority, Reason, Reply, Token,
};
use crate::protocol_bug::ProtocolBug;
use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::time::Duration;

/// What a `Lock` asks for.
struct Wanted {
    mode: Mode,
    priority: Priority,
    wait: bool,
    guess: Fence,
    run: NonZeroU16,
    names: Names,
}

impl Voter {
    pub(super) fn apply(&mut self, from: Node, generation: Generation, op: Op) -> Option<Reply> {
        match op {
            Op::Lock {
                token,
                mode,
                clock,
                first,
                wait,
                guess,
                run,
                names,
            } => {
                let agent = self.leases.live(generation).agent;
                let priority = Priority {
                    clock,
                    agent,
                    token: first,
                };
                let wanted = Wanted {
                    mode,
                    priority,
                    wait,
                    guess,
                    run,
                    names,
                };
                Some(self.lock((generation, token), wanted))
            }
            Op::Confirm { token, fence } => Some(self.confirm((generation, token), fence)),
            Op::Assert {
                token,
                mode,
                fence,
                continues,
                names,
            } => {
                let vote = (generation, token);
                Some(self.assert(vote, mode, fence, continues, names))
            }
            Op::Unlock { token, fence } => {
                self.unlock((generation, token), fence);
                None
            }
            Op::Sync { from, to, live } => Some(self.sync(generation, from, to, live)),
            Op::Settled => {
                self.settled(from);
                None
            }
            Op::Revoke { name } => {
                self.revoke(&name);
                None
            }
            Op::Bury { agent } => {
                self.bury_other(from, generation, agent);
                None
            }
        }
    }

    fn lock(&mut self, id: VoteId, wanted: Wanted) -> Reply {
        let Wanted {
            mode,
            priority,
            wait,
            guess,
            run,
            names,
        } = wanted;
        let (generation, token) = id;
        if self.vote(id).is_some() {
            return Reply::Yes {
                fence: self.highest_of(&names),
            };
        }
        let abstains = self.abstains(&names);
        if let Some(reason) = abstains.or_else(|| self.rejects(generation)) {
            return Reply::No { reason };
        }
        let blocked = |name| self.names.is_blocked(name, priority, mode);
        if names.iter().any(blocked) {
            let reason = match wait {
                true => self.wait(id, priority, mode, names),
                false => Reason::Busy,
            };
            return Reply::No { reason };
        }
        let highest = self.highest_of(&names);
        let fence = match mode {
            Mode::Read => highest,
            Mode::Write if self.setup.bugs.have(ProtocolBug::FenceNotWritten) => highest,
            // A guess may follow the clock of another voter. If this one may not give it, it agrees by a `Confirm`.
            Mode::Write if guess <= self.pace.limit(self.now) => guess.max(highest.after(run)),
            Mode::Write => highest.after(run),
        };
        // Every fence of the run must be new.
        let spent = mode == Mode::Write
            && fence.first(run) <= highest
            && !self.setup.bugs.have(ProtocolBug::FenceNotWritten);
        if mode == Mode::Write && (spent || !self.may_give(fence)) {
            // Above the limit of the pace, nothing is stored that would end the wait.
            let stores = fence <= self.pace.limit(self.now) && fence > self.reserved;
            self.lacks_fences = stores || highest >= Fence(MAX_FENCE);
            return Reply::No {
                reason: Reason::Storing,
            };
        }
        self.add_vote(generation, token, mode, (fence, priority.clock), names);
        Reply::Yes { fence }
    }

    /// Whether this voter may vote for all of them.
    fn serves(&self, names: &Names) -> bool {
        let (me, bugs) = (self.member(), self.setup.bugs);
        let any = bugs.have(ProtocolBug::NotMineIgnored) || bugs.have(ProtocolBug::LivingGroups);
        any || names.iter().all(|name| self.groups.serves(me, name))
    }

    /// Why the voter does not vote for these names, if it does not.
    fn abstains(&self, names: &Names) -> Option<Reason> {
        match self.stage {
            _ if !self.serves(names) => Some(Reason::NotMine),
            _ if self.conflicted => Some(Reason::Conflicted),
            Stage::Quarantine { .. } | Stage::Superseded { .. } => Some(Reason::Quarantine),
            Stage::Learning(_) => Some(Reason::Learning),
            Stage::Voting => None,
        }
    }

    /// Why the agent of this lease gets no vote, if it does not: it is a client that is not stored, or has too many.
    fn rejects(&mut self, generation: Generation) -> Option<Reason> {
        let rules = self.setup.rules;
        let lease = self.leases.live(generation);
        let (node, count) = (lease.node, lease.count());
        if !node.is_client() {
            None
        } else if !self.register.has(node) || count >= rules.client_votes {
            Some(Reason::Limit)
        } else if !self.register.is_stored(node) {
            Some(Reason::Storing)
        } else {
            None
        }
    }

    /// Gives a request a position, if its agent may have one more.
    fn wait(&mut self, id: VoteId, priority: Priority, mode: Mode, names: Names) -> Reason {
        if self.setup.bugs.have(ProtocolBug::PositionsForgotten) {
            return Reason::Queued;
        }
        let rules = self.setup.rules;
        let is_client = self.leases.live(id.0).node.is_client();
        let is_new = is_client && !self.names.has_position(id);
        if is_new && self.names.positions_of(id.0) >= rules.client_positions {
            return Reason::Limit;
        }
        let srtt = self.leases.live(id.0).srtt;
        let keep: Duration = (srtt * 4).clamp(rules.keep, rules.attempt);
        let request = Waiting {
            priority,
            mode,
            names,
            keep,
        };
        self.names.wait(id, request);
        Reason::Queued
    }

    fn confirm(&mut self, id: VoteId, fence: Fence) -> Reply {
        let Some(vote) = self.vote(id) else {
            return Reply::Missing;
        };
        let names = vote.names.clone();
        if !self.may_record(fence) {
            self.lacks_fences |= self.storing >= fence;
            return Reply::No {
                reason: Reason::Storing,
            };
        }
        names.iter().for_each(|name| self.names.raise(name, fence));
        Reply::Confirmed
    }

    fn assert(
        &mut self,
        id: VoteId,
        mode: Mode,
        fence: Fence,
        continues: bool,
        names: Names,
    ) -> Reply {
        let (generation, token) = id;
        if !self.serves(&names) {
            let reason = Reason::NotMine;
            return Reply::No { reason };
        }
        let voted = self.vote(id).is_some();
        // An agent that has not learned of this lifetime may still count an earlier vote for one of the names.
        if matches!(self.stage, Stage::Quarantine { .. }) && !voted && !continues {
            let reason = Reason::Quarantine;
            return Reply::No { reason };
        }
        if let Some(reason) = self.rejects(generation).filter(|_| !voted) {
            return Reply::No { reason };
        }
        if !voted && names.iter().any(|name| self.names.conflicts(name, mode)) {
            // Its conflicting votes are of requests that are not granted. They are recalled.
            let agent = self.leases.live(generation).agent;
            let oldest = Priority {
                agent,
                token,
                ..Priority::OLDEST
            };
            let reason = self.wait(id, oldest, mode, names);
            return Reply::No { reason };
        }
        // A voter that has lost its fences records this one with the others, when it has learned them.
        if !self.may_record(fence) && self.knows_fences() {
            return Reply::No {
                reason: Reason::Storing,
            };
        }
        if voted {
            names.iter().for_each(|name| self.names.raise(name, fence));
        } else {
            self.add_vote(
                generation,
                token,
                mode,
                (fence, Priority::OLDEST.clock),
                names,
            );
        }
        Reply::Yes { fence }
    }

    fn unlock(&mut self, id: VoteId, fence: Fence) {
        let (generation, token) = id;
        let Some(vote) = self.leases.live(generation).remove(token) else {
            return self.names.leave(id);
        };
        // A fence above the stored mark is not recorded here. It need not be: the voters that confirmed it have it.
        if self.may_record(fence) {
            vote.names
                .iter()
                .for_each(|name| self.names.raise(name, fence));
        }
        self.forget_names(generation, token, &vote);
    }

    fn sync(&mut self, generation: Generation, from: Token, to: Token, live: Vec<Token>) -> Reply {
        let lease = self.leases.live(generation);
        let unlisted = lease.unlisted(from, to, &live);
        let waiting = self.names.waiting_in(generation, from, to);
        for token in waiting {
            if live.binary_search(&token).is_err() {
                self.names.leave((generation, token));
            }
        }
        let lease = self.leases.live(generation);
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
        let mut holders = BTreeSet::new();
        for (generation, token) in self.names.votes_for(name) {
            let Some(lease) = self.leases.get_mut(generation) else {
                continue;
            };
            holders.insert(lease.node);
            if self.setup.bugs.have(ProtocolBug::RevokedForgotten) {
                let vote = lease.remove(token);
                vote.into_iter()
                    .for_each(|vote| self.forget_names(generation, token, &vote));
            } else {
                lease.revoke(token);
            }
        }
        // The answers to the next batches of these agents list the revoked votes.
        for node in holders {
            self.send(node, Frame::Notice(self.notice(true)));
        }
    }

    /// An agent cannot bury itself.
    fn bury_other(&mut self, from: Node, generation: Generation, agent: Lifetime) {
        if self.leases.live(generation).agent != agent {
            self.bury(from, agent);
        }
    }
}
