//! The names of the clients that the voter knows. Its state machine knows their numbers only.

use crate::error::CallError;
use quorum::members::Node;
use rustler::{Binary, Encoder, Env, NewBinary, Term};
use std::collections::HashMap;

#[derive(Default)]
pub(crate) struct Clients {
    nodes: HashMap<Vec<u8>, Node>,
    names: HashMap<Node, Vec<u8>>,
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

    /// The name of a client, as a binary. Empty if no client has this number.
    pub(crate) fn name<'a>(&self, env: Env<'a>, node: Node) -> Term<'a> {
        let name = self.names.get(&node).map_or(&[][..], Vec::as_slice);
        let mut binary = NewBinary::new(env, name.len());
        binary.as_mut_slice().copy_from_slice(name);
        Binary::from(binary).encode(env)
    }

    pub(crate) fn forget(&mut self, node: Node) {
        if let Some(name) = self.names.remove(&node) {
            self.nodes.remove(&name);
        }
    }
}
