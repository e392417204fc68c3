//! Actions: what may happen next in a state.

use crate::frame_text;
use crate::model::setting::Setting;
use crate::model::state::State;
use quorum::members::Member;

/// Clients, agents and frames in flight are given by their indexes in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Step(usize),
    Deliver(usize),
    /// The frame arrives, and stays in flight.
    Duplicate(usize),
    /// The frame, which is next, moves to the end of the queue.
    Reorder(usize),
    /// The frame, which is next, is delayed.
    Delay(usize),
    PassTime,
    /// The agent is not scheduled from now on, or is again.
    StallAgent(usize, bool),
    StallVoter(Member, bool),
    /// The voter crashes and restarts.
    CrashVoter(Member),
    /// The voter crashes and restarts with an old state file.
    CrashWithOldDisk(Member),
    /// The agent crashes and restarts.
    CrashAgent(usize),
    /// The agent is informed that the member is disconnected.
    Disconnect(usize, Member),
    Connect(usize, Member),
    /// The voter is informed that the agent's node is disconnected.
    VoterDown(usize, Member),
    /// The fence that the voter stores is on disk.
    Stored(Member),
    /// What the voter stores next of guests is on disk.
    GuestsStored(Member),
    /// A question to all voters which names have votes begins.
    Ask,
    /// The voter answers it.
    Answer(Member),
}

impl Action {
    pub fn describe(self, setting: &Setting, state: &State) -> String {
        match self {
            Action::Step(client) => {
                let at = state.enabled_step(setting, client);
                let script = &setting.scripts[client];
                let step = script.steps[at.expect("a possible action")];
                format!("client {client} of m{}: {step:?}", script.at)
            }
            Action::Deliver(place)
            | Action::Duplicate(place)
            | Action::Reorder(place)
            | Action::Delay(place) => {
                let flight = &state.flights[place];
                let delayed = if flight.delayed { "delayed " } else { "" };
                let frame = frame_text::describe(&flight.frame);
                let (from, to) = (flight.from, flight.to);
                format!("{self:?} {delayed}{from:?} -> {to:?} {{{frame}}}")
            }
            Action::StallAgent(agent, _)
            | Action::CrashAgent(agent)
            | Action::Disconnect(agent, _)
            | Action::Connect(agent, _)
            | Action::VoterDown(agent, _) => {
                format!("{self:?} of {:?}", state.agents[agent].member)
            }
            _ => format!("{self:?}"),
        }
    }
}
