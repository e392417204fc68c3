//! Views: the members of a cluster at one time. `docs/quorum.md`, "Changing the members", describes the protocol.
//!
//! ```text
//!   view 0 {a, b, c} --> view 1 {a, b, d} --> view 2 ...       each is decided by a quorum of the one before
//! ```

use crate::bounds;
use crate::members::{Member, MemberSet, Members};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The name of a node: 1 to 1020 bytes. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// Copies `name`. `None` if it is empty or too long.
    #[must_use]
    pub fn new(name: &str) -> Option<NodeName> {
        (1..=bounds::MAX_NODE_NAME)
            .contains(&name.len())
            .then(|| NodeName(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for NodeName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NodeName, D::Error> {
        let name = <&str>::deserialize(deserializer)?;
        NodeName::new(name).ok_or_else(|| D::Error::custom("a node name of a wrong length"))
    }
}

/// The identity of a member: a random number that a node makes with its state file. A node whose file is lost has
/// another one, and is another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Id(pub u64);

/// A member of a view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// Its node.
    pub node: NodeName,
    /// The identity of the node's state file.
    pub id: Id,
}

/// Identifies a view: each message between nodes names that of its sender.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ViewId {
    /// The cluster: a hash of view 0, or a random number after a reset. At most 58 bits; 0 for a sender without a view.
    #[serde(deserialize_with = "bounds::small")]
    pub cluster: u64,
    /// The number of the view in the cluster. At most 58 bits, too.
    #[serde(deserialize_with = "bounds::small")]
    pub number: u64,
}

impl ViewId {
    /// Of a node without a view.
    pub const NONE: ViewId = ViewId {
        cluster: 0,
        number: 0,
    };

    /// Whether the sender has a view of another cluster.
    #[must_use]
    pub fn is_foreign(self, other: ViewId) -> bool {
        self != ViewId::NONE && other != ViewId::NONE && self.cluster != other.cluster
    }
}

/// A view, and the list of the one before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Record {
    /// The cluster and the number.
    pub id: ViewId,
    /// The lease of voters in milliseconds. All views of a cluster have the same.
    #[serde(deserialize_with = "bounds::lease_ms")]
    pub lease_ms: u64,
    /// The members in ascending order.
    #[serde(deserialize_with = "members")]
    pub members: Vec<Peer>,
    /// Those of the view before. Empty in view 0.
    #[serde(deserialize_with = "earlier_members")]
    pub before: Vec<Peer>,
    /// Fences begin above this one: 0, or high after a reset.
    pub fence: crate::message::Fence,
}

impl Record {
    /// View 0 of a new cluster.
    #[must_use]
    pub fn first(mut members: Vec<Peer>, lease_ms: u64) -> Record {
        members.sort_unstable();
        let text = postcard::to_allocvec(&(&members, lease_ms)).unwrap_or_default();
        Record {
            id: ViewId {
                cluster: cluster_of(&text),
                number: 0,
            },
            lease_ms,
            members,
            before: Vec::new(),
            fence: crate::message::Fence::default(),
        }
    }

    /// The view after this one.
    #[must_use]
    pub fn next(&self, mut members: Vec<Peer>) -> Record {
        members.sort_unstable();
        Record {
            id: ViewId {
                number: self.id.number + 1,
                ..self.id
            },
            members,
            before: self.members.clone(),
            ..self.clone()
        }
    }

    /// The list, without names.
    #[must_use]
    pub fn list(&self) -> Members {
        Members::new(self.members.len()).expect("1 to 16 members")
    }

    /// The index of a node in the list.
    #[must_use]
    pub fn place(&self, node: &NodeName) -> Option<Member> {
        let place = self.members.iter().position(|peer| peer.node == *node)?;
        Member::at(place)
    }

    /// The member at this index.
    #[must_use]
    pub fn peer(&self, member: Member) -> &Peer {
        &self.members[member.place()]
    }

    /// Whether this identity is a member.
    #[must_use]
    pub fn has(&self, peer: &Peer) -> bool {
        self.members.contains(peer)
    }

    /// Whether its nodes are those of `names`, which are in ascending order.
    #[must_use]
    pub fn is_list(&self, names: &[NodeName]) -> bool {
        self.members.iter().map(|peer| &peer.node).eq(names)
    }

    /// Whether a quorum of `peers` is in `these`.
    #[must_use]
    pub fn is_quorum(peers: &[Peer], these: impl Fn(&Peer) -> bool) -> bool {
        peers.iter().filter(|peer| these(peer)).count() > peers.len() / 2
    }

    /// The nodes of both lists.
    #[must_use]
    pub fn nodes(&self) -> BTreeSet<NodeName> {
        let peers = self.before.iter().chain(&self.members);
        peers.map(|peer| peer.node.clone()).collect()
    }

    /// The places of the members that are in `nodes`.
    pub fn places<'a>(&self, nodes: impl IntoIterator<Item = &'a NodeName>) -> MemberSet {
        nodes
            .into_iter()
            .filter_map(|node| self.place(node))
            .collect()
    }
}

/// 58 bits of the FNV-1a hash (Fowler, Noll, Vo), scattered: a small integer in Erlang, and never 0.
fn cluster_of(bytes: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, add);
    cluster(crate::message::scatter(hash))
}

/// The number of a cluster from random bits.
#[must_use]
pub fn cluster(bits: u64) -> u64 {
    (bits >> 6).max(1)
}

/// The number of a proposal: of two, the higher one counts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Ballot {
    /// Grows with each attempt of a proposer.
    pub round: u64,
    /// The proposer: random bits of its start.
    pub proposer: u64,
}

/// The machine of a node that receives a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Its agent.
    Agent,
    /// Its voter.
    Voter,
}

/// The members of a view: at least one, each node once.
fn members<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Peer>, D::Error> {
    let members = earlier_members(deserializer)?;
    match members.is_empty() {
        true => Err(D::Error::custom("a view without members")),
        false => Ok(members),
    }
}

/// The members of the view before, if there was one: each node once.
fn earlier_members<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Peer>, D::Error> {
    let members: Vec<Peer> = bounds::peers(deserializer)?;
    match members.windows(2).all(|pair| pair[0].node != pair[1].node) {
        true => Ok(members),
        false => Err(D::Error::custom("a node that is a member twice")),
    }
}
