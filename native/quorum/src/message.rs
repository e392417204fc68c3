//! What agents and voters say to each other.
//!
//! ```text
//!          agent                         voter
//!            | -- Batch: operations, stamp -> |   at most one unanswered to each voter
//!            | <- Ack: a result for each ---- |
//!            | <- Notice: come again, ... --- |   unasked, unanswered; a lost one costs time only
//!                                 voter -- Ask, Told, Lost --> voter    after a restart: how far did the fences go?
//! ```

use crate::members::Member;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU8;
use std::sync::Arc;

/// Which list of members. There is but one, until lists change while nodes run.
pub const EPOCH: u32 = 0;

/// What is locked: any bytes, from 1 to [`MAX_NAME`](crate::frame::MAX_NAME) of them. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub(crate) Arc<[u8]>);

impl Name {
    /// A copy of `bytes`. None if there are none, or more than [`MAX_NAME`](crate::frame::MAX_NAME).
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Name> {
        (1..=crate::frame::MAX_NAME)
            .contains(&bytes.len())
            .then(|| Name(bytes.into()))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// The names of one lock: at least one, in order, each once. At most [`MAX_NAMES`](crate::frame::MAX_NAMES).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Names(pub(crate) Arc<[Name]>);

impl Names {
    /// These names, sorted. None if there are none, if one is there twice, or if they are more than
    /// [`MAX_NAMES`](crate::frame::MAX_NAMES).
    #[must_use]
    pub fn new(mut names: Vec<Name>) -> Option<Names> {
        names.sort_unstable();
        let fit = (1..=crate::frame::MAX_NAMES).contains(&names.len());
        (fit && names.windows(2).all(|pair| pair[0] < pair[1])).then(|| Names(names.into()))
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Name> {
        self.0.iter()
    }

    /// The name, if it is but one.
    #[must_use]
    pub fn alone(&self) -> Option<&Name> {
        match &*self.0 {
            [name] => Some(name),
            _ => None,
        }
    }
}

impl From<Name> for Names {
    fn from(name: Name) -> Names {
        Names([name].into())
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

/// Which life of an agent or a voter: a number drawn at random when it starts, never drawn again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// Which lease of an agent at a voter: a new number, never used again in this life of the voter, each time that the
/// voter takes up an agent it does not know, or knows no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// What a vote belongs to: while both numbers stand, the voter has forgotten nothing of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Session {
    /// The voter's life.
    pub voter: Incarnation,
    /// The agent's lease in it.
    pub generation: Generation,
}

/// One attempt to lock, and the lock it became. Each attempt has a new one: growing, never used again by an agent. So
/// whatever comes late about an attempt says nothing about a later one. A lock that was passed on within its node has a
/// new one, too, which voters never hear: there its votes are still those of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token(pub u64);

/// A number for the locked resource to compare: for each name those of its writers grow, always. At most
/// [`MAX_FENCE`](crate::frame::MAX_FENCE).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Fence(#[serde(deserialize_with = "crate::frame::fence")] pub u64);

impl Fence {
    /// The number after it. The highest stays what it is.
    #[must_use]
    pub fn next(self) -> Fence {
        self.after(NonZeroU8::MIN)
    }

    /// The last of so many numbers after it. None is past the highest.
    #[must_use]
    pub fn after(self, run: NonZeroU8) -> Fence {
        Fence(
            self.0
                .saturating_add(run.get().into())
                .min(crate::frame::MAX_FENCE),
        )
    }

    /// The first of so many numbers of which it is the last.
    #[must_use]
    pub fn first(self, run: NonZeroU8) -> Fence {
        Fence(self.0.saturating_sub(u64::from(run.get()) - 1))
    }
}

/// How a name is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// With other readers.
    Read,
    /// Alone.
    Write,
}

/// Which of those that wait for a name go before a request that comes now.
///
/// Voters hear of requests in different orders. If each went by its own, agents would wait for each other. So one of
/// them, the first that is alive, keeps the order, and the others keep to it: as far as they can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Turn {
    /// Those for whom the name is being kept; and before a reader all writers. Asked of voters that are not the
    /// first, when nobody knows yet whose turn it is.
    Unknown,
    /// All that came earlier. Asked of the first.
    Earlier,
    /// Nobody: it is its turn at the first voter. Asked of the others; where somebody else has the vote it is the next.
    Nobody,
}

/// What an agent asks of a voter. Operations of a batch are done in their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Op {
    /// A vote for all the names or for none. Answered by [`Reply::Yes`] or [`Reply::No`].
    Lock {
        /// Of this attempt.
        token: Token,
        /// Of all the names.
        mode: Mode,
        /// How it stands to others that wait for the names.
        turn: Turn,
        /// The fence the writer hopes for, so that all voters say the same.
        guess: Fence,
        /// How many fences a writer takes, one after the other: one for each lock that may come of these votes.
        run: NonZeroU8,
        /// What to lock.
        names: Names,
    },
    /// The number that was agreed on, for a vote given. Answered by [`Reply::Confirmed`] or [`Reply::Missing`].
    Confirm {
        /// The vote.
        token: Token,
        /// The fence.
        fence: Fence,
    },
    /// A vote for a lock that is held already by others' votes. Also in quarantine: that is what it is for. Answered
    /// by [`Reply::Yes`] or [`Reply::No`].
    Assert {
        /// The lock.
        token: Token,
        /// Of all the names.
        mode: Mode,
        /// Its fence.
        fence: Fence,
        /// Of the lock.
        names: Names,
    },
    /// Forget the vote, if there is one. Not answered.
    Unlock {
        /// The vote.
        token: Token,
        /// Of the lock, if it had one: nothing below it will be given again.
        fence: Fence,
    },
    /// This agent no longer waits for these names. Not answered.
    Leave {
        /// The names.
        names: Names,
    },
    /// Forget each vote of this agent from `from` up to `to`, less one, that is not in `live`. Answered by
    /// [`Reply::Synced`].
    Sync {
        /// The first token that is meant.
        from: Token,
        /// The first one that is not.
        to: Token,
        /// In order.
        #[serde(deserialize_with = "crate::frame::live")]
        live: Vec<Token>,
    },
    /// All that the agent holds has been asserted, and nothing of an earlier session counts any more. Not answered.
    Settled,
    /// Whoever holds this name is to give it up. Not answered.
    Revoke {
        /// The name.
        name: Name,
    },
}

/// Why a vote was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Readers have it.
    Readers,
    /// A writer has it.
    Writer,
    /// Somebody came earlier: as [`Turn`] says.
    Turn,
    /// The voter does not vote yet.
    Quarantine,
    /// The fence is past what the voter has stored. It is storing; or there are no more numbers, after 2^62.
    Storing,
}

/// What a voter answers to an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reply {
    /// The vote is given, or was before.
    Yes {
        /// Of the names, the highest; for a writer, the last of a run that was never given here before.
        fence: Fence,
    },
    /// It is not.
    No {
        /// Why.
        reason: Reason,
    },
    /// The voter has written it down.
    Confirmed,
    /// There is no such vote.
    Missing,
    /// These of `live` have no vote here.
    Synced {
        /// In order.
        #[serde(deserialize_with = "crate::frame::missing")]
        missing: Vec<Token>,
    },
}

/// From an agent to a voter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Batch {
    /// Which list of members: [`EPOCH`].
    pub epoch: u32,
    /// The agent's life.
    pub agent: Incarnation,
    /// What the agent believes it is to the voter; none before the first answer.
    pub session: Option<Session>,
    /// Grows with every batch to this voter.
    pub seq: u64,
    /// When it was sent, by the agent's clock. It comes back with the answer and means nothing to the voter.
    pub stamp: Time,
    /// Perhaps none: a heartbeat.
    #[serde(deserialize_with = "crate::frame::ops")]
    pub ops: Vec<Op>,
}

/// A voter's answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ack {
    /// Of the voter.
    pub epoch: u32,
    /// Whose batch it was.
    pub agent: Incarnation,
    /// What the agent is to the voter now. Generation 0 is none.
    pub session: Session,
    /// Of the batch.
    pub seq: u64,
    /// Of the batch.
    pub stamp: Time,
    /// What came of it.
    pub verdict: Verdict,
}

/// What came of a batch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// It was done.
    Done {
        /// For each operation that is answered, in order.
        #[serde(deserialize_with = "crate::frame::replies")]
        replies: Vec<Reply>,
        /// Of all the votes of this agent, after the batch: see [`Digest`].
        digest: Digest,
        /// Locks that were revoked and that the agent has not given up yet.
        #[serde(deserialize_with = "crate::frame::revoked")]
        revoked: Vec<Token>,
    },
    /// Nothing was done: the batch was meant for another session. The agent has to begin anew with `Ack::session`.
    Mismatch {
        /// The session that the batch named.
        named: Option<Session>,
    },
    /// Nothing was done: the voter lives by another list of members, that of `Ack::epoch`.
    OtherEpoch,
}

/// A sum over tokens: two sides that add and take away the same ones have the same.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Digest(pub u64);

impl Digest {
    /// With `token`.
    #[must_use]
    pub fn with(self, token: Token) -> Digest {
        Digest(self.0.wrapping_add(scatter(token.0)))
    }

    /// Of the tokens of both.
    #[must_use]
    pub fn plus(self, other: Digest) -> Digest {
        Digest(self.0.wrapping_add(other.0))
    }

    /// Without `token`.
    #[must_use]
    pub fn without(self, token: Token) -> Digest {
        Digest(self.0.wrapping_sub(scatter(token.0)))
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): one to
/// one, and each bit in changes half of those out.
pub(crate) fn scatter(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// From a voter to an agent, unasked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Notice {
    /// As in a batch.
    pub epoch: u32,
    /// The voter's life. An agent that knows it by another says something, and so learns what it is to it now.
    pub voter: Incarnation,
    /// Names whose turn it may be, for the agent that waits for them.
    #[serde(deserialize_with = "crate::frame::hints")]
    pub hints: Vec<Name>,
    /// Whether there is more to hear in an answer: a heartbeat will fetch it.
    pub speak: bool,
}

/// From voter to voter, after a restart that lost the fences.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Floor {
    /// How far did yours go?
    Ask {
        /// As in a batch.
        epoch: u32,
        /// The life of the one that asks; it comes back with the answer.
        asker: Incarnation,
    },
    /// So far. Said only by a voter that votes.
    Told {
        /// As in a batch.
        epoch: u32,
        /// Of the one that asked.
        asker: Incarnation,
        /// No fence past it was ever given there.
        fence: Fence,
    },
    /// I have lost mine, too. Said only by a voter that asks the same.
    Lost {
        /// As in a batch.
        epoch: u32,
        /// Of the one that asked.
        asker: Incarnation,
        /// If wall clocks are right no fence that was given before its start has reached it.
        origin: Fence,
    },
}

/// Anything that goes from node to node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Frame {
    /// To a voter.
    Batch(Batch),
    /// To an agent.
    Ack(Ack),
    /// To an agent.
    Notice(Notice),
    /// To a voter.
    Floor(Floor),
}

/// A frame, and whom it is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Send {
    /// The node: its voter or its agent, as the frame says.
    pub to: Member,
    /// The frame.
    pub frame: Frame,
}
