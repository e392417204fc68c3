//! The locks that this node holds.
//!
//! Locks with the same votes expire at the same moment. They are therefore kept in *sets* of locks with the same votes.
//! There may be thousands of sets if names have different voters. So a set is not looked at while voters renew its
//! votes. A voter is *sound* while at least `at_risk` of its lease is left. The locks of a set are not at risk while
//! its sound voters contain a quorum of each group. When a voter is no longer sound, the agent looks at the sets whose
//! sound voters no longer do.

use crate::groups::Quorums;
use crate::lease::{Lease, Standing};
use crate::members::{Member, MemberSet};
use crate::message::{Digest, Fence, Mode, Names, Token};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
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
    /// The voters that may have a vote or a position for it.
    pub(super) asked: MemberSet,
    pub(super) standing: Arc<Standing>,
}

/// The result of a release.
pub(super) enum Released {
    /// Another request of this node got the lock.
    Passed,
    VotesReleased(HeldLock),
}

/// The voters of a lock, and the quorums that it needs.
type Votes = (MemberSet, Quorums);

/// The locks with the same votes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LockSet {
    tokens: BTreeSet<Token>,
    /// Whether their holders were notified that they are at risk.
    is_notified: bool,
}

/// What a voter has of the locks that it may vote for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct VoterLocks {
    /// Of the locks that it has a vote for.
    digest: Digest,
    /// The locks without its vote.
    lacking: BTreeSet<Token>,
    /// Of these, the locks with a vote of its earlier lifetime that still counted when the session began.
    continuing: BTreeSet<Token>,
}

impl VoterLocks {
    /// Adds a lock that it has `voted` for, or has not.
    fn add(&mut self, token: Token, voted: bool) {
        if voted {
            self.digest = self.digest.with(token);
        } else {
            self.lacking.insert(token);
        }
    }

    fn remove(&mut self, token: Token, voted: bool) {
        if voted {
            self.digest = self.digest.without(token);
        } else {
            self.lacking.remove(&token);
            self.continuing.remove(&token);
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Locks {
    pub(super) lease: Arc<Lease>,
    /// The held locks by attempt.
    held: BTreeMap<Token, HeldLock>,
    /// The attempt of each lock that was passed on, by its current token.
    passed: BTreeMap<Token, Token>,
    sets: BTreeMap<Votes, LockSet>,
    /// The sets whose holders were notified that their locks are at risk.
    notified: BTreeSet<Votes>,
    /// The other sets whose sound voters contain no quorum of each group: to look at next.
    doubtful: BTreeSet<Votes>,
    /// The voters that were sound at the last look.
    sound: MemberSet,
    /// In the order of the member list.
    voters: Vec<VoterLocks>,
    /// A lock is at risk when less than this is left of its lease.
    at_risk: Duration,
}

/// Locks that [`Locks::look`] has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) expired: Vec<Token>,
    /// Their holders must be notified.
    pub(super) at_risk: Vec<Token>,
}

impl Locks {
    pub(super) fn new(members: usize, at_risk: Duration) -> Locks {
        Locks {
            lease: Arc::new(Lease::new()),
            held: BTreeMap::new(),
            passed: BTreeMap::new(),
            sets: BTreeMap::new(),
            notified: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            sound: MemberSet::EMPTY,
            voters: vec![VoterLocks::default(); members],
            at_risk,
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

    /// Returns whether the holder must be notified that the lock is at risk: the other holders with the same votes
    /// already were.
    pub(super) fn insert(&mut self, token: Token, lock: HeldLock, now: Time) -> bool {
        let (votes, quorums) = votes(&lock.standing);
        let until = self.lease.until(votes, &quorums);
        for member in quorums.voters().iter() {
            self.voters[member.place()].add(token, votes.contains(member));
        }
        self.held.insert(token, lock);
        self.join_set(token, (votes, quorums)) && until < now + self.at_risk
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<HeldLock> {
        let lock = self.held.remove(&token)?;
        self.passed.remove(&lock.token);
        let (votes, quorums) = votes(&lock.standing);
        for member in quorums.voters().iter() {
            self.voters[member.place()].remove(token, votes.contains(member));
        }
        self.leave_set(token, &(votes, quorums));
        Some(lock)
    }

    pub(super) fn get(&self, token: Token) -> Option<&HeldLock> {
        self.held.get(&token)
    }

    /// The caller must not change the lock's votes: use [`Locks::vote`].
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
        let (old, quorums) = votes(&lock.standing);
        if old.contains(member) == granted || !quorums.voters().contains(member) {
            return false;
        }
        let voter = &mut self.voters[member.place()];
        voter.remove(token, !granted);
        voter.add(token, granted);
        let new = if granted {
            old.with(member)
        } else {
            old.without(member)
        };
        lock.standing.set(new);
        let (from, to) = ((old, quorums.clone()), (new, quorums));
        let was_notified = self.leave_set(token, &from);
        self.join_set(token, to) && !was_notified
    }

    /// Removes all votes of `member`, which has forgotten them. Those that count at `now` can be continued.
    pub(super) fn forgotten(&mut self, member: Member, now: Time) {
        let count = self.lease.valid(member) > now;
        let voted = |(_, lock): &(&Token, &HeldLock)| lock.standing.votes().contains(member);
        let tokens = self.held.iter().filter(voted).map(|(token, lock)| {
            lock.standing.set(lock.standing.votes().without(member));
            *token
        });
        // In ascending order, so this takes linear time.
        let mut forgotten: BTreeSet<Token> = tokens.collect();
        let voter = &mut self.voters[member.place()];
        voter.continuing.clear();
        if count {
            voter.continuing.clone_from(&forgotten);
        }
        voter.lacking.append(&mut forgotten);
        voter.digest = Digest::default();
        let with = |(votes, _): &&Votes| votes.contains(member);
        for from in self.sets.keys().filter(with).cloned().collect::<Vec<_>>() {
            let Some(mut set) = self.take_set(&from) else {
                continue;
            };
            let to = (from.0.without(member), from.1);
            if let Some(mut other) = self.take_set(&to) {
                // If only one of the two was notified, all its holders are notified again.
                set.is_notified &= other.is_notified;
                set.tokens.append(&mut other.tokens);
            }
            self.put_set(to, set);
        }
    }

    /// The digest of the locks that `member` has a vote for.
    pub(super) fn digest(&self, member: Member) -> Digest {
        self.voters[member.place()].digest
    }

    /// The locks without the vote of `member`, from `from` on: all of them, or those that continue an earlier vote.
    pub(super) fn lacking(
        &self,
        member: Member,
        from: Token,
        only_continuing: bool,
    ) -> impl Iterator<Item = (Token, &HeldLock)> {
        let voter = &self.voters[member.place()];
        let tokens = match only_continuing {
            true => &voter.continuing,
            false => &voter.lacking,
        };
        let tokens = tokens.range(from..);
        tokens.map(|token| (*token, self.held.get(token).expect("it is held")))
    }

    /// Whether a lock without the vote of `member` continues an earlier one.
    pub(super) fn continues(&self, member: Member, token: Token) -> bool {
        self.voters[member.place()].continuing.contains(&token)
    }

    /// Whether any lock is lost without the votes of `member`.
    pub(super) fn rests_on(&self, member: Member) -> bool {
        let mut sets = self.sets.keys();
        sets.any(|(votes, quorums)| {
            votes.contains(member) && !quorums.met_by(votes.without(member))
        })
    }

    /// The locks whose lease has expired at `now`, and those that are at risk since the last call. The caller removes
    /// the expired ones.
    pub(super) fn look(&mut self, now: Time) -> Ending {
        let mut ending = Ending::default();
        let sound = self.sound_at(now);
        let is_less = !self.sound.minus(sound).is_empty();
        self.sound = sound;
        let mut due = std::mem::take(&mut self.doubtful);
        due.extend(self.notified.iter().cloned());
        if is_less {
            let doubtful = self.sets.keys().filter(|votes| !self.is_sound(votes));
            due.extend(doubtful.cloned());
        }
        for votes in due {
            let until = self.lease.until(votes.0, &votes.1);
            let Some(mut set) = self.take_set(&votes) else {
                continue;
            };
            if until <= now {
                ending.expired.extend(&set.tokens);
            } else if until >= now + self.at_risk {
                set.is_notified = false;
            } else if !set.is_notified {
                set.is_notified = true;
                ending.at_risk.extend(&set.tokens);
            }
            self.put_set(votes, set);
        }
        ending.expired.sort_unstable();
        ending.at_risk.sort_unstable();
        ending
    }

    /// When to call [`Locks::look`] if nothing is renewed.
    pub(super) fn deadline(&self) -> Option<Time> {
        if self.sets.is_empty() {
            return None;
        }
        let notified = self.notified.iter();
        let expires = notified.map(|(votes, quorums)| self.lease.until(*votes, quorums));
        let left = i64::try_from(self.at_risk.as_nanos()).unwrap_or(i64::MAX);
        let voters = self.sound.iter().map(|member| self.lease.valid(member));
        let not_sound = voters.map(|until| Time(until.0.saturating_sub(left).saturating_add(1)));
        let doubtful = (!self.doubtful.is_empty()).then_some(Time::NEVER);
        expires.chain(not_sound).chain(doubtful).min()
    }

    /// The voters whose lease lasts for so long that their votes put no lock at risk.
    fn sound_at(&self, now: Time) -> MemberSet {
        let members = (0..self.voters.len()).filter_map(Member::at);
        members
            .filter(|member| self.lease.valid(*member) >= now + self.at_risk)
            .collect()
    }

    /// Whether the sound voters of a set contain a quorum of each group.
    fn is_sound(&self, (votes, quorums): &Votes) -> bool {
        quorums.met_by(votes.and(self.sound))
    }

    /// Adds a lock to its set. Returns whether the holders of the set were notified.
    fn join_set(&mut self, token: Token, votes: Votes) -> bool {
        if let Some(set) = self.sets.get_mut(&votes) {
            set.tokens.insert(token);
            return set.is_notified;
        }
        let set = LockSet {
            tokens: BTreeSet::from([token]),
            is_notified: false,
        };
        self.put_set(votes, set);
        false
    }

    /// Removes a lock from its set. Returns whether the holders of the set were notified.
    fn leave_set(&mut self, token: Token, votes: &Votes) -> bool {
        let Some(set) = self.sets.get_mut(votes) else {
            return false;
        };
        set.tokens.remove(&token);
        let was_notified = set.is_notified;
        if set.tokens.is_empty() {
            self.take_set(votes);
        }
        was_notified
    }

    fn put_set(&mut self, votes: Votes, set: LockSet) {
        if set.is_notified {
            self.notified.insert(votes.clone());
        } else if !self.is_sound(&votes) {
            self.doubtful.insert(votes.clone());
        }
        self.sets.insert(votes, set);
    }

    fn take_set(&mut self, votes: &Votes) -> Option<LockSet> {
        self.notified.remove(votes);
        self.doubtful.remove(votes);
        self.sets.remove(votes)
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(
        &mut self,
        now: Time,
        members: impl Iterator<Item = Member>,
        attempt: Duration,
    ) {
        for member in members {
            self.lease
                .set(member, self.lease.valid(member).relative_to(now));
        }
        for lock in self.held.values_mut() {
            // `attempt` after this time, the lock asks for the votes that it lacks. It does not matter how long ago
            // that was.
            let asks = (lock.since + attempt).relative_to(now);
            lock.since = Time(asks.0 - (Time(0) + attempt).0);
            lock.pass_until = lock.pass_until.map(|until| until.relative_to(now));
        }
        self.sound = self.sound_at(Time(0));
        let is_doubtful =
            |(votes, set): &(&Votes, &LockSet)| !set.is_notified && !self.is_sound(votes);
        let doubtful = self.sets.iter().filter(is_doubtful);
        self.doubtful = doubtful.map(|(votes, _)| votes.clone()).collect();
    }
}

fn votes(standing: &Standing) -> Votes {
    (standing.votes(), standing.quorums().clone())
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
            sets: self.sets.clone(),
            notified: self.notified.clone(),
            doubtful: self.doubtful.clone(),
            sound: self.sound,
            voters: self.voters.clone(),
            at_risk: self.at_risk,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::message::Name;

    const LEFT: Duration = Duration::from_nanos(10);

    fn insert(locks: &mut Locks, token: u64, votes: u64, now: i64) -> bool {
        let lock = HeldLock {
            token: Token(token),
            names: Name::new(&token.to_be_bytes()).unwrap().into(),
            mode: Mode::Write,
            fence: Fence(token),
            last: Fence(token),
            since: Time(0),
            pass_until: None,
            asked: MemberSet::from_bits(votes),
            standing: Arc::new(Standing::new(
                MemberSet::from_bits(votes),
                Quorums::new([MemberSet::from_bits(0b111)].into(), 2),
            )),
        };
        locks.insert(Token(token), lock, Time(now))
    }

    /// Three voters, of which the middle one has not renewed its votes. Lock 1 has the votes of the first two, and its
    /// holder was notified. Lock 2 has all three.
    fn first_at_risk() -> Locks {
        let mut locks = Locks::new(3, LEFT);
        for (place, until) in [100, 10, 100].into_iter().enumerate() {
            locks.lease.set(Member::at(place).unwrap(), Time(until));
        }
        assert!(!insert(&mut locks, 1, 0b011, 0));
        assert!(!insert(&mut locks, 2, 0b111, 0));
        assert_eq!(at_risk(&mut locks, 5), [Token(1)]);
        locks
    }

    fn at_risk(locks: &mut Locks, now: i64) -> Vec<Token> {
        let ending = locks.look(Time(now));
        assert_eq!(ending.expired, []);
        ending.at_risk
    }

    /// The last voter forgets its votes. Both locks then have the same votes.
    #[test]
    fn a_lock_whose_votes_become_those_of_a_lock_at_risk_is_at_risk() {
        let mut locks = first_at_risk();
        locks.forgotten(Member::at(2).unwrap(), Time(5));
        assert!(locks.deadline() <= Some(Time(5)));
        assert!(at_risk(&mut locks, 5).contains(&Token(2)));
        assert_eq!(at_risk(&mut locks, 5), []);
    }

    /// The last voter loses its vote for the second lock only.
    #[test]
    fn a_lock_that_joins_a_lock_at_risk_is_at_risk() {
        let mut locks = first_at_risk();
        let last = Member::at(2).unwrap();
        assert!(locks.vote(Token(2), last, false));
        // Its holder is notified now, and not again.
        assert!(!locks.vote(Token(2), last, false));
        assert_eq!(at_risk(&mut locks, 5), []);
    }

    /// Its holder is notified at once, unless the voters have renewed their votes since the others were notified.
    #[test]
    fn a_new_lock_with_the_votes_of_a_lock_at_risk_is_at_risk() {
        let mut locks = first_at_risk();
        assert!(insert(&mut locks, 3, 0b011, 5));
        assert_eq!(at_risk(&mut locks, 5), []);
        locks.lease.set(Member::at(1).unwrap(), Time(30));
        assert!(!insert(&mut locks, 4, 0b011, 6));
        assert_eq!(at_risk(&mut locks, 6), []);
        let all = [1, 2, 3, 4].map(Token);
        assert_eq!(at_risk(&mut locks, 21), [all[0], all[2], all[3]]);
    }

    /// Once until more is left again, and expired at the end.
    #[test]
    fn a_renewed_lock_is_at_risk_again_later() {
        let mut locks = first_at_risk();
        let middle = Member::at(1).unwrap();
        assert_eq!(locks.deadline(), Some(Time(10)));
        locks.lease.set(middle, Time(30));
        assert_eq!(at_risk(&mut locks, 6), []);
        assert_eq!(locks.deadline(), Some(Time(21)));
        assert_eq!(at_risk(&mut locks, 20), []);
        assert_eq!(at_risk(&mut locks, 21), [Token(1)]);
        assert_eq!(locks.look(Time(30)).expired, [Token(1)]);
    }

    /// A lock with three votes, of which two end one after the other; and a lock of these two voters.
    #[test]
    fn a_lock_is_at_risk_when_its_sound_voters_are_no_quorum() {
        let mut locks = Locks::new(3, LEFT);
        for (place, until) in [100, 50, 30].into_iter().enumerate() {
            locks.lease.set(Member::at(place).unwrap(), Time(until));
        }
        assert_eq!((locks.deadline(), at_risk(&mut locks, 0)), (None, vec![]));
        assert!(!insert(&mut locks, 1, 0b111, 0));
        assert_eq!(locks.deadline(), Some(Time(21)));
        assert_eq!(at_risk(&mut locks, 21), []);
        assert_eq!(locks.deadline(), Some(Time(41)));
        assert_eq!(at_risk(&mut locks, 40), []);
        assert_eq!(at_risk(&mut locks, 41), [Token(1)]);
        assert_eq!(locks.deadline(), Some(Time(50)));
        assert!(!insert(&mut locks, 2, 0b011, 0));
        assert_eq!(locks.deadline(), Some(Time::NEVER));
        assert_eq!(at_risk(&mut locks, 41), [Token(2)]);
        assert_eq!(locks.look(Time(50)).expired, [Token(1), Token(2)]);
    }

    #[test]
    fn each_voter_knows_its_locks() {
        let mut locks = first_at_risk();
        let [first, _, last] = [0, 1, 2].map(|place| Member::at(place).unwrap());
        let digest = |tokens: &[u64]| {
            let tokens = tokens.iter().map(|token| Token(*token));
            tokens.fold(Digest::default(), Digest::with)
        };
        let lacking = |locks: &Locks, member| {
            let tokens = locks.lacking(member, Token(0), false);
            let tokens = tokens.map(|(token, _)| token.0);
            tokens.collect::<Vec<_>>()
        };
        assert_eq!(
            (locks.digest(first), locks.digest(last)),
            (digest(&[1, 2]), digest(&[2]))
        );
        assert_eq!(
            (lacking(&locks, first), lacking(&locks, last)),
            (vec![], vec![1])
        );
        assert!(locks.rests_on(first) && !locks.rests_on(last));
        locks.vote(Token(1), last, true);
        assert_eq!(
            (locks.digest(last), lacking(&locks, last)),
            (digest(&[1, 2]), vec![])
        );
        assert!(!locks.rests_on(first));
        locks.forgotten(last, Time(5));
        assert_eq!(
            (locks.digest(last), lacking(&locks, last)),
            (digest(&[]), vec![1, 2])
        );
        locks.remove(Token(1));
        assert_eq!(
            (locks.digest(first), lacking(&locks, last)),
            (digest(&[2]), vec![2])
        );
        locks.remove(Token(2));
        assert!(locks.is_empty() && locks.deadline().is_none());
        assert_eq!(lacking(&locks, last), []);
    }
}
