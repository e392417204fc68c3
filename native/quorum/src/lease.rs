//! Checks whether a lock is still held by reading a few words of memory: without a message or a call, from any
//! thread.
//!
//! ```text
//!   Lease    when each voter's votes expire           [ m0: 8.1 s | m1: 7.9 s | m2: 3.0 s | ... ]   one per agent
//!   Standing which voters voted for this lock         [ m0, m2 ]                                    one per lock
//! ```
//!
//! A lock is held while a quorum of each group of its names has an expiry later than now. Only the agent sets expiries.
//! Renewing 100,000 locks takes one write per voter.
//!
//! # Invariants
//! - **L1** If `holds` returns `true`, there was a moment during the call at which a quorum of votes was valid.
//! - **L2** Once the agent has withdrawn a lock, no call of `holds` that begins later returns `true`.
//! - **L3** Once any thread has ended the lease, no call that begins later returns `true` for any lock of the lease.
//!   The agent cannot undo this.
//!
//! L1 holds although votes, expiries and clock are read one after the other. The clock is read last, so an expiry later
//! than that time was also later when it was read: that vote was valid then. (A voter of two groups is read twice. Both
//! reads count only if they are later than the clock.) Between the reads of the votes and of the
//! expiries, a voter may have lost its vote for this lock and then got a new expiry for other votes. `holds` therefore
//! reads the votes again, and starts over if they differ. If they are equal, each vote existed when its expiry was
//! read: when a voter has lost a vote, the agent removes that vote before it stores the voter's next expiry (Release).
//! A thread that reads the new expiry (Acquire) therefore reads standings without the vote, or with the vote granted
//! again. The votes themselves need no ordering. A thread may then read a vote that was granted again together with an
//! older expiry of that voter (on ARM64; x86 orders the two reads). This is right because the expiries that a voter
//! gets never decrease, also across its sessions: the older one was not later than the current one.
//!
//! L3 holds although the agent may be storing expiries at the same time. Ending a lease stores a final value into
//! each word, earlier than any expiry. A new expiry only replaces a value that is not final. Both are atomic
//! exchanges of one word, so one comes first, and the word is final after both. `holds` needs no additional read.

use crate::groups::Quorums;
use crate::members::{Member, MemberSet, MAX_MEMBERS, MAX_REPLICAS};
use crate::sync::{pause, AtomicI64, AtomicU64, Ordering};
use crate::time::Time;
use std::array;
use std::hash::{Hash, Hasher};

/// The final value of a word: see L3. It is earlier than any expiry.
const ENDED: i64 = Time::NEVER.0;
/// The earliest expiry.
const NONE: Time = Time(ENDED + 1);

/// The expiry of each voter's votes.
#[derive(Debug)]
pub struct Lease {
    valid: [AtomicI64; MAX_MEMBERS],
}

/// The voters of one lock.
#[derive(Debug)]
pub struct Standing {
    votes: AtomicU64,
    quorums: Quorums,
}

impl Lease {
    pub(crate) fn new() -> Lease {
        Lease {
            valid: array::from_fn(|_| AtomicI64::new(NONE.0)),
        }
    }

    /// Whether `lock` is held. `true` means that it was held at some moment during this call. `clock` returns the
    /// current time and is called after all other reads. Cost: one read per vote, and two of the set of votes. It
    /// repeats if the votes change during the call.
    pub fn holds(&self, lock: &Standing, clock: impl FnOnce() -> Time) -> bool {
        loop {
            let votes = lock.votes();
            let until = self.until(votes, &lock.quorums);
            if lock.votes() == votes {
                return until > clock();
            }
            pause();
        }
    }

    /// When the votes of `member` expire.
    #[must_use]
    pub fn valid(&self, member: Member) -> Time {
        Time(self.valid[member.place()].load(Ordering::Acquire))
    }

    /// Ends the lease: from now on none of the agent's locks is held, even if the agent does not know it. Call this
    /// when the agent is gone, before the node starts another one. Otherwise holders would find their locks held
    /// through the lease of the old agent.
    pub fn end(&self) {
        for word in &self.valid {
            word.swap(ENDED, Ordering::AcqRel);
        }
    }

    /// Does nothing if the lease has ended. This is an exchange, not a store, because the lease may end concurrently.
    pub(crate) fn set(&self, member: Member, until: Time) {
        let word = &self.valid[member.place()];
        let until = until.max(NONE).0;
        let mut known = word.load(Ordering::Relaxed);
        while known != ENDED {
            match word.compare_exchange_weak(known, until, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => known = other,
            }
        }
    }

    /// The time from which the valid ones of `votes` are no quorum in some group, unless they are renewed.
    pub(crate) fn until(&self, votes: MemberSet, quorums: &Quorums) -> Time {
        let in_group = |group: &MemberSet| {
            let mut times = [Time::NEVER; MAX_REPLICAS];
            for (time, member) in times.iter_mut().zip(votes.and(*group).iter()) {
                *time = self.valid(member);
            }
            times.sort_unstable_by(|a, b| b.cmp(a));
            times[quorums.size() - 1]
        };
        let groups = quorums.groups().iter().map(in_group);
        groups.min().unwrap_or(Time::NEVER)
    }
}

impl Standing {
    pub(crate) fn new(votes: MemberSet, quorums: Quorums) -> Standing {
        Standing {
            votes: AtomicU64::new(votes.bits()),
            quorums,
        }
    }

    /// The current votes. Only the agent changes them.
    pub(crate) fn votes(&self) -> MemberSet {
        MemberSet::from_bits(self.votes.load(Ordering::Relaxed))
    }

    pub(crate) fn quorums(&self) -> &Quorums {
        &self.quorums
    }

    pub(crate) fn set(&self, votes: MemberSet) {
        self.votes.store(votes.bits(), Ordering::Relaxed);
    }
}

// Copied and compared by value: a later change must not affect the states that a model has stored.
impl Clone for Lease {
    fn clone(&self) -> Lease {
        Lease {
            valid: array::from_fn(|place| {
                AtomicI64::new(self.valid[place].load(Ordering::Relaxed))
            }),
        }
    }
}

impl PartialEq for Lease {
    fn eq(&self, other: &Lease) -> bool {
        let pairs = self.valid.iter().zip(&other.valid);
        pairs
            .into_iter()
            .all(|(a, b)| a.load(Ordering::Relaxed) == b.load(Ordering::Relaxed))
    }
}

impl Eq for Lease {}

impl Hash for Lease {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.valid
            .iter()
            .for_each(|time| time.load(Ordering::Relaxed).hash(state));
    }
}

impl Clone for Standing {
    fn clone(&self) -> Standing {
        Standing::new(self.votes(), self.quorums.clone())
    }
}

impl PartialEq for Standing {
    fn eq(&self, other: &Standing) -> bool {
        (self.votes(), &self.quorums) == (other.votes(), &other.quorums)
    }
}

impl Eq for Standing {}

impl Hash for Standing {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.votes(), &self.quorums).hash(state);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    fn lock_of(votes: MemberSet, quorum: usize) -> Standing {
        let group = MemberSet::from_bits(0b111);
        Standing::new(votes, Quorums::new([group].into(), quorum))
    }

    fn member(place: usize) -> Member {
        Member::at(place).unwrap()
    }

    /// L1: a voter loses its vote for this lock and then gets a new expiry for other votes. The new expiry must not
    /// count for the old vote.
    #[test]
    fn l1_a_new_expiry_does_not_count_for_an_old_vote() {
        loom::model(|| {
            let lease = Arc::new(Lease::new());
            let [kept, lapsed] = [member(0), member(1)];
            lease.set(kept, Time(100));
            lease.set(lapsed, Time(5));
            let lock = Arc::new(lock_of(MemberSet::EMPTY.with(kept).with(lapsed), 2));
            let agent = {
                let (lease, lock) = (Arc::clone(&lease), Arc::clone(&lock));
                loom::thread::spawn(move || {
                    lock.set(lock.votes().without(lapsed));
                    lease.set(lapsed, Time(100));
                })
            };
            assert!(!lease.holds(&lock, || Time(10)));
            agent.join().unwrap();
        });
    }

    /// L2: a thread that knows that a lock was withdrawn does not find it held.
    #[test]
    fn l2_a_withdrawn_lock_is_not_held() {
        loom::model(|| {
            let lease = Arc::new(Lease::new());
            lease.set(member(0), Time(100));
            let lock = Arc::new(lock_of(MemberSet::EMPTY.with(member(0)), 1));
            let withdrawn = Arc::new(AtomicU64::new(0));
            let agent = {
                let (lock, withdrawn) = (Arc::clone(&lock), Arc::clone(&withdrawn));
                loom::thread::spawn(move || {
                    lock.set(MemberSet::EMPTY);
                    withdrawn.store(1, Ordering::Release);
                })
            };
            let known = withdrawn.load(Ordering::Acquire) == 1;
            assert!(!(lease.holds(&lock, || Time(10)) && known));
            agent.join().unwrap();
        });
    }

    /// L3: a thread that knows that a lease has ended finds no lock held, although the agent stores an expiry
    /// concurrently.
    #[test]
    fn l3_an_ended_lease_holds_no_lock() {
        loom::model(|| {
            let lease = Arc::new(Lease::new());
            lease.set(member(0), Time(100));
            let lock = lock_of(MemberSet::EMPTY.with(member(0)), 1);
            let agent = {
                let lease = Arc::clone(&lease);
                loom::thread::spawn(move || lease.set(member(0), Time(200)))
            };
            let ended = Arc::new(AtomicU64::new(0));
            let ender = {
                let (lease, ended) = (Arc::clone(&lease), Arc::clone(&ended));
                loom::thread::spawn(move || {
                    lease.end();
                    ended.store(1, Ordering::Release);
                })
            };
            let known = ended.load(Ordering::Acquire) == 1;
            assert!(!(lease.holds(&lock, || Time(10)) && known));
            agent.join().unwrap();
            ender.join().unwrap();
            assert!(!lease.holds(&lock, || Time(10)));
        });
    }

    /// While the agent adds a vote, two others of three hold the lock. `holds` returns, with the correct answer.
    #[test]
    fn a_concurrent_vote_does_not_disturb_a_call() {
        loom::model(|| {
            let lease = Arc::new(Lease::new());
            (0..3).for_each(|place| lease.set(member(place), Time(100)));
            let lock = Arc::new(lock_of(MemberSet::EMPTY.with(member(0)).with(member(1)), 2));
            let agent = {
                let lock = Arc::clone(&lock);
                loom::thread::spawn(move || lock.set(lock.votes().with(member(2))))
            };
            assert!(lease.holds(&lock, || Time(10)));
            assert!(!lease.holds(&lock, || Time(100)));
            agent.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn quorums(size: usize) -> Quorums {
        Quorums::new([MemberSet::from_bits(0b111)].into(), size)
    }

    fn lock_of(votes: MemberSet, quorum: usize) -> Standing {
        Standing::new(votes, quorums(quorum))
    }

    /// The votes are a quorum of each group, or the lock is not held.
    #[test]
    fn a_lock_of_two_groups_needs_both_quorums() {
        let lease = Lease::new();
        let groups = [0b0_0111, 0b1_1100].map(MemberSet::from_bits);
        let both = Quorums::new(groups.into(), 2);
        let lock = Standing::new(MemberSet::from_bits(0b0_1110), both);
        for (place, until) in [(1, 30), (2, 20), (3, 10)] {
            lease.set(Member::at(place).unwrap(), Time(until));
        }
        assert_eq!(lease.until(lock.votes(), lock.quorums()), Time(10));
        assert!(lease.holds(&lock, || Time(9)) && !lease.holds(&lock, || Time(10)));
        lock.set(MemberSet::from_bits(0b0_0110));
        assert!(
            !lease.holds(&lock, || Time(9)),
            "one vote of the second group"
        );
    }

    #[test]
    fn a_quorum_of_valid_votes_holds() {
        let lease = Lease::new();
        let voters: Vec<Member> = (0..3).filter_map(Member::at).collect();
        let lock = lock_of(voters.iter().copied().collect(), 2);
        assert!(!lease.holds(&lock, || Time(0)));
        for (place, voter) in voters.iter().enumerate() {
            lease.set(*voter, Time(10 * (place as i64 + 1)));
        }
        assert!(lease.holds(&lock, || Time(19)));
        assert!(
            !lease.holds(&lock, || Time(20)),
            "a vote is valid before its expiry, not at it"
        );
        assert_eq!(lease.until(lock.votes(), &quorums(2)), Time(20));
        lock.set(lock.votes().without(voters[2]));
        assert!(lease.holds(&lock, || Time(9)));
        assert!(!lease.holds(&lock, || Time(10)));
        assert_eq!(
            lease.until(lock.votes(), &quorums(3)),
            Time::NEVER,
            "two votes never reach a quorum of three"
        );
    }

    /// L1: the clock is read last. If the call paused after it had read the clock, it could count a vote that has
    /// expired since together with one that was granted since.
    #[test]
    fn l1_a_vote_that_comes_after_the_clock_was_read_does_not_count() {
        let lease = Lease::new();
        let lock = lock_of(MemberSet::from_bits(0b11), 2);
        let [expiring, late] = [Member::at(0).unwrap(), Member::at(1).unwrap()];
        lease.set(expiring, Time(20));
        let clock = || {
            lease.set(late, Time(100));
            Time(10)
        };
        assert!(!lease.holds(&lock, clock));
    }

    #[test]
    fn an_ended_lease_stays_ended() {
        let lease = Lease::new();
        let lock = lock_of(MemberSet::from_bits(0b11), 2);
        let [one, other] = [Member::at(0).unwrap(), Member::at(1).unwrap()];
        lease.set(one, Time(10));
        lease.set(other, Time(10));
        assert!(lease.holds(&lock, || Time(5)));
        lease.end();
        assert!(!lease.holds(&lock, || Time(5)));
        for until in [Time(20), Time(i64::MAX), Time::NEVER, Time(20)] {
            lease.set(one, until);
            lease.set(other, until);
            assert!(!lease.holds(&lock, || Time(i64::MIN)), "{until:?}");
        }
        assert_eq!(lease.until(lock.votes(), &quorums(2)), Time::NEVER);
    }

    #[test]
    fn no_expiry_ends_a_lease() {
        let lease = Lease::new();
        let voter = Member::at(0).unwrap();
        lease.set(voter, Time::NEVER);
        lease.set(voter, Time(10));
        assert_eq!(lease.valid(voter), Time(10));
    }

    #[test]
    fn a_copy_is_independent() {
        let (lease, lock) = (Lease::new(), lock_of(MemberSet::from_bits(1), 1));
        let (other, copy) = (lease.clone(), lock.clone());
        assert!(other == lease && copy == lock);
        lease.set(Member::at(0).unwrap(), Time(10));
        lock.set(MemberSet::EMPTY);
        assert!(other != lease && copy != lock);
    }
}
