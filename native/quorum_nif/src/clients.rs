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
    /// With more names than this, those are looked for that are not needed.
    most: usize,
}

/// A few names are kept without a look.
const LEAST: usize = 64;

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

    /// The client of this name, if it has a number.
    pub(crate) fn known(&self, name: &[u8]) -> Option<Node> {
        self.nodes.get(name).copied()
    }

    /// The name of a client, as a binary. Empty if no client has this number.
    pub(crate) fn name<'a>(&self, env: Env<'a>, node: Node) -> Term<'a> {
        let name = self.names.get(&node).map_or(&[][..], Vec::as_slice);
        let mut binary = NewBinary::new(env, name.len());
        binary.as_mut_slice().copy_from_slice(name);
        Binary::from(binary).encode(env)
    }

    /// Forgets the clients that are not needed, when there are twice as many names as after the last time.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(Node) -> bool) {
        if self.nodes.len() <= self.most.max(LEAST) {
            return;
        }
        self.nodes.retain(|_, node| is_needed(*node));
        self.names.retain(|node, _| is_needed(*node));
        self.most = 2 * self.nodes.len();
    }
}
