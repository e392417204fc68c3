//! Actions: what may happen next in a state.

use crate::frame_text;
use crate::model::setting::{Setting, Step};
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
    /// The agent is not scheduled until it resumes.
    StallAgent(usize),
    ResumeAgent(usize),
    StallVoter(Member),
    ResumeVoter(Member),
    /// The voter crashes and restarts.
    CrashVoter(Member),
    /// The voter crashes and restarts with an old state file.
    CrashWithOldDisk(Member),
    /// A voter that was down at first starts.
    StartVoter(Member),
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
}

impl Action {
    pub fn describe(self, setting: &Setting, state: &State) -> String {
        let agent = |agent: usize| format!("agent of {:?}", state.agents[agent].member);
        let frame = |place: usize| {
            let flight = &state.flights[place];
            let delayed = if flight.delayed { "delayed " } else { "" };
            let frame = frame_text::describe(&flight.frame);
            format!("{delayed}{:?} -> {:?} {{{frame}}}", flight.from, flight.to)
        };
        match self {
            Action::Step(client) => {
                let at = state.enabled_step(setting, client);
                let script = &setting.scripts[client];
                let step = describe_step(script.steps[at.expect("a possible action")]);
                format!("client {client} of m{} {step}", script.at)
            }
            Action::Deliver(place) => format!("deliver {}", frame(place)),
            Action::Duplicate(place) => format!("deliver and keep in flight {}", frame(place)),
            Action::Reorder(place) => format!("reorder {}", frame(place)),
            Action::Delay(place) => format!("delay {}", frame(place)),
            Action::PassTime => "time passes".into(),
            Action::StallAgent(place) => format!("{} stalls", agent(place)),
            Action::ResumeAgent(place) => format!("{} resumes", agent(place)),
            Action::StallVoter(voter) => format!("voter of {voter:?} stalls"),
            Action::ResumeVoter(voter) => format!("voter of {voter:?} resumes"),
            Action::CrashVoter(voter) => format!("voter of {voter:?} crashes and restarts"),
            Action::CrashWithOldDisk(voter) => {
                format!("voter of {voter:?} crashes and restarts with an old disk")
            }
            Action::StartVoter(voter) => format!("voter of {voter:?} starts"),
            Action::CrashAgent(place) => format!("{} crashes and restarts", agent(place)),
            Action::Disconnect(place, voter) => {
                format!("{} is disconnected from {voter:?}", agent(place))
            }
            Action::Connect(place, voter) => format!("{} is connected to {voter:?}", agent(place)),
            Action::VoterDown(place, voter) => {
                format!(
                    "voter of {voter:?} is disconnected from the {}",
                    agent(place)
                )
            }
            Action::Stored(voter) => format!("voter of {voter:?} has stored its fence"),
            Action::GuestsStored(voter) => {
                format!("voter of {voter:?} has stored whether there are guests")
            }
        }
    }
}

fn describe_step(step: Step) -> String {
    let list = |numbers: &[usize]| {
        let names = numbers.iter().map(|number| Setting::name_of(*number));
        let names: Vec<String> = names
            .map(|name| name.bytes().escape_ascii().to_string())
            .collect();
        names.join("+")
    };
    match step {
        Step::Lock(mode, names) => format!("locks {} ({mode:?})", list(names)),
        Step::LockWithin(mode, names, timeout) => {
            format!("locks {} ({mode:?}) within {timeout} units", list(names))
        }
        Step::Unlock => "unlocks".into(),
        Step::UnlockAsync => "unlocks without waiting".into(),
        Step::Die => "dies".into(),
        Step::Revoke(name) => format!("revokes {}", list(&[name])),
        Step::Disconnect(agent, voter) => {
            format!("disconnects the agent of m{agent} from m{voter}")
        }
        Step::Connect(agent, voter) => format!("connects the agent of m{agent} to m{voter}"),
        Step::Crash(voter) => format!("restarts the voter of m{voter}"),
        Step::Later(units) => format!("waits until {units} units have passed"),
        Step::Await(other) => format!("waits for client {other}"),
    }
}
