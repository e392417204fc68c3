//! The agent's state for one voter, and the operations it still has to send to it.
//!
//! A voter has at most one unanswered batch. Operations that are added in the meantime are queued and go with the
//! next batch. Batches thus grow with the load, and an operation never overtakes an earlier one. A batch without an
//! answer in time is considered lost, and the agent does not know whether the voter executed it. The agent then
//! discards all queued operations for the voter and sends it the live tokens instead, range by range
//! ([`Repair::Sync`]). A voter that hangs therefore uses no memory at the agent.

use super::round_trips::RoundTrips;
use crate::message::{Lifetime, Op, Session, Token, VoterState};
use crate::time::Time;
use std::collections::VecDeque;

/// A sent operation that has a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sent {
    Lock(Token),
    Confirm(Token),
    Assert(Token),
    Sync(Vec<Token>),
}

/// A batch that was sent and is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flight {
    pub(super) seq: u64,
    /// When its answer is late: see `sequencer.rs`. `None` from then on.
    pub(super) late_at: Option<Time>,
    /// When the batch is considered lost.
    pub(super) until: Time,
    pub(super) sent: Vec<Sent>,
    /// The last unlock that the voter has executed once it has executed this batch.
    pub(super) unlocked: Option<u64>,
    /// The rest of the repair after this batch.
    pub(super) repair: Repair,
    /// Whether this batch tells the voter that all locks that continue a vote are asserted.
    pub(super) settles: bool,
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
pub(super) struct Peer {
    pub(super) connected: bool,
    /// Whether its last batch was answered in time.
    pub(super) answers: bool,
    /// Whether it is connected, missed an answer, and has not answered in time since.
    pub(super) silent: bool,
    pub(super) session: Option<Session>,
    /// Whether it votes, as it said last.
    pub(super) state: VoterState,
    pub(super) round_trips: RoundTrips,
    /// Until when it is asked last: see `sequencer.rs`.
    pub(super) faulty_until: Time,
    /// The most operations of its next batch.
    pub(super) credit: u16,
    /// Earlier agents of this node that have a lease there. Each batch of the session buries them until one is
    /// answered.
    pub(super) dead_agents: Vec<Lifetime>,
    /// Whether it knows all locks that continue a vote.
    pub(super) settled: bool,
    /// Whether it may have votes, asserted in this session before it settled, for locks that were released since.
    /// Their answer was lost, and with it their unlocks.
    pub(super) doubtful: bool,
    pub(super) seq: u64,
    pub(super) flight: Option<Flight>,
    pub(super) repair: Repair,
    /// When the next heartbeat is due.
    pub(super) next_batch: Time,
    /// Not before this time it is asked again for votes that it did not give.
    pub(super) next_assert: Time,
    /// It is sent nothing before this time, while locks are lost without its earlier votes.
    pub(super) held_back: Option<Time>,
    /// Before this time its digest is not compared again.
    pub(super) compare: Time,
    /// The last unlock that it has executed.
    pub(super) unlocked: u64,
    /// Operations to send, each with the number of unlocks issued when it was queued.
    outbox: VecDeque<(Op, u64)>,
}

impl Peer {
    pub(super) fn new(now: Time) -> Peer {
        Peer {
            connected: false,
            answers: false,
            silent: false,
            session: None,
            state: VoterState::Quarantined,
            round_trips: RoundTrips::default(),
            faulty_until: Time::NEVER,
            credit: 0,
            dead_agents: Vec::new(),
            settled: false,
            doubtful: false,
            seq: 0,
            flight: None,
            repair: Repair::None,
            next_batch: now,
            next_assert: now,
            held_back: None,
            compare: now,
            unlocked: 0,
            outbox: VecDeque::new(),
        }
    }

    /// Whether it answers.
    pub(super) fn ready(&self) -> bool {
        self.connected && self.answers && self.session.is_some()
    }

    /// Queues `op`. Discards it if the voter is disconnected or has no session: it receives its full state later
    /// anyway.
    pub(super) fn push(&mut self, op: Op, issued: u64) {
        if self.connected && self.session.is_some() {
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
        match self.ready() && self.settled && !self.doubtful && !waits {
            true => issued,
            false => self.unlocked,
        }
    }

    pub(super) fn has_ops(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The voter may have missed operations: schedules a repair.
    pub(super) fn lose(&mut self) {
        self.flight = None;
        self.answers = false;
        self.compare = Time::NEVER;
        self.outbox.clear();
        self.doubtful |= !self.settled;
        self.repair = if self.settled {
            Repair::Sync(Token(0))
        } else {
            Repair::Assert(Token(0))
        };
    }

    /// The voter answered in time. Returns whether it had not before.
    pub(super) fn answered(&mut self) -> bool {
        self.silent = false;
        !std::mem::replace(&mut self.answers, true)
    }

    /// The voter has forgotten everything, and `session` is new. It need not receive the `issued` unlocks.
    pub(super) fn begin(&mut self, session: Session, issued: u64) {
        let before = self.session.replace(session);
        if before.is_none_or(|before| before.voter != session.voter) {
            // It may run on another machine, and was not there yet when it did not answer.
            self.round_trips = RoundTrips::default();
            self.faulty_until = Time::NEVER;
        }
        self.settled = false;
        self.doubtful = false;
        self.held_back = None;
        self.answered();
        self.flight = None;
        self.compare = Time::NEVER;
        self.repair = Repair::Assert(Token(0));
        self.unlocked = issued;
        self.outbox.clear();
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.next_batch = self.next_batch.relative_to(now);
        self.next_assert = self.next_assert.relative_to(now);
        self.held_back = self.held_back.map(|until| until.relative_to(now));
        self.compare = self.compare.relative_to(now);
        self.faulty_until = self.faulty_until.relative_to(now);
        if let Some(flight) = &mut self.flight {
            flight.until = flight.until.relative_to(now);
            flight.late_at = flight.late_at.map(|at| at.relative_to(now));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::message::{Fence, Generation, Lifetime};

    /// An unlock is confirmed by the answer to the batch that contains it, not to the one before.
    #[test]
    fn an_unlock_that_does_not_fit_is_not_executed() {
        let mut peer = Peer::new(Time(0));
        peer.connected = true;
        let voter = Lifetime::new(1, 1);
        let generation = Generation(1);
        peer.begin(Session { voter, generation }, 0);
        for issued in 1..=3 {
            let (token, fence) = (Token(issued), Fence(0));
            peer.push(Op::Unlock { token, fence }, issued);
        }
        let mut ops = Vec::new();
        assert_eq!(peer.take(&mut ops, 2, usize::MAX, 3), 2);
        assert_eq!(ops.len(), 2);
        ops.clear();
        assert_eq!(peer.take(&mut ops, 2, usize::MAX, 3), 3);
        assert_eq!(ops.len(), 1);
    }
}
