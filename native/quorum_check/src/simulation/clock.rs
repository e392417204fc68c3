//! The clock of a node: it counts from anywhere, runs a little too fast or too slow, and now and then at another
//! rate. Nobody's wall clock is in here, because no machine reads one.

use quorum::time::Time;

/// Nanoseconds of the simulation: what all clocks measure, and no node knows.
pub type Real = i64;
/// A microsecond.
pub const MICROSECOND: Real = 1_000;
/// A millisecond.
pub const MILLISECOND: Real = 1_000_000;
/// A second.
pub const SECOND: Real = 1_000_000_000;
/// The rate of a clock that stands still, in parts per million too fast.
pub const STANDS_STILL: i64 = -1_000_000;

/// One clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    since: Real,
    shown: i64,
    /// Parts per million that it is too fast.
    rate: i64,
}

impl Clock {
    /// Shows `shown` at `real`, and is `rate` parts per million too fast.
    #[must_use]
    pub fn new(real: Real, shown: i64, rate: i64) -> Clock {
        Clock {
            since: real,
            shown,
            rate,
        }
    }

    /// What it shows at `real`.
    #[must_use]
    pub fn at(&self, real: Real) -> Time {
        let passed = real - self.since;
        Time(self.shown + passed + passed * self.rate / 1_000_000)
    }

    /// From now on at another rate.
    pub fn set_rate(&mut self, real: Real, rate: i64) {
        *self = Clock {
            since: real,
            shown: self.at(real).0,
            rate,
        };
    }

    /// Forward, or back.
    pub fn jump(&mut self, real: Real, by: i64) {
        *self = Clock {
            since: real,
            shown: self.at(real).0 + by,
            rate: self.rate,
        };
    }

    /// A moment, not before `real`, when it shows `time` or more. A clock that stands still is looked at again a
    /// second later.
    #[must_use]
    pub fn when(&self, real: Real, time: Time) -> Real {
        let missing = time.0.saturating_sub(self.at(real).0);
        if missing <= 0 {
            return real;
        }
        if self.rate <= STANDS_STILL {
            return real + SECOND;
        }
        let span = i128::from(missing) * 1_000_000 / i128::from(1_000_000 + self.rate) + 1;
        real.saturating_add(i64::try_from(span).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_what_it_was_waited_for() {
        for rate in [-10_000, -1, 0, 1, 10_000, 200_000] {
            let mut clock = Clock::new(5, -77, rate);
            clock.jump(9, 3 * SECOND);
            let then = clock.at(9) + std::time::Duration::from_secs(1);
            let real = clock.when(9, then);
            assert!(
                clock.at(real) >= then && clock.at(real - 2) < then,
                "{rate}"
            );
        }
    }

    #[test]
    fn a_clock_that_stands_still_goes_on_from_there() {
        let mut clock = Clock::new(0, 10, 0);
        clock.set_rate(5, STANDS_STILL);
        assert_eq!(clock.at(1000), Time(15));
        clock.set_rate(1000, 0);
        assert_eq!(clock.at(1001), Time(16));
    }
}
