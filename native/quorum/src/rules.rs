//! The constants of the protocol, and why each is what it is. They are the same on all members.

use std::time::Duration;

/// How long, how often and how many. [`Rules::default`] is what clusters run with; models of it use small numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// An agent that has said nothing to a voter for so long says so: it keeps the lease.
    pub heartbeat: Duration,
    /// How long after it was *sent* an answered batch lets the agent count on the voter's votes.
    pub holder_lease: Duration,
    /// How long after a batch *arrived* the voter keeps the votes of its agent. Longer than `holder_lease` by more
    /// than two clocks, each wrong by one per cent, can be apart; so what a holder counts on is always there.
    pub voter_lease: Duration,
    /// How long a voter that has forgotten everything grants nothing, unless all agents have told it what they hold.
    /// As `voter_lease`, and for the same reason.
    pub quarantine: Duration,
    /// How long an agent waits for votes before it takes an attempt back; and for the answer to a batch before it
    /// takes it for lost.
    pub attempt: Duration,
    /// The pause after `k` attempts that left no place in the line of the first voter is random, in
    /// `(0, min(retry_most, retry_base + k * retry_step)]`; and up to `retry_most` with one, since a hint ends it.
    pub retry_base: Duration,
    /// See `retry_base`.
    pub retry_step: Duration,
    /// See `retry_base`.
    pub retry_most: Duration,
    /// How long a refused request keeps its place at a voter unless it comes again: longer than an attempt and the
    /// longest pause together.
    pub wait: Duration,
    /// How long a voter keeps a name that has become free for the first that waits for it, and has been told: longer
    /// than it takes it to come. Without that whoever gave it back would have it again before anybody else could ask.
    /// And for so long an agent keeps the vote of the first voter while others have theirs given away.
    pub keep: Duration,
    /// How many locks of a name may come of the same votes, one after the other, if others of the same node wait for it
    /// when its turn comes: so many fences are taken at once. From 1 to 255.
    pub run: usize,
    /// For how long a lock may be passed on within its node, counted from when the first of the run was granted: that
    /// others wait so much longer is what it costs.
    pub run_time: Duration,
    /// A holder hears that its lock is at risk when less than this is left of its lease: half of it, two heartbeats.
    pub at_risk: Duration,
    /// Fences are reserved on disk in blocks of so many: one write a block.
    pub fence_block: u64,
    /// How many last fences of forgotten names a voter keeps: names share them by a hash of their own. Two names that
    /// share one cost an exchange of messages when they are locked at the same moment; eight bytes each.
    pub fence_floors: usize,
    /// How many unlocks may wait for a quorum before callers wait, too.
    pub pending_unlocks: u64,
    /// How many operations a batch carries, and how many entries a machine looks at in a single call where there may
    /// be many: so that no call takes long.
    pub batch: usize,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            heartbeat: Duration::from_secs(2),
            holder_lease: Duration::from_secs(8),
            voter_lease: Duration::from_secs(10),
            quarantine: Duration::from_secs(10),
            attempt: Duration::from_secs(1),
            retry_base: Duration::from_millis(10),
            retry_step: Duration::from_millis(20),
            retry_most: Duration::from_secs(1),
            wait: Duration::from_secs(3),
            keep: Duration::from_millis(100),
            run: 16,
            run_time: Duration::from_millis(50),
            at_risk: Duration::from_secs(4),
            fence_block: 1 << 20,
            fence_floors: 1024,
            pending_unlocks: 4096,
            batch: 1024,
        }
    }
}

impl Rules {
    /// Which rule is impossible, if one is: the field's name, and what it must be.
    ///
    /// # Errors
    /// The sentence to show.
    pub fn check(&self) -> Result<(), &'static str> {
        let apart = self.holder_lease.mul_f64(1.03);
        let rules = [
            (
                !self.heartbeat.is_zero(),
                "heartbeat must be more than nothing",
            ),
            (
                self.heartbeat * 2 < self.holder_lease,
                "heartbeat must be less than half of holder_lease",
            ),
            (
                self.voter_lease > apart,
                "voter_lease must be more than 1.03 * holder_lease",
            ),
            (
                self.quarantine >= self.voter_lease,
                "quarantine must not be shorter than voter_lease",
            ),
            (!self.attempt.is_zero(), "attempt must be more than nothing"),
            (
                self.attempt <= self.holder_lease,
                "attempt must not be longer than holder_lease",
            ),
            (
                !self.retry_base.is_zero(),
                "retry_base must be more than nothing",
            ),
            (
                self.retry_most >= self.retry_base,
                "retry_most must not be shorter than retry_base",
            ),
            (
                self.wait > self.attempt + self.retry_most,
                "wait must be longer than attempt and retry_most together",
            ),
            (
                self.at_risk < self.holder_lease,
                "at_risk must be shorter than holder_lease",
            ),
            ((1..=255).contains(&self.run), "run must be from 1 to 255"),
            (self.fence_block > 0, "fence_block must be at least 1"),
            (self.fence_floors > 0, "fence_floors must be at least 1"),
            (
                self.pending_unlocks > 0,
                "pending_unlocks must be at least 1",
            ),
            (
                self.batch > 0 && self.batch < crate::frame::MAX_OPS,
                "batch must be at least 1 and below frame::MAX_OPS: one more settles a session",
            ),
        ];
        rules
            .iter()
            .find(|(kept, _)| !kept)
            .map_or(Ok(()), |(_, sentence)| Err(sentence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clusters_run_with_is_possible() {
        assert_eq!(Rules::default().check(), Ok(()));
    }

    #[test]
    fn an_impossible_rule_is_named() {
        let rules = Rules::default();
        let second = Duration::from_secs(1);
        let wrong = [
            (
                Rules {
                    voter_lease: 8 * second,
                    ..rules
                },
                "voter_lease",
            ),
            (
                Rules {
                    quarantine: 9 * second,
                    ..rules
                },
                "quarantine",
            ),
            (
                Rules {
                    heartbeat: 4 * second,
                    ..rules
                },
                "heartbeat",
            ),
            (
                Rules {
                    wait: 2 * second,
                    ..rules
                },
                "wait",
            ),
            (Rules { batch: 0, ..rules }, "batch"),
            (Rules { run: 0, ..rules }, "run"),
            (Rules { run: 256, ..rules }, "run"),
            (
                Rules {
                    fence_floors: 0,
                    ..rules
                },
                "fence_floors",
            ),
        ];
        for (rules, name) in wrong {
            assert!(rules.check().unwrap_err().starts_with(name), "{name}");
        }
    }
}
