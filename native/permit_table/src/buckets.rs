//! The bucket vector of a key, in one atomic word.
//!
//! The design that this library replaces keeps one counter per bucket of a key. A caller takes a permit from the first
//! bucket that is not full, and releases it to the last bucket that is not empty. That design needs the vector because
//! its store must write before it can read: a counter needs a value beyond its limit to represent "full".
//!
//! A compare-and-swap writes nothing when it refuses, so no such value is needed. A vector that is only filled from the
//! left and drained from the right is determined by its sum. With `s` permits out and `m` per bucket it is
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
//! | `n` | `n` permits are out; no acquire since the sweep last visited the key | acquire, release, sweep (0 only) |
//! | `USED + n` | `n` permits are out; at least one acquire since | acquire, release, sweep (clears `USED` at 0) |
//! | `DEAD` | the key is reclaimed; a caller that finds it looks the key up again | never |
//!
//! `USED` is the second chance of the clock algorithm (Corbató 1968). A key in frequent use that is at 0 when the sweep
//! visits it is spared once. An idle key is reclaimed by the second sweep (P8). The flag costs nothing, because the
//! compare-and-swap of acquire writes the word anyway.

use crate::sync::{ordering, seeded, AtomicU64, Ordering};

/// Set by every acquire, cleared by the sweep.
const USED: u64 = 1 << 62;

/// The key is reclaimed. The value is far beyond any count: counts are below `USED`.
const DEAD: u64 = u64::MAX;

/// The number of permits of a key that one caller allows: `MaxPer * Buckets`, saturating.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capacity(u64);

impl Capacity {
    /// The largest capacity. It leaves the upper bits of the word for flags; no count gets this far.
    pub const MAX: Capacity = Capacity(USED - 1);

    /// The capacity of `buckets` buckets of `max_per` permits each, limited to [`Capacity::MAX`].
    pub fn of(max_per: u64, buckets: u64) -> Self {
        Capacity(max_per.saturating_mul(buckets).min(Self::MAX.0))
    }

    /// Whether it allows no permit.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// At the instant of the read, the number of permits out was not below the capacity.
    Full,
    /// The key has been reclaimed. The caller must look it up again.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idleness {
    /// Permits are out, or there was an acquire since the last sweep: the key stays.
    Kept,
    /// There was no acquire since the last sweep. The key is dead now, and the sweep must unlink it.
    Dead,
}

#[derive(Debug)]
pub(crate) struct Buckets {
    word: AtomicU64,
}

impl Buckets {
    /// A new key, with its first permit out.
    pub(crate) fn with_one_permit() -> Self {
        Self {
            word: AtomicU64::new(USED + 1),
        }
    }

    /// Whether a permit would be granted now. Only reads (P2).
    #[inline(always)]
    pub(crate) fn admits(&self, capacity: Capacity) -> Result<(), Refusal> {
        Self::check(self.word.load(Ordering::Acquire), capacity).map(|_| ())
    }

    /// Takes a permit if fewer than `capacity` are out (P1). Returns the number of permits out, this one included.
    ///
    /// A grant takes effect at the successful compare-and-swap, a refusal at the read that showed the count. A failed
    /// swap means that another caller made progress. It is a reason neither to refuse nor to stop.
    ///
    /// AcqRel: what a holder wrote before its release is visible to the caller that takes the permit next.
    #[inline(always)]
    pub(crate) fn acquire(&self, capacity: Capacity) -> Result<u64, Refusal> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let out = Self::check(word, capacity)? + 1;
            if seeded("p1_acquire_without_cas") {
                self.word.store(USED | out, Ordering::Release);
                return Ok(out);
            }
            match self.word.compare_exchange_weak(
                word,
                USED | out,
                ordering("p1_acquired_relaxed", Ordering::AcqRel),
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(out),
                Err(now) => word = now,
            }
        }
    }

    /// Releases `permits`. The caller's own record shows that they are out, so the count cannot fall below 0 (P5).
    #[inline(always)]
    pub(crate) fn release(&self, permits: u64) {
        let ordering = ordering("p1_released_relaxed", Ordering::AcqRel);
        let before = self.word.fetch_sub(permits, ordering);
        debug_assert!(before != DEAD && before & !USED >= permits);
    }

    /// Permits out, or `None` if the key is dead.
    #[inline(always)]
    pub(crate) fn permits(&self) -> Option<u64> {
        match self.word.load(Ordering::Acquire) {
            DEAD => None,
            word => Some(word & !USED),
        }
    }

    /// One visit of the sweep. An idle key dies; a key used since the last visit gets its second chance.
    pub(crate) fn sweep(&self) -> Idleness {
        // Acquire: operations under the key's permits, and the records of these permits, happen before its death (H2).
        //
        // The swap below may be relaxed, as long as this load is Acquire. Every change of the word is a
        // read-modify-write, so it continues the release sequences of all earlier releases. Only this function writes
        // 0, and one sweep runs at a time. So the swap to DEAD replaces the very 0 that was read here, with no release
        // in between. The swap releases nothing: a thread that reads DEAD follows no pointer because of it. A thread
        // that acquires a permit after USED was cleared reads the same release sequences.
        let (before, next) = match self
            .word
            .load(ordering("p8_swept_relaxed", Ordering::Acquire))
        {
            0 => (0, DEAD),
            USED => (USED, 0),
            // A step of the sweep killed it and then panicked. It is still linked.
            DEAD => return Idleness::Dead,
            _ => return Idleness::Kept,
        };
        if seeded("p8_dead_stored_without_cas") {
            self.word.store(before, Ordering::Release);
        }
        // A failed swap means that a caller acquired in between: the key is in use.
        match self.word.compare_exchange(
            before,
            next,
            ordering("p8_swept_relaxed", Ordering::AcqRel),
            Ordering::Acquire,
        ) {
            Ok(_) if next == DEAD => Idleness::Dead,
            _ => Idleness::Kept,
        }
    }

    #[inline(always)]
    fn check(word: u64, capacity: Capacity) -> Result<u64, Refusal> {
        if word == DEAD && !seeded("p8_dead_key_reported_full") {
            return Err(Refusal::Dead);
        }
        let out = word & !USED;
        if out < capacity.0 || seeded("p6_count_above_capacity_admits") && out > capacity.0 {
            Ok(out)
        } else {
            Err(Refusal::Full)
        }
    }
}

/// The bucket view of a count, for display: the number of full buckets, and the number of permits in the next one.
///
/// # Panics
/// If `max_per` is 0: then there is no such view.
pub fn bucket_view(permits: u64, max_per: u64) -> (u64, u64) {
    (permits / max_per, permits % max_per)
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
            let mut word = Buckets { word: AtomicU64::new(0) };
            let mut vector = Vector::default();
            let mut used = false;
            for call in calls {
                let out = word.permits().unwrap();
                match call {
                    Call::Acquire { buckets, times } => for _ in 0..times {
                        let ours = word.acquire(Capacity::of(max_per, buckets as u64)).ok();
                        prop_assert_eq!(ours, vector.acquire(max_per, buckets));
                        used |= ours.is_some();
                    },
                    // By a holder, or because a holder died.
                    Call::Release { times } => {
                        word.release(times.min(out));
                        (0..times.min(out)).for_each(|_| vector.release());
                    }
                    Call::Sweep if out == 0 && !used => {
                        // The second visit is that of the step after one that panicked.
                        prop_assert_eq!([(); 2].map(|_| word.sweep()), [Idleness::Dead; 2]);
                        prop_assert_eq!(word.permits(), None);
                        prop_assert_eq!(word.admits(Capacity::MAX), Err(Refusal::Dead));
                        prop_assert_eq!(word.acquire(Capacity::MAX), Err(Refusal::Dead));
                        // The state that the next caller creates.
                        word = Buckets::with_one_permit();
                        used = true;
                        prop_assert_eq!(vector.acquire(max_per, 1), Some(1));
                    }
                    Call::Sweep => {
                        prop_assert_eq!(word.sweep(), Idleness::Kept);
                        used &= out > 0;
                    }
                }
                let out = word.permits().unwrap();
                prop_assert_eq!(expand(bucket_view(out, max_per), max_per), vector.view());
            }
        }

        /// P1, P6: if `MaxPer` differs from call to call, the sum against the caller's own capacity decides. Sizes are
        /// arbitrary (a larger product means the largest capacity), and the count starts near 0 or near the largest
        /// capacity.
        #[test]
        fn sum_decides_if_capacities_differ(
            start in prop_oneof![Just(0), Capacity::MAX.0 - 20..=Capacity::MAX.0],
            calls in prop::collection::vec((size(), size(), any::<bool>()), 0..300),
        ) {
            let word = Buckets { word: AtomicU64::new(start) };
            let mut out = start;
            for (max_per, buckets, acquire) in calls {
                if acquire {
                    let capacity = u128::from(max_per) * u128::from(buckets);
                    let granted = u128::from(out) < capacity && out < Capacity::MAX.0;
                    out += u64::from(granted);
                    let expected = if granted { Ok(out) } else { Err(Refusal::Full) };
                    let ours = Capacity::of(max_per, buckets);
                    prop_assert_eq!(ours.is_zero(), capacity == 0);
                    prop_assert_eq!(word.admits(ours).is_ok(), granted);
                    prop_assert_eq!(word.acquire(ours), expected);
                } else if out > 0 {
                    word.release(1);
                    out -= 1;
                }
                prop_assert_eq!(word.permits(), Some(out));
            }
        }
    }

    fn size() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0..5u64, 1 => any::<u64>()]
    }
}
