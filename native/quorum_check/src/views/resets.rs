//! A disaster: a majority of the latest list dies, and no later list has them. The operator resets to the survivors.
//! Some dead members return with their old files: fewer than a quorum of each old list.

use super::records::Reset;
use super::world::{Event, World};
use quorum::node_voter::{ChangeAnswer, NodeVoter, State};
use quorum::view::{Record, Role};

impl World {
    /// What the nodes know, stored or not.
    fn states(&self) -> impl Iterator<Item = &State> {
        let files = self.nodes.iter().filter_map(|node| node.file.as_ref());
        let voters = self.nodes.iter().map(|node| &node.voter.machine);
        files.chain(voters.flatten().map(NodeVoter::state))
    }

    fn bits(&self, peers: &[quorum::view::Peer]) -> u32 {
        let nodes = peers.iter().map(|peer| self.index(&peer.node));
        nodes.fold(0, |bits, node| bits | 1 << node)
    }

    pub fn disaster(&mut self) {
        let Some(latest) = self.latest().cloned().filter(|_| !self.healed) else {
            return;
        };
        // A change that is open could be decided by members that return.
        if self.operator.open.is_some() || self.states().any(|state| state.accepted.is_some()) {
            let again = self.real + self.plan.lease() / 10;
            return self.push(again, Event::Disaster);
        }
        let all = (1 << self.plan.nodes) - 1;
        let off = (0..self.plan.nodes).filter(|node| self.nodes[*node].off);
        let off = off.fold(0, |bits, node| bits | 1 << node);
        let mut members: Vec<usize> = latest
            .members
            .iter()
            .map(|peer| self.index(&peer.node))
            .collect();
        self.random.shuffle(&mut members);
        let least = members.len().div_ceil(2);
        let count = self.random.between(least as i64, members.len() as i64) as usize;
        let dead = members[..count]
            .iter()
            .fold(off, |bits, node| bits | 1 << node);
        let dead = dead | self.operator.dead;
        if dead == all {
            return;
        }
        let records = self.states().filter_map(|state| state.record.clone());
        let records: Vec<Record> = records.collect();
        let mut list = self.bits(&latest.members);
        for record in &records {
            let own = self.nodes.iter().enumerate();
            let own = own.filter(|(_, node)| {
                node.file.as_ref().and_then(|file| file.record.as_ref()) == Some(record)
            });
            let own = own.fold(0, |bits, (node, _)| bits | 1 << node);
            list |= self.bits(&record.members) & own;
        }
        for node in 0..self.plan.nodes {
            list |= u32::from(self.random.chance(400)) << node;
        }
        list &= !dead;
        // The fences are above those of the clusters that one of the list knows.
        let knows = |node: &usize| {
            let file = self.nodes[*node].file.as_ref();
            let record = file.and_then(|file| file.record.as_ref());
            record.is_some_and(|record| record.id.cluster == latest.id.cluster)
        };
        let knowing = (0..self.plan.nodes).filter(knows);
        let knowing = knowing.fold(0_u32, |bits, node| bits | 1 << node) & !dead;
        if knowing == 0 {
            return;
        }
        if list & knowing == 0 {
            list |= knowing;
        }
        let lists = records
            .iter()
            .map(|record| self.bits(&record.members))
            .collect();
        self.count("disasters");
        self.log(|| format!("nodes {dead:#b} are dead, reset to {list:#b}"));
        self.operator.dead = dead;
        self.operator.open = None;
        self.operator.reset = Some(Reset { list, open: None });
        self.operator.old = lists;
        self.operator.survivors = list;
        for node in 0..self.plan.nodes {
            if dead & 1 << node != 0 {
                self.turn_off_one(node);
                match self.random.chance(300) {
                    true => self.nodes[node].file = None,
                    false => {
                        let at = self.real + self.random.between(0, 5 * self.plan.lease());
                        self.push(at, Event::Return(node));
                    }
                }
            }
        }
    }

    pub fn turn_off_one(&mut self, node: usize) {
        self.nodes[node].off = true;
        self.crash(node, Role::Voter, 0);
        self.crash(node, Role::Agent, 0);
    }

    /// A dead member runs again, if fewer than a quorum of each old list do, outside the new one.
    pub fn come_back(&mut self, node: usize) {
        let has_record = self.nodes[node]
            .file
            .as_ref()
            .is_some_and(|file| file.record.is_some());
        if self.healed || !has_record {
            return;
        }
        let outside = (0..self.plan.nodes).filter(|of| !self.nodes[*of].off || *of == node);
        let outside = outside.fold(0_u32, |bits, of| bits | 1 << of) & !self.operator.survivors;
        let is_few = |list: &u32| (list & outside).count_ones() <= (list.count_ones() - 1) / 2;
        if self.operator.old.iter().all(is_few) {
            self.count("dead members return");
            self.log(|| format!("n{node} returns with its old file"));
            self.nodes[node].off = false;
            self.start_voter(node);
            self.start_agent(node);
        }
    }

    /// Resets at any node of the list, until it is done.
    pub fn operate_reset(&mut self, list: u32, open: Option<(u64, usize, u64)>) {
        let is_dead = |(_, node, life): &(u64, usize, u64)| {
            let host = &self.nodes[*node].voter;
            host.machine.is_none() || host.life != *life
        };
        if open.is_some_and(|open| !is_dead(&open)) {
            return;
        }
        let up = (0..self.plan.nodes)
            .filter(|node| list & 1 << node != 0 && self.nodes[*node].voter.machine.is_some());
        let up: Vec<usize> = up.collect();
        if up.is_empty() {
            return;
        }
        let node = self.random.pick(&up);
        let (request, life) = (self.new_life(), self.nodes[node].voter.life);
        let open = Some((request, node, life));
        self.operator.reset = Some(Reset { list, open });
        self.count("resets asked");
        let names = self.list(list);
        self.log(|| format!("operator at n{node}: reset {request} to {names:?}"));
        self.call_voter(node, |voter, now| voter.reset(now, request, names));
    }

    /// Whether it is the answer to the reset.
    pub fn reset_answered(&mut self, request: u64, answer: &ChangeAnswer) -> bool {
        let Some(reset) = self
            .operator
            .reset
            .filter(|reset| reset.open.is_some_and(|open| open.0 == request))
        else {
            return false;
        };
        self.operator.reset = Some(Reset {
            open: None,
            ..reset
        });
        match answer {
            ChangeAnswer::Done(_) => {
                self.count("resets done");
                self.operator.reset = None;
                self.operator.list = reset.list;
                self.operator.asked.clear();
                if self.random.chance(400) {
                    let next = self.real + self.random.between(0, 4 * self.plan.lease());
                    self.push(next, Event::Disaster);
                }
            }
            ChangeAnswer::Running(nodes) => {
                for node in nodes {
                    let node = self.index(node);
                    self.turn_off_one(node);
                    self.operator.dead |= 1 << node;
                }
            }
            _ => {}
        }
        true
    }
}
