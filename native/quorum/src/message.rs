//! Messages between agents and voters. `docs/quorum.md`, "Terms", defines the words of the protocol.
//!
//! ```text
//!          agent                         voter
//!            | -- Batch: operations, stamp -> |   at most one unanswered to each voter
//!            | <- Ack: a reply for each ----- |
//!            | <- Notice: votes, recalls ---- |   unrequested and not answered; a lost one only costs time
//!                                 voter -- Ask, Answer --> voter    after a restart: which life of mine do you know?
//! ```

pub use crate::name::{Name, Names};

use crate::bounds::{self, MAX_FENCE};
use crate::members::Node;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU16;

/// The lifetime of an agent or a voter, different from those of all other lifetimes. For an agent it is a random
/// number. For a voter it is the number of its start, the *life*, followed by 32 random bits: see [`Lifetime::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lifetime(pub u64);

impl Lifetime {
    /// The lifetime of a voter. Its life is stored, and higher than all earlier ones, unless the file is not the last
    /// one. The random bits tell two starts with the same life apart.
    #[must_use]
    pub fn new(life: u32, random: u32) -> Lifetime {
        Lifetime(u64::from(life) << 32 | u64::from(random))
    }

    /// The life of a voter.
    #[must_use]
    pub fn life(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The number of an agent's lease at a voter. The voter assigns a new number when it receives a batch of an agent
/// that has no lease. It does not reuse a number during its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// What a vote belongs to. While both numbers stay the same, the voter has dropped no vote of the agent on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Session {
    /// The voter's lifetime.
    pub voter: Lifetime,
    /// The agent's lease at the voter.
    pub generation: Generation,
}

/// Identifies one attempt to lock, and the lock that results from it. Tokens of an agent grow and are never reused,
/// so a late message about one attempt cannot affect another. A lock that was passed on within its node gets a new
/// token that voters do not know; its votes keep the token of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token(pub u64);

/// A number that a locked resource compares to detect old holders. The fences of a name's writers strictly increase.
/// At most [`MAX_FENCE`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Fence(#[serde(deserialize_with = "bounds::fence")] pub u64);

impl Fence {
    /// The next fence. The highest fence is its own successor.
    #[must_use]
    pub fn next(self) -> Fence {
        self.after(NonZeroU16::MIN)
    }

    /// The last of the `run` fences after this one. No result is above the highest fence.
    #[must_use]
    pub fn after(self, run: NonZeroU16) -> Fence {
        Fence(self.0.saturating_add(run.get().into()).min(MAX_FENCE))
    }

    /// The first fence of a run of `run` fences that ends with this one.
    #[must_use]
    pub fn first(self, run: NonZeroU16) -> Fence {
        Fence(self.0.saturating_sub(u64::from(run.get()) - 1))
    }
}

/// How a request locks its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

/// The order of requests: of two that wait, the one with the lower priority is *older* and goes first.
///
/// A request takes the next value of a Lamport clock (Lamport, "Time, Clocks, and the Ordering of Events", 1978) when
/// it begins to ask, and keeps it over all its attempts. So only finitely many requests are ever older than it. Safety
/// does not depend on priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Priority {
    /// One more than the highest clock that the agent had received.
    pub clock: u64,
    /// The agent of the request.
    pub agent: Lifetime,
    /// The token of its first attempt.
    pub token: Token,
}

impl Priority {
    /// Older than all requests: for a held lock that lacks the vote of a voter.
    pub const OLDEST: Priority = Priority {
        clock: 0,
        agent: Lifetime(0),
        token: Token(0),
    };
}

/// An operation that an agent asks of a voter. The voter executes the operations of a batch in their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Op {
    /// Requests a vote for all the names. The answer is [`Reply::Yes`] or [`Reply::No`].
    Lock {
        /// The attempt.
        token: Token,
        /// For all the names.
        mode: Mode,
        /// The `clock` of the request's [`Priority`].
        clock: u64,
        /// The `token` of the request's [`Priority`].
        first: Token,
        /// Whether the request queues if it cannot get the vote now. It keeps its position until it gets the vote, is
        /// unlocked, its node is disconnected, or the agent's lease ends.
        wait: bool,
        /// How many consecutive fences a writer takes: one for each lock that these votes may serve.
        run: NonZeroU16,
        /// The names to lock.
        names: Names,
    },
    /// Confirms a vote, and raises its fence to this one if the voter's mark covers it. The answer is [`Reply::Yes`] or
    /// [`Reply::Missing`].
    Confirm {
        /// The vote.
        token: Token,
        /// The fence.
        fence: Fence,
    },
    /// Requests a vote for a lock that is already held by votes of other voters. A voter in quarantine accepts it if
    /// `continues` is true: this is how it learns of its earlier votes. If requests that are not granted have the
    /// vote, the lock queues as the oldest. The answer is [`Reply::Yes`] or [`Reply::No`].
    Assert {
        /// The lock.
        token: Token,
        /// For all the names.
        mode: Mode,
        /// Its fence.
        fence: Fence,
        /// Whether the lock had a vote of an earlier lifetime of the voter, which still counted when the agent learned
        /// of this lifetime.
        continues: bool,
        /// The names of the lock.
        names: Names,
    },
    /// Removes the vote or the queue position of this token, if there is one. Not answered.
    Unlock {
        /// The attempt or the lock.
        token: Token,
        /// The fence of the lock, if it had one. The voter never gives it or a lower fence for these names again.
        fence: Fence,
    },
    /// Removes each vote and queue position of this agent with a token in `from..to` that is not in `live`. The answer
    /// is [`Reply::Synced`].
    Sync {
        /// The start of the range.
        from: Token,
        /// The end of the range, exclusive.
        to: Token,
        /// In ascending order.
        #[serde(deserialize_with = "bounds::live")]
        live: Vec<Token>,
    },
    /// The agent has asserted all locks that continue a vote, and no vote of an earlier session counts any more. Not
    /// answered.
    Settled {
        /// Whether no lock of the agent relies on voters of an earlier view any more.
        kept: bool,
    },
    /// Revokes the votes for this name. Not answered.
    Revoke {
        /// The name.
        name: Name,
    },
    /// An earlier agent of this node is dead: removes its votes and queue positions. Only the answer to a
    /// [`Verdict::Mismatch`] contains it: that a message made the round trip proves which agent is alive. Not answered.
    EndAgent {
        /// The dead agent.
        agent: Lifetime,
    },
}

/// Why a voter rejected a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Another request has the vote, or an older one waits for it, and this one does not wait.
    Busy,
    /// The request has a queue position now. The voter gives its vote as soon as it can.
    Queued,
    /// The voter is in quarantine.
    Quarantine,
    /// The fence is above the stored mark, and the voter is storing a higher mark. Or the agent is that of a client,
    /// and the voter is storing that it may have votes. Or the fences are exhausted, after 2^62.
    Storing,
}

/// Whether a voter grants votes. Each answer and notice says it, so agents know whether a quorum does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VoterState {
    /// It votes.
    Voting,
    /// It is in quarantine.
    Quarantined,
    /// It votes for readers only: it waits until a mark for more fences is stored.
    NoStore,
}

/// What each answer and notice of a voter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VoterStatus {
    /// The highest clock that the voter has received: see [`Priority`].
    pub clock: u64,
    /// Whether it votes.
    pub state: VoterState,
}

/// A voter's reply to an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reply {
    /// The vote is given, or was given before.
    Yes {
        /// The highest fence of the names. For a writer, the last fence of a run in which each fence is new at this
        /// voter.
        fence: Fence,
    },
    /// The vote is rejected.
    No {
        /// The reason.
        reason: Reason,
    },
    /// The voter has no such vote.
    Missing,
    /// The tokens of `live` that have no vote at this voter.
    Synced {
        /// In ascending order.
        #[serde(deserialize_with = "bounds::missing")]
        missing: Vec<Token>,
    },
}

/// Operations of an agent for a voter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Batch {
    /// The agent's lifetime.
    pub agent: Lifetime,
    /// The agent's current session at the voter; `None` before the first answer.
    pub session: Option<Session>,
    /// Grows with each batch to this voter.
    pub seq: u64,
    /// The agent's time at sending. The voter returns it unchanged in the answer.
    pub stamp: Time,
    /// The highest clock that the agent has received or given: see [`Priority`].
    pub clock: u64,
    /// The operations. A heartbeat has none.
    #[serde(deserialize_with = "bounds::ops")]
    pub ops: Vec<Op>,
}

/// A voter's answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ack {
    /// The state of the voter.
    pub status: VoterStatus,
    /// The lifetime of the agent that sent the batch.
    pub agent: Lifetime,
    /// The agent's session at the voter. Generation 0 means no session.
    pub session: Session,
    /// The `seq` of the batch.
    pub seq: u64,
    /// The `stamp` of the batch.
    pub stamp: Time,
    /// The result.
    pub verdict: Verdict,
}

/// The result of a batch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// The voter has executed the batch.
    Done {
        /// One reply for each operation that is answered, in the order of the operations.
        #[serde(deserialize_with = "bounds::replies")]
        replies: Vec<Reply>,
        /// The sum over all votes of this agent after the batch: see [`Digest`].
        digest: Digest,
        /// Revoked locks that the agent has not unlocked yet.
        #[serde(deserialize_with = "bounds::revoked")]
        revoked: Vec<Token>,
    },
    /// The voter has executed nothing, because the batch belongs to another session. The agent must start over with
    /// `Ack::session`.
    Mismatch {
        /// The session of the batch.
        named: Option<Session>,
        /// Other agents of the same node that have votes or queue positions here. The agent that receives this is
        /// alive, so they are dead, and it answers [`Op::EndAgent`].
        #[serde(deserialize_with = "bounds::others")]
        others: Vec<Lifetime>,
    },
}

/// A sum over tokens. Two sides that added and removed the same tokens have the same digest.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Digest(pub u64);

impl Digest {
    /// The digest after `token` is added.
    #[must_use]
    pub fn with(self, token: Token) -> Digest {
        Digest(self.0.wrapping_add(scatter(token.0)))
    }

    /// The digest after `token` is removed.
    #[must_use]
    pub fn without(self, token: Token) -> Digest {
        Digest(self.0.wrapping_sub(scatter(token.0)))
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). It is a
/// bijection, and each input bit changes half of the output bits on average.
pub(crate) fn scatter(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A voter asks an agent for a vote, because a request of another agent waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Recall {
    /// The vote.
    pub token: Token,
    /// The oldest request that waits for it.
    pub priority: Priority,
    /// The mode of that request.
    pub mode: Mode,
}

/// A vote that a voter gives unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Given {
    /// The request.
    pub token: Token,
    /// As in [`Reply::Yes`].
    pub fence: Fence,
}

/// An unrequested message from a voter to an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Notice {
    /// The state of the voter.
    pub status: VoterStatus,
    /// The voter's lifetime. An agent that knows another lifetime of the voter sends a batch, and learns its new
    /// session from the answer.
    pub voter: Lifetime,
    /// The lease of the agent that the tokens belong to. An earlier agent of the node may have had the same tokens. 0
    /// if there are none.
    pub generation: Generation,
    /// The number of the agent's last batch that the voter has executed: the given votes count from when it was sent.
    pub seq: u64,
    /// Votes for waiting requests of the receiving agent.
    #[serde(deserialize_with = "bounds::given")]
    pub given: Vec<Given>,
    /// Votes of the receiving agent that others wait for.
    #[serde(deserialize_with = "bounds::recalls")]
    pub recalls: Vec<Recall>,
    /// Whether the agent should send a batch now, because it needs the answer.
    pub wants_batch: bool,
}

/// A message between voters about their lives, after a restart of one of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Life {
    /// Asks which lifetime of the sender the receiver knows.
    Ask {
        /// The lifetime of the asking voter. The answer repeats it.
        asker: Lifetime,
    },
    /// The answer.
    Answer {
        /// The lifetime of the asking voter.
        asker: Lifetime,
        /// The lifetime of the answering voter.
        voter: Lifetime,
        /// The lifetime with the highest life that the answering voter knows of the asking voter's member.
        seen: Lifetime,
    },
}

/// A message from node to node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Frame {
    /// From an agent to a voter.
    Batch(Batch),
    /// From a voter to an agent: answers a batch.
    Ack(Ack),
    /// From a voter to an agent, unrequested.
    Notice(Notice),
    /// From a voter to a voter.
    Life(Life),
}

/// A frame and its receiver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Send {
    /// The receiving node. The kind of frame determines whether its voter or its agent receives it.
    pub to: Node,
    /// The frame to send.
    pub frame: Frame,
}
