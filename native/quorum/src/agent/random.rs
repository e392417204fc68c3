//! Random pauses between attempts, so that two colliding requests do not collide again. The numbers come from a seed,
//! so a run can be replayed.

use crate::message::scatter;
use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A duration above zero and at most `most`.
    pub(super) fn up_to(&mut self, most: Duration) -> Duration {
        let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX).max(1);
        let word = scatter(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Duration::from_nanos(1 + word % nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_and_stay_within_bounds() {
        let mut random = Random::new(7);
        let pauses: Vec<_> = (0..1000)
            .map(|_| random.up_to(Duration::from_nanos(10)).as_nanos())
            .collect();
        assert_eq!(
            (pauses.iter().min(), pauses.iter().max()),
            (Some(&1), Some(&10))
        );
        assert_eq!(random.up_to(Duration::ZERO), Duration::from_nanos(1));
    }
}
