//! The bucket vector of a key, in one atomic word.
//!
//! The design that this library replaces keeps one counter per bucket of a key. A caller takes a permit from the first
//! bucket that is not full, and releases it to the last bucket that is not empty. That design needs the vector because
//! its store must write before it can read: a counter needs a value beyond its limit to represent "full".
//!
//! A compare-and-swap writes nothing when it refuses, so no such value is needed. A vector that is only filled from the
//! left and drained from the right is determined by its sum. With `s` permits in use and `m` per bucket it is
//!
//! ```text
//!     s = 8, m = 3      [3, 3, 2]           s / m buckets are full, s rem m in the next, the others are empty
//! ```
//!
//! So the word holds the sum. To acquire is "if s < capacity then s + 1": one compare-and-swap. To release is "s - 1".
//! The cost of both does not depend on the number of buckets (P3). The tests below compare both designs. If callers
//! pass different values of `MaxPer`, no vector is defined. Then the rule is the sum against the caller's own capacity
//! (P6).
//!
//! # The states of the word
//!
//! | word | meaning | next state by |
//! |---|---|---|
//! | `n` | `n` permits are in use; no acquire since the sweep last visited the key | acquire, release, sweep (0 only) |
//! | `USED + n` | `n` permits are in use; at least one acquire since | acquire, release, sweep (clears `USED` at 0) |
//! | `WAITERS + USED + n` | the same, and the key has a queue | acquire; a thread that has locked the queue |
//! | `SHARED + ...` | the key is shared (`shared_word.rs`) | as above, and a change of its share |
//! | `DEAD` | the key is reclaimed; a caller that finds it looks the key up again | never |
//!
//! `WAITERS` makes a release take the lock of the queue, so that it hands its permits to a waiter (`queues.rs`). An
//! acquire ignores it: while a waiter is refused, so is every caller with the same or a smaller capacity. It is also
//! set while permits of a shared key are lost, because their releases must not lower the count.
//!
//! `USED` is the second chance of the clock algorithm (Corbató 1968). A key in frequent use that is at 0 when the sweep
//! visits it is spared once. An idle key is reclaimed by the second sweep (P8). The flag costs nothing, because the
//! compare-and-swap of acquire writes the word anyway.

use crate::sync::{ordering, AtomicU64, Ordering};
use std::num::NonZeroU64;

/// Set by every acquire, cleared by the sweep.
pub(crate) const USED: u64 = 1 << 62;

/// The key has a queue. Changed only under the queue's lock. While it is set, the count decreases only under that lock.
pub(crate) const WAITERS: u64 = 1 << 61;

/// The bits of the count. Those of a shared key contain [`SHARED`], so they are above each capacity.
const COUNT: u64 = WAITERS - 1;

/// The key is shared: its word has another layout (`shared_word.rs`). Set when the key is inserted.
pub(crate) const SHARED: u64 = 1 << 60;

/// Of a shared key: a call was refused since the agent looked.
pub(crate) const REFUSED: u64 = 1 << 63;

/// The bits of each part of the word of a shared key.
pub(crate) const BITS: u32 = 20;

/// The bits of the first part of the word of a shared key, the permits in use. The share is the second part.
pub(crate) const PART: u64 = (1 << BITS) - 1;

/// The key is reclaimed.
pub(crate) const DEAD: u64 = u64::MAX;

/// The number of permits of a key that one caller allows: `MaxPer * Buckets`, saturating.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capacity(pub(crate) u64);

impl Capacity {
    /// The largest capacity, 2^60 - 1. It leaves the upper bits of the word for flags.
    pub const MAX: Capacity = Capacity(SHARED - 1);

    /// The capacity of all requests that wait for a shared key ([`CountSeen::out`]).
    pub(crate) const SHARED: Capacity = Capacity(1 << 62);

    /// The capacity of `buckets` buckets of `max_per` permits each, limited to [`Capacity::MAX`].
    pub fn of(max_per: u64, buckets: u64) -> Self {
        Capacity(max_per.saturating_mul(buckets).min(Self::MAX.0))
    }

    /// The number of permits.
    pub fn permits(self) -> u64 {
        self.0
    }

    /// The number of free permits while `in_use` are.
    pub(crate) fn free(self, in_use: u64) -> u64 {
        self.0.saturating_sub(in_use)
    }
}

/// What one call asks for: a number of permits, and the capacity under which it may have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    pub(crate) capacity: Capacity,
    pub(crate) permits: u64,
}

impl Demand {
    /// A number of permits, all or none. A number above every capacity is limited to one that is.
    pub fn of(capacity: Capacity, permits: NonZeroU64) -> Self {
        let permits = permits.get().min(Capacity::MAX.0 + 1);
        Self { capacity, permits }
    }

    /// Whether it can be granted at any count.
    pub fn is_satisfiable(self) -> bool {
        self.permits <= self.capacity.0
    }
}

impl From<Capacity> for Demand {
    /// One permit.
    #[inline(always)]
    fn from(capacity: Capacity) -> Self {
        let permits = 1;
        Self { capacity, permits }
    }
}

/// The result of [`Table::acquire`](crate::Table::acquire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The caller has the permits. The number of permits of the key in use, these included.
    Permit(u64),
    /// The capacity did not allow that many more. Nothing has changed.
    Full,
}

#[derive(Debug)]
pub(crate) struct PermitCount {
    pub(crate) word: AtomicU64,
}

impl PermitCount {
    /// A new key, with its first permits in use.
    pub(crate) fn with_permits(permits: u64) -> Self {
        Self {
            word: AtomicU64::new(USED + permits),
        }
    }

    /// A new key with a queue. Its lock is held.
    pub(crate) fn with_waiters() -> Self {
        Self {
            word: AtomicU64::new(WAITERS | USED),
        }
    }

    /// Only reads (P2).
    #[inline(always)]
    pub(crate) fn read(&self) -> CountSeen {
        CountSeen(self.word.load(Ordering::Acquire))
    }

    /// Takes the permits if the capacity allows that many more (P1). Returns `None` if the key has been reclaimed: the
    /// caller must look it up again.
    ///
    /// A grant takes effect at the successful compare-and-swap, a refusal at the read that showed the count. A failed
    /// swap means that another caller made progress. It is a reason neither to refuse nor to stop.
    ///
    /// AcqRel: what a holder wrote before its release is visible to the caller that takes the permit next.
    #[inline(always)]
    pub(crate) fn acquire(&self, demand: Demand) -> Option<Acquired> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let seen = CountSeen(word);
            let Some(in_use) = seen.admits(demand) else {
                return (!seen.is_dead()).then_some(Acquired::Full);
            };
            match self.word.compare_exchange_weak(
                word,
                (word | USED) + demand.permits,
                ordering("p1_acquired_relaxed", Ordering::AcqRel),
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(Acquired::Permit(in_use)),
                Err(now) => word = now,
            }
        }
    }

    /// Releases `permits`, unless the key has a queue: then it returns false and changes nothing. The caller's own
    /// record shows that they are in use, so the count cannot fall below 0 (P5).
    ///
    /// AcqRel: the other half of `acquire`. And the permits are off the record before the key can die (H2).
    #[inline(always)]
    pub(crate) fn release(&self, permits: u64) -> bool {
        // Relaxed: the swap orders.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & WAITERS != 0 {
                return false;
            }
            debug_assert!(word != DEAD && CountSeen(word).in_use() >= permits);
            match self.word.compare_exchange_weak(
                word,
                word - permits,
                ordering("p1_released_relaxed", Ordering::AcqRel),
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Gives the key a queue, under the queue's lock. Returns false if the key is dead.
    pub(crate) fn set_waiters(&self) -> bool {
        // All bits of DEAD are set, so it does not change.
        self.word.fetch_or(WAITERS | USED, Ordering::AcqRel) != DEAD
    }

    /// Whether releases need the lock of the queue. The caller has that lock.
    pub(crate) fn has_waiters(&self) -> bool {
        let seen = self.read();
        !seen.is_dead() && seen.0 & WAITERS != 0
    }

    /// The queue has ended. Its lock is held.
    pub(crate) fn clear_waiters(&self) {
        self.word.fetch_and(!WAITERS, Ordering::AcqRel);
    }

    /// Releases permits of a key with a queue, whose lock is held.
    pub(crate) fn release_locked(&self, permits: u64) {
        let before = self.word.fetch_sub(permits, Ordering::AcqRel);
        debug_assert!(before != DEAD && CountSeen(before).in_use() >= permits);
    }

    /// Takes permits of a key with a queue, whose lock is held, if its word has not changed since it was read.
    pub(crate) fn acquire_locked(&self, CountSeen(word): CountSeen, permits: u64) -> bool {
        let next = (word | USED) + permits;
        let swap = self
            .word
            .compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed);
        swap.is_ok()
    }

    /// Permits in use, or `None` if the key is dead.
    #[inline(always)]
    pub(crate) fn permits(&self) -> Option<u64> {
        let seen = self.read();
        (!seen.is_dead()).then_some(seen.in_use())
    }

    /// One visit of the sweep. An idle key dies; a key used since the last visit gets its second chance. Returns true
    /// if the key is dead, so that the sweep must unlink it.
    pub(crate) fn sweep(&self) -> bool {
        // With a queue the word is none of these three.
        // Acquire: operations under the key's permits, and the records of these permits, happen before its death (H2).
        //
        // The swap below may be relaxed, as long as this load is Acquire. Every change of the word is a
        // read-modify-write, so it continues the release sequences of all earlier releases. Each acquire sets USED,
        // only this function clears it, and one sweep runs at a time. (Of a shared key with a share, its agent clears
        // it, too; when the share becomes 0, it is set.) So the swap to DEAD replaces a word that is
        // equal to the one that was read here, with no acquire, hence no release, in between. The swap releases
        // nothing: a thread that reads DEAD follows no pointer because of it. A thread that acquires a permit after
        // USED was cleared reads the same release sequences.
        let word = self
            .word
            .load(ordering("p8_swept_relaxed", Ordering::Acquire));
        let (before, next) = match word {
            0 => (0, DEAD),
            USED => (USED, 0),
            // A step of the sweep killed it and then panicked. It is still linked.
            DEAD => return true,
            _ => match after_sweep(word) {
                Some(next) => (word, next),
                None => return false,
            },
        };
        // A failed swap means that a caller acquired in between: the key is in use.
        let ordering = ordering("p8_swept_relaxed", Ordering::AcqRel);
        let swapped = self
            .word
            .compare_exchange(before, next, ordering, Ordering::Acquire);
        swapped.is_ok() && next == DEAD
    }
}

/// The word after a visit of the sweep to a shared key that is idle: its share is 0, nothing is in use, and no request
/// waits. A refusal that was not read is forgotten.
fn after_sweep(word: u64) -> Option<u64> {
    let is_idle = word & (SHARED | WAITERS | PART << BITS | PART) == SHARED;
    let rested = word & !(USED | REFUSED);
    is_idle.then_some(if word == rested { DEAD } else { rested })
}

/// A word that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountSeen(pub(crate) u64);

impl CountSeen {
    /// The number of permits in use with those demanded, if the capacity allows that number. No capacity allows another
    /// permit of a dead key: the bits of its count are all set.
    #[inline(always)]
    pub(crate) fn admits(self, demand: Demand) -> Option<u64> {
        let (before, capacity) = (self.0 & COUNT, demand.capacity.0);
        // No overflow: both are below 2^62.
        let in_use = before + demand.permits;
        // Written in two ways, because the compiler knows that most calls demand one permit.
        let is_allowed = match demand.permits {
            1 => before < capacity,
            _ => in_use <= capacity,
        };
        is_allowed.then_some(in_use)
    }

    #[inline(always)]
    pub(crate) fn is_dead(self) -> bool {
        self.0 == DEAD
    }

    /// The share of a shared key that is not dead.
    pub(crate) fn share(self) -> Option<u64> {
        let is_shared = self.0 & SHARED != 0 && !self.is_dead();
        is_shared.then_some(self.0 >> BITS & PART)
    }

    /// Permits in use of a key that is not dead.
    #[inline(always)]
    pub(crate) fn in_use(self) -> u64 {
        self.0 & if self.0 & SHARED == 0 { COUNT } else { PART }
    }

    /// What the capacities of waiters are compared with: the permits in use. Of a shared key, as if it had the capacity
    /// [`Capacity::SHARED`], and all permits but its share were in use elsewhere. The key is not dead.
    pub(crate) fn out(self) -> u64 {
        let share = self.share();
        share.map_or(self.in_use(), |share| {
            Capacity::SHARED.0 - share + self.in_use()
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The vector of the original design, as its text describes it: filled from the left, drained from the right.
    #[derive(Default)]
    struct Vector(Vec<u64>);

    impl Vector {
        fn acquire(&mut self, max_per: u64, buckets: usize) -> Option<u64> {
            for bucket in 0..buckets {
                if self.0.len() == bucket {
                    self.0.push(0);
                }
                if self.0[bucket] < max_per {
                    self.0[bucket] += 1;
                    return Some(self.0.iter().sum());
                }
            }
            None
        }

        fn release(&mut self) {
            let last = self.0.iter_mut().rfind(|permits| **permits > 0);
            *last.unwrap() -= 1;
        }

        fn view(&self) -> Vec<u64> {
            self.0.iter().copied().filter(|&n| n > 0).collect()
        }
    }

    fn expand((full, rest): (u64, u64), max_per: u64) -> Vec<u64> {
        let mut view = vec![max_per; full as usize];
        view.extend((rest > 0).then_some(rest));
        view
    }

    #[derive(Clone, Debug)]
    enum Call {
        Acquire { buckets: usize, times: usize },
        Release { times: u64 },
        Sweep,
    }

    /// Calls of up to `buckets` buckets, repeated up to `times` times.
    fn calls(buckets: usize, times: usize, length: usize) -> impl Strategy<Value = Vec<Call>> {
        let call = prop_oneof![
            4 => (0..=buckets, 1..=times).prop_map(|(buckets, times)| Call::Acquire { buckets, times }),
            3 => (1..=times as u64).prop_map(|times| Call::Release { times }),
            1 => Just(Call::Sweep),
        ];
        prop::collection::vec(call, 0..length)
    }

    proptest! {
        /// P1, P3, P6, P8: the word grants, refuses and shows exactly what the vector does, for all numbers of buckets:
        /// in long histories of few permits, and in short ones of many. The sweep changes no count, and kills the word
        /// only if it is at 0 and there was no acquire since the last visit.
        #[test]
        fn word_and_vector_agree(
            (max_per, calls) in prop_oneof![(1..6u64, calls(6, 3, 600)), (1..500u64, calls(40, 2000, 30))],
        ) {
            let mut word = PermitCount { word: AtomicU64::new(0) };
            let mut vector = Vector::default();
            let mut used = false;
            for call in calls {
                let in_use = word.permits().unwrap();
                match call {
                    Call::Acquire { buckets, times } => for _ in 0..times {
                        let ours = word.acquire(Capacity::of(max_per, buckets as u64).into());
                        let expected = vector.acquire(max_per, buckets);
                        used |= expected.is_some();
                        prop_assert_eq!(ours, Some(expected.map_or(Acquired::Full, Acquired::Permit)));
                    },
                    // By a holder, or because a holder died.
                    Call::Release { times } => {
                        word.release(times.min(in_use));
                        (0..times.min(in_use)).for_each(|_| vector.release());
                    }
                    Call::Sweep if in_use == 0 && !used => {
                        // The second visit is that of the step after one that panicked.
                        prop_assert_eq!([(); 2].map(|_| word.sweep()), [true; 2]);
                        prop_assert_eq!(word.permits(), None);
                        prop_assert_eq!(word.read().admits(Capacity::MAX.into()), None);
                        prop_assert_eq!(word.acquire(Capacity::MAX.into()), None);
                        // The state that the next caller creates.
                        word = PermitCount::with_permits(1);
                        used = true;
                        prop_assert_eq!(vector.acquire(max_per, 1), Some(1));
                    }
                    Call::Sweep => {
                        prop_assert!(!word.sweep());
                        used &= in_use > 0;
                    }
                }
                let in_use = word.permits().unwrap();
                prop_assert_eq!(expand((in_use / max_per, in_use % max_per), max_per), vector.view());
            }
        }

        /// P1, P6: if `MaxPer` and the number of permits differ from call to call, the sum against the caller's own
        /// capacity decides. Sizes are arbitrary (a larger product means the largest capacity), and the count starts
        /// near 0 or near the largest capacity. A release of a key with a queue changes nothing.
        #[test]
        fn sum_decides_if_capacities_differ(
            start in prop_oneof![Just(0), Capacity::MAX.0 - 20..=Capacity::MAX.0],
            has_queue in any::<bool>(),
            calls in prop::collection::vec((size(), size(), size(), any::<bool>()), 0..300),
        ) {
            let word = PermitCount { word: AtomicU64::new(start) };
            prop_assert!(!has_queue || word.set_waiters());
            let mut in_use = start;
            for (max_per, buckets, permits, acquire) in calls {
                let permits = permits.max(1);
                if acquire {
                    let capacity = u128::from(max_per) * u128::from(buckets);
                    let capacity = capacity.min(u128::from(Capacity::MAX.0));
                    let granted = u128::from(in_use) + u128::from(permits) <= capacity;
                    in_use += if granted { permits } else { 0 };
                    let expected = if granted { Acquired::Permit(in_use) } else { Acquired::Full };
                    let ours = Capacity::of(max_per, buckets);
                    let ours = Demand::of(ours, NonZeroU64::new(permits).unwrap());
                    prop_assert_eq!(ours.is_satisfiable(), u128::from(permits) <= capacity);
                    prop_assert_eq!(word.read().admits(ours).is_some(), granted);
                    prop_assert_eq!(word.acquire(ours), Some(expected));
                } else if permits <= in_use {
                    prop_assert_eq!(word.release(permits), !has_queue);
                    in_use -= if has_queue { 0 } else { permits };
                }
                prop_assert_eq!(word.permits(), Some(in_use));
                if has_queue {
                    prop_assert!(!word.sweep());
                }
            }
        }
    }

    fn size() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0..5u64, 1 => any::<u64>()]
    }
}
