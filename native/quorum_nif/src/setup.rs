//! The setup of both machines.

use crate::{error::CallError, machine};
use quorum::agent::AgentSetup;
use quorum::frame;
use quorum::members::{Member, Members};
use quorum::message::{Fence, Lifetime};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::voter::{Fences, VoterSetup};
use rustler::{Binary, Decoder, NifMap, NifResult, Term};
use std::time::Duration;

/// The map that `canal_lock_quorum_config` creates.
#[derive(Clone, NifMap)]
#[rustler(decode)]
pub(crate) struct Setup {
    count: usize,
    /// The index of this node. `nil` for a client.
    me: Option<usize>,
    /// How many members vote for each name.
    replicas: usize,
    /// The names of the members and the path of the state file, encoded. Equal bytes mean equal ones.
    identity: Bytes,
    rules: RulesInMs,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'a> Decoder<'a> for Bytes {
    fn decode(term: Term<'a>) -> NifResult<Bytes> {
        Ok(Bytes(Binary::from_term(term)?.to_vec()))
    }
}

/// [`Rules`], in whole milliseconds.
#[derive(Clone, NifMap)]
struct RulesInMs {
    heartbeat_ms: u64,
    holder_lease_ms: u64,
    voter_lease_ms: u64,
    quarantine_ms: u64,
    attempt_ms: u64,
    retry_base_ms: u64,
    retry_step_ms: u64,
    retry_most_ms: u64,
    wait_ms: u64,
    keep_ms: u64,
    hedge_ms: u64,
    hedge_most_ms: u64,
    slow_ms: u64,
    demotion_ms: u64,
    recall_ms: u64,
    run: usize,
    run_ms: u64,
    at_risk_ms: u64,
    fence_block: u64,
    partitions: usize,
    pending_unlocks: u64,
    clients: usize,
    client_votes: usize,
    client_positions: usize,
    batch: usize,
}

/// Converts in both directions.
macro_rules! convert_rules {
    (times { $($time:ident: $ms:ident,)* } numbers { $($number:ident,)* }) => {
        impl From<Rules> for RulesInMs {
            fn from(rules: Rules) -> Self {
                Self {
                    $($ms: rules.$time.as_millis() as u64,)*
                    $($number: rules.$number,)*
                }
            }
        }

        impl From<&RulesInMs> for Rules {
            fn from(rules: &RulesInMs) -> Self {
                Self {
                    $($time: Duration::from_millis(rules.$ms),)*
                    $($number: rules.$number,)*
                }
            }
        }
    };
}

convert_rules! {
    times {
        heartbeat: heartbeat_ms, holder_lease: holder_lease_ms, voter_lease: voter_lease_ms,
        quarantine: quarantine_ms, attempt: attempt_ms, retry_base: retry_base_ms,
        retry_step: retry_step_ms, retry_most: retry_most_ms, wait: wait_ms, keep: keep_ms,
        hedge: hedge_ms, hedge_most: hedge_most_ms, slow: slow_ms, demotion: demotion_ms,
        recall: recall_ms, run_time: run_ms, at_risk: at_risk_ms,
    }
    numbers {
        run, fence_block, partitions, pending_unlocks, clients, client_votes, client_positions, batch,
    }
}

/// What a voter starts with: its life, the known fences of earlier lives ([`Fences`]), and whether it waits for members
/// that may have another list.
#[derive(NifMap)]
#[rustler(decode)]
pub(crate) struct VoterStart {
    life: u32,
    quarantine_ms: u64,
    floor: Option<u64>,
    durable: bool,
    origin: u64,
    /// The clients of the stored register, and whether it has all that may have votes.
    pub(crate) clients: Vec<Bytes>,
    knows_clients: bool,
    conflicted: bool,
}

impl Setup {
    pub(crate) fn members(&self) -> Result<Members, CallError> {
        let members = Members::new(self.count);
        let members = members.and_then(|members| members.with_replicas(self.replicas));
        members.ok_or(CallError::BadArg)
    }

    /// The member of this node, which is not a client.
    pub(crate) fn me(&self) -> Result<Member, CallError> {
        let me = self.me.filter(|me| *me < self.count);
        me.and_then(Member::at).ok_or(CallError::BadArg)
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules::from(&self.rules)
    }

    pub(crate) fn agent(&self) -> Result<AgentSetup, CallError> {
        Ok(AgentSetup {
            members: self.members()?,
            rules: self.rules(),
            bugs: ProtocolBugs::NONE,
            lifetime: Lifetime(machine::random()?),
            seed: machine::random()?,
        })
    }

    pub(crate) fn identity(&self) -> Bytes {
        self.identity.clone()
    }

    pub(crate) fn voter(&self, start: &VoterStart) -> Result<VoterSetup, CallError> {
        Ok(VoterSetup {
            members: self.members()?,
            me: self.me()?,
            rules: self.rules(),
            bugs: ProtocolBugs::NONE,
            lifetime: Lifetime::new(start.life, machine::random()? as u32),
            quarantine: Duration::from_millis(start.quarantine_ms),
            fences: Fences {
                floor: start.floor.map(Fence),
                durable: start.durable,
                paced: true,
                origin: Fence(start.origin),
            },
            knows_clients: start.knows_clients,
            conflicted: start.conflicted,
        })
    }
}

/// `default_rules() -> Rules`
#[rustler::nif]
fn default_rules() -> RulesInMs {
    Rules::default().into()
}

/// `frame_version() -> Version`: the version of frames that this library speaks.
#[rustler::nif]
fn frame_version() -> u8 {
    frame::VERSION
}

/// `check(Setup) -> Sentence`: the first invalid constant, or an empty string.
#[rustler::nif]
fn check(setup: Setup) -> Result<String, rustler::Error> {
    setup.members()?;
    Ok(setup.rules().check().err().unwrap_or_default().to_owned())
}
