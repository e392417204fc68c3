//! The word of a **shared** key: a key whose limit is divided among the tables of several nodes. Each of them has a
//! *share*, the number of permits that it may have in use. An agent outside this crate sets it.
//!
//! ```text
//!   63        62     61        60       59 .. 40   39 .. 20   19 .. 0
//!   REFUSED   USED   WAITERS   SHARED   passed     share      permits in use
//! ```
//!
//! An acquire decides on one read of the word, and takes effect by one compare-and-swap. It compares the capacity of
//! the call with `passed`, the one that the agent set last. If they differ, nothing changes, and the caller tells the
//! agent. Then it compares the permits in use with the share. `REFUSED` tells the agent, when it looks, that a call
//! was refused, and `USED` that one was granted.
//!
//! A share can be set below the number of permits in use. These stay in use. No permit is granted until fewer than the
//! share are in use. So after the share was set to `s` when `n` permits were in use, at most `max(s, n)` are, until it
//! is set again.
//!
//! A key is shared from its insertion on, or never. Its word is above each capacity, so [`Table::acquire`] finds it
//! full. It must not be passed to other calls for keys that are not shared.
//!
//! [`Table::acquire`]: crate::Table::acquire

use crate::permit_count::{
    Acquired, Capacity, CountSeen, Demand, PermitCount, BITS, DEAD, PART, REFUSED, SHARED, USED,
    WAITERS,
};
use crate::sync::{AtomicU64, Ordering};

/// `passed`, if the agent has set none. No capacity is that large, so no word but `DEAD` has all bits.
const NONE: u64 = PART;

/// What a table has of a shared key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    share: u64,
    passed: Option<Capacity>,
    pub(crate) limit: Capacity,
}

impl Share {
    /// The largest share, passed capacity and limit. Larger ones count as this one.
    pub const MAX: u64 = PART - 1;

    /// `share` permits may be in use, `limit` in all shares together. Calls with another capacity than `passed` return
    /// `None`.
    pub fn new(share: u64, passed: Option<Capacity>, limit: Capacity) -> Self {
        Self {
            share: share.min(Self::MAX),
            passed: passed.map(Capacity::of_shared),
            limit: limit.of_shared(),
        }
    }

    fn bits(&self) -> u64 {
        let passed = self.passed.map_or(NONE, Capacity::permits);
        SHARED | passed << (2 * BITS) | self.share << BITS
    }

    /// Without a share, the key is new to the sweep.
    fn new_bits(&self) -> u64 {
        self.bits() | if self.share == 0 { USED } else { 0 }
    }
}

impl Capacity {
    /// As a capacity of a shared key.
    pub(crate) fn of_shared(self) -> Self {
        self.min(Capacity(Share::MAX))
    }
}

impl PermitCount {
    /// A new shared key.
    pub(crate) fn with_share(share: &Share) -> Self {
        Self {
            word: AtomicU64::new(share.new_bits()),
        }
    }

    /// As [`PermitCount::acquire`], for permits of the share. `None` if the agent has set another capacity, or the
    /// key is dead: nothing has changed.
    #[inline(always)]
    pub(crate) fn acquire_shared(&self, demand: Demand) -> Option<Acquired> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let seen = CountSeen(word);
            if !seen.has_passed(demand.capacity) {
                return None;
            }
            let Some(in_use) = seen.admits_shared(demand) else {
                return Some(Acquired::Full);
            };
            match self.word.compare_exchange_weak(
                word,
                (word | USED) + demand.permits,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(Acquired::Permit(in_use)),
                Err(now) => word = now,
            }
        }
    }

    /// Sets the share and the passed capacity, under the lock of the queue. If requests wait, takes all permits that
    /// are free then, in the same step: no caller overtakes the waiters. Returns how many, or `None` if the key is
    /// dead.
    ///
    /// AcqRel, as all changes: the sweep relies on the release sequences.
    pub(crate) fn set_share(&self, share: &Share, has_waiters: bool) -> Option<u64> {
        let taken = |word: u64| match has_waiters {
            true => share.share.saturating_sub(word & PART),
            false => 0,
        };
        let set = |word| {
            debug_assert!(word & SHARED != 0, "a key is shared from its insertion on");
            let kept = (word & (REFUSED | USED | WAITERS | PART)) + taken(word);
            (word != DEAD).then_some(kept | share.new_bits())
        };
        let set = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
        set.ok().map(taken)
    }

    /// Notes that a call was refused. Writes only if that is not noted.
    #[inline(always)]
    pub(crate) fn note_refusal(&self, seen: CountSeen) {
        if seen.0 & REFUSED == 0 {
            // All bits of DEAD are set, so it does not change.
            self.word.fetch_or(REFUSED, Ordering::AcqRel);
        }
    }

    /// Whether a call was refused, and whether the share was used, since the last time.
    pub(crate) fn take_marks(&self) -> (bool, bool) {
        // Without a share, `USED` is for the sweep.
        let marks = |word: u64| match word >> BITS & PART {
            0 => REFUSED,
            _ => REFUSED | USED,
        };
        let take = |word| (word != DEAD && word & marks(word) != 0).then_some(word & !marks(word));
        let taken = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, take);
        taken.map_or((false, false), |word| {
            (word & REFUSED != 0, word & marks(word) & USED != 0)
        })
    }
}

impl CountSeen {
    /// Whether the key is shared, and this capacity is the one that the agent set last. Not of a dead key.
    #[inline(always)]
    pub(crate) fn has_passed(self, capacity: Capacity) -> bool {
        self.0 & SHARED != 0 && self.0 >> (2 * BITS) & PART == capacity.0
    }

    /// The number of permits in use with those demanded, if the share and the capacity of the call allow that number.
    #[inline(always)]
    pub(crate) fn admits_shared(self, demand: Demand) -> Option<u64> {
        let in_use = (self.0 & PART) + demand.permits;
        let is_allowed = in_use <= self.0 >> BITS & PART && demand.is_satisfiable();
        is_allowed.then_some(in_use)
    }

    /// Whether the key is shared, has no share, and the agent has set no capacity since: no permit can be acquired.
    pub(crate) fn is_ended(self) -> bool {
        self.share() == Some(0) && self.passed().is_none()
    }

    /// The capacity that was passed last for a shared key.
    pub(crate) fn passed(self) -> Option<Capacity> {
        let passed = self.0 >> (2 * BITS) & PART;
        (self.share().is_some() && passed != NONE).then_some(Capacity(passed))
    }
}
