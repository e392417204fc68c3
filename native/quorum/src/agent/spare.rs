//! The votes of a lock beyond its quorum.
//!
//! A lock begins with the votes of a quorum. One that is held for long asks the other voters of its names, too, with
//! [`Op::Assert`]. And if one of the voters that it needs has restarted, or may have, it asks the others first: from
//! the first batch in the new session on, the earlier votes do not count (G2). A voter in quarantine votes only for
//! locks that continue a vote (V3), so the other locks ask it when its quarantine is over.
//!
//! ```text
//!   agent                    m0         m1         m2
//!     | has votes of          x          x
//!     |                              restarts
//!     |<------ notice: another lifetime -|
//!     | Assert ---------------------------------->|
//!     |<------------------------------------ Yes -|     now it has three
//!     | batch -------------------------->|              the old vote of m1 is void
//! ```
//!
//! The old vote is good until then: the restarted voter grants nothing new before this agent has spoken to it, or
//! before its quarantine is over, which is longer than the old vote counts.

use super::locks::HeldLock;
use super::peer::{Peer, Repair};
use super::Agent;
use crate::members::Member;
use crate::message::{Op, Token, VoterState};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;

impl Agent {
    /// When the next batch for a voter must ask for the votes of locks that lack them: a lock begins with the votes of
    /// a quorum, and gets those of the other voters if it is held for long.
    pub(super) fn asserts_at(&self, member: Member, peer: &Peer) -> Option<Time> {
        let (_, oldest) = self.assertable(member, Token(0)).next()?;
        let at = oldest.since + self.setup.rules.attempt;
        peer.ready().then(|| at.max(peer.next_assert))
    }

    /// The locks from `from` on that may get the vote of a voter that they lack. While it is in quarantine, these are
    /// the locks that continue an earlier vote: see V3.
    pub(super) fn assertable(
        &self,
        member: Member,
        from: Token,
    ) -> impl Iterator<Item = (Token, &HeldLock)> {
        let in_quarantine = self.peers[member.place()].state == VoterState::Quarantined;
        let only_continuing = in_quarantine && !self.any_lock_continues();
        self.locks.lacking(member, from, only_continuing)
    }

    /// When the next batch for a voter is due.
    pub(super) fn speaks_at(&self, member: Member, peer: &Peer) -> Time {
        let has_ops = peer.has_ops() || peer.repair != Repair::None;
        let due = match self.asserts_at(member, peer) {
            _ if has_ops => Time::NEVER,
            Some(at) => at.min(peer.next_batch),
            None => peer.next_batch,
        };
        match peer.held_back {
            Some(until) if self.is_held_back(member) => due.max(until),
            _ => due,
        }
    }

    /// Whether locks still need the votes of an earlier lifetime of the voter.
    pub(super) fn is_held_back(&self, member: Member) -> bool {
        let until = self.peers[member.place()].held_back;
        until.is_some_and(|until| self.now < until) && self.locks.rests_on(member)
    }

    /// The votes of `member` may be gone soon. Locks that are lost without them ask the other voters. The agent speaks
    /// to the next lifetime of the voter later, because from then on the earlier votes do not count: see G2.
    pub(super) fn replace_votes_of(&mut self, member: Member) {
        if !self.locks.rests_on(member) {
            return;
        }
        for other in self.setup.members.iter().filter(|other| *other != member) {
            let asserts = self.assertable(other, Token(0)).next().is_some();
            let peer = &mut self.peers[other.place()];
            if peer.ready() && asserts {
                // A sync comes first. The locks are asserted with the next batch after it.
                peer.next_assert = self.now;
                if matches!(peer.repair, Repair::None | Repair::Assert(_)) {
                    peer.repair = Repair::Assert(Token(0));
                }
                let until = self.now + self.setup.rules.hedge_most;
                self.peers[member.place()].held_back = Some(until);
            }
        }
    }

    pub(super) fn vote(&mut self, member: Member, attempt: Token, given: bool) {
        if self.locks.vote(attempt, member, given) {
            self.at_risk(attempt);
        }
    }

    fn any_lock_continues(&self) -> bool {
        self.setup.bugs.have(ProtocolBug::AnyLockContinues)
    }

    /// Asks `member` for a vote for a held lock.
    pub(super) fn assertion(&mut self, member: Member, token: Token) -> Option<Op> {
        let continues = self.any_lock_continues() || self.locks.continues(member, token);
        let lock = self.locks.get_mut(token)?;
        let names = self.groups.served(&lock.names, member)?;
        lock.asked = lock.asked.with(member);
        let (mode, fence) = (lock.mode, lock.last);
        Some(Op::Assert {
            token,
            mode,
            fence,
            continues,
            names,
        })
    }
}
