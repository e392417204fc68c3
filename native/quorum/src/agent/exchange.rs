//! Sends batches to voters and applies their answers.

use super::output::{AgentOutput, Loss};
use super::peer::{Flight, Repair, Sent};
use super::Agent;
use crate::frame::{wire_size, BATCH_BYTES};
use crate::groups::Quorums;
use crate::members::{Member, MemberSet};
use crate::message::{
    Ack, Batch, Digest, Fence, Frame, Lifetime, Mode, Notice, Op, Reply, Send, Session, Token,
    Verdict, VoterNews, VoterState,
};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;

impl Agent {
    pub(super) fn send_batch(&mut self, member: Member) {
        let (rules, issued) = (self.setup.rules, self.unlocks.issued());
        let peer = &self.peers[member.place()];
        let asserts = self
            .asserts_at(member, peer)
            .is_some_and(|at| at <= self.now);
        let repair = match peer.repair {
            Repair::None if asserts => Repair::Assert(Token(0)),
            repair => repair,
        };
        let mut ops = Vec::new();
        let mut then = Repair::None;
        if peer.session.is_some() {
            then = self.repair(member, repair, &mut ops);
        }
        let peer = &mut self.peers[member.place()];
        if peer.session.is_some() {
            let buried = peer
                .dead_agents
                .iter()
                .map(|agent| Op::Bury { agent: *agent });
            ops.extend(buried);
        }
        let settles = peer.session.is_some() && !peer.settled && then == Repair::None;
        if settles {
            ops.push(Op::Settled);
        }
        let mut unlocked = None;
        if peer.session.is_some() {
            let credit = usize::from(peer.credit).max(1);
            let most = rules.batch.min(credit).max(ops.len());
            let bytes = (BATCH_BYTES / rules.batch)
                .saturating_mul(most)
                .min(BATCH_BYTES);
            // Until it has settled, it may keep votes of a batch whose answer was lost, for locks that were released
            // since: see `Peer::doubtful`.
            unlocked = Some(peer.take(&mut ops, most, bytes, issued))
                .filter(|_| peer.settled && !matches!(then, Repair::Sync(_)));
        }
        peer.repair = repair;
        peer.seq += 1;
        peer.next_batch = self.now + rules.heartbeat;
        if matches!(repair, Repair::Assert(_)) {
            peer.next_assert = self.now + rules.attempt;
        }
        let (seq, session) = (peer.seq, peer.session);
        let sent = ops.iter().filter_map(sent).collect();
        let until = self.now + rules.attempt;
        let late_at = Some(self.now + peer.round_trips.lateness(&rules));
        let srtt_us = peer.round_trips.average().unwrap_or_default().as_micros();
        peer.flight = Some(Flight {
            seq,
            late_at,
            until,
            sent,
            unlocked,
            repair: then,
            settles,
        });
        let batch = Batch {
            agent: self.setup.lifetime,
            session,
            seq,
            stamp: self.now,
            clock: self.clock,
            srtt_us: u32::try_from(srtt_us).unwrap_or(u32::MAX),
            ops,
        };
        self.out.push(AgentOutput::Send(Send {
            to: member.into(),
            frame: Frame::Batch(batch),
        }));
    }

    /// Adds the next part of a repair to `ops` and returns the rest.
    fn repair(&mut self, member: Member, repair: Repair, ops: &mut Vec<Op>) -> Repair {
        let most = self.setup.rules.batch;
        match repair {
            Repair::None => Repair::None,
            Repair::Sync(from) => {
                // Also tokens that the voter was not asked for: it may be asked later, and get this batch after that.
                let may_vote = |quorums: &Quorums| quorums.voters().contains(member);
                let asks = |request| {
                    let pending = self.requests.get(request);
                    pending.is_some_and(|pending| may_vote(&pending.quorums))
                };
                let attempts = self.attempts.range(from..);
                let attempts = attempts.map(|(token, request)| (*token, asks(request)));
                let locks = self.locks.range(from);
                let locks = locks.map(|(token, lock)| (token, may_vote(lock.standing.quorums())));
                let mut all: Vec<(Token, bool)> = attempts
                    .take(most + 1)
                    .chain(locks.take(most + 1))
                    .collect();
                all.sort_unstable();
                // A token is either an attempt or a lock, so `to` is the first live token that is not listed, or is
                // above all of them.
                let to = all.get(most).map(|(token, _)| *token);
                let listed = all.into_iter().take(most).filter(|(_, may)| *may);
                let live = listed.map(|(token, _)| token).collect();
                ops.push(Op::Sync {
                    from,
                    to: to.unwrap_or(self.next),
                    live,
                });
                to.map_or(Repair::None, Repair::Sync)
            }
            Repair::Assert(from) => {
                let mut bytes = 0;
                let tokens = self.assertable(member, from).map(|(token, _)| token);
                for token in tokens.take(most + 1).collect::<Vec<_>>() {
                    let Some(op) = self.assertion(member, token) else {
                        continue;
                    };
                    bytes += wire_size(&op);
                    if ops.len() == most || (bytes > BATCH_BYTES && !ops.is_empty()) {
                        return Repair::Assert(token);
                    }
                    ops.push(op);
                }
                Repair::None
            }
        }
    }

    pub(super) fn ack(&mut self, member: Member, ack: Ack) {
        let bugs = self.setup.bugs;
        let peer = &mut self.peers[member.place()];
        match ack.verdict {
            // A late `Mismatch` names another session than the current one.
            Verdict::Mismatch { named, others } if named == peer.session => {
                let restarted = named.is_some_and(|named| named.voter != ack.session.voter);
                if restarted && peer.held_back.is_none() {
                    // It comes before the notice of the restart.
                    self.replace_votes_of(member);
                }
                if self.is_held_back(member) {
                    self.peers[member.place()].flight = None;
                } else {
                    self.begin(member, ack.session, ack.news, others);
                }
            }
            Verdict::Mismatch { .. } => {}
            Verdict::Done { .. } if peer.session != Some(ack.session) => {}
            Verdict::Done {
                replies,
                digest,
                revoked,
            } => {
                let until = match bugs.have(ProtocolBug::LeaseFromAnswer) {
                    false => ack.stamp.min(self.now) + self.setup.rules.holder_lease,
                    true => self.now + self.setup.rules.voter_lease,
                };
                peer.held_back = None;
                let lease = &self.locks.lease;
                lease.set(member, lease.valid(member).max(until));
                let flight = peer.flight.take_if(|flight| flight.seq == ack.seq);
                if let Some(flight) = flight {
                    let late = flight.late_at.is_none();
                    self.apply_answer(member, flight, replies, digest);
                    // After its votes, or a slow answer would be one too late.
                    self.measured(member, self.now - ack.stamp, late);
                }
                for token in revoked {
                    self.lost(token, Loss::Revoked);
                    if let Some(request) = self.attempts.get(&token).copied() {
                        self.fail(request);
                    }
                }
            }
        }
        // After its votes: one that gave its last fence has voted.
        self.news(member, ack.session.voter, ack.news);
        self.count_unlocks();
    }

    /// What a voter says of itself. Ignored if the session with it is over, or has not begun.
    fn news(&mut self, member: Member, voter: Lifetime, news: VoterNews) {
        self.clock = self.clock.max(news.clock);
        let peer = &mut self.peers[member.place()];
        if peer.session.is_none_or(|session| session.voter != voter) {
            return;
        }
        peer.credit = news.credit;
        let before = std::mem::replace(&mut peer.state, news.state);
        if before == news.state {
            return;
        }
        if before == VoterState::Quarantined {
            // It accepts all locks from now on.
            peer.next_assert = self.now;
        }
        match news.state {
            VoterState::Voting => self.rejoin(member),
            _ => self.leave_queue(member),
        }
    }

    /// Starts a new session. The voter has forgotten all votes for this agent.
    fn begin(&mut self, member: Member, session: Session, news: VoterNews, others: Vec<Lifetime>) {
        let issued = self.unlocks.issued();
        let peer = &mut self.peers[member.place()];
        peer.begin(session, issued);
        (peer.state, peer.credit) = (news.state, news.credit);
        peer.dead_agents = others;
        if !self.setup.bugs.have(ProtocolBug::ForgottenVotesCount) {
            // Before the next expiry of this voter is stored: see lease.rs.
            self.locks.forgotten(member, self.now);
            self.locks.lease.set(member, Time::NEVER);
            for token in self.attempts.keys().copied().collect::<Vec<_>>() {
                self.count(member, token, Err(None));
            }
            self.advance(self.now);
        }
        self.rejoin(member);
    }

    fn apply_answer(
        &mut self,
        member: Member,
        flight: Flight,
        replies: Vec<Reply>,
        digest: Digest,
    ) {
        let issued = self.unlocks.issued();
        let peer = &mut self.peers[member.place()];
        let returned = peer.answered();
        if replies.len() != flight.sent.len() {
            return peer.lose();
        }
        peer.repair = flight.repair;
        peer.settled |= flight.settles;
        peer.dead_agents.clear();
        peer.unlocked = peer.unlocked.max(flight.unlocked.unwrap_or_default());
        if flight.settles && std::mem::take(&mut peer.doubtful) {
            // It must receive the live tokens before its answers count for unlocks.
            peer.repair = Repair::Sync(Token(0));
        }
        if flight.settles && peer.unlocked < issued {
            // A caller may wait for an unlock that the voter has executed: its next answer counts, so request it now.
            peer.next_batch = self.now;
        }
        for (sent, reply) in flight.sent.into_iter().zip(replies) {
            self.replied(member, sent, reply);
        }
        self.compare(member, digest);
        if returned {
            self.rejoin(member);
        }
    }

    /// Compares the voter's digest with the agent's once all queued operations are executed. If they differ,
    /// schedules a sync, which repairs any difference. Syncs at most once per heartbeat, in case a sync does not
    /// help.
    fn compare(&mut self, member: Member, digest: Digest) {
        let peer = &self.peers[member.place()];
        if peer.has_ops() || peer.repair != Repair::None || peer.compare > self.now {
            return;
        }
        let attempts = self.attempts.iter().filter(|(_, request)| {
            self.requests
                .get(request)
                .is_some_and(|pending| pending.votes().contains(member))
        });
        let live = attempts.fold(self.locks.digest(member), |digest, (token, _)| {
            digest.with(*token)
        });
        if live != digest {
            let peer = &mut self.peers[member.place()];
            peer.repair = Repair::Sync(Token(0));
            peer.compare = self.now + self.setup.rules.heartbeat;
        }
    }

    fn replied(&mut self, member: Member, sent: Sent, reply: Reply) {
        match (sent, reply) {
            (Sent::Lock(token), Reply::Yes { fence }) => {
                self.voted(member, token, fence);
                self.count(member, token, Ok(fence));
            }
            (Sent::Lock(token), Reply::No { reason }) => {
                self.count(member, token, Err(Some(reason)))
            }
            (Sent::Assert(token), Reply::Yes { .. }) => self.vote(member, token, true),
            (Sent::Confirm(token), Reply::Confirmed) => self.confirmed(member, token),
            (Sent::Confirm(token), Reply::No { .. }) => self.lags(member, token),
            (Sent::Confirm(token), _) => {
                self.vote(member, token, false);
                self.count(member, token, Err(None));
            }
            (Sent::Sync(live), Reply::Synced { missing }) => {
                for token in live {
                    let has = missing.binary_search(&token).is_err();
                    self.vote(member, token, has);
                    self.synced(member, token, has);
                }
            }
            // A rejection that changes nothing, or a mismatched reply, which the comparison of digests detects.
            _ => {}
        }
    }

    /// Records a vote that arrived after the lock was granted without it.
    fn voted(&mut self, member: Member, token: Token, voted: Fence) {
        let Some(lock) = self.locks.get(token) else {
            return;
        };
        let (mode, fence) = (lock.mode, lock.last);
        self.vote(member, token, true);
        if mode == Mode::Write && voted < fence {
            self.enqueue(MemberSet::EMPTY.with(member), &Op::Confirm { token, fence });
        }
    }

    pub(super) fn notice(&mut self, member: Member, notice: Notice) {
        let peer = &mut self.peers[member.place()];
        let other = peer
            .session
            .is_some_and(|session| session.voter != notice.voter);
        if other && peer.flight.is_some() {
            // The batch in flight gets no answer.
            peer.lose();
        }
        if other || notice.speak {
            peer.next_batch = self.now;
        }
        if other && peer.held_back.is_none() {
            self.replace_votes_of(member);
        }
        self.news(member, notice.voter, notice.news);
        let session = Session {
            voter: notice.voter,
            generation: notice.generation,
        };
        if self.peers[member.place()].session == Some(session) {
            for token in notice.hints {
                self.hint(member, token);
            }
            for recall in notice.recalls {
                self.recall(member, recall);
            }
        }
    }
}

/// What a reply to `op` refers to; `None` if `op` has no reply.
fn sent(op: &Op) -> Option<Sent> {
    match op {
        Op::Lock { token, .. } => Some(Sent::Lock(*token)),
        Op::Confirm { token, .. } => Some(Sent::Confirm(*token)),
        Op::Assert { token, .. } => Some(Sent::Assert(*token)),
        Op::Sync { live, .. } => Some(Sent::Sync(live.clone())),
        Op::Unlock { .. } | Op::Settled | Op::Revoke { .. } | Op::Bury { .. } => None,
    }
}
