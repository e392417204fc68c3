//! One key's whole bucket vector, in one atomic word.
//!
//! The design that this library replaces keeps a vector of counters per key, one for each bucket. A permit is taken
//! from the first bucket that has room, and given back to the last one that has any out. The vector is needed there
//! because the store must write before it can read: a counter needs a value beyond its limit to say "full".
//!
//! A compare-and-swap writes nothing when it refuses, so no such value is needed. And a vector that is only filled
//! from the left and drained from the right is known by its sum: with `s` permits out and `m` per bucket it reads
//!
//! ```text
//!     s = 8, m = 3      [3, 3, 2]           s / m buckets full, s rem m in the next, the others empty
//! ```
//!
//! So the sum is the vector. To acquire is "if s < capacity then s + 1", one compare-and-swap; to release is
//! "s - 1"; and the cost of both is the same for one bucket and for a thousand (P3). `tests` below play both
//! designs side by side. Where callers disagree about `MaxPer`, no vector is defined and the sum against the
//! caller's own capacity is the rule (P6).
//!
//! # The states of the word
//!
//! | word | meaning | leaves it by |
//! |---|---|---|
//! | `n` | `n` permits are out; nobody has acquired since the sweep last came by | acquire, release, sweep (0 only) |
//! | `USED + n` | `n` permits are out; somebody has acquired since | acquire, release, sweep (clears `USED` at 0) |
//! | `DEAD` | the key is gone; whoever finds it looks the key up again | never |
//!
//! `USED` is the second chance of the clock algorithm (Corbató 1968): a key in frequent use that happens to be at 0
//! when the sweep comes by is spared once, and an idle one is gone with the second sweep (P8). It costs nothing: the
//! compare-and-swap of acquire writes the word anyway.

use crate::sync::{ordering, seeded, AtomicU64, Ordering};

/// Set by every acquire, cleared by the sweep.
const USED: u64 = 1 << 62;

/// The key has been given up. Far beyond any count: counts stay below `USED`.
const DEAD: u64 = u64::MAX;

/// How many permits of a key one caller believes there are: `MaxPer * Buckets`, saturating.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capacity(u64);

impl Capacity {
    /// Nobody gets this far; it leaves room for the flags of the word.
    pub const MAX: Capacity = Capacity(USED - 1);

    /// The capacity of `buckets` buckets of `max_per` permits each. A product beyond [`Capacity::MAX`] is that.
    pub fn of(max_per: u64, buckets: u64) -> Self {
        Capacity(max_per.saturating_mul(buckets).min(Self::MAX.0))
    }

    /// Does it admit nobody at all?
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// Why a word did not give a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// At the instant of the read, no fewer permits were out than the capacity.
    Full,
    /// The key has been reclaimed: look it up again.
    Dead,
}

/// What the sweep found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idleness {
    /// Permits are out, or somebody acquired since the last sweep: the key stays.
    Kept,
    /// Nobody has used the key for a sweep: it is dead now, and it is the caller's to unlink.
    Dead,
}

/// The permits of one key that are out.
#[derive(Debug)]
pub(crate) struct Buckets {
    word: AtomicU64,
}

impl Buckets {
    /// A key that is born with its first permit out.
    pub(crate) fn with_one_permit() -> Self {
        Self {
            word: AtomicU64::new(USED + 1),
        }
    }

    /// Would a permit be given now? Only reads (P2).
    #[inline(always)]
    pub(crate) fn admits(&self, capacity: Capacity) -> Result<(), Refusal> {
        Self::check(self.word.load(Ordering::Acquire), capacity).map(|_| ())
    }

    /// Takes a permit if fewer than `capacity` are out (P1), and answers how many are out with it.
    ///
    /// The instant of the grant is the successful compare-and-swap, that of a refusal the read that showed it. A
    /// failed swap means that somebody else made progress: it is no reason to refuse, and none to give up.
    ///
    /// AcqRel: whatever a holder wrote before its release is seen by the one who takes the permit after it.
    #[inline(always)]
    pub(crate) fn acquire(&self, capacity: Capacity) -> Result<u64, Refusal> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let out = Self::check(word, capacity)? + 1;
            if seeded("p1_checked_then_stored") {
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

    /// Gives `permits` back. The caller's own record says that they are out, so the count cannot fall below 0 (P5).
    #[inline(always)]
    pub(crate) fn release(&self, permits: u64) {
        let order = ordering("p1_released_relaxed", Ordering::AcqRel);
        let before = self.word.fetch_sub(permits, order);
        debug_assert!(before != DEAD && before & !USED >= permits);
    }

    /// Permits out, or nothing if the key is dead.
    #[inline(always)]
    pub(crate) fn permits(&self) -> Option<u64> {
        match self.word.load(Ordering::Acquire) {
            DEAD => None,
            word => Some(word & !USED),
        }
    }

    /// The sweep comes by: an idle key dies, one that was used since the last time gets its second chance.
    pub(crate) fn sweep(&self) -> Idleness {
        // Acquire: what was done under the key's permits, and the records of them, come before its death (H2).
        //
        // The swap below may be relaxed, as long as this load acquires. Every change of the word is a
        // read-modify-write, so it continues the release sequences of all releases before it. Only this function
        // writes 0, and one sweep runs at a time: the swap to DEAD replaces the very 0 that was read here, with no
        // release in between. And the swap releases nothing: a thread that reads DEAD follows nothing because of it,
        // and one that acquires a permit after USED was cleared reads the same release sequences.
        let order = ordering("p8_swept_relaxed", Ordering::Acquire);
        let (before, next) = match self.word.load(order) {
            0 => (0, DEAD),
            USED => (USED, 0),
            // Killed by a step of the sweep that has panicked since: it is still to be unlinked.
            DEAD => return Idleness::Dead,
            _ => return Idleness::Kept,
        };
        if seeded("p8_death_stored") {
            self.word.store(before, Ordering::Release);
        }
        // Failing means that somebody acquired in between, which is use enough.
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
        if word == DEAD && !seeded("p8_dead_taken_for_full") {
            return Err(Refusal::Dead);
        }
        let out = word & !USED;
        if out < capacity.0 || seeded("p6_more_than_full_admits") && out > capacity.0 {
            Ok(out)
        } else {
            Err(Refusal::Full)
        }
    }
}

/// The bucket view of a count, for people to look at: how many buckets are full, and how many permits are in the
/// next.
///
/// # Panics
/// If `max_per` is 0: there is no such view.
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

    /// Calls of up to so many buckets, and up to so many times each.
    fn calls(buckets: usize, times: usize, length: usize) -> impl Strategy<Value = Vec<Call>> {
        let call = prop_oneof![
            4 => (0..=buckets, 1..=times).prop_map(|(buckets, times)| Call::Acquire { buckets, times }),
            3 => (1..=times as u64).prop_map(|times| Call::Release { times }),
            1 => Just(Call::Sweep),
        ];
        prop::collection::vec(call, 0..length)
    }

    proptest! {
        /// P1, P3, P6, P8: the word gives, refuses and shows exactly what the vector does, whatever numbers of
        /// buckets the callers bring: in long histories of few permits, and in short ones of many. The sweep changes
        /// nothing of it, and takes the word only if nobody has acquired since it last came by.
        #[test]
        fn the_word_is_the_vector(
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
                    // By a holder, or by the death of one.
                    Call::Release { times } => {
                        word.release(times.min(out));
                        (0..times.min(out)).for_each(|_| vector.release());
                    }
                    Call::Sweep if out == 0 && !used => {
                        // The second time as by a step that finds what one that panicked has killed.
                        prop_assert_eq!([(); 2].map(|_| word.sweep()), [Idleness::Dead; 2]);
                        prop_assert_eq!(word.permits(), None);
                        prop_assert_eq!(word.admits(Capacity::MAX), Err(Refusal::Dead));
                        prop_assert_eq!(word.acquire(Capacity::MAX), Err(Refusal::Dead));
                        // As it is found by whoever acquires the key next.
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

        /// P1, P6: with a `MaxPer` that differs from call to call, the sum against the caller's own capacity decides,
        /// of any size (a product beyond the greatest capacity is that), and wherever the count is between
        /// nothing and the greatest capacity.
        #[test]
        fn the_sum_decides_when_sizes_differ(
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
