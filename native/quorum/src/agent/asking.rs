//! Collects the votes of a request, from the head of this node's queue to the lock.
//!
//! ```text
//!   wide      Lock to a quorum of voters, or to all members if all of them vote for each name: then the batches of
//!             several requests go to the same voters. Only the sequencer may queue it
//!               all vote                                  granted, after one round trip
//!               the sequencer votes, others are busy      those are asked again, and queue it
//!               the sequencer queues it                   all votes are given back; next attempt: ordered
//!   ordered   Lock to the sequencer alone, which queues it
//!               its vote or its hint                      Lock to the rest of the quorum, which queue it
//! ```
//!
//! A voter that cannot vote, or whose answer is late, is replaced by the next one of its group.
//!
//! A request for names with different voters has one token and one priority. It asks a quorum of each group, and each
//! voter for those names that it may vote for. An ordered attempt asks the sequencers of all names at once.
//!
//! A request that was not granted gives its votes back if an older request waits for one of them (*recall*), after a
//! short grace: the answer that grants it may be on its way. So of two requests that wait for each other the older one
//! is granted (wound-wait: Rosenkrantz, Stearns, Lewis, "System Level Concurrency Control for Distributed Database
//! Systems", 1978). A request keeps its priority over its attempts, so it becomes the oldest in the end, and nothing
//! recalls its votes any more.

use super::locks::HeldLock;
use super::output::{AgentOutput, Count, Path, Refusal, Request};
use super::peer::Peer;
use super::request::{Asked, Attempt, Pending, Stage};
use super::Agent;
use crate::lease::Standing;
use crate::members::{Member, MemberSet};
use crate::message::{Fence, Mode, Names, Op, Priority, Reason, Recall, Token, VoterState};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

impl Agent {
    /// Starts the attempts of requests that have become first in their queues.
    pub(super) fn start(&mut self) {
        while let Some(request) = self.starting.pop_front() {
            let Some(pending) = self.requests.get(&request) else {
                continue;
            };
            let queued = matches!(pending.stage, Stage::Queued);
            if queued && self.queues.start(request, &pending.names, pending.mode) {
                let names = pending.names.clone();
                let contended = self.queues.contended(&names);
                if let Some(pending) = self.requests.get_mut(&request).filter(|_| contended) {
                    pending.next = Asked::Sequencer;
                }
                // The request counts as asking from here on: if its attempt is refused immediately, it must leave the
                // queue as an asking request.
                self.stage(request, Stage::Pausing { until: self.now });
                self.attempt(request);
                // After a reader, the next request may be a reader, too.
                self.next_in_queue(&names);
            }
        }
    }

    pub(super) fn next_in_queue(&mut self, names: &Names) {
        self.starting
            .extend(names.iter().filter_map(|name| self.queues.first(name)));
    }

    /// Starts an attempt of a request that is first on this node.
    pub(super) fn attempt(&mut self, request: Request) {
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        let (names, voters) = (pending.names.clone(), self.voters(pending.mode));
        let enough = pending.quorums.met_by(voters);
        let Some(first) = self.sequencers(&names, voters).filter(|_| enough) else {
            return self.lacks_voters(request);
        };
        let (run, token) = (self.run(request), self.next);
        self.next = Token(token.0 + 1);
        self.prioritize(request, token);
        let again = self.now + self.setup.rules.attempt;
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        let stage = pending.next;
        let asked = match stage {
            Asked::Sequencer => first,
            Asked::Wide if self.groups.is_whole() => voters,
            Asked::Wide | Asked::All => first.or(self.besides(first, &names, voters)),
        };
        self.attempts.insert(token, request);
        let attempt = Attempt::new(token, first, stage, run, again);
        self.stage(request, Stage::Asking(attempt));
        self.ask(request, asked);
    }

    fn lacks_voters(&mut self, request: Request) {
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        let conflicted = |peer: &Peer| peer.ready() && peer.state == VoterState::Conflicted;
        let conflicted = self.members_that(conflicted).or(self.differing);
        let others = pending.quorums.voters().minus(conflicted);
        if !pending.quorums.met_by(self.connected()) {
            self.refuse(request, Refusal::NoQuorum)
        } else if !pending.quorums.met_by(others) {
            self.refuse(request, Refusal::Conflicted)
        } else {
            self.pause(request)
        }
    }

    /// Gives a request that begins to ask, with this token, its priority.
    fn prioritize(&mut self, request: Request, token: Token) {
        let any = self.setup.bugs.have(ProtocolBug::AnySequencer);
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        if pending.priority.is_some() && !any {
            return;
        }
        self.clock = self.clock.saturating_add(1);
        let clock = match any {
            true => self
                .random
                .up_to(Duration::from_nanos(self.clock))
                .as_nanos() as u64,
            false => self.clock,
        };
        pending.priority = Some(Priority {
            clock,
            agent: self.setup.lifetime,
            token,
        });
    }

    /// Asks `members` for their votes.
    pub(super) fn ask(&mut self, request: Request, members: MemberSet) {
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        let (Stage::Asking(attempt), Some(priority)) = (&mut pending.stage, pending.priority)
        else {
            return;
        };
        attempt.asked = attempt.asked.or(members);
        attempt.busy = attempt.busy.minus(members);
        attempt.out = attempt.out.minus(members);
        attempt.storing = attempt.storing.minus(members);
        let queuing = match attempt.stage {
            Asked::Wide => members.and(attempt.first),
            Asked::Sequencer | Asked::All => members,
        };
        let (token, run, mode) = (attempt.token, attempt.run, pending.mode);
        // The fence of the votes so far, so that the others give the same one.
        let guess = match attempt.highest() {
            Fence(0) => pending.highest_fence.after(run),
            voted => voted,
        };
        let issued = self.unlocks.issued();
        for member in members.iter() {
            let op = self
                .groups
                .served(&pending.names, member)
                .map(|names| Op::Lock {
                    token,
                    mode,
                    clock: priority.clock,
                    first: priority.token,
                    wait: queuing.contains(member),
                    guess,
                    run,
                    names,
                });
            let peer = &mut self.peers[member.place()];
            op.into_iter().for_each(|op| peer.push(op, issued));
        }
    }

    /// Asks a quorum for the votes that are missing, and lets the voters queue the request.
    fn ask_all(&mut self, request: Request) {
        if let Some(attempt) = self.attempt_mut(request) {
            attempt.stage = Asked::All;
            let missing = self.missing(request);
            self.ask(request, missing);
        }
    }

    pub(super) fn attempt_mut(&mut self, request: Request) -> Option<&mut Attempt> {
        match &mut self.requests.get_mut(&request)?.stage {
            Stage::Asking(attempt) => Some(attempt),
            Stage::Queued | Stage::Pausing { .. } => None,
        }
    }

    fn stage(&mut self, request: Request, stage: Stage) {
        self.reschedule(request, |pending| pending.stage = stage);
    }

    /// Applies a change that may change when the request needs a timer event.
    fn reschedule(&mut self, request: Request, change: impl FnOnce(&mut Pending)) {
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        self.timers.remove(&(pending.timer(), request));
        change(pending);
        self.timers.insert((pending.timer(), request));
    }

    pub(super) fn timer(&mut self, request: Request) {
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        if pending.deadline <= self.now {
            return self.refuse(request, Refusal::Timeout);
        }
        match &pending.stage {
            Stage::Queued => {}
            Stage::Pausing { .. } => self.attempt(request),
            Stage::Asking(attempt) => {
                let recalled = attempt.recalled.is_some_and(|at| at <= self.now);
                // A voter of the agreed fence may be dead.
                if recalled {
                    self.restart(request, Count::RestartedRecalled)
                } else if attempt.fence.is_some() {
                    self.restart(request, Count::RestartedVoter)
                } else {
                    self.ask_again(request)
                }
            }
        }
    }

    /// Repeats the questions that have no answer, or whose hint did not come: frames may be lost.
    fn ask_again(&mut self, request: Request) {
        self.wait_until_again(request, self.now + self.setup.rules.attempt);
        let Some(attempt) = self.attempt_mut(request) else {
            return;
        };
        // A voter that has queued it may keep a vote of a request that has ended. Others may have none.
        attempt.any |= attempt.stage != Asked::Wide && !attempt.queued.is_empty();
        if attempt.any && attempt.stage == Asked::Sequencer {
            return self.ask_all(request);
        }
        let missing = self.missing(request);
        let Some(attempt) = self.attempt_mut(request) else {
            return;
        };
        let unanswered = match attempt.stage {
            Asked::Wide => missing.minus(attempt.busy),
            Asked::Sequencer => attempt.first.minus(attempt.votes()),
            Asked::All => missing,
        };
        self.ask(request, unanswered);
    }

    fn wait_until_again(&mut self, request: Request, again: Time) {
        self.reschedule(request, |pending| {
            if let Stage::Asking(attempt) = &mut pending.stage {
                attempt.again = again;
            }
        });
    }

    /// Gives all votes back. The next attempt asks the sequencer first, with the same priority.
    pub(super) fn restart(&mut self, request: Request, why: Count) {
        self.out.push(AgentOutput::Counted(why));
        self.begin_with(request, Asked::Sequencer);
    }

    fn begin_with(&mut self, request: Request, next: Asked) {
        self.withdraw(request);
        if let Some(pending) = self.requests.get_mut(&request) {
            pending.next = next;
        }
        self.attempt(request);
    }

    /// Gives all votes back, because too few voters can vote. The next attempt follows after a pause, or when a voter
    /// votes again.
    pub(super) fn fail(&mut self, request: Request) {
        if self
            .requests
            .get(&request)
            .and_then(Pending::attempt)
            .is_some_and(|attempt| attempt.limited)
        {
            return self.refuse(request, Refusal::Limit);
        }
        self.withdraw(request);
        if let Some(pending) = self.requests.get_mut(&request) {
            pending.next = match pending.next {
                Asked::Wide => Asked::Wide,
                Asked::Sequencer | Asked::All => Asked::Sequencer,
            };
        }
        self.pause(request);
    }

    fn pause(&mut self, request: Request) {
        let until = self.now + self.pause_of(request);
        self.stage(request, Stage::Pausing { until });
    }

    /// How long a request waits before it asks voters again that could not vote: longer each time.
    fn pause_of(&mut self, request: Request) -> Duration {
        let rules = self.setup.rules;
        let misses = self.requests.get_mut(&request).map_or(0, |pending| {
            pending.misses += 1;
            pending.misses
        });
        let most = (rules.retry_base + rules.retry_step * misses).min(rules.retry_most);
        self.random.up_to(most)
    }

    /// Releases the votes and positions of the current attempt, if there is one.
    fn withdraw(&mut self, request: Request) {
        let Some(attempt) = self.requests.get(&request).and_then(Pending::attempt) else {
            return;
        };
        // The busy voters keep nothing for it. If one was asked twice, its digest will show its vote.
        let (token, asked) = (attempt.token, attempt.asked.minus(attempt.busy));
        let fence = attempt.fence.map(|(fence, _)| fence).unwrap_or_default();
        self.attempts.remove(&token);
        self.enqueue(asked, &Op::Unlock { token, fence });
    }

    fn refuse(&mut self, request: Request, why: Refusal) {
        if self.drop_request(request) {
            self.out.push(AgentOutput::Refused { request, why });
        }
    }

    /// Removes a request that is not granted. Returns whether it existed.
    pub(super) fn drop_request(&mut self, request: Request) -> bool {
        self.withdraw(request);
        let Some(pending) = self.requests.remove(&request) else {
            return false;
        };
        self.timers.remove(&(pending.timer(), request));
        match pending.stage {
            Stage::Queued => self.queues.leave(request, &pending.names),
            Stage::Asking(_) | Stage::Pausing { .. } => {
                self.queues.remove(&pending.names, pending.mode);
            }
        }
        self.next_in_queue(&pending.names);
        true
    }

    /// Applies a vote or a rejection to a request. `Err(None)` means that the voter has forgotten its vote.
    pub(super) fn count(
        &mut self,
        member: Member,
        token: Token,
        vote: Result<Fence, Option<Reason>>,
    ) {
        let Some(request) = self.attempts.get(&token).copied() else {
            return;
        };
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        let Stage::Asking(attempt) = &mut pending.stage else {
            return;
        };
        if !attempt.asked.contains(member) {
            return;
        }
        match vote {
            Ok(fence) => {
                attempt.vote(member, fence);
                pending.highest_fence = pending.highest_fence.max(fence);
                self.proceed(request);
            }
            // The answer to the wide question. The voter was asked again since, and queues the request.
            Err(Some(Reason::Busy)) if attempt.stage == Asked::All => {}
            Err(reason) => {
                let rested = attempt.rests_on(member);
                attempt.refuse(member, reason);
                let conflicts = matches!(reason, Some(Reason::Busy | Reason::Queued));
                let waits = reason == Some(Reason::Storing) && attempt.fence.is_none();
                pending.contended |= conflicts;
                attempt.limited |= reason == Some(Reason::Limit);
                if waits {
                    // It says when it has stored a mark, but not when its clock allows more fences.
                    let soon = self.now + self.pause_of(request);
                    self.wait_until_again(request, soon);
                }
                if rested {
                    self.restart(request, Count::RestartedVoter);
                } else if conflicts {
                    self.conflicted(request, member);
                } else {
                    self.cannot_vote(request, member);
                }
            }
        }
    }

    /// `member` has rejected the request because of others.
    fn conflicted(&mut self, request: Request, member: Member) {
        let Some(attempt) = self.attempt_mut(request) else {
            return;
        };
        let first = attempt.first.contains(member);
        let alone = attempt.asked.len() == 1;
        match attempt.stage {
            Asked::Wide if first && alone => attempt.stage = Asked::Sequencer,
            Asked::Wide if first => self.restart(request, Count::RestartedQueued),
            Asked::Wide => self.proceed(request),
            Asked::Sequencer | Asked::All => {}
        }
    }

    /// Continues after a vote: asks more voters, or grants the lock.
    pub(super) fn proceed(&mut self, request: Request) {
        if let Some(attempt) = self.attempt_mut(request) {
            let next = match attempt.stage {
                Asked::Wide => !attempt.busy.is_empty(),
                Asked::Sequencer => true,
                Asked::All => false,
            };
            if next && attempt.has_first_votes() {
                self.ask_all(request);
            }
        }
        self.decide(request);
    }

    /// Checks whether the votes are enough, first for a fence, then for the lock.
    pub(super) fn decide(&mut self, request: Request) {
        let (bugs, now) = (self.setup.bugs, self.now);
        let lease = Arc::clone(&self.locks.lease);
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        let mode = pending.mode;
        let quorums = match mode {
            Mode::Read if bugs.have(ProtocolBug::ReadHalf) => pending.quorums.half(),
            Mode::Read | Mode::Write => pending.quorums.clone(),
        };
        let Stage::Asking(attempt) = &mut pending.stage else {
            return;
        };
        if !quorums.met_by(attempt.yes) || !attempt.in_order() {
            return;
        }
        let token = attempt.token;
        let (fence, agreed) = attempt.fence.unwrap_or_else(|| {
            let highest = attempt.highest();
            match mode {
                Mode::Write if bugs.have(ProtocolBug::FenceNotWritten) => {
                    (highest.after(attempt.run), attempt.yes)
                }
                _ => (highest, attempt.yes),
            }
        });
        let agrees = attempt.fence.replace((fence, agreed)).is_none();
        let mut behind = MemberSet::EMPTY;
        for (member, voted) in std::mem::take(&mut attempt.fences) {
            let wrote =
                mode == Mode::Read || voted >= fence || bugs.have(ProtocolBug::FenceNotWritten);
            if wrote || bugs.have(ProtocolBug::FenceNotAwaited) {
                attempt.wrote = attempt.wrote.with(member);
            }
            if !wrote {
                behind = behind.with(member);
            }
        }
        let (yes, wrote, run, asked) = (attempt.yes, attempt.wrote, attempt.run, attempt.asked);
        // The votes that agreed on the fence must have stood until now. A vote that came later may have a higher fence,
        // which another writer was granted in between.
        let stands = lease.until(agreed, &quorums) > now;
        let recorded = lease.until(yes.and(wrote), &quorums) > now;
        self.enqueue(behind, &Op::Confirm { token, fence });
        if stands && recorded {
            let standing = Standing::new(yes, quorums);
            self.grant(request, token, (fence, run), asked, standing);
        } else if agrees {
            // From now on it waits for the fence.
            self.wait_until_again(request, self.now + self.setup.rules.attempt);
        }
    }

    fn grant(
        &mut self,
        request: Request,
        token: Token,
        (last, run): (Fence, NonZeroU16),
        asked: MemberSet,
        standing: Standing,
    ) {
        let Some(pending) = self.requests.remove(&request) else {
            return;
        };
        let path = match pending.attempt().map(|attempt| attempt.stage) {
            Some(Asked::Wide) => Path::Wide,
            _ => Path::Ordered,
        };
        self.timers.remove(&(pending.timer(), request));
        self.attempts.remove(&token);
        self.queues.contend(&pending.names, pending.contended);
        let (fence, standing) = (last.first(run), Arc::new(standing));
        self.out.push(AgentOutput::Granted {
            request,
            token,
            attempt: token,
            path,
            fence,
            standing: Arc::clone(&standing),
        });
        let at_risk = self.locks.insert(
            token,
            HeldLock {
                token,
                names: pending.names,
                mode: pending.mode,
                fence,
                last,
                since: self.now,
                pass_until: None,
                asked,
                standing,
            },
            self.now,
        );
        if at_risk {
            self.at_risk(token);
        }
    }

    pub(super) fn confirmed(&mut self, member: Member, token: Token) {
        let Some(request) = self.attempts.get(&token).copied() else {
            return;
        };
        if let Some(attempt) = self.attempt_mut(request) {
            if attempt.yes.contains(member) {
                attempt.wrote = attempt.wrote.with(member);
            }
            self.decide(request);
        }
    }

    /// The request of `token` can get the vote of `member` now.
    pub(super) fn hint(&mut self, member: Member, token: Token) {
        let to = MemberSet::EMPTY.with(member);
        if let Some(request) = self.attempts.get(&token).copied() {
            let run = self.run(request);
            let Some(attempt) = self.attempt_mut(request) else {
                return;
            };
            match attempt.stage {
                // More requests wait here than when it asked. A vote has as many fences as were asked for, so it asks
                // with another token.
                Asked::Sequencer if attempt.first == to && attempt.run != run => {
                    self.begin_with(request, Asked::All);
                }
                // The votes of the other sequencers are there.
                Asked::Sequencer if attempt.first.minus(attempt.votes()) == to => {
                    self.ask_all(request);
                }
                _ if !attempt.yes.contains(member) => self.ask(request, to),
                _ => {}
            }
        } else if let Some(op) = self.assertion(member, token) {
            self.enqueue(to, &op);
        } else {
            self.disown(member, token);
        }
    }

    /// The voter has a vote for `token`, or has none.
    pub(super) fn synced(&mut self, member: Member, token: Token, has: bool) {
        let Some(request) = self.attempts.get(&token).copied() else {
            return;
        };
        let Some(attempt) = self.attempt_mut(request) else {
            return;
        };
        if attempt.votes().contains(member) {
            if !has {
                self.count(member, token, Err(None));
            }
        } else if attempt.asked.contains(member) && !attempt.busy.contains(member) {
            self.ask(request, MemberSet::EMPTY.with(member));
        }
    }

    /// Another request waits for a vote of this agent.
    pub(super) fn recall(&mut self, member: Member, recall: Recall) {
        let token = recall.token;
        let Some(request) = self.attempts.get(&token).copied() else {
            return match self.locks.get(token) {
                Some(_) => self.end_run_soon(token),
                None => self.disown(member, token),
            };
        };
        let round_trips = &self.peers[member.place()].round_trips;
        let round_trip = round_trips.average().unwrap_or_default();
        let give_back = self.now + round_trip.min(self.setup.rules.hedge_most) * 2;
        self.reschedule(request, |pending| {
            pending.contended = true;
            let older = pending.priority.is_some_and(|own| recall.priority < own);
            if let (true, Stage::Asking(attempt)) = (older, &mut pending.stage) {
                attempt.recalled.get_or_insert(give_back);
            }
        });
    }

    /// The voter still has a vote or a position that this agent does not know.
    fn disown(&mut self, member: Member, token: Token) {
        let fence = Fence::default();
        self.enqueue(MemberSet::EMPTY.with(member), &Op::Unlock { token, fence });
    }
}
