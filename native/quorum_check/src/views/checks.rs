//! One holder, growing fences, one record of each number, and progress when all faults are over.

use super::records::Held;
use super::world::{Activity, Event, World};
use crate::simulation::clock::SECOND;
use quorum::agent::Refusal;
use quorum::lease::Standing;
use quorum::message::{Fence, Token};
use quorum::node_voter::Phase;
use quorum::view::Record;
use std::collections::BTreeMap;
use std::sync::Arc;

impl World {
    pub fn asked(&mut self, request: u64, node: usize, name: usize) {
        let real = self.real;
        self.checks.asked.insert(request, (node, name, real));
    }

    /// Returns whether a client waits for it.
    pub fn granted(
        &mut self,
        node: usize,
        request: u64,
        token: Token,
        fence: Fence,
        standing: Arc<Standing>,
    ) -> bool {
        let Some((_, name, since)) = self.checks.asked.remove(&request) else {
            return false;
        };
        let wait = self.real - since;
        let last = self.checks.last.get(&name).copied().unwrap_or_default();
        if fence <= last {
            self.broken("Q5", || {
                format!(
                    "n{node} t{} has fence {}, after {}",
                    token.0, fence.0, last.0
                )
            });
        }
        self.checks.last.insert(name, fence.max(last));
        let life = self.nodes[node].agent.life;
        self.checks.held.push(Held {
            node,
            life,
            token,
            name,
            fence,
            standing,
        });
        self.count("locks granted");
        let most = self.counts.entry("longest wait (ms)").or_default();
        *most = (*most).max((wait / 1_000_000) as u64);
        matches!(self.nodes[node].activity, Activity::Waiting(own, _) if own == request)
    }

    pub fn refused(&mut self, node: usize, why: Refusal) {
        if self.checks.probes.is_some() {
            self.broken("PR1", || {
                format!("n{node} does not get a free name: {why:?}")
            });
        }
        self.count(match why {
            Refusal::NoQuorum => "refused: no quorum",
            Refusal::Timeout => "refused: timeout",
        });
    }

    pub fn unlocked(&mut self, node: usize, token: Token) {
        let life = self.nodes[node].agent.life;
        self.checks
            .held
            .retain(|held| (held.node, held.life, held.token) != (node, life, token));
    }

    pub fn lost(&mut self, node: usize, token: Token) {
        self.count("locks lost");
        let life = self.nodes[node].agent.life;
        let was_held = self
            .checks
            .held
            .iter()
            .any(|held| (held.node, held.life, held.token) == (node, life, token));
        if self.plan.is_calm() && was_held {
            self.broken("PR5", || {
                format!("n{node} t{} was lost without a fault", token.0)
            });
        }
        self.unlocked(node, token);
    }

    pub fn agent_gone(&mut self, node: usize) {
        self.checks.held.retain(|held| held.node != node);
        self.checks.asked.retain(|_, (of, ..)| *of != node);
    }

    /// Q1.
    pub fn check_holders(&mut self) {
        let mut holders: BTreeMap<usize, usize> = BTreeMap::new();
        for (place, held) in self.checks.held.iter().enumerate() {
            let host = &self.nodes[held.node].agent;
            let Some(agent) = &host.machine else {
                continue;
            };
            let now = host.clock.at(self.real);
            if !agent.as_agent().lease().holds(&held.standing, || now) {
                continue;
            }
            if let Some(other) = holders.insert(held.name, place) {
                let other = &self.checks.held[other];
                let text = format!(
                    "n{} t{} (fence {}) and n{} t{} (fence {}) hold name {}",
                    other.node,
                    other.token.0,
                    other.fence.0,
                    held.node,
                    held.token.0,
                    held.fence.0,
                    held.name
                );
                return self.broken("Q1", || text);
            }
        }
    }

    /// Two decisions about one number.
    pub fn check_record(&mut self, node: usize, record: &Record) {
        let is_first = !self.checks.records.contains_key(&record.id);
        if !self.checks.clusters.contains(&record.id.cluster) {
            self.checks.clusters.push(record.id.cluster);
        }
        if is_first && (record.id.number > 0 || self.operator.reset.is_some()) {
            self.disturb(node, record);
        }
        let known = self
            .checks
            .records
            .entry(record.id)
            .or_insert_with(|| record.clone());
        if known != record {
            let text = format!("{known:?} and {record:?}");
            self.broken("Record", || text);
        }
    }

    /// The number and the members of the latest view.
    pub fn latest(&self) -> Option<&Record> {
        let records = self
            .nodes
            .iter()
            .filter_map(|node| node.file.as_ref()?.record.as_ref());
        let clusters = &self.checks.clusters;
        let place = |cluster| clusters.iter().position(|known| *known == cluster);
        records.max_by_key(|record| (place(record.id.cluster), record.id.number))
    }

    pub fn begin_check(&mut self) {
        let first = self.real + 5 * self.plan.lease() + 10 * SECOND;
        self.push(first, Event::Check);
    }

    /// All members of the latest view vote, and each node gets each name.
    pub fn check_progress(&mut self) {
        if self.operator.reset.is_some() {
            self.checks.delays += 1;
            return match self.checks.delays < 5 {
                true => self.begin_check(),
                false => self.broken("PR5", || "a reset is not done".into()),
            };
        }
        let Some(record) = self.latest().cloned() else {
            return self.broken("PR5", || "no view".into());
        };
        for node in 0..self.plan.nodes {
            let name = &self.names[node];
            let voter = self.nodes[node].voter.machine.as_ref();
            let Some(status) = voter
                .map(|voter| voter.status())
                .filter(|_| !self.nodes[node].off)
            else {
                continue;
            };
            let is_listed = record.place(name).is_some();
            let expected = if is_listed {
                Phase::Voting
            } else {
                Phase::Client
            };
            let is_current = status.record.as_ref() == Some(&record);
            // A node that left hears of later views only when it talks to somebody.
            if status.phase != expected || is_listed && !is_current {
                let text = format!("n{node} has {status:?} and not {record:?}");
                return self.broken("PR5", || text);
            }
        }
        let is_busy = |node: &super::world::Node| node.activity != Activity::Idle && !node.off;
        if self.nodes.iter().any(is_busy) {
            return self.push(self.real + SECOND / 10, Event::Check);
        }
        let all = (0..self.plan.nodes)
            .filter(|node| !self.nodes[*node].off)
            .collect();
        match self.checks.probes.get_or_insert(all).pop() {
            Some(node) => {
                self.plan.hold = SECOND / 1000;
                self.lock(node, 0, 2 * SECOND);
                self.push(self.real + SECOND / 10, Event::Check);
            }
            None => self.checks.passed = true,
        }
    }
}
