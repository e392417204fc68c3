//! The locks that this node holds.
//!
//! Locks with the same votes expire at the same moment. They are therefore kept in *sets* of locks with the same votes,
//! and a set is not looked at while voters renew its votes. A voter *has margin* while at least `at_risk` of its lease
//! is left. The locks of a set are not at risk while a quorum of its voters has margin. When a voter has none any more,
//! the agent looks at the sets that lack such a quorum.
//!
//! After a restart of a voter, the votes of its earlier lifetime count until its lease ends, as before. Until then, the
//! agent asserts the locks with these votes at the voter: they *continue* the votes. It settles when the voter has
//! confirmed all of them, or when the lease has ended. Only then the voter's answers extend its lease again. (V3)
//!
//! Locks in transition to another list of members are in no set: see `transition.rs`. They continue at each voter of
//! the new list, until the voter has confirmed them or they end.

mod moving;
#[cfg(all(test, not(loom)))]
mod tests;

use super::transition::Transition;
use crate::lease::{Lease, Standing};
use crate::members::{Member, MemberSet, Members};
use crate::message::{Digest, Fence, Mode, Names, Token};
use crate::protocol_bug::{ProtocolBug, ProtocolBugs};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
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

/// What became of a lock that its holder unlocked.
pub(super) enum Unlock {
    /// Another request of this node got the lock.
    Passed,
    /// The voters are sent the unlock.
    Sent(HeldLock),
}

/// The locks with the same votes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LockSet {
    tokens: BTreeSet<Token>,
    /// Whether their holders were notified that they are at risk.
    is_notified: bool,
}

/// What a voter has of the locks, in its current session.
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

    fn remove(&mut self, token: Token) {
        if self.lacking.remove(&token) {
            self.continuing.remove(&token);
        } else {
            self.digest = self.digest.without(token);
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Locks {
    pub(super) lease: Arc<Lease>,
    members: Members,
    quorum: usize,
    /// The held locks by attempt.
    held: BTreeMap<Token, HeldLock>,
    /// The attempt of each lock that was passed on, by its current token.
    passed: BTreeMap<Token, Token>,
    sets: BTreeMap<MemberSet, LockSet>,
    /// The sets whose holders were notified that their locks are at risk.
    notified: BTreeSet<MemberSet>,
    /// The other sets without a quorum of voters that have margin: to look at next.
    unchecked: BTreeSet<MemberSet>,
    /// The voters that had margin at the last look.
    with_margin: MemberSet,
    /// When the provisional votes of a lock end.
    provisional: BTreeSet<(Time, Token)>,
    /// The locks whose votes do not count yet.
    transition: Transition,
    /// In the order of the member list.
    voters: Vec<VoterLocks>,
    /// A lock is at risk when less than this is left of its lease.
    at_risk: Duration,
    /// Enabled protocol bugs: none outside models.
    pub(super) bugs: ProtocolBugs,
}

/// Locks that [`Locks::look`] has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) expired: Vec<Token>,
    /// Their holders must be notified.
    pub(super) at_risk: Vec<Token>,
}

impl Locks {
    /// `quorum` is how many votes a lock needs.
    pub(super) fn new(members: Members, quorum: usize, at_risk: Duration) -> Locks {
        Locks {
            lease: Arc::new(Lease::new()),
            members,
            quorum,
            held: BTreeMap::new(),
            passed: BTreeMap::new(),
            sets: BTreeMap::new(),
            notified: BTreeSet::new(),
            unchecked: BTreeSet::new(),
            with_margin: MemberSet::EMPTY,
            provisional: BTreeSet::new(),
            transition: Transition::default(),
            voters: vec![VoterLocks::default(); members.count()],
            at_risk,
            bugs: ProtocolBugs::NONE,
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
        let votes = lock.standing.votes();
        let until = self.lease.until(votes, lock.standing.quorum());
        for member in self.members.iter() {
            self.voters[member.place()].add(token, votes.contains(member));
        }
        self.provisional
            .extend(lock.standing.end().map(|end| (end, token)));
        self.held.insert(token, lock);
        self.join_set(token, votes) && until < now + self.at_risk
    }

    /// Removes a lock, which is held.
    pub(super) fn remove(&mut self, token: Token) -> HeldLock {
        let lock = self.held.remove(&token).expect("it is held");
        self.passed.remove(&lock.token);
        let votes = lock.standing.votes();
        self.voters.iter_mut().for_each(|voter| voter.remove(token));
        if let Some(end) = lock.standing.end() {
            self.provisional.remove(&(end, token));
        }
        if self.transition.remove(token).is_none() {
            self.leave_set(token, votes);
        }
        lock
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

    pub(super) fn count(&self) -> usize {
        self.held.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
            && self.passed.is_empty()
            && self.provisional.is_empty()
            && self.transition.is_empty()
    }

    /// The locks with attempts from `from` on, in ascending order.
    pub(super) fn range(&self, from: Token) -> impl Iterator<Item = Token> + '_ {
        self.held.range(from..).map(|(token, _)| *token)
    }

    /// A voter has given or confirmed its vote for a lock, or has none. Returns whether the holder must be notified
    /// that the lock is at risk: the other holders with the same votes already were.
    pub(super) fn vote(&mut self, token: Token, member: Member, has: bool) -> bool {
        if !self.held.contains_key(&token) {
            return false;
        }
        let is_needed =
            !has && self.transition.contains(token) && !self.bugs.have(ProtocolBug::SettlesRefused);
        let voter = &mut self.voters[member.place()];
        let continues = is_needed && voter.continuing.contains(&token);
        voter.remove(token);
        voter.add(token, has);
        if continues {
            // The agent must not settle there without it.
            voter.continuing.insert(token);
        }
        self.change_votes(token, |standing| match has {
            true => standing.confirm(member),
            false => standing.set(standing.votes().without(member)),
        })
    }

    /// A session of `member` begins, which has forgotten all votes. Those that count at `now` are continued.
    pub(super) fn begin(&mut self, member: Member, now: Time) {
        if self.lease.valid(member) <= now {
            return self.forget(member);
        }
        // In ascending order, so this takes linear time.
        let voted = self
            .held
            .iter()
            .filter(|(_, lock)| lock.standing.votes().contains(member));
        let voted: BTreeSet<Token> = voted.map(|(token, _)| *token).collect();
        let voter = &mut self.voters[member.place()];
        voter.lacking.append(&mut voted.clone());
        voter.continuing = voted;
        voter.digest = Digest::default();
    }

    /// Removes all votes of `member`.
    fn forget(&mut self, member: Member) {
        let with = self.sets.keys().filter(|votes| votes.contains(member));
        for from in with.copied().collect::<Vec<_>>() {
            let mut set = self.take_set(from).expect("it is a key");
            for token in &set.tokens {
                let standing = Arc::clone(&self.held[token].standing);
                let end = standing.end();
                standing.set(from.without(member));
                self.provisional_changed(*token, end);
            }
            let to = from.without(member);
            if let Some(mut other) = self.take_set(to) {
                // If only one of the two was notified, all its holders are notified again.
                set.is_notified &= other.is_notified;
                set.tokens.append(&mut other.tokens);
            }
            self.put_set(to, set);
        }
        for token in self.transition.tokens() {
            let standing = &self.held[&token].standing;
            standing.set(standing.votes().without(member));
        }
        self.voters[member.place()] = VoterLocks {
            lacking: self.held.keys().copied().collect(),
            ..VoterLocks::default()
        };
    }

    /// Whether a lock continues a vote of `member`, and `member` has not confirmed it.
    pub(super) fn continues_any(&self, member: Member) -> bool {
        !self.voters[member.place()].continuing.is_empty()
    }

    /// The votes of an earlier lifetime of `member` do not count any more: its lease has ended. So no holder must be
    /// notified because of that.
    pub(super) fn settle(&mut self, member: Member) {
        let continuing = std::mem::take(&mut self.voters[member.place()].continuing);
        for token in continuing {
            self.change_votes(token, |standing| {
                standing.set(standing.votes().without(member));
            });
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
    ) -> impl Iterator<Item = Token> + '_ {
        let voter = &self.voters[member.place()];
        let tokens = match only_continuing {
            true => &voter.continuing,
            false => &voter.lacking,
        };
        tokens.range(from..).copied()
    }

    /// Whether a lock without the vote of `member` continues an earlier one.
    pub(super) fn continues(&self, member: Member, token: Token) -> bool {
        self.voters[member.place()].continuing.contains(&token)
    }

    /// The locks whose lease has expired at `now`, and those that are at risk since the last call. The caller removes
    /// the expired ones.
    pub(super) fn look(&mut self, now: Time) -> Ending {
        let mut ending = Ending::default();
        let is_over = |(end, _): &(Time, Token)| *end <= now;
        while self.provisional.first().is_some_and(is_over) {
            let (_, token) = self.provisional.pop_first().expect("one is over");
            let provisional = self.held[&token].standing.provisional();
            for member in provisional.iter() {
                let voter = &mut self.voters[member.place()];
                voter.remove(token);
                voter.add(token, false);
            }
            let end = |standing: &Standing| standing.set(standing.votes().minus(provisional));
            if self.change_votes(token, end) {
                ending.at_risk.push(token);
            }
        }
        ending.expired.extend(self.transition.expired(now));
        let until = now + self.at_risk;
        ending.at_risk.extend(self.transition.at_risk(now, until));
        let with_margin = self.with_margin_at(now);
        let is_less = !self.with_margin.minus(with_margin).is_empty();
        self.with_margin = with_margin;
        let mut due = std::mem::take(&mut self.unchecked);
        due.extend(self.notified.iter().copied());
        if is_less {
            due.extend(
                self.sets
                    .keys()
                    .copied()
                    .filter(|votes| !self.has_margin(*votes)),
            );
        }
        for votes in due {
            let until = self.lease.until(votes, self.quorum);
            let Some(mut set) = self.take_set(votes) else {
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
        let in_transition = self.transition.deadline(self.at_risk);
        if self.sets.is_empty() {
            return in_transition;
        }
        let expires = self
            .notified
            .iter()
            .map(|votes| self.lease.until(*votes, self.quorum));
        let left = i64::try_from(self.at_risk.as_nanos()).unwrap_or(i64::MAX);
        let voters = self
            .with_margin
            .iter()
            .map(|member| self.lease.valid(member));
        let no_margin = voters.map(|until| Time(until.0.saturating_sub(left).saturating_add(1)));
        let unchecked = (!self.unchecked.is_empty()).then_some(Time::LONG_AGO);
        let provisional = self.provisional.first().map(|(end, _)| *end);
        expires
            .chain(no_margin)
            .chain(unchecked)
            .chain(provisional)
            .chain(in_transition)
            .min()
    }

    /// Removes the timer of a lock that had provisional votes until `before`, and has none any more.
    fn provisional_changed(&mut self, token: Token, before: Option<Time>) {
        let after = self.held[&token].standing.end();
        if let (Some(end), None) = (before, after) {
            self.provisional.remove(&(end, token));
        }
    }

    /// The voters whose lease lasts for so long that their votes put no lock at risk.
    fn with_margin_at(&self, now: Time) -> MemberSet {
        let until = now + self.at_risk;
        self.members
            .iter()
            .filter(|member| self.lease.valid(*member) >= until)
            .collect()
    }

    /// Whether a quorum of these voters has margin.
    fn has_margin(&self, votes: MemberSet) -> bool {
        votes.and(self.with_margin).len() >= self.quorum
    }

    /// Changes the votes of a lock, and moves it to the set of its new ones. Returns whether its holder must be
    /// notified that it is at risk: those of that set were, and those of its set before were not. Does not move a lock
    /// in transition, which is in no set.
    fn change_votes(&mut self, token: Token, change: impl FnOnce(&Standing)) -> bool {
        let standing = Arc::clone(&self.held[&token].standing);
        let (before, end) = (standing.votes(), standing.end());
        change(&standing);
        self.provisional_changed(token, end);
        let votes = standing.votes();
        if votes == before || self.transition.contains(token) {
            return false;
        }
        let was_notified = self.leave_set(token, before);
        self.join_set(token, votes) && !was_notified
    }

    /// Adds a lock to its set. Returns whether the holders of the set were notified.
    fn join_set(&mut self, token: Token, votes: MemberSet) -> bool {
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
    fn leave_set(&mut self, token: Token, votes: MemberSet) -> bool {
        let set = self.sets.get_mut(&votes).expect("the set of the lock");
        set.tokens.remove(&token);
        let was_notified = set.is_notified;
        if set.tokens.is_empty() {
            self.take_set(votes);
        }
        was_notified
    }

    fn put_set(&mut self, votes: MemberSet, set: LockSet) {
        if set.is_notified {
            self.notified.insert(votes);
        } else if !self.has_margin(votes) {
            self.unchecked.insert(votes);
        }
        self.sets.insert(votes, set);
    }

    fn take_set(&mut self, votes: MemberSet) -> Option<LockSet> {
        self.notified.remove(&votes);
        self.unchecked.remove(&votes);
        self.sets.remove(&votes)
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        for member in self.members.iter() {
            self.lease
                .set(member, self.lease.valid(member).relative_to(now));
        }
        self.provisional.clear();
        for (token, lock) in &mut self.held {
            lock.since = lock.since.relative_to(now);
            lock.pass_until = lock.pass_until.map(|until| until.relative_to(now));
            lock.standing = Arc::new(lock.standing.rebased(now));
            self.provisional
                .extend(lock.standing.end().map(|end| (end, *token)));
        }
        self.with_margin = self.with_margin_at(Time(0));
        let unchecked = self
            .sets
            .iter()
            .filter(|(votes, set)| !set.is_notified && !self.has_margin(**votes));
        self.unchecked = unchecked.map(|(votes, _)| *votes).collect();
    }
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
            unchecked: self.unchecked.clone(),
            provisional: self.provisional.clone(),
            transition: self.transition.clone(),
            voters: self.voters.clone(),
            ..*self
        }
    }
}
