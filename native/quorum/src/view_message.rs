//! Messages about views.
//!
//! ```text
//!   Ask                          -> Record                 which view do you have?
//!   Record                       -> Known                  this view is decided: the receiver takes it
//!   Learn (with the record)      -> Report                 a new member asks the old ones, and those that vote already
//!   Ready                        -> Readiness              a change begins: can you be a member?
//!   Prepare, Accept              -> Promise, Accepted      the members decide on one record (Paxos)
//!   Fresh                       <-> Fresh                  a first start
//!   Reset                                                  a new cluster, after too many members are lost
//! ```

use crate::bounds;
use crate::message::{Fence, Lifetime};
use crate::view::{Ballot, Id, NodeName, Record, Role};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// A message about views.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ViewMessage {
    /// Asks for the receiver's record, for this machine of the sender's node. Answered by `Record`, or by nothing.
    Ask(Role),
    /// The sender's record, which is decided. A receiver with a lower number takes it. Answered by `Known` once that is
    /// stored.
    Record(Record),
    /// The answer: the sender executes nothing of lower numbers any more. The head of the message has its number.
    Known {
        /// The identity of the sender.
        id: Id,
    },
    /// As `Record`, from a member of the record that does not vote yet. Answered by `Report`.
    Learn(Record),
    /// What a member of the view before knew when it took the record, or what a member that votes knows.
    Report(Report),
    /// Asks whether the receiver can be a member, and may vote on a change; and which view it has.
    Ready {
        /// The answer repeats it.
        nonce: u64,
        /// Whether agents with votes must have answered since the first question with this nonce.
        agents: bool,
    },
    /// The answer.
    Readiness(Readiness),
    /// Paxos, phase 1.
    Prepare(Ballot),
    /// The answer: the sender accepts no lower ballot.
    Promise {
        /// The ballot of the question.
        ballot: Ballot,
        /// What the sender has accepted.
        accepted: Option<(Ballot, Record)>,
    },
    /// The answer to `Prepare` or `Accept`: the sender has promised this higher ballot.
    Refused(Ballot),
    /// Paxos, phase 2.
    Accept(Ballot, Record),
    /// The answer.
    Accepted(Ballot),
    /// A node without a view says what it starts with.
    Fresh {
        /// The names of its list, in ascending order.
        #[serde(deserialize_with = "bounds::node_names")]
        list: Vec<NodeName>,
        /// Its identity.
        id: Id,
        /// Its lease.
        lease_ms: u64,
        /// The start of the sender. An answer repeats it.
        start: u64,
        /// The start of the receiver that this answers. 0: a question.
        answers: u64,
    },
    /// The record of a new cluster, which the receiver takes.
    Reset(Record),
}

/// What a member knew when it took the record of the next view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Report {
    /// The sender.
    pub id: Id,
    /// Whether it votes in the view of the question.
    pub votes: bool,
    /// No fence that it gave or recorded is higher.
    pub floor: Fence,
    /// The agents that may count on votes of it, also on provisional ones. `None`: any.
    #[serde(deserialize_with = "agents")]
    pub agents: Option<Vec<(NodeName, Lifetime)>>,
}

/// Whether a node can be a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Readiness {
    /// The nonce of the question.
    pub nonce: u64,
    /// The identity of its file.
    pub id: Id,
    /// Its lease.
    pub lease_ms: u64,
    /// Whether it may promise: it votes in its view, and no lock of the view before needs it any more.
    pub is_over: bool,
    /// No fence that it knows is higher.
    pub fence: Fence,
    /// Why it cannot write its file, if so.
    #[serde(deserialize_with = "trouble")]
    pub trouble: Option<String>,
    /// Nodes whose agents have votes there and did not answer since the first question, at most 16 of them.
    #[serde(deserialize_with = "bounds::node_names")]
    pub silent: Vec<NodeName>,
}

fn agents<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<(NodeName, Lifetime)>>, D::Error> {
    #[derive(Deserialize)]
    struct Agents(#[serde(deserialize_with = "bounds::of_agents")] Vec<(NodeName, Lifetime)>);
    Ok(Option::<Agents>::deserialize(deserializer)?.map(|agents| agents.0))
}

fn trouble<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let trouble = Option::<&str>::deserialize(deserializer)?;
    match trouble.is_some_and(|text| text.len() > bounds::MAX_TROUBLE) {
        true => Err(D::Error::custom("a text that is too long")),
        false => Ok(trouble.map(str::to_owned)),
    }
}
