//! The locks that this node holds.
//!
//! Locks with the same votes expire at the same moment, and there are few different sets of votes. Locks are
//! therefore counted per set of votes. A check whether any of 100,000 locks is at risk reads only these sets.

use crate::lease::{Lease, Standing};
use crate::members::{Member, MemberSet};
use crate::message::{Digest, Fence, Mode, Names, Token};
use crate::time::Time;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HeldLock {
    /// The token that the holder has. Voters, and this table, know the lock by the token of the attempt.
    pub(super) token: Token,
    pub(super) names: Names,
    pub(super) mode: Mode,
    pub(super) fence: Fence,
    /// The last fence of the run: the fence that voters have.
    pub(super) last: Fence,
    pub(super) since: Time,
    /// Until when it may be passed on, if another node waits for it.
    pub(super) pass_until: Option<Time>,
    pub(super) standing: Arc<Standing>,
}

/// The result of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Released {
    /// Another request of this node got the lock.
    Passed,
    VotesReleased,
}

/// The voters of a lock, and how many votes it needs.
type Votes = (MemberSet, usize);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct VoteGroup {
    count: usize,
    digest: Digest,
    /// Whether the holders were notified that their locks are at risk.
    notified: bool,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Locks {
    pub(super) lease: Arc<Lease>,
    /// The held locks by attempt.
    held: BTreeMap<Token, HeldLock>,
    /// The attempt of each lock that was passed on, by its current token.
    passed: BTreeMap<Token, Token>,
    groups: BTreeMap<Votes, VoteGroup>,
}

impl Locks {
    pub(super) fn new() -> Locks {
        Locks {
            lease: Arc::new(Lease::new()),
            held: BTreeMap::new(),
            passed: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }

    /// The attempt of a held lock, by the token that the holder has.
    pub(super) fn attempt_of(&self, token: Token) -> Option<Token> {
        let attempt = self.passed.get(&token).copied().unwrap_or(token);
        let lock = self.held.get(&attempt)?;
        (lock.token == token).then_some(attempt)
    }

    /// The token that the holder of an attempt's lock has.
    pub(super) fn token_of(&self, attempt: Token) -> Token {
        self.held.get(&attempt).map_or(attempt, |lock| lock.token)
    }

    /// Updates the index after the lock of `attempt` got a new token.
    pub(super) fn index_passed(&mut self, old: Token, new: Token, attempt: Token) {
        self.passed.remove(&old);
        self.passed.insert(new, attempt);
    }

    pub(super) fn insert(&mut self, token: Token, lock: HeldLock) {
        self.groups
            .entry(votes(&lock.standing))
            .or_default()
            .add(token);
        self.held.insert(token, lock);
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<HeldLock> {
        let lock = self.held.remove(&token)?;
        self.passed.remove(&lock.token);
        self.discount(token, votes(&lock.standing));
        Some(lock)
    }

    pub(super) fn get(&self, token: Token) -> Option<&HeldLock> {
        self.held.get(&token)
    }

    /// The caller must not change the lock's votes: they are counted in `groups`.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut HeldLock> {
        self.held.get_mut(&token)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Token, &HeldLock)> {
        self.held.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.passed.is_empty()
    }

    /// The locks with attempts from `from` on, in ascending order.
    pub(super) fn range(&self, from: Token) -> impl Iterator<Item = (Token, &HeldLock)> {
        self.held
            .range((Bound::Included(from), Bound::Unbounded))
            .map(|(token, lock)| (*token, lock))
    }

    /// Adds or removes the vote of `member`. Returns whether the holder must be notified that the lock is at risk: the
    /// other holders with the same votes already were.
    pub(super) fn vote(&mut self, token: Token, member: Member, granted: bool) -> bool {
        let Some(lock) = self.held.get(&token) else {
            return false;
        };
        let (old, quorum) = votes(&lock.standing);
        let new = if granted {
            old.with(member)
        } else {
            old.without(member)
        };
        if new == old {
            return false;
        }
        lock.standing.set(new);
        let notified = self.discount(token, (old, quorum));
        let groups = self.groups.entry((new, quorum)).or_default();
        groups.add(token);
        groups.notified && !notified
    }

    /// Removes all votes of `member`, which has forgotten them.
    pub(super) fn forgotten(&mut self, member: Member) {
        for lock in self.held.values() {
            lock.standing.set(lock.standing.votes().without(member));
        }
        let mut groups: BTreeMap<Votes, VoteGroup> = BTreeMap::new();
        for ((set, quorum), old) in std::mem::take(&mut self.groups) {
            let new = groups.entry((set.without(member), quorum)).or_default();
            // If only one of the merged sets was notified, all its holders are notified again.
            new.notified = old.notified && (new.count == 0 || new.notified);
            new.count += old.count;
            new.digest = new.digest.plus(old.digest);
        }
        self.groups = groups;
    }

    /// The digest of the locks that `member` has a vote for.
    pub(super) fn digest(&self, member: Member) -> Digest {
        let voted = self
            .groups
            .iter()
            .filter(|((set, _), _)| set.contains(member));
        voted.fold(Digest::default(), |sum, (_, groups)| {
            sum.plus(groups.digest)
        })
    }

    /// Whether any lock lacks the vote of `member`.
    pub(super) fn lacks(&self, member: Member) -> bool {
        self.groups.keys().any(|(set, _)| !set.contains(member))
    }

    /// The locks whose lease has expired at `now`.
    pub(super) fn expired(&self, now: Time) -> Vec<Token> {
        self.among(|(set, quorum), _| self.lease.until(*set, *quorum) <= now)
    }

    /// The locks with less than `left` of their lease, whose holders were not notified yet.
    pub(super) fn at_risk(&mut self, now: Time, left: Duration) -> Vec<Token> {
        let at_risk = |votes: &Votes, lease: &Lease| lease.until(votes.0, votes.1) < now + left;
        let tokens = self.among(|votes, groups| !groups.notified && at_risk(votes, &self.lease));
        for (votes, groups) in &mut self.groups {
            groups.notified = at_risk(votes, &self.lease);
        }
        tokens
    }

    /// When the next lock expires or becomes at risk, if nothing is renewed.
    pub(super) fn deadline(&self, left: Duration) -> Option<Time> {
        let next = |((set, quorum), groups): (&Votes, &VoteGroup)| {
            let until = self.lease.until(*set, *quorum);
            let before = i64::try_from(left.as_nanos()).unwrap_or(i64::MAX);
            if groups.notified {
                until
            } else {
                Time(until.0.saturating_sub(before).saturating_add(1))
            }
        };
        self.groups.iter().map(next).min()
    }

    fn among(&self, which: impl Fn(&Votes, &VoteGroup) -> bool) -> Vec<Token> {
        let sets: Vec<_> = self
            .groups
            .iter()
            .filter(|(votes, groups)| which(votes, groups))
            .map(|(votes, _)| *votes)
            .collect();
        if sets.is_empty() {
            return Vec::new();
        }
        let locks = self
            .held
            .iter()
            .filter(|(_, lock)| sets.contains(&votes(&lock.standing)));
        locks.map(|(token, _)| *token).collect()
    }

    /// Removes a lock from the count of its set. Returns whether the holders of the set were notified.
    fn discount(&mut self, token: Token, votes: Votes) -> bool {
        let Some(groups) = self.groups.get_mut(&votes) else {
            return false;
        };
        let notified = groups.notified;
        groups.count -= 1;
        groups.digest = groups.digest.without(token);
        if groups.count == 0 {
            self.groups.remove(&votes);
        }
        notified
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time, members: impl Iterator<Item = Member>) {
        for member in members {
            self.lease
                .set(member, self.lease.valid(member).relative_to(now));
        }
        for lock in self.held.values_mut() {
            lock.since = Time(0);
            lock.pass_until = lock.pass_until.map(|until| until.relative_to(now));
        }
    }
}

impl VoteGroup {
    fn add(&mut self, token: Token) {
        self.count += 1;
        self.digest = self.digest.with(token);
    }
}

fn votes(standing: &Standing) -> Votes {
    (standing.votes(), standing.quorum())
}

// A copied agent must have its own standings and lease, because the original changes them.
impl Clone for Locks {
    fn clone(&self) -> Locks {
        let own = |lock: &HeldLock| HeldLock {
            standing: Arc::new(Standing::clone(&lock.standing)),
            ..lock.clone()
        };
        Locks {
            lease: Arc::new(Lease::clone(&self.lease)),
            held: self
                .held
                .iter()
                .map(|(token, lock)| (*token, own(lock)))
                .collect(),
            passed: self.passed.clone(),
            groups: self.groups.clone(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::message::Name;

    const LEFT: Duration = Duration::from_nanos(10);

    fn insert(locks: &mut Locks, token: u64, votes: u16) {
        let lock = HeldLock {
            token: Token(token),
            names: Name::new(&token.to_be_bytes()).unwrap().into(),
            mode: Mode::Write,
            fence: Fence(token),
            last: Fence(token),
            since: Time(0),
            pass_until: None,
            standing: Arc::new(Standing::new(MemberSet::from_bits(votes), 2)),
        };
        locks.insert(Token(token), lock);
    }

    /// Three voters, of which the middle one has not renewed its votes. Lock 1 has the votes of the first two, and its
    /// holder was notified. Lock 2 has all three.
    fn first_at_risk() -> Locks {
        let mut locks = Locks::new();
        for (place, until) in [100, 10, 100].into_iter().enumerate() {
            locks.lease.set(Member::at(place).unwrap(), Time(until));
        }
        insert(&mut locks, 1, 0b011);
        insert(&mut locks, 2, 0b111);
        assert_eq!(locks.at_risk(Time(5), LEFT), [Token(1)]);
        locks
    }

    /// The last voter forgets its votes. Both locks then have the same votes.
    #[test]
    fn a_lock_whose_votes_become_those_of_a_lock_at_risk_is_at_risk() {
        let mut locks = first_at_risk();
        locks.forgotten(Member::at(2).unwrap());
        assert!(locks.deadline(LEFT) <= Some(Time(5)));
        assert!(locks.at_risk(Time(5), LEFT).contains(&Token(2)));
        assert_eq!(locks.at_risk(Time(5), LEFT), []);
    }

    /// The last voter loses its vote for the second lock only.
    #[test]
    fn a_lock_that_joins_a_lock_at_risk_is_at_risk() {
        let mut locks = first_at_risk();
        let last = Member::at(2).unwrap();
        assert!(locks.vote(Token(2), last, false));
        // Its holder is notified now, and not again.
        assert!(!locks.vote(Token(2), last, false));
        assert_eq!(locks.at_risk(Time(5), LEFT), []);
    }
}
