//! The votes of voters and agents, and what both checks require of them. They are read only by what the machines expose
//! to models.

use quorum::agent::Agent;
use quorum::members::{Member, MemberSet};
use quorum::message::{
    Batch, Generation, Lifetime, Mode, Name, Names, Op, Session, Token, VoterState,
};
use quorum::time::Time;
use quorum::voter::Voter;
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Vote {
    pub agent: Lifetime,
    pub lease: Generation,
    pub token: Token,
    /// Whether it was given unasked, and not confirmed since.
    pub is_provisional: bool,
    /// When the voter last received a batch of the agent, for such a vote.
    heard: Option<Time>,
}

impl Vote {
    /// Whether the voter may take it back at `now`: it was given unasked, and its agent has been silent for `wait`.
    pub fn may_be_taken_back(&self, now: Time, wait: Duration) -> bool {
        self.is_provisional && self.heard.is_some_and(|heard| heard + wait <= now)
    }
}

pub fn votes(voter: &Voter) -> Vec<Vote> {
    let votes = voter.votes().map(|(agent, lease, token, ..)| {
        let is_provisional = voter.is_provisional(lease, token);
        let heard = is_provisional.then(|| voter.last_heard(agent)).flatten();
        Vote {
            agent,
            lease,
            token,
            is_provisional,
            heard,
        }
    });
    votes.collect()
}

/// The lease under which the voter keeps the vote.
pub fn keeps(voter: &Voter, agent: Lifetime, token: Token) -> Option<Generation> {
    let mut votes = voter.votes();
    let vote = votes.find(|vote| (vote.0, vote.2) == (agent, token));
    vote.map(|vote| vote.1)
}

/// Why a vote that an agent counts is not one that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The voter keeps it no longer (Q2).
    Dropped,
    /// It is of an earlier lifetime of the voter, which votes (Q3).
    Past,
}

/// What is wrong with the votes of `member` that an agent counts at `now`, for its locks and its requests. If nothing
/// is, no other agent can have them. Two quorums share a voter, so Q1 follows.
pub fn stale(
    (me, agent, now): (Lifetime, &Agent, Time),
    member: Member,
    voter: &Voter,
) -> Option<Stale> {
    let counted = agent.counting(member, now);
    if counted.is_empty() {
        return None;
    }
    let Some(session) = session(agent, member.place()) else {
        return Some(Stale::Past);
    };
    let mut keeps = counted.iter().map(|vote| keeps(voter, me, vote.0));
    let kept = voter.session(me) == Some(session) && keeps.all(|of| of == Some(session.generation));
    match session.voter == voter.lifetime() && agent.has_settled(member) {
        true => (!kept).then_some(Stale::Dropped),
        // It may have voted since it executed the batch that settles.
        false => (!kept && voter.is_voting()).then_some(Stale::Past),
    }
}

/// A voter before a call.
#[derive(Debug, Default)]
pub struct Before {
    votes: Vec<Vote>,
    voted: bool,
    /// The locks that the batch of the call asserts though they continue no vote, if the voter must refuse them (V3).
    refused: Vec<Token>,
}

impl Before {
    /// Before a call at `now`, in which the voter receives the `batch`, if there is one.
    pub fn new(voter: &Voter, batch: Option<&Batch>, now: Time) -> Before {
        Before {
            votes: votes(voter),
            voted: voter.is_voting(),
            refused: batch.map_or(Vec::new(), |batch| refused(voter, batch, now)),
        }
    }

    /// Whether the voter has the same votes after the call.
    fn is_same(&self, voter: &Voter) -> bool {
        let before = self.votes.iter();
        let before = before.map(|vote| (vote.agent, vote.lease, vote.token));
        let after = voter.votes();
        before.eq(after.map(|(agent, lease, token, ..)| (agent, lease, token)))
    }

    /// The votes that the voter has dropped, though the lease of their agent lasts, and the batch did not return them
    /// (Q7).
    pub fn dropped(&self, voter: &Voter, batch: Option<&Batch>) -> Vec<Vote> {
        if self.is_same(voter) {
            return Vec::new();
        }
        let dropped = |vote: &&Vote| {
            let (agent, token) = (vote.agent, vote.token);
            let lasts = |session: Session| session.generation == vote.lease;
            let returned = batch.is_some_and(|batch| {
                let own = batch.agent == agent && batch.ops.iter().any(|op| returns(op, token));
                own || batch.ops.contains(&Op::EndAgent { agent })
            });
            let kept = keeps(voter, agent, token).is_some();
            !kept && !returned && voter.session(agent).is_some_and(lasts)
        };
        self.votes.iter().filter(dropped).cloned().collect()
    }

    /// The votes that the voter has given, though it does not vote, and they continue no vote (Q4).
    pub fn premature(&self, voter: &Voter, batch: Option<&Batch>) -> Vec<Vote> {
        if self.is_same(voter) {
            return Vec::new();
        }
        let is_new = |vote: &Vote| {
            let mut old = self.votes.iter();
            old.all(|old| (old.agent, old.token) != (vote.agent, vote.token))
        };
        let premature = |vote: &Vote| {
            let asserts = |op: &Op| match op {
                Op::Assert {
                    token, continues, ..
                } if *token == vote.token => Some(*continues),
                _ => None,
            };
            // One batch may assert a held lock as well as request the vote for it.
            let ops = batch.iter().flat_map(|batch| &batch.ops);
            let asserted: Vec<bool> = ops.filter_map(asserts).collect();
            let granted = asserted.is_empty() && !self.voted && !voter.is_voting();
            granted || self.refused.contains(&vote.token) && !asserted.contains(&true)
        };
        let mut votes = votes(voter);
        votes.retain(|vote| is_new(vote) && premature(vote));
        votes
    }
}

fn returns(op: &Op, token: Token) -> bool {
    match op {
        Op::Unlock { token: other, .. } => *other == token,
        Op::Sync { from, to, live } => (*from..*to).contains(&token) && !live.contains(&token),
        _ => false,
    }
}

/// Two agents that exclude each other at a voter: both have votes there, or count some (Votes). Q1 follows, and an
/// error violates this long before two locks are held: an agent that does not know of a restart counts votes that the
/// voter has forgotten, for its locks and for its requests.
pub fn conflict<'a>(
    voter: Option<&Voter>,
    member: Member,
    agents: impl Iterator<Item = (Lifetime, &'a Agent, Time)>,
) -> Option<(Lifetime, Lifetime)> {
    type Vote<'a> = (Lifetime, &'a Names, Mode);
    let kept = voter.into_iter().flat_map(|voter| voter.votes());
    let kept: Vec<Vote<'_>> = kept
        .map(|(agent, _, _, mode, names)| (agent, names, mode))
        .collect();
    let mut counted: Vec<Vote<'_>> = Vec::new();
    for (lifetime, agent, now) in agents {
        let votes = agent.counting(member, now).into_iter();
        counted.extend(votes.map(|(_, names, mode)| (lifetime, names, mode)));
    }
    // Most often.
    if kept.len() + counted.len() < 2 {
        return None;
    }
    let exclude = |one: &Vote<'_>, other: &Vote<'_>| {
        let shared = |name: &Name| other.1.iter().any(|of| of == name);
        (one.2, other.2) != (Mode::Read, Mode::Read) && one.1.iter().any(shared)
    };
    let pair = |one: &Vote<'_>, other: &Vote<'_>| (one.0, other.0);
    let within = kept.iter().enumerate().find_map(|(place, one)| {
        let other = kept[..place].iter().find(|other| exclude(one, other));
        other.map(|other| pair(one, other))
    });
    let between = || {
        counted.iter().enumerate().find_map(|(place, one)| {
            let mut others = kept.iter().chain(&counted[..place]);
            let other = others.find(|other| one.0 != other.0 && exclude(one, other));
            other.map(|other| pair(one, other))
        })
    };
    within.or_else(between)
}

/// The locks that a batch asserts though they continue no vote, and which a voter must therefore refuse (V3). Empty if
/// the voter is not in quarantine when it receives the batch at `now`. Not those after a `Settled`, which may end the
/// quarantine.
fn refused(voter: &Voter, batch: &Batch, now: Time) -> Vec<Token> {
    let until_settled = batch
        .ops
        .iter()
        .take_while(|op| !matches!(op, Op::Settled { .. }));
    let asserted = until_settled.filter_map(|op| match op {
        Op::Assert {
            token,
            continues: false,
            ..
        } => Some(*token),
        _ => None,
    });
    let asserted: Vec<Token> = asserted.collect();
    // A clone is expensive, and a correct agent seldom sends such a batch.
    let in_quarantine = || {
        let mut voter = voter.clone();
        voter.tick(now);
        voter.state() == VoterState::Quarantined
    };
    match !asserted.is_empty() && in_quarantine() {
        true => asserted,
        false => Vec::new(),
    }
}

/// The answer of a voter that is asked which names have votes, if it answers. With `quarantined`, one in quarantine
/// does, too.
pub fn voted_names(voter: &Voter, quarantined: bool) -> Option<BTreeSet<Name>> {
    let forgotten = || voter.votes().flat_map(|vote| vote.4.iter().cloned());
    let names = voter.voted_names(b"").map(|names| names.cloned().collect());
    names.or_else(|| quarantined.then(|| forgotten().collect()))
}

/// Whether a guest has votes.
pub fn has_guests(voter: &Voter) -> bool {
    let mut agents = voter.agents();
    agents.any(|(node, votes, ..)| node.client_number().is_some() && votes > 0)
}

/// The session that the agent believes to have with the voter.
pub fn session(agent: &Agent, voter: usize) -> Option<Session> {
    agent.status().nth(voter).and_then(|status| status.session)
}

/// The voters whose votes count for an attempt.
pub fn counted(agent: &Agent, attempt: Token, now: Time) -> MemberSet {
    let members = agent.status().map(|status| status.member);
    let counts = |member: &Member| {
        let counting = agent.counting(*member, now);
        counting.iter().any(|vote| vote.0 == attempt)
    };
    members.filter(counts).collect()
}
