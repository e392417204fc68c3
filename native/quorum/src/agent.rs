//! The agent: collects votes for the locks that processes of its node request, renews the leases of held locks, and
//! releases locks.
//!
//! ```text
//!   lock ---> queues.rs ---> request.rs ----> locks.rs ----> unlock: unlocks.rs
//!             queues of      votes of an      held locks
//!             this node      attempt          and leases
//!                  '--------------.------------'    passing.rs: passes a lock on within this node
//!                      asking.rs | exchange.rs      collects votes; sends batches, applies answers
//!                   sequencer.rs | peer.rs          which voters are asked; what each was sent and missed
//!                   replacing.rs | spare.rs         others for voters that are sick; votes beyond the quorum
//!                 round_trips.rs                    how long they take to answer
//! ```
//!
//! # Invariants
//! - **G1** A lock is in the table if and only if a quorum of each group of its names (`groups.rs`) has votes for it
//!   that they cannot have dropped yet: votes of their current sessions, for `holder_lease` after the sending of a
//!   batch that they answered. (Q1, Q2)
//! - **G2** The agent discards the votes of a session before it sends a batch in the voter's next session. It says of a
//!   lock that it *continues* a vote only if a vote of the session before counted at that moment. (Q3, V3)
//! - **G3** A lock is granted only after a quorum of each group has recorded its fence. (Q6)
//! - **G4** A released lock leaves the table first, and its unlocks are queued after that, so nothing renews it. (Q7,
//!   Q8)
//! - **G5** Each attempt has its own token, and a released token is never used again. (Q7, Q10)
//! - **G6** Each voter has at most one unanswered batch, not counting batches that it rejected or that were sent to
//!   an earlier lifetime of the voter.
//!
//! Every call first advances the time: a lock whose lease has expired by `now` is lost before the event of the call
//! could renew it. A lock that a reader of its standing found expired therefore stays expired.

mod asking;
mod exchange;
mod locks;
mod output;
mod passing;
mod peer;
mod queues;
mod random;
mod replacing;
mod request;
mod round_trips;
mod sequencer;
mod spare;
mod unlocks;

pub use output::{AgentOutput, AgentSetup, Count, Held, Loss, Path, Refusal, Request, Status};

use crate::groups::Groups;
use crate::lease::{Lease, Standing};
use crate::members::{Member, MemberSet};
use crate::message::{Frame, Mode, Name, Names, Op, Token};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use locks::{HeldLock, Locks, Released};
use peer::Peer;
use queues::Queues;
use random::Random;
use request::Pending;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use unlocks::Unlocks;

/// How many requests one call of [`Agent::tick`] handles because their time has come, for example because they time
/// out together. A request takes about a microsecond, and a step of the agent should take far less than 1 ms.
const TIMERS_PER_TICK: usize = 128;

/// The agent of one node. See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    setup: AgentSetup,
    groups: Groups,
    now: Time,
    random: Random,
    peers: Vec<Peer>,
    requests: BTreeMap<Request, Pending>,
    /// The request of each attempt.
    attempts: BTreeMap<Token, Request>,
    timers: BTreeSet<(Time, Request)>,
    queues: Queues,
    /// Requests that may start, because they are first in the queues of this node.
    starting: VecDeque<Request>,
    locks: Locks,
    unlocks: Unlocks,
    next: Token,
    /// The highest clock that was received or given: see [`Priority`](crate::message::Priority).
    clock: u64,
    /// The members that have another list or other leases.
    differing: MemberSet,
    out: Vec<AgentOutput>,
}

impl Agent {
    /// Creates an agent. It has no connected member yet, not even its own node: call [`Agent::up`].
    #[must_use]
    pub fn new(setup: AgentSetup, now: Time) -> Agent {
        let members = setup.members;
        Agent {
            setup,
            groups: Groups::new(members, setup.rules.partitions),
            now,
            random: Random::new(setup.seed),
            peers: members.iter().map(|_| Peer::new(now)).collect(),
            requests: BTreeMap::new(),
            attempts: BTreeMap::new(),
            timers: BTreeSet::new(),
            queues: Queues::new(setup.rules.partitions),
            starting: VecDeque::new(),
            locks: Locks::new(members.count(), setup.rules.at_risk),
            unlocks: Unlocks::default(),
            next: Token(1),
            clock: 0,
            differing: MemberSet::EMPTY,
            out: Vec::new(),
        }
    }

    /// Locks all `names` or none, within `timeout`. The answer is [`AgentOutput::Granted`] or
    /// [`AgentOutput::Refused`].
    pub fn lock(
        &mut self,
        now: Time,
        request: Request,
        names: Names,
        mode: Mode,
        timeout: Duration,
    ) {
        self.advance(now);
        let quorums = self.groups.quorums(&names);
        if !quorums.met_by(self.connected()) {
            self.out.push(AgentOutput::Refused {
                request,
                why: Refusal::NoQuorum,
            });
        } else {
            self.queues.join(request, &names);
            let pending = Pending::new(names, quorums, mode, self.now + timeout);
            self.timers.insert((pending.timer(), request));
            self.requests.insert(request, pending);
            self.starting.push_back(request);
        }
        self.start();
    }

    /// Cancels a request, because its caller is dead. It gets no answer. A granted lock is not affected: unlock it.
    pub fn cancel(&mut self, now: Time, request: Request) {
        self.advance(now);
        self.drop_request(request);
        self.start();
    }

    /// Releases a lock. The answer is [`AgentOutput::Unlocked`] when a quorum has removed its votes, or immediately
    /// if the lock is passed on to a waiting request of this node. Returns `false`, without an answer, if there is no
    /// such lock: it was lost or already released.
    pub fn unlock(&mut self, now: Time, token: Token, request: Request) -> bool {
        self.advance(now);
        let released = self.release(token);
        let existed = released.is_some();
        match released {
            Some(Released::VotesReleased(lock)) => {
                let until = self.now + self.setup.rules.voter_lease;
                let quorums = self.groups.quorums(&lock.names);
                self.unlocks.await_done(until, request, lock.asked, quorums);
            }
            Some(Released::Passed) => self.out.push(AgentOutput::Unlocked {
                request,
                confirmed: true,
            }),
            None => {}
        }
        self.start();
        existed
    }

    /// Releases a lock without waiting for a quorum. The answer is [`AgentOutput::Accepted`], immediately unless more
    /// than [`pending_unlocks`](crate::rules::Rules::pending_unlocks) unlocks are pending. Returns `false`,
    /// without an answer, if there is no such lock.
    pub fn try_unlock(&mut self, now: Time, token: Token, request: Request) -> bool {
        self.advance(now);
        let released = self.release(token);
        let existed = released.is_some();
        let accepted = self.unlocks.pending() <= self.setup.rules.pending_unlocks;
        match released {
            Some(Released::VotesReleased(_)) if !accepted => self
                .unlocks
                .await_accepted(self.now + self.setup.rules.voter_lease, request),
            Some(_) => self.out.push(AgentOutput::Accepted { request }),
            None => {}
        }
        self.start();
        existed
    }

    /// Revokes `name`: its holder loses it with [`Loss::Revoked`]. Another request can get it after the holder's
    /// agent has confirmed the loss, or has been silent for [`voter_lease`](crate::rules::Rules::voter_lease). Voters
    /// that are not connected are not reached.
    pub fn revoke(&mut self, now: Time, name: Name) {
        self.advance(now);
        self.enqueue(self.groups.group(&name), &Op::Revoke { name });
        self.start();
    }

    /// A member is connected now.
    pub fn up(&mut self, now: Time, member: Member) {
        self.advance(now);
        let Some(peer) = self.peers.get_mut(member.place()) else {
            return;
        };
        if !peer.connected {
            peer.connected = true;
            peer.lose();
            peer.next_batch = self.now;
            // It may have restarted.
            self.replace_votes_of(member);
            self.group_the_connected();
        }
        self.start();
    }

    /// A member is disconnected now. Its votes count until their lease expires.
    pub fn down(&mut self, now: Time, member: Member) {
        self.advance(now);
        let Some(peer) = self.peers.get_mut(member.place()) else {
            return;
        };
        peer.connected = false;
        peer.silent = false;
        peer.lose();
        self.group_the_connected();
        self.replace_votes_of(member);
        self.leave_voter(member);
        self.start();
    }

    /// Members that have another list or other leases. They ignore this agent, so they cannot vote for it.
    pub fn differing(&mut self, now: Time, members: MemberSet) {
        self.advance(now);
        self.differing = members;
        self.start();
    }

    /// A frame arrived from a member. The agent ignores frames for voters and frames from non-members.
    pub fn receive(&mut self, now: Time, from: Member, frame: Frame) {
        self.advance(now);
        match frame {
            _ if !self.setup.members.contains(from) => {}
            Frame::Ack(ack) if ack.agent == self.setup.lifetime => self.ack(from, ack),
            Frame::Notice(notice) => self.notice(from, notice),
            Frame::Ack(_) | Frame::Batch(_) | Frame::Floor(_) => {}
        }
        self.start();
    }

    /// Time has passed. Call [`Agent::flush`] afterwards. If the time of many requests has come, only some are
    /// handled, and [`Agent::deadline`] is not in the future.
    pub fn tick(&mut self, now: Time) {
        self.advance(now);
        for _ in 0..TIMERS_PER_TICK {
            let first = self.timers.first().copied();
            let Some((_, request)) = first.filter(|(at, _)| *at <= self.now) else {
                break;
            };
            self.timer(request);
            self.start();
        }
        for member in self.setup.members.iter() {
            let peer = &mut self.peers[member.place()];
            let Some(flight) = &mut peer.flight else {
                continue;
            };
            if flight.until <= self.now {
                peer.lose();
                peer.silent = true;
                self.replace_votes_of(member);
                self.ask_last(member, self.setup.rules.demotion);
                self.leave_voter(member);
            } else if flight.late_at.take_if(|at| *at <= self.now).is_some() {
                self.pass_over(member);
            }
        }
        self.answer_unlocks();
        self.start();
    }

    /// When to call [`Agent::tick`] if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let peers = self.setup.members.iter().zip(&self.peers);
        let peers = peers.filter(|(_, peer)| peer.connected);
        let peers = peers
            .map(|(member, peer)| match &peer.flight {
                Some(flight) => flight
                    .late_at
                    .map_or(flight.until, |at| at.min(flight.until)),
                None => self.speaks_at(member, peer),
            })
            .min();
        let request = self.timers.first().map(|(at, _)| *at);
        let locks = self.locks.deadline();
        [peers, request, locks, self.unlocks.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Creates a batch for each voter that has one due and no unanswered batch. Call it once when the mailbox is
    /// empty, after all its messages were applied, so that one batch carries all operations.
    pub fn flush(&mut self, now: Time) {
        self.advance(now);
        self.start();
        let free = self.members_that(|peer| peer.connected && peer.flight.is_none());
        let free = free.iter().filter(|member| !self.is_held_back(*member));
        let free: MemberSet = free.collect();
        let beats = |until| self.members_that(|peer| peer.next_batch <= until).and(free);
        // If a heartbeat is due, the agent also sends those that are due soon: at rest, few steps serve all voters.
        let early = match beats(self.now).is_empty() {
            true => MemberSet::EMPTY,
            false => beats(self.now + self.setup.rules.heartbeat / 2),
        };
        for member in free.iter() {
            let peer = &self.peers[member.place()];
            if early.contains(member) || self.speaks_at(member, peer) <= self.now {
                self.send_batch(member);
            }
        }
    }

    /// Takes the outputs since the last call, oldest first.
    pub fn outputs(&mut self) -> Vec<AgentOutput> {
        std::mem::take(&mut self.out)
    }

    /// Whether `token` is held at `now`: the result of [`Lease::holds`], for callers that have the agent itself.
    #[must_use]
    pub fn held(&self, token: Token, now: Time) -> bool {
        self.standing_of(token)
            .is_some_and(|standing| self.locks.lease.holds(standing, || now))
    }

    /// The lease that decides about the standings of this agent's locks.
    #[must_use]
    pub fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.locks.lease)
    }

    /// The held locks, in the order of their attempts.
    pub fn locks(&self) -> impl Iterator<Item = Held<'_>> {
        self.locks.iter().map(|(attempt, lock)| Held {
            token: lock.token,
            attempt: *attempt,
            names: &lock.names,
            mode: lock.mode,
            fence: lock.fence,
            since: lock.since,
            votes: lock.standing.votes(),
        })
    }

    /// The standing of a held lock, for [`Lease::holds`].
    #[must_use]
    pub fn standing(&self, token: Token) -> Option<Arc<Standing>> {
        self.standing_of(token).map(Arc::clone)
    }

    fn standing_of(&self, token: Token) -> Option<&Arc<Standing>> {
        let attempt = self.locks.attempt_of(token)?;
        self.locks.get(attempt).map(|lock| &lock.standing)
    }

    /// The standing of each held lock, as its holder has it: for model checks.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn standings(&self) -> Vec<(Token, Arc<Standing>)> {
        let locks = self.locks.iter();
        locks
            .map(|(_, lock)| (lock.token, Arc::clone(&lock.standing)))
            .collect()
    }

    /// The locks and the requests for which a vote of `member` counts at `now`: for model checks.
    #[cfg(feature = "model")]
    pub fn counting(&self, member: Member, now: Time) -> impl Iterator<Item = (&Names, Mode)> {
        let counts = self.locks.lease.valid(member) > now;
        let locks = self.locks.iter().map(|(_, lock)| {
            let votes = lock.standing.votes();
            (&lock.names, lock.mode, votes)
        });
        let requests = self.requests.values().filter_map(|pending| {
            let votes = pending.attempt()?.yes;
            Some((&pending.names, pending.mode, votes))
        });
        let all = locks.chain(requests);
        let voted = all.filter(move |(_, _, votes)| counts && votes.contains(member));
        voted.map(|(names, mode, _)| (names, mode))
    }

    /// The state of each voter, in the order of the member list.
    pub fn status(&self) -> impl Iterator<Item = Status> + '_ {
        self.setup
            .members
            .iter()
            .zip(&self.peers)
            .map(|(member, peer)| Status {
                member,
                connected: peer.connected,
                answers: peer.answers,
                session: peer.session,
                valid: self.locks.lease.valid(member),
            })
    }

    /// The connected members whose voters missed an answer and have not answered in time since. [`Agent::tick`]
    /// detects them.
    #[must_use]
    pub fn silent(&self) -> MemberSet {
        self.members_that(|peer| peer.silent)
    }

    /// How many partitions of names have a quorum of voters that answer, and how many partitions there are.
    #[must_use]
    pub fn with_quorum(&self) -> (usize, usize) {
        self.groups.with_quorum(self.members_that(Peer::ready))
    }

    /// The number of released locks whose unlock more than half of the members have not executed yet.
    #[must_use]
    pub fn pending_unlocks(&self) -> u64 {
        self.unlocks.pending()
    }

    /// Whether all voters that answer have executed all unlocks. At a shutdown a quorum is not enough: this node's
    /// voter may be one of it, and ends with the node.
    #[must_use]
    pub fn unlocks_arrived(&self) -> bool {
        let issued = self.unlocks.issued();
        let mut answering = self.peers.iter().filter(|peer| peer.ready());
        answering.all(|peer| peer.executed(issued) >= issued)
    }

    /// Whether there is no held lock, no request, and no waiting caller.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let nothing_asked =
            self.requests.is_empty() && self.attempts.is_empty() && self.timers.is_empty();
        nothing_asked && self.locks.is_empty() && self.queues.is_empty() && self.unlocks.is_empty()
    }

    /// Advances the time and drops locks whose lease has expired.
    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        let ending = self.locks.look(self.now);
        for attempt in ending.expired {
            self.lost(attempt, Loss::Quorum);
        }
        for attempt in ending.at_risk {
            self.at_risk(attempt);
        }
    }

    /// For [`ProtocolBug::LivingGroups`].
    fn group_the_connected(&mut self) {
        if self.setup.bugs.have(ProtocolBug::LivingGroups) {
            let partitions = self.setup.rules.partitions;
            self.groups = Groups::among(self.connected(), self.setup.members, partitions);
        }
    }

    fn connected(&self) -> MemberSet {
        self.members_that(|peer| peer.connected)
    }

    fn members_that(&self, which: impl Fn(&Peer) -> bool) -> MemberSet {
        let peers = self.setup.members.iter().zip(&self.peers);
        peers
            .filter(|(_, peer)| which(peer))
            .map(|(member, _)| member)
            .collect()
    }

    /// Queues `op` for those `members` that are connected and have a session.
    fn enqueue(&mut self, members: MemberSet, op: &Op) {
        let issued = self.unlocks.issued();
        for member in members.iter() {
            self.peers[member.place()].push(op.clone(), issued);
        }
    }

    /// Removes a lock from the table, then queues its unlocks. Returns the lock, if it was in the table.
    fn give_up(&mut self, attempt: Token) -> Option<HeldLock> {
        let lock = self.locks.remove(attempt)?;
        if !self.setup.bugs.have(ProtocolBug::UnlockKeepsHeld) {
            lock.standing.set(MemberSet::EMPTY);
        }
        self.unlocks.issue();
        self.enqueue(
            lock.asked,
            &Op::Unlock {
                token: attempt,
                fence: lock.last,
            },
        );
        self.queues.remove(&lock.names, lock.mode);
        self.next_in_queue(&lock.names);
        self.count_unlocks();
        Some(lock)
    }

    fn lost(&mut self, attempt: Token, why: Loss) {
        let token = self.locks.token_of(attempt);
        if self.give_up(attempt).is_some() {
            self.out.push(AgentOutput::Lost { token, why });
        }
    }

    fn at_risk(&mut self, attempt: Token) {
        let token = self.locks.token_of(attempt);
        self.out.push(AgentOutput::AtRisk { token });
    }

    /// Updates which unlocks the voters have executed, and answers callers that waited for it.
    fn count_unlocks(&mut self) {
        let issued = self.unlocks.issued();
        let peers = self.peers.iter();
        let mut reached: Vec<u64> = peers.map(|peer| peer.executed(issued)).collect();
        reached.sort_unstable_by(|a, b| b.cmp(a));
        self.unlocks.reached(reached[reached.len() / 2]);
        self.answer_unlocks();
    }

    fn answer_unlocks(&mut self) {
        let issued = self.unlocks.issued();
        let peers = &self.peers;
        let executed = |member: Member| peers[member.place()].executed(issued);
        let unlocked = self.unlocks.unlocked(self.now, executed);
        let unlocked = unlocked.into_iter();
        self.out.extend(
            unlocked.map(|(request, confirmed)| AgentOutput::Unlocked { request, confirmed }),
        );
        while let Some(request) = self
            .unlocks
            .accepted(self.now, self.setup.rules.pending_unlocks)
        {
            self.out.push(AgentOutput::Accepted { request });
        }
    }

    /// Makes all times relative to `now`: see [`Time::relative_to`].
    #[cfg(feature = "model")]
    pub fn rebase(&mut self, now: Time) {
        self.now = Time(0);
        self.peers.iter_mut().for_each(|peer| peer.rebase(now));
        self.requests
            .values_mut()
            .for_each(|pending| pending.rebase(now));
        self.timers = self
            .requests
            .iter()
            .map(|(request, pending)| (pending.timer(), *request))
            .collect();
        let attempt = self.setup.rules.attempt;
        self.locks.rebase(now, self.setup.members.iter(), attempt);
        self.unlocks.rebase(now);
    }
}
