//! Q15: a lock that is not held is not held again, and a lock that is held is in the answers of a quorum that is asked
//! which names have votes.

use super::label::Label;
use super::records::{Id, LiveQuestion, Lock};
use super::{places, Checker, View};
use quorum::members::{Member, MemberSet};
use quorum::message::Name;
use std::collections::BTreeSet;

impl Checker {
    /// Before a call of an agent, at the time of the call.
    pub fn before_agent(&mut self, node: usize, view: View<'_>) {
        self.lapsed.clear();
        let Some((agent, now)) = view.agent(node) else {
            return;
        };
        for lock in self.locks.iter().filter(|lock| lock.id.0 == node) {
            if !agent.lease().holds(&lock.standing, || now) {
                self.lapsed.push((lock.id.2, lock.standing.clone()));
            }
        }
    }

    pub(super) fn check_lapsed(&mut self, node: usize, view: View<'_>) {
        let Some((agent, now)) = view.agent(node) else {
            return;
        };
        let lapsed = std::mem::take(&mut self.lapsed);
        let (lease, mut lapsed) = (agent.lease(), lapsed.iter());
        if let Some((token, _)) = lapsed.find(|(_, standing)| lease.holds(standing, || now)) {
            let text = || format!("n{node} t{} was not held, and is held again", token.0);
            self.violated(Label::Q15, text);
        }
    }

    /// Returns the number of the question.
    pub fn live_question(&mut self, view: View<'_>) -> usize {
        let held = self.locks.iter().filter(|lock| is_held(lock, view));
        let held = held.map(|lock| (lock.id, lock.names)).collect();
        let (answered, names) = (MemberSet::EMPTY, BTreeSet::new());
        self.live_questions.push(LiveQuestion {
            held,
            answered,
            names,
        });
        self.live_questions.len() - 1
    }

    /// When a quorum has answered: each of the locks is in an answer, or has ended since.
    pub fn live_answer(
        &mut self,
        question: usize,
        voter: usize,
        names: BTreeSet<Name>,
        view: View<'_>,
    ) {
        let question = &mut self.live_questions[question];
        let before = question.answered;
        question.answered = before.with(Member::at(voter).expect("a node with a voter"));
        question.names.extend(names);
        let (answered, names) = (question.answered, question.names.clone());
        let held = question.held.clone();
        if !self.is_quorum(answered) || self.is_quorum(before) {
            return;
        }
        self.summary.count("questions answered by a quorum");
        let missing = |of: u32| places(of).any(|place| !names.contains(&self.names[place]));
        let still = |id: Id| {
            let mut locks = self.locks.iter();
            locks.any(|lock| lock.id == id && is_held(lock, view))
        };
        let found = held.iter().find(|(id, of)| missing(*of) && still(*id));
        if let Some(((node, _, token), _)) = found {
            let text = format!(
                "n{node} t{} is held, and in no answer of {answered:?}",
                token.0
            );
            self.violated(Label::Q15, || text);
        }
    }
}

fn is_held(lock: &Lock, view: View<'_>) -> bool {
    let agent = view.agent(lock.id.0);
    agent.is_some_and(|(agent, now)| agent.lease().holds(&lock.standing, || now))
}
