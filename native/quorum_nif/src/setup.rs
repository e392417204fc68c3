//! The setup of both machines.

use crate::error::CallError;
use crate::machine::random;
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
        let ms = Duration::from_millis;
        let rules = &self.rules;
        Rules {
            heartbeat: ms(rules.heartbeat_ms),
            holder_lease: ms(rules.holder_lease_ms),
            voter_lease: ms(rules.voter_lease_ms),
            quarantine: ms(rules.quarantine_ms),
            attempt: ms(rules.attempt_ms),
            retry_base: ms(rules.retry_base_ms),
            retry_step: ms(rules.retry_step_ms),
            retry_most: ms(rules.retry_most_ms),
            wait: ms(rules.wait_ms),
            keep: ms(rules.keep_ms),
            run: rules.run,
            run_time: ms(rules.run_ms),
            at_risk: ms(rules.at_risk_ms),
            fence_block: rules.fence_block,
            fence_floors: rules.fence_floors,
            pending_unlocks: rules.pending_unlocks,
            batch: rules.batch,
        }
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
    let ms = |span: Duration| span.as_millis() as u64;
    let rules = Rules::default();
    RulesInMs {
        heartbeat_ms: ms(rules.heartbeat),
        holder_lease_ms: ms(rules.holder_lease),
        voter_lease_ms: ms(rules.voter_lease),
        quarantine_ms: ms(rules.quarantine),
        attempt_ms: ms(rules.attempt),
        retry_base_ms: ms(rules.retry_base),
        retry_step_ms: ms(rules.retry_step),
        retry_most_ms: ms(rules.retry_most),
        wait_ms: ms(rules.wait),
        keep_ms: ms(rules.keep),
        run: rules.run,
        run_ms: ms(rules.run_time),
        at_risk_ms: ms(rules.at_risk),
        fence_block: rules.fence_block,
        fence_floors: rules.fence_floors,
        pending_unlocks: rules.pending_unlocks,
        batch: rules.batch,
    }
}

/// `check(Setup) -> Sentence`: the first invalid constant, or an empty string.
#[rustler::nif]
fn check(setup: Setup) -> Result<String, rustler::Error> {
    setup.members()?;
    Ok(setup.rules().check().err().unwrap_or_default().to_owned())
}
