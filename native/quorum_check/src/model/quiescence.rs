//! PR1: what follows a state once no further fault happens.
//!
//! All members are connected and all machines are scheduled. Frames arrive in the order in which they were sent.
//! Clients do their steps as soon as they can, and unlock what they hold after the last one. This is played twice: the
//! frames in flight arrive first, or they are lost. All clients must then be done, and all tables must become empty
//! (Q9, Q10). The check plays one continuation of a state, not all. It shows that no state is a dead end.

use crate::model::setting::{member, Budget, Setting};
use crate::model::state::{State, VoterState};
use crate::model::transition::Transition;

/// Units of time. Leases, quarantine and queue positions end after a few of them.
const MOST_UNITS: usize = 100;
/// Frames, steps and stored fences within one unit of time.
const MOST_ACTIONS: usize = 10_000;

pub fn check(setting: &Setting, state: &State) -> Result<(), String> {
    play(setting, state, false, false).0?;
    play(setting, state, true, false).0
}

pub fn play(
    setting: &Setting,
    state: &State,
    lost: bool,
    traced: bool,
) -> (Result<(), String>, Vec<String>) {
    let mut next = Transition::new(setting, state.clone(), traced);
    let result = run(&mut next, lost);
    (result, next.trace.unwrap_or_default())
}

fn run(next: &mut Transition<'_>, lost: bool) -> Result<(), String> {
    let setting = next.setting;
    next.state.left = Budget {
        time: Budget::UNLIMITED,
        delays: Budget::UNLIMITED,
        ..Budget::default()
    };
    if lost {
        next.state.flights.clear();
    }
    heal(next);
    for _ in 0..MOST_UNITS {
        settle(next)?;
        for client in 0..setting.scripts.len() {
            if next.state.enabled_step(setting, client).is_none() && !next.state.waits(client) {
                next.finish_client(client);
            }
        }
        settle(next)?;
        if next.state.all_done(setting) && left_over(&next.state).is_empty() {
            return Ok(());
        }
        next.pass_time();
    }
    let left = left_over(&next.state).join(", ");
    Err(format!(
        "after {MOST_UNITS} quiescent units of time: {left}"
    ))
}

/// Schedules all machines, and connects all members.
fn heal(next: &mut Transition<'_>) {
    let voters = (0..next.setting.members).map(member);
    for voter in voters.clone() {
        if next.state.voters[voter.place()].stalled {
            next.stall_voter(voter, false);
        }
    }
    for agent in 0..next.state.agents.len() {
        if next.state.agents[agent].stalled {
            next.stall_agent(agent, false);
        }
        for closed in next.state.agents[agent].closed.iter() {
            next.disconnect(agent, closed);
        }
        let connected = next.state.agents[agent].connected;
        for voter in voters.clone().filter(|voter| !connected.contains(*voter)) {
            next.connect(agent, voter);
        }
    }
}

/// Until nothing is left to do but let time pass.
fn settle(next: &mut Transition<'_>) -> Result<(), String> {
    for _ in 0..MOST_ACTIONS {
        let state = &next.state;
        if let Some(violation) = &state.violation {
            return Err(format!("{}: {}", violation.property, violation.text));
        }
        let mut clients = 0..next.setting.scripts.len();
        let voter_that = |writes: fn(&VoterState) -> bool| state.voters.iter().position(writes);
        if let Some(voter) = voter_that(|voter| !voter.storing_guests.is_empty()) {
            next.guests_stored(member(voter));
        } else if let Some(client) =
            clients.find(|client| state.enabled_step(next.setting, *client).is_some())
        {
            next.step(client);
        } else if let Some(voter) = voter_that(|voter| voter.storing.is_some()) {
            next.stored(member(voter));
        } else if state.flights.is_empty() {
            return Ok(());
        } else {
            next.deliver(0, false);
        }
    }
    Err(format!(
        "more than {MOST_ACTIONS} frames and steps within one unit of time"
    ))
}

fn left_over(state: &State) -> Vec<String> {
    let mut left = Vec::new();
    for client in (0..state.clients.len()).filter(|client| state.waits(*client)) {
        left.push(format!("client {client} waits"));
    }
    for agent in &state.agents {
        if !agent.machine.is_empty() {
            left.push(format!("the agent of {:?} is not empty", agent.member));
        }
    }
    for (place, voter) in state.voters.iter().enumerate() {
        let machine = voter.machine.as_ref();
        if machine.is_some_and(|voter| !voter.is_empty()) {
            left.push(format!("the voter of m{place} is not empty"));
        }
    }
    left
}
