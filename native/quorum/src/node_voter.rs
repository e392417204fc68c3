//! The voter of a node through all views: takes the records of new views, and runs a [`Voter`] in each that has this
//! node.
//!
//! ```text
//!   no view --> outside                     view k decided                view k + 1 decided
//!      |           |         the view has this node      |                        |
//!      '-----------'-------------------------------> quarantine --> voting --> sealed: reports to the voters of k + 1
//!    start.rs: the first view                        learning.rs
//! ```
//!
//! | file | content |
//! |---|---|
//! | `output.rs`, `state.rs` | setup, outputs and status; the content of the state file |
//! | `start.rs`, `starting.rs` | the first start of a cluster, and nodes without a file |
//! | `learning.rs`, `sealing.rs` | reports of sealed voters, and what a voter of a new view learns from them |
//! | `paxos.rs` | what this node has promised and accepted for the next view |
//! | `change.rs`, `driving.rs` | a change that this node drives, from *ready* to *over* |
//! | `reset.rs` | a new cluster after too many members are lost |
//! | `status.rs` | what it waits for |
//! | `clients.rs` | the numbers of nodes |
//!
//! # Invariants
//! - **M1** A voter that has taken a record (*sealed*) executes nothing of lower numbers: no batch, no promise. What it
//!   had voted is reported or, after a restart, unknown: any agent may count on it.
//! - **M2** A voter votes in a view when it has learned, from a quorum of the sealed voters of the view before or from
//!   one that votes, and each agent that they reported has settled here, or a lease has passed.
//! - **M3** It promises only when it has voted in its view and is *over*: see `voter/quarantine.rs`.
//! - **M4** What a message shows is stored before it is sent: the record, that the voter has voted, promises.
//! - **M5** A node whose file is lost has another identity: it is neither voter nor acceptor, and reports nothing,
//!   until a view lists that identity.

mod change;
mod clients;
mod driving;
mod learning;
mod output;
mod paxos;
mod reset;
mod sealing;
mod start;
mod starting;
mod state;
mod status;

pub use change::{ChangeAnswer, Why};
pub use output::{Awaits, NodeVoterOutput, NodeVoterSetup, Phase, ViewStatus};
pub use state::{State, StateError, ANY_HEAD};

use crate::envelope::{Content, Envelope, Post};
use crate::message::{scatter, Batch, Fence, Frame, Lifetime};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use crate::view::Role;
use crate::view::{Id, NodeName, Peer, Record, ViewId};
use crate::view_message::{Report, ViewMessage};
use crate::voter::{Voter, VoterOutput, VoterSetup};
use change::Change;
use clients::Clients;
use learning::Learning;
use start::Start;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How often unanswered questions about views are repeated. A change needs few of them.
const REPEAT: Duration = Duration::from_millis(100);

/// The most first batches of sessions that are kept for a voter that has not begun yet. Agents repeat the others.
const MAX_EARLY: usize = 1024;

/// What waits for a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum After {
    /// The voter hears what is stored.
    Written { mark: Fence, guests: bool },
    /// A message shows it.
    Post(Post),
    /// The life or the record is stored: see [`NodeVoter::begin`].
    Begin,
    /// The voter votes.
    Vote(Fence),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Without a view.
    Starting(Start),
    /// The record does not have this identity.
    Outside,
    /// The record has this node, and is not stored. No fence above this one was given.
    Storing(Fence),
    /// There is a voter. It learns, or has learned.
    Member(Option<Learning>),
}

/// The voter of a node. See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeVoter {
    setup: NodeVoterSetup,
    now: Time,
    drawn: u64,
    state: State,
    /// The number of the last write that was requested, of the last one that is complete, and of the last that changed
    /// what messages about views show.
    requested: u64,
    stored: u64,
    shown: u64,
    after: VecDeque<(u64, After)>,
    stage: Stage,
    voter: Option<Voter>,
    /// Whether the node had this view when it started.
    has_restarted: bool,
    clients: Clients,
    /// What it knew of the view before this one when it took the record.
    report: Option<Report>,
    /// When it accepted a record that is not decided, as far as it knows.
    accepted_at: Option<Time>,
    change: Option<Change>,
    /// When a lost member tries again.
    change_after: Time,
    /// Since when agents must have answered, by the question.
    asked: BTreeMap<NodeName, (u64, Time)>,
    trouble: Option<String>,
    foreign: BTreeSet<NodeName>,
    /// The first batches of agents for a voter that has not begun yet.
    early: BTreeMap<NodeName, (ViewId, Batch)>,
    out: Vec<NodeVoterOutput>,
}

impl NodeVoter {
    /// Starts with what is stored, if anything is. The node begins a new life, which it stores first.
    #[must_use]
    pub fn new(setup: NodeVoterSetup, stored: Option<State>, now: Time) -> NodeVoter {
        let unknown = State::new(setup.node.clone(), Id(0));
        let is_new = stored.is_none();
        let mut voter = NodeVoter {
            now,
            drawn: 0,
            state: stored.unwrap_or(unknown),
            requested: 0,
            stored: 0,
            shown: 0,
            after: VecDeque::new(),
            stage: Stage::Outside,
            voter: None,
            has_restarted: true,
            clients: Clients::default(),
            report: None,
            accepted_at: None,
            change: None,
            change_after: now,
            asked: BTreeMap::new(),
            trouble: None,
            foreign: BTreeSet::new(),
            early: BTreeMap::new(),
            out: Vec::new(),
            setup,
        };
        if is_new && voter.setup.durable {
            voter.state.id = Id(voter.draw());
        }
        voter.begin_life();
        voter
    }

    fn begin_life(&mut self) {
        self.state.life = self.state.life.saturating_add(1);
        self.accepted_at = self.state.accepted.is_some().then_some(self.now);
        if self.state.record.is_none() {
            self.stage = Stage::Starting(Start::new(self.draw(), self.now));
            self.store_shown();
            self.later(After::Begin);
        } else {
            self.enter();
        }
        self.settle();
    }

    /// The record is new, or this life is.
    fn enter(&mut self) {
        self.stage = match self.is_member() {
            true => Stage::Storing(self.state.mark),
            false => Stage::Outside,
        };
        if let Stage::Storing(mark) = self.stage {
            self.raise_mark(mark);
        }
        self.store_shown();
        self.later(After::Begin);
        self.tell_own_agent();
    }

    fn tell_own_agent(&mut self) {
        if let Some(record) = self.state.record.clone() {
            let own = self.setup.node.clone();
            self.post(own, Role::Agent, ViewMessage::Record(record));
        }
    }

    /// A message arrived.
    pub fn receive(&mut self, now: Time, from: &NodeName, envelope: Envelope) {
        self.now = self.now.max(now);
        let (theirs, ours) = (envelope.view, self.view());
        let is_foreign = theirs.is_foreign(ours);
        if is_foreign && self.foreign.insert(from.clone()) {
            let other = NodeVoterOutput::OtherCluster(from.clone(), theirs.cluster);
            self.out.push(other);
        }
        match envelope.content {
            Content::View(message) => self.view_message(from, theirs, message, is_foreign),
            Content::Frame(_) if is_foreign && *from == self.setup.node => {
                // Its agent has followed another cluster that lists this node, too.
                self.tell_own_agent();
            }
            Content::Frame(_) if is_foreign => {}
            Content::Frame(frame) if theirs == ours && self.voter.is_some() => {
                self.frame(from, frame)
            }
            Content::Frame(frame) => {
                if let Frame::Batch(batch) = &frame {
                    // The first batch of a session is empty.
                    let is_early = theirs.number >= ours.number && batch.ops.is_empty();
                    if is_early && self.early.len() < MAX_EARLY {
                        self.early.insert(from.clone(), (theirs, batch.clone()));
                    }
                }
                let role = match frame {
                    Frame::Batch(_) => Role::Agent,
                    Frame::Ack(_) | Frame::Notice(_) | Frame::Life(_) => Role::Voter,
                };
                self.other_number(from, theirs, role);
            }
        }
        self.settle();
    }

    fn frame(&mut self, from: &NodeName, frame: Frame) {
        let Some(record) = &self.state.record else {
            return;
        };
        if let (Some(voter), Some(from)) = (&mut self.voter, self.clients.node(from, record)) {
            voter.receive(self.now, from, frame);
        }
    }

    /// A message of a view with another number has come. Its sender gets the record if the number is lower. It is asked
    /// for its record if the number is higher.
    fn other_number(&mut self, from: &NodeName, theirs: ViewId, role: Role) {
        match &self.state.record {
            Some(record) if theirs == ViewId::NONE || theirs.number < record.id.number => {
                let record = record.clone();
                self.post(from.clone(), role, ViewMessage::Record(record));
            }
            _ if theirs != ViewId::NONE => {
                self.post(from.clone(), Role::Voter, ViewMessage::Ask(Role::Voter));
            }
            _ => {}
        }
    }

    fn view_message(
        &mut self,
        from: &NodeName,
        theirs: ViewId,
        message: ViewMessage,
        is_foreign: bool,
    ) {
        match message {
            ViewMessage::Reset(record) => self.taken_by_reset(record),
            ViewMessage::Ask(role) => {
                if let Some(record) = self.state.record.clone() {
                    self.post(from.clone(), role, ViewMessage::Record(record));
                }
            }
            ViewMessage::Ready { nonce, agents } => self.ready(from, nonce, agents),
            ViewMessage::Readiness(readiness) => self.readiness(from, theirs, readiness),
            _ if is_foreign => {}
            ViewMessage::Record(record) => {
                self.take(&record);
                if self.view() == record.id || self.view().number > record.id.number {
                    let id = self.state.id;
                    self.post(from.clone(), Role::Agent, ViewMessage::Known { id });
                }
            }
            ViewMessage::Learn(record) => {
                self.take(&record);
                self.asked_to_learn(from, &record);
            }
            ViewMessage::Fresh {
                list,
                id,
                lease_ms,
                start,
                answers,
            } => self.fresh(from, (list, id, lease_ms), start, answers),
            _ if theirs != self.view() => self.other_number(from, theirs, Role::Voter),
            ViewMessage::Report(report) => self.reported(from, report),
            ViewMessage::Prepare(ballot) => self.prepare(from, ballot),
            ViewMessage::Promise { ballot, accepted } => self.promised(from, ballot, accepted),
            ViewMessage::Refused(ballot) => self.refused(ballot),
            ViewMessage::Accept(ballot, record) => self.accept(from, ballot, record),
            ViewMessage::Accepted(ballot) => self.accepted(from, ballot),
            // For agents.
            ViewMessage::Known { .. } => {}
        }
    }

    /// A record is decided. A higher number replaces the view of this node.
    fn take(&mut self, record: &Record) {
        let is_new = match &self.state.record {
            Some(own) => own.id.cluster == record.id.cluster && own.id.number < record.id.number,
            None => true,
        };
        if is_new {
            self.replace(record);
        }
    }

    fn replace(&mut self, record: &Record) {
        let before = self.view();
        let follows = before.cluster == record.id.cluster && before.number + 1 == record.id.number;
        let report = self.own_report().filter(|_| follows);
        self.report = report.map(|report| Report {
            votes: false,
            ..report
        });
        let informed = self.known_agents();
        self.voter = None;
        self.has_restarted = false;
        self.clients = Clients::default();
        self.asked.clear();
        self.after.clear();
        if let (true, Some(place)) = (
            self.has(ProtocolBug::LostIsOld),
            record.place(&self.setup.node),
        ) {
            self.state.id = record.peer(place).id;
        }
        self.state.record = Some(record.clone());
        self.state.has_voted = self.is_first(record);
        (self.state.promised, self.state.accepted) = Default::default();
        self.accepted_at = None;
        // In its first view, no client has a vote of this identity.
        self.state.guests = !self.state.has_voted;
        self.state.life = self.state.life.saturating_add(1);
        self.out.push(NodeVoterOutput::Took(record.clone()));
        self.enter();
        for node in informed {
            self.post(node, Role::Agent, ViewMessage::Record(record.clone()));
        }
        self.superseded_change(record);
        if self.is_lost() {
            self.out.push(NodeVoterOutput::Lost);
        }
    }

    /// Whether this identity is a member since the first start: no other life of it has voted, and there is nothing to
    /// learn.
    fn is_first(&self, record: &Record) -> bool {
        record.id.number == 0 && record.fence == Fence::default() && record.has(&self.own())
    }

    fn known_agents(&self) -> BTreeSet<NodeName> {
        let (Some(voter), Some(record)) = (&self.voter, &self.state.record) else {
            return BTreeSet::new();
        };
        let agents = voter.known_agents();
        agents
            .map(|node| self.clients.name(node, record))
            .filter(|node| *node != self.setup.node)
            .collect()
    }

    /// A write is complete: that with this number, and all before.
    pub fn stored(&mut self, now: Time, number: u64) {
        self.now = self.now.max(now);
        self.trouble = None;
        self.stored = self.stored.max(number);
        while self.after.front().is_some_and(|(at, _)| *at <= number) {
            let after = self.after.pop_front().map(|(_, after)| after);
            after.into_iter().for_each(|after| self.written(after));
        }
        self.settle();
    }

    fn written(&mut self, after: After) {
        match (after, &mut self.voter) {
            (After::Written { mark, guests }, Some(voter)) => {
                voter.stored(self.now, mark);
                if guests {
                    voter.guests_stored(self.now);
                }
            }
            (After::Vote(mark), Some(voter)) => voter.begin_voting(self.now, mark),
            (After::Post(post), _) => self.out.push(NodeVoterOutput::Post(post)),
            (After::Begin, _) => self.begin(),
            (After::Written { .. } | After::Vote(_), None) => {}
        }
    }

    /// Continues when this write is complete.
    fn later(&mut self, after: After) {
        self.after.push_back((self.requested, after));
    }

    /// The last write failed. It is tried again.
    pub fn not_stored(&mut self, why: &str) {
        let most = why.len().min(crate::bounds::MAX_TROUBLE);
        let end = (0..=most).rev().find(|end| why.is_char_boundary(*end));
        self.trouble = Some(why[..end.unwrap_or_default()].to_owned());
    }

    /// The record is stored: the voter of the view begins, or a voter after a restart. Or the identity is stored, and
    /// others may hear it.
    fn begin(&mut self) {
        let (mark, record) = match (&mut self.stage, &self.state.record) {
            (Stage::Storing(mark), Some(record)) => (*mark, record.clone()),
            (Stage::Starting(start), _) => return start.again = self.now,
            _ => return,
        };
        let me = record.place(&self.setup.node).expect("it is a member");
        let begins = !self.state.has_voted;
        let lifetime = Lifetime::new(self.state.life, self.draw() as u32);
        let setup = VoterSetup {
            members: record.list(),
            me,
            rules: self.setup.rules,
            bugs: self.setup.bugs,
            lifetime,
            quarantine: self.setup.rules.voter_lease,
            guests: self.state.guests && self.setup.clients,
            begins,
            mark,
            durable: self.setup.durable,
        };
        let mut voter = Voter::new(setup, self.now);
        voter.stored(self.now, self.state.mark);
        self.voter = Some(voter);
        for (node, (view, batch)) in std::mem::take(&mut self.early) {
            if view == record.id {
                self.frame(&node, Frame::Batch(batch));
            }
        }
        let learning = begins.then(|| Learning::new(self.now));
        self.stage = Stage::Member(learning);
        self.learn();
    }

    /// A node is disconnected.
    pub fn down(&mut self, now: Time, node: &NodeName) {
        self.now = self.now.max(now);
        let known = self
            .state
            .record
            .as_ref()
            .and_then(|record| self.clients.known(node, record));
        if let (Some(voter), Some(node)) = (&mut self.voter, known) {
            voter.down(self.now, node);
        }
        self.settle();
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        if let Some(voter) = &mut self.voter {
            voter.tick(self.now);
        }
        self.tick_start();
        self.tick_learning();
        self.tick_change();
        self.settle();
    }

    /// Whether a step that receives messages of these views may take longer than a millisecond: it may give up the
    /// voter of its view, which has many votes.
    #[must_use]
    pub fn has_long_step(&self, mut views: impl Iterator<Item = ViewId>) -> bool {
        let (own, change) = (self.view(), self.setup.rules.voter_lease * 3);
        let mut asked = self.asked.values();
        let changes =
            self.state.accepted.is_some() || asked.any(|(_, since)| self.now < *since + change);
        let is_large = self.voter.as_ref().is_some_and(Voter::is_large);
        is_large && (changes || views.any(|view| view != own))
    }

    /// When to call [`NodeVoter::tick`] if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let stage = match &self.stage {
            Stage::Starting(start) => Some(start.again),
            Stage::Member(learning) => learning.as_ref().map(|learning| learning.again),
            Stage::Storing(_) | Stage::Outside => None,
        };
        [
            stage,
            self.voter.as_ref().and_then(Voter::deadline),
            self.change.as_ref().map(|change| change.again),
            self.next_change(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes the outputs since the last call, oldest first.
    pub fn outputs(&mut self) -> Vec<NodeVoterOutput> {
        std::mem::take(&mut self.out)
    }

    /// The voter of the current view, if this node has one.
    #[must_use]
    pub fn voter(&self) -> Option<&Voter> {
        self.voter.as_ref()
    }

    /// What should be stored.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The view of this node.
    #[must_use]
    pub fn view(&self) -> ViewId {
        self.state
            .record
            .as_ref()
            .map_or(ViewId::NONE, |record| record.id)
    }

    /// The name of a node that the voter knows by this number.
    #[must_use]
    pub fn name_of(&self, node: crate::members::Node) -> Option<NodeName> {
        let record = self.state.record.as_ref()?;
        Some(self.clients.name(node, record))
    }

    /// Carries out what the voter requests, until it requests nothing more.
    fn settle(&mut self) {
        while let Some(voter) = &mut self.voter {
            let outputs = voter.outputs();
            if outputs.is_empty() {
                break;
            }
            for output in outputs {
                self.of_voter(output);
            }
        }
        if let Some(voter) = &self.voter {
            self.clients.retain(|client| voter.knows(client));
        }
        if !self.setup.durable && self.stored < self.requested {
            let number = self.requested;
            self.stored(self.now, number);
        }
    }

    fn of_voter(&mut self, output: VoterOutput) {
        match output {
            VoterOutput::Send(send) => {
                let record = self.state.record.as_ref().expect("there is a voter");
                let to = self.clients.name(send.to, record);
                let role = match send.frame {
                    Frame::Batch(_) | Frame::Life(_) => Role::Voter,
                    Frame::Ack(_) | Frame::Notice(_) => Role::Agent,
                };
                let envelope = Envelope {
                    view: record.id,
                    content: Content::Frame(send.frame),
                };
                self.out
                    .push(NodeVoterOutput::Post(Post { to, role, envelope }));
            }
            VoterOutput::Store(mark) => {
                self.state.mark = self.state.mark.max(mark);
                self.store();
            }
            VoterOutput::StoreGuests(guests) => {
                self.state.guests = guests;
                self.store();
            }
            VoterOutput::Ready => {
                let floor = self.voter.as_ref().map(Voter::highest).unwrap_or_default();
                self.state.has_voted = true;
                self.raise_mark(floor);
                self.store_shown();
                self.later(After::Vote(self.state.mark));
            }
            VoterOutput::Superseded { seen } => {
                // The file was not the last one of this node: the identity is lost.
                let record = self.state.record.take();
                self.voter = None;
                let id = Id(self.draw());
                self.state = State {
                    life: seen.life(),
                    record,
                    ..State::new(self.setup.node.clone(), id)
                };
                self.report = None;
                self.after.clear();
                self.out.push(NodeVoterOutput::Lost);
                self.begin_life();
            }
        }
    }

    /// The next write covers a block of fences above `floor`: no grant waits for another one.
    fn raise_mark(&mut self, floor: Fence) {
        let mark = floor.0.saturating_add(self.setup.rules.fence_block);
        let mark = Fence(mark.min(crate::bounds::MAX_FENCE));
        self.state.mark = self.state.mark.max(mark);
    }

    /// Requests a write of the state.
    fn store(&mut self) {
        self.requested += 1;
        let (mark, guests) = (self.state.mark, self.state.guests);
        self.later(After::Written { mark, guests });
        if self.setup.durable {
            let state = Box::new(self.state.clone());
            self.out.push(NodeVoterOutput::Store(self.requested, state));
        }
    }

    /// As [`NodeVoter::store`]: no message about views leaves before the write is complete.
    fn store_shown(&mut self) {
        self.store();
        self.shown = self.requested;
    }

    /// Sends a message about views when what it shows is stored.
    fn post(&mut self, to: NodeName, role: Role, message: ViewMessage) {
        let envelope = Envelope {
            view: self.view(),
            content: Content::View(message),
        };
        let post = Post { to, role, envelope };
        match self.shown <= self.stored || self.has(ProtocolBug::SealNotStored) {
            true => self.out.push(NodeVoterOutput::Post(post)),
            false => self.later(After::Post(post)),
        }
    }

    fn has(&self, bug: ProtocolBug) -> bool {
        self.setup.bugs.have(bug)
    }

    /// Sends a message to a voter that shows nothing of this node's view.
    fn post_now(&mut self, to: NodeName, message: ViewMessage) {
        let (role, view) = (Role::Voter, ViewId::NONE);
        let content = Content::View(message);
        let envelope = Envelope { view, content };
        self.out
            .push(NodeVoterOutput::Post(Post { to, role, envelope }));
    }

    fn post_all(&mut self, nodes: impl IntoIterator<Item = NodeName>, message: ViewMessage) {
        for node in nodes {
            self.post(node, Role::Voter, message.clone());
        }
    }

    fn own(&self) -> Peer {
        Peer {
            node: self.setup.node.clone(),
            id: self.state.id,
        }
    }

    fn is_member(&self) -> bool {
        let own = self.own();
        self.state
            .record
            .as_ref()
            .is_some_and(|record| record.has(&own))
    }

    /// Whether the view has this node with the identity of a file that is lost.
    fn is_lost(&self) -> bool {
        let record = self.state.record.as_ref();
        record.is_some_and(|record| record.place(&self.setup.node).is_some()) && !self.is_member()
    }

    /// Random bits.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        scatter(self.setup.random ^ scatter(self.drawn))
    }
}
