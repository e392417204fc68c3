//! How the checker reads the machines: only by what they expose to models.

use quorum::agent::Agent;
use quorum::members::{Member, MemberSet};
use quorum::message::{Generation, Lifetime, Mode, Names, Session, Token};
use quorum::time::Time;
use quorum::voter::Voter;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vote {
    pub(super) agent: Lifetime,
    pub(super) lease: Generation,
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) names: Names,
    /// Whether it was given unasked, and not confirmed since.
    pub(super) is_provisional: bool,
    /// When the voter last received a batch of the agent.
    pub(super) heard: Option<Time>,
}

/// The session that the agent believes to have with the voter.
pub(super) fn session(agent: &Agent, voter: usize) -> Option<Session> {
    agent.status().nth(voter).and_then(|status| status.session)
}

/// The voters whose votes count for an attempt.
pub(super) fn counted(agent: &Agent, attempt: Token, now: Time) -> MemberSet {
    let members = agent.status().map(|status| status.member);
    let counts = |member: &Member| agent.counting(*member, now).any(|vote| vote.0 == attempt);
    members.filter(counts).collect()
}

/// The lease under which the voter keeps the vote.
pub(super) fn keeps(voter: &Voter, agent: Lifetime, token: Token) -> Option<Generation> {
    let mut votes = voter.votes();
    let vote = votes.find(|vote| (vote.0, vote.2) == (agent, token));
    vote.map(|vote| vote.1)
}

pub(super) fn votes(voter: &Voter) -> Vec<Vote> {
    voter
        .votes()
        .map(|(agent, lease, token, mode, names)| Vote {
            agent,
            lease,
            token,
            mode,
            names: names.clone(),
            is_provisional: voter.is_provisional(lease, token),
            heard: voter.last_heard(agent),
        })
        .collect()
}
