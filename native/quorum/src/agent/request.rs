//! A lock request, and the votes that it collects.
//!
//! ```text
//!   queued ---> asking ---> granted          queued: behind other requests of this node
//!                 |  '----> refused          asking: all voters were asked, once; each answers with a vote, now or
//!                 later '-- recalled: gives its votes back, and asks again with its old priority
//! ```
//!
//! # When the votes are enough
//! A quorum of votes counts, and a fence is *agreed*: it is the highest of some quorum of these votes, and a quorum of
//! the voters has recorded it. Of fences in ascending order, that of place W is the lowest that is the highest of W
//! votes. So it is agreed if W voters have it or a higher one. If not, the voters with a lower one are sent it.
//!
//! A writer that was granted earlier has its fence recorded at a quorum. Each quorum of votes contains one of these
//! voters, which voted later and gave a higher fence. So the highest of the quorum is higher. That is so only while all
//! these votes stand. So they are counted again each time, and the fence of a lost vote does not count.

use crate::members::{Member, MemberSet, Members, MAX_MEMBERS};
use crate::message::{Fence, Mode, Names, Priority, Token};
use crate::time::Time;
use std::num::NonZeroU16;

/// What a voter has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    /// It was not asked: it is not connected, or has no session yet.
    NotAsked,
    /// It has not answered yet.
    Asked,
    Voted {
        /// The last fence that it has recorded for the names.
        fence: Fence,
        /// The higher fence that it was sent to record, if any.
        confirming: Fence,
        /// When an unasked vote ends, unless the voter confirms it. `None` for a vote that ends with the lease.
        until: Option<Time>,
    },
    /// It votes as soon as it can.
    Queued,
    /// It does not vote for a request that does not wait.
    Refused,
}

/// A request that asks: the votes for one token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asking {
    pub(super) token: Token,
    /// How many fences it takes: see `passing.rs`.
    pub(super) run: NonZeroU16,
    answers: [Answer; MAX_MEMBERS],
    /// When it gives its votes back, because an older request waits for one of them.
    pub(super) give_back: Option<Time>,
}

/// The votes that are enough for a lock.
pub(super) struct Agreed {
    pub(super) fence: Fence,
    pub(super) votes: MemberSet,
    /// Those of the votes that are provisional, and when the first of these ends.
    pub(super) provisional: MemberSet,
    pub(super) until: Time,
}

/// What a request lacks.
pub(super) enum Lacks {
    Votes,
    /// Not a quorum of these voters has recorded this fence.
    Fence(Fence, MemberSet),
}

impl Asking {
    pub(super) fn new(token: Token, run: NonZeroU16) -> Asking {
        Asking {
            token,
            run,
            answers: [Answer::NotAsked; MAX_MEMBERS],
            give_back: None,
        }
    }

    pub(super) fn answer(&self, member: Member) -> Answer {
        self.answers[member.place()]
    }

    pub(super) fn set(&mut self, member: Member, answer: Answer) {
        self.answers[member.place()] = answer;
    }

    /// The voters with one of these answers.
    pub(super) fn with(&self, which: impl Fn(Answer) -> bool) -> MemberSet {
        let answers = self.answers.iter().enumerate();
        let with = answers.filter(|(_, answer)| which(**answer));
        with.filter_map(|(place, _)| Member::at(place)).collect()
    }

    pub(super) fn voted(&self, member: Member) -> bool {
        matches!(self.answer(member), Answer::Voted { .. })
    }

    /// Whether the vote of `member` counts at `now`, if its lease does: for model checks.
    #[cfg(feature = "model")]
    pub(super) fn counts(&self, member: Member, now: Time) -> bool {
        matches!(self.answer(member), Answer::Voted { until, .. } if until.is_none_or(|until| until > now))
    }

    /// `member` has voted. A vote that was given unasked ends at `until`.
    pub(super) fn voted_with(&mut self, member: Member, fence: Fence, until: Option<Time>) {
        let confirming = Fence::default();
        self.set(
            member,
            Answer::Voted {
                fence,
                confirming,
                until,
            },
        );
    }

    /// The voters that may have a vote or a position for it.
    pub(super) fn asked(&self) -> MemberSet {
        self.with(|answer| !matches!(answer, Answer::NotAsked | Answer::Refused))
    }

    /// `member` has recorded `fence`, and with that confirmed its vote.
    pub(super) fn confirmed(&mut self, member: Member, confirmed: Fence) {
        if let Answer::Voted { fence, until, .. } = &mut self.answers[member.place()] {
            *fence = confirmed.max(*fence);
            *until = None;
        }
    }

    /// Whether the votes are enough for a lock: `quorum` of those that count, by their voter and their end.
    pub(super) fn agreed(
        &self,
        mode: Mode,
        quorum: usize,
        counts: impl Fn(Member, Option<Time>) -> bool,
    ) -> Result<Agreed, Lacks> {
        let mut fences = Vec::with_capacity(MAX_MEMBERS);
        let (mut votes, mut provisional, mut first_end) =
            (MemberSet::EMPTY, MemberSet::EMPTY, Time(i64::MAX));
        for (member, fence, until) in self.votes() {
            if !counts(member, until) {
                continue;
            }
            fences.push(fence);
            votes = votes.with(member);
            if let Some(until) = until {
                provisional = provisional.with(member);
                first_end = first_end.min(until);
            }
        }
        if fences.len() < quorum {
            return Err(Lacks::Votes);
        }
        fences.sort_unstable();
        let fence = fences[quorum - 1];
        let recorded = fences.iter().filter(|recorded| **recorded >= fence).count();
        if mode == Mode::Write && recorded < quorum {
            return Err(Lacks::Fence(fence, votes));
        }
        Ok(Agreed {
            fence,
            votes,
            provisional,
            until: first_end,
        })
    }

    /// Notes that those of `members` that have recorded a lower fence are sent `fence`. Returns those that were not.
    pub(super) fn confirm(&mut self, members: MemberSet, fence: Fence) -> MemberSet {
        let mut behind = MemberSet::EMPTY;
        for member in members.iter() {
            if let Answer::Voted {
                fence: recorded,
                confirming,
                ..
            } = &mut self.answers[member.place()]
            {
                if *recorded < fence && *confirming < fence {
                    *confirming = fence;
                    behind = behind.with(member);
                }
            }
        }
        behind
    }

    /// `member` could not record a fence, or may not have received it. It is sent again.
    pub(super) fn confirm_again(&mut self, member: Member) {
        if let Answer::Voted { confirming, .. } = &mut self.answers[member.place()] {
            *confirming = Fence::default();
        }
    }

    /// Each vote, the fence that its voter has recorded, and its end if it is provisional.
    fn votes(&self) -> impl Iterator<Item = (Member, Fence, Option<Time>)> + '_ {
        self.answers
            .iter()
            .enumerate()
            .filter_map(|(place, answer)| match answer {
                Answer::Voted { fence, until, .. } => Some((Member::at(place)?, *fence, *until)),
                _ => None,
            })
    }
}

/// A request of a process of this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) names: Names,
    pub(super) mode: Mode,
    /// When it is refused.
    pub(super) deadline: Time,
    /// Whether it waits for other requests. One that does not is a *try*.
    pub(super) waits: bool,
    /// Since it asked first.
    pub(super) priority: Option<Priority>,
    /// `None` while it is queued.
    pub(super) asking: Option<Asking>,
}

impl Pending {
    pub(super) fn new(names: Names, mode: Mode, deadline: Time, waits: bool) -> Pending {
        Pending {
            names,
            mode,
            deadline,
            waits,
            priority: None,
            asking: None,
        }
    }

    /// Whether it is for one name and for writing. Only the locks of such requests can be passed on.
    pub(super) fn writes_one(&self) -> bool {
        self.mode == Mode::Write && self.names.single().is_some()
    }

    /// When it needs a timer event.
    pub(super) fn timer(&self) -> Time {
        let give_back = self.asking.as_ref().and_then(|asking| asking.give_back);
        give_back.map_or(self.deadline, |at| at.min(self.deadline))
    }

    /// Whether so few voters can still vote for a try that it fails. `silent` voters do not answer.
    pub(super) fn fails(&self, members: Members, silent: MemberSet) -> bool {
        let Some(asking) = self.asking.as_ref().filter(|_| !self.waits) else {
            return false;
        };
        let may = |answer| matches!(answer, Answer::Asked | Answer::Voted { .. });
        let voted = asking.with(|answer| matches!(answer, Answer::Voted { .. }));
        asking.with(may).minus(silent.minus(voted)).len() < members.quorum()
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.deadline = self.deadline.relative_to(now);
        let Some(asking) = &mut self.asking else {
            return;
        };
        asking.give_back = asking.give_back.map(|at| at.relative_to(now));
        for answer in &mut asking.answers {
            if let Answer::Voted {
                until: Some(until), ..
            } = answer
            {
                *until = until.relative_to(now);
            }
        }
    }
}
