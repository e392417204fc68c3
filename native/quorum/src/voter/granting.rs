//! Gives votes: to a request that asks, or later, unasked, to the oldest requests that wait.
//!
//! A vote that is given unasked is *provisional* until a batch of the agent names it: the notice may be lost, or its
//! agent dead. The agent counts such a vote for less than `wait` from when it sent the last batch that this voter had
//! executed. The voter takes it back when it has executed no batch for `wait`, and not earlier. The request then waits
//! again.

use super::leases::{AgentLease, Vote};
use super::names::{VoteId, Waiting};
use super::{Stage, Voter};
use crate::message::{Fence, Frame, Generation, Mode, Name, Names, Reason, Token};
use crate::protocol_bug::ProtocolBug;

/// How a vote is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    /// As the answer to a question.
    Now,
    /// Unasked.
    Before,
}

impl Voter {
    /// Gives its vote to a request that nothing blocks. Returns the fence: for a writer the last one of its run. An
    /// error if the voter cannot vote for it now.
    pub(super) fn give(
        &mut self,
        id: VoteId,
        request: &Waiting,
        asks: Asks,
    ) -> Result<Fence, Reason> {
        if let Some(reason) = self.abstains() {
            return Err(reason);
        }
        if !self.serves(id.0) {
            return Err(Reason::Storing);
        }
        let (mode, run) = (request.mode, request.run);
        let highest = self.names.highest_of(&request.names);
        let no_fence = mode == Mode::Read || self.setup.bugs.have(ProtocolBug::FenceNotWritten);
        let fence = if no_fence {
            highest
        } else {
            highest.after(run)
        };
        // Every fence of the run must be new.
        let is_spent = !no_fence && fence.first(run) <= highest;
        if mode == Mode::Write && (is_spent || !self.mark_covers(fence)) {
            self.lacks_fences |= is_spent;
            return Err(Reason::Storing);
        }
        let clock = request.priority.clock;
        self.add_vote(id, mode, (fence, clock), request.names.clone());
        if asks == Asks::Before {
            self.leases.live(id.0).is_unasked(id.1, request.clone());
        }
        Ok(fence)
    }

    /// Gives a request a position.
    pub(super) fn wait(&mut self, id: VoteId, request: Waiting) {
        if self.setup.bugs.have(ProtocolBug::PositionsForgotten) {
            return;
        }
        self.leases.live(id.0).waits = true;
        self.names.wait(id, request);
    }

    /// Gives votes to the oldest requests that fit, after votes or positions have gone, and returns them by lease. If
    /// there are many, it gives some of them, and the others in the next call.
    pub(super) fn serve(&mut self) -> Vec<(Generation, Token, Fence)> {
        let mut given = Vec::new();
        let mut left = self.setup.rules.batch;
        while let Some(name) = self.names.next_changed().filter(|_| left > 0) {
            left -= 1;
            let unserved = loop {
                let Some(id) = self.names.fitting(&name) else {
                    break false;
                };
                let request = self.names.waiting(id).expect("it waits").clone();
                match self.give(id, &request, Asks::Before) {
                    Ok(fence) => given.push((id.0, id.1, fence)),
                    Err(_) => break true,
                }
                left = left.saturating_sub(1);
                if left == 0 {
                    return given;
                }
            };
            self.names.looked_at(name, unserved);
        }
        given
    }

    /// Whether the agent of this lease may have votes: a client only if it is stored that there may be guests.
    pub(super) fn serves(&mut self, generation: Generation) -> bool {
        let Some(lease) = self.leases.get(generation) else {
            return false;
        };
        if !lease.node.is_client() || self.setup.bugs.have(ProtocolBug::GuestsForgotten) {
            return true;
        }
        if self.guests.begin() {
            self.out.push(super::VoterOutput::StoreGuests(true));
        }
        self.guests.are_stored()
    }

    /// Why the voter gives no vote, if it does not.
    fn abstains(&self) -> Option<Reason> {
        match self.stage {
            Stage::Quarantine { .. } | Stage::Ready | Stage::Superseded { .. } => {
                Some(Reason::Quarantine)
            }
            Stage::Voting => None,
        }
    }

    pub(super) fn vote(&self, (generation, token): VoteId) -> Option<&Vote> {
        self.leases.get(generation)?.vote(token)
    }

    pub(super) fn add_vote(
        &mut self,
        id: VoteId,
        mode: Mode,
        (fence, clock): (Fence, u64),
        names: Names,
    ) {
        self.names.record(&names, (id, clock), mode, fence);
        let lease = self
            .leases
            .get_mut(id.0)
            .expect("only agents with a lease wait");
        if lease.node.is_client() {
            self.guests.voted();
        }
        lease.insert(id.1, Vote { mode, names });
    }

    pub(super) fn forget_names(&mut self, id: VoteId, vote: &Vote) {
        vote.names
            .iter()
            .for_each(|name| self.names.forget(name, id));
    }

    /// Takes a provisional vote of a lease back: its agent does not count it any more. The request waits again, because
    /// its agent may not know of the vote, unless its node is disconnected. Returns whether there was one.
    pub(super) fn take_back_one(&mut self, generation: Generation) -> bool {
        let lease = self.leases.get_mut(generation);
        let Some((token, request)) = lease.and_then(AgentLease::pop_provisional) else {
            return false;
        };
        let lease = self.leases.live(generation);
        let (vote, connected) = (lease.remove(token), lease.connected);
        let id = (generation, token);
        self.forget_names(id, &vote.expect("it is provisional"));
        if connected {
            self.names.wait(id, request);
        }
        true
    }

    /// Marks the votes of `name` as revoked. They stay, so no other request gets the name, until their agents unlock
    /// them or their leases expire.
    pub(super) fn revoke(&mut self, name: &Name) {
        for (generation, token) in self.names.votes_for(name) {
            // An expired lease whose votes are not removed yet.
            let Some(lease) = self.leases.get_mut(generation) else {
                continue;
            };
            let node = lease.node;
            if self.setup.bugs.have(ProtocolBug::RevokedForgotten) {
                let vote = lease.remove(token).expect("it has a vote");
                self.forget_names((generation, token), &vote);
            } else {
                lease.revoke(token);
            }
            // The answer to its next batch lists the revoked votes.
            self.send(node, Frame::Notice(self.notice(true)));
        }
    }

    /// Whether the stored mark covers `fence`, so that it may be given or recorded. Requests a higher mark when less
    /// than half a block is left above `fence`. Otherwise voters that each store one fence too late would hold requests
    /// up in turn. A start requests none, so starts without grants use up no fences.
    pub(super) fn mark_covers(&mut self, fence: Fence) -> bool {
        let covers = self.mark.covers(fence);
        if let Some(mark) = self.mark.next(fence, self.setup.rules.fence_block) {
            self.out.push(super::VoterOutput::Store(mark));
        }
        self.lacks_fences |= !covers;
        covers
    }
}
