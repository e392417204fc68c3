//! Drives a reset, and takes part in that of another node. See `reset.rs`.

use super::change::{ChangeAnswer, Why};
use super::reset::{Reset, FENCES};
use super::{NodeVoter, NodeVoterOutput, REPEAT};
use crate::message::Fence;
use crate::time::Time;
use crate::view::{cluster, Id, NodeName, Peer, Record, Role, ViewId};
use crate::view_message::{Readiness, ViewMessage};
use std::collections::{BTreeMap, BTreeSet};

impl NodeVoter {
    /// Makes a new cluster of `names`, which has this node. The answer is [`NodeVoterOutput::Answer`].
    pub fn reset(&mut self, now: Time, request: u64, mut names: Vec<NodeName>) {
        self.now = self.now.max(now);
        names.sort_unstable();
        let old = self.state.record.iter().flat_map(|record| &record.members);
        let others = old
            .map(|peer| peer.node.clone())
            .filter(|node| !names.contains(node));
        let others = others.collect();
        if let (Some(_), Some(record)) = (&self.reset, self.state.record.clone()) {
            let answer = ChangeAnswer::Changing(record);
            return self.out.push(NodeVoterOutput::Answer(request, answer));
        }
        self.reset = Some(Reset {
            request,
            names,
            others,
            since: self.now,
            again: self.now,
            nonce: self.draw(),
            counted: BTreeMap::new(),
            running: BTreeSet::new(),
            record: None,
            taken: BTreeSet::new(),
        });
        self.tick_reset();
        self.settle();
    }

    pub(super) fn tick_reset(&mut self) {
        let rules = self.setup.rules;
        let Some(reset) = self.reset.as_mut().filter(|reset| reset.again <= self.now) else {
            return;
        };
        reset.again = self.now + REPEAT;
        let is_late = reset.since + 2 * rules.voter_lease <= self.now;
        let reset = reset.clone();
        match &reset.record {
            _ if is_late => {
                let answer = match reset.record {
                    Some(record) => ChangeAnswer::Starting(record),
                    None => {
                        let down = reset
                            .names
                            .iter()
                            .filter(|node| !reset.counted.contains_key(node));
                        ChangeAnswer::NotReady(down.map(|node| (node.clone(), Why::Down)).collect())
                    }
                };
                self.finish_reset(answer);
            }
            Some(record) => {
                for node in reset
                    .names
                    .iter()
                    .filter(|node| !reset.taken.contains(node))
                {
                    self.post(
                        node.clone(),
                        Role::Voter,
                        ViewMessage::Reset(record.clone()),
                    );
                    let (nonce, agents) = (reset.nonce, false);
                    self.post(
                        node.clone(),
                        Role::Voter,
                        ViewMessage::Ready { nonce, agents },
                    );
                }
            }
            None => {
                for node in reset.names.iter().chain(&reset.others) {
                    let nonce = reset.nonce;
                    self.post(node.clone(), Role::Voter, ViewMessage::Census { nonce });
                }
                // Others may answer later than those of the list.
                if reset.since + rules.attempt <= self.now {
                    self.begin_reset();
                }
            }
        }
    }

    /// Another node wants to reset, and counts who runs.
    pub(super) fn counted(&mut self, from: &NodeName, nonce: u64) {
        let highest = self.voter.as_ref().map(|voter| voter.highest());
        let counted = ViewMessage::Counted {
            nonce,
            id: self.state.id,
            fence: self.state.mark.max(highest.unwrap_or_default()),
        };
        self.post(from.clone(), Role::Voter, counted);
    }

    pub(super) fn census(&mut self, from: &NodeName, nonce: u64, id: Id, fence: Fence) {
        let Some(reset) = self.reset.as_mut().filter(|reset| reset.nonce == nonce) else {
            return;
        };
        match reset.names.contains(from) {
            true => drop(reset.counted.insert(from.clone(), (id, fence))),
            false => drop(reset.running.insert(from.clone())),
        }
    }

    fn begin_reset(&mut self) {
        let (bits, lease_ms) = (self.draw(), self.setup.lease_ms);
        let Some(reset) = &mut self.reset else {
            return;
        };
        if !reset.running.is_empty() {
            let running = reset.running.iter().cloned().collect();
            return self.finish_reset(ChangeAnswer::Running(running));
        }
        if reset.counted.len() < reset.names.len() {
            return;
        }
        let peer = |(node, (id, _)): (&NodeName, &(Id, Fence))| Peer {
            node: node.clone(),
            id: *id,
        };
        let highest = reset.counted.values().map(|(_, fence)| fence.0).max();
        let fence = highest.unwrap_or_default().saturating_add(FENCES);
        reset.since = self.now;
        reset.again = self.now;
        reset.record = Some(Record {
            id: ViewId {
                cluster: cluster(bits),
                number: 0,
            },
            lease_ms,
            members: reset.counted.iter().map(peer).collect(),
            before: Vec::new(),
            fence: Fence(fence.min(crate::bounds::MAX_FENCE)),
        });
        self.tick_reset();
    }

    /// A node of the list takes the new view, whatever it had.
    pub(super) fn taken_by_reset(&mut self, record: Record) {
        let is_new = self.view().cluster != record.id.cluster;
        if is_new && record.has(&self.own()) && record.fence > Fence::default() {
            self.state.mark = self.state.mark.max(record.fence);
            self.change = None;
            self.replace(&record);
        }
    }

    pub(super) fn readiness_of_reset(
        &mut self,
        from: &NodeName,
        view: ViewId,
        readiness: &Readiness,
    ) {
        let Some(reset) = self
            .reset
            .as_mut()
            .filter(|reset| reset.nonce == readiness.nonce)
        else {
            return;
        };
        if reset.record.as_ref().is_none_or(|record| record.id != view) {
            return;
        }
        reset.taken.insert(from.clone());
        if reset.taken.len() == reset.names.len() {
            self.finish_reset(ChangeAnswer::Done(0));
        }
    }

    fn finish_reset(&mut self, answer: ChangeAnswer) {
        let request = self.reset.take().map(|reset| reset.request);
        self.out
            .extend(request.map(|request| NodeVoterOutput::Answer(request, answer)));
    }
}
