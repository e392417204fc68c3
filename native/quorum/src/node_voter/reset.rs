//! A new cluster of the survivors, after too many members are lost. Each node of the list stores the new view, and
//! leaves the old cluster by that. None votes before all have; then they wait for a lease, because holders may count on
//! votes of the old cluster.
//!
//! ```text
//!   ready    all of the list answer, and no member outside it does
//!   over     all have taken the record: asked until they have
//! ```

use super::change::{Change, ChangeAnswer, Step, Why};
use super::{NodeVoter, NodeVoterOutput};
use crate::message::Fence;
use crate::time::Time;
use crate::view::{cluster, NodeName, Peer, Record, ViewId};
use crate::view_message::{Readiness, ViewMessage};

/// The lost members may have recorded higher fences than the survivors know. A voter gives fewer than 2^40 in a year.
const FENCES: u64 = 1 << 40;

impl Change {
    /// The nodes of the list that have not answered, or cannot store the view.
    pub(super) fn unready(&self) -> Vec<(NodeName, Why)> {
        let why = |node: &NodeName| match self.answers.get(node) {
            None => Some((node.clone(), Why::Down)),
            Some((_, Readiness { trouble, .. })) => {
                let trouble = trouble.clone()?;
                Some((node.clone(), Why::StateFile(trouble)))
            }
        };
        self.names.iter().filter_map(why).collect()
    }
}

impl NodeVoter {
    /// Makes a new cluster of `names`, which has this node. The answer is [`NodeVoterOutput::Answer`].
    pub fn reset(&mut self, now: Time, request: u64, mut names: Vec<NodeName>) {
        self.now = self.now.max(now);
        names.sort_unstable();
        let alone = || Record::first(vec![self.own()], self.setup.lease_ms);
        let base = self.state.record.clone().unwrap_or_else(alone);
        let answer = ChangeAnswer::Changing(base.clone());
        if self.change.as_ref().is_some_and(|change| change.is_reset) {
            return self.out.push(NodeVoterOutput::Answer(request, answer));
        }
        // A change cannot end without the lost members.
        self.finish(answer);
        self.drive(Some(request), names, base);
        if let Some(change) = &mut self.change {
            (change.is_reset, change.step) = (true, Step::Ready);
        }
        self.tick_change();
        self.settle();
    }

    /// Makes the record, when all of the list are ready. Members outside the list may answer later than they.
    pub(super) fn decide_reset(&mut self) -> bool {
        let (bits, lease_ms) = (self.draw(), self.setup.lease_ms);
        let Some(change) = &mut self.change else {
            return false;
        };
        if self.now < change.since + self.setup.rules.attempt {
            return false;
        }
        let others = change.answers.keys();
        let running: Vec<NodeName> = others
            .filter(|node| !change.names.contains(node))
            .cloned()
            .collect();
        if !running.is_empty() {
            self.finish(ChangeAnswer::Running(running));
            return true;
        }
        if !change.unready().is_empty() {
            return false;
        }
        let peer = |(node, (_, of)): (&NodeName, &(ViewId, Readiness))| Peer {
            node: node.clone(),
            id: of.id,
        };
        let highest = change.answers.values().map(|(_, of)| of.fence.0).max();
        let fence = highest.unwrap_or_default().saturating_add(FENCES);
        let (cluster, number) = (cluster(bits), 0);
        change.wanted = Some(Record {
            id: ViewId { cluster, number },
            lease_ms,
            members: change.answers.iter().map(peer).collect(),
            before: Vec::new(),
            fence: Fence(fence.min(crate::bounds::MAX_FENCE)),
        });
        change.begin(Step::Over, self.now);
        self.tick_change();
        true
    }

    /// Sends the record to those that have not taken it.
    pub(super) fn post_reset(&mut self) -> Option<Record> {
        let change = self.change.as_ref()?;
        let record = change.wanted.clone()?;
        let has_taken = |node: &NodeName| {
            let answer = change.answers.get(node);
            answer.is_some_and(|(view, _)| *view == record.id)
        };
        let nodes = change.names.iter().filter(|node| !has_taken(node));
        let nodes: Vec<NodeName> = nodes.cloned().collect();
        self.post_all(nodes, ViewMessage::Reset(record.clone()));
        Some(record)
    }

    /// A node of the list takes the new view, whatever it had. A late message of an earlier reset has a lower fence.
    pub(super) fn taken_by_reset(&mut self, record: Record) {
        let own = self.state.record.as_ref().map(|own| own.fence);
        if record.has(&self.own()) && record.fence > own.unwrap_or_default() {
            self.state.mark = self.state.mark.max(record.fence);
            self.replace(&record);
        }
    }
}
