//! What voters keep: the votes that count (Q2, Q3), no other ones less for somebody's unlock (Q7), whole (Q11), and
//! never two that are against each other.

use super::{against, agent, probe, Checker, Label};
use crate::simulation::clock::Real;
use crate::simulation::node::Node;
use quorum::message::{Lifetime, Op, Token};

impl Checker {
    /// A voter has done something.
    pub fn voter_did(&mut self, node: usize, nodes: &[Node], real: Real) {
        for place in 0..self.locks.len() {
            self.check_counted(place, Some(node), nodes, real);
        }
        self.watch_empty(nodes, real);
    }

    /// Q2 and Q3: a vote that counts for a holder now is kept by its voter now, in the same session; or that voter is
    /// dead, or has not begun to vote since. So nobody else has it, and two quorums meet in such a voter: that is why
    /// Q1.
    pub(super) fn check_counted(
        &mut self,
        place: usize,
        only: Option<usize>,
        nodes: &[Node],
        real: Real,
    ) {
        let lock = &self.locks[place];
        let (node, token, attempt) = (lock.node, lock.token, lock.attempt);
        let Some(agent) = agent(nodes, node) else {
            return;
        };
        let now = nodes[node].agent.now(real);
        let counted = probe::counted(agent, token, now);
        for voter in counted.iter().map(|member| member.place()) {
            if only.is_some_and(|only| only != voter) {
                continue;
            }
            let seat = &nodes[voter].voter;
            let Some(machine) = &seat.machine else {
                continue;
            };
            let Some(session) = probe::session(agent, voter) else {
                self.violated(Label::Q3, || {
                    format!("n{node} t{}: n{voter} counts without a session", token.0)
                });
                continue;
            };
            let lifetime = nodes[node].agent.lifetime();
            if session.voter != seat.lifetime() {
                if machine.is_voting() {
                    self.violated(Label::Q3, || {
                        format!("n{node} t{}: n{voter} counts in its last life", token.0)
                    });
                }
            } else if probe::session_of(machine, lifetime) != Some(session) {
                self.violated(Label::Q2, || {
                    format!("n{node} t{}: n{voter} counts after its lease", token.0)
                });
            } else if probe::keeps(machine, lifetime, attempt) != Some(session.generation) {
                self.violated(Label::Q2, || {
                    format!("n{node} t{}: n{voter} counts and has no vote", token.0)
                });
            }
        }
    }

    /// The attempt whose votes a lock has, or had a moment ago.
    pub(super) fn attempt_of(&self, life: u64, token: Token) -> Token {
        let mut known = self.attempts(life);
        known
            .find(|(known, _)| *known == token)
            .map_or(token, |(_, attempt)| attempt)
    }

    /// Whether somebody has a lock on the same votes, or had it later.
    pub(super) fn is_passed_on(&self, life: u64, token: Token) -> bool {
        let attempt = self.attempt_of(life, token);
        let mut known = self.attempts(life);
        known.any(|(later, of)| of == attempt && later > token)
    }

    /// Of each lock of this agent that is held, or was a moment ago.
    fn attempts(&self, life: u64) -> impl Iterator<Item = (Token, Token)> + '_ {
        let locks = self.locks.iter();
        let locks = locks.map(|lock| (lock.life, lock.token, lock.attempt));
        let gone = self.gone.iter();
        let gone = gone.map(|lock| (lock.life, lock.token, lock.attempt));
        let known = locks.chain(gone);
        known
            .filter(move |(of, ..)| *of == life)
            .map(|(_, token, attempt)| (token, attempt))
    }

    /// How many voters that live keep a token.
    pub(super) fn voters_that_keep(&self, nodes: &[Node], life: u64, token: Token) -> usize {
        let keeps = |node: &&Node| {
            node.voter
                .machine
                .as_ref()
                .is_some_and(|voter| probe::keeps(voter, Lifetime(life), token).is_some())
        };
        nodes.iter().filter(keeps).count()
    }

    /// A voter has heard a batch.
    pub fn voter_heard(&mut self, nodes: &[Node]) {
        let Some(hearing) = self
            .hearing
            .take()
            .filter(|hearing| !hearing.batch.ops.is_empty())
        else {
            return;
        };
        let (node, batch) = (hearing.voter, &hearing.batch);
        let Some(voter) = &nodes[node].voter.machine else {
            return;
        };
        let kept = probe::kept(voter);
        for before in &hearing.kept {
            if kept
                .iter()
                .any(|after| (after.agent, after.token) == (before.agent, before.token))
            {
                continue;
            }
            // A vote goes when its lease is over; else by its own unlock.
            let lease = probe::session_of(voter, before.agent)
                .is_none_or(|now| now.generation != before.lease);
            let own =
                before.agent == batch.agent && batch.ops.iter().any(|op| drops(op, before.token));
            if !lease && !own {
                let text = || {
                    format!(
                        "n{node} dropped t{} of a{} at {batch:?}",
                        before.token.0, before.agent.0
                    )
                };
                self.violated(Label::Q7, text);
            }
        }
        self.check_whole(node, batch, &kept);
        self.check_votes(node, &kept);
    }

    /// Q11.
    fn check_whole(&mut self, node: usize, batch: &quorum::message::Batch, kept: &[probe::Kept]) {
        for op in &batch.ops {
            let (Op::Lock { token, names, .. } | Op::Assert { token, names, .. }) = op else {
                continue;
            };
            let vote = kept
                .iter()
                .find(|vote| (vote.agent, vote.token) == (batch.agent, *token));
            if vote.is_some_and(|vote| vote.names != *names) {
                self.violated(Label::Q11, || {
                    format!("n{node} keeps t{} otherwise than as {names:?}", token.0)
                });
            }
        }
    }

    fn check_votes(&mut self, node: usize, kept: &[probe::Kept]) {
        let known: Vec<_> = kept
            .iter()
            .map(|vote| (self.bits_of(&vote.names), vote.mode))
            .collect();
        for (place, vote) in known.iter().enumerate() {
            if let Some(other) = known[..place]
                .iter()
                .position(|other| against(*vote, *other))
            {
                let (a, b) = (&kept[place], &kept[other]);
                let text = || {
                    format!(
                        "n{node} keeps t{} of a{} and t{} of a{}",
                        a.token.0, a.agent.0, b.token.0, b.agent.0
                    )
                };
                self.violated(Label::Votes, text);
            }
        }
    }
}

/// Whether it asks to forget that token.
fn drops(op: &Op, token: Token) -> bool {
    match op {
        Op::Unlock { token: other, .. } => *other == token,
        Op::Sync { from, to, live } => (*from..*to).contains(&token) && !live.contains(&token),
        _ => false,
    }
}
