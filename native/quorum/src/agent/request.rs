//! A request to lock, from its first attempt to its last.
//!
//! ```text
//!   queued --> asking --> granted                  queued: others of this node are before it
//!               |   ^
//!               v   |  a hint, or a pause
//!              pausing                             and from anywhere, by its deadline: refused
//! ```

use crate::members::{Member, MemberSet};
use crate::message::{Fence, Mode, Names, Reason, Token};
use crate::time::Time;
use std::num::NonZeroU8;

/// The votes for one token, while they are collected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) token: Token,
    pub(super) until: Time,
    /// Who goes first: if it says that others were here earlier, the attempt is over.
    pub(super) first: Member,
    /// That only the first has been asked.
    pub(super) alone: bool,
    pub(super) asked: MemberSet,
    /// How many fences the voters are asked for.
    pub(super) run: NonZeroU8,
    pub(super) yes: MemberSet,
    pub(super) no: MemberSet,
    /// Those that were told that it is its turn at the first; and the first, if it was its turn from the beginning.
    pub(super) in_turn: MemberSet,
    /// Those that refused, for others that have their votes or wait for them, and were not told so.
    pub(super) turned: MemberSet,
    /// Those that were, and whose votes others have: it is the next there, too, and will hear when they are given back.
    pub(super) busy: MemberSet,
    /// Those that have a vote for it and cannot write down the fence yet.
    pub(super) lagging: MemberSet,
    /// Those of the votes that are known to have written down the fence.
    pub(super) wrote: MemberSet,
    /// What each vote said.
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

    /// `member` has voted, and said this number.
    pub(super) fn vote(&mut self, member: Member, fence: Fence) {
        if !self.yes.contains(member) {
            self.yes = self.yes.with(member);
            self.fences.push((member, fence));
        }
    }

    /// These are asked, too.
    pub(super) fn widen(&mut self, members: MemberSet) {
        self.alone = false;
        self.asked = self.asked.or(members);
        // Whatever one of them has said before, or forgotten, it is asked now.
        self.no = self.no.minus(members);
    }

    /// `member` has refused, for a reason, or forgotten.
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

    /// `member` may have its vote back that somebody else had: to be asked again, when the first has voted.
    pub(super) fn freed(&mut self, member: Member) {
        if self.busy.contains(member) {
            self.busy = self.busy.without(member);
            self.turned = self.turned.with(member);
        }
    }

    /// Those to be asked again, now that the first has voted and it is known whose turn it is. A refusal makes it the
    /// next there.
    pub(super) fn again(&mut self) -> MemberSet {
        if !self.yes.contains(self.first) {
            return MemberSet::EMPTY;
        }
        self.no = self.no.minus(self.turned);
        std::mem::take(&mut self.turned)
    }

    /// `member` cannot write down the fence yet.
    pub(super) fn lag(&mut self, member: Member) {
        self.lagging = self.lagging.with(member);
        self.yes = self.yes.without(member);
        self.wrote = self.wrote.without(member);
    }

    /// Whether there is no hope for `quorum` votes.
    pub(super) fn hopeless(&self, quorum: usize) -> bool {
        if self.alone {
            self.no.contains(self.first)
        } else {
            // While the first has not refused, it may be its turn in spite of what others believe; and then whoever has
            // their votes is likely to give them back soon, as it has given back that of the first.
            let hope = if self.no.contains(self.first) {
                MemberSet::EMPTY
            } else {
                self.turned.or(self.busy)
            };
            self.asked.minus(self.no).minus(self.lagging).or(hope).len() < quorum
        }
    }

    /// Whether all its hope is that others give votes back.
    pub(super) fn patient(&self, quorum: usize) -> bool {
        !self.alone && self.asked.minus(self.no).minus(self.lagging).len() < quorum
    }

    /// The highest number that was said.
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
    /// `short`: for lack of voters to ask, not for a refusal.
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
    /// How many attempts failed, one after the other, that left it without a place in the line of the first voter.
    pub(super) misses: u32,
    /// The highest number that a voter has said to it.
    pub(super) heard: Fence,
    /// Why it was refused last, if it was; or is likely to be.
    pub(super) reason: Option<Reason>,
    /// Whether others of other nodes were in its way.
    pub(super) refused: bool,
    /// That it is its turn: the first voter has said so.
    pub(super) chosen: bool,
    /// Who keeps a place in the line for it.
    pub(super) waits: MemberSet,
}

impl Pending {
    pub(super) fn new(names: Names, mode: Mode, deadline: Time) -> Pending {
        let (stage, heard, waits) = (Stage::Queued, Fence(0), MemberSet::EMPTY);
        Pending {
            names,
            mode,
            deadline,
            stage,
            misses: 0,
            heard,
            reason: None,
            refused: false,
            chosen: false,
            waits,
        }
    }

    /// Whether the next attempt is to ask the first voter alone, so that writers that split the votes come one after
    /// the other. A writer that readers keep waiting asks all: its place in the line is what keeps new readers out,
    /// and it has to keep that everywhere.
    pub(super) fn alone(&self) -> bool {
        matches!(self.reason, Some(Reason::Writer | Reason::Turn))
    }

    /// Who has a vote for the current attempt.
    pub(super) fn votes(&self) -> MemberSet {
        match &self.stage {
            Stage::Asking(attempt) => attempt.yes.or(attempt.lagging),
            Stage::Queued | Stage::Pausing { .. } => MemberSet::EMPTY,
        }
    }

    /// When something has to happen without being asked.
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
