//! How fast a voter may give fences: more slowly than a wall clock advances.
//!
//! If too many voters lose their fences at once, the next ones begin at the wall clock, in units of 16 ns
//! ([`Fences::origin`](super::Fences::origin)). This must be above all earlier fences. So no voter gives or stores a
//! fence above what the highest clock of the members shows:
//!
//! - At its start, a voter may give fences up to the higher one of its known fences and its own clock. The known ones
//!   were given or stored earlier, so they are not above the highest clock.
//! - From then on the limit rises by one fence in 17 ns of the voter's own clock. A wall clock advances by one in
//!   16 ns. The difference covers clocks whose rate is wrong by 1 % each.
//! - The stored mark keeps the limit, too: after a crash the mark counts as given. A voter that restarts again and
//!   again therefore cannot use up blocks faster than the clock advances.
//! - A fence that another voter gave is within the limit of that voter, whose clock may be ahead. It is always
//!   recorded, and the limit continues from there.
//!
//! If a clock is set back, the known fences are above it, and fences grow from them at the same pace.

use crate::bounds::MAX_FENCE;
use crate::message::Fence;
use crate::time::Time;

/// The time in which a voter may give one fence.
const NANOS_PER_FENCE: u128 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pace {
    /// The limit at `since`. `None` if there is no limit.
    from: Option<Fence>,
    since: Time,
}

impl Pace {
    pub(super) fn new(from: Fence, since: Time) -> Pace {
        let from = Some(from);
        Pace { from, since }
    }

    pub(super) fn unlimited() -> Pace {
        let (from, since) = (None, Time(0));
        Pace { from, since }
    }

    /// No higher fence may be given now.
    pub(super) fn limit(&self, now: Time) -> Fence {
        let Some(Fence(from)) = self.from else {
            return Fence(MAX_FENCE);
        };
        let more = (now - self.since).as_nanos() / NANOS_PER_FENCE;
        let more = u64::try_from(more).unwrap_or(MAX_FENCE);
        Fence(from.saturating_add(more).min(MAX_FENCE))
    }

    /// Another voter has given `fence`.
    pub(super) fn raise(&mut self, fence: Fence, now: Time) {
        if fence > self.limit(now) {
            *self = Pace::new(fence, now);
        }
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        if self.from.is_some() {
            *self = Pace::new(self.limit(now), Time(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn the_limit_rises_more_slowly_than_the_clock() {
        let pace = Pace::new(Fence(1000), Time(7));
        assert_eq!(pace.limit(Time(7)), Fence(1000));
        assert_eq!(pace.limit(Time(7 + 17)), Fence(1001));
        let risen = pace.limit(Time(7 + SECOND)).0 - 1000;
        // The voter's clock is fast by 1 %, the wall clock slow by 1 %.
        let fast = pace.limit(Time(7 + SECOND / 100 * 101)).0 - 1000;
        let slow_clock = SECOND as u64 / 100 * 99 / 16;
        assert!(risen > 58_000_000 && fast <= slow_clock);
        // A time before the start does not lower it.
        assert_eq!(pace.limit(Time(0)), Fence(1000));
    }

    #[test]
    fn a_fence_of_another_voter_raises_the_limit_only_if_it_is_higher() {
        let mut pace = Pace::new(Fence(1000), Time(0));
        pace.raise(Fence(1001), Time(170));
        assert_eq!(pace.limit(Time(170)), Fence(1010));
        pace.raise(Fence(5000), Time(170));
        assert_eq!(pace.limit(Time(340)), Fence(5010));
    }

    #[test]
    fn no_limit_exceeds_the_highest_fence() {
        let pace = Pace::new(Fence(MAX_FENCE - 1), Time(0));
        assert_eq!(pace.limit(Time(i64::MAX)), Fence(MAX_FENCE));
        assert_eq!(Pace::unlimited().limit(Time(0)), Fence(MAX_FENCE));
    }
}
