//! The setup of both machines.

use crate::{error::CallError, machine::random};
use quorum::agent::AgentSetup;
use quorum::members::Members;
use quorum::message::{Fence, Lifetime};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::voter::{Fences, VoterSetup};
use rustler::NifMap;
use std::time::Duration;

/// The map that `canal_lock_quorum_config` creates.
#[derive(Clone, NifMap)]
pub(crate) struct Setup {
    count: usize,
    me: usize,
    rules: RulesInMs,
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
    run: usize,
    run_ms: u64,
    at_risk_ms: u64,
    fence_block: u64,
    fence_floors: usize,
    pending_unlocks: u64,
    batch: usize,
}

/// Converts in both directions.
macro_rules! convert_rules {
    (times { $($time:ident: $ms:ident,)* } numbers { $($number:ident,)* }) => {
        impl From<Rules> for RulesInMs {
            fn from(rules: Rules) -> Self {
                Self { $($ms: rules.$time.as_millis() as u64,)* $($number: rules.$number,)* }
            }
        }

        impl From<&RulesInMs> for Rules {
            fn from(rules: &RulesInMs) -> Self {
                Self { $($time: Duration::from_millis(rules.$ms),)* $($number: rules.$number,)* }
            }
        }
    };
}

convert_rules! {
    times {
        heartbeat: heartbeat_ms, holder_lease: holder_lease_ms, voter_lease: voter_lease_ms,
        quarantine: quarantine_ms, attempt: attempt_ms, retry_base: retry_base_ms,
        retry_step: retry_step_ms, retry_most: retry_most_ms, wait: wait_ms, keep: keep_ms,
        run_time: run_ms, at_risk: at_risk_ms,
    }
    numbers { run, fence_block, fence_floors, pending_unlocks, batch, }
}

/// The known fences of earlier lifetimes: [`Fences`].
#[derive(NifMap)]
pub(crate) struct FencesKnown {
    floor: Option<u64>,
    durable: bool,
    origin: u64,
}

impl Setup {
    pub(crate) fn members(&self) -> Result<Members, CallError> {
        Members::new(self.count, self.me).ok_or(CallError::BadArg)
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules::from(&self.rules)
    }

    pub(crate) fn agent(&self) -> Result<AgentSetup, CallError> {
        Ok(AgentSetup {
            members: self.members()?,
            rules: self.rules(),
            bugs: ProtocolBugs::NONE,
            lifetime: Lifetime(random()?),
            seed: random()?,
        })
    }

    pub(crate) fn voter(&self, known: &FencesKnown) -> Result<VoterSetup, CallError> {
        Ok(VoterSetup {
            members: self.members()?,
            rules: self.rules(),
            bugs: ProtocolBugs::NONE,
            lifetime: Lifetime(random()?),
            fences: Fences {
                floor: known.floor.map(Fence),
                durable: known.durable,
                origin: Fence(known.origin),
            },
        })
    }
}

/// `default_rules() -> Rules`
#[rustler::nif]
fn default_rules() -> RulesInMs {
    Rules::default().into()
}

/// `check(Setup) -> Sentence`: the first invalid constant, or an empty string.
#[rustler::nif]
fn check(setup: Setup) -> Result<String, rustler::Error> {
    setup.members()?;
    Ok(setup.rules().check().err().unwrap_or_default().to_owned())
}
