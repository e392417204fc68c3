//! The numbers of nodes: members have those of their places, and each other node, a *client*, gets one.

use crate::members::Node;
use crate::view::{NodeName, Record};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Clients {
    nodes: BTreeMap<NodeName, Node>,
    names: BTreeMap<Node, NodeName>,
    next: u32,
    /// With more names than this, those are looked for that are not needed.
    most: usize,
}

/// A few names are kept without a look.
const LEAST: usize = 64;

impl Clients {
    /// The number of a node. A client without one gets a new one: each number is used once, which is enough for a new
    /// client each millisecond for 49 days.
    pub(super) fn node(&mut self, name: &NodeName, record: &Record) -> Option<Node> {
        if let Some(known) = self.known(name, record) {
            return Some(known);
        }
        let node = Node::client(self.next)?;
        self.next += 1;
        self.nodes.insert(name.clone(), node);
        self.names.insert(node, name.clone());
        Some(node)
    }

    /// The number of a node that has one.
    pub(super) fn known(&self, name: &NodeName, record: &Record) -> Option<Node> {
        let member = record.place(name).map(Node::from);
        member.or_else(|| self.nodes.get(name).copied())
    }

    /// The name of a node that has this number.
    pub(super) fn name(&self, node: Node, record: &Record) -> NodeName {
        match node.member() {
            Some(member) => record.peer(member).node.clone(),
            None => self.names[&node].clone(),
        }
    }

    /// Forgets the clients that are not needed, when there are twice as many names as after the last time.
    pub(super) fn retain(&mut self, is_needed: impl Fn(Node) -> bool) {
        if self.nodes.len() <= self.most.max(LEAST) {
            return;
        }
        self.nodes.retain(|_, node| is_needed(*node));
        self.names.retain(|node, _| is_needed(*node));
        self.most = 2 * self.nodes.len();
    }
}
