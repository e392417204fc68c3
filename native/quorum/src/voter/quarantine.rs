//! Whom a voter waits for before it votes, and before its view may be replaced.
//!
//! A voter that has restarted does not know its votes, and one of a new view does not know those of the view before. It
//! votes when the agents that may count on such votes have *settled* here, or when these votes are over, a lease later.
//! It is *over* when these agents have also said that none of their locks relies on an earlier view any more (`kept`),
//! or a lease has passed: then its view may be replaced.

use crate::members::{Members, Node};
use crate::message::Lifetime;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The agents that may count on forgotten votes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Awaited {
    /// Those of all members: after a restart without guests.
    Members,
    /// Those that voters of the view before have reported.
    Agents(BTreeSet<(Node, Lifetime)>),
    /// Any: nothing but time ends the quarantine.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Quarantine {
    awaited: Awaited,
    /// When the votes are over. `None` before a voter of a new view has learned.
    pub(super) until: Option<Time>,
    /// The agents that have settled here, and whether they said `kept`. After a restart, their nodes count.
    settled: BTreeMap<(Node, Lifetime), bool>,
}

impl Quarantine {
    pub(super) fn new(awaited: Awaited, until: Option<Time>) -> Quarantine {
        Quarantine {
            awaited,
            until,
            settled: BTreeMap::new(),
        }
    }

    /// The voter of a new view has learned which agents it waits for.
    pub(super) fn learned(&mut self, agents: Option<BTreeSet<(Node, Lifetime)>>, until: Time) {
        self.awaited = agents.map_or(Awaited::Any, Awaited::Agents);
        self.until = Some(until);
    }

    /// Whether it is that of a voter in a new view, which waits for certain agents.
    pub(super) fn is_of_new_view(&self) -> bool {
        self.awaited != Awaited::Members
    }

    /// An agent has settled here, or is dead.
    pub(super) fn settled(&mut self, node: Node, agent: Lifetime, kept: bool) {
        let agent = match self.awaited {
            Awaited::Members => Lifetime(0),
            Awaited::Agents(_) | Awaited::Any => agent,
        };
        *self.settled.entry((node, agent)).or_default() |= kept;
    }

    /// Whether each awaited agent has settled.
    pub(super) fn is_settled(&self, members: Members) -> bool {
        self.all(members, |_| true)
    }

    /// Whether each awaited agent has said that none of its locks relies on an earlier view any more.
    pub(super) fn is_kept(&self, members: Members) -> bool {
        self.all(members, |kept| kept)
    }

    /// The awaited agents that have not settled.
    pub(super) fn unsettled(&self, members: Members) -> BTreeSet<Node> {
        self.missing(members, |_| true).collect()
    }

    /// The awaited agents that have not said `kept`.
    pub(super) fn unkept(&self, members: Members) -> BTreeSet<Node> {
        self.missing(members, |kept| kept).collect()
    }

    fn all(&self, members: Members, which: impl Fn(bool) -> bool) -> bool {
        let is_known = self.until.is_some() && self.awaited != Awaited::Any;
        is_known && self.missing(members, which).next().is_none()
    }

    fn missing<'a>(
        &'a self,
        members: Members,
        which: impl Fn(bool) -> bool + 'a,
    ) -> Box<dyn Iterator<Item = Node> + 'a> {
        let has = move |agent: &(Node, Lifetime)| {
            self.settled.get(agent).is_some_and(|kept| which(*kept))
        };
        match &self.awaited {
            Awaited::Members => {
                let nodes = members.iter().map(Node::from);
                Box::new(nodes.filter(move |node| !has(&(*node, Lifetime(0)))))
            }
            Awaited::Agents(agents) => {
                let missing = agents.iter().filter(move |agent| !has(agent));
                Box::new(missing.map(|(node, _)| *node))
            }
            Awaited::Any => Box::new(std::iter::empty()),
        }
    }

    #[cfg(feature = "model")]
    pub(super) fn rebase(&mut self, now: Time) {
        self.until = self.until.map(|until| until.relative_to(now));
    }
}
