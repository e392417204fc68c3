//! Where the checker looks into the machines: all of it here, and all of it by what they tell models.

use quorum::agent::Agent;
use quorum::lease::Standing;
use quorum::members::MemberSet;
use quorum::message::{Fence, Generation, Lifetime, Mode, Name, Names, Session, Token};
use quorum::time::Time;
use quorum::voter::Voter;

/// A vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) agent: Lifetime,
    pub(super) lease: Generation,
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) names: Names,
}

/// What the agent believes it is to that voter.
pub(super) fn session(agent: &Agent, voter: usize) -> Option<Session> {
    agent.status().nth(voter).and_then(|status| status.session)
}

/// Whose votes count for that lock.
pub(super) fn counted(agent: &Agent, token: Token, now: Time) -> MemberSet {
    let lock = agent.locks().find(|lock| lock.token == token);
    let lease = agent.lease();
    let votes = lock.map(|lock| lock.votes).unwrap_or_default();
    votes
        .iter()
        .filter(|member| lease.valid(*member) > now)
        .collect()
}

/// What anybody would find who asks without the agent.
pub(super) fn holds(agent: &Agent, standing: &Standing, now: Time) -> bool {
    agent.lease().holds(standing, || now)
}

/// What an agent is to that voter.
pub(super) fn session_of(voter: &Voter, agent: Lifetime) -> Option<Session> {
    voter.session(agent)
}

/// Under which lease the voter has that vote.
pub(super) fn keeps(voter: &Voter, agent: Lifetime, token: Token) -> Option<Generation> {
    voter
        .votes()
        .find(|vote| (vote.0, vote.2) == (agent, token))
        .map(|vote| vote.1)
}

/// All its votes.
pub(super) fn kept(voter: &Voter) -> Vec<Kept> {
    let votes = voter.votes();
    votes
        .map(|(agent, lease, token, mode, names)| Kept {
            agent,
            lease,
            token,
            mode,
            names: names.clone(),
        })
        .collect()
}

/// The fence of a name: no writer will be given one that is not higher.
pub(super) fn fence(voter: &Voter, name: &Name) -> Fence {
    voter.fence(name)
}
