//! Questions to all voters which names have votes (Q15), as canal_lock_quorum_live asks them. Their messages are not
//! simulated: each voter is read at a moment of its own within the time in which answers count.

use super::records::{Held, Question};
use super::world::{Event, World};
use crate::simulation::clock::Real;
use crate::votes;
use quorum::message::Name;
use quorum::view::ViewId;

impl World {
    pub fn ask(&mut self) {
        if self.healed {
            return;
        }
        let held = self.checks.held.iter().filter(|held| self.is_held(held));
        let held = held.map(|held| (held.node, held.life, held.token));
        let question = Question {
            held: held.collect(),
            ..Question::default()
        };
        let number = self.checks.questions.len();
        self.checks.questions.push(question);
        // The clock of the node that asks may be wrong, too.
        let within = self.rules().answers().mul_f64(1.01).as_nanos() as Real;
        for node in 0..self.plan.nodes {
            let after = self.questions_random.between(0, within);
            self.push(self.real + after, Event::Answer(number, node));
        }
        let pause = self.questions_random.between(1, self.plan.lease() / 4);
        self.push(self.real + pause, Event::Ask);
    }

    /// When a quorum of a view has answered, each of the locks is in an answer, or has ended since.
    pub fn answer(&mut self, number: usize, node: usize) {
        let Some(machine) = &self.nodes[node].voter.machine else {
            return;
        };
        let quarantined = self.options.quarantined_answers;
        let names = machine
            .voter()
            .and_then(|voter| votes::voted_names(voter, quarantined));
        let (Some(names), Some(record)) = (names, &machine.state().record) else {
            return;
        };
        let view = match self.options.mixed_views {
            true => ViewId::NONE,
            false => record.id,
        };
        let quorum = record.list().quorum();
        let question = &mut self.checks.questions[number];
        let (count, voted) = question.answers.entry(view).or_default();
        *count += 1;
        voted.extend(names);
        if *count != quorum {
            return;
        }
        let (voted, held) = (voted.clone(), question.held.clone());
        self.count("questions answered by a quorum");
        let is_missing = |lock: &&Held| {
            let is_old = held.contains(&(lock.node, lock.life, lock.token));
            is_old && !voted.contains(&name(lock.name)) && self.is_held(lock)
        };
        let missing = self.checks.held.iter().find(is_missing);
        let missing = missing.map(|lock| (lock.node, lock.token));
        if let Some((node, token)) = missing {
            self.broken("Q15", || {
                format!("n{node} t{} is held, and in no answer", token.0)
            });
        }
    }

    fn is_held(&self, lock: &Held) -> bool {
        let host = &self.nodes[lock.node].agent;
        let now = host.clock.at(self.real);
        let agent = host.machine.as_ref();
        agent.is_some_and(|agent| agent.as_agent().lease().holds(&lock.standing, || now))
    }
}

/// The name with this number.
pub fn name(number: usize) -> Name {
    Name::new(format!("{number}").as_bytes()).expect("a short name")
}
