//! What a load achieved.

use std::fmt;
use std::time::Duration;

/// What a load achieved in a span of time.
#[derive(Debug)]
pub struct Figures {
    pub locks: usize,
    pub per_second: usize,
    /// The longest wait, ended or not.
    pub longest: Duration,
    /// The number of locks of each node that locks.
    pub shares: Vec<usize>,
    /// The most locks that other nodes got while a node waited.
    pub most_behind: usize,
    /// How many frames were sent, also those to the voter of the same node and back.
    pub frames: usize,
    /// The most waiting positions at one voter, of all agents and names together.
    pub longest_queue: usize,
    /// How many batches had a `Sync`: the votes at the voter differed from those that its agent knew.
    pub repairs: usize,
}

impl Figures {
    pub fn least(&self) -> usize {
        self.shares.iter().copied().min().unwrap_or_default()
    }

    pub fn most(&self) -> usize {
        self.shares.iter().copied().max().unwrap_or_default()
    }

    pub fn frames_per_lock(&self) -> f64 {
        self.frames as f64 / self.locks as f64
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} locks/s, longest wait {:?}, {} behind, {:.2} frames/lock, longest queue {}, {} repairs, {:?}",
            self.per_second,
            self.longest,
            self.most_behind,
            self.frames_per_lock(),
            self.longest_queue,
            self.repairs,
            self.shares,
        )
    }
}
