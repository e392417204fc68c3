//! Held locks when the list of members changes: see `transition.rs`.

use super::super::transition::{Before, Transition, Votes};
use super::{Locks, VoterLocks};
use crate::members::{Member, MemberSet, Members};
use crate::message::Token;
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use std::collections::BTreeSet;
use std::time::Duration;

impl Locks {
    /// Adopts the next list. Each held lock is in transition, and has no votes. With `is_next`, the list is the one
    /// after the current one, so locks can be kept.
    pub(in super::super) fn adopt(
        &mut self,
        members: Members,
        quorum: usize,
        at_risk: Duration,
        is_next: bool,
    ) {
        let voters = self.members.iter();
        let valid = voters.map(|member| self.lease.valid(member)).collect();
        let mut transition = Transition::new(valid);
        for (token, lock) in &mut self.held {
            let standing = &lock.standing;
            let set = self.sets.get(&standing.votes());
            let (before, was_notified) = match standing.votes_count() {
                false => (None, self.transition.is_notified(*token)),
                true => (
                    is_next.then(|| Before {
                        votes: standing.votes(),
                        provisional: standing.provisional(),
                        end: standing.end().unwrap_or(Time(i64::MAX)),
                        quorum: match self.bugs.have(ProtocolBug::FewerKept) {
                            true => (standing.quorum() - 1).max(1),
                            false => standing.quorum(),
                        },
                    }),
                    set.is_some_and(|set| set.is_notified),
                ),
            };
            let ignores_end = match before {
                Some(_) => self.bugs.have(ProtocolBug::DeadlineOfUnasked),
                None => self.bugs.have(ProtocolBug::DeadlineAnew),
            };
            let deadline = match ignores_end {
                true => self.lease.until(standing.votes(), standing.quorum()),
                false => self.lease.held_until(standing),
            };
            standing.adopt(deadline, quorum);
            lock.asked = MemberSet::EMPTY;
            let votes = Votes {
                deadline,
                before,
                was_notified,
            };
            transition.insert(*token, votes);
        }
        if self.bugs.have(ProtocolBug::NewVotesCount) {
            transition.keep_all();
        }
        // The words of the lease stand for other voters from now on. See L4.
        self.lease.reset();
        let all: BTreeSet<Token> = self.held.keys().copied().collect();
        let continuing = match self.bugs.have(ProtocolBug::SettlesUnasserted) {
            true => BTreeSet::new(),
            false => all.clone(),
        };
        let voter = VoterLocks {
            lacking: all,
            continuing,
            ..VoterLocks::default()
        };
        self.voters = vec![voter; members.count()];
        (self.members, self.quorum, self.at_risk) = (members, quorum, at_risk);
        self.transition = transition;
        self.sets.clear();
        self.notified.clear();
        self.unchecked.clear();
        self.provisional.clear();
        self.with_margin = MemberSet::EMPTY;
    }

    /// A further session of `member` begins before the agent settled there in this list. Locks in transition continue,
    /// whether it has voted for them or not.
    pub(in super::super) fn begin_adopted(&mut self, member: Member) {
        self.forget(member);
        let in_transition = self.transition.tokens().collect();
        self.voters[member.place()].continuing = in_transition;
    }

    /// A voter of the list before is sealed. Returns the locks whose holders must be notified that they are at risk.
    pub(in super::super) fn seal(&mut self, voter: Member, now: Time) -> Vec<Token> {
        let kept = self.transition.seal(voter, now, self.bugs);
        self.move_those(kept, now)
    }

    /// Moves the kept locks with a quorum of live votes. Returns those whose holders must be notified.
    pub(in super::super) fn move_kept(&mut self, now: Time) -> Vec<Token> {
        let kept = self.transition.kept().collect();
        self.move_those(kept, now)
    }

    fn move_those(&mut self, mut tokens: Vec<Token>, now: Time) -> Vec<Token> {
        let is_live = |member: &Member| self.lease.valid(*member) > now;
        if self.members.iter().filter(is_live).count() < self.quorum {
            return Vec::new();
        }
        tokens.retain(|token| self.move_lock(*token, now));
        tokens
    }

    /// Moves a lock to the current list if it is kept, and a quorum of live votes is there. Returns whether the holder
    /// must be notified that the lock is at risk: the other holders with the same votes already were.
    pub(in super::super) fn move_lock(&mut self, token: Token, now: Time) -> bool {
        if !self.transition.is_kept(token) {
            return false;
        }
        let standing = &self.held[&token].standing;
        let votes = standing.votes();
        let live = votes
            .iter()
            .filter(|member| self.lease.valid(*member) > now);
        if live.count() < standing.quorum() {
            return false;
        }
        standing.count();
        let was_notified = self.transition.remove(token).expect("it is kept");
        self.join_set(token, votes) && !was_notified
    }

    /// Whether no lock is in transition.
    pub(in super::super) fn is_settled(&self) -> bool {
        self.transition.is_empty() || self.bugs.have(ProtocolBug::KeptEarly)
    }

    /// The voters of the list before whose votes would be kept if they were sealed now.
    pub(in super::super) fn unsealed(&self, now: Time) -> MemberSet {
        self.transition.unsealed(now)
    }
}
