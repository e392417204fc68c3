//! The votes of voters: those that count are kept (Q2, Q3), an unlock removes only its own (Q7), all names of a lock or
//! none have a vote (Q11), guests with votes are stored (V7), and no two votes conflict.

use super::label::Label;
use super::{conflict, probe, Checker, View};
use crate::simulation::node::Node;
use crate::simulation::world::World;
use quorum::members::{Member, MemberSet};
use quorum::message::{Batch, Lifetime, Mode, Op, Session, Token};
use quorum::voter::Voter;

/// The agent, names and mode of a vote.
type Vote = (Lifetime, u32, Mode);

impl Checker {
    pub fn before_voter(&mut self, voter: &Voter) {
        self.before = probe::votes(voter);
    }

    pub fn after_voter(&mut self, node: usize, view: View<'_>) {
        for place in 0..self.locks.len() {
            self.check_counted(place, Some(node), view);
        }
        let votes = view.voter(node).is_some_and(Voter::is_voting);
        if votes && view.nodes[node].has_old_mark {
            let text = || format!("n{node} votes with the mark of an old file");
            self.violated(Label::Q14, text);
        }
        self.check_guests(node, view);
        self.check_dropped(node, view);
        self.watch_empty(view);
    }

    /// V7, if the voter has a disk.
    fn check_guests(&mut self, node: usize, view: View<'_>) {
        let seen = &view.nodes[node];
        let Some(voter) = &seen.voter else {
            return;
        };
        let is_stored = seen.disk.as_ref().is_none_or(|disk| disk.guests);
        let mut agents = voter.agents();
        let has_votes = agents.any(|(node, votes, ..)| node.client_number().is_some() && votes > 0);
        if has_votes && !is_stored {
            let text = || format!("n{node} keeps votes for a guest, and its file has none");
            self.violated(Label::V7, text);
        }
    }

    /// Q7: a vote stays until a batch returns it, or the lease of its agent is over. One that was given unasked also
    /// ends when the voter has not heard its agent for `wait`.
    fn check_dropped(&mut self, node: usize, view: View<'_>) {
        let Some(voter) = view.voter(node) else {
            return;
        };
        let now = view.nodes[node].voter_host.now(view.real);
        for vote in std::mem::take(&mut self.before) {
            let (agent, token) = (vote.agent, vote.token);
            let expired = |session: Session| session.generation != vote.lease;
            let batch = self.received.iter().map(|received| &received.batch);
            let mut returned = batch.map(|batch| {
                let own = batch.agent == agent && batch.ops.iter().any(|op| returns(op, token));
                own || batch.ops.contains(&Op::EndAgent { agent })
            });
            if probe::keeps(voter, agent, token).is_some()
                || voter.session(agent).is_none_or(expired)
                || returned.any(|returned| returned)
            {
                continue;
            }
            let text = || format!("n{node} dropped the vote for t{} of a{}", token.0, agent.0);
            if !vote.is_provisional {
                self.violated(Label::Q7, text);
                continue;
            }
            self.summary.count("provisional votes taken back");
            if vote.heard.is_none_or(|heard| now < heard + self.rules.wait) {
                self.violated(Label::Given, text);
            }
        }
    }

    /// Q2 and Q3: a vote that counts for a holder is kept by its voter in the same session, unless that voter is down
    /// or does not vote yet. No other holder can have this vote, and two quorums share a voter. From this follows Q1.
    pub(super) fn check_counted(&mut self, place: usize, only: Option<usize>, view: View<'_>) {
        let lock = &self.locks[place];
        let ((node, _, token), attempt) = (lock.id, lock.attempt);
        let Some((agent, now)) = view.agent(node) else {
            return;
        };
        let me = view.nodes[node].agent_host.lifetime();
        let counted = probe::counted(agent, attempt, now);
        for voter in counted.iter().map(|member| member.place()) {
            if only.is_some_and(|only| only != voter) {
                continue;
            }
            let Some(machine) = view.voter(voter) else {
                continue;
            };
            let violation = match probe::session(agent, voter) {
                None => Some((Label::Q3, "without a session")),
                Some(session)
                    if session.voter != view.nodes[voter].voter_host.lifetime()
                        || !agent.has_settled(World::member(voter)) =>
                {
                    // It may have voted since it executed the batch that settles.
                    let kept = probe::keeps(machine, me, attempt) == Some(session.generation);
                    (machine.is_voting() && !kept).then_some((Label::Q3, "of its earlier lifetime"))
                }
                Some(session) if machine.session(me) != Some(session) => {
                    Some((Label::Q2, "after the end of its lease"))
                }
                Some(session) if probe::keeps(machine, me, attempt) != Some(session.generation) => {
                    Some((Label::Q2, "that it does not keep"))
                }
                Some(_) => None,
            };
            if let Some((label, which)) = violation {
                let text = || format!("n{node} t{}: counts a vote of n{voter} {which}", token.0);
                self.violated(label, text);
            }
        }
    }

    /// The attempt whose votes a lock has or recently had.
    pub(super) fn attempt_of(&self, lifetime: u64, token: Token) -> Token {
        let mut known = self.attempts(lifetime);
        let known = known.find(|(known, _)| *known == token);
        known.map_or(token, |(_, attempt)| attempt)
    }

    /// Whether a later lock has or recently had the same votes.
    pub(super) fn is_passed_on(&self, lifetime: u64, token: Token) -> bool {
        let attempt = self.attempt_of(lifetime, token);
        let mut known = self.attempts(lifetime);
        known.any(|(later, of)| of == attempt && later > token)
    }

    /// The token and the attempt of each lock that this agent holds or recently held.
    fn attempts(&self, lifetime: u64) -> impl Iterator<Item = (Token, Token)> + '_ {
        let locks = self.locks.iter().map(|lock| (lock.id, lock.attempt));
        let past = self.past.iter().map(|lock| (lock.id, lock.attempt));
        locks
            .chain(past)
            .filter(move |((_, of, _), _)| *of == lifetime)
            .map(|((_, _, token), attempt)| (token, attempt))
    }

    pub(super) fn voters_that_keep(
        &self,
        view: View<'_>,
        lifetime: u64,
        token: Token,
    ) -> MemberSet {
        let kept = |(place, node): (usize, &Node)| {
            probe::keeps(node.voter.as_ref()?, Lifetime(lifetime), token)?;
            Member::at(place)
        };
        view.nodes.iter().enumerate().filter_map(kept).collect()
    }

    pub fn after_batch(&mut self, view: View<'_>) {
        let Some(received) = self.received.take() else {
            return;
        };
        let (node, batch) = (received.voter, &received.batch);
        let Some(voter) = view.voter(node).filter(|_| !batch.ops.is_empty()) else {
            return;
        };
        let votes = probe::votes(voter);
        self.check_whole(node, batch, &votes);
        self.check_conflicts(node, view);
    }

    fn check_whole(&mut self, node: usize, batch: &Batch, votes: &[probe::Vote]) {
        for op in &batch.ops {
            let (Op::Lock { token, names, .. } | Op::Assert { token, names, .. }) = op else {
                continue;
            };
            let mut votes = votes.iter();
            let vote = votes.find(|vote| (vote.agent, vote.token) == (batch.agent, *token));
            if vote.is_some_and(|vote| vote.names != *names) {
                let text = || format!("n{node} keeps a vote for t{} not of {names:?}", token.0);
                self.violated(Label::Q11, text);
            }
        }
    }

    /// The votes of a voter do not conflict with each other, nor with those that agents count there, for their locks
    /// and for their requests: an agent that does not know of a restart counts votes that the voter has forgotten. Q1
    /// follows from this, and it is violated long before two locks are held.
    ///
    /// Q3: while the voter votes, no vote of an earlier lifetime counts, for requests either.
    pub fn check_conflicts(&mut self, voter: usize, view: View<'_>) {
        let kept = view.voter(voter).into_iter().flat_map(probe::votes);
        let kept = kept.map(|vote| (vote.agent, self.bits_of(&vote.names), vote.mode));
        let kept: Vec<Vote> = kept.collect();
        let mut counted: Vec<Vote> = Vec::new();
        for node in 0..view.nodes.len() {
            let votes = self.counted_at(node, voter, view);
            if !votes.is_empty() && is_outdated(&view.nodes[node], &view.nodes[voter], voter) {
                let text = || format!("n{node} counts a vote of n{voter} of its earlier lifetime");
                self.violated(Label::Q3, text);
            }
            counted.extend(votes);
        }
        if kept.len() + counted.len() < 2 {
            return;
        }
        let conflict = |a: &Vote, b: &Vote| conflict((a.1, a.2), (b.1, b.2));
        for (place, vote) in kept.iter().enumerate() {
            if let Some(other) = kept[..place].iter().find(|other| conflict(vote, other)) {
                let (one, other) = (vote.0 .0, other.0 .0);
                let text = || format!("n{voter} keeps votes for a{one} and a{other}");
                self.violated(Label::Votes, text);
            }
        }
        for (place, vote) in counted.iter().enumerate() {
            let mut others = kept.iter().chain(&counted[..place]);
            let rival = others.find(|other| vote.0 != other.0 && conflict(vote, other));
            if let Some(other) = rival {
                let (one, other) = (vote.0 .0, other.0 .0);
                let text = || format!("votes of n{voter} count for a{one} and a{other}");
                self.violated(Label::Votes, text);
            }
        }
    }

    /// The votes of a voter that an agent counts.
    fn counted_at(&self, node: usize, voter: usize, view: View<'_>) -> Vec<Vote> {
        let Some((agent, now)) = view.agent(node) else {
            return Vec::new();
        };
        let me = view.nodes[node].agent_host.lifetime();
        let counted = agent.counting(World::member(voter), now);
        let counted = counted.map(|(_, names, mode)| (me, self.bits_of(names), mode));
        counted.collect()
    }
}

/// Whether the agent of a node has a session with an earlier lifetime of a voter that votes.
fn is_outdated(node: &Node, of_voter: &Node, voter: usize) -> bool {
    let session = node.agent.as_ref();
    let session = session.and_then(|agent| probe::session(agent, voter));
    let current = of_voter.voter.as_ref().filter(|voter| voter.is_voting());
    let lifetime = current.map(Voter::lifetime);
    lifetime.is_some_and(|current| session.is_some_and(|session| session.voter != current))
}

fn returns(op: &Op, token: Token) -> bool {
    match op {
        Op::Unlock { token: other, .. } => *other == token,
        Op::Sync { from, to, live } => (*from..*to).contains(&token) && !live.contains(&token),
        _ => false,
    }
}
