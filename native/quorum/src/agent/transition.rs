//! Held locks *in transition* from one list of members to the next.
//!
//! ```text
//!   adopted ---> in transition ---> moved: an ordinary lock       kept, and a quorum of the new list votes for it
//!                      '----------> lost                          its deadline
//! ```
//!
//! A lock in transition is held until its *deadline*, when its votes of the list before end. Nothing extends it. In the
//! meantime it collects votes of the new list, which do not count yet. A voter of the list before is *sealed* when it
//! has executed its last batch of that list. A vote that still counts when the agent learns of this is *kept*: no other
//! request gets it any more. A lock with a quorum of kept votes is kept, and so no request can get a quorum of the list
//! before. Then it moves as soon as a quorum of the new list votes for it.
//!
//! A lock cannot be kept if its votes of the list before did not count, or if the agent missed a list in between.

use crate::members::{Member, MemberSet};
use crate::message::Token;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The votes of the list before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Before {
    pub(super) votes: MemberSet,
    /// Those of the votes that end at `end`.
    pub(super) provisional: MemberSet,
    pub(super) end: Time,
    pub(super) quorum: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lock {
    deadline: Time,
    /// `None` if it cannot be kept.
    before: Option<Before>,
    kept: MemberSet,
    /// Whether its holder was notified that it is at risk.
    is_notified: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Transition {
    /// When the lease of each voter of the list before ends.
    valid: Vec<Time>,
    /// Those with a vote of a lock that may be kept.
    voters: MemberSet,
    sealed: MemberSet,
    locks: BTreeMap<Token, Lock>,
    /// The locks that are kept.
    kept: BTreeSet<Token>,
    deadlines: BTreeSet<(Time, Token)>,
    /// The same, without those whose holders were notified.
    unnotified: BTreeSet<(Time, Token)>,
}

impl Transition {
    /// `valid` is when the lease of each voter of the list before ends.
    pub(super) fn new(valid: Vec<Time>) -> Transition {
        Transition {
            valid,
            ..Transition::default()
        }
    }

    pub(super) fn insert(
        &mut self,
        token: Token,
        deadline: Time,
        before: Option<Before>,
        is_notified: bool,
    ) {
        let votes = before.as_ref().map(|before| before.votes);
        self.voters = self.voters.or(votes.unwrap_or_default());
        self.deadlines.insert((deadline, token));
        if !is_notified {
            self.unnotified.insert((deadline, token));
        }
        let lock = Lock {
            deadline,
            before,
            kept: MemberSet::EMPTY,
            is_notified,
        };
        self.locks.insert(token, lock);
    }

    /// Removes a lock that has moved or is gone. Returns whether its holder was notified that it is at risk, if the
    /// lock was in transition.
    pub(super) fn remove(&mut self, token: Token) -> Option<bool> {
        let lock = self.locks.remove(&token)?;
        self.kept.remove(&token);
        self.deadlines.remove(&(lock.deadline, token));
        self.unnotified.remove(&(lock.deadline, token));
        Some(lock.is_notified)
    }

    pub(super) fn contains(&self, token: Token) -> bool {
        self.locks.contains_key(&token)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    pub(super) fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.locks.keys().copied()
    }

    pub(super) fn is_notified(&self, token: Token) -> bool {
        self.locks.get(&token).is_some_and(|lock| lock.is_notified)
    }

    /// This voter of the list before is sealed, as the agent learns at `now`. Its votes that still count are kept.
    /// Returns the locks that are kept by that.
    pub(super) fn seal(&mut self, voter: Member, now: Time) -> Vec<Token> {
        let valid = self.valid.get(voter.place());
        if self.sealed.contains(voter) || valid.is_none_or(|valid| *valid <= now) {
            return Vec::new();
        }
        self.sealed = self.sealed.with(voter);
        let mut kept = Vec::new();
        for (token, lock) in &mut self.locks {
            let counts = |before: &&Before| {
                let ends = before.provisional.contains(voter) && before.end <= now;
                before.votes.contains(voter) && !ends
            };
            let Some(before) = lock.before.as_ref().filter(counts) else {
                continue;
            };
            lock.kept = lock.kept.with(voter);
            if lock.kept.len() == before.quorum {
                kept.push(*token);
            }
        }
        self.kept.extend(&kept);
        kept
    }

    /// The voters with a vote that would be kept if they were sealed now.
    pub(super) fn unsealed(&self, now: Time) -> MemberSet {
        let voters = self.voters.minus(self.sealed).iter();
        voters
            .filter(|voter| self.valid[voter.place()] > now)
            .collect()
    }

    pub(super) fn is_kept(&self, token: Token) -> bool {
        self.kept.contains(&token)
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = Token> + '_ {
        self.kept.iter().copied()
    }

    /// The locks whose deadline has passed.
    pub(super) fn expired(&self, now: Time) -> impl Iterator<Item = Token> + '_ {
        let expired = self.deadlines.iter();
        expired
            .take_while(move |(deadline, _)| *deadline <= now)
            .map(|(_, token)| *token)
    }

    /// Takes the locks with a deadline after `now` and before `until`, once. Their holders must be notified.
    pub(super) fn at_risk(&mut self, now: Time, until: Time) -> Vec<Token> {
        let mut at_risk = Vec::new();
        while let Some((deadline, token)) = self.unnotified.first().copied() {
            if deadline >= until {
                break;
            }
            self.unnotified.pop_first();
            let lock = self.locks.get_mut(&token).expect("it has a deadline");
            lock.is_notified = true;
            at_risk.extend((deadline > now).then_some(token));
        }
        at_risk
    }

    /// When something must be done about one, if a lock is at risk when less than `at_risk` is left.
    pub(super) fn deadline(&self, at_risk: Duration) -> Option<Time> {
        let left = i64::try_from(at_risk.as_nanos()).unwrap_or(i64::MAX);
        let unnotified = self.unnotified.first();
        let unnotified =
            unnotified.map(|(at, _)| Time(at.0.saturating_sub(left).saturating_add(1)));
        let expires = self.deadlines.first().map(|(at, _)| *at);
        unnotified.into_iter().chain(expires).min()
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        for valid in &mut self.valid {
            *valid = valid.relative_to(now);
        }
        for lock in self.locks.values_mut() {
            lock.deadline = lock.deadline.relative_to(now);
            if let Some(before) = &mut lock.before {
                before.end = before.end.relative_to(now);
            }
        }
        let deadlines = self.locks.iter();
        self.deadlines = deadlines
            .map(|(token, lock)| (lock.deadline, *token))
            .collect();
        let unnotified = self.locks.iter().filter(|(_, lock)| !lock.is_notified);
        self.unnotified = unnotified
            .map(|(token, lock)| (lock.deadline, *token))
            .collect();
    }
}
