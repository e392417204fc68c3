//! From a request to a lock, and from a lock to its unlocks.
//!
//! A request that is first in the queues of this node asks all voters at the same time, and waits for their votes. It
//! asks a voter again only if that voter may have lost the request: after a restart, or after a batch without answer.
//!
//! A voter that gives a request its vote may *recall* it for an older request that waits. A request that is not granted
//! then gives all its votes back, and asks again with another token and its old priority. So of two requests that wait
//! for each other the older one is granted (wound-wait: Rosenkrantz, Stearns, Lewis, "System Level Concurrency Control
//! for Distributed Database Systems", 1978). It does not give them back while answers are on their way that may grant
//! it, for two round trips at most.

use super::locks::HeldLock;
use super::output::{AgentOutput, Loss, Path, Refusal, Request};
use super::request::{Agreed, Answer, Asking, Lacks, Pending};
use super::Agent;
use crate::lease::Standing;
use crate::members::{Member, MemberSet};
use crate::message::{Fence, Mode, Op, Priority, Recall, Token};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use std::num::NonZeroU16;
use std::sync::Arc;

impl Agent {
    /// Lets requests ask that have become first in their queues. Not before a quorum has answered this agent: until
    /// then it knows no priorities of others, and its requests would be older than all others.
    pub(super) fn start(&mut self) {
        while let Some(request) = self.requests.next_ready() {
            let can_ask = self.members_that(|link| link.session.is_some()).len() >= self.quorum();
            if can_ask && self.requests.leave_queues(request) {
                self.ask_all(request);
                let names = self.requests.get(request).expect("it asks").names.clone();
                // After a reader, the next request may be a reader, too.
                self.requests.wake(&names);
            } else if !self.requests.get(request).expect("it is pending").waits {
                self.refuse(request, Refusal::Timeout);
            } else if !can_ask {
                return self.requests.not_ready(request);
            }
        }
    }

    /// A request asks with a new token.
    pub(super) fn ask_all(&mut self, request: Request) {
        let (token, run) = (self.next_token(), self.run(request));
        let (clock, agent) = (self.clock.saturating_add(1), self.setup.lifetime);
        let is_new = self.requests.change(request, |pending| {
            let is_new = pending.priority.is_none();
            pending.priority.get_or_insert(Priority {
                clock,
                agent,
                token,
            });
            is_new
        });
        if is_new {
            self.clock = clock;
        }
        self.requests.ask(request, Asking::new(token, run));
        for member in self.setup.members.iter() {
            self.ask(request, member);
        }
    }

    /// Asks `member` for its vote, if it has a session.
    pub(super) fn ask(&mut self, request: Request, member: Member) {
        let link = &mut self.links[member.place()];
        let pending = self.requests.get(request).expect("it is pending");
        let (Some(asking), Some(priority)) = (&pending.asking, pending.priority) else {
            unreachable!("it asks, so it has a priority");
        };
        let answer = match link.is_open() {
            true => Answer::Asked,
            false => Answer::NotAsked,
        };
        link.push(
            Op::Lock {
                token: asking.token,
                mode: pending.mode,
                clock: priority.clock,
                first: priority.token,
                wait: pending.waits,
                run: asking.run,
                names: pending.names.clone(),
            },
            self.unlocks.issued(),
        );
        self.requests
            .change_asking(request, |asking| asking.set(member, answer));
    }

    /// A voter has answered a `Lock`: with its fence, or it has queued it or refuses it.
    pub(super) fn answered(
        &mut self,
        member: Member,
        token: Token,
        fence: Option<Fence>,
        queued: bool,
    ) {
        let Some(request) = self.requests.asking(token) else {
            if let Some(fence) = fence {
                self.spare_vote(member, token, fence);
            }
            return;
        };
        self.requests
            .change_asking(request, |asking| match (fence, asking.answer(member)) {
                (Some(fence), _) => asking.voted_with(member, fence, None),
                // An unasked vote can arrive before the answer that it was queued.
                (None, Answer::Asked) if queued => asking.set(member, Answer::Queued),
                (None, Answer::Asked) => asking.set(member, Answer::Refused),
                (None, _) => {}
            });
    }

    /// A voter has given its vote without a question. A batch names it in time. Until that is answered, it ends at
    /// `until`, and counts for a request while it lasts long enough.
    pub(super) fn given(&mut self, member: Member, token: Token, fence: Fence, until: Time) {
        let (now, rules) = (self.now, &self.setup.rules);
        let link = &mut self.links[member.place()];
        let Some(request) = self.requests.asking(token) else {
            return match self.locks.get(token) {
                Some(_) => drop(link.confirm_unasked(now, rules, token, until)),
                None => self.unlock_unknown(member, token),
            };
        };
        let is_new = self.requests.change_asking(request, |asking| {
            let is_new = match asking.answer(member) {
                Answer::Asked | Answer::Queued => true,
                // It has taken the last one back.
                Answer::Voted { until: last, .. } => last.is_some_and(|last| last < until),
                Answer::NotAsked | Answer::Refused => false,
            };
            if is_new {
                let fits = link.confirm_unasked(now, rules, token, until);
                let until = if fits { until } else { now };
                asking.voted_with(member, fence, Some(until));
            }
            is_new
        });
        if is_new {
            self.decide(request);
        }
    }

    /// A vote for a lock that was granted without it.
    fn spare_vote(&mut self, member: Member, token: Token, voted: Fence) {
        let Some(lock) = self.locks.get(token) else {
            return;
        };
        let is_behind = lock.mode == Mode::Write && voted < lock.last;
        self.vote(member, token, true);
        if is_behind {
            self.links[member.place()].confirm(token, self.now);
        }
    }

    /// A voter has confirmed its vote, and has recorded this fence.
    pub(super) fn confirmed(&mut self, member: Member, token: Token, fence: Fence) {
        match self.requests.asking(token) {
            Some(request) => self
                .requests
                .change_asking(request, |asking| asking.confirmed(member, fence)),
            None => self.vote(member, token, true),
        }
    }

    /// A voter has a vote for a live token, or has none.
    pub(super) fn synced(&mut self, member: Member, token: Token, has: bool) {
        let Some(request) = self.requests.asking(token) else {
            return self.vote(member, token, has);
        };
        let asking = self
            .requests
            .get(request)
            .and_then(|pending| pending.asking.as_ref());
        match asking.map(|asking| asking.answer(member)) {
            // A fence that it was sent may be lost.
            Some(Answer::Voted { until: None, .. }) if has => self
                .requests
                .change_asking(request, |asking| asking.confirm_again(member)),
            Some(Answer::Refused) if !has => {}
            // It has a vote whose fence is not known, or has lost the vote or the position. One that it gave unasked it
            // may have taken back, and given again with another fence.
            _ => self.ask(request, member),
        }
    }

    /// A voter has no vote for a token that it was sent a fence for.
    pub(super) fn missing(&mut self, member: Member, token: Token) {
        match self.requests.asking(token) {
            Some(request) => self.ask(request, member),
            None => self.vote(member, token, false),
        }
    }

    /// A voter has a vote for a held lock, or has none.
    pub(super) fn vote(&mut self, member: Member, token: Token, has: bool) {
        let votes = self.locks.vote(token, member, has);
        let moves = self.locks.move_lock(token, self.now);
        if votes || moves {
            self.at_risk(token);
        }
    }

    /// Grants the lock if the votes are enough. Otherwise asks for what is missing, or gives the votes back.
    pub(super) fn decide(&mut self, request: Request) {
        let Some(pending) = self.requests.get(request) else {
            return;
        };
        let Some(asking) = &pending.asking else {
            return;
        };
        let (mode, bugs, now) = (pending.mode, self.setup.bugs, self.now);
        let quorum = match mode {
            Mode::Read if bugs.have(ProtocolBug::ReadHalf) => {
                (self.setup.members.count() / 2).max(1)
            }
            Mode::Read | Mode::Write => self.quorum(),
        };
        let token = asking.token;
        match asking.agreed(mode, quorum, |member, until| self.counts(member, until)) {
            Ok(agreed) => return self.grant(request, agreed, quorum),
            Err(Lacks::Votes) => {}
            Err(Lacks::Fence(fence, votes)) => {
                let behind = self
                    .requests
                    .change_asking(request, |asking| asking.confirm(votes, fence));
                for member in behind.iter() {
                    self.links[member.place()].confirm(token, self.now);
                }
                if bugs.have(ProtocolBug::FenceNotAwaited)
                    || bugs.have(ProtocolBug::FenceNotWritten)
                {
                    let agreed = Agreed {
                        fence,
                        votes,
                        provisional: MemberSet::EMPTY,
                        until: Time(i64::MAX),
                    };
                    return self.grant(request, agreed, quorum);
                }
            }
        }
        let silent = self.members_that(|link| !link.ready());
        let pending = self.requests.get(request).expect("it asks");
        let asking = pending.asking.as_ref().expect("it asks");
        if pending.fails(self.setup.members, silent) {
            self.refuse(request, Refusal::Timeout);
        } else if asking
            .give_back
            .is_some_and(|at| at <= now || !self.awaits_answers(asking))
        {
            self.give_back(request);
        }
    }

    /// Whether a voter that answers has not answered the request yet.
    fn awaits_answers(&self, asking: &Asking) -> bool {
        let asked = asking.with(|answer| answer == Answer::Asked);
        let members = self.setup.members.iter();
        let confirming = members.filter(|member| match asking.answer(*member) {
            Answer::Voted {
                fence,
                confirming,
                until,
            } => fence < confirming || !self.is_in_time(*member, until),
            _ => false,
        });
        let mut awaited = asked.or(confirming.collect()).iter();
        awaited.any(|member| self.links[member.place()].ready())
    }

    /// Whether a vote counts for a request that is not granted yet.
    fn counts(&self, member: Member, until: Option<Time>) -> bool {
        self.locks.lease.valid(member) > self.now && self.is_in_time(member, until)
    }

    /// Whether a vote that ends at `until`, unless it is confirmed, can still be confirmed before. If not, its voter
    /// may have stopped, and a lock that is granted or passed on now would be lost soon.
    pub(super) fn is_in_time(&self, member: Member, until: Option<Time>) -> bool {
        let confirming = self.links[member.place()].confirming(&self.setup.rules);
        until.is_none_or(|until| until > self.now && until - self.now >= confirming)
    }

    fn grant(&mut self, request: Request, agreed: Agreed, quorum: usize) {
        let pending = self.requests.take(request);
        let Pending {
            names,
            mode,
            asking,
            ..
        } = pending;
        let asking = asking.expect("it asks");
        let token = asking.token;
        let last = match self.setup.bugs.have(ProtocolBug::FenceNotWritten) && mode == Mode::Write {
            true => agreed.fence.after(asking.run),
            false => agreed.fence,
        };
        let provisional = (agreed.provisional, agreed.until);
        let standing = Arc::new(Standing::with(agreed.votes, quorum, provisional));
        let fence = last.first(asking.run);
        self.out.push(AgentOutput::Granted {
            request,
            token,
            attempt: token,
            path: Path::Asked,
            fence,
            standing: Arc::clone(&standing),
        });
        let lock = HeldLock {
            token,
            names,
            mode,
            fence,
            last,
            since: self.now,
            pass_until: None,
            asked: asking.asked(),
            standing,
        };
        if self.locks.insert(token, lock, self.now) {
            self.at_risk(token);
        }
    }

    /// Another request waits for a vote of this agent.
    pub(super) fn recall(&mut self, member: Member, recall: Recall) {
        let token = recall.token;
        let Some(request) = self.requests.asking(token) else {
            let until = self.now + self.setup.rules.run_time;
            return match self.locks.get_mut(token) {
                // From now on its run has a time limit.
                Some(lock) => drop(lock.pass_until.get_or_insert(until)),
                None => self.unlock_unknown(member, token),
            };
        };
        let round_trip = self.links[member.place()].round_trip.unwrap_or_default();
        let give_back = self.now + (round_trip * 2).min(self.setup.rules.recall);
        let is_older = self.requests.change(request, |pending| {
            let is_older = pending.priority.is_some_and(|own| recall.priority < own);
            if let (true, Some(asking)) = (is_older, &mut pending.asking) {
                asking.give_back.get_or_insert(give_back);
            }
            is_older
        });
        if is_older {
            self.decide(request);
        }
    }

    /// Gives all votes back, and asks again.
    pub(super) fn give_back(&mut self, request: Request) {
        self.out.push(AgentOutput::GaveBack);
        self.unlock_request(request);
        self.ask_all(request);
    }

    /// Unlocks the votes and positions of a request.
    fn unlock_request(&mut self, request: Request) {
        let asking = self
            .requests
            .get(request)
            .and_then(|pending| pending.asking.as_ref());
        if let Some(asking) = asking {
            let (token, fence) = (asking.token, Fence::default());
            self.unlock_at(asking.asked(), token, fence);
        }
    }

    pub(super) fn refuse(&mut self, request: Request, why: Refusal) {
        self.drop_request(request);
        self.out.push(AgentOutput::Refused { request, why });
    }

    /// Removes a request that is not granted, if it exists.
    pub(super) fn drop_request(&mut self, request: Request) {
        self.unlock_request(request);
        self.requests.drop(request);
    }

    /// The voter has a vote or a position that this agent does not know.
    fn unlock_unknown(&mut self, member: Member, token: Token) {
        self.unlock_at(MemberSet::EMPTY.with(member), token, Fence::default());
    }

    fn unlock_at(&mut self, members: MemberSet, token: Token, fence: Fence) {
        for member in members.iter() {
            self.links[member.place()].confirms.remove(&token);
        }
        self.enqueue(members, &Op::Unlock { token, fence });
    }

    /// Asks `member` for a vote for a held lock.
    pub(super) fn assertion(&mut self, member: Member, token: Token) -> Op {
        let any = self.setup.bugs.have(ProtocolBug::AnyLockContinues);
        let continues = any || self.locks.continues(member, token);
        let lock = self.locks.get_mut(token).expect("it is held");
        lock.asked = lock.asked.with(member);
        let (mode, fence, names) = (lock.mode, lock.last, lock.names.clone());
        Op::Assert {
            token,
            mode,
            fence,
            continues,
            names,
        }
    }

    /// Removes a lock from the table, then queues its unlocks.
    pub(super) fn unlock_attempt(&mut self, attempt: Token) -> HeldLock {
        let lock = self.locks.remove(attempt);
        if !self.setup.bugs.have(ProtocolBug::UnlockKeepsHeld) {
            lock.standing.withdraw();
        }
        self.unlocks.issue();
        self.unlock_at(lock.asked, attempt, lock.last);
        self.requests.free(&lock.names, lock.mode);
        self.count_unlocks();
        lock
    }

    pub(super) fn lost(&mut self, attempt: Token, why: Loss) {
        let token = self.locks.token_of(attempt);
        self.unlock_attempt(attempt);
        self.out.push(AgentOutput::Lost { token, why });
    }

    pub(super) fn at_risk(&mut self, attempt: Token) {
        let token = self.locks.token_of(attempt);
        self.out.push(AgentOutput::AtRisk { token });
    }

    /// Updates which unlocks the voters have executed, and answers callers that waited for it.
    pub(super) fn count_unlocks(&mut self) {
        let issued = self.unlocks.issued();
        let mut reached: Vec<u64> = self
            .links
            .iter()
            .map(|link| link.executed(issued))
            .collect();
        reached.sort_unstable_by(|a, b| b.cmp(a));
        self.unlocks.reached(reached[reached.len() / 2]);
        self.answer_unlocks();
    }

    pub(super) fn answer_unlocks(&mut self) {
        let issued = self.unlocks.issued();
        let links = &self.links;
        let executed = |member: Member| links[member.place()].executed(issued);
        let unlocked = self
            .unlocks
            .unlocked(self.now, self.setup.members, executed)
            .into_iter();
        let unlocked =
            unlocked.map(|(request, confirmed)| AgentOutput::Unlocked { request, confirmed });
        self.out.extend(unlocked);
        while let Some(request) = self
            .unlocks
            .accepted(self.now, self.setup.rules.pending_unlocks)
        {
            self.out.push(AgentOutput::Accepted { request });
        }
    }

    /// Queues `op` for those `members` that are connected and have a session.
    pub(super) fn enqueue(&mut self, members: MemberSet, op: &Op) {
        let issued = self.unlocks.issued();
        for member in members.iter() {
            self.links[member.place()].push(op.clone(), issued);
        }
    }

    /// Why no request can be granted, if so.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        let connected = self.members_that(|link| link.connected);
        (connected.len() < self.quorum()).then_some(Refusal::NoQuorum)
    }

    pub(super) fn quorum(&self) -> usize {
        self.setup.members.quorum()
    }

    pub(super) fn next_token(&mut self) -> Token {
        let token = self.next;
        self.next = Token(token.0 + 1);
        token
    }

    /// How many locks the votes of `request` may serve, one after the other.
    fn run(&self, request: Request) -> NonZeroU16 {
        let pending = self.requests.get(request).expect("it is pending");
        let is_run = pending.writes_one() && !self.setup.bugs.have(ProtocolBug::FencesNotTaken);
        let run = if is_run { self.setup.rules.run } else { 1 };
        u16::try_from(run)
            .ok()
            .and_then(NonZeroU16::new)
            .unwrap_or(NonZeroU16::MIN)
    }

    pub(super) fn members_that(&self, which: impl Fn(&super::link::Link) -> bool) -> MemberSet {
        let links = self.setup.members.iter().zip(&self.links);
        links
            .filter(|(_, link)| which(link))
            .map(|(member, _)| member)
            .collect()
    }
}
