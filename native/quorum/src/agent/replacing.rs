//! Replaces voters that cannot vote for a request, or do not answer in time, by others of the same groups.

use super::output::{Count, Request};
use super::peer::Peer;
use super::request::{Asked, Attempt, Pending, Stage};
use super::Agent;
use crate::members::{Member, MemberSet};
use crate::message::{Mode, Op, Token};

impl Agent {
    /// The voters that an attempt asks again: those that have not voted, and those of `more_voters`.
    pub(super) fn missing(&mut self, request: Request) -> MemberSet {
        let more = self.more_voters(request);
        let Some(pending) = self.requests.get(&request) else {
            return more;
        };
        let voters = self.voters(pending.mode);
        let asked = pending.attempt().map(|attempt| attempt.asked);
        let again = asked.unwrap_or_default().and(voters);
        again.or(more).minus(pending.votes())
    }

    /// The voters that replace those that cannot vote for an attempt, or do not answer in time.
    fn more_voters(&mut self, request: Request) -> MemberSet {
        let Some(pending) = self.requests.get(&request) else {
            return MemberSet::EMPTY;
        };
        let Some(attempt) = pending
            .attempt()
            .filter(|one| one.stage != Asked::Sequencer)
        else {
            return MemberSet::EMPTY;
        };
        let (names, asked) = (pending.names.clone(), attempt.possible());
        let voters = self.voters(pending.mode);
        let late = self.members_that(Peer::is_late).or(attempt.lagging);
        let late = match attempt.any {
            true => late.or(attempt.queued),
            false => late,
        };
        let in_time = attempt.yes.or(asked.and(voters).minus(late));
        let others = voters.minus(attempt.asked);
        self.besides(in_time, &names, others)
    }

    /// `member` cannot vote for the request now.
    pub(super) fn cannot_vote(&mut self, request: Request, member: Member) {
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        let Some(attempt) = pending.attempt() else {
            return;
        };
        if attempt.stage == Asked::Sequencer {
            // A voter that votes and refuses would be asked again at once.
            return match self.peers[member.place()].votes(pending.mode) {
                true => self.fail(request),
                false => self.restart(request, Count::RestartedVoter),
            };
        }
        let more = self.more_voters(request);
        self.ask(request, more);
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        let Some(attempt) = pending.attempt() else {
            return;
        };
        if !pending.quorums.met_by(attempt.asked.minus(attempt.out)) {
            return self.fail(request);
        }
        let (is_first, others) = (attempt.first.contains(member), attempt.possible());
        let names = pending.names.clone();
        // If no other voter is left, it waits for the disk.
        if is_first && self.sequencers(&names, others).is_some() {
            self.replace_sequencer(request);
        }
    }

    /// A sequencer of the attempt does not vote, or does not answer in time. Another voter replaces it.
    fn replace_sequencer(&mut self, request: Request) {
        let Some(pending) = self.requests.get(&request) else {
            return;
        };
        let Some(attempt) = pending.attempt() else {
            return;
        };
        let (stage, names) = (attempt.stage, pending.names.clone());
        let answering = self.voters(pending.mode).or(attempt.votes());
        let others = attempt.possible().and(answering);
        let first = match stage {
            Asked::Wide | Asked::All => self.sequencers(&names, others),
            Asked::Sequencer => None,
        };
        let Some(first) = first else {
            return self.restart(request, Count::RestartedVoter);
        };
        let Some(attempt) = self.attempt_mut(request) else {
            return;
        };
        attempt.first = first;
        if attempt.busy.and(first).is_empty() {
            self.proceed(request);
        } else {
            self.restart(request, Count::RestartedVoter);
        }
    }

    /// `member` does not answer, or not in time: requests that wait for it ask another voter.
    pub(super) fn leave_voter(&mut self, member: Member) {
        self.replace_in(member, |attempt| {
            attempt.asked.contains(member) && !attempt.yes.contains(member)
        });
    }

    /// `member` does not vote any more: requests that it has queued ask another voter. It answers the others.
    pub(super) fn leave_queue(&mut self, member: Member) {
        self.replace_in(member, |attempt| attempt.queued.contains(member));
    }

    fn replace_in(&mut self, member: Member, which: impl Fn(&Attempt) -> bool) {
        let waits = |request: &Request| {
            let attempt = self.requests.get(request).and_then(Pending::attempt);
            attempt.is_some_and(&which)
        };
        let asking = self.attempts.values().copied();
        for request in asking.filter(waits).collect::<Vec<_>>() {
            let more = self.more_voters(request);
            self.ask(request, more);
            let attempt = self.requests.get(&request).and_then(Pending::attempt);
            if attempt.is_some_and(|attempt| attempt.first.contains(member)) {
                self.replace_sequencer(request);
            }
        }
    }

    /// A voter cannot record the fence yet. Its vote stands, but does not count until it has.
    pub(super) fn lags(&mut self, member: Member, token: Token) {
        if let Some(request) = self.attempts.get(&token).copied() {
            if let Some(attempt) = self.attempt_mut(request) {
                attempt.lag(member);
                let more = self.more_voters(request);
                self.ask(request, more);
            }
        }
    }

    /// `member` votes again, or answers again. Requests that paused start an attempt, and others that lack votes ask
    /// it.
    pub(super) fn rejoin(&mut self, member: Member) {
        let votes = [Mode::Read, Mode::Write].map(|mode| self.peers[member.place()].votes(mode));
        let (mut paused, mut asking) = (Vec::new(), Vec::new());
        let concerned = |pending: &&Pending| pending.quorums.voters().contains(member);
        for (request, pending) in self.requests.iter().filter(|(_, one)| concerned(one)) {
            match &pending.stage {
                Stage::Queued => {}
                Stage::Pausing { .. } => paused.push(*request),
                Stage::Asking(_) if votes[pending.mode as usize] => asking.push(*request),
                Stage::Asking(_) => {}
            }
        }
        for request in asking {
            self.ask_again_one(request, member);
        }
        for request in paused {
            self.attempt(request);
        }
    }

    /// Asks a voter again that could not vote, or not record the fence, or one that was not asked and is needed now.
    fn ask_again_one(&mut self, request: Request, member: Member) {
        let Some(attempt) = self.attempt_mut(request) else {
            return;
        };
        let (token, to) = (attempt.token, MemberSet::EMPTY.with(member));
        if let Some(fence) = attempt.catch_up(member) {
            return self.enqueue(to, &Op::Confirm { token, fence });
        }
        let again = attempt.can_vote_again(member) && attempt.stage != Asked::Sequencer;
        if again || self.more_voters(request).contains(member) {
            self.ask(request, to);
        }
    }
}
