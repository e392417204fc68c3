//! The agent: gets the votes for what the processes of its node want to lock, keeps the leases of what they hold, and
//! takes back what they give up.
//!
//! ```text
//!   lock ---> lines.rs ----> request.rs ----> locks.rs ----> unlock: unlocks.rs
//!             who of this    the votes of     what is held,
//!             node is next   an attempt       and until when
//!                  '--------------.------------'    passing.rs: to the next one of this node
//!                       asking.rs | talking.rs      how a request comes by its votes; batches and answers
//!                              peer.rs              one a voter: what was said, what was missed
//! ```
//!
//! # Invariants
//! - **G1** A lock is in the table while, and only while, a quorum of voters has votes for it that they cannot have
//!   dropped yet: those of their current sessions, for `holder_lease` after a batch that they answered was sent. (Q1,
//!   Q2)
//! - **G2** Votes of a session are discarded before the agent speaks in the voter's next one. (Q3)
//! - **G3** A lock is granted when a quorum of its votes has written down its fence. (Q6)
//! - **G4** What is given up leaves the table first, and its unlocks are queued after that; so nothing renews it.
//!   (Q7, Q8)
//! - **G5** Each attempt has a token of its own, and a token that was given up lives no more. (Q7, Q10)
//! - **G6** To each voter there is at most one unanswered batch, but for those that it has refused or that went to an
//!   earlier life of it.
//!
//! Every call begins by looking at the time: what is over by `now` is lost before anything that comes could renew it.
//! So a lock that a reader of its standing has seen over stays over.

mod asking;
mod lines;
mod locks;
mod output;
mod passing;
mod peer;
mod random;
mod request;
mod talking;
mod unlocks;

pub use output::{AgentOutput, AgentSetup, Held, Loss, Refusal, Request, Status};

use crate::lease::{Lease, Standing};
use crate::members::{Member, MemberSet};
use crate::message::{Frame, Mode, Name, Names, Op, Token, EPOCH};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use lines::Lines;
use locks::Locks;
use passing::Released;
use peer::{Peer, Repair};
use random::Random;
use request::Pending;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use unlocks::Unlocks;

/// One agent. See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    setup: AgentSetup,
    now: Time,
    random: Random,
    peers: Vec<Peer>,
    requests: BTreeMap<Request, Pending>,
    /// Which request a token is an attempt of.
    attempts: BTreeMap<Token, Request>,
    timers: BTreeSet<(Time, Request)>,
    lines: Lines,
    /// Requests whose turn it is on this node.
    starting: VecDeque<Request>,
    locks: Locks,
    unlocks: Unlocks,
    next: Token,
    out: Vec<AgentOutput>,
}

impl Agent {
    /// An agent that has just started. It knows of no connected member yet, not of its own node either:
    /// [`Agent::up`].
    #[must_use]
    pub fn new(setup: AgentSetup, now: Time) -> Agent {
        Agent {
            setup,
            now,
            random: Random::new(setup.seed),
            peers: setup.members.iter().map(|_| Peer::new(now)).collect(),
            requests: BTreeMap::new(),
            attempts: BTreeMap::new(),
            timers: BTreeSet::new(),
            lines: Lines::default(),
            starting: VecDeque::new(),
            locks: Locks::new(),
            unlocks: Unlocks::default(),
            next: Token(1),
            out: Vec::new(),
        }
    }

    /// Locks all `names` or none, within `timeout`. Answered by [`AgentOutput::Granted`] or [`AgentOutput::Refused`].
    pub fn lock(
        &mut self,
        now: Time,
        request: Request,
        names: Names,
        mode: Mode,
        timeout: Duration,
    ) {
        self.advance(now);
        if self.connected() < self.setup.members.quorum() {
            self.out.push(AgentOutput::Refused {
                request,
                why: Refusal::NoQuorum,
            });
        } else {
            self.lines.join(request, &names);
            let pending = Pending::new(names, mode, self.now + timeout);
            self.timers.insert((pending.timer(), request));
            self.requests.insert(request, pending);
            self.starting.push_back(request);
        }
        self.start();
    }

    /// Who asked is gone; it gets no answer. Of no effect on what has been granted: that is to be unlocked.
    pub fn cancel(&mut self, now: Time, request: Request) {
        self.advance(now);
        self.drop_request(request);
        self.start();
    }

    /// Gives a lock back. Answered by [`AgentOutput::Unlocked`] when a quorum has forgotten it, or at once if it is
    /// passed on: to a request of this node that waits for it. `false`, and no answer, if there is no such lock: it was
    /// lost, or given back before.
    pub fn unlock(&mut self, now: Time, token: Token, request: Request) -> bool {
        self.advance(now);
        let released = self.release(token);
        match released {
            Some(Released::GivenUp) => self
                .unlocks
                .await_done(self.now + self.setup.rules.voter_lease, request),
            Some(Released::Passed) => self.out.push(AgentOutput::Unlocked {
                request,
                confirmed: true,
            }),
            None => {}
        }
        self.start();
        released.is_some()
    }

    /// Gives a lock back, and does not wait for it: answered by [`AgentOutput::Accepted`], at once unless more than
    /// [`pending_unlocks`](crate::rules::Rules::pending_unlocks) wait for a quorum. `false`, and no answer, if there
    /// is no such lock.
    pub fn try_unlock(&mut self, now: Time, token: Token, request: Request) -> bool {
        self.advance(now);
        let released = self.release(token);
        let room = self.unlocks.pending() <= self.setup.rules.pending_unlocks;
        match released {
            Some(Released::GivenUp) if !room => self
                .unlocks
                .await_room(self.now + self.setup.rules.voter_lease, request),
            Some(_) => self.out.push(AgentOutput::Accepted { request }),
            None => {}
        }
        self.start();
        released.is_some()
    }

    /// Whoever holds `name` is to give it up: [`Loss::Revoked`]. It may be granted to others once its holder's
    /// agent has confirmed that, or has been silent for [`voter_lease`](crate::rules::Rules::voter_lease). Of no
    /// effect on a voter that is not connected.
    pub fn revoke(&mut self, now: Time, name: Name) {
        self.advance(now);
        self.tell(self.setup.members.iter().collect(), &Op::Revoke { name });
        self.start();
    }

    /// A member is connected.
    pub fn up(&mut self, now: Time, member: Member) {
        self.advance(now);
        let Some(peer) = self.peers.get_mut(member.place()) else {
            return;
        };
        if !peer.connected {
            peer.connected = true;
            peer.lose();
            peer.speak = self.now;
        }
        self.start();
    }

    /// A member is not connected any more. What it has voted for counts as long as it would.
    pub fn down(&mut self, now: Time, member: Member) {
        self.advance(now);
        let Some(peer) = self.peers.get_mut(member.place()) else {
            return;
        };
        peer.connected = false;
        peer.silent = false;
        peer.lose();
        self.start();
    }

    /// A frame has come from a member. What is not for agents, or not from a member, is ignored.
    pub fn receive(&mut self, now: Time, from: Member, frame: Frame) {
        self.advance(now);
        match frame {
            _ if !self.setup.members.contains(from) => {}
            Frame::Ack(ack) if ack.epoch == EPOCH && ack.agent == self.setup.incarnation => {
                self.ack(from, ack)
            }
            Frame::Notice(notice) if notice.epoch == EPOCH => self.notice(from, notice),
            Frame::Ack(_) | Frame::Notice(_) | Frame::Batch(_) | Frame::Floor(_) => {}
        }
        self.start();
    }

    /// Time has passed. Then [`Agent::flush`].
    pub fn tick(&mut self, now: Time) {
        self.advance(now);
        while let Some((_, request)) = self
            .timers
            .first()
            .copied()
            .filter(|(at, _)| *at <= self.now)
        {
            self.timer(request);
            self.start();
        }
        for place in 0..self.peers.len() {
            let peer = &mut self.peers[place];
            if peer
                .flight
                .as_ref()
                .is_some_and(|flight| flight.until <= self.now)
            {
                peer.lose();
                peer.silent = true;
            }
        }
        self.answer_unlocks();
        self.start();
    }

    /// When to call [`Agent::tick`] if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let peers = self.peers.iter().filter(|peer| peer.connected);
        let peers = peers
            .map(|peer| {
                peer.flight
                    .as_ref()
                    .map_or(peer.speak, |flight| flight.until)
            })
            .min();
        let request = self.timers.first().map(|(at, _)| *at);
        let locks = self.locks.deadline(self.setup.rules.at_risk);
        [peers, request, locks, self.unlocks.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Makes a batch for each voter that is to hear something and owes no answer. To be called once when the mailbox
    /// is empty, after all that was in it: one batch carries it all.
    pub fn flush(&mut self, now: Time) {
        self.advance(now);
        self.start();
        for member in self.setup.members.iter() {
            let peer = &self.peers[member.place()];
            let due = peer.speak <= self.now || peer.has_ops() || peer.repair != Repair::None;
            if peer.connected && peer.flight.is_none() && due {
                self.speak(member);
            }
        }
    }

    /// What it wants done, in this order, since it was asked last.
    pub fn outputs(&mut self) -> Vec<AgentOutput> {
        std::mem::take(&mut self.out)
    }

    /// Whether `token` is held at `now`: what [`Lease::holds`] says, for those who have the agent itself.
    #[must_use]
    pub fn held(&self, token: Token, now: Time) -> bool {
        self.standing_of(token)
            .is_some_and(|standing| self.locks.lease.holds(standing, || now))
    }

    /// What the standings of this agent's locks are to be asked with.
    #[must_use]
    pub fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.locks.lease)
    }

    /// What is held, in the order in which it was asked for.
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

    /// What to ask [`Lease::holds`] about, of a lock that is held.
    #[must_use]
    pub fn standing(&self, token: Token) -> Option<Arc<Standing>> {
        self.standing_of(token).map(Arc::clone)
    }

    fn standing_of(&self, token: Token) -> Option<&Arc<Standing>> {
        let attempt = self.locks.attempt_of(token)?;
        self.locks.get(attempt).map(|lock| &lock.standing)
    }

    /// The standing of each lock that is held, as its holder has it: for checkers.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn standings(&self) -> Vec<(Token, Arc<Standing>)> {
        let locks = self.locks.iter();
        locks
            .map(|(_, lock)| (lock.token, Arc::clone(&lock.standing)))
            .collect()
    }

    /// The voters, in the order of the list.
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

    /// The connected members whose voters do not answer: they let an answer be late, and have given none in time
    /// since. Found out by [`Agent::tick`].
    #[must_use]
    pub fn silent(&self) -> MemberSet {
        let peers = self.setup.members.iter().zip(&self.peers);
        peers
            .filter(|(_, peer)| peer.silent)
            .map(|(member, _)| member)
            .collect()
    }

    /// How many locks were given back, and a quorum has not said yet that it has forgotten them.
    #[must_use]
    pub fn pending_unlocks(&self) -> u64 {
        self.unlocks.pending()
    }

    /// Whether nothing is held, nothing asked for, and no caller waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let nothing_asked =
            self.requests.is_empty() && self.attempts.is_empty() && self.timers.is_empty();
        nothing_asked && self.locks.is_empty() && self.lines.is_empty() && self.unlocks.is_empty()
    }

    /// Takes note of the time, and of what is over by it.
    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        for attempt in self.locks.over(self.now) {
            self.lost(attempt, Loss::Quorum);
        }
        for attempt in self.locks.at_risk(self.now, self.setup.rules.at_risk) {
            self.at_risk(attempt);
        }
    }

    fn connected(&self) -> usize {
        self.peers.iter().filter(|peer| peer.connected).count()
    }

    /// The voters that are worth asking.
    fn ready(&self) -> MemberSet {
        let peers = self.setup.members.iter().zip(&self.peers);
        peers
            .filter(|(_, peer)| peer.ready())
            .map(|(member, _)| member)
            .collect()
    }

    fn quorum(&self, mode: Mode) -> usize {
        match mode {
            Mode::Read if self.setup.bugs.have(ProtocolBug::ReadHalf) => {
                (self.setup.members.count() / 2).max(1)
            }
            Mode::Read | Mode::Write => self.setup.members.quorum(),
        }
    }

    /// Those of `members` are to do `op`, as far as they are there.
    fn tell(&mut self, members: MemberSet, op: &Op) {
        let issued = self.unlocks.issued();
        for member in members.iter() {
            self.peers[member.place()].push(op.clone(), issued);
        }
    }

    /// Out of the table first, then to the voters. Whether it was there.
    fn give_up(&mut self, attempt: Token) -> bool {
        let Some(lock) = self.locks.remove(attempt) else {
            return false;
        };
        if !self.setup.bugs.have(ProtocolBug::UnlockKeepsHeld) {
            lock.standing.set(MemberSet::EMPTY);
        }
        self.unlocks.issue();
        self.tell(
            self.setup.members.iter().collect(),
            &Op::Unlock {
                token: attempt,
                fence: lock.last,
            },
        );
        self.lines.gone(None, &lock.names, lock.mode);
        self.next_in_line(&lock.names);
        self.count_unlocks();
        true
    }

    fn lost(&mut self, attempt: Token, why: Loss) {
        let token = self.locks.token_of(attempt);
        if self.give_up(attempt) {
            self.out.push(AgentOutput::Lost { token, why });
        }
    }

    fn at_risk(&mut self, attempt: Token) {
        let token = self.locks.token_of(attempt);
        self.out.push(AgentOutput::AtRisk { token });
    }

    fn vote(&mut self, member: Member, attempt: Token, given: bool) {
        if self.locks.vote(attempt, member, given) {
            self.at_risk(attempt);
        }
    }

    /// How far a quorum has come, and whom that lets go on.
    fn count_unlocks(&mut self) {
        let mut reached: Vec<u64> = self.peers.iter().map(|peer| peer.unlocked).collect();
        reached.sort_unstable_by(|a, b| b.cmp(a));
        self.unlocks
            .reached(reached[self.setup.members.quorum() - 1]);
        self.answer_unlocks();
    }

    fn answer_unlocks(&mut self) {
        while let Some((request, confirmed)) = self.unlocks.unlocked(self.now) {
            self.out.push(AgentOutput::Unlocked { request, confirmed });
        }
        while let Some(request) = self
            .unlocks
            .accepted(self.now, self.setup.rules.pending_unlocks)
        {
            self.out.push(AgentOutput::Accepted { request });
        }
    }

    /// All times told relative to `now`: see [`Time::relative_to`].
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
        self.locks.rebase(now, self.setup.members.iter());
        self.unlocks.rebase(now);
    }
}
