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
//! - **V3** In quarantine, a voter votes only for locks that *continue* a vote: it had voted for the lock before this
//!   restart, and the vote still counted, by the agent's clock, when the agent began a session with this lifetime. An
//!   agent that does not know of the restart may count a vote for any other lock or request. While it learns its
//!   fences, a voter votes only for locks that are already held by votes of other voters. (Q4)
//! - **V4** The fence that a writer gets for a name is higher than any that this voter gave or recorded for that
//!   name, in this or an earlier lifetime. A voter with durable fences gives none that a crash would lose. (Q5, Q6)
//! - **V5** All state expires: votes with the lease of their agent, queue positions with it or earlier. (Q9)
//! - **V7** A client gets no vote before the register in the state file has it. So after a restart, the quarantine does
//!   not end before each client that may count on a vote has settled. (Q4)
//!
//! Every call first advances the time, so leases that have expired by `now` end before the event of the call.
//! Correctness does not depend on the order of batches. An agent never reuses a released token, so an old batch can
//! at worst leave a vote that its agent does not count. The next comparison of digests finds it.

mod counts;
mod floors;
mod learning;
mod leases;
mod lives;
mod names;
mod ops;
mod pace;
mod recovery;
mod register;
mod setup;

pub use setup::{Fences, VoterOutput, VoterSetup};

use crate::bounds::{MAX_FENCE, MAX_HINTS, MAX_OTHERS};
use crate::groups::Groups;
use crate::members::{Member, MemberSet, Members, Node};
use crate::message::{
    Ack, Batch, Fence, Frame, Generation, Lifetime, Mode, Name, Names, Notice, Send, Session,
    Token, Verdict, VoterNews, VoterState,
};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use learning::Learning;
use leases::{AgentLeases, Vote};
use lives::Lives;
use names::{VoteId, VoterNames};
use pace::Pace;
use register::Register;
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
    register: Register,
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
    /// How many batches wait for it.
    load: usize,
    out: Vec<VoterOutput>,
}

impl Voter {
    /// Creates a voter. `register` has the clients that are stored. It sends a notice to all agents, which then assert
    /// the locks that continue a vote.
    #[must_use]
    pub fn new(mut setup: VoterSetup, register: &[Node], now: Time) -> Voter {
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
            lives: Lives::new(setup.members, setup.me),
            register: Register::new(register),
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
            load: 1,
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

    /// A frame arrived from a member, or a batch from a client that may lock here. The voter ignores all other frames.
    pub fn receive(&mut self, now: Time, from: Node, frame: Frame) {
        self.advance(now);
        let is_known = |member| self.members().contains(member);
        match (frame, from.member()) {
            _ if self.is_superseded() || !from.member().is_none_or(is_known) => {}
            (Frame::Batch(batch), _) => self.batch(from, batch),
            (Frame::Floor(floor), Some(member)) => self.floor(member, floor),
            (Frame::Floor(_), None) | (Frame::Ack(_) | Frame::Notice(_), _) => {}
        }
        self.send_notices();
    }

    /// This many batches wait for the voter. Agents get a share of the usual size for their next ones.
    pub fn waiting(&mut self, batches: usize) {
        self.load = batches.max(1);
    }

    /// The register with these clients is stored and survives a crash.
    pub fn registered(&mut self, now: Time, clients: &[Node]) {
        self.advance(now);
        clients
            .iter()
            .for_each(|client| self.register.stored(*client));
        self.send_notices();
    }

    /// Whether the voter has a lease of this client, or waits for it because an earlier life had one.
    #[must_use]
    pub fn knows(&self, client: Node) -> bool {
        self.register.has(client) || self.leases.knows(client)
    }

    /// The clients that the stored register must have.
    pub fn register(&self) -> impl Iterator<Item = Node> + '_ {
        self.register.iter()
    }

    /// Each agent that has a lease: its node, its votes, its waiting requests, and when its last batch arrived.
    pub fn agents(&self) -> impl Iterator<Item = (Node, usize, usize, Time)> + '_ {
        self.leases.iter().map(|(generation, lease)| {
            // A batch renews the lease.
            let last = Time(lease.expires.0 - self.setup.rules.voter_lease.as_nanos() as i64);
            (
                lease.node,
                lease.count(),
                self.names.positions_of(generation),
                last,
            )
        })
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
        for client in self.register.not_stored() {
            self.out.push(VoterOutput::Register(client));
        }
        self.ask();
        self.announce(true);
        self.send_notices();
    }

    /// Whether lists of members differ, or this voter must wait until other members have its list. While `conflicted`,
    /// the voter grants nothing new. Votes are renewed and released, and held locks are asserted, as
    /// otherwise.
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

    /// How many requests wait here, and how many for the names of one partition at most.
    #[must_use]
    pub fn queues(&self) -> (usize, usize) {
        self.names.queues()
    }

    /// The member of this voter.
    #[must_use]
    pub fn member(&self) -> Member {
        self.setup.me
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
            if let Some((token, vote)) = self.leases.pop_vote() {
                self.forget_names(generation, token, &vote);
            } else if let Some(node) = self.leases.pop_ended() {
                self.unregister(node);
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
        let members = settled.len() == self.members().count();
        let clients = self.setup.knows_clients && self.register.is_settled();
        members && clients && self.lives.unanswered().is_empty()
    }

    /// The agent of `from` has settled.
    fn settled(&mut self, from: Node) {
        let Some(member) = from.member() else {
            self.register.settled(from);
            return self.advance(self.now);
        };
        if let Stage::Quarantine { settled, .. } = &mut self.stage {
            *settled = settled.with(member);
        }
        // Its node is connected, so its voter probably answers now.
        self.ask_if_needed(member);
        self.advance(self.now);
    }

    fn end_quarantine(&mut self) {
        for client in self.register.end_quarantine() {
            self.unregister(client);
        }
        match self.setup.fences.floor {
            Some(_) => self.stage = Stage::Voting,
            // Not earlier: during the quarantine, a lock can still be granted by votes of this voter's earlier
            // lifetime, and its fence can reach the other voters late. After the quarantine no such vote counts, so all
            // fences that this voter must learn are recorded at the others.
            None => self.learn(),
        }
    }

    fn batch(&mut self, from: Node, batch: Batch) {
        let (agent, named) = (batch.agent, batch.session);
        let head = (agent, batch.seq, batch.stamp);
        if let Some(named) = named {
            self.heard_of_me(named.voter);
            if self.is_superseded() {
                return;
            }
        }
        self.clock = self.clock.max(batch.clock);
        let expires = self.now + self.setup.rules.voter_lease;
        let generation = self.leases.generation(from, agent, expires);
        self.add_client(from);
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

    /// Adds a client to the register, unless that is full.
    fn add_client(&mut self, from: Node) {
        let is_full = self.register.len() >= self.setup.rules.clients;
        if !from.is_client() || self.register.has(from) || is_full {
            return;
        }
        // Without a file the quarantine of the next life does not end early.
        let stores = self.setup.fences.durable && !self.setup.bugs.have(ProtocolBug::NotRegistered);
        self.register.add(from, !stores);
        if stores {
            self.out.push(VoterOutput::Register(from));
        }
    }

    /// Removes a client without a lease, also one for which the register had no room. One that is awaited stays until
    /// the end of the quarantine.
    fn unregister(&mut self, node: Node) {
        let is_needed = self.register.awaits(node) || self.leases.knows(node);
        if node.is_client() && !is_needed {
            self.register.remove(node);
            self.out.push(VoterOutput::Unregister(node));
        }
    }

    fn acknowledge(
        &mut self,
        to: Node,
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
            clock: self.clock,
            state: self.state(),
            credit: self.credit(),
        }
    }

    /// A share of the usual size while several batches wait, if there are clients: there can be many of them.
    fn credit(&self) -> u16 {
        let shares = match self.register.len() {
            0 => 1,
            _ => self.load,
        };
        u16::try_from((self.setup.rules.batch / shares).max(1)).unwrap_or(u16::MAX)
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
            let Some(node) = self.leases.get(generation).map(|lease| lease.node) else {
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
                self.send(node, Frame::Notice(notice));
            }
        }
        let state = self.state();
        if std::mem::replace(&mut self.told, state) != state {
            self.announce(false);
        }
    }

    fn announce(&mut self, speak: bool) {
        let members = self.members().iter().map(Node::from);
        for node in members.chain(self.register.iter()).collect::<Vec<_>>() {
            self.send(node, Frame::Notice(self.notice(speak)));
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

    fn send(&mut self, to: impl Into<Node>, frame: Frame) {
        let to = to.into();
        self.out.push(VoterOutput::Send(Send { to, frame }));
    }

    /// Removes the votes and positions of a dead agent of a node.
    fn bury(&mut self, node: Node, agent: Lifetime) {
        self.leases.end(node, agent);
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
