//! The voter: grants votes for names, to one writer or to readers, and keeps them while it receives batches of their
//! agents.
//!
//! ```text
//!   started --> quarantine --> learning --> voting        quarantine: until all agents have settled, or a time
//!                   '-------------------------^           learning:   only if fences of earlier lifetimes are lost
//!                                                         superseded: from any stage, if another member knows a later
//!                                                                     life of this voter
//! ```
//!
//! # Invariants
//! - **V1** The votes of each name belong to one writer, or to readers only. (Q1 relies on it: any two quorums have a
//!   voter in common.)
//! - **V2** A vote stays while its agent's lease lasts, unless the agent releases it, or a later agent of its node
//!   shows that it is dead. When a lease expires, its generation ends: a later batch of that agent gets a new
//!   generation. (Q2, Q3)
//! - **V3** In the stages before *voting*, a voter grants no vote, except for locks that are already held by votes of
//!   other voters. (Q4)
//! - **V4** The fence that a writer gets for a name is higher than any that this voter gave or recorded for that
//!   name, in this or an earlier lifetime. A voter with durable fences gives none that a crash would lose. (Q5, Q6)
//! - **V5** All state expires: votes with the lease of their agent, queue positions with it or earlier. (Q9)
//!
//! Every call first advances the time, so leases that have expired by `now` end before the event of the call.
//! Correctness does not depend on the order of batches. An agent never reuses a released token, so an old batch can
//! at worst leave a vote that its agent does not count. The next comparison of digests finds it.

mod floors;
mod learning;
mod leases;
mod lives;
mod names;
mod ops;
mod pace;
mod recovery;
mod setup;

pub use setup::{Fences, VoterOutput, VoterSetup};

use crate::bounds::{MAX_FENCE, MAX_HINTS, MAX_OTHERS};
use crate::groups::Groups;
use crate::members::{Member, MemberSet, Members};
use crate::message::{
    Ack, Batch, Fence, Frame, Generation, Lifetime, Mode, Name, Names, Notice, Send, Session,
    Token, Verdict, VoterNews, VoterState, EPOCH,
};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use learning::Learning;
use leases::{AgentLeases, Vote};
use lives::Lives;
use names::{VoteId, VoterNames};
use pace::Pace;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Quarantine {
        until: Time,
        settled: MemberSet,
        /// When the voter asks those again that have not answered.
        again: Time,
    },
    Learning(Box<Learning>),
    Voting,
    /// The voter does nothing until its caller replaces it.
    Superseded {
        seen: Lifetime,
    },
}

/// The voter of one node. See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Voter {
    setup: VoterSetup,
    groups: Groups,
    now: Time,
    stage: Stage,
    lives: Lives,
    leases: AgentLeases,
    names: VoterNames,
    /// The stored mark: the highest fence that may be given or recorded. No limit if fences are not durable.
    reserved: Fence,
    /// The mark that is being stored. `reserved` becomes this mark when it is stored.
    storing: Fence,
    pace: Pace,
    /// Whether it had to refuse a fence, and could not store a mark since.
    lacks_fences: bool,
    /// Whether members have different lists of members.
    conflicted: bool,
    /// The highest clock that was received: see [`Priority`](crate::message::Priority).
    clock: u64,
    /// The state that the agents were told last.
    told: VoterState,
    out: Vec<VoterOutput>,
}

impl Voter {
    /// Creates a voter. It sends a notice to all agents, which then assert their locks.
    #[must_use]
    pub fn new(mut setup: VoterSetup, now: Time) -> Voter {
        // A wall clock may show any time, but a fence above the highest cannot be encoded.
        setup.fences.origin = setup.fences.origin.min(Fence(MAX_FENCE));
        let stage = match setup.bugs.have(ProtocolBug::NoQuarantine) {
            true => Stage::Voting,
            false => Stage::Quarantine {
                until: now + setup.quarantine,
                settled: MemberSet::EMPTY,
                again: now,
            },
        };
        let floor = setup.fences.floor.unwrap_or_default();
        let is_paced = setup.fences.paced && !setup.bugs.have(ProtocolBug::FencesOutrunClock);
        let pace = match is_paced {
            true => Pace::new(floor.max(setup.fences.origin), now),
            false => Pace::unlimited(),
        };
        let mut voter = Voter {
            setup,
            groups: Groups::new(setup.members, setup.rules.partitions),
            now,
            stage,
            lives: Lives::new(setup.members),
            leases: AgentLeases::new(),
            names: VoterNames::new(&setup.rules, now),
            reserved: if setup.fences.durable {
                floor
            } else {
                Fence(u64::MAX)
            },
            storing: Fence(0),
            pace,
            lacks_fences: false,
            conflicted: setup.conflicted,
            clock: 0,
            told: VoterState::Quarantined,
            out: Vec::new(),
        };
        voter.names.raise_all(floor);
        if setup.fences.floor.is_some() {
            voter.reserve(floor);
        }
        voter.told = voter.state();
        voter.announce(true);
        voter.ask();
        voter
    }

    /// A frame arrived from a member. The voter ignores frames for agents and frames from non-members.
    pub fn receive(&mut self, now: Time, from: Member, frame: Frame) {
        self.advance(now);
        match frame {
            _ if !self.members().contains(from) || self.is_superseded() => {}
            Frame::Batch(batch) => self.batch(from, batch),
            Frame::Floor(floor) => self.floor(from, floor),
            Frame::Ack(_) | Frame::Notice(_) => {}
        }
        self.send_notices();
    }

    /// `mark` is stored and survives a crash.
    pub fn stored(&mut self, now: Time, mark: Fence) {
        self.advance(now);
        self.reserved = self.reserved.max(mark);
        self.lacks_fences &= self.names.highest() >= self.reserved.min(Fence(MAX_FENCE));
        self.send_notices();
    }

    /// The process that called this voter is dead, and another process calls it from now on. Messages to the voter
    /// may be lost, and its last outputs may not have been executed. The voter itself has forgotten nothing. It
    /// repeats the outputs that no other component would repeat, and makes all agents send a batch.
    pub fn interrupted(&mut self, now: Time) {
        self.advance(now);
        // The voter requests a store only once. Without this repetition it would wait for the answer forever, and
        // give no fence above the stored mark.
        if let Stage::Superseded { seen } = self.stage {
            return self.out.push(VoterOutput::Superseded { seen });
        }
        let stored = self.storing <= self.reserved;
        if !stored && !self.setup.bugs.have(ProtocolBug::NotStoredAgain) {
            self.out.push(VoterOutput::Store(self.storing));
        }
        self.ask();
        self.announce(true);
        self.send_notices();
    }

    /// Whether lists of members differ, or this voter must wait until other members have its list. While `conflicted`,
    /// the voter grants nothing new. Votes are renewed and released, and held locks are asserted.
    pub fn conflict(&mut self, now: Time, conflicted: bool) {
        self.advance(now);
        self.conflicted = conflicted;
        self.send_notices();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.advance(now);
        self.send_notices();
    }

    /// When to call [`Voter::tick`] if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let stage = match &self.stage {
            Stage::Quarantine { until, again, .. } => Some(*until.min(again)),
            Stage::Learning(learning) => Some(learning.again),
            Stage::Voting | Stage::Superseded { .. } => None,
        };
        [stage, self.leases.deadline(), self.names.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes the outputs since the last call, oldest first.
    pub fn outputs(&mut self) -> Vec<VoterOutput> {
        std::mem::take(&mut self.out)
    }

    /// Whether the voter votes: its quarantine is over and it knows its fences.
    #[must_use]
    pub fn is_voting(&self) -> bool {
        self.stage == Stage::Voting
    }

    /// Whether [`Voter::conflict`] has stopped it.
    #[must_use]
    pub fn is_conflicted(&self) -> bool {
        self.conflicted
    }

    /// Whether it grants votes, as it tells the agents.
    #[must_use]
    pub fn state(&self) -> VoterState {
        match self.stage {
            _ if self.conflicted => VoterState::Conflicted,
            Stage::Quarantine { .. } | Stage::Superseded { .. } => VoterState::Quarantined,
            Stage::Learning(_) => VoterState::Learning,
            Stage::Voting if self.lacks_fences => VoterState::NoStore,
            Stage::Voting => VoterState::Voting,
        }
    }

    /// Whether it has no votes and no queue positions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.names.is_empty()
    }

    /// The member of this voter.
    #[must_use]
    pub fn member(&self) -> Member {
        self.setup.members.me()
    }

    /// This lifetime of the voter.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        self.setup.lifetime
    }

    /// How long its quarantine was at most.
    #[must_use]
    pub fn quarantine(&self) -> Duration {
        self.setup.quarantine
    }

    /// The highest fence of `name` at this voter.
    #[must_use]
    pub fn fence(&self, name: &Name) -> Fence {
        self.names.fence(name)
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.leases
            .expire(self.now, self.setup.bugs.have(ProtocolBug::SameGeneration));
        for _ in 0..self.setup.rules.batch {
            let Some(generation) = self.leases.ended() else {
                break;
            };
            if self.names.leave_one(generation) {
                continue;
            }
            if let Some((token, vote)) = self.leases.pop_ended() {
                self.forget_names(generation, token, &vote);
            }
        }
        self.names.advance(self.now, self.setup.rules.batch);
        match &self.stage {
            Stage::Quarantine { until, settled, .. }
                if *until <= self.now || self.is_settled(*settled) =>
            {
                self.end_quarantine();
            }
            Stage::Quarantine { again, .. } if *again <= self.now => self.ask(),
            Stage::Learning(learning) if learning.again <= self.now => self.ask(),
            _ => {}
        }
    }

    /// Whether the quarantine may end early. Not before all other voters have said whether they know a later life of
    /// this one: agents that have restarted could settle first.
    fn is_settled(&self, settled: MemberSet) -> bool {
        settled.len() == self.members().count() && self.lives.unanswered().is_empty()
    }

    /// The agent of `from` has settled.
    fn settled(&mut self, from: Member) {
        if let Stage::Quarantine { settled, .. } = &mut self.stage {
            *settled = settled.with(from);
        }
        // Its node is connected, so its voter probably answers now.
        self.ask_if_needed(from);
        self.advance(self.now);
    }

    fn end_quarantine(&mut self) {
        match self.setup.fences.floor {
            Some(_) => self.stage = Stage::Voting,
            // Not earlier: during the quarantine, a lock can still be granted by votes of this voter's earlier
            // lifetime, and its fence can reach the other voters late. After the quarantine no such vote counts, so all
            // fences that this voter must learn are recorded at the others.
            None => self.learn(),
        }
    }

    fn batch(&mut self, from: Member, batch: Batch) {
        let (agent, named) = (batch.agent, batch.session);
        let head = (agent, batch.seq, batch.stamp);
        if batch.epoch != EPOCH {
            return self.acknowledge(from, head, Generation(0), Verdict::OtherEpoch);
        }
        if let Some(named) = named {
            self.heard_of_me(named.voter);
            if self.is_superseded() {
                return;
            }
        }
        self.clock = self.clock.max(batch.clock);
        let expires = self.now + self.setup.rules.voter_lease;
        let generation = self.leases.generation(from, agent, expires);
        let current = Session {
            voter: self.setup.lifetime,
            generation,
        };
        if named != Some(current) {
            let others = self.leases.others(from, agent, MAX_OTHERS);
            if self.setup.bugs.have(ProtocolBug::FirstFrameBuries) {
                others.iter().for_each(|other| self.bury(from, *other));
            }
            return self.acknowledge(from, head, generation, Verdict::Mismatch { named, others });
        }
        let lease = self.leases.live(generation);
        if batch.seq <= lease.seq && !self.setup.bugs.have(ProtocolBug::AnyOrder) {
            return;
        }
        lease.seq = batch.seq;
        lease.expires = expires;
        lease.srtt = Duration::from_micros(batch.srtt_us.into());
        let replies = batch
            .ops
            .into_iter()
            .filter_map(|op| self.apply(from, generation, op))
            .collect();
        let lease = self.leases.live(generation);
        let (digest, revoked) = (lease.digest(), lease.revoked(self.setup.rules.batch));
        let done = Verdict::Done {
            replies,
            digest,
            revoked,
        };
        self.acknowledge(from, head, generation, done);
    }

    fn acknowledge(
        &mut self,
        to: Member,
        (agent, seq, stamp): (Lifetime, u64, Time),
        generation: Generation,
        verdict: Verdict,
    ) {
        let session = Session {
            voter: self.setup.lifetime,
            generation,
        };
        let ack = Ack {
            news: self.news(),
            agent,
            session,
            seq,
            stamp,
            verdict,
        };
        self.send(to, Frame::Ack(ack));
    }

    fn news(&self) -> VoterNews {
        VoterNews {
            epoch: EPOCH,
            clock: self.clock,
            state: self.state(),
            credit: u16::try_from(self.setup.rules.batch).unwrap_or(u16::MAX),
        }
    }

    fn vote(&self, (generation, token): VoteId) -> Option<&Vote> {
        self.leases.get(generation)?.vote(token)
    }

    fn add_vote(
        &mut self,
        generation: Generation,
        token: Token,
        mode: Mode,
        (fence, clock): (Fence, u64),
        names: Names,
    ) {
        let id = (generation, token);
        self.names.record(&names, (id, clock), mode, fence);
        let lease = self.leases.live(generation);
        lease.insert(token, Vote { mode, names });
    }

    fn forget_names(&mut self, generation: Generation, token: Token, vote: &Vote) {
        vote.names
            .iter()
            .for_each(|name| self.names.forget(name, (generation, token)));
    }

    fn highest_of(&self, names: &Names) -> Fence {
        names
            .iter()
            .map(|name| self.names.fence(name))
            .max()
            .unwrap_or_default()
    }

    /// Whether it knows the fences of its earlier lifetimes.
    fn knows_fences(&self) -> bool {
        self.setup.fences.floor.is_some() || self.stage == Stage::Voting
    }

    /// Whether this voter may give `fence`.
    fn may_give(&mut self, fence: Fence) -> bool {
        fence <= self.pace.limit(self.now) && self.reserve(fence)
    }

    /// Whether `fence`, which another voter has given, may be recorded.
    fn may_record(&mut self, fence: Fence) -> bool {
        self.pace.raise(fence, self.now);
        self.reserve(fence)
    }

    /// Whether `fence` is within the stored mark. Requests a higher mark when less than half a block is left above
    /// `fence`, and at least for the next fence. Otherwise voters that each store one fence too late would reject
    /// requests in turn, and no request would get a quorum. At the limit of the pace, where the mark is only a little
    /// higher, requests one only for a fence that needs it.
    ///
    /// Before the voter has learned its lost fences, it requests no mark: after a crash, a mark would say that it knows
    /// them.
    fn reserve(&mut self, fence: Fence) -> bool {
        if !self.knows_fences() {
            return false;
        }
        let block = self.setup.rules.fence_block;
        let past = |more| Fence(fence.0.saturating_add(more).min(MAX_FENCE));
        let known = self.reserved.max(self.storing);
        let mark = past(block).min(self.pace.limit(self.now).max(fence));
        let is_low = past(block.div_ceil(2)) > known;
        let is_worth_it = fence > known || mark.0.saturating_sub(known.0) >= block / 2;
        if is_low && mark > known && is_worth_it {
            self.storing = mark;
            self.out.push(VoterOutput::Store(mark));
        }
        fence <= self.reserved
    }

    /// Sends hints and recalls, and tells all agents if the voter votes now or does not any more.
    fn send_notices(&mut self) {
        self.names.look_at_changes();
        for (generation, (mut hints, mut recalls)) in self.names.news() {
            if self.setup.bugs.have(ProtocolBug::HintsLost) {
                hints.clear();
            }
            if self.setup.bugs.have(ProtocolBug::NoRecalls) {
                recalls.clear();
            }
            let Some(member) = self.leases.get(generation).map(|lease| lease.member) else {
                continue;
            };
            let frames = hints.len().max(recalls.len()).div_ceil(MAX_HINTS);
            for part in 0..frames {
                let (hints, recalls) = (part_of(&hints, part), part_of(&recalls, part));
                let notice = Notice {
                    generation,
                    hints,
                    recalls,
                    ..self.notice(false)
                };
                self.send(member, Frame::Notice(notice));
            }
        }
        let state = self.state();
        if std::mem::replace(&mut self.told, state) != state {
            self.announce(false);
        }
    }

    fn announce(&mut self, speak: bool) {
        for member in self.members().iter() {
            self.send(member, Frame::Notice(self.notice(speak)));
        }
    }

    /// `speak` asks the agent to send a batch, whose answer it needs.
    fn notice(&self, speak: bool) -> Notice {
        Notice {
            news: self.news(),
            voter: self.setup.lifetime,
            generation: Generation(0),
            hints: Vec::new(),
            recalls: Vec::new(),
            speak,
        }
    }

    fn send(&mut self, to: Member, frame: Frame) {
        self.out.push(VoterOutput::Send(Send { to, frame }));
    }

    /// Removes the votes and positions of a dead agent of a node.
    fn bury(&mut self, member: Member, agent: Lifetime) {
        self.leases.end(member, agent);
        self.advance(self.now);
    }

    fn members(&self) -> Members {
        self.setup.members
    }

    /// All votes: agent, lease, token, mode, names.
    #[cfg(feature = "model")]
    pub fn votes(&self) -> impl Iterator<Item = (Lifetime, Generation, Token, Mode, &Names)> {
        let votes = self.leases.votes();
        votes.map(|(agent, generation, token, vote)| {
            (agent, generation, token, vote.mode, &vote.names)
        })
    }

    /// When the lease of an agent expires, if the voter knows the agent.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn expires(&self, agent: Lifetime) -> Option<Time> {
        let lease = self.leases.get(self.leases.known(agent)?)?;
        Some(lease.expires)
    }

    /// No higher fence was given or recorded here.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn highest(&self) -> Fence {
        self.names.highest()
    }

    /// The votes that are recorded for the name.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn votes_for(&self, name: &Name) -> Vec<(Generation, Token)> {
        self.names.votes_for(name)
    }

    /// The session of an agent, if the voter knows it.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn session(&self, agent: Lifetime) -> Option<Session> {
        let voter = self.setup.lifetime;
        self.leases
            .known(agent)
            .map(|generation| Session { voter, generation })
    }

    /// Makes all times relative to `now`: see [`Time::relative_to`].
    #[cfg(feature = "model")]
    pub fn rebase(&mut self, now: Time) {
        self.now = Time(0);
        self.leases.rebase(now);
        self.names.rebase(now);
        self.pace.rebase(now);
        match &mut self.stage {
            Stage::Quarantine { until, again, .. } => {
                *until = until.relative_to(now);
                *again = again.relative_to(now);
            }
            Stage::Learning(learning) => learning.again = learning.again.relative_to(now),
            Stage::Voting | Stage::Superseded { .. } => {}
        }
    }
}

/// The items that go with the notice of this number.
fn part_of<T: Copy>(items: &[T], part: usize) -> Vec<T> {
    items
        .chunks(MAX_HINTS)
        .nth(part)
        .unwrap_or_default()
        .to_vec()
}
