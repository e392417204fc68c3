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
use crate::protocol_bug::{ProtocolBug, ProtocolBugs};
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
    pub(super) fn seal(&mut self, voter: Member, now: Time, bugs: ProtocolBugs) -> Vec<Token> {
        let valid = self.valid.get(voter.place());
        let counts = valid.is_some_and(|valid| *valid > now);
        if self.sealed.contains(voter) || !counts || bugs.have(ProtocolBug::NoKept) {
            return Vec::new();
        }
        self.sealed = self.sealed.with(voter);
        let mut kept = Vec::new();
        for (token, lock) in &mut self.locks {
            let counts = |before: &&Before| {
                let is_provisional = before.provisional.contains(voter);
                let ends = before.end <= now || bugs.have(ProtocolBug::UnaskedNotKept);
                before.votes.contains(voter) && !(is_provisional && ends)
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

    /// Only for [`ProtocolBug::NewVotesCount`].
    pub(super) fn keep(&mut self, token: Token) {
        self.kept.insert(token);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock with three votes of the list before. The lease of the last voter ends first, and the vote of the first
    /// one is provisional.
    fn three_votes() -> (Transition, [Member; 3]) {
        let mut transition = Transition::new(vec![Time(50), Time(50), Time(30)]);
        let before = Before {
            votes: MemberSet::from_bits(0b111),
            provisional: MemberSet::from_bits(0b001),
            end: Time(20),
            quorum: 2,
        };
        transition.insert(Token(1), Time(30), Some(before), false);
        transition.insert(Token(2), Time(50), None, false);
        (
            transition,
            [0, 1, 2].map(|place| Member::at(place).unwrap()),
        )
    }

    #[test]
    fn a_vote_is_kept_while_it_counts() {
        for (place, other, last) in [(0, 1, 19), (1, 2, 49), (2, 1, 29)] {
            for (now, is_kept) in [(last, true), (last + 1, false)] {
                let (mut transition, voters) = three_votes();
                assert_eq!(
                    transition.seal(voters[other], Time(0), ProtocolBugs::NONE),
                    []
                );
                transition.seal(voters[place], Time(now), ProtocolBugs::NONE);
                assert_eq!(transition.is_kept(Token(1)), is_kept, "{place}");
            }
        }
    }

    #[test]
    fn each_voter_is_sealed_once() {
        let (mut transition, [first, second, last]) = three_votes();
        assert_eq!(transition.unsealed(Time(0)).bits(), 0b111);
        assert_eq!(transition.unsealed(Time(30)).bits(), 0b011);
        assert_eq!(transition.seal(second, Time(0), ProtocolBugs::NONE), []);
        assert_eq!(transition.seal(second, Time(0), ProtocolBugs::NONE), []);
        assert_eq!(transition.unsealed(Time(0)).bits(), 0b101);
        assert_eq!(
            transition.seal(last, Time(0), ProtocolBugs::NONE),
            [Token(1)]
        );
        assert_eq!(transition.seal(first, Time(0), ProtocolBugs::NONE), []);
        assert!(transition.is_kept(Token(1)) && !transition.is_kept(Token(2)));
        // Not a voter of the list before.
        assert_eq!(
            transition.seal(Member::at(3).unwrap(), Time(0), ProtocolBugs::NONE),
            []
        );
    }

    #[test]
    fn holders_are_notified_once_and_only_before_the_deadline() {
        let (mut transition, _) = three_votes();
        let left = Duration::from_nanos(5);
        assert_eq!(transition.deadline(left), Some(Time(26)));
        assert_eq!(transition.at_risk(Time(25), Time(30)), []);
        assert_eq!(transition.at_risk(Time(26), Time(31)), [Token(1)]);
        assert_eq!(transition.at_risk(Time(26), Time(31)), []);
        assert_eq!(transition.deadline(left), Some(Time(30)));
        assert_eq!(transition.expired(Time(29)).count(), 0);
        assert!(transition.expired(Time(30)).eq([Token(1)]));
        assert_eq!(transition.remove(Token(1)), Some(true));
        assert_eq!(transition.at_risk(Time(50), Time(55)), []);
        assert_eq!(transition.remove(Token(2)), Some(true));
        assert!(transition.is_empty() && transition.deadline(left).is_none());
    }
}
