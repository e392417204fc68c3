//! Inputs and outputs of the voter of a node, except messages.

use super::change::ChangeAnswer;
use super::state::State;
use crate::envelope::Post;
use crate::protocol_bug::ProtocolBugs;
use crate::rules::Rules;
use crate::view::{NodeName, Record};

/// The setup of the voter of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeVoterSetup {
    /// This node.
    pub node: NodeName,
    /// The nodes to start with or to ask, in ascending order: the option `members`.
    pub seeds: Vec<NodeName>,
    /// The lease in milliseconds.
    pub lease_ms: u64,
    /// The constants of that lease.
    pub rules: Rules,
    /// Enabled protocol bugs: none outside models.
    pub bugs: ProtocolBugs,
    /// Whether the state is stored. Without, each start is the first one, and the node is the only member.
    pub durable: bool,
    /// Whether agents of no member may lock here.
    pub clients: bool,
    /// Random bits, others at each start.
    pub random: u64,
}

/// An action that the voter of a node requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeVoterOutput {
    /// Send this message.
    Post(Post),
    /// Store this in place of the earlier state so that it survives a crash, then call
    /// [`stored`](super::NodeVoter::stored) with this number. Only the last one counts.
    Store(u64, Box<State>),
    /// The answer to a change or a reset.
    Answer(u64, ChangeAnswer),
    /// This node has taken a record.
    Took(Record),
    /// The file of this node was lost or old. It proposes itself as a new member.
    Lost,
    /// The node has a view of another cluster. Reported once.
    OtherCluster(NodeName, u64),
    /// The node starts with another list or lease, so no first view can be formed. Reported once.
    OtherList(NodeName),
}

/// Whether a voter votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It votes.
    Voting,
    /// It does not vote yet.
    Starting,
    /// This node is no member of the view.
    Client,
    /// There is no view yet.
    NoView,
}

/// What a voter waits for from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// That it starts, with the same list.
    Start,
    /// That its disk has written the view, or its report of the view before.
    Report,
    /// That its agent settles.
    Settled,
    /// That it has taken the view of a reset.
    Accepted,
    /// Of this node: that a lease passes.
    Lease,
    /// That its agent says that no lock relies on the view before.
    Kept,
}

/// The view of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewStatus {
    /// The view, if there is one.
    pub record: Option<Record>,
    /// Whether the voter of this node votes.
    pub phase: Phase,
    /// The nodes that it waits for, and what each must do.
    pub waits_for: Vec<(NodeName, Awaits)>,
}
