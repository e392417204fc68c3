//! Whether a lock is still mine, told by reading a few words of memory: no message, no call, by any thread.
//!
//! ```text
//!   Lease    until when each voter's votes count      [ m0: 8.1 s | m1: 7.9 s | m2: 3.0 s | ... ]   one per agent
//!   Standing which voters have voted for this lock    [ m0, m2 ]                                    one per lock
//! ```
//!
//! A lock is held while a quorum of the voters that voted for it have a time later than now. The agent alone
//! gives times; renewing 100,000 locks is writing a time for each voter.
//!
//! # Invariants
//! - **L1** An answer of yes was true at a moment inside of the call: there was a quorum of votes that counted then.
//! - **L2** Once the agent has withdrawn a lock, no call that begins later answers yes.
//! - **L3** Once the lease has been ended, by any thread, no call that begins later answers yes, of any of its locks:
//!   finally, whatever the agent does.
//!
//! Why L1 holds though three things are read one after the other: votes, times, clock. The clock is read last, so a
//! time that is later than it was later when it was read, and counted then. Between the reading of the votes and of
//! the times a voter may have lost its vote for this lock and then got a new time, for other votes. So the votes are
//! read again, and if they differ the call begins anew. If they are the same, each vote was there when its time was
//! read: the agent takes a vote out of all standings before it gives its voter a new time (Release), so whoever has
//! read the new time (Acquire) reads standings without the vote, or with it given again. The votes themselves need no
//! order.
//!
//! Why L3 holds though the agent may be in the middle of giving times: to end is to write a time into each word that
//! is earlier than all others and that nothing follows, since a new time replaces only a time that is not that one.
//! The two are exchanges of one word, so one of them comes first, and what the word is after both is the same. Whoever
//! asks reads no more than before.

use crate::members::{Member, MemberSet, MAX_MEMBERS};
use crate::sync::{pause, AtomicI64, AtomicU32, Ordering};
use crate::time::Time;
use std::array;
use std::hash::{Hash, Hasher};

/// A word that stays as it is: see L3. Earlier than any time that is given.
const ENDED: i64 = Time::NEVER.0;
/// The earliest time that is given.
const NONE: Time = Time(ENDED + 1);

/// Until when each voter's votes count.
#[derive(Debug)]
pub struct Lease {
    valid: [AtomicI64; MAX_MEMBERS],
}

/// Who has voted for one lock.
#[derive(Debug)]
pub struct Standing {
    votes: AtomicU32,
    /// How many votes make it a lock.
    quorum: usize,
}

impl Lease {
    pub(crate) fn new() -> Lease {
        Lease {
            valid: array::from_fn(|_| AtomicI64::new(NONE.0)),
        }
    }

    /// Whether a lock is held: `true` means that it was at some moment during this call. `clock` tells the time; it
    /// is asked after all else has been read. Costs a read of memory for each voter.
    pub fn holds(&self, lock: &Standing, clock: impl FnOnce() -> Time) -> bool {
        loop {
            let votes = lock.votes.load(Ordering::Relaxed);
            let mut times = [Time::NEVER; MAX_MEMBERS];
            for member in MemberSet::from_bits(votes as u16).iter() {
                times[member.place()] = self.valid(member);
            }
            if lock.votes.load(Ordering::Relaxed) == votes {
                let now = clock();
                return times.iter().filter(|time| **time > now).count() >= lock.quorum;
            }
            pause();
        }
    }

    /// Until when the votes of `member` count.
    #[must_use]
    pub fn valid(&self, member: Member) -> Time {
        Time(self.valid[member.place()].load(Ordering::Acquire))
    }

    /// None of the agent's locks is held from now on, finally, though the agent may not know it yet. For whoever knows
    /// that the agent is gone, before another one of the same node begins: those who held a lock must not find it
    /// held by what is left of the first one.
    pub fn end(&self) {
        for word in &self.valid {
            word.swap(ENDED, Ordering::AcqRel);
        }
    }

    /// Of no effect on a lease that has ended. (An exchange, not a store: the lease may end in between.)
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

    /// Until when `quorum` of `votes` count, if nothing is renewed.
    pub(crate) fn until(&self, votes: MemberSet, quorum: usize) -> Time {
        let mut times = [Time::NEVER; MAX_MEMBERS];
        for (time, member) in times.iter_mut().zip(votes.iter()) {
            *time = self.valid(member);
        }
        times.sort_unstable_by(|a, b| b.cmp(a));
        times[quorum - 1]
    }
}

impl Standing {
    pub(crate) fn new(votes: MemberSet, quorum: usize) -> Standing {
        Standing {
            votes: AtomicU32::new(votes.bits().into()),
            quorum,
        }
    }

    /// As the agent knows them, which alone may change them.
    pub(crate) fn votes(&self) -> MemberSet {
        MemberSet::from_bits(self.votes.load(Ordering::Relaxed) as u16)
    }

    pub(crate) fn quorum(&self) -> usize {
        self.quorum
    }

    pub(crate) fn set(&self, votes: MemberSet) {
        self.votes.store(votes.bits().into(), Ordering::Relaxed);
    }
}

// By value, and copied as such: a state that a model has left behind must not change.
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
        Standing::new(self.votes(), self.quorum)
    }
}

impl PartialEq for Standing {
    fn eq(&self, other: &Standing) -> bool {
        (self.votes(), self.quorum) == (other.votes(), other.quorum)
    }
}

impl Eq for Standing {}

impl Hash for Standing {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.votes(), self.quorum).hash(state);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    fn member(place: usize) -> Member {
        Member::at(place).unwrap()
    }

    /// L1: a voter loses its vote for this lock and then gets a new time, for other votes. Never do the two together
    /// look like a lock.
    #[test]
    fn l1_a_new_time_is_not_for_an_old_vote() {
        loom::model(|| {
            let lease = Arc::new(Lease::new());
            let [kept, lapsed] = [member(0), member(1)];
            lease.set(kept, Time(100));
            lease.set(lapsed, Time(5));
            let lock = Arc::new(Standing::new(MemberSet::EMPTY.with(kept).with(lapsed), 2));
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

    /// L2: who knows that a lock was withdrawn does not find it held.
    #[test]
    fn l2_what_is_withdrawn_is_not_held() {
        loom::model(|| {
            let lease = Arc::new(Lease::new());
            lease.set(member(0), Time(100));
            let lock = Arc::new(Standing::new(MemberSet::EMPTY.with(member(0)), 1));
            let withdrawn = Arc::new(AtomicU32::new(0));
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

    /// L3: who knows that a lease has ended finds nothing held, though the agent gives a time meanwhile.
    #[test]
    fn l3_what_has_ended_is_not_held() {
        loom::model(|| {
            let lease = Arc::new(Lease::new());
            lease.set(member(0), Time(100));
            let lock = Standing::new(MemberSet::EMPTY.with(member(0)), 1);
            let agent = {
                let lease = Arc::clone(&lease);
                loom::thread::spawn(move || lease.set(member(0), Time(200)))
            };
            let ended = Arc::new(AtomicU32::new(0));
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

    /// A vote that is taken while another is given: the lock is held throughout by two of three, or seems not to be,
    /// but an answer comes.
    #[test]
    fn a_call_ends() {
        loom::model(|| {
            let lease = Arc::new(Lease::new());
            (0..3).for_each(|place| lease.set(member(place), Time(100)));
            let lock = Arc::new(Standing::new(
                MemberSet::EMPTY.with(member(0)).with(member(1)),
                2,
            ));
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

    #[test]
    fn a_quorum_of_valid_votes_holds() {
        let lease = Lease::new();
        let voters: Vec<Member> = (0..3).filter_map(Member::at).collect();
        let lock = Standing::new(voters.iter().copied().collect(), 2);
        assert!(!lease.holds(&lock, || Time(0)));
        for (place, voter) in voters.iter().enumerate() {
            lease.set(*voter, Time(10 * (place as i64 + 1)));
        }
        assert!(lease.holds(&lock, || Time(19)));
        assert!(
            !lease.holds(&lock, || Time(20)),
            "valid until then, and not then"
        );
        assert_eq!(lease.until(lock.votes(), 2), Time(20));
        lock.set(lock.votes().without(voters[2]));
        assert!(lease.holds(&lock, || Time(9)));
        assert!(!lease.holds(&lock, || Time(10)));
        assert_eq!(
            lease.until(lock.votes(), 3),
            Time::NEVER,
            "two votes are no quorum of three, ever"
        );
    }

    #[test]
    fn an_ended_lease_stays_ended() {
        let lease = Lease::new();
        let lock = Standing::new(MemberSet::from_bits(0b11), 2);
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
        assert_eq!(lease.until(lock.votes(), 2), Time::NEVER);
    }

    #[test]
    fn no_time_ends_a_lease() {
        let lease = Lease::new();
        let voter = Member::at(0).unwrap();
        lease.set(voter, Time::NEVER);
        lease.set(voter, Time(10));
        assert_eq!(lease.valid(voter), Time(10));
    }

    #[test]
    fn a_copy_is_of_its_own() {
        let (lease, lock) = (Lease::new(), Standing::new(MemberSet::from_bits(1), 1));
        let (other, copy) = (lease.clone(), lock.clone());
        assert!(other == lease && copy == lock);
        lease.set(Member::at(0).unwrap(), Time(10));
        lock.set(MemberSet::EMPTY);
        assert!(other != lease && copy != lock);
    }
}
