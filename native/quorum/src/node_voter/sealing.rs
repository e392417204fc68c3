//! What a member reports when it takes the next record, and how the voter of that record learns. See `learning.rs`.

use super::learning::joined;
use super::{NodeVoter, Stage, REPEAT};
use crate::message::{Fence, Lifetime};
use crate::protocol_bug::ProtocolBug;
use crate::view::{NodeName, Record, Role};
use crate::view_message::{Report, ViewMessage};
use std::collections::BTreeSet;

impl NodeVoter {
    /// What this node knows as a member of its view, before it takes the next record. `None`: it is no member.
    pub(super) fn own_report(&self) -> Option<Report> {
        let record = self.state.record.as_ref().filter(|_| self.is_member())?;
        let voter = self.voter.as_ref();
        let agents = voter.and_then(|voter| voter.reported()).map(|agents| {
            let named = agents
                .into_iter()
                .map(|(node, agent)| (self.clients.name(node, record), agent));
            let mut named: Vec<(NodeName, Lifetime)> = named.collect();
            named.sort_unstable();
            named
        });
        Some(Report {
            id: self.state.id,
            votes: voter.is_some_and(|voter| voter.is_voting()),
            floor: voter.map_or(self.state.mark, |voter| voter.highest()),
            agents: agents.filter(|agents| agents.len() <= crate::bounds::MAX_AGENTS),
        })
    }

    /// A member of the view does not vote yet, and asks what this node knows.
    pub(super) fn asked_to_learn(&mut self, from: &NodeName, record: &Record) {
        if self.view() != record.id {
            if self.view().number > record.id.number {
                self.other_number(from, record.id, Role::Voter);
            }
            return;
        }
        if let Some(report) = self.report_for(record) {
            self.post(from.clone(), Role::Voter, ViewMessage::Report(report));
        }
    }

    fn report_for(&self, record: &Record) -> Option<Report> {
        let voting = self.own_report().filter(|report| report.votes);
        let mut own = self.own();
        if self.has(ProtocolBug::LostReports) {
            let old = record.before.iter().find(|peer| peer.node == own.node);
            own = old.cloned().unwrap_or(own);
        }
        let is_first = record.before.is_empty() && record.has(&own);
        // After a restart the report is lost: any agent may count on a vote.
        let unknown = || Report {
            id: own.id,
            votes: false,
            floor: self.state.mark,
            agents: None,
        };
        let is_sealed = is_first || record.before.contains(&own);
        voting.or_else(|| is_sealed.then(|| self.report.clone().unwrap_or_else(unknown)))
    }

    pub(super) fn reported(&mut self, from: &NodeName, report: Report) {
        if let Stage::Member(Some(learning)) = &mut self.stage {
            learning.add(from.clone(), report);
            self.learn();
        }
    }

    /// Asks all members of both lists, until it has learned.
    pub(super) fn tick_learning(&mut self) {
        let Stage::Member(Some(learning)) = &mut self.stage else {
            return;
        };
        if learning.again > self.now {
            return;
        }
        learning.again = self.now + REPEAT;
        self.ask_to_learn();
    }

    fn ask_to_learn(&mut self) {
        let Some(record) = self.state.record.clone() else {
            return;
        };
        let mut nodes = record.nodes();
        nodes.remove(&self.setup.node);
        self.post_all(nodes, ViewMessage::Learn(record));
    }

    /// Looks whether it has learned. Its own report counts as that of others.
    pub(super) fn learn(&mut self) {
        let Some(record) = self.state.record.clone() else {
            return;
        };
        let own = self.report_for(&record);
        let bugs = self.setup.bugs;
        let is_stayer =
            bugs.have(ProtocolBug::StayersLearnNothing) && record.before.contains(&self.own());
        let Stage::Member(Some(learning)) = &mut self.stage else {
            return;
        };
        if let Some(report) = own {
            learning.add(self.setup.node.clone(), report);
        }
        let learned = match (is_stayer, &self.report) {
            (true, Some(report)) => Some(joined([report])),
            _ => learning.learned(&record, bugs),
        };
        let Some((mut floor, mut agents)) = learned else {
            return;
        };
        if bugs.have(ProtocolBug::NoFloor) {
            floor = Fence::default();
        }
        if bugs.have(ProtocolBug::NoReports) {
            agents = Some(BTreeSet::new());
        }
        // A voter that restarted before it voted has forgotten the assertions of agents that have settled.
        let believes = bugs.have(ProtocolBug::RestartedBelieves);
        let agents = agents.filter(|_| !self.has_restarted || believes);
        let numbered = agents.map(|agents| {
            let number = |(node, agent): (NodeName, Lifetime)| {
                Some((self.clients.node(&node, &record)?, agent))
            };
            agents.into_iter().filter_map(number).collect()
        });
        self.stage = Stage::Member(None);
        let now = self.now;
        if let Some(voter) = &mut self.voter {
            voter.learned(now, floor, numbered);
        }
    }
}
