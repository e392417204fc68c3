//! The clients that may have votes of this voter, and may have had some of its earlier lives.
//!
//! A restarted voter ends its quarantine early when all agents that may have had votes of its earlier lives have
//! settled. The list says which members there are. For clients, the *register* does. It is stored in the state file,
//! and a client gets no vote before it is stored there (V7):
//!
//! ```text
//!   client                          voter                     file
//!     | first batch ---------------> | Register client -------> |
//!     |<------------------ Mismatch  |                          |
//!     | Lock ----------------------> |                          |
//!     |<--------------- No: storing  |                          |
//!     |                              |<---------------- stored  |
//!     | Lock ----------------------> |                          |
//!     |<----------------------- Yes  |                          |
//! ```
//!
//! A client leaves the register when the leases of all its agents have ended. So after a restart the voter waits for
//! clients that are dead only if they had votes a short time before.

use crate::members::Node;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Register {
    /// Whether each client is stored.
    clients: BTreeMap<Node, bool>,
    /// The clients that may hold votes of an earlier life, and have not settled.
    unsettled: BTreeSet<Node>,
}

impl Register {
    /// The register of an earlier life, which is stored.
    pub(super) fn new(stored: &[Node]) -> Register {
        Register {
            clients: stored.iter().map(|client| (*client, true)).collect(),
            unsettled: stored.iter().copied().collect(),
        }
    }

    /// Whether `client` is in the register, stored or not.
    pub(super) fn has(&self, client: Node) -> bool {
        self.clients.contains_key(&client)
    }

    pub(super) fn is_stored(&self, client: Node) -> bool {
        self.clients.get(&client) == Some(&true)
    }

    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    pub(super) fn add(&mut self, client: Node, is_stored: bool) {
        self.clients.insert(client, is_stored);
    }

    /// `client` is stored.
    pub(super) fn stored(&mut self, client: Node) {
        if let Some(is_stored) = self.clients.get_mut(&client) {
            *is_stored = true;
        }
    }

    /// The leases of all agents of `client` have ended, and it is not awaited.
    pub(super) fn remove(&mut self, client: Node) {
        self.clients.remove(&client);
    }

    pub(super) fn settled(&mut self, client: Node) {
        self.unsettled.remove(&client);
    }

    /// Whether `client` may hold votes of an earlier life.
    pub(super) fn awaits(&self, client: Node) -> bool {
        self.unsettled.contains(&client)
    }

    /// No vote of an earlier life counts any more. Returns all clients.
    pub(super) fn end_quarantine(&mut self) -> Vec<Node> {
        self.unsettled.clear();
        self.iter().collect()
    }

    /// Whether no client may hold votes of an earlier life.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Node> + '_ {
        self.clients.keys().copied()
    }

    pub(super) fn not_stored(&self) -> impl Iterator<Item = Node> + '_ {
        let clients = self.clients.iter().filter(|(_, is_stored)| !**is_stored);
        clients.map(|(client, _)| *client)
    }
}
