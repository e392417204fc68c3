//! Time as callers pass it to a machine: nanoseconds of the node's own clock. A machine never reads a clock.
//!
//! The clock never goes back, and its rate is correct within 1%, also while the system sleeps. Clocks of different
//! nodes need not agree.

use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since an arbitrary moment that is fixed for each clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(pub i64);

impl Time {
    /// Before all other times.
    pub const LONG_AGO: Time = Time(i64::MIN);

    /// The same moment relative to `now`. All times up to `now` become equal, because a deadline that has passed acts
    /// the same however long ago it passed. A model check uses this to recognize equivalent states.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn relative_to(self, now: Time) -> Time {
        Time(self.0.saturating_sub(now.0).max(0))
    }

    /// As [`Time::relative_to`], for a moment from which a `span` is counted: those that are longer ago become equal.
    #[cfg(feature = "model")]
    #[must_use]
    pub(crate) fn since(self, now: Time, span: Duration) -> Time {
        let span = i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        Time(self.0.saturating_sub(now.0).max(-span))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        Time(
            self.0
                .saturating_add(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)),
        )
    }
}

impl Sub for Time {
    type Output = Duration;

    /// Zero if `earlier` is later.
    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_and_differences_are_never_negative() {
        assert_eq!(Time(1) + Duration::from_nanos(2), Time(3));
        assert_eq!(Time(i64::MAX) + Duration::MAX, Time(i64::MAX));
        assert_eq!(Time(3) - Time(1), Duration::from_nanos(2));
        assert_eq!(Time(1) - Time(3), Duration::ZERO);
        assert_eq!(
            Time(0) - Time::LONG_AGO,
            Duration::from_nanos(u64::try_from(i64::MAX).unwrap())
        );
    }
}
