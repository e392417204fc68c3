//! The agents that a voter knows: the current lease of each, and its votes.

use super::names::Waiting;
use crate::members::Node;
use crate::message::{Digest, Generation, Lifetime, Mode, Names, Token};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Vote {
    pub(super) mode: Mode,
    pub(super) names: Names,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AgentLease {
    pub(super) node: Node,
    pub(super) agent: Lifetime,
    pub(super) expires: Time,
    /// When its last batch arrived.
    pub(super) heard: Time,
    /// Whether that is so long ago that its positions do not count.
    pub(super) is_quiet: bool,
    /// Whether it may have a position or a provisional vote.
    pub(super) waits: bool,
    /// Whether its node is connected, as far as the voter knows. It has no positions otherwise.
    pub(super) connected: bool,
    /// The `seq` of the last batch.
    pub(super) seq: u64,
    /// The votes that were given unasked and that no batch has named since, with the requests. The agent counts them
    /// for a short time only.
    provisional: BTreeMap<Token, Waiting>,
    votes: BTreeMap<Token, Vote>,
    digest: Digest,
    /// The tokens of revoked votes.
    revoked: BTreeSet<Token>,
}

impl AgentLease {
    pub(super) fn vote(&self, token: Token) -> Option<&Vote> {
        self.votes.get(&token)
    }

    pub(super) fn insert(&mut self, token: Token, vote: Vote) {
        if self.votes.insert(token, vote).is_none() {
            self.digest = self.digest.with(token);
        }
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<Vote> {
        let vote = self.votes.remove(&token)?;
        self.digest = self.digest.without(token);
        self.revoked.remove(&token);
        self.provisional.remove(&token);
        Some(vote)
    }

    /// The vote was given to `request` unasked.
    pub(super) fn is_unasked(&mut self, token: Token, request: Waiting) {
        self.provisional.insert(token, request);
        self.waits = true;
    }

    /// A batch names the vote, so its agent counts it from now on as any other.
    pub(super) fn name(&mut self, token: Token) {
        self.provisional.remove(&token);
    }

    pub(super) fn has_provisional(&self) -> bool {
        !self.provisional.is_empty()
    }

    pub(super) fn provisional_count(&self) -> usize {
        self.provisional.len()
    }

    #[cfg(feature = "model")]
    pub(super) fn is_provisional(&self, token: Token) -> bool {
        self.provisional.contains_key(&token)
    }

    /// A provisional vote, and its request.
    pub(super) fn pop_provisional(&mut self) -> Option<(Token, Waiting)> {
        self.provisional.pop_first()
    }

    /// The tokens in `from..to` that have a vote and are not in `live`, which is in ascending order.
    pub(super) fn unlisted(&self, from: Token, to: Token, live: &[Token]) -> Vec<Token> {
        // BTreeMap panics on a range that ends before it begins; this is an empty range instead.
        let range = self
            .votes
            .range(from..to.max(from))
            .map(|(token, _)| *token);
        range
            .filter(|token| live.binary_search(token).is_err())
            .collect()
    }

    pub(super) fn revoke(&mut self, token: Token) {
        self.revoked.insert(token);
    }

    pub(super) fn revoked(&self, most: usize) -> Vec<Token> {
        self.revoked.iter().take(most).copied().collect()
    }

    pub(super) fn count(&self) -> usize {
        self.votes.len()
    }

    pub(super) fn digest(&self) -> Digest {
        self.digest
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AgentLeases {
    known: BTreeMap<(Node, Lifetime), Generation>,
    leases: BTreeMap<Generation, AgentLease>,
    /// Expired leases whose votes are not removed yet. Until then the votes still conflict with other requests.
    ended: Vec<(Generation, AgentLease)>,
    last: Generation,
}

impl AgentLeases {
    pub(super) fn new() -> AgentLeases {
        AgentLeases {
            known: BTreeMap::new(),
            leases: BTreeMap::new(),
            ended: Vec::new(),
            last: Generation(0),
        }
    }

    /// The lease of this agent. If it has none, a new one that expires at `expires`.
    pub(super) fn generation(
        &mut self,
        node: Node,
        agent: Lifetime,
        now: Time,
        expires: Time,
    ) -> Generation {
        *self.known.entry((node, agent)).or_insert_with(|| {
            self.last = Generation(self.last.0 + 1);
            let votes = BTreeMap::new();
            let (digest, revoked, provisional) =
                (Digest::default(), BTreeSet::new(), BTreeMap::new());
            let lease = AgentLease {
                node,
                agent,
                expires,
                heard: now,
                is_quiet: false,
                waits: false,
                connected: true,
                seq: 0,
                provisional,
                votes,
                digest,
                revoked,
            };
            self.leases.insert(self.last, lease);
            self.last
        })
    }

    pub(super) fn get(&self, generation: Generation) -> Option<&AgentLease> {
        self.leases.get(&generation)
    }

    /// The lease of the batch that is being executed. It has just been renewed, so it cannot have expired.
    pub(super) fn live(&mut self, generation: Generation) -> &mut AgentLease {
        self.get_mut(generation).expect("the batch renewed it")
    }

    pub(super) fn get_mut(&mut self, generation: Generation) -> Option<&mut AgentLease> {
        self.leases.get_mut(&generation)
    }

    /// Ends the leases that have expired at `now`. With `keep`, removes only their votes.
    pub(super) fn expire(&mut self, now: Time, keep: bool) {
        let over = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.expires <= now)
            .map(|(generation, _)| *generation);
        for generation in over.collect::<Vec<_>>() {
            let Some(lease) = self.leases.remove(&generation) else {
                continue;
            };
            if keep {
                let (votes, revoked, provisional) =
                    (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
                let renewed = AgentLease {
                    votes,
                    revoked,
                    provisional,
                    digest: Digest::default(),
                    expires: Time(i64::MAX),
                    ..lease
                };
                self.leases.insert(generation, renewed);
            } else {
                self.known.remove(&(lease.node, lease.agent));
            }
            self.ended.push((generation, lease));
        }
    }

    /// Other agents of this node that have a lease, at most `most`.
    pub(super) fn others(&self, node: Node, agent: Lifetime, most: usize) -> Vec<Lifetime> {
        let others = self.of_node(node).filter(|other| *other != agent);
        others.take(most).collect()
    }

    fn of_node(&self, node: Node) -> impl Iterator<Item = Lifetime> + '_ {
        let known = self.known.range((node, Lifetime(0))..);
        let of_node = known.take_while(move |((of, _), _)| *of == node);
        of_node.map(|((_, agent), _)| *agent)
    }

    /// Whether an agent of this node has a lease, or had one that is not removed yet.
    pub(super) fn knows(&self, node: Node) -> bool {
        let ended = |(_, lease): &(Generation, AgentLease)| lease.node == node;
        self.of_node(node).next().is_some() || self.ended.iter().any(ended)
    }

    /// The current leases.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Generation, &AgentLease)> {
        let leases = self.leases.iter();
        leases.map(|(generation, lease)| (*generation, lease))
    }

    /// The leases of a node's agents.
    pub(super) fn leases_of(&self, node: Node) -> Vec<Generation> {
        let known = self
            .known
            .range((node, Lifetime(0))..=(node, Lifetime(u64::MAX)));
        known.map(|(_, generation)| *generation).collect()
    }

    /// The leases with a position or a provisional vote whose agents have become quiet: not heard for `wait`.
    pub(super) fn become_quiet(&mut self, now: Time, wait: Duration) -> Vec<Generation> {
        let waiting = self
            .leases
            .iter_mut()
            .filter(|(_, lease)| lease.waits && !lease.is_quiet);
        let quiet = waiting.filter(|(_, lease)| lease.heard + wait <= now);
        quiet
            .map(|(generation, lease)| {
                lease.is_quiet = true;
                *generation
            })
            .collect()
    }

    /// Ends the lease of an agent, if it has one.
    pub(super) fn end(&mut self, node: Node, agent: Lifetime) {
        let generation = self.known.remove(&(node, agent));
        if let Some(generation) = generation {
            let lease = self.leases.remove(&generation);
            self.ended.extend(lease.map(|lease| (generation, lease)));
        }
    }

    /// An expired lease whose votes and positions are not removed yet.
    pub(super) fn ended(&self) -> Option<Generation> {
        self.ended.last().map(|(generation, _)| *generation)
    }

    /// Takes a vote of that lease. `None` after the last one.
    pub(super) fn pop_vote(&mut self) -> Option<(Token, Vote)> {
        self.ended.last_mut()?.1.votes.pop_first()
    }

    /// Removes that lease, which has no votes left.
    pub(super) fn pop_ended(&mut self) {
        self.ended.pop();
    }

    /// Whether clients have votes.
    pub(super) fn have_client_votes(&self) -> bool {
        let ended = self.ended.iter().map(|(_, lease)| lease);
        let mut leases = self.leases.values().chain(ended);
        leases.any(|lease| lease.node.is_client() && !lease.votes.is_empty())
    }

    /// When the next lease expires or its agent becomes quiet; [`Time::LONG_AGO`], that is, immediately, if votes of an
    /// expired lease are left.
    pub(super) fn deadline(&self, wait: Duration) -> Option<Time> {
        if !self.ended.is_empty() {
            return Some(Time::LONG_AGO);
        }
        let next = |lease: &AgentLease| match lease.waits && !lease.is_quiet {
            true => lease.expires.min(lease.heard + wait),
            false => lease.expires,
        };
        self.leases.values().map(next).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.leases.values().all(|lease| lease.votes.is_empty())
    }

    /// All votes, including those of expired leases that are not removed yet.
    #[cfg(feature = "model")]
    pub(super) fn votes(&self) -> impl Iterator<Item = (Lifetime, Generation, Token, &Vote)> {
        let ended = self
            .ended
            .iter()
            .map(|(generation, lease)| (generation, lease));
        let leases = self.leases.iter().chain(ended);
        leases.flat_map(|(generation, lease)| {
            lease
                .votes
                .iter()
                .map(|(token, vote)| (lease.agent, *generation, *token, vote))
        })
    }

    #[cfg(feature = "model")]
    pub(super) fn known(&self, agent: Lifetime) -> Option<Generation> {
        self.leases
            .iter()
            .find(|(_, lease)| lease.agent == agent)
            .map(|(generation, _)| *generation)
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time, wait: Duration) {
        for lease in self
            .leases
            .values_mut()
            .chain(self.ended.iter_mut().map(|(_, lease)| lease))
        {
            lease.expires = lease.expires.relative_to(now);
            // Only whether `wait` has passed since then, and only while the agent waits for something.
            lease.heard = match lease.waits && !lease.is_quiet {
                true => lease.heard.since(now, wait),
                false => Time(0),
            };
        }
    }
}
