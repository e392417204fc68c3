//! Drives a change of the members: asks for what its step needs, and takes the next step when it has the answers. See
//! `change.rs`.

use super::change::{Change, ChangeAnswer, Step, Why};
use super::{NodeVoter, NodeVoterOutput, REPEAT};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use crate::view::{Ballot, Id, NodeName, Peer, Record, Role, ViewId};
use crate::view_message::{Readiness, ViewMessage};
use std::collections::{BTreeMap, BTreeSet};

impl NodeVoter {
    /// Changes the members to `names`. The answer is [`NodeVoterOutput::Answer`].
    pub fn change(&mut self, now: Time, request: u64, mut names: Vec<NodeName>) {
        self.now = self.now.max(now);
        names.sort_unstable();
        let Some(record) = self.state.record.clone() else {
            let unheard = self.unheard().into_iter().map(|node| (node, Why::Down));
            let answer = ChangeAnswer::NotReady(unheard.collect());
            return self.out.push(NodeVoterOutput::Answer(request, answer));
        };
        let is_open = |change: &Change| change.request.is_some();
        if self.change.as_ref().is_some_and(is_open) {
            let answer = ChangeAnswer::Changing(record);
            return self.out.push(NodeVoterOutput::Answer(request, answer));
        }
        self.drive(Some(request), names, record);
        self.tick_change();
        self.settle();
    }

    pub(super) fn drive(&mut self, request: Option<u64>, names: Vec<NodeName>, base: Record) {
        let step = match names.is_empty() {
            true => Step::Prepare {
                promises: BTreeMap::new(),
            },
            false => Step::Ready,
        };
        let proposer = match self.has(ProtocolBug::BallotReused) {
            true => 0,
            false => self.draw(),
        };
        self.change = Some(Change {
            request,
            is_reset: false,
            names,
            base,
            step,
            since: self.now,
            again: self.now,
            nonce: self.draw(),
            answers: BTreeMap::new(),
            ballot: Ballot { round: 1, proposer },
            wanted: None,
            proposed: None,
        });
    }

    /// When this node drives a change without a caller.
    pub(super) fn next_change(&self) -> Option<Time> {
        let lost = self.is_lost().then_some(self.change_after);
        let lease = self.setup.rules.voter_lease;
        let accepted = self.accepted_at.map(|at| at + 2 * lease);
        let accepted = accepted.filter(|_| !self.has(ProtocolBug::AcceptedForgotten));
        let next = lost.into_iter().chain(accepted).min();
        next.filter(|_| self.change.is_none() && self.shown <= self.stored)
    }

    pub(super) fn tick_change(&mut self) {
        if self.next_change().is_some_and(|at| at <= self.now) {
            if let Some(record) = self.state.record.clone() {
                let names = match self.is_lost() {
                    true => record
                        .members
                        .iter()
                        .map(|peer| peer.node.clone())
                        .collect(),
                    false => Vec::new(),
                };
                self.drive(None, names, record);
            }
        }
        let Some(change) = &mut self.change else {
            return;
        };
        if change.again > self.now {
            return;
        }
        change.again = self.now + REPEAT;
        let late = change.since + 2 * self.setup.rules.voter_lease <= self.now;
        if late {
            return self.give_up();
        }
        if !self.decide_ready() {
            self.ask_for_change();
        }
    }

    /// Sends the questions of the step to those that have not answered.
    fn ask_for_change(&mut self) {
        let Some(change) = self.change.clone() else {
            return;
        };
        let (nonce, ballot) = (change.nonce, change.ballot);
        let old = change.base.members.iter().map(|peer| peer.node.clone());
        match change.step {
            Step::Ready => {
                let agents = !change.is_reset;
                let question = ViewMessage::Ready { nonce, agents };
                let all: BTreeSet<NodeName> = old.chain(change.names).collect();
                self.post_all(all, question);
            }
            Step::Prepare { promises } => {
                let silent = old.filter(|node| !promises.contains_key(node));
                self.post_all(silent, ViewMessage::Prepare(ballot));
            }
            Step::Accept { accepted } => {
                let record = change.proposed.expect("it proposes a record");
                let silent = old.filter(|node| !accepted.contains(node));
                self.post_all(silent, ViewMessage::Accept(ballot, record));
            }
            Step::Over => {
                let agents = false;
                let question = ViewMessage::Ready { nonce, agents };
                let record = match change.is_reset {
                    true => self.post_reset(),
                    false => self.state.record.clone(),
                };
                let members = record.expect("it is decided").members;
                self.post_all(members.into_iter().map(|peer| peer.node), question);
            }
        }
    }

    /// A node asks whether this one can be a member, and may promise.
    pub(super) fn ready(&mut self, from: &NodeName, nonce: u64, agents: bool) {
        let (asked, since) = *self.asked.entry(from.clone()).or_insert((nonce, self.now));
        let since = if asked == nonce { since } else { self.now };
        self.asked.insert(from.clone(), (nonce, since));
        let mut silent = Vec::new();
        if let (true, Some(voter), Some(record)) = (agents, &mut self.voter, &self.state.record) {
            let nodes = voter.silent_since(since);
            silent = nodes
                .into_iter()
                .map(|node| self.clients.name(node, record))
                .collect();
        }
        silent.sort_unstable();
        silent.truncate(crate::members::MAX_MEMBERS);
        let record = self.state.record.as_ref().map(|record| record.fence);
        let highest = self.voter.as_ref().map(|voter| voter.highest()).max(record);
        let readiness = Readiness {
            nonce,
            id: self.state.id,
            lease_ms: self.setup.lease_ms,
            is_over: self.is_over(),
            fence: self.state.mark.max(highest.unwrap_or_default()),
            trouble: self.trouble.clone(),
            silent,
        };
        let message = ViewMessage::Readiness(readiness);
        match &self.trouble {
            // The disk may never write again, and this message needs nothing that is not stored.
            Some(_) => self.post_now(from.clone(), message),
            None => self.post(from.clone(), Role::Voter, message),
        }
    }

    pub(super) fn readiness(&mut self, from: &NodeName, theirs: ViewId, readiness: Readiness) {
        let ours = self.view();
        if !theirs.is_foreign(ours) && theirs != ours {
            self.other_number(from, theirs, Role::Voter);
        }
        let Some(change) = self
            .change
            .as_mut()
            .filter(|change| change.nonce == readiness.nonce)
        else {
            return;
        };
        change.answers.insert(from.clone(), (theirs, readiness));
        match change.step {
            Step::Ready => {
                self.decide_ready();
            }
            Step::Over => self.decide_over(),
            Step::Prepare { .. } | Step::Accept { .. } => {}
        }
    }

    /// The members of the new list, if they are ready; otherwise who is not. Each new member must be, and a quorum.
    fn ready_peers(&self, change: &Change) -> Result<Vec<Peer>, ChangeAnswer> {
        let base = &change.base;
        let (mut not_ready, mut stays, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        for node in &change.names {
            let known = base.place(node).map(|place| base.peer(place).id);
            let answer = change.answers.get(node);
            let id = answer.map(|(_, readiness)| readiness.id).or(known);
            peers.extend(id.map(|id| Peer {
                node: node.clone(),
                id,
            }));
            let why = match answer {
                None => Some(Why::Down),
                Some((view, _)) if view.is_foreign(base.id) => {
                    Some(Why::OtherCluster(view.cluster))
                }
                Some((_, readiness)) if readiness.lease_ms != base.lease_ms => {
                    Some(Why::Lease(readiness.lease_ms))
                }
                Some((_, readiness)) => readiness.trouble.clone().map(Why::StateFile),
            };
            let why = why.map(|why| (node.clone(), why));
            match known.is_some() && id == known {
                true => stays.extend(why),
                false => not_ready.extend(why),
            }
        }
        if not_ready.len() + stays.len() >= change.names.len().div_ceil(2) {
            not_ready.append(&mut stays);
        }
        let old = |peer: &Peer| {
            change
                .answers
                .get(&peer.node)
                .filter(|(_, of)| of.id == peer.id)
        };
        for peer in &base.members {
            let silent = old(peer).map(|(_, readiness)| readiness.silent.clone());
            if let Some(silent) = silent.filter(|silent| !silent.is_empty()) {
                not_ready.push((peer.node.clone(), Why::NoAnswerOfAgents(silent)));
            }
        }
        let is_over =
            |peer: &Peer| old(peer).is_some_and(|(view, of)| *view == base.id && of.is_over);
        if !Record::is_quorum(&base.members, is_over) {
            let down = base.members.iter().filter(|peer| old(peer).is_none());
            let down: Vec<_> = down.map(|peer| (peer.node.clone(), Why::Down)).collect();
            match Record::is_quorum(&base.members, |peer| old(peer).is_some()) {
                true if not_ready.is_empty() => return Err(ChangeAnswer::Changing(base.clone())),
                true => {}
                false => not_ready.extend(down),
            }
        }
        not_ready.sort_by(|one, other| one.0.cmp(&other.0));
        not_ready.dedup();
        match not_ready.is_empty() || self.has(ProtocolBug::NoReady) {
            true => Ok(peers),
            false => Err(ChangeAnswer::NotReady(not_ready)),
        }
    }

    /// Goes on when all are ready, and returns whether it did. A node that does not answer soon keeps its identity.
    fn decide_ready(&mut self) -> bool {
        let Some(change) = self
            .change
            .as_ref()
            .filter(|change| change.step == Step::Ready)
        else {
            return false;
        };
        let old = change.base.members.iter().map(|peer| &peer.node);
        let all = old
            .chain(&change.names)
            .all(|node| change.answers.contains_key(node));
        if change.is_reset {
            return self.decide_reset();
        }
        if !all && self.now < change.since + 2 * REPEAT {
            return false;
        }
        let Ok(mut peers) = self.ready_peers(change) else {
            return false;
        };
        peers.sort_unstable();
        let is_same = peers == change.base.members;
        let record = change.base.next(peers);
        let step = match is_same {
            true => Step::Over,
            false => Step::Prepare {
                promises: BTreeMap::new(),
            },
        };
        let now = self.now;
        if let Some(change) = &mut self.change {
            change.wanted = Some(record).filter(|_| !is_same);
            change.begin(step, now);
        }
        self.tick_change();
        true
    }

    fn change_with(&mut self, ballot: Ballot) -> Option<&mut Change> {
        self.change
            .as_mut()
            .filter(|change| change.ballot == ballot)
    }

    /// A member has promised the ballot.
    pub(super) fn promised(
        &mut self,
        from: &NodeName,
        ballot: Ballot,
        accepted: Option<(Ballot, Record)>,
    ) {
        let now = self.now;
        let Some(change) = self.change_with(ballot) else {
            return;
        };
        let Step::Prepare { promises } = &mut change.step else {
            return;
        };
        promises.insert(from.clone(), accepted);
        if !Record::is_quorum(&change.base.members, |peer| {
            promises.contains_key(&peer.node)
        }) {
            return;
        }
        let highest = promises
            .values()
            .flatten()
            .max_by_key(|(ballot, _)| *ballot);
        let highest = highest.map(|(_, record)| record.clone());
        let Some(record) = highest.or_else(|| change.wanted.clone()) else {
            // No member of the quorum has accepted a record: there is none to decide.
            self.change = None;
            self.accepted_at = None;
            return;
        };
        change.proposed = Some(record);
        change.begin(
            Step::Accept {
                accepted: BTreeSet::new(),
            },
            now,
        );
        self.tick_change();
    }

    /// A member has promised a higher ballot: another one after a random pause.
    pub(super) fn refused(&mut self, promised: Ballot) {
        let wait = self.random_wait() / 3;
        let Some(change) = self
            .change
            .as_mut()
            .filter(|change| change.ballot < promised)
        else {
            return;
        };
        if !matches!(change.step, Step::Prepare { .. } | Step::Accept { .. }) {
            return;
        }
        change.ballot.round = promised.round + 1;
        change.step = Step::Prepare {
            promises: BTreeMap::new(),
        };
        change.again = self.now + wait;
    }

    /// A member has accepted the record.
    pub(super) fn accepted(&mut self, from: &NodeName, ballot: Ballot) {
        let Some(change) = self.change_with(ballot) else {
            return;
        };
        let Step::Accept { accepted } = &mut change.step else {
            return;
        };
        accepted.insert(from.clone());
        if !Record::is_quorum(&change.base.members, |peer| accepted.contains(&peer.node)) {
            return;
        }
        let record = change.proposed.clone().expect("it proposes a record");
        self.replace(&record);
        self.post_all(record.nodes(), ViewMessage::Record(record));
    }

    /// The node has taken a record while it drives a change.
    pub(super) fn superseded_change(&mut self, record: &Record) {
        self.change_after = self.now + self.random_wait();
        let Some(change) = &mut self.change else {
            return;
        };
        if change.wanted.as_ref() == Some(record) {
            // As it wanted. Only a caller waits for the end.
            change.begin(Step::Over, self.now);
            if change.request.is_none() {
                self.change = None;
            }
            return;
        }
        self.finish(ChangeAnswer::Changing(record.clone()));
    }

    fn random_wait(&mut self) -> std::time::Duration {
        let random = self.draw();
        self.setup
            .rules
            .wait
            .mul_f64(random as f64 / u64::MAX as f64)
    }

    fn decide_over(&mut self) {
        let (Some(change), Some(record)) = (&self.change, &self.state.record) else {
            return;
        };
        let has_taken = |peer: &Peer| {
            let answer = change.answers.get(&peer.node).map(|(view, of)| (of, *view));
            answer.filter(|(of, view)| *view == record.id && of.id == peer.id)
        };
        let is_early = self.has(ProtocolBug::DoneBeforeKept);
        let is_over = |peer: &Peer| has_taken(peer).is_some_and(|(of, _)| of.is_over || is_early);
        let enough = match change.is_reset {
            // Its own node has taken the record, too.
            true => {
                change.wanted.as_ref() == Some(record)
                    && record.members.iter().all(|peer| has_taken(peer).is_some())
            }
            false => Record::is_quorum(&record.members, is_over),
        };
        if enough {
            self.finish(ChangeAnswer::Done(record.id.number));
        }
    }

    /// Too few answers within two leases.
    fn give_up(&mut self) {
        let Some(change) = &self.change else {
            return;
        };
        let answer = match (&change.step, &change.proposed) {
            (Step::Over, _) => match change.wanted.as_ref().or(self.state.record.as_ref()) {
                Some(record) => ChangeAnswer::Starting(record.clone()),
                None => return,
            },
            (Step::Ready, _) if change.is_reset => ChangeAnswer::NotReady(change.unready()),
            // It was proposed with this ballot, or with an earlier one.
            (_, Some(record)) => ChangeAnswer::Unknown(record.clone()),
            (Step::Prepare { promises }, None) => {
                let nodes = change.base.members.iter().map(|peer| &peer.node);
                let silent = nodes.filter(|node| !promises.contains_key(node));
                ChangeAnswer::NotReady(silent.map(|node| (node.clone(), Why::Down)).collect())
            }
            (Step::Ready | Step::Accept { .. }, None) => match self.ready_peers(change) {
                Ok(_) => ChangeAnswer::NotReady(Vec::new()),
                Err(answer) => answer,
            },
        };
        self.accepted_at = self.accepted_at.map(|_| self.now);
        self.finish(answer);
    }

    pub(super) fn finish(&mut self, answer: ChangeAnswer) {
        self.change_after = self.now + self.random_wait();
        let request = self.change.take().and_then(|change| change.request);
        self.out
            .extend(request.map(|request| NodeVoterOutput::Answer(request, answer)));
    }

    /// The identity of this node's file.
    #[must_use]
    pub fn id(&self) -> Id {
        self.state.id
    }
}
