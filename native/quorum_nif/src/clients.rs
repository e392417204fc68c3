//! The names of the clients that the voter knows. Its state machine knows their numbers only.

use crate::error::CallError;
use quorum::members::Node;
use std::collections::HashMap;

/// The name of a node, as bytes.
pub(crate) type NodeName = Vec<u8>;

#[derive(Default)]
pub(crate) struct Clients {
    nodes: HashMap<NodeName, Node>,
    names: HashMap<Node, NodeName>,
    next: u32,
}

impl Clients {
    /// The client of this name, with a new number if it has none.
    pub(crate) fn node(&mut self, name: &[u8]) -> Result<Node, CallError> {
        if let Some(node) = self.nodes.get(name) {
            return Ok(*node);
        }
        // Each number is used once: enough for a new client each millisecond for 49 days.
        let node = Node::client(self.next).ok_or(CallError::BadArg)?;
        self.next += 1;
        self.nodes.insert(name.to_vec(), node);
        self.names.insert(node, name.to_vec());
        Ok(node)
    }

    /// The name of a client. Empty if there is none with this number.
    pub(crate) fn name(&self, node: Node) -> &[u8] {
        self.names.get(&node).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn forget(&mut self, node: Node) {
        if let Some(name) = self.names.remove(&node) {
            self.nodes.remove(&name);
        }
    }
}
