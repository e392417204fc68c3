//! The votes of voters: those that count are kept (Q2, Q3), an unlock removes only its own (Q7), all names of a lock or
//! none have a vote (Q11), guests with votes are stored (V7), and no two votes conflict.

use super::label::Label;
use super::{Checker, View};
use crate::simulation::world::World;
use crate::votes::{self, Before, Stale};
use quorum::members::{Member, MemberSet};
use quorum::message::{Batch, Lifetime, Op, Token};
use quorum::time::Time;
use quorum::voter::Voter;

impl Checker {
    pub fn before_voter(&mut self, voter: &Voter, now: Time) {
        let batch = self.received.as_ref().map(|received| &received.batch);
        self.before = Before::new(voter, batch, now);
    }

    pub fn after_voter(&mut self, node: usize, view: View<'_>) {
        for agent in 0..view.nodes.len() {
            self.check_counted(agent, node, view);
        }
        let votes = view.voter(node).is_some_and(Voter::is_voting);
        if votes && view.nodes[node].has_old_mark {
            let text = || format!("n{node} votes with the mark of an old file");
            self.violated(Label::Q14, text);
        }
        self.check_guests(node, view);
        self.check_changes(node, view);
        self.watch_empty(view);
    }

    /// V7
    fn check_guests(&mut self, node: usize, view: View<'_>) {
        let seen = &view.nodes[node];
        let Some(voter) = &seen.voter else {
            return;
        };
        if !seen.disk.guests && votes::has_guests(voter) {
            let text = || format!("n{node} keeps votes for a guest, and its file has none");
            self.violated(Label::V7, text);
        }
    }

    /// Q4: a voter in quarantine gives no vote, unless it continues an earlier one.
    ///
    /// Q7: a vote stays until a batch returns it, or the lease of its agent is over. One that was given unasked also
    /// ends when the voter has not heard its agent for `wait`.
    fn check_changes(&mut self, node: usize, view: View<'_>) {
        let Some(voter) = view.voter(node) else {
            return;
        };
        let now = view.nodes[node].voter_host.now(view.real);
        let batch = self.received.as_ref().map(|received| &received.batch);
        let before = std::mem::take(&mut self.before);
        let dropped = before.dropped(voter, batch);
        for vote in before.premature(voter, batch) {
            let (token, agent) = (vote.token.0, vote.agent.0);
            let text = || format!("n{node} votes for t{token} of a{agent} in quarantine");
            self.violated(Label::Q4, text);
        }
        for vote in dropped {
            let (token, agent) = (vote.token.0, vote.agent.0);
            let text = || format!("n{node} dropped the vote for t{token} of a{agent}");
            if !vote.is_provisional {
                self.violated(Label::Q7, text);
                continue;
            }
            self.summary.count("provisional votes taken back");
            if !vote.may_be_taken_back(now, self.plan.rules.wait) {
                self.violated(Label::Given, text);
            }
        }
    }

    /// Q2 and Q3, unless the agent or the voter is down.
    pub(super) fn check_counted(&mut self, node: usize, voter: usize, view: View<'_>) {
        let (Some((agent, now)), Some(machine)) = (view.agent(node), view.voter(voter)) else {
            return;
        };
        let me = Lifetime(view.lifetime(node));
        let (label, which) = match votes::stale((me, agent, now), World::member(voter), machine) {
            Some(Stale::Dropped) => (Label::Q2, "that it does not keep"),
            Some(Stale::Past) => (Label::Q3, "of its earlier lifetime"),
            None => return,
        };
        self.violated(label, || {
            format!("n{node} counts a vote of n{voter} {which}")
        });
    }

    /// A quorum has forgotten the votes of a lock whose unlock was confirmed, unless a later lock has them.
    pub(super) fn check_forgotten(&mut self, lifetime: u64, token: Token, view: View<'_>) {
        let past = self.past.iter().map(|past| &past.lock);
        let known = self.locks.iter().chain(past);
        let known = known.filter(|lock| lock.id.1 == lifetime);
        let known = known.map(|lock| (lock.id.2, lock.attempt));
        let attempt = known.clone().find(|(known, _)| *known == token);
        let attempt = attempt.map_or(token, |(_, attempt)| attempt);
        if known
            .clone()
            .any(|(later, of)| of == attempt && later > token)
        {
            return;
        }
        let forgets = |member: &Member| {
            let voter = view.voter(member.place());
            voter.is_none_or(|voter| votes::keeps(voter, Lifetime(lifetime), attempt).is_none())
        };
        let free: MemberSet = self.plan.list().iter().filter(forgets).collect();
        if !self.is_quorum(free) {
            let text = || format!("only {free:?} have no vote for t{}", token.0);
            self.violated(Label::Confirmed, text);
        }
    }

    pub fn after_batch(&mut self, view: View<'_>) {
        let Some(received) = self.received.take() else {
            return;
        };
        let (node, batch) = (received.voter, &received.batch);
        let Some(voter) = view.voter(node).filter(|_| !batch.ops.is_empty()) else {
            return;
        };
        self.check_whole(node, batch, voter);
        self.check_conflicts(node, view);
    }

    fn check_whole(&mut self, node: usize, batch: &Batch, voter: &Voter) {
        for op in &batch.ops {
            let (Op::Lock { token, names, .. } | Op::Assert { token, names, .. }) = op else {
                continue;
            };
            let mut votes = voter.votes();
            let vote = votes.find(|vote| (vote.0, vote.2) == (batch.agent, *token));
            if vote.is_some_and(|vote| vote.4 != names) {
                let text = || format!("n{node} keeps a vote for t{} not of {names:?}", token.0);
                self.violated(Label::Q11, text);
            }
        }
    }

    /// The votes of a voter, and those that agents count there, do not conflict.
    pub fn check_conflicts(&mut self, voter: usize, view: View<'_>) {
        let member = World::member(voter);
        let agents = (0..view.nodes.len()).filter_map(|node| {
            let (agent, now) = view.agent(node)?;
            Some((Lifetime(view.lifetime(node)), agent, now))
        });
        if let Some((one, other)) = votes::conflict(view.voter(voter), member, agents) {
            let (one, other) = (one.0, other.0);
            let text = || format!("votes of n{voter} count for a{one} and a{other}");
            self.violated(Label::Votes, text);
        }
    }
}
