//! The agent's side of one voter: the session, the batch that is not answered, and the operations that wait for the
//! next one.
//!
//! A voter has at most one unanswered batch. Operations that are added in the meantime are queued and go with the
//! next batch. Batches thus grow with the load, and an operation never overtakes an earlier one. A batch without an
//! answer in time is considered lost, and the agent does not know whether the voter executed it. The agent then
//! discards all queued operations for the voter and sends it the live tokens instead, range by range
//! ([`Repair::Sync`]). A voter that hangs therefore uses no memory at the agent.

use crate::message::{Lifetime, Op, Session, Token, VoterState};
use crate::rules::Rules;
use crate::time::Time;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// A sent operation that has a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sent {
    Lock(Token),
    Confirm(Token),
    Assert(Token),
    Sync(Vec<Token>),
}

impl Sent {
    /// The part whose reply still counts after the voter has `given` these votes: none that says that it has no vote.
    pub(super) fn without(self, given: &BTreeSet<Token>) -> Option<Sent> {
        match self {
            Sent::Confirm(token) if given.contains(&token) => None,
            Sent::Sync(mut live) => {
                live.retain(|token| !given.contains(token));
                Some(Sent::Sync(live))
            }
            sent => Some(sent),
        }
    }
}

/// A batch that was sent and is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flight {
    pub(super) seq: u64,
    /// When the batch is considered lost.
    pub(super) until: Time,
    pub(super) sent: Vec<Sent>,
    /// The last unlock that the voter has executed once it has executed this batch.
    pub(super) unlocked: Option<u64>,
    /// The rest of the repair after this batch.
    pub(super) repair: Repair,
    /// Whether this batch tells the voter that all locks that continue a vote are asserted.
    pub(super) settles: bool,
    /// Whether this batch tells the voter that no lock is in transition.
    pub(super) kept: bool,
    /// The votes that the voter has given since it executed this batch: their notice has overtaken the answer.
    pub(super) given: BTreeSet<Token>,
}

/// What the voter must receive before both sides have the same state again, and from which token on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Repair {
    None,
    /// The live tokens: the voter may have missed operations.
    Sync(Token),
    /// The locks without its vote: the voter has forgotten its votes, rejected these, or was not asked.
    Assert(Token),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) connected: bool,
    /// Whether its last batch was answered in time.
    pub(super) answers: bool,
    /// Whether it is connected, missed an answer, and has not answered in time since.
    pub(super) silent: bool,
    pub(super) session: Option<Session>,
    /// Whether it votes, as it said last.
    pub(super) state: VoterState,
    /// From its last batch to the answer.
    pub(super) round_trip: Option<Duration>,
    /// Earlier agents of this node that have a lease there. Each batch of the session ends them until one is answered.
    pub(super) earlier_agents: Vec<Lifetime>,
    /// Whether it knows all locks that continue a vote. Until then, its answers do not extend its lease.
    pub(super) settled: bool,
    /// Whether the agent has not settled there since it adopted the list. Until then, all locks that were held at that
    /// time continue.
    pub(super) adopting: bool,
    /// Whether it knows that no lock is in transition.
    pub(super) knows_kept: bool,
    /// Whether it may have votes, asserted in this session before it settled, for locks that were unlocked since.
    /// Their answer was lost, and with it their unlocks.
    pub(super) unchecked: bool,
    /// The number of the last batch, and when it was sent.
    pub(super) last: (u64, Time),
    /// The same of the last answered batch.
    answered: (u64, Time),
    pub(super) flight: Option<Flight>,
    pub(super) repair: Repair,
    /// When the next batch is due: a heartbeat, or one that confirms votes.
    pub(super) next_batch: Time,
    /// Not before this time it is asked again for votes that it did not give.
    pub(super) next_assert: Time,
    /// Before this time its digest is not compared again.
    pub(super) compare: Time,
    /// The last unlock that it has executed.
    pub(super) unlocked: u64,
    /// The votes that the next batches confirm.
    pub(super) confirms: BTreeSet<Token>,
    /// Operations to send, each with the number of unlocks issued when it was queued.
    outbox: VecDeque<(Op, u64)>,
}

impl Link {
    pub(super) fn new(now: Time) -> Link {
        Link {
            connected: false,
            answers: false,
            silent: false,
            session: None,
            state: VoterState::Quarantined,
            round_trip: None,
            earlier_agents: Vec::new(),
            settled: false,
            adopting: false,
            knows_kept: false,
            unchecked: false,
            last: (0, now),
            answered: (0, now),
            flight: None,
            repair: Repair::None,
            next_batch: now,
            next_assert: now,
            compare: now,
            unlocked: 0,
            confirms: BTreeSet::new(),
            outbox: VecDeque::new(),
        }
    }

    /// Of a voter of an adopted list. It need not receive the `issued` unlocks.
    pub(super) fn adopting(now: Time, connected: bool, issued: u64) -> Link {
        Link {
            connected,
            adopting: true,
            unlocked: issued,
            ..Link::new(now)
        }
    }

    /// Whether it answers.
    pub(super) fn ready(&self) -> bool {
        self.is_open() && self.answers
    }

    /// Whether operations can be queued for it. It receives its full state later otherwise.
    pub(super) fn is_open(&self) -> bool {
        self.connected && self.session.is_some()
    }

    /// Queues `op`, unless the link is not open.
    pub(super) fn push(&mut self, op: Op, issued: u64) {
        if self.is_open() {
            self.outbox.push_back((op, issued));
        }
    }

    /// Moves operations from the outbox to `ops`, up to `most` operations and `bytes` bytes in total. Returns the
    /// last unlock that is executed with them.
    pub(super) fn take(
        &mut self,
        ops: &mut Vec<Op>,
        most: usize,
        bytes: usize,
        issued: u64,
    ) -> u64 {
        let mut space = bytes.saturating_sub(ops.iter().map(crate::frame::wire_size).sum());
        while ops.len() < most {
            let Some((op, _)) = self.outbox.front() else {
                break;
            };
            let size = crate::frame::wire_size(op);
            // The first operation is sent at any size, or it would stay forever.
            if size > space && !ops.is_empty() {
                break;
            }
            space = space.saturating_sub(size);
            ops.extend(self.outbox.pop_front().map(|(op, _)| op));
        }
        // The unlocks before the next operation, which may be an unlock itself.
        self.outbox
            .front()
            .map_or(issued, |(_, at)| at.saturating_sub(1))
    }

    /// The last unlock such that it has executed this one and all earlier ones, of those that it was sent.
    pub(super) fn executed(&self, issued: u64) -> u64 {
        let waits = self.flight.is_some() || self.has_ops() || self.repair != Repair::None;
        match self.ready() && self.settled && !self.unchecked && !waits {
            true => issued,
            false => self.unlocked,
        }
    }

    pub(super) fn has_ops(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// When the batch of this number was sent, if it is the last one, or the last one that was answered.
    pub(super) fn sent_at(&self, seq: u64) -> Option<Time> {
        let known = [self.last, self.answered]
            .into_iter()
            .find(|(number, _)| *number == seq);
        known.map(|(_, sent)| sent)
    }

    /// The voter has given a vote after the batch of this number, and before the next one.
    pub(super) fn given_after(&mut self, seq: u64, token: Token) {
        if let Some(flight) = self.flight.as_mut().filter(|flight| flight.seq == seq) {
            flight.given.insert(token);
        }
    }

    /// Confirms a vote, with a batch that is sent at `at` or earlier.
    pub(super) fn confirm(&mut self, token: Token, at: Time) {
        self.confirms.insert(token);
        self.next_batch = self.next_batch.min(at);
    }

    /// Confirms an unasked vote that ends at `until`, if the lock is not unlocked within `patience`: most contended
    /// locks are. Earlier if the answer might not arrive before the end. Returns whether the next batch has space for
    /// it.
    pub(super) fn confirm_unasked(
        &mut self,
        now: Time,
        rules: &Rules,
        token: Token,
        until: Time,
    ) -> bool {
        let fits = self.confirms.len() < rules.batch;
        let left = (until - now).saturating_sub(self.confirming(rules));
        let delay = left.min(rules.patience);
        self.confirm(token, if fits { now + delay } else { now });
        fits
    }

    /// How long it may take to confirm a vote, also on a busy node. One batch may be on its way already.
    pub(super) fn confirming(&self, rules: &Rules) -> Duration {
        self.round_trip.unwrap_or_default() * 2 + rules.wait / 3
    }

    /// The voter may have missed operations: schedules a repair.
    pub(super) fn lose(&mut self) {
        self.flight = None;
        self.answers = false;
        self.compare = Time::LONG_AGO;
        self.outbox.clear();
        self.confirms.clear();
        self.unchecked |= !self.settled;
        self.repair = if self.settled {
            Repair::Sync(Token(0))
        } else {
            Repair::Assert(Token(0))
        };
    }

    /// Takes the batch of this number, if its answer has not arrived yet. It was sent at `stamp`.
    pub(super) fn take_flight(&mut self, now: Time, seq: u64, stamp: Time) -> Option<Flight> {
        let flight = self.flight.take_if(|flight| flight.seq == seq)?;
        self.answered = (seq, stamp);
        self.round_trip = Some(now - stamp);
        self.answers();
        self.repair = flight.repair;
        self.settled |= flight.settles;
        self.adopting &= !flight.settles;
        self.knows_kept |= flight.kept;
        self.earlier_agents.clear();
        self.unlocked = self.unlocked.max(flight.unlocked.unwrap_or_default());
        if flight.settles && std::mem::take(&mut self.unchecked) {
            // It must receive the live tokens before its answers count for unlocks.
            self.repair = Repair::Sync(Token(0));
        }
        Some(flight)
    }

    fn answers(&mut self) {
        self.silent = false;
        self.answers = true;
    }

    /// The voter has forgotten everything, and `session` is new. It need not receive the `issued` unlocks.
    pub(super) fn begin(&mut self, session: Session, issued: u64) {
        self.session = Some(session);
        self.settled = false;
        self.knows_kept = false;
        self.unchecked = false;
        self.answers();
        self.flight = None;
        self.compare = Time::LONG_AGO;
        self.repair = Repair::Assert(Token(0));
        self.unlocked = issued;
        self.confirms.clear();
        self.outbox.clear();
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time, wait: Duration) {
        self.next_batch = self.next_batch.relative_to(now);
        self.next_assert = self.next_assert.relative_to(now);
        self.compare = self.compare.relative_to(now);
        // Unasked votes count for less than `wait` from these times.
        self.last.1 = self.last.1.since(now, wait);
        self.answered.1 = self.answered.1.since(now, wait);
        self.round_trip = None;
        if let Some(flight) = &mut self.flight {
            flight.until = flight.until.relative_to(now);
        }
    }
}
