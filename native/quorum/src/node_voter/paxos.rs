//! What this node has promised and accepted for the next view: an acceptor of single-decree Paxos (Lamport, "Paxos Made
//! Simple", 2001), among the members of its view.

use super::{NodeVoter, Stage};
use crate::protocol_bug::ProtocolBug;
use crate::view::{Ballot, NodeName, Record, Role};
use crate::view_message::ViewMessage;

impl NodeVoter {
    /// Whether this node may promise: see M3.
    pub(super) fn is_over(&self) -> bool {
        let Some(voter) = &self.voter else {
            return false;
        };
        let is_kept = voter.is_over(self.now) || self.has(ProtocolBug::PromiseBeforeOver);
        self.has(ProtocolBug::PromiseBeforeVoted) || self.state.has_voted && is_kept
    }

    pub(super) fn prepare(&mut self, from: &NodeName, ballot: Ballot) {
        if !self.is_over() {
            return;
        }
        if ballot < self.state.promised {
            return self.refuse(from);
        }
        self.promise(ballot);
        let accepted = self.state.accepted.clone();
        let promise = ViewMessage::Promise { ballot, accepted };
        self.post(from.clone(), Role::Voter, promise);
    }

    pub(super) fn accept(&mut self, from: &NodeName, ballot: Ballot, record: Record) {
        let Some(own) = self
            .state
            .record
            .as_ref()
            .filter(|_| matches!(self.stage, Stage::Member(_)))
        else {
            return;
        };
        if own.next(record.members.clone()) != record {
            return;
        }
        if ballot < self.state.promised {
            return self.refuse(from);
        }
        self.promise(ballot);
        self.state.accepted = Some((ballot, record.clone()));
        self.accepted_at = Some(self.now);
        self.store_shown();
        self.post(from.clone(), Role::Voter, ViewMessage::Accepted(ballot));
        if self.has(ProtocolBug::AcceptedIsDecided) {
            self.replace(&record);
        }
    }

    fn promise(&mut self, ballot: Ballot) {
        if self.state.promised < ballot {
            self.state.promised = ballot;
            self.store_shown();
        }
    }

    fn refuse(&mut self, from: &NodeName) {
        let refused = ViewMessage::Refused(self.state.promised);
        self.post(from.clone(), Role::Voter, refused);
    }
}
