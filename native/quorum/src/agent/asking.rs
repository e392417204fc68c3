//! Collects the votes of a request, from the head of this node's queue to the lock.

use super::locks::HeldLock;
use super::output::{AgentOutput, Refusal, Request};
use super::request::{Attempt, Pending, Stage};
use super::Agent;
use crate::lease::Standing;
use crate::members::{Member, MemberSet};
use crate::message::{Fence, Mode, Name, Names, Op, Reason, Token, Turn};
use crate::protocol_bug::ProtocolBug;
use std::collections::BTreeSet;
use std::num::NonZeroU8;
use std::sync::Arc;

impl Agent {
    /// Starts the attempts of requests that have become first in their queues.
    pub(super) fn start(&mut self) {
        while let Some(request) = self.starting.pop_front() {
            let Some(pending) = self.requests.get(&request) else {
                continue;
            };
            let turn = matches!(pending.stage, Stage::Queued);
            if turn && self.lines.start(request, &pending.names, pending.mode) {
                let names = pending.names.clone();
                let contended = self.lines.contended(&names);
                if let Some(pending) = self.requests.get_mut(&request).filter(|_| contended) {
                    pending.reason = Some(Reason::Turn);
                }
                // The request counts as asking from here on: if its attempt is refused immediately, it must leave the
                // queue as an asking request.
                let until = self.now;
                self.stage(
                    request,
                    Stage::Pausing {
                        until,
                        short: false,
                    },
                );
                self.attempt(request);
                // After a reader, the next request may be a reader, too.
                self.next_in_line(&names);
            }
        }
    }

    pub(super) fn next_in_line(&mut self, names: &Names) {
        self.starting
            .extend(names.iter().filter_map(|name| self.lines.first(name)));
    }

    /// Starts an attempt of a request that is first on this node.
    pub(super) fn attempt(&mut self, request: Request) {
        let (ready, connected, rules) = (self.ready(), self.connected(), self.setup.rules);
        let Some(mode) = self.requests.get(&request).map(|pending| pending.mode) else {
            return;
        };
        let (quorum, run) = (self.quorum(mode), self.run(request));
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        let Some(first) = ready.iter().next().filter(|_| ready.len() >= quorum) else {
            if connected < quorum {
                return self.refuse(request, Refusal::NoQuorum);
            }
            let stage = Stage::Pausing {
                until: self.now + rules.retry_most,
                short: true,
            };
            return self.stage(request, stage);
        };
        let chosen = std::mem::take(&mut pending.chosen);
        let alone = pending.alone() && !chosen;
        let token = self.next;
        self.next = Token(token.0 + 1);
        pending.reason = None;
        let asked = if alone {
            MemberSet::EMPTY.with(first)
        } else {
            ready
        };
        let until = self.now + rules.attempt;
        self.attempts.insert(token, request);
        self.stage(
            request,
            Stage::Asking(Attempt::new(token, until, first, asked, alone, run)),
        );
        self.ask(request, asked, chosen);
    }

    /// Asks `members` for their votes. If `chosen`, the first voter has voted for the request, or has hinted that it is
    /// the next. The other voters get this information as `Turn::Nobody`.
    fn ask(&mut self, request: Request, members: MemberSet, chosen: bool) {
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        let Stage::Asking(attempt) = &mut pending.stage else {
            return;
        };
        if chosen {
            attempt.in_turn = attempt.in_turn.or(members);
        }
        let (token, first, run) = (attempt.token, attempt.first, attempt.run);
        let (mode, guess) = (pending.mode, pending.highest_fence.after(run));
        let names = pending.names.clone();
        let op = |turn| Op::Lock {
            token,
            mode,
            turn,
            guess,
            run,
            names: names.clone(),
        };
        let others = if chosen { Turn::Nobody } else { Turn::Unknown };
        self.enqueue(
            members.and(MemberSet::EMPTY.with(first)),
            &op(Turn::Earlier),
        );
        self.enqueue(members.without(first), &op(others));
    }

    /// Shortens an attempt that can only succeed if other requests release votes. The request holds the first voter's
    /// vote. Another lock may need exactly this vote, or a request with another first voter may wait for it.
    fn shorten_attempt(&mut self, request: Request) {
        let soon = self.now + self.setup.rules.keep;
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        self.timers.remove(&(pending.timer(), request));
        if let Stage::Asking(attempt) = &mut pending.stage {
            attempt.until = attempt.until.min(soon);
        }
        self.timers.insert((pending.timer(), request));
    }

    fn stage(&mut self, request: Request, stage: Stage) {
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        self.timers.remove(&(pending.timer(), request));
        pending.stage = stage;
        self.timers.insert((pending.timer(), request));
    }

    pub(super) fn timer(&mut self, request: Request) {
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        if pending.deadline <= self.now {
            return self.refuse(request, Refusal::Timeout);
        }
        match pending.stage {
            Stage::Queued => {}
            Stage::Asking(_) => self.fail(request),
            Stage::Pausing { .. } => self.attempt(request),
        }
    }

    /// Ends the attempt and releases its votes. The next attempt follows after a pause, or immediately if the first
    /// voter has hinted.
    pub(super) fn fail(&mut self, request: Request) {
        self.withdraw(request);
        let rules = self.setup.rules;
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        if pending.chosen {
            return self.attempt(request);
        }
        // With a position in the first voter's queue, the request gets a hint. Without one it must ask again to get a
        // position.
        let placed = matches!(&pending.stage, Stage::Asking(attempt) if pending.waits.contains(attempt.first));
        pending.misses = if placed { 0 } else { pending.misses + 1 };
        let soon = rules.retry_base + rules.retry_step * pending.misses;
        let most = if placed {
            rules.retry_most
        } else {
            rules.retry_most.min(soon)
        };
        let until = self.now + self.random.up_to(most);
        self.stage(
            request,
            Stage::Pausing {
                until,
                short: false,
            },
        );
    }

    /// Releases the votes of the current attempt, if there is one.
    fn withdraw(&mut self, request: Request) {
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        let Stage::Asking(attempt) = &pending.stage else {
            return;
        };
        let (token, asked) = (attempt.token, attempt.asked.minus(attempt.no));
        let fence = attempt.fence.unwrap_or_default();
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
            Stage::Queued => self.lines.leave(request, &pending.names),
            Stage::Asking(_) | Stage::Pausing { .. } => {
                self.lines
                    .remove(Some(request), &pending.names, pending.mode);
                self.leave(pending.waits, &pending.names);
            }
        }
        self.next_in_line(&pending.names);
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
        let Some(mode) = self.requests.get(&request).map(|pending| pending.mode) else {
            return;
        };
        let quorum = self.quorum(mode);
        let Some(pending) = self.requests.get_mut(&request) else {
            return;
        };
        let Stage::Asking(attempt) = &mut pending.stage else {
            return;
        };
        match vote {
            Ok(fence) => {
                attempt.vote(member, fence);
                pending.highest_fence = pending.highest_fence.max(fence);
                pending.waits = pending.waits.without(member);
            }
            Err(reason) => {
                // An agreed fence is higher than all earlier fences only while all its votes stand. After one is
                // lost, another writer may get a higher fence, so this fence must not be granted.
                let lost_after_fence =
                    attempt.fence.is_some() && attempt.yes.or(attempt.lagging).contains(member);
                attempt.refuse(member, reason);
                if let Some(Reason::Readers | Reason::Writer | Reason::Turn) = reason {
                    pending.waits = pending.waits.with(member);
                    pending.refused = true;
                }
                // Readers as the reason take precedence: see `Pending::alone`.
                if pending.reason != Some(Reason::Readers) {
                    pending.reason = reason.or(pending.reason);
                }
                let turn = reason == Some(Reason::Turn) && member == attempt.first;
                if turn || lost_after_fence || attempt.hopeless(quorum) {
                    return self.fail(request);
                }
            }
        }
        let again = attempt.again();
        if attempt.patient(quorum) {
            self.shorten_attempt(request);
        }
        if !again.is_empty() {
            self.ask(request, again, true);
        }
        self.decide(request);
    }

    /// A voter cannot record the fence yet. Its vote stands and must be released with the others, but does not count
    /// for this attempt. If other votes grant the lock, the next comparison of digests adds this vote.
    pub(super) fn lags(&mut self, member: Member, token: Token) {
        let Some(request) = self.attempts.get(&token).copied() else {
            return;
        };
        let Some(mode) = self.requests.get(&request).map(|pending| pending.mode) else {
            return;
        };
        let quorum = self.quorum(mode);
        let Some(Pending {
            stage: Stage::Asking(attempt),
            ..
        }) = self.requests.get_mut(&request)
        else {
            return;
        };
        attempt.lag(member);
        if attempt.hopeless(quorum) {
            self.fail(request);
        }
    }

    /// Checks whether the votes are enough, first for a fence, then for the lock.
    pub(super) fn decide(&mut self, request: Request) {
        let ready = self.ready();
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        let quorum = self.quorum(pending.mode);
        let bugs = self.setup.bugs;
        let Some(Pending {
            stage: Stage::Asking(attempt),
            mode,
            ..
        }) = self.requests.get_mut(&request)
        else {
            return;
        };
        // An attempt past its end must fail even if its timer is late. Until then no voter drops a vote of the attempt,
        // because `attempt` <= `holder_lease`. Later, a voter may have granted another writer a higher fence.
        if attempt.until <= self.now {
            return self.fail(request);
        }
        if attempt.alone && attempt.yes.contains(attempt.first) {
            let rest = ready.without(attempt.first);
            attempt.widen(rest);
            self.ask(request, rest, true);
            return self.decide(request);
        }
        if attempt.yes.len() < quorum {
            return;
        }
        let (token, mode) = (attempt.token, *mode);
        let fence = match (attempt.fence, mode) {
            (Some(fence), _) => fence,
            (None, Mode::Write) if bugs.have(ProtocolBug::FenceNotWritten) => {
                attempt.highest().after(attempt.run)
            }
            (None, _) => attempt.highest(),
        };
        attempt.fence = Some(fence);
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
        let (yes, wrote, run) = (attempt.yes, attempt.wrote, attempt.run);
        self.enqueue(behind, &Op::Confirm { token, fence });
        if wrote.len() >= quorum && self.locks.lease.until(yes.and(wrote), quorum) > self.now {
            self.grant(request, token, (fence, run), Standing::new(yes, quorum));
        }
    }

    fn grant(
        &mut self,
        request: Request,
        token: Token,
        (last, run): (Fence, NonZeroU8),
        standing: Standing,
    ) {
        let Some(pending) = self.requests.remove(&request) else {
            return;
        };
        self.timers.remove(&(pending.timer(), request));
        self.attempts.remove(&token);
        self.lines.granted(request, &pending.names, pending.refused);
        self.leave(pending.waits.minus(standing.votes()), &pending.names);
        let (fence, standing) = (last.first(run), Arc::new(standing));
        let pass_until = self.now + self.setup.rules.run_time;
        self.out.push(AgentOutput::Granted {
            request,
            token,
            attempt: token,
            fence,
            standing: Arc::clone(&standing),
        });
        self.locks.insert(
            token,
            HeldLock {
                token,
                names: pending.names,
                mode: pending.mode,
                fence,
                last,
                since: self.now,
                pass_until: (fence < last).then_some(pass_until),
                standing,
            },
        );
    }

    /// Removes this node from the queues of these voters, except for names that another of its requests asks for:
    /// they share the position.
    fn leave(&mut self, members: MemberSet, names: &Names) {
        let left = names
            .iter()
            .filter(|name| self.lines.asking(name).is_empty());
        if let Some(names) = Names::new(left.cloned().collect()) {
            self.enqueue(members, &Op::Leave { names });
        }
    }

    /// A voter can be asked again: requests that paused because too few voters were ready start an attempt.
    pub(super) fn retry_short(&mut self) {
        let short = |pending: &Pending| matches!(pending.stage, Stage::Pausing { short: true, .. });
        let waking = self
            .requests
            .iter()
            .filter(|(_, pending)| short(pending))
            .map(|(request, _)| *request);
        for request in waking.collect::<Vec<_>>() {
            self.attempt(request);
        }
    }

    pub(super) fn confirmed(&mut self, member: Member, token: Token) {
        let Some(request) = self.attempts.get(&token).copied() else {
            return;
        };
        let Some(Pending {
            stage: Stage::Asking(attempt),
            ..
        }) = self.requests.get_mut(&request)
        else {
            return;
        };
        if attempt.yes.contains(member) {
            attempt.wrote = attempt.wrote.with(member);
        }
        self.decide(request);
    }

    /// `member` hints that this agent may be the next for `names`. A request for several of them is woken once.
    /// Otherwise the second name would mark it as chosen after the first had already triggered its attempt, and the
    /// request would retry immediately after a failure.
    pub(super) fn hint(&mut self, member: Member, names: Vec<Name>) {
        let mut woken = BTreeSet::new();
        for name in names {
            let asking = self.lines.asking(&name);
            if asking.is_empty() {
                self.enqueue(
                    MemberSet::EMPTY.with(member),
                    &Op::Leave { names: name.into() },
                );
            }
            woken.extend(asking);
        }
        // Voters can have different queues. If one agent has a hint from voter 1 and another from voter 2, each takes
        // one vote, is rejected by the other voter, releases its vote, and thereby causes the other's next hint,
        // forever. So a hint of another voter only counts for a request that has the vote of the first voter.
        let chosen = self.ready().iter().next() == Some(member);
        for request in woken {
            let Some(pending) = self.requests.get_mut(&request) else {
                continue;
            };
            pending.chosen |= chosen;
            match &mut pending.stage {
                Stage::Pausing { .. } if chosen => self.attempt(request),
                Stage::Asking(attempt) => {
                    attempt.freed(member);
                    let again = attempt.again();
                    self.ask(request, again, true);
                }
                Stage::Pausing { .. } | Stage::Queued => {}
            }
        }
    }
}
