//! The voter: gives votes for names, at most one writer's or some readers' for each, and keeps them as long as it
//! hears from their agents.
//!
//! ```text
//!   started --> quarantine --> learning --> voting        quarantine: all agents have settled, or time has passed
//!                   '-------------------------^           learning:   only if it has no fences of earlier lives
//! ```
//!
//! # Invariants
//! - **V1** For each name there are votes of one writer, or of readers only. (Q1 rests on it: two quorums meet.)
//! - **V2** A vote stays while its agent's lease lasts, unless the agent takes it back. When a lease ends its
//!   generation ends with it: a later batch of that agent is answered with another one. (Q2, Q3)
//! - **V3** No vote is given before voting begins, but for what is held by others' votes already. (Q4)
//! - **V4** A writer's number for a name is higher than any that was given or written down here for that name, in
//!   this life or an earlier one, and none is given that would be lost with a durable voter. (Q5, Q6)
//! - **V5** Whatever is kept goes away by itself: votes with their lease, places in a line with their time. (Q9)
//!
//! Every call begins by looking at the time, so what is over by `now` is over before anything else happens. Nothing
//! is assumed of the order in which batches come: a token that was taken back is never used again by its agent, so
//! the worst that an old batch can do is to leave a vote that nobody counts, which the next comparison of digests
//! finds.

mod floors;
mod learning;
mod leases;
mod names;
mod ops;
mod setup;

pub use setup::{Fences, VoterOutput, VoterSetup};

use crate::frame::{MAX_FENCE, MAX_HINTS};
use crate::members::{Member, MemberSet, Members};
use crate::message::{
    Ack, Batch, Fence, Frame, Generation, Incarnation, Mode, Name, Names, Notice, Send, Session,
    Token, Verdict, EPOCH,
};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use learning::Learning;
use leases::{AgentLeases, Vote};
use names::{VoteId, VoterNames};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Quarantine { until: Time, settled: MemberSet },
    Learning(Learning),
    Voting,
}

/// One voter. See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Voter {
    setup: VoterSetup,
    now: Time,
    stage: Stage,
    leases: AgentLeases,
    names: VoterNames,
    /// No fence past it is given: what is stored.
    reserved: Fence,
    /// What is being stored.
    storing: Fence,
    out: Vec<VoterOutput>,
}

impl Voter {
    /// A voter that has just started. It tells all agents, which will tell it what they hold.
    #[must_use]
    pub fn new(mut setup: VoterSetup, now: Time) -> Voter {
        // A clock may show anything; what is past the highest fence would be no frame.
        setup.fences.origin = setup.fences.origin.min(Fence(MAX_FENCE));
        let stage = match setup.bugs.have(ProtocolBug::NoQuarantine) {
            true => Stage::Voting,
            false => Stage::Quarantine {
                until: now + setup.rules.quarantine,
                settled: MemberSet::EMPTY,
            },
        };
        let floor = setup.fences.floor.unwrap_or_default();
        let mut voter = Voter {
            setup,
            now,
            stage,
            leases: AgentLeases::new(),
            names: VoterNames::new(setup.rules.fence_floors, setup.rules.keep, now),
            reserved: if setup.fences.durable {
                floor
            } else {
                Fence(u64::MAX)
            },
            storing: Fence(0),
            out: Vec::new(),
        };
        voter.names.raise_all(floor);
        if setup.fences.floor.is_some() {
            voter.reserve(floor.next());
        }
        for member in setup.members.iter() {
            voter.notice(member, Vec::new(), true);
        }
        voter
    }

    /// A frame has come from a member. What is not for voters, or not from a member, is ignored.
    pub fn receive(&mut self, now: Time, from: Member, frame: Frame) {
        self.advance(now);
        match frame {
            _ if !self.members().contains(from) => {}
            Frame::Batch(batch) => self.batch(from, batch),
            Frame::Floor(floor) => self.floor(from, floor),
            Frame::Ack(_) | Frame::Notice(_) => {}
        }
        self.tell();
    }

    /// `mark` has been stored, and survives a crash.
    pub fn stored(&mut self, now: Time, mark: Fence) {
        self.advance(now);
        self.reserved = self.reserved.max(mark);
        self.tell();
    }

    /// Whoever called this voter until now is gone, and another calls it from now on. What was on its way to the
    /// voter then may be lost, and what it wanted done may not have been; the voter itself has forgotten nothing. It
    /// wants done again what nobody else would ask for once more, and makes agents speak.
    pub fn interrupted(&mut self, now: Time) {
        self.advance(now);
        // It asks once: without an answer it would wait for one for ever, and give no fence past what is stored.
        let stored = self.storing <= self.reserved;
        if !stored && !self.setup.bugs.have(ProtocolBug::NotStoredAgain) {
            self.out.push(VoterOutput::Store(self.storing));
        }
        self.ask();
        for member in self.members().iter() {
            self.notice(member, Vec::new(), true);
        }
        self.tell();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.advance(now);
        self.tell();
    }

    /// When to call [`Voter::tick`] if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let stage = match self.stage {
            Stage::Quarantine { until, .. } => Some(until),
            Stage::Learning(learning) => Some(learning.again),
            Stage::Voting => None,
        };
        [stage, self.leases.deadline(), self.names.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// What it wants done, in this order, since it was asked last.
    pub fn outputs(&mut self) -> Vec<VoterOutput> {
        std::mem::take(&mut self.out)
    }

    /// Whether it votes: its quarantine is over and it knows the fences.
    #[must_use]
    pub fn is_voting(&self) -> bool {
        self.stage == Stage::Voting
    }

    /// Whether it keeps nothing: no vote, no place of one that waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.names.is_empty()
    }

    /// This life of it.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.setup.incarnation
    }

    /// How far the fence of `name` went here.
    #[must_use]
    pub fn fence(&self, name: &Name) -> Fence {
        self.names.fence(name)
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.leases
            .expire(self.now, self.setup.bugs.have(ProtocolBug::SameGeneration));
        for _ in 0..self.setup.rules.batch {
            let Some((generation, token, vote)) = self.leases.pop_ended() else {
                break;
            };
            self.forget(generation, token, &vote);
        }
        self.names.advance(self.now, self.setup.rules.batch);
        match self.stage {
            Stage::Quarantine { until, settled }
                if until <= self.now || settled.len() == self.members().count() =>
            {
                self.end_quarantine();
            }
            Stage::Learning(learning) if learning.again <= self.now => self.ask(),
            Stage::Quarantine { .. } | Stage::Learning(_) | Stage::Voting => {}
        }
    }

    fn end_quarantine(&mut self) {
        match self.setup.fences.floor {
            Some(_) => self.stage = Stage::Voting,
            // Not earlier: a lock that counted on a vote of an earlier life may have been granted until now, and its
            // fence is surely with the others of its quorum only now that no such vote counts any more.
            None => self.learn(),
        }
    }

    fn batch(&mut self, from: Member, batch: Batch) {
        let Batch {
            epoch,
            agent,
            session: named,
            seq,
            stamp,
            ops,
        } = batch;
        let incarnation = self.setup.incarnation;
        let ack = |generation, verdict| {
            let session = Session {
                voter: incarnation,
                generation,
            };
            Frame::Ack(Ack {
                epoch: EPOCH,
                agent,
                session,
                seq,
                stamp,
                verdict,
            })
        };
        if epoch != EPOCH {
            return self.send(from, ack(Generation(0), Verdict::OtherEpoch));
        }
        let expires = self.now + self.setup.rules.voter_lease;
        let generation = self.leases.generation(from, agent, expires);
        let current = Session {
            voter: incarnation,
            generation,
        };
        if named != Some(current) {
            return self.send(from, ack(generation, Verdict::Mismatch { named }));
        }
        let Some(lease) = self.leases.get_mut(generation) else {
            return;
        };
        if seq <= lease.seq && !self.setup.bugs.have(ProtocolBug::AnyOrder) {
            return;
        }
        lease.seq = seq;
        lease.expires = expires;
        let replies = ops
            .into_iter()
            .filter_map(|op| self.apply(from, generation, op))
            .collect();
        self.names.batch_done(generation);
        let Some(lease) = self.leases.get(generation) else {
            return;
        };
        let (digest, revoked) = (lease.digest(), lease.revoked(self.setup.rules.batch));
        self.send(
            from,
            ack(
                generation,
                Verdict::Done {
                    replies,
                    digest,
                    revoked,
                },
            ),
        );
    }

    fn vote(&self, (generation, token): VoteId) -> Option<&Vote> {
        self.leases.get(generation)?.vote(token)
    }

    fn record(
        &mut self,
        generation: Generation,
        token: Token,
        mode: Mode,
        fence: Fence,
        names: Names,
    ) {
        names
            .iter()
            .for_each(|name| self.names.record(name, (generation, token), mode, fence));
        if let Some(lease) = self.leases.get_mut(generation) {
            lease.insert(token, Vote { mode, names });
        }
    }

    fn forget(&mut self, generation: Generation, token: Token, vote: &Vote) {
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

    /// Whether `fence` may be given. Asks for more to be stored while half a block is left, or the next one at least:
    /// voters that always came one number too late would refuse in turn, and no quorum would meet.
    fn reserve(&mut self, fence: Fence) -> bool {
        let block = self.setup.rules.fence_block;
        let past = |more| Fence(fence.0.saturating_add(more).min(MAX_FENCE));
        if past(block.div_ceil(2)) > self.reserved.max(self.storing) {
            self.storing = past(block);
            self.out.push(VoterOutput::Store(self.storing));
        }
        fence <= self.reserved
    }

    /// Tells agents whose turn it may be.
    fn tell(&mut self) {
        for (generation, names) in self.names.hints() {
            if let Some(member) = self.leases.get(generation).map(|lease| lease.member) {
                for some in names.chunks(MAX_HINTS) {
                    self.notice(member, some.to_vec(), false);
                }
            }
        }
    }

    fn notice(&mut self, to: Member, hints: Vec<Name>, speak: bool) {
        let notice = Notice {
            epoch: EPOCH,
            voter: self.setup.incarnation,
            hints,
            speak,
        };
        self.send(to, Frame::Notice(notice));
    }

    fn send(&mut self, to: Member, frame: Frame) {
        self.out.push(VoterOutput::Send(Send { to, frame }));
    }

    fn members(&self) -> Members {
        self.setup.members
    }

    /// All votes: whose, under which lease, which, of what.
    #[cfg(feature = "model")]
    pub fn votes(&self) -> impl Iterator<Item = (Incarnation, Generation, Token, Mode, &Names)> {
        let votes = self.leases.votes();
        votes.map(|(agent, generation, token, vote)| {
            (agent, generation, token, vote.mode, &vote.names)
        })
    }

    /// Until when the lease of an agent lasts, if it is known.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn expires(&self, agent: Incarnation) -> Option<Time> {
        let lease = self.leases.get(self.leases.known(agent)?)?;
        Some(lease.expires)
    }

    /// No fence past it was given here, or heard of.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn highest(&self) -> Fence {
        self.names.highest()
    }

    /// Whose votes the name knows of.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn holders(&self, name: &Name) -> Vec<(Generation, Token)> {
        self.names.holders(name)
    }

    /// What an agent in this life of it is to this voter, if it is known.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn session(&self, agent: Incarnation) -> Option<Session> {
        let voter = self.setup.incarnation;
        self.leases
            .known(agent)
            .map(|generation| Session { voter, generation })
    }

    /// All times told relative to `now`: see [`Time::relative_to`].
    #[cfg(feature = "model")]
    pub fn rebase(&mut self, now: Time) {
        self.now = Time(0);
        self.leases.rebase(now);
        self.names.rebase(now);
        match &mut self.stage {
            Stage::Quarantine { until: time, .. }
            | Stage::Learning(Learning { again: time, .. }) => {
                *time = time.relative_to(now);
            }
            Stage::Voting => {}
        }
    }
}
