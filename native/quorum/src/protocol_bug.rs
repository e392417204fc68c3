//! Protocol bugs that a model can enable. The tests must find each of them.
//!
//! The machines call [`ProtocolBugs::have`] where they apply a rule of the protocol. Without the feature `model` the
//! answer is the constant `false`, and only the rule remains. The labels (CE1, CE3, …) are those of the settings in
//! `native/quorum_check/src/model/controls.rs`. Bugs of changes are found by `changes.rs` or `views.rs` in
//! `native/quorum_check/tests`, or by `native/quorum/tests/all/controls.rs`.

/// A rule of the protocol that a machine breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolBug {
    /// CE1, CE2 (known errors of dsync): a restarted voter, which has forgotten its votes, grants immediately.
    NoQuarantine,
    /// CE3: an agent counts votes of an earlier lifetime of the voter.
    ForgottenVotesCount,
    /// CE11: in a voter's quarantine, an agent asserts each held lock as if it had a vote of the earlier lifetime.
    AnyLockContinues,
    /// CE4: a reader accepts half of an even number of votes.
    ReadHalf,
    /// CE7: a writer uses the highest fence of its votes plus one, and does not send it to the voters.
    FenceNotWritten,
    /// CE8: a writer sends its fence to the voters, but does not wait until a quorum has recorded it.
    FenceNotAwaited,
    /// CE10: an agent that took one fence passes its lock on, with the next fence each time.
    FencesNotTaken,
    /// An agent counts its lease from the arrival of the answer, and for as long as the voter keeps the votes.
    LeaseFromAnswer,
    /// A voter drops the votes of an agent whose lease has expired, but keeps the generation.
    SameGeneration,
    /// A voter removes a revoked vote before the holder knows that it is revoked.
    RevokedForgotten,
    /// An agent still counts the votes of a token after it unlocked the lock.
    UnlockKeepsHeld,
    /// An agent takes an answer before it drops the locks whose lease has expired.
    ExpiredRenewed,
    /// A voter drops the votes of all other agents of a node when the first frame of one arrives, not when that agent
    /// has answered.
    FirstFrameBuries,
    /// A voter votes for a client without storing that there may be guests.
    GuestsForgotten,
    /// A voter with an old state file uses it, although others know a later life.
    StaleBelieved,
    /// A voter queues a request and forgets it.
    PositionsForgotten,
    /// The notices of votes that a voter gives unasked are lost.
    GivenLost,
    /// A vote that was given unasked counts for `wait` from the arrival of the notice.
    GivenFromArrival,
    /// A vote that was given unasked counts like any other.
    GivenCountsLong,
    /// A voter takes a vote that it gave unasked back when its connection to the agent goes down.
    GivenEndsWithConnection,
    /// A voter sends no recalls.
    NoRecalls,
    /// A voter of a new view votes as soon as it has learned, before the reported agents have settled.
    VotesUnsettled,
    /// Sealed voters report no agents.
    NoReports,
    /// Reports leave out agents whose votes are all provisional.
    ProvisionalUnreported,
    /// Messages about views do not wait until what they show is stored.
    SealNotStored,
    /// One report less than a quorum is enough to learn.
    OneSealTooFew,
    /// A node that has lost its file goes on under its old identity.
    LostIsOld,
    /// A voter of a new view learns no floor.
    NoFloor,
    /// A member that stays learns from its own report only.
    StayersLearnNothing,
    /// A member promises before it has voted in its view.
    PromiseBeforeVoted,
    /// A record is taken when it is accepted, not when it is decided.
    AcceptedIsDecided,
    /// A change is done before the new members are over.
    DoneBeforeKept,
    /// After a reset, voters wait for no lease.
    ResetNoQuarantine,
    /// All proposers use the same ballots.
    BallotReused,
    /// An agent settles at the voters of a new list without asserting its locks.
    SettlesUnasserted,
    /// An agent says that no lock relies on an earlier view although some are in transition.
    KeptEarly,
    /// A lock in transition moves as soon as a quorum of the new list votes for it, although it is not kept.
    NewVotesCount,
    /// A lock is kept with one vote less than a quorum.
    FewerKept,
    /// The deadline of a lock with provisional votes is that of the leases.
    DeadlineOfUnasked,
    /// No vote is kept.
    NoKept,
    /// Unasked votes are not kept.
    UnaskedNotKept,
    /// Agents do not send the record to members that leave.
    LeaversUnasked,
    /// A vote of the list before is kept although its lease was over when the agent learned of the seal.
    KeptLate,
    /// At a second change, an agent gives a lock in transition a new deadline.
    DeadlineAnew,
    /// A lock need not be asserted again after a voter of a new list has rejected its assertion.
    SettlesRefused,
    /// A request is not asked again in a new list, and goes on with its votes of the list before.
    AttemptAcrossNumbers,
    /// A voter in quarantine reports the agents that it knows.
    QuarantinedReports,
    /// A voter that restarts before it has voted waits only for agents that have not settled since.
    RestartedBelieves,
    /// A node that has lost its file reports for its old identity.
    LostReports,
    /// A new voter does not learn from a member that votes already.
    NoLearningFromNew,
    /// A member promises although locks may rely on votes of the view before.
    PromiseBeforeOver,
    /// A change begins although new members, or agents with votes, do not answer.
    NoReady,
    /// A member that has accepted a record does not propose it again.
    AcceptedForgotten,
    /// After a reset, a majority is enough to vote.
    ResetMajority,
    /// Holders keep their locks when their node follows another cluster.
    ResetKeepsLocks,
    /// A voter accepts batches in any order and more than once. This must not break any promise: see
    /// `docs/quorum.md`.
    AnyOrder,
}

/// The bugs that are enabled in a machine. Only models enable any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProtocolBugs {
    #[cfg(feature = "model")]
    bits: u64,
}

impl ProtocolBugs {
    /// No bug.
    pub const NONE: ProtocolBugs = ProtocolBugs {
        #[cfg(feature = "model")]
        bits: 0,
    };

    /// Enables `bug`.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn with(self, bug: ProtocolBug) -> ProtocolBugs {
        ProtocolBugs {
            bits: self.bits | 1 << bug as u64,
        }
    }

    /// Whether `bug` is enabled.
    #[inline(always)]
    #[must_use]
    pub fn have(self, bug: ProtocolBug) -> bool {
        #[cfg(feature = "model")]
        let has = self.bits & 1 << bug as u64 != 0;
        #[cfg(not(feature = "model"))]
        let has = {
            let _ = bug;
            false
        };
        has
    }
}
