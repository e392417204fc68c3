//! Options of a history, beyond its seed. Tests set them to break a rule, or to make a violation more likely.

use crate::simulation::fault::Fault;
use crate::simulation::invariants::label::Label;
use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use quorum::rules::Rules;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The number of members. None: drawn.
    pub members: Option<usize>,
    /// The number of guests. None: drawn.
    pub guests: Option<usize>,
    /// The kinds of faults. None: drawn.
    pub faults: Option<Vec<Fault>>,
    /// Whether all clients write-lock one name and hold it for long: the shortest way to two holders.
    pub contended: bool,
    /// Whether histories last for several leases, and so do locks and faults.
    pub long: bool,
    pub rules: Option<fn(Rules) -> Rules>,
    pub bugs: ProtocolBugs,
    /// The largest error of a clock's rate, in parts per million. None: 10,000.
    pub drift: Option<i64>,
    /// Whether an agent's clock stands still while it is paused. The protocol does not survive this.
    pub agent_clocks_pause: bool,
    /// The quarantine of each start of a voter. `None`: the longest lease of its lives.
    pub quarantine: Option<Duration>,
    /// Whether holders outlive their agent, and an unlock has the token of its lock only, not the agent.
    pub bare_tokens: bool,
    /// Whether voters in quarantine answer which names have votes, too.
    pub quarantined_answers: bool,
    /// Invariants that are not checked, so that the violation of another one is found.
    pub ignored: Vec<Label>,
    pub lines: usize,
}

impl Options {
    pub fn bug(mut self, bug: ProtocolBug) -> Options {
        self.bugs = self.bugs.with(bug);
        self
    }

    pub fn members(mut self, count: usize) -> Options {
        self.members = Some(count);
        self
    }

    pub fn guests(mut self, count: usize) -> Options {
        self.guests = Some(count);
        self
    }

    pub fn faults(mut self, faults: &[Fault]) -> Options {
        self.faults = Some(faults.to_vec());
        self
    }

    pub fn contended(mut self) -> Options {
        self.contended = true;
        self
    }

    /// Three contended members and no guests: the fewest nodes with two quorums that share one voter, so histories are
    /// short, and a wrong vote soon makes two holders.
    pub fn of_three(self) -> Options {
        self.contended().members(3).guests(0)
    }

    pub fn long(mut self) -> Options {
        self.long = true;
        self
    }

    pub fn rules(mut self, change: fn(Rules) -> Rules) -> Options {
        self.rules = Some(change);
        self
    }

    /// Checks one invariant only, and that machines do not spin.
    pub fn only(mut self, label: Label) -> Options {
        self.ignored = Label::ALL.to_vec();
        self.ignored
            .retain(|other| ![label, Label::Spin].contains(other));
        self
    }
}
