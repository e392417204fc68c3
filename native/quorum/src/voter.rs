//! The voter: grants votes for names, to one writer or to readers, and keeps them while it receives batches of their
//! agents.
//!
//! ```text
//!   started --> quarantine ------------> voting           quarantine: until the agents have settled, or a time
//!                   '------> ready --------^              ready:      in a new view, until it is stored that it votes
//!                                                         superseded: from any stage, if another member knows a later
//!                                                                     life of this voter
//! ```
//!
//! # Invariants
//! - **V1** The votes of each name belong to one writer, or to readers only. (Q1 relies on it: any two quorums have a
//!   voter in common.)
//! - **V2** A vote stays while its agent's lease lasts, unless the agent unlocks it, or a later agent of its node
//!   shows that it is dead. When a lease expires, its generation ends: a later batch of that agent gets a new
//!   generation. (Q2, Q3)
//! - **V3** In quarantine, a voter votes only for locks that *continue* a vote: it had voted for the lock before this
//!   restart, and the vote still counted, by the agent's clock, when the agent began a session with this lifetime. An
//!   agent that does not know of the restart may count a vote for any other lock or request. (Q4)
//! - **V4** The fence that a writer gets for a name is higher than any that this voter gave or recorded for that
//!   name, in this or an earlier lifetime. A voter with durable fences gives none that a crash would lose. (Q5, Q6)
//! - **V5** All state expires: votes with the lease of their agent, queue positions with it or earlier. (Q9)
//! - **V7** A client gets no vote before the state file says that there may be *guests*. So after a restart, the
//!   quarantine does not end early while a client may count on a vote. (Q4)
//!
//! Every call first advances the time, so leases that have expired by `now` end before the event of the call.
//! Correctness does not depend on the order of batches. An agent never reuses an unlocked token, so an old batch can
//! at worst leave a vote that its agent does not count. The next comparison of digests finds it.

mod floors;
mod granting;
mod guests;
mod leases;
mod lives;
mod mark;
mod names;
mod ops;
mod quarantine;
mod questions;
mod setup;
mod status;
mod views;

pub use setup::{VoterOutput, VoterSetup};

use crate::bounds::{MAX_FENCE, MAX_NOTICE, MAX_OTHERS};
use crate::members::{MemberSet, Node};
use crate::message::{
    Ack, Batch, Fence, Frame, Generation, Given, Lifetime, Name, Notice, Op, Recall, Session,
    Token, Verdict, VoterState,
};
#[cfg(feature = "model")]
use crate::message::{Mode, Names};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use guests::Guests;
use leases::AgentLeases;
use lives::Lives;
use mark::Mark;
use names::NameTable;
use quarantine::{Awaited, Quarantine};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Quarantine {
        /// When the voter asks those again that have not answered.
        again: Time,
    },
    /// The voter of a new view waits until it is stored that it votes.
    Ready,
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
    now: Time,
    stage: Stage,
    /// `None` when it is over.
    quarantine: Option<Quarantine>,
    lives: Lives,
    guests: Guests,
    leases: AgentLeases,
    names: NameTable,
    mark: Mark,
    /// Whether it had to refuse a fence, and could not store a mark since.
    lacks_fences: bool,
    /// The highest clock that was received: see [`Priority`](crate::message::Priority).
    clock: u64,
    /// The state that was announced to the agents last.
    announced: VoterState,
    /// Leases whose positions count again, or do not any more, from this token on: to look at next.
    waking: Vec<(Generation, Token)>,
    /// Leases whose agents are disconnected: their positions are removed next.
    leaving: Vec<Generation>,
    out: Vec<VoterOutput>,
}

impl Voter {
    /// Creates a voter. It sends a notice to the agents of all members, which then assert the locks that continue a
    /// vote.
    #[must_use]
    pub fn new(setup: VoterSetup, now: Time) -> Voter {
        let stage = match setup.bugs.have(ProtocolBug::NoQuarantine) {
            true => Stage::Voting,
            false => Stage::Quarantine { again: now },
        };
        let awaited = match setup.guests || setup.begins {
            true => Awaited::Any,
            false => Awaited::Members,
        };
        let until = (!setup.begins).then_some(now + setup.quarantine);
        let mut voter = Voter {
            setup,
            now,
            stage,
            quarantine: Some(Quarantine::new(awaited, until)),
            lives: Lives::new(setup.members, setup.me),
            guests: if setup.durable {
                Guests::new(setup.guests, now)
            } else {
                Guests::without_file()
            },
            leases: AgentLeases::new(),
            names: NameTable::new(&setup.rules, now),
            mark: if setup.durable {
                Mark::new(setup.mark)
            } else {
                Mark::none()
            },
            lacks_fences: false,
            clock: 0,
            announced: VoterState::Quarantined,
            waking: Vec::new(),
            leaving: Vec::new(),
            out: Vec::new(),
        };
        voter.names.raise_all(setup.mark);
        voter.announced = voter.state();
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
            (Frame::Life(life), Some(member)) => {
                self.life(member, life);
                // It may have been the last answer that the quarantine waited for.
                self.advance(self.now);
            }
            (Frame::Life(_), None) | (Frame::Ack(_) | Frame::Notice(_), _) => {}
        }
        self.send_notices();
    }

    /// The state file says that there may be guests, and survives a crash.
    pub fn guests_stored(&mut self, now: Time) {
        self.advance(now);
        self.guests.stored(self.now + self.setup.rules.voter_lease);
        self.names.look_at_unserved();
        self.send_notices();
    }

    /// Whether an agent of this client has a lease.
    #[must_use]
    pub fn knows(&self, client: Node) -> bool {
        self.leases.knows(client)
    }

    /// Each agent that has a lease: its node, its votes, its waiting requests, and when its last batch arrived.
    pub fn agents(&self) -> impl Iterator<Item = (Node, usize, usize, Time)> + '_ {
        self.leases.iter().map(|(generation, lease)| {
            let waiting = self.names.positions_of(generation, Token(0)).count();
            (lease.node, lease.count(), waiting, lease.heard)
        })
    }

    /// `mark` is stored and survives a crash.
    pub fn stored(&mut self, now: Time, mark: Fence) {
        self.advance(now);
        self.mark.stored(mark);
        self.names.look_at_unserved();
        self.lacks_fences &= self.names.highest() >= Fence(MAX_FENCE);
        self.send_notices();
    }

    /// A node is disconnected. Its requests do not wait here any more: they ask again when it is back.
    pub fn down(&mut self, now: Time, node: Node) {
        self.advance(now);
        let leases = self.leases.leases_of(node);
        for generation in &leases {
            self.leases.live(*generation).connected = false;
            if self.setup.bugs.have(ProtocolBug::GivenEndsWithConnection) {
                while self.take_back_one(*generation) {}
            }
        }
        self.leaving.extend(leases);
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
            Stage::Quarantine { again } => {
                Some(self.quarantine_ends().map_or(*again, |at| at.min(*again)))
            }
            Stage::Ready | Stage::Voting | Stage::Superseded { .. } => None,
        };
        let rest = !self.waking.is_empty() || !self.leaving.is_empty() || self.names.has_changed();
        let rest = rest.then_some(Time::LONG_AGO);
        [
            stage,
            self.leases.deadline(self.setup.rules.wait),
            self.names.deadline(),
            self.guests.deadline().filter(|_| self.is_voting()),
            rest,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes the outputs since the last call, oldest first.
    pub fn outputs(&mut self) -> Vec<VoterOutput> {
        std::mem::take(&mut self.out)
    }

    /// Whether the voter votes: its quarantine is over.
    #[must_use]
    pub fn is_voting(&self) -> bool {
        self.stage == Stage::Voting
    }

    /// The other members that must answer before this voter votes. Some must not if the quarantine ends by time.
    #[must_use]
    pub fn waits_for(&self) -> MemberSet {
        let all: MemberSet = self.members().iter().collect();
        let waits_for = match &self.stage {
            Stage::Quarantine { .. } => {
                let quarantine = self.quarantine.iter();
                let unsettled =
                    quarantine.flat_map(|quarantine| quarantine.unsettled(self.members()));
                let unsettled: MemberSet = unsettled.filter_map(Node::member).collect();
                unsettled.or(self.lives.unanswered()).and(all)
            }
            Stage::Ready | Stage::Voting | Stage::Superseded { .. } => MemberSet::EMPTY,
        };
        waits_for.without(self.member())
    }

    /// The names with votes that begin with `prefix`. `None` while it does not vote: it may have forgotten votes.
    ///
    /// A lock that is held when a question to all voters begins has votes at a quorum, and voters keep these longer
    /// than holders count them. So if a quorum of one view has answered within [`Rules::answers`], each lock that has
    /// been held all the time is in an answer. One that is in none has ended, and is never held again (Q15).
    ///
    /// [`Rules::answers`]: crate::rules::Rules::answers
    pub fn voted_names<'a>(&'a self, prefix: &'a [u8]) -> Option<impl Iterator<Item = &'a Name>> {
        self.is_voting().then(|| self.names.voted_names(prefix))
    }

    /// Whether it has no votes and no queue positions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.names.is_empty()
    }

    /// How many requests wait here.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.names.queued()
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
                self.forget_names((generation, token), &vote);
            } else {
                self.leases.pop_ended();
                self.names.set_quiet(generation, false);
            }
        }
        self.names.advance(self.now, self.setup.rules.batch);
        for generation in self.leases.become_quiet(self.now, self.setup.rules.wait) {
            self.names.set_quiet(generation, true);
            self.waking.push((generation, Token(0)));
        }
        self.wake();
        self.look_at_guests();
        match &self.stage {
            Stage::Quarantine { .. } if self.is_settled() => self.end_quarantine(),
            Stage::Quarantine { again } if *again <= self.now => self.ask(),
            Stage::Voting if self.is_kept() => self.quarantine = None,
            _ => {}
        }
    }

    /// When the quarantine ends at the latest, if that is known.
    fn quarantine_ends(&self) -> Option<Time> {
        self.quarantine.as_ref()?.until
    }

    /// Whether no lock relies on votes that this voter has forgotten.
    fn is_kept(&self) -> bool {
        let members = self.members();
        self.quarantine.as_ref().is_none_or(|quarantine| {
            quarantine.until.is_some_and(|until| until <= self.now) || quarantine.is_kept(members)
        })
    }

    /// Looks at the positions of agents that have become quiet or are heard again, takes back what quiet ones do not
    /// count any more, and removes the positions of disconnected ones.
    fn wake(&mut self) {
        for _ in 0..self.setup.rules.batch {
            if let Some(generation) = self.leaving.last().copied() {
                if !self.names.leave_one(generation) {
                    self.leaving.pop();
                }
            } else if let Some((generation, from)) = self.waking.pop() {
                // One that is heard again may have been given votes since.
                let is_quiet = self
                    .leases
                    .get(generation)
                    .is_some_and(|lease| lease.is_quiet);
                if is_quiet && self.take_back_one(generation) {
                    self.waking.push((generation, from));
                    continue;
                }
                let next = self.names.positions_of(generation, from).next();
                if let Some(id) = next {
                    self.names.look_at(id);
                    let next = id.1 .0.checked_add(1);
                    self.waking
                        .extend(next.map(|next| (generation, Token(next))));
                }
            } else {
                return;
            }
        }
    }

    /// A batch of the lease has arrived.
    fn heard(&mut self, generation: Generation) {
        let now = self.now;
        // It is connected again, or was not disconnected. It asks again for the positions that it has lost.
        self.leaving.retain(|leaving| *leaving != generation);
        let lease = self.leases.live(generation);
        lease.heard = now;
        lease.connected = true;
        if std::mem::take(&mut lease.is_quiet) {
            self.names.set_quiet(generation, false);
            self.waking.push((generation, Token(0)));
        }
        let waits = self
            .names
            .positions_of(generation, Token(0))
            .next()
            .is_some();
        let lease = self.leases.live(generation);
        lease.waits = waits || lease.has_provisional();
    }

    /// Whether the quarantine may end. Early after a restart not before all other voters have said whether they know a
    /// later life of this one: agents that have restarted could settle first.
    fn is_settled(&self) -> bool {
        let quarantine = self.quarantine.as_ref().expect("it is in quarantine");
        let is_known = self.setup.begins || self.lives.unanswered().is_empty();
        quarantine.until.is_some_and(|until| until <= self.now)
            || is_known && quarantine.is_settled(self.members())
            || quarantine.until.is_some() && self.setup.bugs.have(ProtocolBug::VotesUnsettled)
    }

    /// An agent has settled.
    fn settled(&mut self, from: Node, agent: Lifetime, kept: bool) {
        if let Some(quarantine) = &mut self.quarantine {
            quarantine.settled(from, agent, kept);
        }
        // Its node is connected, so its voter probably answers now.
        if let Some(member) = from.member() {
            self.ask_if_needed(member);
        }
        self.advance(self.now);
    }

    fn end_quarantine(&mut self) {
        if self.setup.begins {
            self.stage = Stage::Ready;
            self.out.push(VoterOutput::Ready);
        } else {
            self.stage = Stage::Voting;
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
        let generation = self.leases.generation(from, agent, self.now, expires);
        let current = Session {
            voter: self.setup.lifetime,
            generation,
        };
        if named != Some(current) {
            let others = self.leases.others(from, agent, MAX_OTHERS);
            if self.setup.bugs.have(ProtocolBug::FirstFrameBuries) {
                others
                    .iter()
                    .for_each(|other| self.leases.end(from, *other));
            }
            return self.acknowledge(from, head, generation, Verdict::Mismatch { named, others });
        }
        let lease = self.leases.live(generation);
        if batch.seq <= lease.seq && !self.setup.bugs.have(ProtocolBug::AnyOrder) {
            return;
        }
        lease.seq = batch.seq;
        lease.expires = expires;
        self.heard(generation);
        let settled = batch.ops.iter().filter_map(|op| match op {
            Op::Settled { kept } => Some(*kept),
            _ => None,
        });
        let settled = settled.max();
        let ops = batch.ops.into_iter();
        let replies = ops
            .filter_map(|op| self.apply(from, generation, op))
            .collect();
        if let Some(kept) = settled {
            self.settled(from, agent, kept);
        }
        let lease = self.leases.live(generation);
        let (digest, revoked) = (lease.digest(), lease.revoked(self.setup.rules.batch));
        let done = Verdict::Done {
            replies,
            digest,
            revoked,
        };
        self.acknowledge(from, head, generation, done);
    }

    /// The file says that there are no guests, when no client has had a vote for a lease.
    fn look_at_guests(&mut self) {
        let is_due = self.guests.deadline().is_some_and(|at| at <= self.now);
        if is_due && self.is_voting() {
            let next = self.now + self.setup.rules.voter_lease;
            if self.guests.looked(self.leases.have_client_votes(), next) {
                self.out.push(VoterOutput::StoreGuests(false));
            }
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
            status: self.status(),
            agent,
            session,
            seq,
            stamp,
            verdict,
        };
        self.send(to, Frame::Ack(ack));
    }

    /// Gives votes to requests that wait, sends these and recalls, and tells all agents if the voter votes now or does
    /// not any more.
    fn send_notices(&mut self) {
        let state = self.state();
        if std::mem::replace(&mut self.announced, state) != state {
            self.announce(false);
            self.names.look_at_unserved();
        }
        let mut notices: BTreeMap<Generation, (Vec<Given>, Vec<Recall>)> = BTreeMap::new();
        for (generation, token, fence) in self.serve() {
            notices
                .entry(generation)
                .or_default()
                .0
                .push(Given { token, fence });
        }
        for (generation, recalls) in self.names.take_recalls() {
            notices.entry(generation).or_default().1 = recalls;
        }
        for (generation, (mut given, mut recalls)) in notices {
            if self.setup.bugs.have(ProtocolBug::GivenLost) {
                given.clear();
            }
            if self.setup.bugs.have(ProtocolBug::NoRecalls) {
                recalls.clear();
            }
            let Some(lease) = self.leases.get(generation) else {
                continue;
            };
            let (node, seq) = (lease.node, lease.seq);
            let frames = given.len().max(recalls.len()).div_ceil(MAX_NOTICE);
            for part in 0..frames {
                let (given, recalls) = (part_of(&given, part), part_of(&recalls, part));
                let notice = Notice {
                    generation,
                    seq,
                    given,
                    recalls,
                    ..self.notice(false)
                };
                self.send(node, Frame::Notice(notice));
            }
        }
    }

    fn announce(&mut self, wants_batch: bool) {
        let members = self.members().iter().map(Node::from);
        let known = self.leases.iter().map(|(_, lease)| lease.node);
        let clients = known.filter(|node| node.is_client());
        for node in members.chain(clients).collect::<BTreeSet<_>>() {
            self.send(node, Frame::Notice(self.notice(wants_batch)));
        }
    }

    /// All votes: agent, lease, token, mode, names.
    #[cfg(feature = "model")]
    pub fn votes(&self) -> impl Iterator<Item = (Lifetime, Generation, Token, Mode, &Names)> {
        let votes = self.leases.votes();
        votes.map(|(agent, generation, token, vote)| {
            (agent, generation, token, vote.mode, &vote.names)
        })
    }

    /// Whether a vote was given unasked, and not confirmed since.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn is_provisional(&self, generation: Generation, token: Token) -> bool {
        let lease = self.leases.get(generation);
        lease.is_some_and(|lease| lease.is_provisional(token))
    }

    /// When the lease of an agent expires, if the voter knows the agent.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn expires(&self, agent: Lifetime) -> Option<Time> {
        let lease = self.leases.get(self.leases.known(agent)?)?;
        Some(lease.expires)
    }

    /// When the last batch of an agent arrived, if the voter knows the agent.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn last_heard(&self, agent: Lifetime) -> Option<Time> {
        let lease = self.leases.get(self.leases.known(agent)?)?;
        Some(lease.heard)
    }

    /// No higher fence was given or recorded here.
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
        self.leases.rebase(now, self.setup.rules.wait);
        self.names.rebase(now);
        self.guests.rebase(now);
        self.quarantine
            .iter_mut()
            .for_each(|quarantine| quarantine.rebase(now));
        if let Stage::Quarantine { again } = &mut self.stage {
            *again = again.relative_to(now);
        }
    }
}

/// The items that go with the notice of this number.
fn part_of<T: Copy>(items: &[T], part: usize) -> Vec<T> {
    items
        .chunks(MAX_NOTICE)
        .nth(part)
        .unwrap_or_default()
        .to_vec()
}
