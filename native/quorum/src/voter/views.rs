//! What a change of the members needs of a voter: what it may have forgotten for others, and when it is over.

use super::leases::AgentLease;
use super::{Stage, Voter};
use crate::bounds::LONG_STEP;
use crate::members::Node;
use crate::message::{Fence, Frame, Lifetime};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use std::collections::BTreeSet;

impl Voter {
    /// A voter of a new view has learned: no fence of the view before is above `floor`, and these agents may count on
    /// votes of it (`None`: any). It votes when they have settled here, or a lease from now.
    pub fn learned(&mut self, now: Time, floor: Fence, agents: Option<BTreeSet<(Node, Lifetime)>>) {
        self.advance(now);
        self.names.raise_all(floor);
        let until = self.now + self.setup.rules.voter_lease;
        if let Some(quarantine) = &mut self.quarantine {
            quarantine.learned(agents, until);
        }
        self.tick(now);
    }

    /// It is stored that it votes in its view.
    pub fn begin_voting(&mut self, now: Time, mark: Fence) {
        self.advance(now);
        if self.stage == Stage::Ready {
            self.stage = Stage::Voting;
        }
        self.stored(now, mark);
    }

    /// Whether its view may be replaced: it votes, and no lock relies on votes that it has forgotten.
    #[must_use]
    pub fn is_over(&self, now: Time) -> bool {
        self.stage == Stage::Voting
            && self.quarantine.as_ref().is_none_or(|quarantine| {
                quarantine
                    .until
                    .is_some_and(|until| until <= now.max(self.now))
                    || quarantine.is_kept(self.members())
            })
    }

    /// The nodes whose agents must settle before it votes, or say `kept` before it is over.
    #[must_use]
    pub fn awaited(&self) -> BTreeSet<Node> {
        let members = self.members();
        match (&self.quarantine, self.is_voting()) {
            (Some(quarantine), false) => quarantine.unsettled(members),
            (Some(quarantine), true) => quarantine.unkept(members),
            (None, _) => BTreeSet::new(),
        }
    }

    /// The agents that have votes here, also provisional ones. `None`: any may count on a vote of an earlier lifetime.
    #[must_use]
    pub fn reported(&self) -> Option<BTreeSet<(Node, Lifetime)>> {
        let bugs = self.setup.bugs;
        let without = |lease: &AgentLease| match bugs.have(ProtocolBug::ProvisionalUnreported) {
            true => lease.provisional_count(),
            false => 0,
        };
        let leases = self.leases.iter().map(|(_, lease)| lease);
        let with_votes = leases.filter(|lease| lease.count() > without(lease));
        let agents = with_votes.map(|lease| (lease.node, lease.agent));
        let knows = self.is_voting() || bugs.have(ProtocolBug::QuarantinedReports);
        knows.then(|| agents.collect())
    }

    /// Whether a step that drops this voter may take longer than a millisecond: it has many votes.
    pub(crate) fn is_large(&self) -> bool {
        let votes = self.leases.iter().map(|(_, lease)| lease.count());
        votes.sum::<usize>() + self.queued() > LONG_STEP
    }

    /// All agents that have a lease.
    pub fn known_agents(&self) -> impl Iterator<Item = Node> + '_ {
        self.leases.iter().map(|(_, lease)| lease.node)
    }

    /// The nodes whose agents have votes here and have sent no batch since `since`. They are asked for one.
    pub fn silent_since(&mut self, since: Time) -> BTreeSet<Node> {
        let silent = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.count() > 0 && lease.heard < since);
        let silent: BTreeSet<Node> = silent.map(|(_, lease)| lease.node).collect();
        for node in &silent {
            self.send(*node, Frame::Notice(self.notice(true)));
        }
        silent
    }

    /// An agent is dead: nothing waits for it.
    pub(super) fn dead(&mut self, node: Node, agent: Lifetime) {
        if let Some(quarantine) = &mut self.quarantine {
            if quarantine.is_of_new_view() {
                quarantine.settled(node, agent, true);
            }
        }
    }
}
