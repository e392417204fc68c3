//! Which voters a request asks, and which of them a contended request asks first: the *sequencer* of its name.
//!
//! All agents prefer the voters of a name in the same order: see `groups.rs`. A request asks as many voters as a quorum
//! needs, the preferred ones. An agent passes over voters that it cannot ask, and puts those last that were slow or
//! late a short time ago. Agents need not agree: their requests meet at other voters, where their priorities decide.

use super::output::{AgentOutput, Count};
use super::peer::Peer;
use super::Agent;
use crate::members::{Member, MemberSet};
use crate::message::{Mode, Names, VoterState};
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
        self.members_that(|peer| peer.votes(mode))
    }

    /// The sequencers of `names`: for each, the first of `voters` that may vote for it. `None` if a name has none.
    pub(super) fn sequencers(&mut self, names: &Names, voters: MemberSet) -> Option<MemberSet> {
        let any = self.setup.bugs.have(ProtocolBug::FirstSequences);
        let mut sequencers = MemberSet::EMPTY;
        for partition in self.groups.partitions(names) {
            let order = self.order(partition);
            let mut order = order.into_iter();
            let first = order.find(|member| any || voters.contains(*member))?;
            sequencers = sequencers.with(first);
        }
        Some(sequencers)
    }

    /// The fewest of `voters` that complete `asked` to a quorum of each group of `names`, as far as possible.
    pub(super) fn besides(
        &mut self,
        asked: MemberSet,
        names: &Names,
        voters: MemberSet,
    ) -> MemberSet {
        let quorum = self.setup.members.quorum();
        let mut all = asked;
        for partition in self.groups.partitions(names) {
            let order = self.order(partition);
            let mut missing = order.iter().fold(quorum, |missing, member| {
                missing.saturating_sub(usize::from(all.contains(*member)))
            });
            for member in order {
                if missing > 0 && voters.contains(member) && !all.contains(member) {
                    all = all.with(member);
                    missing -= 1;
                }
            }
        }
        all.minus(asked)
    }

    /// The voters of a partition in the order of this agent.
    fn order(&mut self, partition: usize) -> Vec<Member> {
        let mut order = self.groups.voters(partition).to_vec();
        if self.setup.bugs.have(ProtocolBug::AnySequencer) {
            for place in 1..order.len() {
                let drawn = self.random.up_to(Duration::from_nanos(place as u64 + 1));
                order.swap(place, drawn.as_nanos() as usize - 1);
            }
        } else if !self.setup.bugs.have(ProtocolBug::FirstSequences) {
            let (peers, now) = (&self.peers, self.now);
            order.sort_by_key(|member| peers[member.place()].rank(now));
        }
        order
    }

    /// The voter is late or slow: requests that wait for it ask another one, if there is a better one.
    pub(super) fn pass_over(&mut self, member: Member) {
        let now = self.now;
        let rank = |member: Member| self.peers[member.place()].rank(now);
        let best = self.voters(Mode::Write).iter().map(rank).min();
        if best.is_some_and(|best| best < rank(member)) {
            self.leave_voter(member);
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
        let is_last = peer.faulty_until > self.now;
        peer.faulty_until = peer.faulty_until.max(until);
        if !is_last {
            self.out.push(AgentOutput::Counted(Count::AskedLast));
        }
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
    pub(super) fn is_late(&self) -> bool {
        let flight = self.flight.as_ref();
        flight.is_some_and(|flight| flight.late_at.is_none())
    }
}
