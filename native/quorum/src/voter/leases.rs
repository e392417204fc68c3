//! The agents that a voter knows: the current lease of each, and its votes.

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
    /// The `seq` of the last batch.
    pub(super) seq: u64,
    /// The round trip that the agent measured.
    pub(super) srtt: Duration,
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
        Some(vote)
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
    pub(super) fn generation(&mut self, node: Node, agent: Lifetime, expires: Time) -> Generation {
        *self.known.entry((node, agent)).or_insert_with(|| {
            self.last = Generation(self.last.0 + 1);
            let votes = BTreeMap::new();
            let (digest, revoked) = (Digest::default(), BTreeSet::new());
            let lease = AgentLease {
                node,
                agent,
                expires,
                seq: 0,
                srtt: Duration::ZERO,
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
                let (votes, revoked) = (BTreeMap::new(), BTreeSet::new());
                let renewed = AgentLease {
                    votes,
                    revoked,
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

    /// Removes that lease, which has no votes left. Returns its node.
    pub(super) fn pop_ended(&mut self) -> Option<Node> {
        self.ended.pop().map(|(_, lease)| lease.node)
    }

    /// When the next lease expires; [`Time::NEVER`], that is, immediately, if votes of an expired lease are left.
    pub(super) fn deadline(&self) -> Option<Time> {
        if !self.ended.is_empty() {
            return Some(Time::NEVER);
        }
        self.leases.values().map(|lease| lease.expires).min()
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
    pub(super) fn rebase(&mut self, now: Time) {
        for lease in self
            .leases
            .values_mut()
            .chain(self.ended.iter_mut().map(|(_, lease)| lease))
        {
            lease.expires = lease.expires.relative_to(now);
        }
    }
}
