//! The properties that must hold in each state ("always"), and where they are checked:
//!
//! | label | property | checked at each |
//! |---|---|---|
//! | Q1 | `held` is true for one writer alone, or for readers only | state |
//! | Q2 | a voter keeps the lease of an agent that counts on it, and the votes that it counts | state |
//! | Q3 | no vote of an earlier lifetime or lease of a voter counts while the voter votes in a later one | state |
//! | Q4 | a voter in quarantine grants no vote, but for a lock that continues an earlier vote | batch |
//! | Q5 | fences of a name's writers grow, and no reader's is lower than that of a writer before it | grant |
//! | Q6 | a quorum knows a writer's fence before the writer gets it | grant |
//! | Q7 | a voter forgets a vote only if its agent returned it, or if its lease has expired | batch |
//! | Q8 | a lock that was unlocked or lost is never held again, nor is a vote requested for it | state, batch |
//! | Q11 | at each voter, a lock has the votes of all its names or of none | state |
//! | Q14 | a voter that votes has a higher life than all of its earlier starts | state |
//! | Q15 | a lock that is not held is not held again; one that is held is in the answers of a quorum | action |
//! | PR1 | once quiescent, every client gets what it requests, and all tables become empty (Q9, Q10) | sample |
//! | Votes | no vote that an agent counts conflicts with one of the voter, or that another agent counts there | state |
//! | V7 | a guest has no vote at a voter whose state file does not have the guest | state |
//! | Machine | no machine panics, fires its timer endlessly, or answers what was not requested | action |
//!
//! `quiescence.rs` checks PR1, and `transition.rs` what actions do.

use crate::model::setting::{member, Setting};
use crate::model::state::{AgentState, Phase, State, NOW};
use crate::votes::{self, Stale};
use quorum::agent::Status;
use quorum::message::{Generation, Mode, Token};
use quorum::voter::Voter;

/// The locks for which their holders find `held` true: their modes and names.
fn held<'a>(setting: &'a Setting, state: &'a State) -> impl Iterator<Item = (Mode, &'a [usize])> {
    let clients = state.clients.iter().enumerate();
    clients.filter_map(move |(client, seen)| match seen.phase {
        Phase::Holds { step, .. } if state.holds(setting, client) => {
            Some(setting.request(client, step))
        }
        _ => None,
    })
}

/// How many locks of this mode are held.
pub fn holders(setting: &Setting, state: &State, mode: Mode) -> usize {
    held(setting, state).filter(|held| held.0 == mode).count()
}

pub fn exclusive(setting: &Setting, state: &State) -> bool {
    let all: Vec<_> = held(setting, state).collect();
    all.iter().enumerate().all(|(place, (mode, names))| {
        all[place + 1..].iter().all(|(other_mode, others)| {
            let share = names.iter().any(|name| others.contains(name));
            !share || (*mode, *other_mode) == (Mode::Read, Mode::Read)
        })
    })
}

/// What is wrong with the votes that agents count, for each agent and voter.
fn stale(state: &State) -> impl Iterator<Item = Stale> + '_ {
    state.agents.iter().flat_map(|agent| {
        let me = (agent.lifetime(), &*agent.machine, NOW);
        let voters = state.voters.iter().enumerate();
        voters.filter_map(move |(place, voter)| {
            votes::stale(me, member(place), voter.machine.as_ref()?)
        })
    })
}

pub fn leases_outlast(state: &State) -> bool {
    let outlasts = |agent: &AgentState, status: Status| {
        let voter = state.voters[status.member.place()].machine.as_ref();
        let voter = voter.filter(|voter| voter.session(agent.lifetime()) == status.session);
        let lease = voter.map(|voter| voter.expires(agent.lifetime()));
        status.session.is_none() || lease.is_none_or(|end| end >= Some(status.valid))
    };
    let leases = |agent: &AgentState| {
        let mut counting = agent.machine.status().filter(|status| status.valid > NOW);
        counting.all(|status| outlasts(agent, status))
    };
    state.agents.iter().all(leases) && stale(state).all(|why| why != Stale::Dropped)
}

pub fn sessions_are_current(state: &State) -> bool {
    stale(state).all(|why| why != Stale::Past)
}

pub fn counted_votes_are_exclusive(setting: &Setting, state: &State) -> bool {
    (0..setting.members).map(member).all(|member| {
        let agents = state.agents.iter();
        let agents = agents.map(|agent| (agent.lifetime(), &*agent.machine, NOW));
        let voter = state.voters[member.place()].machine.as_deref();
        votes::conflict(voter, member, agents).is_none()
    })
}

pub fn past_locks_are_not_held(setting: &Setting, state: &State) -> bool {
    let mut clients = state.clients.iter().zip(&setting.scripts);
    clients.all(|(client, script)| {
        let agent = state.agent_of(member(script.at));
        let agent = agent.map(|agent| &state.agents[agent].machine);
        let held = |token: &Token| agent.is_some_and(|agent| agent.held(*token, NOW));
        !client.past.iter().any(held)
    })
}

pub fn all_or_nothing(setting: &Setting, state: &State) -> bool {
    let whole = |voter: &Voter| {
        (0..setting.names).map(Setting::name_of).all(|name| {
            let holders = voter.votes_for(&name);
            let recorded = voter.votes().all(|(_, generation, token, _, names)| {
                names.iter().any(|of| *of == name) == holders.contains(&(generation, token))
            });
            let known = |holder: &(Generation, Token)| {
                let mut votes = voter.votes();
                votes.any(|(_, generation, token, ..)| (generation, token) == *holder)
            };
            recorded && holders.iter().all(known)
        })
    };
    state.running().all(|voter| whole(voter))
}

pub fn old_disks_are_not_used(state: &State) -> bool {
    state.voters.iter().all(|voter| {
        let votes = voter
            .machine
            .as_ref()
            .is_some_and(|machine| machine.is_voting());
        !(votes && voter.is_stale())
    })
}

pub fn guests_with_votes_are_stored(state: &State) -> bool {
    state.voters.iter().all(|seen| {
        let voter = seen.machine.as_ref();
        voter.is_none_or(|voter| seen.disk.guests || !votes::has_guests(voter))
    })
}
