//! Starts without a view: asks the nodes of the list, and forms or takes a view. See `start.rs`.

use super::{NodeVoter, NodeVoterOutput, Stage, REPEAT};
use crate::view::{Id, NodeName, Peer, Record, Role};
use crate::view_message::ViewMessage;

impl NodeVoter {
    pub(super) fn tick_start(&mut self) {
        let (now, shown) = (self.now, self.shown <= self.stored);
        let Stage::Starting(start) = &mut self.stage else {
            return;
        };
        if start.again > now {
            return;
        }
        start.again = now + REPEAT;
        let number = start.number;
        if shown {
            self.form_first();
        }
        if !matches!(self.stage, Stage::Starting(_)) {
            return;
        }
        // Its agent asks all nodes, and may know a view.
        let own = self.setup.node.clone();
        self.post(own.clone(), Role::Agent, ViewMessage::Ask(Role::Voter));
        for node in self.setup.seeds.clone() {
            if node != own {
                self.say_fresh(node, number, 0);
            }
        }
    }

    /// A node outside its own list asks for a view: the list may have one by now.
    fn say_fresh(&mut self, to: NodeName, start: u64, answers: u64) {
        if !self.setup.seeds.contains(&self.setup.node) {
            return self.post(to, Role::Voter, ViewMessage::Ask(Role::Voter));
        }
        let fresh = ViewMessage::Fresh {
            list: self.setup.seeds.clone(),
            id: self.state.id,
            lease_ms: self.setup.lease_ms,
            start,
            answers,
        };
        self.post(to, Role::Voter, fresh);
    }

    pub(super) fn fresh(
        &mut self,
        from: &NodeName,
        (list, id, lease_ms): (Vec<NodeName>, Id, u64),
        theirs: u64,
        answers: u64,
    ) {
        if let Some(record) = self.state.record.clone() {
            return self.post(from.clone(), Role::Voter, ViewMessage::Record(record));
        }
        let differs = list != self.setup.seeds || lease_ms != self.setup.lease_ms;
        if differs && self.foreign.insert(from.clone()) {
            self.out.push(NodeVoterOutput::OtherList(from.clone()));
        }
        let Stage::Starting(start) = &mut self.stage else {
            return;
        };
        if answers == start.number && !differs {
            start.heard.insert(from.clone(), id);
            self.form_first();
        } else if answers == 0 {
            let own = start.number;
            self.say_fresh(from.clone(), own, theirs);
        }
    }

    /// Forms view 0, if all others were heard.
    fn form_first(&mut self) {
        let Stage::Starting(start) = &self.stage else {
            return;
        };
        let own = self.own();
        let known = |node: &NodeName| match *node == own.node {
            true => Some(own.id),
            false => start.heard.get(node).copied(),
        };
        let peer = |node: &NodeName| {
            let id = known(node)?;
            let node = node.clone();
            Some(Peer { node, id })
        };
        let is_listed = self.setup.seeds.contains(&own.node);
        let peers: Option<Vec<Peer>> = self.setup.seeds.iter().map(peer).collect();
        if let Some(peers) = peers.filter(|_| is_listed) {
            self.replace(&Record::first(peers, self.setup.lease_ms));
        }
    }

    /// The nodes that a node without a view waits for.
    pub(super) fn unheard(&self) -> Vec<NodeName> {
        let Stage::Starting(start) = &self.stage else {
            return Vec::new();
        };
        let others = self
            .setup
            .seeds
            .iter()
            .filter(|node| **node != self.setup.node);
        others
            .filter(|node| !start.heard.contains_key(node))
            .cloned()
            .collect()
    }
}
