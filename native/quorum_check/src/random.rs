//! Random numbers from a seed: the same seed gives the same history on any machine.

/// SplitMix64 (Steele, Lea, Flood, 2014): good for all 2^64 seeds, and neighboring seeds give unrelated numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to `end - 1`. 0 if `end` is not positive.
    pub fn below(&mut self, end: i64) -> i64 {
        let end = u128::try_from(end).unwrap_or(0);
        ((u128::from(self.word()) * end) >> 64) as i64
    }

    /// From `first` up to `last`.
    pub fn between(&mut self, first: i64, last: i64) -> i64 {
        first + self.below(last - first + 1)
    }

    /// From `first` up to `last`, with each order of magnitude equally likely.
    pub fn spread(&mut self, first: i64, last: i64) -> i64 {
        let (low, high) = ((first.max(1) as f64).ln(), (last.max(1) as f64).ln());
        let part = (self.word() >> 11) as f64 / (1_u64 << 53) as f64;
        ((low + (high - low) * part).exp() as i64).clamp(first, last)
    }

    /// True with this probability in thousandths.
    pub fn chance(&mut self, thousandths: i64) -> bool {
        self.below(1000) < thousandths
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as i64) as usize]
    }

    pub fn weighted<T: Copy>(&mut self, from: &[(i64, T)]) -> T {
        let mut rest = self.below(from.iter().map(|(weight, _)| weight).sum());
        for (weight, thing) in from {
            if rest < *weight {
                return *thing;
            }
            rest -= weight;
        }
        from[from.len() - 1].1
    }

    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.below(last as i64 + 1) as usize);
        }
    }
}
