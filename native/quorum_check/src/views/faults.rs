//! Crashes, lost files, links that are cut. All faults end when the history heals.

use super::plan::Setting;
use super::world::{Activity, Event, World};
use crate::simulation::clock::{Real, MILLISECOND, SECOND};
use quorum::view::Role;
use quorum::view::{Id, Peer, Record};

impl World {
    pub fn schedule_fault(&mut self, after: Real) {
        if let Some(gap) = self.plan.fault_gap {
            let gap = self.random.between(1, 2 * gap);
            self.push(self.real.max(after) + gap, Event::Fault);
        }
    }

    pub fn inject(&mut self) {
        if self.healed {
            return;
        }
        let node = self.random.below(self.plan.nodes as i64) as usize;
        let lease = self.plan.lease();
        let span = match self.random.chance(300) {
            true => self.random.between(lease * 7 / 10, lease * 2),
            false => self.random.spread(MILLISECOND, lease),
        };
        match self.random.below(12) {
            0..3 => {
                self.count("fault: a voter crashes");
                self.crash(node, Role::Voter, span.min(SECOND));
            }
            3 => {
                self.count("fault: an agent crashes");
                self.crash(node, Role::Agent, span);
            }
            4..6 => {
                self.count("fault: a node crashes");
                self.crash(node, Role::Voter, span);
                self.crash(node, Role::Agent, span);
            }
            6..8 if self.plan.loses_files && self.may_lose(node) => {
                self.count("fault: a file is lost");
                self.crash(node, Role::Voter, span.min(SECOND));
                self.nodes[node].file = None;
                self.nodes[node].lost_at = Some(self.real);
            }
            8 => {
                self.count("fault: a node is isolated");
                let others = (0..self.plan.nodes).filter(|other| *other != node);
                let links = others.flat_map(|other| [(node, other), (other, node)]);
                self.cut(links.collect(), span);
            }
            9 => {
                self.count("fault: a partition");
                self.part(span);
            }
            _ => {
                self.count("fault: a link is cut");
                let other = (node + 1 + self.random.below(self.plan.nodes as i64 - 1) as usize)
                    % self.plan.nodes;
                let links = match self.random.chance(500) {
                    true => vec![(node, other)],
                    false => vec![(node, other), (other, node)],
                };
                self.cut(links, span);
            }
        }
        self.schedule_fault(0);
    }

    /// A lock was granted that is unlocked in `hold`. Sometimes a change begins when the lock gets another holder, or
    /// the votes end at different times.
    pub fn while_held(&mut self, node: usize, hold: Real) {
        if self.random.chance(300) {
            let early = self.random.spread(MILLISECOND / 10, 30 * MILLISECOND);
            self.push(self.real + hold - early, Event::Operator(false));
        }
        if self.random.chance(200) {
            let others = self.random.below(self.plan.nodes as i64 - 1) as usize;
            let other = (node + 1 + others) % self.plan.nodes;
            let links = vec![(node, other), (other, node)];
            let late = self.random.spread(MILLISECOND, hold.max(2 * MILLISECOND));
            let span = self.plan.lease() * 3 / 2;
            self.push(self.real + late, Event::Cut(links, span));
        }
    }

    /// A record is decided: some nodes do not hear of it for some leases, or crash now.
    pub fn disturb(&mut self, decider: usize, record: &Record) {
        if self.options.setting == Setting::Hurried {
            self.slow();
        }
        if self.plan.is_calm() || self.healed {
            return;
        }
        let lease = self.plan.lease();
        if self.options.setting == Setting::Contended && self.random.chance(700) {
            return self.hide(decider, record);
        }
        // A reset is taken by all of the list, or by none that votes.
        let parts = match self.operator.reset.is_some() {
            true => 700,
            false => 300,
        };
        if self.random.chance(parts) {
            let span = self.random.between(lease, 4 * lease);
            self.part(span);
        }
        for node in 0..self.plan.nodes {
            if self.random.chance(100) {
                let delay = self.random.spread(MILLISECOND, lease / 2);
                let role = self.random.pick(&[Role::Voter, Role::Voter, Role::Agent]);
                self.push(self.real + delay, Event::Crash(node, role));
            }
        }
    }

    /// Cuts a quorum of the list before off for about a lease, or as many as there are beside the node that decided.
    fn hide(&mut self, decider: usize, record: &Record) {
        let lease = self.plan.lease();
        let before = record.before.iter().map(|peer| self.index(&peer.node));
        let mut before: Vec<usize> = before.filter(|node| *node != decider).collect();
        self.random.shuffle(&mut before);
        before.truncate(record.before.len() / 2 + 1);
        // Later, one of them may change the side.
        let mut hidden = Vec::new();
        for node in 0..self.plan.nodes {
            let is_hidden = before.contains(&node) || node != decider && self.random.chance(300);
            hidden.push(is_hidden);
        }
        let span = self.random.between(lease / 5, lease * 5 / 2);
        if !before.is_empty() && self.random.chance(400) {
            let change = self.random.between(lease / 5, lease * 5 / 4);
            let found = self.random.pick(&before);
            self.cut(self.between(&hidden), change);
            hidden[found] = false;
            self.push(self.real + change, Event::Cut(self.between(&hidden), span));
        } else {
            self.cut(self.between(&hidden), span);
        }
    }

    /// The links between the nodes on one side and those on the other.
    fn between(&self, side: &[bool]) -> Vec<(usize, usize)> {
        let all = 0..self.plan.nodes;
        let links = all.clone().flat_map(|a| all.clone().map(move |b| (a, b)));
        links.filter(|(a, b)| side[*a] != side[*b]).collect()
    }

    /// Some links are slow for a moment, which is short for the votes.
    fn slow(&mut self) {
        for link in 0..self.plan.nodes * self.plan.nodes {
            let (from, to) = (link / self.plan.nodes, link % self.plan.nodes);
            if from != to && self.random.chance(300) {
                let until = self.real + self.random.between(MILLISECOND, 300 * MILLISECOND);
                self.network.stall(from, to, until);
            }
        }
    }

    /// Some nodes are cut off from the others.
    fn part(&mut self, span: Real) {
        let side: Vec<bool> = (0..self.plan.nodes)
            .map(|_| self.random.chance(500))
            .collect();
        self.cut(self.between(&side), span);
    }

    /// At most a minority of each list has lost its files, until a change has replaced them.
    fn may_lose(&self, node: usize) -> bool {
        let Some(file) = &self.nodes[node].file else {
            return false;
        };
        let is_lost = |peer: &Peer| {
            let lost = self.index(&peer.node) == node || !self.has_file(peer);
            lost && peer.id != Id(0)
        };
        let bears = |list: &[Peer]| {
            list.is_empty()
                || list.iter().filter(|peer| is_lost(peer)).count() <= (list.len() - 1) / 2
        };
        let records = self.nodes.iter().filter_map(|node| node.file.as_ref());
        let records = records.flat_map(|file| {
            let accepted = file.accepted.as_ref().map(|(_, record)| record);
            file.record.iter().chain(accepted)
        });
        let latest = self.latest().map_or(0, |record| record.id.number);
        let recent = |record: &&Record| record.id.number + 1 >= latest;
        // The nodes of a list that may be decided have told their identities.
        let since = self.real - 10 * self.plan.lease();
        let asked = self.operator.asked.iter().filter(|(at, _)| *at > since);
        let may = |(at, list): &(Real, u32)| {
            // One that did not answer has the identity that it lost before.
            let before = at - 5 * self.plan.lease();
            let has_lost = |of: usize| self.nodes[of].lost_at.is_some_and(|lost| lost > before);
            let listed = (0..self.plan.nodes).filter(|of| list & 1 << of != 0);
            let lost = listed.filter(|of| *of == node || has_lost(*of)).count();
            list & 1 << node == 0 || lost <= (list.count_ones() as usize - 1) / 2
        };
        // Nodes of the first list that have all lost their files form a new cluster.
        let is_seed = |of: &usize| self.plan.first & 1 << *of != 0;
        let seeds = (0..self.plan.nodes).filter(is_seed);
        let remains = |of: usize| {
            of != node
                && self.nodes[of]
                    .file
                    .as_ref()
                    .is_some_and(|file| file.record.is_some())
        };
        file.record.is_some()
            && seeds.into_iter().any(remains)
            && asked.into_iter().all(may)
            && records
                .filter(recent)
                .all(|record| bears(&record.members) && bears(&record.before))
    }

    fn has_file(&self, peer: &Peer) -> bool {
        let file = self.nodes[self.index(&peer.node)].file.as_ref();
        file.is_some_and(|file| file.id == peer.id)
    }

    pub fn crash(&mut self, node: usize, role: Role, span: Real) {
        let is_up = match role {
            Role::Voter => self.nodes[node].voter.machine.take().is_some(),
            Role::Agent => self.nodes[node].agent.machine.take().is_some(),
        };
        if !is_up {
            return;
        }
        self.log(|| format!("n{node} {role:?} crashes"));
        if role == Role::Agent {
            self.agent_gone(node);
            self.nodes[node].activity = Activity::Idle;
            self.nodes[node].version += 1;
        }
        self.push(self.real + span, Event::Start(node, role));
    }

    pub fn cut(&mut self, links: Vec<(usize, usize)>, span: Real) {
        for (from, to) in links.clone() {
            self.network.cut(from, to);
            if self.random.chance(500) {
                self.notice(from, to, false);
            }
        }
        self.push(self.real + span, Event::Mend(links));
    }

    pub fn mend(&mut self, links: Vec<(usize, usize)>) {
        for (from, to) in links {
            self.network.restore(from, to);
            self.notice(from, to, true);
        }
    }

    /// A node notices a little later that a connection is up or down.
    fn notice(&mut self, node: usize, about: usize, up: bool) {
        let delay = self.random.spread(MILLISECOND, SECOND);
        let event = Event::Connection { node, about, up };
        self.push(self.real + delay, event);
    }

    /// From here on, no fault excuses the machines. Nodes that the operator has turned off stay off.
    pub fn heal(&mut self) {
        self.log(|| "all faults end".into());
        self.healed = true;
        self.network.heal();
        // Another change may have added them again, or may still be decided.
        let latest = self.latest().map_or(0, |record| {
            let nodes = record.members.iter().map(|peer| self.index(&peer.node));
            nodes.fold(0, |list, node| list | 1 << node)
        });
        let asked = self.operator.asked.iter().map(|(_, list)| *list);
        let listed = asked.fold(latest, |all, list| all | list);
        let nodes = self.nodes.iter_mut().enumerate();
        let dead = self.operator.dead;
        nodes.for_each(|(node, seen)| seen.off &= listed & !dead & 1 << node == 0);
        let returned = (0..self.plan.nodes).filter(|node| dead & 1 << node != 0);
        returned.for_each(|node| self.turn_off_one(node));
        for node in 0..self.plan.nodes {
            self.push(self.real + SECOND, Event::Start(node, Role::Voter));
            self.push(self.real + SECOND, Event::Start(node, Role::Agent));
            for about in 0..self.plan.nodes {
                self.push(
                    self.real + 2 * SECOND,
                    Event::Connection {
                        node,
                        about,
                        up: true,
                    },
                );
            }
        }
        self.begin_check();
    }
}
