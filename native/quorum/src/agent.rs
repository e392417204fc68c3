//! The agent: collects votes for the locks that processes of its node request, renews the leases of held locks, and
//! unlocks them.
//!
//! ```text
//!   calls, frames, time        agent.rs
//!                                 |
//!   batches and answers        exchange.rs ------------------ link.rs      one voter: session, batch, repair
//!                                 |
//!   requests, votes, unlocks   asking.rs -------------------- requests.rs  all requests; request.rs: the votes of one
//!                                 |                           locks.rs     held locks and their leases
//!   runs                       passing.rs                     transition.rs  those of an earlier list of members
//!   another list of members    adoption.rs                    unlocks.rs   unlocks that voters have executed
//!                                                             queues.rs    requests that wait for others of this node
//! ```
//!
//! Calls go down and to the right.
//!
//! # Invariants
//! - **G1** A lock is in the table if and only if a quorum has votes for it that they cannot have dropped yet: for
//!   `holder_lease` after the sending of a batch of the vote's session that was answered. A vote that was given unasked
//!   counts for less, until it is confirmed: see `exchange.rs`. A lock that was held when the agent adopted another
//!   list of members has votes of a quorum of the list before instead, for at most as long: see `transition.rs`. (Q1,
//!   Q2)
//! - **G2** After the restart of a voter, no answer extends its votes before the agent has settled there. It settles
//!   when the voter has confirmed each lock that *continues* a vote, one that still counted when the agent learned of
//!   the restart; or when these votes have ended. So when the voter learns that the agent has settled, the agent counts
//!   no vote that the voter does not have. (Q3, V3)
//! - **G3** A lock is granted only while a quorum has recorded its fence: see `request.rs`. (Q6)
//! - **G4** An unlocked lock leaves the table first, and its unlocks are queued after that, so nothing renews it. (Q7,
//!   Q8)
//! - **G5** Each time that a request asks, it has its own token, and an unlocked token is never used again. (Q7, Q10)
//! - **G6** Each voter has at most one unanswered batch, not counting batches that it rejected or that were sent to
//!   an earlier lifetime of the voter.
//!
//! Every call first advances the time: a lock whose lease has expired by `now` is lost before the event of the call
//! could renew it. A lock that a reader of its standing found expired therefore stays expired.

mod adoption;
mod asking;
mod exchange;
mod link;
mod locks;
mod output;
mod passing;
mod queues;
mod request;
mod requests;
mod transition;
mod unlocks;

pub use output::{Adoption, AgentOutput, AgentSetup, Held, Loss, Path, Refusal, Request, Status};

use crate::lease::{Lease, Standing};
use crate::members::{Member, MemberSet};
use crate::message::{Frame, Mode, Name, Names, Op, Token, VoterState};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use link::Link;
#[cfg(feature = "model")]
use locks::HeldLock;
use locks::{Locks, Unlock};
use request::Pending;
use requests::Requests;
use std::sync::Arc;
use std::time::Duration;
use unlocks::Unlocks;

/// How many requests one call of [`Agent::tick`] handles because their time has come, for example because they time
/// out together. A request takes about a microsecond, and a step of the agent should take far less than 1 ms.
const TIMERS_PER_TICK: usize = 128;

/// A try waits at least this long for votes: the pauses of a busy node are shorter. At most `attempt`.
const SHORTEST_TRY: Duration = Duration::from_millis(100);

/// The agent of one node. See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    setup: AgentSetup,
    now: Time,
    /// One for each member, in the order of the list.
    links: Vec<Link>,
    requests: Requests,
    locks: Locks,
    unlocks: Unlocks,
    next: Token,
    /// The highest clock that was received or given: see [`Priority`](crate::message::Priority).
    clock: u64,
    /// Whether the list is provisional: the agent sends nothing.
    is_viewless: bool,
    out: Vec<AgentOutput>,
}

impl Agent {
    /// Creates an agent. It has no connected member yet, not even its own node: call [`Agent::up`].
    #[must_use]
    pub fn new(setup: AgentSetup, now: Time) -> Agent {
        let members = setup.members;
        let quorum = match setup.bugs.have(ProtocolBug::ReadHalf) {
            true => (members.count() / 2).max(1),
            false => members.quorum(),
        };
        let mut locks = Locks::new(members, quorum, setup.rules.at_risk);
        locks.bugs = setup.bugs;
        Agent {
            setup,
            now,
            links: members.iter().map(|_| Link::new(now)).collect(),
            requests: Requests::default(),
            locks,
            unlocks: Unlocks::default(),
            next: Token(1),
            clock: 0,
            is_viewless: false,
            out: Vec::new(),
        }
    }

    /// Locks all `names` or none, within `timeout`. The answer is [`AgentOutput::Granted`] or
    /// [`AgentOutput::Refused`]. With a timeout of 0 it *tries*: it waits for no other request, only for the answers of
    /// voters, for two of their round trips, and at least 100 ms.
    pub fn lock(
        &mut self,
        now: Time,
        request: Request,
        names: Names,
        mode: Mode,
        timeout: Duration,
    ) {
        self.advance(now);
        if let Some(why) = self.refusal() {
            self.out.push(AgentOutput::Refused { request, why });
        } else {
            let waits = !timeout.is_zero();
            let deadline = self.now + if waits { timeout } else { self.patience() };
            self.requests
                .insert(request, Pending::new(names, mode, deadline, waits));
        }
        self.start();
    }

    /// Cancels a request, because its caller is dead. It gets no answer. A granted lock is not affected: unlock it.
    pub fn cancel(&mut self, now: Time, request: Request) {
        self.advance(now);
        self.drop_request(request);
        self.start();
    }

    /// Unlocks a lock. The answer is [`AgentOutput::Unlocked`] when a quorum has removed its votes, or immediately
    /// if the lock is passed on to a waiting request of this node. Returns `false`, without an answer, if there is no
    /// such lock: it was lost or already unlocked.
    pub fn unlock(&mut self, now: Time, token: Token, request: Request) -> bool {
        self.advance(now);
        let unlocked = self.pass_or_unlock(token);
        let existed = unlocked.is_some();
        match unlocked {
            Some(Unlock::Sent(lock)) => {
                let until = self.now + self.setup.rules.voter_lease;
                self.unlocks.await_done(until, request, lock.asked);
            }
            Some(Unlock::Passed) => self.out.push(AgentOutput::Unlocked {
                request,
                confirmed: true,
            }),
            None => {}
        }
        self.start();
        existed
    }

    /// Unlocks a lock without waiting for a quorum. The answer is [`AgentOutput::Accepted`], immediately unless more
    /// than [`pending_unlocks`](crate::rules::Rules::pending_unlocks) unlocks are pending. Returns `false`,
    /// without an answer, if there is no such lock.
    pub fn unlock_async(&mut self, now: Time, token: Token, request: Request) -> bool {
        self.advance(now);
        let unlocked = self.pass_or_unlock(token);
        let existed = unlocked.is_some();
        let accepted = self.unlocks.pending() <= self.setup.rules.pending_unlocks;
        match unlocked {
            Some(Unlock::Sent(_)) if !accepted => {
                self.unlocks
                    .await_accepted(self.now + self.setup.rules.voter_lease, request);
            }
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
        self.enqueue(self.setup.members.iter().collect(), &Op::Revoke { name });
        self.start();
    }

    /// A member is connected now.
    pub fn up(&mut self, now: Time, member: Member) {
        self.advance(now);
        let link = &mut self.links[member.place()];
        if !link.connected {
            link.connected = true;
            link.lose();
            link.next_batch = self.now;
        }
        self.start();
    }

    /// A member is disconnected now. Its votes count until their lease expires.
    pub fn down(&mut self, now: Time, member: Member) {
        self.advance(now);
        let link = &mut self.links[member.place()];
        link.connected = false;
        link.silent = false;
        link.lose();
        self.start();
    }

    /// A frame arrived from a member. The agent ignores frames for voters and frames from non-members.
    pub fn receive(&mut self, now: Time, from: Member, frame: Frame) {
        if self.setup.bugs.have(ProtocolBug::ExpiredRenewed) {
            self.now = self.now.max(now);
        } else {
            self.advance(now);
        }
        match frame {
            _ if !self.setup.members.contains(from) => {}
            Frame::Ack(ack) if ack.agent == self.setup.lifetime => self.ack(from, ack),
            Frame::Notice(notice) => self.notice(from, notice),
            Frame::Ack(_) | Frame::Batch(_) | Frame::Life(_) => {}
        }
        // A lock may have lost a vote.
        self.advance(now);
        self.start();
    }

    /// Time has passed. Call [`Agent::flush`] afterwards. If many requests are to be handled, only some are, and
    /// [`Agent::deadline`] is not in the future.
    pub fn tick(&mut self, now: Time) {
        self.advance(now);
        for member in self.setup.members.iter() {
            let link = &mut self.links[member.place()];
            if link
                .flight
                .as_ref()
                .is_some_and(|flight| flight.until <= self.now)
            {
                link.lose();
                link.silent = true;
            }
        }
        for _ in 0..TIMERS_PER_TICK {
            let (why, first) = (self.refusal(), self.requests.first());
            if let (Some(why), Some(request)) = (why, first) {
                self.refuse(request, why);
            } else if let Some(request) = self.requests.due(self.now) {
                self.timer(request);
            } else {
                break;
            }
            self.start();
        }
        self.answer_unlocks();
        self.start();
    }

    fn timer(&mut self, request: Request) {
        let pending = self.requests.get(request).expect("it is pending");
        if pending.deadline <= self.now {
            self.refuse(request, Refusal::Timeout);
        } else {
            self.give_back(request);
        }
    }

    /// When to call [`Agent::tick`] if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let members = self.members_that(|link| link.connected && !self.is_viewless);
        let links = members
            .iter()
            .map(|member| match &self.links[member.place()].flight {
                Some(flight) => flight.until,
                None => self.sends_at(member),
            });
        let refused = self.requests.first().and_then(|_| self.refusal());
        let refused = refused.map(|_| Time::LONG_AGO);
        let others = [
            refused,
            self.requests.deadline(),
            self.locks.deadline(),
            self.unlocks.deadline(),
        ];
        links.chain(others.into_iter().flatten()).min()
    }

    /// Creates a batch for each voter that has one due and no unanswered batch. Call it once when the mailbox is
    /// empty, after all its messages were applied, so that one batch carries all operations.
    pub fn flush(&mut self, now: Time) {
        self.advance(now);
        self.start();
        self.send_batches();
    }

    /// Takes the outputs since the last call, oldest first.
    pub fn outputs(&mut self) -> Vec<AgentOutput> {
        std::mem::take(&mut self.out)
    }

    /// Whether `token` is held at `now`: the result of [`Lease::holds`], for callers that have the agent itself.
    #[must_use]
    pub fn held(&self, token: Token, now: Time) -> bool {
        let standing = self.standing_of(token);
        standing.is_some_and(|standing| self.locks.lease.holds(standing, || now))
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

    /// The attempts for which a vote of `member` counts at `now`, of locks and of requests: for model checks.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn counting(&self, member: Member, now: Time) -> Vec<(Token, &Names, Mode)> {
        let mut counting = Vec::new();
        if self.locks.lease.valid(member) > now {
            let counts = |lock: &HeldLock| lock.standing.counts(member, now);
            let locks = self.locks.iter().filter(|(_, lock)| counts(lock));
            counting.extend(locks.map(|(attempt, lock)| (*attempt, &lock.names, lock.mode)));
            let requests = self.requests.with_votes();
            let requests = requests.filter(|(_, asking)| asking.counts(member, now));
            counting.extend(requests.map(|(of, asking)| (asking.token, &of.names, of.mode)));
        }
        counting
    }

    /// Whether `member` knows the locks that continue a vote of its earlier lifetime: for model checks. Until then its
    /// votes are those of the earlier lifetime.
    #[cfg(feature = "model")]
    #[must_use]
    pub fn has_settled(&self, member: Member) -> bool {
        self.links[member.place()].settled
    }

    /// The state of each voter, in the order of the member list.
    pub fn status(&self) -> impl Iterator<Item = Status> + '_ {
        let members = self.setup.members.iter().zip(&self.links);
        members.map(|(member, link)| Status {
            member,
            connected: link.connected,
            answers: link.answers,
            session: link.session,
            settled: link.settled,
            valid: self.locks.lease.valid(member),
        })
    }

    /// The connected members whose voters missed an answer and have not answered in time since. [`Agent::tick`]
    /// detects them.
    #[must_use]
    pub fn silent(&self) -> MemberSet {
        self.members_that(|link| link.silent)
    }

    /// Whether a quorum of members votes for writers, as far as the agent knows. If not, no writer of this node is
    /// granted a lock.
    #[must_use]
    pub fn has_quorum(&self) -> bool {
        let voting = self.members_that(|link| link.ready() && link.state == VoterState::Voting);
        voting.len() >= self.quorum()
    }

    /// The number of locks whose unlock more than half of the members have not executed yet.
    #[must_use]
    pub fn pending_unlocks(&self) -> u64 {
        self.unlocks.pending()
    }

    /// Whether all voters that answer have executed all unlocks. At a shutdown a quorum is not enough: this node's
    /// voter may be one of it, and ends with the node.
    #[must_use]
    pub fn unlocks_arrived(&self) -> bool {
        let issued = self.unlocks.issued();
        let mut answering = self.links.iter().filter(|link| link.ready());
        answering.all(|link| link.executed(issued) >= issued)
    }

    /// Whether there is no held lock, no request, and no waiting caller.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.locks.is_empty() && self.unlocks.is_empty()
    }

    /// How long a try waits for votes: two of the longest round trips.
    fn patience(&self) -> Duration {
        let open = self.links.iter().filter(|link| link.is_open());
        let longest = open.filter_map(|link| link.round_trip).max();
        let round_trips = longest.unwrap_or_default() * 2;
        round_trips.max(SHORTEST_TRY).min(self.setup.rules.attempt)
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

    /// Makes all times relative to `now`: see [`Time::relative_to`].
    #[cfg(feature = "model")]
    pub fn rebase(&mut self, now: Time) {
        self.now = Time(0);
        let wait = self.setup.rules.wait;
        self.links
            .iter_mut()
            .for_each(|link| link.rebase(now, wait));
        self.requests.rebase(now);
        self.locks.rebase(now);
        self.unlocks.rebase(now);
    }
}
