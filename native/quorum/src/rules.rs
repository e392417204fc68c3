//! The constants of the protocol, with the reason for each value. The leases are the same on all members, and so are
//! the partitions if not all members vote for each name. The other constants only change what their own node does, and
//! may differ while they are changed node by node.

use std::time::Duration;

/// The constants. Clusters run with [`Rules::default`]; models use small numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// An agent sends a heartbeat to a voter that it has sent nothing for this long, or for half of it if another
    /// heartbeat is due. It keeps the lease.
    pub heartbeat: Duration,
    /// For how long an answered batch lets the agent count on the voter's votes, measured from when the batch was
    /// *sent*.
    pub holder_lease: Duration,
    /// For how long the voter keeps an agent's votes after a batch *arrived*. It is longer than `holder_lease` by
    /// more than two clocks, each wrong by 1%, can differ, so every vote that a holder counts on exists.
    pub voter_lease: Duration,
    /// For how long a restarted voter, which has forgotten its votes, grants nothing, unless all agents have reported
    /// which of these still count. At least `voter_lease`, for the same reason.
    pub quarantine: Duration,
    /// How long an attempt may last, and how long an agent waits for the answer to a batch before it considers it
    /// lost. A lock that is held for this long asks the rest of its voters for their votes.
    pub attempt: Duration,
    /// The pause of a request for which too few voters vote. It is random: after `k` such attempts in a row it is in
    /// `(0, min(retry_most, retry_base + k * retry_step)]`. It ends when a voter votes again.
    pub retry_base: Duration,
    /// See `retry_base`.
    pub retry_step: Duration,
    /// See `retry_base`.
    pub retry_most: Duration,
    /// How long a waiting request keeps its position at a voter after it asked. Longer than `attempt`, after which it
    /// asks again.
    pub wait: Duration,
    /// For how long a voter keeps a free name for the request that got the hint: four times the round trip that the
    /// agent measured, at least this, and at most `attempt`. Longer than the request needs to ask. Otherwise the node
    /// that released the name could lock it again before any other node can ask.
    pub keep: Duration,
    /// An answer is late after six average round trips of its voter, or after two and eight mean deviations if that
    /// is longer. At least twice this, and at most twice `hedge_most`. Then requests that wait for it ask another
    /// voter. Longer than the pauses of a busy node.
    pub hedge: Duration,
    /// See `hedge`. Also how long an agent waits for other votes before it speaks to a restarted voter whose earlier
    /// votes its locks need.
    pub hedge_most: Duration,
    /// A voter is slow if its average round trip is longer than this and than four times that of the median voter.
    pub slow: Duration,
    /// For how long a voter is asked last after it was slow or did not answer. Longer than the faults of a sick voter
    /// are apart.
    pub demotion: Duration,
    /// A voter repeats a recall after this time, and then after twice the last pause, up to `heartbeat`.
    pub recall: Duration,
    /// How many locks of a name may use the same votes, one after the other, if other requests of the same node wait
    /// for the name. The agent requests this many fences at once. From 1 to 255.
    pub run: usize,
    /// For how long a lock may be passed on within its node after another node asked for it. Other nodes may wait
    /// longer by this time.
    pub run_time: Duration,
    /// A holder is notified that its lock is at risk when less than this is left of its lease: half of the lease, two
    /// heartbeats.
    pub at_risk: Duration,
    /// Fences are reserved on disk in blocks of this many, with one write per block.
    pub fence_block: u64,
    /// Names are divided into this many partitions by a hash. The names of a partition have the same voters. A voter
    /// keeps one fence for all forgotten names of a partition, which takes eight bytes. Two names of a partition cost
    /// one more message exchange when they are locked at the same moment. A power of two.
    pub partitions: usize,
    /// Callers of `try_unlock` wait while more than half of the members have not executed this many unlocks.
    pub pending_unlocks: u64,
    /// The most clients that a voter knows at a time. It stores their names before it votes for them.
    pub clients: usize,
    /// The most votes of a client at a voter.
    pub client_votes: usize,
    /// The most waiting requests of a client at a voter.
    pub client_positions: usize,
    /// How many operations a batch carries, and how many entries a machine processes in one call where there may be
    /// many. This bounds the time of a call.
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
            wait: Duration::from_millis(1500),
            keep: Duration::from_millis(20),
            hedge: Duration::from_millis(25),
            hedge_most: Duration::from_millis(400),
            slow: Duration::from_millis(10),
            demotion: Duration::from_secs(5),
            recall: Duration::from_millis(100),
            run: 16,
            run_time: Duration::from_millis(30),
            at_risk: Duration::from_secs(4),
            fence_block: 1 << 20,
            partitions: 4096,
            pending_unlocks: 4096,
            clients: 1024,
            client_votes: 100_000,
            client_positions: 10_000,
            batch: 1024,
        }
    }
}

impl Rules {
    /// Checks the constants.
    ///
    /// # Errors
    /// The first invalid constant: its name and what it must be.
    pub fn check(&self) -> Result<(), &'static str> {
        let apart = self.holder_lease.mul_f64(1.03);
        let rules = [
            (!self.heartbeat.is_zero(), "heartbeat_ms must not be 0"),
            (
                self.heartbeat * 2 < self.holder_lease,
                "heartbeat_ms must be less than half of holder_lease_ms",
            ),
            (
                self.voter_lease > apart,
                "voter_lease_ms must be more than 1.03 * holder_lease_ms",
            ),
            (
                self.quarantine >= self.voter_lease,
                "quarantine_ms must not be shorter than voter_lease_ms",
            ),
            (!self.attempt.is_zero(), "attempt_ms must not be 0"),
            (
                self.attempt <= self.holder_lease,
                "attempt_ms must not be longer than holder_lease_ms",
            ),
            (!self.retry_base.is_zero(), "retry_base_ms must not be 0"),
            (
                self.retry_most >= self.retry_base,
                "retry_most_ms must not be shorter than retry_base_ms",
            ),
            (
                self.wait > self.attempt,
                "wait_ms must be longer than attempt_ms",
            ),
            (
                self.keep <= self.attempt,
                "keep_ms must not be longer than attempt_ms",
            ),
            (!self.hedge.is_zero(), "hedge_ms must not be 0"),
            (
                self.hedge_most >= self.hedge,
                "hedge_most_ms must not be shorter than hedge_ms",
            ),
            (!self.recall.is_zero(), "recall_ms must not be 0"),
            (
                self.at_risk < self.holder_lease,
                "at_risk_ms must be shorter than holder_lease_ms",
            ),
            ((1..=255).contains(&self.run), "run must be from 1 to 255"),
            (self.fence_block > 0, "fence_block must be at least 1"),
            (
                self.partitions.is_power_of_two(),
                "partitions must be a power of two",
            ),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_rules_are_valid() {
        assert_eq!(Rules::default().check(), Ok(()));
    }

    #[test]
    fn check_names_an_invalid_rule() {
        const SECOND: Duration = Duration::from_secs(1);
        type Change = fn(&mut Rules);
        let wrong: [(&str, Change); 8] = [
            ("voter_lease_ms", |rules| rules.voter_lease = 8 * SECOND),
            ("quarantine_ms", |rules| rules.quarantine = 9 * SECOND),
            ("heartbeat_ms", |rules| rules.heartbeat = 4 * SECOND),
            ("keep_ms", |rules| rules.keep = 2 * SECOND),
            ("batch", |rules| rules.batch = 0),
            ("run", |rules| rules.run = 0),
            ("run", |rules| rules.run = 256),
            ("partitions", |rules| rules.partitions = 3),
        ];
        for (name, change) in wrong {
            let mut rules = Rules::default();
            change(&mut rules);
            assert!(rules.check().unwrap_err().starts_with(name), "{name}");
        }
    }
}
