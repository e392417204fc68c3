//! The promises of the protocol, as what must be true of each state.
//!
//! | label | promise | looked at |
//! |---|---|---|
//! | Q1 | of those that find `held` true, one is a writer and alone, or all are readers | each state |
//! | Q2 | while an agent counts on a voter, the voter keeps the lease, and each vote for a held lock | each state |
//! | Q3 | no vote of an older life or lease of a voter counts, once the voter votes in a newer | each state |
//! | Q4 | a voter in quarantine gives no vote | each batch |
//! | Q5 | fences of a name's writers grow, and no reader's is below a writer's before it | each grant |
//! | Q6 | a writer's fence is known to a quorum before the writer has it | each grant |
//! | Q7 | a vote is forgotten only if its agent gave it back, or its lease is over | each batch |
//! | Q8 | what was given back or lost is never held again, and asked for by nobody | each state, each batch sent |
//! | Q9, Q10 | once the weather is calm all get what they ask for, and then all tables are empty | calm ends |
//! | Q11 | at each voter a lock has the votes of all its names, or of none | each state |
//! | P0 | machines do not panic, tick for ever, or answer what was not asked | each action |

use crate::model::setting::{member, Setting};
use crate::model::state::{AgentSeat, Phase, State, VoterSeat, NOW};
use quorum::agent::{Held, Status};
use quorum::message::{Generation, Mode, Token};
use quorum::voter::Voter;

/// A lock that a client has.
struct Lock<'a> {
    mode: Mode,
    names: &'a [usize],
}

/// The locks that their holders find held.
fn held<'a>(setting: &'a Setting, state: &'a State) -> impl Iterator<Item = Lock<'a>> {
    state
        .clients
        .iter()
        .enumerate()
        .filter_map(move |(client, seen)| {
            let Phase::Holds { step, token } = seen.phase else {
                return None;
            };
            let seat = state.seat_of(member(setting.scripts[client].at))?;
            let (mode, names) = setting.asked(client, step);
            state.agents[seat]
                .machine
                .held(token, NOW)
                .then_some(Lock { mode, names })
        })
}

/// How many find a read lock held, and how many a write lock, of the name for which they are the most.
#[must_use]
pub fn holders(setting: &Setting, state: &State) -> (usize, usize) {
    let mut most = (0, 0);
    for number in 0..setting.names {
        let mut count = (0, 0);
        for held in held(setting, state).filter(|held| held.names.contains(&number)) {
            match held.mode {
                Mode::Read => count.0 += 1,
                Mode::Write => count.1 += 1,
            }
        }
        most = most.max(count);
    }
    most
}

/// Q1
#[must_use]
pub fn exclusive(setting: &Setting, state: &State) -> bool {
    let all: Vec<Lock<'_>> = held(setting, state).collect();
    all.iter().enumerate().all(|(place, one)| {
        all[place + 1..].iter().all(|other| {
            let share = one.names.iter().any(|name| other.names.contains(name));
            !share || one.mode == Mode::Read && other.mode == Mode::Read
        })
    })
}

/// What an agent counts on now: the voter's place, the session it believes in, and until when.
fn counted<'a>(
    state: &'a State,
    seat: &'a AgentSeat,
) -> impl Iterator<Item = (&'a VoterSeat, &'a Voter, Status)> {
    seat.machine
        .status()
        .filter(|status| status.valid > NOW && status.session.is_some())
        .filter_map(|status| {
            let voter = &state.voters[status.member.place()];
            Some((voter, &**voter.machine.as_ref()?, status))
        })
}

/// Q2
#[must_use]
pub fn leases_outlast(_: &Setting, state: &State) -> bool {
    state.agents.iter().all(|seat| {
        counted(state, seat).all(
            |(
                _,
                voter,
                Status {
                    member,
                    session,
                    valid,
                    ..
                },
            )| {
                if session.is_none_or(|session| session.voter != voter.lifetime()) {
                    return true;
                }
                let lease = voter
                    .expires(seat.lifetime())
                    .is_some_and(|expires| expires >= valid);
                let voted = |lock: &Held<'_>| {
                    voter.votes().any(|(agent, _, token, ..)| {
                        (agent, token) == (seat.lifetime(), lock.attempt)
                    })
                };
                lease
                    && seat
                        .machine
                        .locks()
                        .filter(|lock| lock.votes.contains(member))
                        .all(|lock| voted(&lock))
            },
        )
    })
}

/// Q3
#[must_use]
pub fn sessions_are_current(_: &Setting, state: &State) -> bool {
    state.agents.iter().all(|seat| {
        counted(state, seat).all(|(_, voter, Status { session, .. })| {
            let Some(session) = session else { return true };
            if session.voter == voter.lifetime() {
                voter.session(seat.lifetime()) == Some(session)
            } else {
                !voter.is_voting()
            }
        })
    })
}

/// Q8, as far as `held` goes.
#[must_use]
pub fn past_is_past(setting: &Setting, state: &State) -> bool {
    state
        .clients
        .iter()
        .zip(&setting.scripts)
        .all(|(client, script)| {
            let seat = state.seat_of(member(script.at));
            let held = |token: &Token| {
                seat.is_some_and(|seat| state.agents[seat].machine.held(*token, NOW))
            };
            !client.past.iter().any(held)
        })
}

/// Q11
#[must_use]
pub fn all_or_nothing(setting: &Setting, state: &State) -> bool {
    state
        .voters
        .iter()
        .filter_map(|voter| voter.machine.as_ref())
        .all(|voter| {
            (0..setting.names).map(Setting::name_of).all(|name| {
                let holders = voter.holders(&name);
                let recorded = voter.votes().all(|(_, generation, token, _, names)| {
                    names.iter().any(|of| *of == name) == holders.contains(&(generation, token))
                });
                let known = |holder: &(Generation, Token)| {
                    voter
                        .votes()
                        .any(|(_, generation, token, ..)| (generation, token) == *holder)
                };
                recorded && holders.iter().all(known)
            })
        })
}
