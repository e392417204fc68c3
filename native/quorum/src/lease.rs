//! Checks whether a lock is still held by reading a few words of memory: without a message or a call, from any
//! thread.
//!
//! ```text
//!   Lease    when each voter's votes expire           [ m0: 8.1 s | m1: 7.9 s | m2: 3.0 s | ... ]   one per agent
//!   Standing which voters voted for this lock         [ m0, m2 ], and a deadline                    one per lock
//! ```
//!
//! A lock is held while a quorum of its voters has an expiry later than now. Only the agent sets expiries. Renewing
//! 100,000 locks takes one write per voter. Votes that were given unasked are *provisional* at first: they end at
//! the time that the lock was granted with, if that is earlier.
//!
//! When the agent adopts the next list of members, a held lock gets a *deadline*: when its votes of the list before
//! end. It is held until then. Its votes of the new list do not *count* until the agent knows that no other request can
//! get the old ones. A lock is held while it has one of both: time to its deadline, or a quorum of votes that count.
//!
//! # Invariants
//! - **L1** If `holds` returns `true`, there was a moment during the call at which a quorum of votes was valid, or at
//!   which the deadline was not over.
//! - **L2** Once the agent has withdrawn a lock, no call of `holds` that begins later returns `true`.
//! - **L3** Once any thread has ended the lease, no call that begins later returns `true` for any lock of the lease.
//!   The agent cannot undo this.
//! - **L4** While the agent adopts a list, and as long as a lock's votes do not count after that, it is held exactly
//!   until its deadline.
//!
//! L1 holds although votes, expiries and clock are read one after the other. The clock is read last, so an expiry later
//! than that time was also later when it was read: that vote was valid then. Between the reads of the votes and of the
//! expiries, a voter may have lost its vote for this lock and then got a new expiry for other votes. `holds` therefore
//! reads the votes again, and starts over if they differ. If they are equal, each vote existed when its expiry was
//! read: when a voter has lost a vote, the agent removes that vote before it stores the voter's next expiry (Release).
//! A thread that reads the new expiry (Acquire) therefore reads standings without the vote, or with the vote granted
//! again. The votes themselves need no ordering. A thread may then read a vote that was granted again together with an
//! older expiry of that voter (on ARM64; x86 orders the two reads). This is right because the expiries that a voter
//! gets never decrease, also across its sessions: the older one was not later than the current one.
//!
//! With the next list, the words of the lease get another meaning, and expiries begin again. L1 and L4 hold because of
//! the order of the agent's writes (all Release):
//!
//! 1. Per lock its deadline, which is the time until which it was held so far. A call that reads it with the votes of
//!    the list before returns the same as with these votes.
//! 2. Per lock the word with its votes: none, which do not count. It contains the number of adoptions, so no word of an
//!    earlier list is equal to one of a later list. A call that reads the word first has read it or reads the deadline
//!    after it (Acquire).
//! 3. The expiries, when the words of all locks are changed. A call that reads one of them for votes of the list before
//!    reads a changed word then, and starts over. A call that reads a word whose votes count was ordered after 2, so it
//!    reads no expiry of a list before.
//!
//! L3 holds although the agent may be storing expiries at the same time. Ending a lease stores a final value into
//! each word, earlier than any expiry. A new expiry only replaces a value that is not final. Both are atomic
//! exchanges of one word, so one comes first, and the word is final after both. `holds` needs no additional read for
//! votes. For a deadline it reads one of these words.

use crate::members::{Member, MemberSet, MAX_MEMBERS};
use crate::sync::{pause, AtomicI64, AtomicU64, Ordering};
use crate::time::Time;
use std::array;
use std::hash::{Hash, Hasher};

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

/// The final value of a word: see L3. It is earlier than any expiry.
const ENDED: i64 = Time::LONG_AGO.0;
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
    word: AtomicU64,
    /// Until when the lock is held whatever its votes are. [`NONE`] if no list was adopted while it was held.
    deadline: AtomicI64,
    /// When the provisional votes end.
    end: Time,
}

/// The part of a standing that changes at once.
///
/// ```text
///   bit  0  votes: one for each member   16  the provisional ones   32  quorum   37  do they count?   38  adoptions
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Word(u64);

impl Word {
    const SET: u64 = 0xffff;
    const PROVISIONAL: u32 = 16;
    const QUORUM: u32 = 32;
    const COUNTS: u64 = 1 << 37;
    const ADOPTIONS: u32 = 38;

    fn new(votes: MemberSet, provisional: MemberSet, quorum: usize) -> Word {
        Word((quorum as u64) << Word::QUORUM | Word::COUNTS).with(votes, provisional)
    }

    fn with(self, votes: MemberSet, provisional: MemberSet) -> Word {
        let rest = self.0 >> Word::QUORUM << Word::QUORUM;
        let provisional = provisional.and(votes).bits();
        Word(rest | votes.bits() | provisional << Word::PROVISIONAL)
    }

    /// Without votes, in the next list. After 2^26 adoptions the number begins again.
    fn adopted(self, quorum: usize) -> Word {
        let adoptions = (self.0 >> Word::ADOPTIONS).wrapping_add(1) << Word::ADOPTIONS;
        Word(adoptions | (quorum as u64) << Word::QUORUM)
    }

    fn votes(self) -> MemberSet {
        MemberSet::from_bits(self.0 & Word::SET)
    }

    fn provisional(self) -> MemberSet {
        MemberSet::from_bits(self.0 >> Word::PROVISIONAL & Word::SET)
    }

    fn quorum(self) -> usize {
        (self.0 >> Word::QUORUM & 0x1f) as usize
    }

    fn counts(self) -> bool {
        self.0 & Word::COUNTS != 0
    }
}

impl Lease {
    pub(crate) fn new() -> Lease {
        Lease {
            valid: array::from_fn(|_| AtomicI64::new(NONE.0)),
        }
    }

    /// Whether `lock` is held. `true` means that it was held at some moment during this call. `clock` returns the
    /// current time and is called after all other reads. Cost: one read per vote, one of the deadline, and two of the
    /// set of votes. It repeats if the votes change during the call.
    pub fn holds(&self, lock: &Standing, clock: impl FnOnce() -> Time) -> bool {
        loop {
            let word = lock.word();
            let until = self.until_of(lock, word);
            if lock.word() == word {
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

    /// The time from which the valid ones of `votes` are no quorum, unless they are renewed.
    pub(crate) fn until(&self, votes: MemberSet, quorum: usize) -> Time {
        self.nth(votes, quorum, |member| self.valid(member))
    }

    /// Until when the lock is held, unless votes are renewed.
    pub(crate) fn held_until(&self, lock: &Standing) -> Time {
        self.until_of(lock, lock.word())
    }

    /// The voters have no votes any more, and the words stand for those of the next list. The standings of all locks
    /// are changed before.
    pub(crate) fn reset(&self) {
        let all = (0..MAX_MEMBERS).filter_map(Member::at);
        all.for_each(|member| self.set(member, NONE));
    }

    fn until_of(&self, lock: &Standing, word: Word) -> Time {
        let deadline = lock.deadline();
        let voted = match word.counts() {
            true => self.voted_until(lock, word),
            false => Time::LONG_AGO,
        };
        match deadline == NONE {
            true => voted,
            false if self.has_ended() => Time::LONG_AGO,
            false => deadline.max(voted),
        }
    }

    /// Whether the lease has ended: for calls that begin after that.
    fn has_ended(&self) -> bool {
        self.valid[0].load(Ordering::Acquire) == ENDED
    }

    fn voted_until(&self, lock: &Standing, word: Word) -> Time {
        let (votes, provisional, quorum) = (word.votes(), word.provisional(), word.quorum());
        if provisional.is_empty() {
            return self.until(votes, quorum);
        }
        self.nth(votes, quorum, |member| match provisional.contains(member) {
            true => self.valid(member).min(lock.end),
            false => self.valid(member),
        })
    }

    /// The time of place `quorum` of `votes`, the latest first.
    fn nth(&self, votes: MemberSet, quorum: usize, time: impl Fn(Member) -> Time) -> Time {
        let mut times = [Time::LONG_AGO; MAX_MEMBERS];
        for (place, member) in times.iter_mut().zip(votes.iter()) {
            *place = time(member);
        }
        times.sort_unstable_by(|a, b| b.cmp(a));
        times[quorum - 1]
    }
}

impl Standing {
    #[cfg(test)]
    pub(crate) fn new(votes: MemberSet, quorum: usize) -> Standing {
        Standing::with(votes, quorum, (MemberSet::EMPTY, Time(i64::MAX)))
    }

    /// Some of the votes are provisional until `end`.
    pub(crate) fn with(
        votes: MemberSet,
        quorum: usize,
        (provisional, end): (MemberSet, Time),
    ) -> Standing {
        Standing {
            word: AtomicU64::new(Word::new(votes, provisional, quorum).0),
            deadline: AtomicI64::new(NONE.0),
            end,
        }
    }

    /// The current votes, also provisional ones and those that do not count. Only the agent changes them.
    pub(crate) fn votes(&self) -> MemberSet {
        self.word().votes()
    }

    pub(crate) fn provisional(&self) -> MemberSet {
        self.word().provisional()
    }

    /// When the provisional votes end, if there are any.
    pub(crate) fn end(&self) -> Option<Time> {
        (!self.provisional().is_empty()).then_some(self.end)
    }

    pub(crate) fn quorum(&self) -> usize {
        self.word().quorum()
    }

    /// Whether a quorum of votes holds the lock. If not, it is held until its deadline: see L4.
    pub(crate) fn votes_count(&self) -> bool {
        self.word().counts()
    }

    /// Removes all votes that are not in `votes`, and adds the others.
    pub(crate) fn set(&self, votes: MemberSet) {
        let word = self.word();
        self.store(word.with(votes, word.provisional()));
    }

    /// Adds a vote, or makes a provisional one the same as others.
    pub(crate) fn confirm(&self, member: Member) {
        let word = self.word();
        let (votes, provisional) = (word.votes(), word.provisional());
        self.store(word.with(votes.with(member), provisional.without(member)));
    }

    /// The lock is not held any more: see L2.
    pub(crate) fn withdraw(&self) {
        self.deadline.store(NONE.0, Ordering::Release);
        self.set(MemberSet::EMPTY);
    }

    /// The agent adopts a list with this quorum. The lock is held until `deadline`, and has no votes.
    pub(crate) fn adopt(&self, deadline: Time, quorum: usize) {
        self.deadline.store(deadline.max(NONE).0, Ordering::Release);
        self.store(self.word().adopted(quorum));
    }

    /// Only for a bug of models: a deadline is never changed.
    pub(crate) fn extend(&self, deadline: Time) {
        self.deadline.store(deadline.0, Ordering::Release);
    }

    /// Its votes count from now on.
    pub(crate) fn count(&self) {
        self.store(Word(self.word().0 | Word::COUNTS));
    }

    fn deadline(&self) -> Time {
        Time(self.deadline.load(Ordering::Acquire))
    }

    fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    fn store(&self, word: Word) {
        self.word.store(word.0, Ordering::Release);
    }

    /// Whether the vote of `member` counts at `now`, if its lease does: for model checks.
    #[cfg(feature = "model")]
    pub(crate) fn counts(&self, member: Member, now: Time) -> bool {
        let word = self.word();
        let is_provisional = word.provisional().contains(member);
        let ends = is_provisional && self.end().is_some_and(|end| end <= now);
        word.counts() && word.votes().contains(member) && !ends
    }

    /// Makes the times relative to `now`: see [`Time::relative_to`].
    #[cfg(feature = "model")]
    pub(crate) fn rebased(&self, now: Time) -> Standing {
        let end = self
            .end()
            .map_or(Time(i64::MAX), |end| end.relative_to(now));
        let deadline = match self.deadline() {
            deadline if deadline <= now => NONE,
            deadline => deadline.relative_to(now),
        };
        Standing {
            deadline: AtomicI64::new(deadline.0),
            end,
            ..Standing::clone(self)
        }
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
        let mut pairs = self.valid.iter().zip(&other.valid);
        pairs.all(|(a, b)| a.load(Ordering::Relaxed) == b.load(Ordering::Relaxed))
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
        Standing {
            word: AtomicU64::new(self.word().0),
            deadline: AtomicI64::new(self.deadline().0),
            end: self.end,
        }
    }
}

impl Standing {
    fn parts(&self) -> (Word, Time, Option<Time>) {
        (self.word(), self.deadline(), self.end())
    }
}

impl PartialEq for Standing {
    fn eq(&self, other: &Standing) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Standing {}

impl Hash for Standing {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}
