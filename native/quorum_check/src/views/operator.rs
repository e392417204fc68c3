//! The operator: changes the members, one list after the other, and turns off the nodes that have left when the answer
//! says so. A list may have nodes that are off: they are turned on before, with their old files.

use super::plan::Setting;
use super::records::Reset;
use super::world::{Event, World};
use crate::simulation::clock::SECOND;
use quorum::node_voter::ChangeAnswer;

impl World {
    pub fn operate(&mut self, repeats: bool) {
        if self.healed && self.operator.reset.is_none() {
            return;
        }
        if repeats {
            let next = self.real + self.plan.pause.max(SECOND / 20);
            self.push(next, Event::Operator(true));
        }
        if let Some(Reset { list, open }) = self.operator.reset {
            return self.operate_reset(list, open);
        }
        if let Some((_, node, life, _, since)) = self.operator.open {
            let host = &self.nodes[node].voter;
            let is_dead = host.machine.is_none() || host.life != life;
            if !is_dead && self.real < since + 10 * self.plan.lease() {
                // Sometimes another operator changes at the same time.
                if !self.plan.is_calm() && self.plan.disaster.is_none() && self.random.chance(30) {
                    let list = self.random.pick(&self.plan.lists.clone());
                    self.change(list, false);
                }
                return;
            }
            if !is_dead && self.plan.is_calm() {
                let text = || "a change is not answered".to_owned();
                return self.broken("PR5", text);
            }
            self.operator.open = None;
        }
        let Some(list) = self.plan.lists.get(self.operator.next).copied() else {
            return;
        };
        self.operator.next += 1;
        self.change(list, true);
    }

    fn change(&mut self, list: u32, counts: bool) {
        let list = list & !self.operator.dead;
        if list == 0 {
            return;
        }
        for node in 0..self.plan.nodes {
            if list & 1 << node != 0 && self.nodes[node].off {
                self.nodes[node].off = false;
                self.start_voter(node);
                self.start_agent(node);
            }
        }
        let members: Vec<usize> = match self.latest() {
            Some(record) => record
                .members
                .iter()
                .map(|peer| self.index(&peer.node))
                .collect(),
            None => return,
        };
        let node = self.random.pick(&members);
        let request = self.new_life();
        let names = self.list(list);
        self.count("changes asked");
        self.operator.asked.push((self.real, list));
        self.log(|| format!("operator at n{node}: change {request} to {names:?}"));
        if counts {
            let life = self.nodes[node].voter.life;
            self.operator.open = Some((request, node, life, list, self.real));
        }
        self.call_voter(node, |voter, now| voter.change(now, request, names));
    }

    pub fn answered(&mut self, node: usize, request: u64, answer: ChangeAnswer) {
        self.log(|| format!("operator at n{node}: change {request} is answered {answer:?}"));
        self.count(match answer {
            ChangeAnswer::Done(_) => "changes done",
            ChangeAnswer::NotReady(_) => "changes not ready",
            ChangeAnswer::Changing(_) => "changes: another one",
            ChangeAnswer::Unknown(_) => "changes unknown",
            ChangeAnswer::Starting(_) => "changes starting",
            ChangeAnswer::Running(_) => "resets refused",
        });
        if self.reset_answered(request, &answer) {
            return;
        }
        let Some((_, _, _, list, since)) = self.operator.open.filter(|open| open.0 == request)
        else {
            return;
        };
        self.operator.open = None;
        if let ChangeAnswer::Done(_) = answer {
            let took = (self.real - since) / 1_000_000;
            let most = self.counts.entry("longest change (ms)").or_default();
            *most = (*most).max(took as u64);
            self.operator.list = list;
            if self.options.setting == Setting::Hurried {
                self.push(self.real, Event::Operator(false));
            }
            if !self.healed {
                self.turn_off();
            }
        }
        let is_failure = !matches!(answer, ChangeAnswer::Done(_) | ChangeAnswer::Changing(_));
        if self.plan.is_calm() && is_failure {
            self.broken("PR5", || {
                format!("a change without a fault is answered {answer:?}")
            });
        }
    }

    /// Some of the nodes that are in no list are turned off.
    fn turn_off(&mut self) {
        let list = self.operator.list;
        for node in 0..self.plan.nodes {
            let has_record = self.nodes[node]
                .file
                .as_ref()
                .is_some_and(|file| file.record.is_some());
            if list & 1 << node == 0 && has_record && self.random.chance(500) {
                self.count("nodes turned off");
                self.turn_off_one(node);
            }
        }
    }
}
