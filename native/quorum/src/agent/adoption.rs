//! The agent takes another list of members.
//!
//! Its requests ask the new voters, with their old priorities. Its held locks are in transition: see `transition.rs`.
//! At each voter of the new list it asserts them before it settles, also while the voter is in quarantine. So a voter
//! that votes for others has the assertions of all agents that have settled there, and knows of the others that their
//! locks have ended.

use super::link::Link;
use super::output::{Adoption, Loss};
use super::Agent;
use crate::bounds::LONG_STEP;
use crate::members::{Member, MemberSet};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;

impl Agent {
    /// The list of the setup is provisional: until the agent adopts one, it sends nothing, and its requests wait.
    #[must_use]
    pub fn without_view(self) -> Agent {
        Agent {
            is_viewless: true,
            ..self
        }
    }

    /// Takes the next list of members. Places mean those of this list from now on. Before, send the outputs of earlier
    /// calls; and afterwards, [`receive`](Agent::receive) no frame that was sent to or from a voter of an earlier list.
    ///
    /// Held locks stay held until their deadline, and longer if they are kept: call [`Agent::sealed`]. Callers of
    /// [`unlock`](Agent::unlock) are answered, because no voter of the new list has a vote for their locks.
    pub fn adopt(&mut self, now: Time, adoption: Adoption) {
        self.advance(now);
        let Adoption {
            members,
            connected,
            rules,
            is_next,
        } = adoption;
        (self.setup.members, self.setup.rules) = (members, rules);
        self.is_viewless = false;
        self.locks
            .adopt(members, members.quorum(), rules.at_risk, is_next);
        let issued = self.unlocks.issued();
        let link = |member| Link::adopting(self.now, connected.contains(member), issued);
        self.links = members.iter().map(link).collect();
        if !self.setup.bugs.have(ProtocolBug::AttemptAcrossNumbers) {
            for request in self.requests.all_asking() {
                self.ask_all(request);
            }
        }
        self.count_unlocks();
        self.start();
    }

    /// As [`Agent::adopt`], for the list of another cluster, whose voters know nothing of this one: all held locks are
    /// lost.
    pub fn abandon(&mut self, now: Time, adoption: Adoption) {
        self.advance(now);
        let held: Vec<_> = self.locks.iter().map(|(attempt, _)| *attempt).collect();
        for attempt in held {
            self.lost(attempt, Loss::Quorum);
        }
        self.adopt(now, adoption);
    }

    /// This voter of the list before has executed its last batch of that list. A lock with a vote of it that still
    /// counts can rely on that vote from now on. Later calls for the same voter change nothing.
    pub fn sealed(&mut self, now: Time, voter: Member) {
        self.advance(now);
        for attempt in self.locks.seal(voter, self.now) {
            self.at_risk(attempt);
        }
    }

    /// The voters of the list before that are not sealed, as far as the agent knows, and that have votes which could
    /// still be kept.
    #[must_use]
    pub fn unsealed(&self, now: Time) -> MemberSet {
        self.locks.unsealed(now)
    }

    /// Whether a step that adopts a list may take longer than a millisecond: the agent has many locks and requests.
    pub(crate) fn is_large(&self) -> bool {
        self.locks.count() + self.requests.count() > LONG_STEP
    }

    /// Whether no held lock relies on voters of the list before.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.locks.is_settled()
    }

    /// Votes of a voter begin to count: kept locks may move.
    pub(super) fn move_kept(&mut self) {
        for attempt in self.locks.move_kept(self.now) {
            self.at_risk(attempt);
        }
    }
}
