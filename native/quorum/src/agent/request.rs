//! A lock request, from its first attempt to its last.
//!
//! ```text
//!   queued --> asking --> granted                  queued: behind other requests of this node
//!               |   ^
//!               v   |  a hint, or a pause
//!              pausing                             from any state at its deadline: refused
//! ```

use crate::members::{Member, MemberSet};
use crate::message::{Fence, Mode, Names, Reason, Token};
use crate::time::Time;
use std::num::NonZeroU8;

/// One attempt: the votes for one token while they are collected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) token: Token,
    pub(super) until: Time,
    /// The voter that decides the order. If it answers that an earlier request goes first, the attempt ends.
    pub(super) first: Member,
    /// Whether only the first voter was asked.
    pub(super) alone: bool,
    pub(super) asked: MemberSet,
    /// How many fences the attempt requests.
    pub(super) run: NonZeroU8,
    pub(super) yes: MemberSet,
    pub(super) no: MemberSet,
    /// The voters that know that the first voter has chosen this request; and the first voter, if the request was
    /// chosen from the beginning.
    pub(super) in_turn: MemberSet,
    /// The voters that rejected the request because of other holders or waiters, and do not know that it is chosen.
    pub(super) turned: MemberSet,
    /// The voters that know it and whose votes other requests have. There, too, the request is the next, and it gets
    /// a hint when the votes are released.
    pub(super) busy: MemberSet,
    /// The voters with a vote for the attempt that cannot record the fence yet.
    pub(super) lagging: MemberSet,
    /// The voters that have recorded the fence.
    pub(super) wrote: MemberSet,
    /// The fence of each vote.
    pub(super) fences: Vec<(Member, Fence)>,
    /// The last fence of the run, once a quorum has voted.
    pub(super) fence: Option<Fence>,
}

impl Attempt {
    pub(super) fn new(
        token: Token,
        until: Time,
        first: Member,
        asked: MemberSet,
        alone: bool,
        run: NonZeroU8,
    ) -> Attempt {
        let none = MemberSet::EMPTY;
        let (yes, no, in_turn, turned) = (none, none, none, none);
        let (busy, lagging, wrote) = (none, none, none);
        Attempt {
            token,
            until,
            first,
            alone,
            asked,
            run,
            yes,
            no,
            in_turn,
            turned,
            busy,
            lagging,
            wrote,
            fences: Vec::new(),
            fence: None,
        }
    }

    /// `member` has voted with this fence.
    pub(super) fn vote(&mut self, member: Member, fence: Fence) {
        if !self.yes.contains(member) {
            self.yes = self.yes.with(member);
            self.fences.push((member, fence));
        }
    }

    /// Asks `members`, too.
    pub(super) fn widen(&mut self, members: MemberSet) {
        self.alone = false;
        self.asked = self.asked.or(members);
        // An earlier rejection does not count: the voter is asked again.
        self.no = self.no.minus(members);
    }

    /// `member` has rejected the attempt, or has forgotten its vote (`None`).
    pub(super) fn refuse(&mut self, member: Member, reason: Option<Reason>) {
        self.turned = self.turned.without(member);
        self.busy = self.busy.without(member);
        match reason {
            Some(Reason::Readers | Reason::Writer) if self.in_turn.contains(member) => {
                self.busy = self.busy.with(member);
            }
            Some(Reason::Readers | Reason::Writer | Reason::Turn) => {
                self.turned = self.turned.with(member);
            }
            Some(Reason::Quarantine | Reason::Storing) | None => {}
        }
        self.no = self.no.with(member);
        self.yes = self.yes.without(member);
        self.wrote = self.wrote.without(member);
        self.fences.retain(|(voter, _)| *voter != member);
    }

    /// Another request may have released the vote of `member`. Ask it again when the first voter has voted.
    pub(super) fn freed(&mut self, member: Member) {
        if self.busy.contains(member) {
            self.busy = self.busy.without(member);
            self.turned = self.turned.with(member);
        }
    }

    /// Takes the voters to ask again once the first voter has voted. If such a voter rejects the request, it makes it
    /// the next in its queue.
    pub(super) fn again(&mut self) -> MemberSet {
        if !self.yes.contains(self.first) {
            return MemberSet::EMPTY;
        }
        self.no = self.no.minus(self.turned);
        std::mem::take(&mut self.turned)
    }

    /// `member` cannot record the fence yet.
    pub(super) fn lag(&mut self, member: Member) {
        self.lagging = self.lagging.with(member);
        self.yes = self.yes.without(member);
        self.wrote = self.wrote.without(member);
    }

    /// Whether the attempt can no longer get `quorum` votes.
    pub(super) fn hopeless(&self, quorum: usize) -> bool {
        if self.alone {
            self.no.contains(self.first)
        } else {
            // While the first voter has not rejected the request, it may be chosen although other voters rejected it.
            // Requests that have their votes will probably release them soon, as they released the vote of the first
            // voter.
            let hope = if self.no.contains(self.first) {
                MemberSet::EMPTY
            } else {
                self.turned.or(self.busy)
            };
            self.asked.minus(self.no).minus(self.lagging).or(hope).len() < quorum
        }
    }

    /// Whether the attempt can only succeed if other requests release votes.
    pub(super) fn patient(&self, quorum: usize) -> bool {
        !self.alone && self.asked.minus(self.no).minus(self.lagging).len() < quorum
    }

    /// The highest fence of the votes.
    pub(super) fn highest(&self) -> Fence {
        self.fences
            .iter()
            .map(|(_, fence)| *fence)
            .max()
            .unwrap_or_default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Queued,
    Asking(Attempt),
    /// `short`: because too few voters were ready, not because of a rejection.
    Pausing {
        until: Time,
        short: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) names: Names,
    pub(super) mode: Mode,
    pub(super) deadline: Time,
    pub(super) stage: Stage,
    /// How many attempts in a row failed without a position in the first voter's queue.
    pub(super) misses: u32,
    /// The highest fence that a voter has returned for it.
    pub(super) highest_fence: Fence,
    /// Why it was rejected last, or will probably be.
    pub(super) reason: Option<Reason>,
    /// Whether requests of other nodes conflicted with it.
    pub(super) refused: bool,
    /// Whether the first voter has hinted that the request is the next.
    pub(super) chosen: bool,
    /// The voters that keep a position in their queues for it.
    pub(super) waits: MemberSet,
}

impl Pending {
    pub(super) fn new(names: Names, mode: Mode, deadline: Time) -> Pending {
        let (stage, highest_fence, waits) = (Stage::Queued, Fence(0), MemberSet::EMPTY);
        Pending {
            names,
            mode,
            deadline,
            stage,
            misses: 0,
            highest_fence,
            reason: None,
            refused: false,
            chosen: false,
            waits,
        }
    }

    /// Whether the next attempt asks only the first voter, so that writers that split the votes go one after the
    /// other. A writer that waits for readers asks all voters: its queue position keeps new readers out, and must do
    /// so at every voter.
    pub(super) fn alone(&self) -> bool {
        matches!(self.reason, Some(Reason::Writer | Reason::Turn))
    }

    /// The voters with a vote for the current attempt.
    pub(super) fn votes(&self) -> MemberSet {
        match &self.stage {
            Stage::Asking(attempt) => attempt.yes.or(attempt.lagging),
            Stage::Queued | Stage::Pausing { .. } => MemberSet::EMPTY,
        }
    }

    /// When the request needs a timer event.
    pub(super) fn timer(&self) -> Time {
        match &self.stage {
            Stage::Queued => self.deadline,
            Stage::Asking(attempt) => self.deadline.min(attempt.until),
            Stage::Pausing { until, .. } => self.deadline.min(*until),
        }
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.deadline = self.deadline.relative_to(now);
        match &mut self.stage {
            Stage::Queued => {}
            Stage::Asking(Attempt { until, .. }) | Stage::Pausing { until, .. } => {
                *until = until.relative_to(now)
            }
        }
    }
}
