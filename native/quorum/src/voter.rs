//! The voter: grants votes for names, to one writer or to readers, and keeps them while it receives batches of their
//! agents.
//!
//! ```text
//!   started --> quarantine --> learning --> voting        quarantine: until all agents have settled, or a time
//!                   '-------------------------^           learning:   only if fences of earlier lifetimes are lost
//! ```
//!
//! # Invariants
//! - **V1** The votes of each name belong to one writer, or to readers only. (Q1 relies on it: any two quorums have a
//!   voter in common.)
//! - **V2** A vote stays while its agent's lease lasts, unless the agent releases it. When a lease expires, its
//!   generation ends: a later batch of that agent gets a new generation. (Q2, Q3)
//! - **V3** In the stages before *voting*, a voter grants no vote, except for locks that are already held by votes of
//!   other voters. (Q4)
//! - **V4** The fence that a writer gets for a name is higher than any that this voter gave or recorded for that
//!   name, in this or an earlier lifetime. A voter with durable fences gives none that a crash would lose. (Q5, Q6)
//! - **V5** All state expires: votes with their lease, queue positions with their own expiry. (Q9)
//!
//! Every call first advances the time, so leases that have expired by `now` end before the event of the call.
//! Correctness does not depend on the order of batches. An agent never reuses a released token, so an old batch can
//! at worst leave a vote that its agent does not count. The next comparison of digests finds it.

mod floors;
mod learning;
mod leases;
mod names;
mod ops;
mod recovery;
mod setup;

pub use setup::{Fences, VoterOutput, VoterSetup};

use crate::bounds::{MAX_FENCE, MAX_HINTS};
use crate::members::{Member, MemberSet, Members};
use crate::message::{
    Ack, Batch, Fence, Frame, Generation, Lifetime, Mode, Name, Names, Notice, Send, Session,
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

/// The voter of one node. See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Voter {
    setup: VoterSetup,
    now: Time,
    stage: Stage,
    leases: AgentLeases,
    names: VoterNames,
    /// The stored mark: the highest fence that may be given or recorded. No limit if fences are not durable.
    reserved: Fence,
    /// The mark that is being stored. `reserved` becomes this mark when it is stored.
    storing: Fence,
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

    /// A frame arrived from a member. The voter ignores frames for agents and frames from non-members.
    pub fn receive(&mut self, now: Time, from: Member, frame: Frame) {
        self.advance(now);
        match frame {
            _ if !self.members().contains(from) => {}
            Frame::Batch(batch) => self.batch(from, batch),
            Frame::Floor(floor) => self.floor(from, floor),
            Frame::Ack(_) | Frame::Notice(_) => {}
        }
        self.send_hints();
    }

    /// `mark` is stored and survives a crash.
    pub fn stored(&mut self, now: Time, mark: Fence) {
        self.advance(now);
        self.reserved = self.reserved.max(mark);
        self.send_hints();
    }

    /// The process that called this voter is dead, and another process calls it from now on. Messages to the voter
    /// may be lost, and its last outputs may not have been executed. The voter itself has forgotten nothing. It
    /// repeats the outputs that no other component would repeat, and makes all agents send a batch.
    pub fn interrupted(&mut self, now: Time) {
        self.advance(now);
        // The voter requests a store only once. Without this repetition it would wait for the answer forever, and
        // give no fence above the stored mark.
        let stored = self.storing <= self.reserved;
        if !stored && !self.setup.bugs.have(ProtocolBug::NotStoredAgain) {
            self.out.push(VoterOutput::Store(self.storing));
        }
        self.ask();
        for member in self.members().iter() {
            self.notice(member, Vec::new(), true);
        }
        self.send_hints();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.advance(now);
        self.send_hints();
    }

    /// When to call [`Voter::tick`] if nothing else happens before.
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

    /// Takes the outputs since the last call, oldest first.
    pub fn outputs(&mut self) -> Vec<VoterOutput> {
        std::mem::take(&mut self.out)
    }

    /// Whether the voter votes: its quarantine is over and it knows its fences.
    #[must_use]
    pub fn is_voting(&self) -> bool {
        self.stage == Stage::Voting
    }

    /// Whether it has no votes and no queue positions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.names.is_empty()
    }

    /// This lifetime of the voter.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        self.setup.lifetime
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
            let Some((generation, token, vote)) = self.leases.pop_ended() else {
                break;
            };
            self.forget_names(generation, token, &vote);
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
            // Not earlier: during the quarantine, a lock can still be granted by votes of this voter's earlier
            // lifetime, and its fence can reach the other voters late. After the quarantine no such vote counts, so all
            // fences that this voter must learn are recorded at the others.
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
        let lifetime = self.setup.lifetime;
        let ack = |generation, verdict| {
            let session = Session {
                voter: lifetime,
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
            voter: lifetime,
            generation,
        };
        if named != Some(current) {
            return self.send(from, ack(generation, Verdict::Mismatch { named }));
        }
        let lease = self.leases.live(generation);
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
        let lease = self.leases.live(generation);
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

    fn add_vote(
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

    /// Whether `fence` may be given. Requests a higher mark when less than half a block is left above `fence`, and at
    /// least for the next fence. Otherwise voters that each store one fence too late would reject requests in turn,
    /// and no request would get a quorum.
    fn reserve(&mut self, fence: Fence) -> bool {
        let block = self.setup.rules.fence_block;
        let past = |more| Fence(fence.0.saturating_add(more).min(MAX_FENCE));
        if past(block.div_ceil(2)) > self.reserved.max(self.storing) {
            self.storing = past(block);
            self.out.push(VoterOutput::Store(self.storing));
        }
        fence <= self.reserved
    }

    /// Sends hints to the agents that may be next.
    fn send_hints(&mut self) {
        for (generation, names) in self.names.hints() {
            if let Some(member) = self.leases.get(generation).map(|lease| lease.member) {
                for hints in names.chunks(MAX_HINTS) {
                    self.notice(member, hints.to_vec(), false);
                }
            }
        }
    }

    /// `speak` asks the agent to send a batch, whose answer it needs.
    fn notice(&mut self, to: Member, hints: Vec<Name>, speak: bool) {
        let notice = Notice {
            epoch: EPOCH,
            voter: self.setup.lifetime,
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
        match &mut self.stage {
            Stage::Quarantine { until: time, .. }
            | Stage::Learning(Learning { again: time, .. }) => {
                *time = time.relative_to(now);
            }
            Stage::Voting => {}
        }
    }
}
