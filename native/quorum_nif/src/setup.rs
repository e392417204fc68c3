//! The setup of both machines.

use crate::nodes::Nodes;
use crate::{error::CallError, machine};
use quorum::message::Lifetime;
use quorum::node_agent::NodeAgentSetup;
use quorum::node_voter::NodeVoterSetup;
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use rustler::{Atom, Env, NifMap};
use std::time::Duration;

/// The map that `canal_lock_quorum_config` creates.
#[derive(NifMap)]
#[rustler(decode)]
pub(crate) struct Setup {
    node: Atom,
    /// The option `members`, in any order.
    seeds: Vec<Atom>,
    lease_ms: u64,
    run: usize,
    /// Whether the voter has a file.
    durable: bool,
    /// Whether nodes that are no members may lock.
    clients: bool,
}

impl Setup {
    pub(crate) fn rules(&self) -> Result<Rules, CallError> {
        let rules = Rules {
            run: self.run,
            ..Rules::of(Duration::from_millis(self.lease_ms))
        };
        rules.check().map_err(|_| CallError::BadArg)?;
        Ok(rules)
    }

    pub(crate) fn agent(
        &self,
        env: Env<'_>,
        nodes: &mut Nodes,
    ) -> Result<NodeAgentSetup, CallError> {
        Ok(NodeAgentSetup {
            node: nodes.name(env, self.node)?,
            seeds: self.seeds(env, nodes)?,
            rules: self.rules()?,
            bugs: ProtocolBugs::NONE,
            lifetime: Lifetime(machine::random()?),
        })
    }

    pub(crate) fn voter(
        &self,
        env: Env<'_>,
        nodes: &mut Nodes,
    ) -> Result<NodeVoterSetup, CallError> {
        Ok(NodeVoterSetup {
            node: nodes.name(env, self.node)?,
            seeds: self.seeds(env, nodes)?,
            lease_ms: self.lease_ms,
            rules: self.rules()?,
            bugs: ProtocolBugs::NONE,
            durable: self.durable,
            clients: self.clients,
            random: machine::random()?,
        })
    }

    fn seeds(
        &self,
        env: Env<'_>,
        nodes: &mut Nodes,
    ) -> Result<Vec<quorum::view::NodeName>, CallError> {
        let mut seeds = nodes.names(env, &self.seeds)?;
        seeds.sort_unstable();
        Ok(seeds)
    }
}
