//! A lock request, from its first attempt to its last.
//!
//! ```text
//!   queued --> asking --> granted                  queued: behind other requests of this node
//!               |   ^
//!               v   |  a voter votes again, or the pause ends
//!              pausing                             from any state at its deadline: refused
//! ```

use crate::groups::Quorums;
use crate::members::{Member, MemberSet};
use crate::message::{Fence, Mode, Names, Priority, Reason, Token};
use crate::time::Time;
use std::num::NonZeroU16;

/// Which voters an attempt has asked. An attempt for names with different voters has several sequencers: one for each
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asked {
    /// A quorum. Only the sequencers may queue it.
    Wide,
    /// The sequencers alone, which queue it.
    Sequencer,
    /// A quorum, which may queue it: the sequencers have voted for it or have hinted.
    All,
}

/// One attempt: the votes for one token while they are collected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) token: Token,
    /// The sequencers: see `in_order`.
    pub(super) first: MemberSet,
    /// Whether it has been queued for long. From then on, it asks other voters, too, and any quorum is enough.
    pub(super) any: bool,
    pub(super) stage: Asked,
    pub(super) asked: MemberSet,
    /// How many fences the attempt requests.
    pub(super) run: NonZeroU16,
    /// When it asks again those that have not voted: a hint may be lost.
    pub(super) again: Time,
    /// When it gives its votes back, because an older request waits for one of them.
    pub(super) recalled: Option<Time>,
    pub(super) yes: MemberSet,
    /// The voters that rejected it because of other requests, and keep nothing for it.
    pub(super) busy: MemberSet,
    /// The voters that have queued it.
    pub(super) queued: MemberSet,
    /// The voters that cannot vote now, or have forgotten their vote.
    pub(super) out: MemberSet,
    /// Whether a voter has rejected it because this node has too many locks or requests.
    pub(super) limited: bool,
    /// The voters that wait for their disks before they vote.
    pub(super) storing: MemberSet,
    /// The voters with a vote for the attempt that wait for their disks before they record the fence.
    pub(super) lagging: MemberSet,
    /// The voters that have recorded the fence.
    pub(super) wrote: MemberSet,
    /// The fence of each vote.
    pub(super) fences: Vec<(Member, Fence)>,
    /// The last fence of the run, once a quorum has voted, and the votes that agreed on it.
    pub(super) fence: Option<(Fence, MemberSet)>,
}

impl Attempt {
    pub(super) fn new(
        token: Token,
        first: MemberSet,
        stage: Asked,
        run: NonZeroU16,
        again: Time,
    ) -> Attempt {
        let none = MemberSet::EMPTY;
        Attempt {
            token,
            first,
            any: false,
            stage,
            asked: none,
            run,
            again,
            recalled: None,
            yes: none,
            busy: none,
            queued: none,
            out: none,
            limited: false,
            storing: none,
            lagging: none,
            wrote: none,
            fences: Vec::new(),
            fence: None,
        }
    }

    /// `member` has voted with this fence.
    pub(super) fn vote(&mut self, member: Member, fence: Fence) {
        self.answered(member);
        if !self.yes.contains(member) {
            self.yes = self.yes.with(member);
            self.fences.push((member, fence));
        }
    }

    /// `member` has rejected the attempt, or has forgotten its vote (`None`).
    pub(super) fn refuse(&mut self, member: Member, reason: Option<Reason>) {
        self.answered(member);
        match reason {
            Some(Reason::Queued) => self.queued = self.queued.with(member),
            Some(Reason::Busy) => self.busy = self.busy.with(member),
            Some(Reason::Storing) => self.storing = self.storing.with(member),
            _ => self.out = self.out.with(member),
        }
        self.yes = self.yes.without(member);
        self.wrote = self.wrote.without(member);
        self.fences.retain(|(voter, _)| *voter != member);
    }

    fn answered(&mut self, member: Member) {
        self.busy = self.busy.without(member);
        self.queued = self.queued.without(member);
        self.out = self.out.without(member);
        self.storing = self.storing.without(member);
        self.lagging = self.lagging.without(member);
    }

    /// `member` cannot record the fence yet.
    pub(super) fn lag(&mut self, member: Member) {
        self.lagging = self.lagging.with(member);
        self.yes = self.yes.without(member);
        self.wrote = self.wrote.without(member);
    }

    /// `member` can record the fence now. Returns the fence.
    pub(super) fn catch_up(&mut self, member: Member) -> Option<Fence> {
        if !self.lagging.contains(member) {
            return None;
        }
        self.lagging = self.lagging.without(member);
        self.yes = self.yes.with(member);
        self.fence.map(|(fence, _)| fence)
    }

    /// `member` votes again. Returns whether it has rejected the attempt because it could not vote.
    pub(super) fn can_vote_again(&mut self, member: Member) -> bool {
        let rejected = self.out.or(self.storing).contains(member);
        self.out = self.out.without(member);
        self.storing = self.storing.without(member);
        rejected
    }

    /// The voters with a vote for the attempt.
    pub(super) fn votes(&self) -> MemberSet {
        self.yes.or(self.lagging)
    }

    /// Whether the fence was agreed by a vote of `member`. An agreed fence is higher than all earlier fences only while
    /// these votes stand. After one is lost, another writer may get a higher one.
    pub(super) fn rests_on(&self, member: Member) -> bool {
        self.fence.is_some_and(|(_, votes)| votes.contains(member))
    }

    /// Whether the votes of a quorum are enough: the sequencers have voted for it, no voter has rejected it yet, or it
    /// has waited for a sequencer for long.
    pub(super) fn in_order(&self) -> bool {
        let alone = self.stage == Asked::Wide && self.busy.is_empty();
        self.any || alone || self.has_first_votes()
    }

    /// Whether the sequencers have voted for it.
    pub(super) fn has_first_votes(&self) -> bool {
        self.first.minus(self.votes()).is_empty()
    }

    /// The voters that may still vote for it, and need not wait for their disks.
    pub(super) fn possible(&self) -> MemberSet {
        self.asked.minus(self.out).minus(self.storing)
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
    /// Too few voters can vote.
    Pausing {
        until: Time,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) names: Names,
    pub(super) quorums: Quorums,
    pub(super) mode: Mode,
    pub(super) deadline: Time,
    pub(super) stage: Stage,
    /// Since its first attempt.
    pub(super) priority: Option<Priority>,
    /// Which voters its next attempt asks: the sequencers alone if requests of other nodes probably conflict with it, a
    /// quorum if a sequencer has sent a hint.
    pub(super) next: Asked,
    /// Whether requests of other nodes conflicted with it.
    pub(super) contended: bool,
    /// How many attempts in a row failed because too few voters could vote.
    pub(super) misses: u32,
    /// The highest fence that a voter has returned for it.
    pub(super) highest_fence: Fence,
}

impl Pending {
    pub(super) fn new(names: Names, quorums: Quorums, mode: Mode, deadline: Time) -> Pending {
        Pending {
            names,
            quorums,
            mode,
            deadline,
            stage: Stage::Queued,
            priority: None,
            next: Asked::Wide,
            contended: false,
            misses: 0,
            highest_fence: Fence(0),
        }
    }

    pub(super) fn attempt(&self) -> Option<&Attempt> {
        match &self.stage {
            Stage::Asking(attempt) => Some(attempt),
            Stage::Queued | Stage::Pausing { .. } => None,
        }
    }

    /// The voters with a vote for the current attempt.
    pub(super) fn votes(&self) -> MemberSet {
        self.attempt()
            .map_or(MemberSet::EMPTY, |attempt| attempt.yes.or(attempt.lagging))
    }

    /// When the request needs a timer event.
    pub(super) fn timer(&self) -> Time {
        match &self.stage {
            Stage::Queued => self.deadline,
            Stage::Asking(attempt) => {
                let next = attempt
                    .recalled
                    .map_or(attempt.again, |at| at.min(attempt.again));
                self.deadline.min(next)
            }
            Stage::Pausing { until } => self.deadline.min(*until),
        }
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.deadline = self.deadline.relative_to(now);
        match &mut self.stage {
            Stage::Queued => {}
            Stage::Asking(attempt) => {
                attempt.again = attempt.again.relative_to(now);
                attempt.recalled = attempt.recalled.map(|at| at.relative_to(now));
            }
            Stage::Pausing { until } => *until = until.relative_to(now),
        }
    }
}
