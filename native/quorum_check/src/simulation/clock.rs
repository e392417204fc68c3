//! The clock of a machine: it starts at any value, and its rate is slightly wrong and may change.
//!
//! It is a monotonic clock. Machines read no wall clock.

use quorum::time::Time;

/// Nanoseconds of the simulation.
pub type Real = i64;
pub const MICROSECOND: Real = 1_000;
pub const MILLISECOND: Real = 1_000_000;
pub const SECOND: Real = 1_000_000_000;
/// The rate of a clock that stands still.
pub const STANDS_STILL: i64 = -1_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    since: Real,
    shown: i64,
    rate: i64,
}

impl Clock {
    /// Shows `shown` at `real`, and is fast by `rate` parts per million.
    pub fn new(real: Real, shown: i64, rate: i64) -> Clock {
        Clock {
            since: real,
            shown,
            rate,
        }
    }

    pub fn at(&self, real: Real) -> Time {
        let passed = real - self.since;
        Time(self.shown + passed + passed * self.rate / 1_000_000)
    }

    pub fn set_rate(&mut self, real: Real, rate: i64) {
        *self = Clock::new(real, self.at(real).0, rate);
    }

    pub fn jump(&mut self, real: Real, by: i64) {
        *self = Clock::new(real, self.at(real).0 + by, self.rate);
    }

    /// A moment, not before `real`, when it shows `time` or more. For a clock that stands still: a second later.
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
    fn when_is_the_moment_at_which_the_clock_shows_the_time() {
        for rate in [-10_000, -1, 0, 1, 10_000, 200_000] {
            let mut clock = Clock::new(5, -77, rate);
            clock.jump(9, 3 * SECOND);
            let then = clock.at(9) + std::time::Duration::from_secs(1);
            let real = clock.when(9, then);
            let [shown, before] = [real, real - 2].map(|real| clock.at(real));
            assert!(shown >= then && before < then, "{rate}");
        }
    }

    #[test]
    fn a_clock_that_stood_still_continues_from_its_value() {
        let mut clock = Clock::new(0, 10, 0);
        clock.set_rate(5, STANDS_STILL);
        assert_eq!(clock.at(1000), Time(15));
        clock.set_rate(1000, 0);
        assert_eq!(clock.at(1001), Time(16));
    }
}
