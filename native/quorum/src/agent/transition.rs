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
//! Locks with the same votes have the same deadline, and are kept by the same seals: they are one *group*.
//!
//! A lock cannot be kept if its votes of the list before did not count, or if the agent missed a list in between.

use crate::members::{Member, MemberSet};
use crate::message::Token;
use crate::protocol_bug::{ProtocolBug, ProtocolBugs};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The votes of the list before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Before {
    pub(super) votes: MemberSet,
    /// Those of the votes that end at `end`.
    pub(super) provisional: MemberSet,
    pub(super) end: Time,
    pub(super) quorum: usize,
}

/// What locks of one group have in common. In the order of the deadlines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Votes {
    pub(super) deadline: Time,
    /// `None` if they cannot be kept.
    pub(super) before: Option<Before>,
    /// Whether their holders were notified in the list before that they are at risk.
    pub(super) was_notified: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Group {
    tokens: BTreeSet<Token>,
    kept: MemberSet,
    /// Whether their holders were notified that they are at risk.
    is_notified: bool,
}

impl Group {
    fn is_kept(&self, votes: &Votes) -> bool {
        let before = votes.before.as_ref();
        before.is_some_and(|before| self.kept.len() >= before.quorum)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Transition {
    /// When the lease of each voter of the list before ends.
    valid: Vec<Time>,
    /// Those with a vote of a lock that may be kept.
    voters: MemberSet,
    sealed: MemberSet,
    /// None is empty.
    groups: BTreeMap<Votes, Group>,
}

impl Transition {
    /// `valid` is when the lease of each voter of the list before ends.
    pub(super) fn new(valid: Vec<Time>) -> Transition {
        Transition {
            valid,
            ..Transition::default()
        }
    }

    pub(super) fn insert(&mut self, token: Token, votes: Votes) {
        let before = votes.before.as_ref().map(|before| before.votes);
        self.voters = self.voters.or(before.unwrap_or_default());
        let is_notified = votes.was_notified;
        let group = self.groups.entry(votes).or_insert_with(|| Group {
            tokens: BTreeSet::new(),
            kept: MemberSet::EMPTY,
            is_notified,
        });
        group.tokens.insert(token);
    }

    /// Removes a lock that has moved or is gone. Returns whether its holder was notified that it is at risk, if the
    /// lock was in transition.
    pub(super) fn remove(&mut self, token: Token) -> Option<bool> {
        let mut groups = self.groups.iter_mut();
        let (votes, group) = groups.find(|(_, group)| group.tokens.contains(&token))?;
        group.tokens.remove(&token);
        let is_notified = group.is_notified;
        if group.tokens.is_empty() {
            let votes = votes.clone();
            self.groups.remove(&votes);
        }
        Some(is_notified)
    }

    fn find(&self, token: Token) -> Option<(&Votes, &Group)> {
        let mut groups = self.groups.iter();
        groups.find(|(_, group)| group.tokens.contains(&token))
    }

    pub(super) fn contains(&self, token: Token) -> bool {
        self.find(token).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        let groups = self.groups.values();
        groups.flat_map(|group| group.tokens.iter().copied())
    }

    pub(super) fn is_notified(&self, token: Token) -> bool {
        self.find(token).is_some_and(|(_, group)| group.is_notified)
    }

    /// This voter of the list before is sealed, as the agent learns at `now`. Its votes that still count are kept.
    /// Returns the locks that are kept by that.
    pub(super) fn seal(&mut self, voter: Member, now: Time, bugs: ProtocolBugs) -> Vec<Token> {
        let valid = self.valid.get(voter.place());
        let is_late = bugs.have(ProtocolBug::KeptLate);
        let counts = valid.is_some_and(|valid| *valid > now || is_late);
        if self.sealed.contains(voter) || !counts || bugs.have(ProtocolBug::NoKept) {
            return Vec::new();
        }
        self.sealed = self.sealed.with(voter);
        let mut kept = Vec::new();
        for (votes, group) in &mut self.groups {
            let counts = |before: &&Before| {
                let is_provisional = before.provisional.contains(voter);
                let ends = before.end <= now || bugs.have(ProtocolBug::UnaskedNotKept);
                before.votes.contains(voter) && !(is_provisional && ends)
            };
            let was_kept = group.is_kept(votes);
            if votes.before.as_ref().is_some_and(|before| counts(&before)) {
                group.kept = group.kept.with(voter);
            }
            if group.is_kept(votes) && !was_kept {
                kept.extend(&group.tokens);
            }
        }
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
    pub(super) fn keep_all(&mut self) {
        for group in self.groups.values_mut() {
            group.kept = MemberSet::from_bits(0xffff);
        }
    }

    pub(super) fn is_kept(&self, token: Token) -> bool {
        self.find(token)
            .is_some_and(|(votes, group)| group.is_kept(votes))
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = Token> + '_ {
        let groups = self.groups.iter();
        let kept = groups.filter(|(votes, group)| group.is_kept(votes));
        kept.flat_map(|(_, group)| group.tokens.iter().copied())
    }

    /// The locks whose deadline has passed.
    pub(super) fn expired(&self, now: Time) -> impl Iterator<Item = Token> + '_ {
        let groups = self.groups.iter();
        groups
            .take_while(move |(votes, _)| votes.deadline <= now)
            .flat_map(|(_, group)| group.tokens.iter().copied())
    }

    /// Takes the locks with a deadline after `now` and before `until`, once. Their holders must be notified.
    pub(super) fn at_risk(&mut self, now: Time, until: Time) -> Vec<Token> {
        let mut at_risk = Vec::new();
        let groups = self.groups.iter_mut();
        for (votes, group) in groups.take_while(|(votes, _)| votes.deadline < until) {
            if !group.is_notified && votes.deadline > now {
                at_risk.extend(&group.tokens);
            }
            group.is_notified = true;
        }
        at_risk
    }

    /// When something must be done about one, if a lock is at risk when less than `at_risk` is left.
    pub(super) fn deadline(&self, at_risk: Duration) -> Option<Time> {
        let left = i64::try_from(at_risk.as_nanos()).unwrap_or(i64::MAX);
        let mut groups = self.groups.iter();
        let expires = groups.clone().next().map(|(votes, _)| votes.deadline);
        let unnotified = groups.find(|(_, group)| !group.is_notified);
        let notify = unnotified
            .map(|(votes, _)| Time(votes.deadline.0.saturating_sub(left).saturating_add(1)));
        notify.into_iter().chain(expires).min()
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
        let votes = |deadline, before| Votes {
            deadline: Time(deadline),
            before,
            was_notified: false,
        };
        transition.insert(Token(1), votes(30, Some(before)));
        transition.insert(Token(2), votes(50, None));
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
        // Nor if they were notified in the list before.
        let votes = Votes {
            deadline: Time(30),
            before: None,
            was_notified: true,
        };
        transition.insert(Token(3), votes);
        assert_eq!(transition.deadline(left), Some(Time(30)));
        assert_eq!(transition.at_risk(Time(26), Time(31)), []);
        assert_eq!(transition.remove(Token(3)), Some(true));
    }
}
