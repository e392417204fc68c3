//! The constants of the protocol, with the reason for each value. The times that leases depend on are parts of one
//! lease, which is the same on all nodes.

use std::time::Duration;

/// The constants. Clusters run with [`Rules::of`] their lease; models use small numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// An agent sends a heartbeat to a voter that it has sent nothing for this long, or for half of it if another
    /// heartbeat is due. It keeps the lease. A fifth of the lease: three may be lost before the holder's lease ends.
    pub heartbeat: Duration,
    /// For how long an answered batch lets the agent count on the voter's votes, measured from when the batch was
    /// *sent*.
    pub holder_lease: Duration,
    /// The lease: for how long the voter keeps an agent's votes after a batch *arrived*. It is longer than
    /// `holder_lease` by more than two clocks, each wrong by 1%, can differ, so every vote that a holder counts on
    /// exists. For the same reason, a restarted voter, which has forgotten its votes, grants nothing for this long,
    /// unless all agents have reported which of these still count: its *quarantine*.
    pub voter_lease: Duration,
    /// How long an agent waits for the answer to a batch before it considers it lost, and the longest time that a try
    /// takes. A tenth of the lease: longer than the pauses of a busy node, and short enough to repeat a lost heartbeat
    /// twice.
    pub attempt: Duration,
    /// A waiting request does not count at a voter that has heard nothing of its agent for this long, and a vote that
    /// was given to it unasked is taken back. Agents with waiting requests send a batch each third of it. Longer than
    /// `attempt` by half. At least 500 ms: the pauses of a busy node are shorter, and a lock must not end because of
    /// one that begins right after it was granted by unasked votes.
    pub wait: Duration,
    /// How long after a younger request of another node has begun to wait for a vote, its holder is informed; and how
    /// long after an unasked vote its agent confirms it. Most contended locks are unlocked earlier.
    pub patience: Duration,
    /// A voter repeats a recall after this time, and then after twice the last pause, up to `heartbeat`. A tenth of
    /// `attempt`, because a lost recall delays another request.
    pub recall: Duration,
    /// How many locks of a name may use the same votes, one after the other, if other requests of the same node wait
    /// for the name. The agent requests this many fences at once. From 1 to 255.
    pub run: usize,
    /// For how long a lock may be passed on within its node after another node asked for it. Other nodes may wait
    /// longer by this time.
    pub run_time: Duration,
    /// A holder is notified that its lock is at risk when less than this is left of its lease: half of `holder_lease`,
    /// two heartbeats.
    pub at_risk: Duration,
    /// Fences are reserved on disk in blocks of this many, with one write per block.
    pub fence_block: u64,
    /// How many floors a voter keeps for forgotten names, of eight bytes each: see `voter/floors.rs`.
    pub floors: usize,
    /// Callers of `unlock_async` wait while more than half of the members have not executed this many unlocks.
    pub pending_unlocks: u64,
    /// How many operations a batch carries, and how many entries a machine processes in one call where there may be
    /// many. This bounds the time of a call.
    pub batch: usize,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::of(Duration::from_secs(10))
    }
}

impl Rules {
    /// The constants for this lease of voters.
    pub fn of(lease: Duration) -> Rules {
        Rules {
            heartbeat: part(lease, 20),
            holder_lease: part(lease, 80),
            voter_lease: lease,
            attempt: part(lease, 10),
            wait: part(lease, 15).max(Duration::from_millis(500)),
            patience: Duration::from_millis(20),
            recall: part(lease, 1),
            run: 16,
            run_time: Duration::from_millis(30),
            at_risk: part(lease, 40),
            fence_block: 1 << 22,
            floors: 4096,
            pending_unlocks: 4096,
            batch: 1024,
        }
    }

    /// Within which time a quorum of voters must answer which names have votes ([`Voter::voted_names`]): less than the
    /// shortest time for which a voter keeps a vote longer than its holder counts it. That is a fifth of `wait`, for a
    /// vote that was given unasked. A sixth of the fifth is left for wrong clocks.
    ///
    /// [`Voter::voted_names`]: crate::voter::Voter::voted_names
    #[must_use]
    pub fn answers(&self) -> Duration {
        self.wait / 6
    }

    /// Checks constants that were chosen one by one.
    ///
    /// # Errors
    /// The first invalid constant, and what it must be.
    pub fn check(&self) -> Result<(), &'static str> {
        let apart = self.holder_lease.mul_f64(1.03);
        let rules = [
            (
                !self.heartbeat.is_zero() && self.heartbeat * 2 < self.holder_lease,
                "heartbeat must be less than half of holder_lease, and not 0",
            ),
            (
                self.voter_lease > apart,
                "voter_lease must be more than 1.03 * holder_lease",
            ),
            (
                !self.attempt.is_zero() && self.attempt <= self.holder_lease,
                "attempt must not be longer than holder_lease, and not 0",
            ),
            (self.wait > self.attempt, "wait must be longer than attempt"),
            (!self.recall.is_zero(), "recall must not be 0"),
            (
                self.at_risk < self.holder_lease,
                "at_risk must be shorter than holder_lease",
            ),
            ((1..=255).contains(&self.run), "run must be from 1 to 255"),
            (self.fence_block > 0, "fence_block must be at least 1"),
            (self.floors > 0, "floors must be at least 1"),
            (
                self.pending_unlocks > 0,
                "pending_unlocks must be at least 1",
            ),
            (
                self.batch > 0 && self.batch < crate::bounds::MAX_OPS,
                "batch must be from 1 to 4095",
            ),
        ];
        rules
            .iter()
            .find(|(kept, _)| !kept)
            .map_or(Ok(()), |(_, sentence)| Err(sentence))
    }
}

/// A part of the lease.
fn part(lease: Duration, percent: u64) -> Duration {
    Duration::from_nanos(lease.as_nanos() as u64 / 100 * percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_a_lease_are_valid() {
        for lease_ms in [1000, 10_000, u64::from(u32::MAX)] {
            let rules = Rules::of(Duration::from_millis(lease_ms));
            assert_eq!(rules.check(), Ok(()), "{lease_ms}");
        }
    }

    /// Q15, if the clocks of the node that asks, of the holder and of the voter are wrong by 1 %.
    #[test]
    fn answers_are_late_before_a_vote_that_counted_is_gone() {
        for lease_ms in [1000, 3000, 3334, 10_000, u64::from(u32::MAX)] {
            let rules = Rules::of(Duration::from_millis(lease_ms));
            let asked = (rules.holder_lease, rules.voter_lease);
            let unasked = (rules.wait * 4 / 5, rules.wait);
            for (counted, kept) in [asked, unasked] {
                let slow = (counted + rules.answers()).div_f64(0.99);
                assert!(slow < kept.div_f64(1.01), "{lease_ms}");
            }
        }
    }

    #[test]
    fn check_names_an_invalid_rule() {
        const SECOND: Duration = Duration::from_secs(1);
        type Change = fn(&mut Rules);
        let wrong: [(&str, Change); 7] = [
            ("voter_lease", |rules| rules.voter_lease = 8 * SECOND),
            ("heartbeat", |rules| rules.heartbeat = 4 * SECOND),
            ("batch", |rules| rules.batch = 0),
            ("run", |rules| rules.run = 0),
            ("run", |rules| rules.run = 256),
            ("wait", |rules| rules.wait = SECOND),
            ("floors", |rules| rules.floors = 0),
        ];
        for (name, change) in wrong {
            let mut rules = Rules::default();
            change(&mut rules);
            assert!(rules.check().unwrap_err().starts_with(name), "{name}");
        }
    }
}
