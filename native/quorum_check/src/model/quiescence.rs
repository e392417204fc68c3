//! What comes of a state when nothing goes wrong any more: Q9 and Q10, and that nobody waits for ever.
//!
//! From a state of the search all members are connected, all machines are scheduled, frames come in the order in
//! which they were sent, and clients go on with their scripts as soon as they can; those that hold something at the
//! end give it back. It is played twice: what was in flight comes first, or it is lost. Then all clients have to come
//! to an end, and all tables have to become empty. One ending of each state is played, not all of them: what is shown
//! is that no state is a trap.

use crate::model::coverage::{CoverPoint, Coverage};
use crate::model::setting::{member, Budget, Setting};
use crate::model::state::State;
use crate::model::turn::Turn;
use quorum::members::Member;

/// Of time. Leases, quarantine and places in the line are over after a few; what has not ended by then never does.
const LIMIT: usize = 100;
/// Of frames, steps and marks within a unit of time.
const MOST: usize = 10_000;

/// Plays both ends.
///
/// # Errors
/// What is left, or broken.
pub fn ends_well(setting: &Setting, coverage: &Coverage, state: &State) -> Result<(), String> {
    play(setting, coverage, state, false, false).0?;
    play(setting, coverage, state, true, false).0
}

/// Plays one, with what happened, if it is to be told.
pub fn play(
    setting: &Setting,
    coverage: &Coverage,
    state: &State,
    lost: bool,
    noted: bool,
) -> (Result<(), String>, Vec<String>) {
    coverage.count(CoverPoint::Quiescence);
    let mut turn = Turn::new(setting, coverage, state.clone(), noted);
    let result = play_on(setting, &mut turn, lost);
    (result, turn.notes.unwrap_or_default())
}

fn play_on(setting: &Setting, turn: &mut Turn<'_>, lost: bool) -> Result<(), String> {
    turn.state.left = Budget {
        time: Budget::ALWAYS,
        delays: Budget::ALWAYS,
        duplicates: 0,
        voter_crashes: 0,
        ..Budget::default()
    };
    if lost {
        turn.state.flights.clear();
    }
    reconnect(setting, turn);
    for _ in 0..LIMIT {
        come_to_rest(setting, turn)?;
        for client in 0..setting.scripts.len() {
            if turn.state.step_of(setting, client).is_none() && !turn.state.waits(client) {
                turn.end(client);
            }
        }
        come_to_rest(setting, turn)?;
        if turn.state.is_over(setting) && is_empty(&turn.state) {
            return Ok(());
        }
        turn.pass();
    }
    Err(left_over(setting, &turn.state))
}

fn reconnect(setting: &Setting, turn: &mut Turn<'_>) {
    for place in (0..setting.members).map(member) {
        if turn.state.voters[place.place()].machine.is_none() {
            turn.join_voter(place);
        }
        if turn.state.voters[place.place()].late {
            turn.voter_late(place, false);
        }
    }
    for seat in 0..turn.state.agents.len() {
        if turn.state.agents[seat].late {
            turn.agent_late(seat, false);
        }
        let connected = turn.state.agents[seat].connected;
        let missing: Vec<Member> = (0..setting.members)
            .map(member)
            .filter(|place| !connected.contains(*place))
            .collect();
        for place in missing {
            turn.join(seat, place);
        }
    }
}

/// Until nothing can happen but that time passes.
fn come_to_rest(setting: &Setting, turn: &mut Turn<'_>) -> Result<(), String> {
    for _ in 0..MOST {
        if let Some(broken) = &turn.state.broken {
            return Err(format!("{}: {}", broken.promise, broken.how));
        }
        let client = (0..setting.scripts.len())
            .find(|client| turn.state.step_of(setting, *client).is_some());
        let storing = turn
            .state
            .voters
            .iter()
            .position(|voter| voter.storing.is_some());
        match (client, storing) {
            (Some(client), _) => turn.step(client),
            (None, Some(voter)) => turn.stored(member(voter)),
            (None, None) if turn.state.flights.is_empty() => return Ok(()),
            (None, None) => turn.deliver(0, false),
        }
    }
    Err(format!("more than {MOST} frames and steps in no time"))
}

fn is_empty(state: &State) -> bool {
    state.agents.iter().all(|seat| seat.machine.is_empty())
        && state
            .voters
            .iter()
            .all(|seat| seat.machine.as_ref().is_none_or(|voter| voter.is_empty()))
}

fn left_over(setting: &Setting, state: &State) -> String {
    let mut left = Vec::new();
    for client in 0..setting.scripts.len() {
        if state.waits(client) {
            left.push(format!("client {client} waits"));
        }
    }
    for seat in &state.agents {
        if !seat.machine.is_empty() {
            left.push(format!("the agent of {:?} is not empty", seat.member));
        }
    }
    for (place, seat) in state.voters.iter().enumerate() {
        if seat.machine.as_ref().is_some_and(|voter| !voter.is_empty()) {
            left.push(format!("the voter of m{place} is not empty"));
        }
    }
    format!("after {LIMIT} units of calm: {}", left.join(", "))
}
