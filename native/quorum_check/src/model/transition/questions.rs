//! Questions to all voters which names have votes (Q15), as canal_lock_quorum_live asks them.

use super::actions::spend;
use super::Transition;
use crate::model::setting::Setting;
use crate::model::state::{Phase, Question};
use crate::votes;
use quorum::members::Member;

impl Transition<'_> {
    pub(super) fn ask(&mut self) {
        spend(&mut self.state.left.questions, 1);
        let clients = 0..self.state.clients.len();
        let held = clients.filter(|client| self.state.holds(self.setting, *client));
        let held = held.map(|client| (client, self.state.clients[client].phase));
        self.state.question = Some(Question {
            held: held.collect(),
            ..Question::default()
        });
    }

    /// When a quorum has answered, each of the locks is in an answer, or has ended since.
    pub(super) fn answer(&mut self, me: Member) {
        let voter = self.state.voters[me.place()].machine.as_ref();
        let voted = voter.and_then(|voter| votes::voted_names(voter, true));
        let mut question = self.state.question.take().expect("it was asked");
        question.answered = question.answered.with(me);
        question.voted.extend(voted.expect("it answers"));
        self.note(|| format!("{me:?} answers {:?}", question.voted));
        if question.answered.len() < self.setting.list().quorum() {
            self.state.question = Some(question);
            return;
        }
        for (client, phase) in question.held {
            let Phase::Holds { step, .. } = phase else {
                unreachable!("it held a lock");
            };
            let (_, names) = self.setting.request(client, step);
            let mut names = names.iter().map(|name| Setting::name_of(*name));
            let is_missing = names.any(|name| !question.voted.contains(&name));
            let is_same = self.state.clients[client].phase == phase;
            if is_missing && is_same && self.state.holds(self.setting, client) {
                let text = format!("the lock of client {client} is held, and in no answer");
                self.violated("Q15", text);
            }
        }
    }

    /// A unit of time has passed.
    pub(super) fn pass_question(&mut self) {
        let rules = self.setting.rules.answers();
        let within = self.setting.answers.unwrap_or(rules).as_nanos();
        if let Some(question) = &mut self.state.question {
            question.age += 1;
            if u128::from(question.age) > within {
                self.state.question = None;
            }
        }
    }
}
