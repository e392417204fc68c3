//! Sends batches to voters and applies their answers.

use super::link::{Flight, Link, Repair, Sent};
use super::output::{AgentOutput, Loss, Request};
use super::request::Answer;
use super::Agent;
use crate::frame::{wire_size, BATCH_BYTES};
use crate::members::{Member, MemberSet};
use crate::message::{
    Ack, Batch, Digest, Frame, Lifetime, Notice, Op, Reason, Reply, Send, Session, Token, Verdict,
    VoterState, VoterStatus,
};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use std::collections::BTreeSet;

impl Agent {
    /// Creates a batch for each voter that has one due and no unanswered batch.
    pub(super) fn send_batches(&mut self) {
        if self.is_viewless {
            return;
        }
        let free = self.members_that(|link| link.connected && link.flight.is_none());
        // One that confirms votes is no heartbeat: those sent with it would hold up operations until they are answered.
        let beats = |until| {
            let beats = |link: &Link| link.next_batch <= until && link.confirms.is_empty();
            self.members_that(beats).and(free)
        };
        // If a heartbeat is due, the agent also sends those that are due soon: at rest, few steps serve all voters.
        let early = match beats(self.now).is_empty() {
            true => MemberSet::EMPTY,
            false => beats(self.now + self.setup.rules.heartbeat / 2),
        };
        for member in free.iter() {
            if early.contains(member) || self.sends_at(member) <= self.now {
                self.send_batch(member);
            }
        }
    }

    /// When the next batch for a voter without an unanswered one is due.
    pub(super) fn sends_at(&self, member: Member) -> Time {
        let link = &self.links[member.place()];
        let asserts = self
            .assertable(member, Token(0))
            .next()
            .filter(|_| link.ready());
        match asserts {
            _ if link.has_ops() || link.repair != Repair::None => Time::LONG_AGO,
            _ if link.settled && !link.knows_kept && self.locks.is_settled() => Time::LONG_AGO,
            Some(_) => link.next_assert.min(link.next_batch),
            None => link.next_batch,
        }
    }

    fn send_batch(&mut self, member: Member) {
        let (rules, issued) = (self.setup.rules, self.unlocks.issued());
        let is_over = self.locks.lease.valid(member) <= self.now;
        if is_over && !self.links[member.place()].adopting {
            self.locks.settle(member);
        }
        let asserts = self.assertable(member, Token(0)).next().is_some();
        let link = &self.links[member.place()];
        let repair = match link.repair {
            Repair::None if asserts && link.next_assert <= self.now => Repair::Assert(Token(0)),
            repair => repair,
        };
        let (mut ops, mut then, mut unlocked) = (Vec::new(), Repair::None, None);
        let (mut settles, mut tells_kept) = (false, false);
        if link.session.is_some() {
            self.confirm_votes(member, &mut ops);
            then = self.repair(member, repair, &mut ops);
            let link = &mut self.links[member.place()];
            ops.extend(
                link.earlier_agents
                    .iter()
                    .map(|agent| Op::EndAgent { agent: *agent }),
            );
            // Not before each lock that continues a vote is answered: from then on the voter may vote for others.
            settles = !link.settled && then == Repair::None && !self.locks.continues_any(member);
            let kept = self.locks.is_settled();
            tells_kept = kept && !link.knows_kept && (settles || link.settled);
            if settles || tells_kept {
                ops.push(Op::Settled { kept });
            }
            let most = rules.batch.max(ops.len());
            // Until it has settled, it may keep votes of a batch whose answer was lost, for locks that were unlocked
            // since: see `Link::unchecked`.
            unlocked = Some(link.take(&mut ops, most, BATCH_BYTES, issued))
                .filter(|_| link.settled && !matches!(then, Repair::Sync(_)));
        }
        let pause = match self.requests.is_asking() {
            true => rules.wait / 3,
            false => rules.heartbeat,
        };
        let link = &mut self.links[member.place()];
        link.repair = repair;
        link.last = (link.last.0 + 1, self.now);
        link.next_batch = match link.confirms.is_empty() {
            true => self.now + pause,
            false => self.now,
        };
        if matches!(repair, Repair::Assert(_)) {
            // The votes of a lock in transition may end soon, and nothing renews them.
            link.next_assert = match link.adopting && self.locks.continues_any(member) {
                true => self.now + rules.recall * 5,
                false => self.now + rules.heartbeat,
            };
        }
        let (seq, session) = (link.last.0, link.session);
        let sent = ops.iter().filter_map(sent).collect();
        let until = self.now + rules.attempt;
        link.flight = Some(Flight {
            seq,
            until,
            sent,
            unlocked,
            repair: then,
            settles,
            kept: tells_kept,
            given: BTreeSet::new(),
        });
        let batch = Batch {
            agent: self.setup.lifetime,
            session,
            seq,
            stamp: self.now,
            clock: self.clock,
            ops,
        };
        self.out.push(AgentOutput::Send(Send {
            to: member.into(),
            frame: Frame::Batch(batch),
        }));
    }

    /// Confirms votes. Before all other operations: an unasked vote counts for a short time only.
    fn confirm_votes(&mut self, member: Member, ops: &mut Vec<Op>) {
        while ops.len() < self.setup.rules.batch {
            let Some(token) = self.links[member.place()].confirms.pop_first() else {
                return;
            };
            let asking = self
                .requests
                .asking(token)
                .map(|request| self.requests.asking_of(request));
            let fence = match (
                asking.map(|asking| asking.answer(member)),
                self.locks.get(token),
            ) {
                (
                    Some(Answer::Voted {
                        fence, confirming, ..
                    }),
                    _,
                ) => fence.max(confirming),
                (None, Some(lock)) => lock.last,
                (_, _) => continue,
            };
            ops.push(Op::Confirm { token, fence });
        }
    }

    /// Adds the next part of a repair to `ops` and returns the rest.
    fn repair(&mut self, member: Member, repair: Repair, ops: &mut Vec<Op>) -> Repair {
        let most = self.setup.rules.batch;
        match repair {
            Repair::None => Repair::None,
            Repair::Sync(from) => {
                // Also tokens that the voter was not asked for: it may be asked later, and get this batch after that.
                let asking = self
                    .requests
                    .tokens(from)
                    .map(|(token, _)| token)
                    .take(most + 1);
                let held = self.locks.range(from).take(most + 1);
                let mut live: Vec<Token> = asking.chain(held).collect();
                live.sort_unstable();
                // `to` is the first live token that is not listed, or is above all of them.
                let to = live.get(most).copied();
                live.truncate(most);
                ops.push(Op::Sync {
                    from,
                    to: to.unwrap_or(self.next),
                    live,
                });
                to.map_or(Repair::None, Repair::Sync)
            }
            Repair::Assert(from) => {
                let mut bytes = 0;
                let tokens = self.assertable(member, from).take(most + 1);
                for token in tokens.collect::<Vec<_>>() {
                    let op = self.assertion(member, token);
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

    /// The locks from `from` on that may get the vote of a voter that they lack. While it is in quarantine, these are
    /// the locks that continue an earlier vote: see V3.
    fn assertable(&self, member: Member, from: Token) -> impl Iterator<Item = Token> + '_ {
        let in_quarantine = self.links[member.place()].state == VoterState::Quarantined;
        let any = self.setup.bugs.have(ProtocolBug::AnyLockContinues);
        self.locks.lacking(member, from, in_quarantine && !any)
    }

    pub(super) fn ack(&mut self, member: Member, ack: Ack) {
        let link = &mut self.links[member.place()];
        match ack.verdict {
            // A late `Mismatch` names another session than the current one.
            Verdict::Mismatch { named, others } if named == link.session => {
                self.begin(member, ack.session, ack.status, others);
            }
            Verdict::Mismatch { .. } => {}
            Verdict::Done { .. } if link.session != Some(ack.session) => {}
            Verdict::Done {
                replies,
                digest,
                revoked,
            } => {
                let flight = link.take_flight(self.now, ack.seq, ack.stamp);
                let mut decided = match flight {
                    Some(flight) => self.apply_answer(member, flight, replies, digest),
                    None => Vec::new(),
                };
                if self.renew(member, ack.stamp) {
                    self.move_kept();
                    decided = self.requests.all_asking();
                }
                for token in revoked {
                    if self.locks.get(token).is_some() {
                        self.lost(token, Loss::Revoked);
                    } else if let Some(request) = self.requests.asking(token) {
                        self.give_back(request);
                    }
                }
                decided.into_iter().for_each(|request| self.decide(request));
            }
        }
        // After its votes: one that gave its last fence has voted.
        self.status_of(member, ack.session.voter, ack.status);
        self.count_unlocks();
    }

    /// The voter has answered a batch that was sent at `stamp`: its votes count for the lease from then on. Returns
    /// whether they did not before.
    fn renew(&mut self, member: Member, stamp: Time) -> bool {
        if !self.links[member.place()].settled {
            return false;
        }
        let until = match self.setup.bugs.have(ProtocolBug::LeaseFromAnswer) {
            false => stamp.min(self.now) + self.setup.rules.holder_lease,
            true => self.now + self.setup.rules.voter_lease,
        };
        let lease = &self.locks.lease;
        let before = lease.valid(member);
        lease.set(member, before.max(until));
        before <= self.now && until > self.now
    }

    /// What a voter says of itself. Ignored if the session with it is over, or has not begun.
    fn status_of(&mut self, member: Member, voter: Lifetime, status: VoterStatus) {
        self.clock = self.clock.max(status.clock);
        let link = &mut self.links[member.place()];
        if link.session.is_none_or(|session| session.voter != voter) {
            return;
        }
        let before = std::mem::replace(&mut link.state, status.state);
        if before == status.state {
            return;
        }
        if before == VoterState::Quarantined {
            // It accepts all locks from now on.
            link.next_assert = self.now;
        }
        if status.state == VoterState::Voting {
            // It can record fences again.
            for request in self.requests.all_asking() {
                self.requests
                    .change_asking(request, |asking| asking.confirm_again(member));
                self.decide(request);
            }
        }
    }

    /// Starts a new session. The voter has forgotten all votes for this agent.
    fn begin(
        &mut self,
        member: Member,
        session: Session,
        status: VoterStatus,
        others: Vec<Lifetime>,
    ) {
        let issued = self.unlocks.issued();
        let link = &mut self.links[member.place()];
        let is_first = link.session.is_none();
        link.begin(session, issued);
        link.state = status.state;
        link.earlier_agents = others;
        if self.setup.bugs.have(ProtocolBug::ForgottenVotesCount) {
            return;
        }
        match self.links[member.place()].adopting {
            // It has no vote yet, and all locks continue.
            true if is_first => {}
            true => self.locks.begin_adopted(member),
            false => self.locks.begin(member, self.now),
        }
        for request in self.requests.all_asking() {
            self.ask(request, member);
        }
    }

    /// Applies the replies, and returns the requests to decide about when the votes count.
    fn apply_answer(
        &mut self,
        member: Member,
        flight: Flight,
        replies: Vec<Reply>,
        digest: Digest,
    ) -> Vec<Request> {
        let issued = self.unlocks.issued();
        let link = &mut self.links[member.place()];
        if replies.len() != flight.sent.len() {
            link.lose();
            return Vec::new();
        }
        if flight.settles && link.unlocked < issued {
            // A caller may wait for an unlock that the voter has executed: its next answer counts, so request it now.
            link.next_batch = self.now;
        }
        let mut decided = Vec::new();
        for (sent, reply) in flight.sent.into_iter().zip(replies) {
            if let Some(sent) = sent.without(&flight.given) {
                self.replied(member, sent, reply, &mut decided);
            }
        }
        let link = &mut self.links[member.place()];
        if !link.settled && !self.locks.continues_any(member) {
            link.next_batch = self.now;
        }
        self.compare(member, digest);
        decided
    }

    /// Compares the voter's digest with the agent's once all queued operations are executed. If they differ,
    /// schedules a sync, which repairs any difference. Syncs at most once per heartbeat, in case a sync does not
    /// help.
    fn compare(&mut self, member: Member, digest: Digest) {
        let link = &self.links[member.place()];
        let is_behind = link.has_ops() || !link.confirms.is_empty() || link.repair != Repair::None;
        if is_behind || link.compare > self.now {
            return;
        }
        let voted = self.requests.voted(member);
        let live = voted.fold(self.locks.digest(member), Digest::with);
        if live != digest {
            let link = &mut self.links[member.place()];
            link.repair = Repair::Sync(Token(0));
            link.compare = self.now + self.setup.rules.heartbeat;
        }
    }

    fn replied(&mut self, member: Member, sent: Sent, reply: Reply, decided: &mut Vec<Request>) {
        let mut of_token = |agent: &Agent, token| decided.extend(agent.requests.asking(token));
        match (sent, reply) {
            (Sent::Lock(token), Reply::Yes { fence }) => {
                self.answered(member, token, Some(fence), false);
                of_token(self, token);
            }
            (Sent::Lock(token), Reply::No { reason }) => {
                self.answered(member, token, None, reason == Reason::Queued);
                of_token(self, token);
            }
            (Sent::Assert(token), Reply::Yes { .. }) => self.vote(member, token, true),
            (Sent::Assert(token), Reply::No { .. })
                if self.setup.bugs.have(ProtocolBug::SettlesRefused) =>
            {
                self.vote(member, token, false);
            }
            // If its fence is lower than the one that it was sent, it says later that it can record that.
            (Sent::Confirm(token), Reply::Yes { fence }) => {
                self.confirmed(member, token, fence);
                of_token(self, token);
            }
            (Sent::Confirm(token), _) => self.missing(member, token),
            (Sent::Sync(live), Reply::Synced { missing }) => {
                for token in live {
                    let has = missing.binary_search(&token).is_err();
                    self.synced(member, token, has);
                    of_token(self, token);
                }
            }
            // An assertion that is rejected and repeated later; or a mismatched reply, which the digests show.
            _ => {}
        }
    }

    pub(super) fn notice(&mut self, member: Member, notice: Notice) {
        let link = &mut self.links[member.place()];
        let other = link
            .session
            .is_some_and(|session| session.voter != notice.voter);
        // It was sent before the voter began.
        let is_early = link.session.is_none() && notice.wants_batch;
        if (other || is_early) && link.flight.is_some() {
            // The batch in flight gets no answer.
            link.lose();
        }
        if other || notice.wants_batch {
            link.next_batch = self.now;
        }
        let sent = link.sent_at(notice.seq);
        let session = Session {
            voter: notice.voter,
            generation: notice.generation,
        };
        let is_current = link.session == Some(session);
        self.status_of(member, notice.voter, notice.status);
        if !is_current {
            return;
        }
        if let Some(sent) = sent {
            let (bugs, wait) = (self.setup.bugs, self.setup.rules.wait);
            let until = match () {
                () if bugs.have(ProtocolBug::GivenCountsLong) => Time(i64::MAX),
                () if bugs.have(ProtocolBug::GivenFromArrival) => self.now + wait,
                () => sent + wait * 4 / 5,
            };
            for given in &notice.given {
                self.links[member.place()].given_after(notice.seq, given.token);
                self.given(member, given.token, given.fence, until);
            }
        }
        for recall in notice.recalls {
            self.recall(member, recall);
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
        Op::Unlock { .. } | Op::Settled { .. } | Op::Revoke { .. } | Op::EndAgent { .. } => None,
    }
}
