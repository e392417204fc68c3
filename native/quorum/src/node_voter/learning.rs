//! What a voter of a new view learns from those of the view before, and what it reports to the next ones.

use crate::message::{Fence, Lifetime};
use crate::protocol_bug::{ProtocolBug, ProtocolBugs};
use crate::time::Time;
use crate::view::{NodeName, Peer, Record};
use crate::view_message::Report;
use std::collections::{BTreeMap, BTreeSet};

/// The reports so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Learning {
    reports: BTreeMap<NodeName, Report>,
    pub(super) again: Time,
}

/// The highest floor, and the agents that may count on votes. `None`: any.
pub(super) type Learned = (Fence, Option<BTreeSet<(NodeName, Lifetime)>>);

impl Learning {
    pub(super) fn new(now: Time) -> Learning {
        Learning {
            reports: BTreeMap::new(),
            again: now,
        }
    }

    pub(super) fn add(&mut self, from: NodeName, report: Report) {
        self.reports.insert(from, report);
    }

    /// The members whose reports are missing.
    pub(super) fn missing(&self, record: &Record) -> Vec<NodeName> {
        let peers = if record.before.is_empty() {
            &record.members
        } else {
            &record.before
        };
        let nodes = peers.iter().map(|peer| peer.node.clone());
        nodes
            .filter(|node| !self.reports.contains_key(node))
            .collect()
    }

    /// What the reports say, if they are enough: those of a quorum of the members before, or of one that votes. After a
    /// reset, those of all members.
    pub(super) fn learned(&self, record: &Record, bugs: ProtocolBugs) -> Option<Learned> {
        let peer = |node: &NodeName, report: &Report| Peer {
            node: node.clone(),
            id: report.id,
        };
        let by = |of: &Peer| {
            self.reports
                .get(&of.node)
                .filter(|report| report.id == of.id)
        };
        let votes =
            |(node, report): &(&NodeName, &Report)| report.votes && record.has(&peer(node, report));
        let voting = self.reports.iter().find(votes);
        if let Some((_, report)) = voting.filter(|_| !bugs.have(ProtocolBug::NoLearningFromNew)) {
            return Some(joined([report]));
        }
        if record.before.is_empty() {
            let all = match bugs.have(ProtocolBug::ResetMajority) {
                true => Record::is_quorum(&record.members, |of| by(of).is_some()),
                false => record.members.iter().all(|of| by(of).is_some()),
            };
            let agents = bugs
                .have(ProtocolBug::ResetNoQuarantine)
                .then(BTreeSet::new);
            return all.then_some((record.fence, agents));
        }
        // An identity whose node is in the list with another one is lost: its file may be another one by now.
        let counts = |of: &&Peer| {
            record
                .place(&of.node)
                .is_none_or(|place| record.peer(place).id == of.id)
        };
        let reports: Vec<&Report> = record.before.iter().filter(counts).filter_map(by).collect();
        let more = usize::from(bugs.have(ProtocolBug::OneSealTooFew));
        (reports.len() + more > record.before.len() / 2).then(|| joined(reports))
    }
}

/// What these reports say together.
pub(super) fn joined<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Learned {
    let mut learned: Learned = (Fence::default(), Some(BTreeSet::new()));
    for report in reports {
        learned.0 = learned.0.max(report.floor);
        learned.1 = match (learned.1, &report.agents) {
            (Some(mut agents), Some(more)) => {
                agents.extend(more.iter().cloned());
                Some(agents)
            }
            _ => None,
        };
    }
    learned
}
