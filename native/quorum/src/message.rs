//! Messages between agents and voters. `docs/quorum.md`, "Terms", defines the words of the protocol.
//!
//! ```text
//!          agent                         voter
//!            | -- Batch: operations, stamp -> |   at most one unanswered to each voter
//!            | <- Ack: a reply for each ----- |
//!            | <- Notice: hints, speak ------ |   unrequested and not answered; a lost one only costs time
//!                                 voter -- Ask, Told, Lost --> voter    after a restart: what is your highest fence?
//! ```

pub use crate::name::{Name, Names};

use crate::bounds::{self, MAX_FENCE};
use crate::members::Member;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU8;

/// The number of the member list. There is only one list, because members cannot change while nodes run.
pub const EPOCH: u32 = 0;

/// The lifetime of an agent or a voter: a random number drawn at its start, different from those of all other
/// lifetimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lifetime(pub u64);

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
        self.after(NonZeroU8::MIN)
    }

    /// The last of the `run` fences after this one. No result is above the highest fence.
    #[must_use]
    pub fn after(self, run: NonZeroU8) -> Fence {
        Fence(self.0.saturating_add(run.get().into()).min(MAX_FENCE))
    }

    /// The first fence of a run of `run` fences that ends with this one.
    #[must_use]
    pub fn first(self, run: NonZeroU8) -> Fence {
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

/// Which waiters go before this request.
///
/// Requests reach voters in different orders. If each voter used its own order, agents would wait for each other. The
/// first voter that is alive therefore decides the order, and the other voters follow it as far as they know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Turn {
    /// The waiter for which the voter keeps the name; and, before a reader, all writers. For voters other than the
    /// first, while the first voter has not voted yet.
    Unknown,
    /// All earlier waiters. For the first voter.
    Earlier,
    /// No waiter: the first voter has voted for the request. For the other voters. If another request has the vote,
    /// this one becomes the next.
    Nobody,
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
        /// Which waiters go first.
        turn: Turn,
        /// The fence that a writer proposes, so that all voters return the same one.
        guess: Fence,
        /// How many consecutive fences a writer takes: one for each lock that these votes may serve.
        run: NonZeroU8,
        /// The names to lock.
        names: Names,
    },
    /// Sets the agreed fence of a vote. The answer is [`Reply::Confirmed`] or [`Reply::Missing`].
    Confirm {
        /// The vote.
        token: Token,
        /// The fence.
        fence: Fence,
    },
    /// Requests a vote for a lock that is already held by votes of other voters. A voter in quarantine accepts it:
    /// this is how it learns of held locks. The answer is [`Reply::Yes`] or [`Reply::No`].
    Assert {
        /// The lock.
        token: Token,
        /// For all the names.
        mode: Mode,
        /// Its fence.
        fence: Fence,
        /// The names of the lock.
        names: Names,
    },
    /// Removes the vote, if there is one. Not answered.
    Unlock {
        /// The vote.
        token: Token,
        /// The fence of the lock, if it had one. The voter never gives it or a lower fence for these names again.
        fence: Fence,
    },
    /// Removes the agent from the queues of these names. Not answered.
    Leave {
        /// The names.
        names: Names,
    },
    /// Removes each vote of this agent with a token in `from..to` that is not in `live`. The answer is
    /// [`Reply::Synced`].
    Sync {
        /// The start of the range.
        from: Token,
        /// The end of the range, exclusive.
        to: Token,
        /// In ascending order.
        #[serde(deserialize_with = "bounds::live")]
        live: Vec<Token>,
    },
    /// The agent has asserted all its locks, and no vote of an earlier session counts any more. Not answered.
    Settled,
    /// Revokes the votes for this name. Not answered.
    Revoke {
        /// The name.
        name: Name,
    },
}

/// Why a voter rejected a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Readers have votes for a name.
    Readers,
    /// A writer has a vote for a name.
    Writer,
    /// An earlier waiter goes first: see [`Turn`].
    Turn,
    /// The voter does not vote yet: it is in quarantine or recovers its fences.
    Quarantine,
    /// The fence is above the stored mark, and the voter is storing a higher mark. Or the fences are exhausted, after
    /// 2^62.
    Storing,
}

/// A voter's reply to an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reply {
    /// The vote is granted, or was granted before.
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
    /// The voter has recorded the fence.
    Confirmed,
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
    /// The sender's member list: [`EPOCH`].
    pub epoch: u32,
    /// The agent's lifetime.
    pub agent: Lifetime,
    /// The agent's current session at the voter; `None` before the first answer.
    pub session: Option<Session>,
    /// Grows with each batch to this voter.
    pub seq: u64,
    /// The agent's time at sending. The voter returns it unchanged in the answer.
    pub stamp: Time,
    /// The operations. A heartbeat has none.
    #[serde(deserialize_with = "bounds::ops")]
    pub ops: Vec<Op>,
}

/// A voter's answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ack {
    /// The voter's member list.
    pub epoch: u32,
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
        /// Revoked locks that the agent has not released yet.
        #[serde(deserialize_with = "bounds::revoked")]
        revoked: Vec<Token>,
    },
    /// The voter has executed nothing, because the batch belongs to another session. The agent must start over with
    /// `Ack::session`.
    Mismatch {
        /// The session of the batch.
        named: Option<Session>,
    },
    /// The voter has executed nothing, because it has another member list, that of `Ack::epoch`.
    OtherEpoch,
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

    /// The digest of the tokens of both.
    #[must_use]
    pub fn plus(self, other: Digest) -> Digest {
        Digest(self.0.wrapping_add(other.0))
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

/// An unrequested message from a voter to an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Notice {
    /// The voter's member list.
    pub epoch: u32,
    /// The voter's lifetime. An agent that knows another lifetime of the voter sends a batch, and learns its new
    /// session from the answer.
    pub voter: Lifetime,
    /// Names for which the receiving agent may be the next in the queue.
    #[serde(deserialize_with = "bounds::hints")]
    pub hints: Vec<Name>,
    /// Whether the agent should send a batch now, because the answer contains news for it.
    pub speak: bool,
}

/// A message between voters, after a restart that lost the fences.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Floor {
    /// Asks for the receiver's highest fence.
    Ask {
        /// The sender's member list.
        epoch: u32,
        /// The lifetime of the asking voter. The answer repeats it.
        asker: Lifetime,
    },
    /// The highest fence of the answering voter. Only a voter that votes sends it.
    Told {
        /// The sender's member list.
        epoch: u32,
        /// The lifetime of the asking voter.
        asker: Lifetime,
        /// The answering voter has never given a higher fence.
        fence: Fence,
    },
    /// The answering voter has lost its fences, too. Only a voter that also asks sends it.
    Lost {
        /// The sender's member list.
        epoch: u32,
        /// The lifetime of the asking voter.
        asker: Lifetime,
        /// An upper bound of all fences that the sender gave before it started, if wall clocks are right.
        origin: Fence,
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
    Floor(Floor),
}

/// A frame and its receiver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Send {
    /// The receiving node. The kind of frame determines whether its voter or its agent receives it.
    pub to: Member,
    /// The frame to send.
    pub frame: Frame,
}
