//! What an agent knows of one voter, and what it still has to say to it.
//!
//! There is at most one unanswered batch to a voter. What comes up meanwhile is kept in order and goes with the next:
//! the busier the cluster, the larger its batches, and an operation never overtakes an earlier one. A batch that is
//! not answered in time is taken for lost. Then nobody knows what the voter has done of it; so all that was kept for
//! the voter is thrown away, and it is told which tokens live instead, range by range ([`Repair::Sync`]). That is
//! also why a voter that hangs costs no memory.

use crate::message::{Op, Session, Token};
use crate::time::Time;
use std::collections::VecDeque;

/// An operation that was sent and is answered.
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
    /// Then it is lost.
    pub(super) until: Time,
    pub(super) sent: Vec<Sent>,
    /// What the voter has done of the unlocks when it has done this.
    pub(super) unlocked: Option<u64>,
    /// Where the repair stands then.
    pub(super) repair: Repair,
    /// That the voter will know that all has been asserted.
    pub(super) settles: bool,
}

/// What the voter has to be told so that both sides know the same, and from which token on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Repair {
    None,
    /// Which tokens live: it may have missed something.
    Sync(Token),
    /// What is held without its vote: it has forgotten everything, or had refused.
    Assert(Token),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) connected: bool,
    /// That its last batch was answered in time.
    pub(super) answers: bool,
    /// That it is connected and has let an answer be late, and has given none in time since.
    pub(super) silent: bool,
    pub(super) session: Option<Session>,
    /// That it knows all that was held when the session began.
    pub(super) settled: bool,
    /// That it may have been told of locks in this session, before it settled, that were given back since: what was
    /// on its way then was lost, and the unlocks with it.
    pub(super) doubtful: bool,
    pub(super) seq: u64,
    pub(super) flight: Option<Flight>,
    pub(super) repair: Repair,
    /// When it is to hear something again.
    pub(super) speak: Time,
    /// Not before then are its votes compared with what lives, again.
    pub(super) compare: Time,
    /// How far it has come with the unlocks.
    pub(super) unlocked: u64,
    /// What it is to do, each with how many unlocks there were.
    outbox: VecDeque<(Op, u64)>,
}

impl Peer {
    pub(super) fn new(now: Time) -> Peer {
        Peer {
            connected: false,
            answers: false,
            silent: false,
            session: None,
            settled: false,
            doubtful: false,
            seq: 0,
            flight: None,
            repair: Repair::None,
            speak: now,
            compare: now,
            unlocked: 0,
            outbox: VecDeque::new(),
        }
    }

    /// Whether it is worth asking for a vote.
    pub(super) fn ready(&self) -> bool {
        self.connected && self.answers && self.session.is_some()
    }

    /// It is to do `op`. Nothing is kept for a voter that is to be told everything anyhow when it is there again.
    pub(super) fn push(&mut self, op: Op, issued: u64) {
        if self.connected && self.session.is_some() {
            self.outbox.push_back((op, issued));
        }
    }

    /// Moves what fits from the outbox to `ops`: so many, of so many bytes on the wire. How far the unlocks will be
    /// done then.
    pub(super) fn take(
        &mut self,
        ops: &mut Vec<Op>,
        most: usize,
        bytes: usize,
        issued: u64,
    ) -> u64 {
        let mut room = bytes.saturating_sub(ops.iter().map(crate::frame::wire_size).sum());
        while ops.len() < most {
            let Some((op, _)) = self.outbox.front() else {
                break;
            };
            let size = crate::frame::wire_size(op);
            // The first goes in any case, or it would never go.
            if size > room && !ops.is_empty() {
                break;
            }
            room = room.saturating_sub(size);
            ops.extend(self.outbox.pop_front().map(|(op, _)| op));
        }
        // Those that were issued before the next one, which may be an unlock itself.
        self.outbox
            .front()
            .map_or(issued, |(_, at)| at.saturating_sub(1))
    }

    pub(super) fn has_ops(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// It may have missed something.
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

    /// It has answered in time. Whether it did not before.
    pub(super) fn answered(&mut self) -> bool {
        self.silent = false;
        !std::mem::replace(&mut self.answers, true)
    }

    /// It has forgotten everything, and this is the new beginning. `issued` unlocks need no longer be told.
    pub(super) fn begin(&mut self, session: Session, issued: u64) {
        self.session = Some(session);
        self.settled = false;
        self.doubtful = false;
        self.answered();
        self.flight = None;
        self.compare = Time::NEVER;
        self.repair = Repair::Assert(Token(0));
        self.unlocked = issued;
        self.outbox.clear();
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.speak = self.speak.relative_to(now);
        self.compare = self.compare.relative_to(now);
        if let Some(flight) = &mut self.flight {
            flight.until = flight.until.relative_to(now);
        }
    }
}
