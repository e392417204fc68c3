//! Which voters vote now, and which of them a contended request asks first: the *sequencer*.
//!
//! All agents prefer the same order of the voters. An agent passes over voters that it cannot ask, and puts those last
//! that were slow or late a short time ago. Agents need not agree: their requests meet at other voters, where their
//! priorities decide.

use super::peer::Peer;
use super::Agent;
use crate::members::{Member, MemberSet};
use crate::message::{Mode, VoterState};
use crate::protocol_bug::ProtocolBug;
use crate::time::Time;
use std::time::Duration;

/// A late voter is asked last for this many times as long as its answer took, at most for `demotion`. Agents that order
/// the voters differently disturb each other, so a short delay must not matter for long.
const LATE: u32 = 10;

/// A slow voter takes more than this many times as long as the median voter.
const SLOW: u32 = 4;

impl Agent {
    /// The voters that can vote for a request of this mode.
    pub(super) fn voters(&self, mode: Mode) -> MemberSet {
        let peers = self.setup.members.iter().zip(&self.peers);
        peers
            .filter(|(_, peer)| peer.votes(mode))
            .map(|(member, _)| member)
            .collect()
    }

    /// The first of `voters` in the order of this agent.
    pub(super) fn sequencer(&mut self, voters: MemberSet) -> Option<Member> {
        if self.setup.bugs.have(ProtocolBug::AnySequencer) {
            let drawn = self.random.up_to(Duration::from_nanos(voters.len() as u64));
            return voters.iter().nth(drawn.as_nanos() as usize - 1);
        }
        if self.setup.bugs.have(ProtocolBug::FirstSequences) {
            return self.setup.members.iter().next();
        }
        let (peers, now) = (&self.peers, self.now);
        voters
            .iter()
            .min_by_key(|member| peers[member.place()].rank(now))
    }

    /// The voter is late or slow: requests that wait for it ask another one, if there is a better one.
    pub(super) fn pass_over(&mut self, member: Member) {
        let now = self.now;
        let rank = |member: Member| self.peers[member.place()].rank(now);
        let best = self.voters(Mode::Write).iter().map(rank).min();
        if best.is_some_and(|best| best < rank(member)) {
            self.leave_sequencer(member);
        }
    }

    /// A batch was answered `round_trip` after it was sent.
    pub(super) fn measured(&mut self, member: Member, round_trip: Duration, late: bool) {
        self.peers[member.place()].round_trips.add(round_trip);
        if self.is_slow(member) {
            self.ask_last(member, self.setup.rules.demotion);
            self.pass_over(member);
        } else if late {
            self.ask_last(member, round_trip * LATE);
        }
    }

    /// From now on, and for this time, the voter is asked last.
    pub(super) fn ask_last(&mut self, member: Member, time: Duration) {
        let until = self.now + time.min(self.setup.rules.demotion);
        let peer = &mut self.peers[member.place()];
        peer.faulty_until = peer.faulty_until.max(until);
    }

    fn is_slow(&self, member: Member) -> bool {
        let average = |peer: &Peer| peer.round_trips.average();
        let own = average(&self.peers[member.place()]).unwrap_or_default();
        if own <= self.setup.rules.slow {
            return false;
        }
        let mut all: Vec<Duration> = self.peers.iter().filter_map(average).collect();
        all.sort_unstable();
        // With two voters, neither is slow.
        own > all[all.len() / 2] * SLOW
    }
}

impl Peer {
    /// Whether it can vote for a request of this mode.
    pub(super) fn votes(&self, mode: Mode) -> bool {
        let votes = match self.state {
            VoterState::Voting => true,
            VoterState::NoStore => mode == Mode::Read,
            VoterState::Quarantined | VoterState::Learning | VoterState::Conflicted => false,
        };
        votes && self.ready()
    }

    /// Less is asked first.
    fn rank(&self, now: Time) -> impl Ord {
        (self.is_late(), self.faulty_until > now)
    }

    /// Whether its answer to a batch is late.
    fn is_late(&self) -> bool {
        let flight = self.flight.as_ref();
        flight.is_some_and(|flight| flight.late_at.is_none())
    }
}
