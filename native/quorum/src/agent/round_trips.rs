//! How long a voter takes to answer: an average and a mean deviation, as in TCP (RFC 6298).

use crate::rules::Rules;
use std::time::Duration;

/// A round trip counts for this share of the average.
const SMOOTHING: u32 = 8;

/// The difference of a round trip from the average counts for this share of the mean deviation.
const DEVIATION_SMOOTHING: u32 = 4;

/// The measured round trips of one lifetime of a voter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RoundTrips {
    last: Option<Duration>,
    average: Option<Duration>,
    deviation: Duration,
}

impl RoundTrips {
    /// Adds the time from a batch to its answer. Of two successive ones, the shorter one counts for the average: a
    /// pause of this agent lengthens those of all voters, one after the other, and the first answer of a voter that has
    /// just started is slow.
    pub(super) fn add(&mut self, round_trip: Duration) {
        let Some(before) = self.last.replace(round_trip) else {
            return;
        };
        let sample = round_trip.min(before);
        let average = self.average.unwrap_or(sample);
        let difference = average.abs_diff(round_trip);
        self.deviation =
            (self.deviation * (DEVIATION_SMOOTHING - 1) + difference) / DEVIATION_SMOOTHING;
        self.average = Some((average * (SMOOTHING - 1) + sample) / SMOOTHING);
    }

    /// `None` before the second round trip.
    pub(super) fn average(&self) -> Option<Duration> {
        self.average
    }

    /// How long an answer may take before it is late. On a busy machine, round trips vary a lot.
    pub(super) fn lateness(&self, rules: &Rules) -> Duration {
        let average = self.average.unwrap_or_default();
        let usual = (average * 3).max(average + self.deviation * 4);
        usual.clamp(rules.hedge, rules.hedge_most) * 2
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn measured(round_trips_ms: &[u64]) -> RoundTrips {
        let mut measured = RoundTrips::default();
        round_trips_ms
            .iter()
            .for_each(|time_ms| measured.add(ms(*time_ms)));
        measured
    }

    #[test]
    fn the_average_moves_by_an_eighth_of_the_shorter_of_two() {
        for (round_trips_ms, average_ms) in [
            (&[][..], None),
            (&[900], None),
            (&[900, 80], Some(80)),
            (&[80, 900], Some(80)),
            (&[80, 80, 900], Some(80)),
            (&[80, 80, 160, 160], Some(90)),
            (&[80, 80, 160, 0], Some(70)),
        ] {
            let average = measured(round_trips_ms).average();
            assert_eq!(average, average_ms.map(ms), "{round_trips_ms:?}");
        }
    }

    #[test]
    fn an_answer_is_late_after_six_averages_or_eight_deviations() {
        for (round_trips_ms, lateness_ms) in [
            (&[][..], 50),
            (&[8, 8], 50),
            (&[20, 20], 120),
            (&[100, 100], 600),
            (&[200, 200], 800),
            // The deviation of a long round trip: a quarter of 80 ms.
            (&[20, 20, 100], 2 * (20 + 4 * 20)),
            // A usual one reduces it by a quarter.
            (&[20, 20, 100, 20], 2 * (20 + 4 * 15)),
            (&[20, 20, 100, 20, 20, 20], 120),
        ] {
            let lateness = measured(round_trips_ms).lateness(&Rules::default());
            assert_eq!(lateness, ms(lateness_ms), "{round_trips_ms:?}");
        }
    }
}
