//! Questions to all voters which names have votes (Q15), as canal_lock_quorum_live asks them. Their messages are not
//! simulated: each voter is read at a moment of its own within the time in which answers count.

use crate::simulation::clock::Real;
use crate::simulation::event::{Event, Role};
use crate::simulation::world::World;
use crate::votes;

impl World {
    pub fn live_question(&mut self) {
        if self.healed {
            return;
        }
        let question = self.check(|checker, view| checker.live_question(view));
        let rules = self.plan.rules;
        // The clock of the node that asks may be wrong, too.
        let within = rules.answers().mul_f64(1.01).as_nanos() as Real;
        for voter in 0..self.plan.members {
            let after = self.live_random.between(0, within);
            self.push(self.real + after, Event::LiveAnswer { question, voter });
        }
        let most = rules.voter_lease.as_nanos() as Real / 4;
        let pause = self.live_random.between(1, most);
        self.push(self.real + pause, Event::LiveQuestion);
    }

    pub fn live_answer(&mut self, question: usize, voter: usize) {
        let node = &self.nodes[voter];
        let machine = node.voter.as_ref();
        let machine = machine.filter(|_| !node.host(Role::Voter).paused);
        let quarantined = self.options.quarantined_answers;
        let names = machine.and_then(|machine| votes::voted_names(machine, quarantined));
        if let Some(names) = names {
            self.check(|checker, view| checker.live_answer(question, voter, names, view));
        }
    }
}
