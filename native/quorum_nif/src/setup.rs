//! The setup of both machines.

use crate::{error::CallError, machine};
use quorum::agent::AgentSetup;
use quorum::frame;
use quorum::members::{Member, Members};
use quorum::message::{Fence, Lifetime};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::voter::{Fences, VoterSetup};
use rustler::NifMap;
use std::time::Duration;

/// The map that `canal_lock_quorum_config` creates.
#[derive(NifMap)]
#[rustler(decode)]
pub(crate) struct Setup {
    count: usize,
    /// The index of this node. `nil` for a client.
    me: Option<usize>,
    lease_ms: u64,
    run: usize,
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
    /// Whether clients may have votes of earlier lives.
    guests: bool,
    misconfigured: bool,
}

impl Setup {
    pub(crate) fn members(&self) -> Result<Members, CallError> {
        Members::new(self.count).ok_or(CallError::BadArg)
    }

    /// The member of this node, which is not a client.
    pub(crate) fn me(&self) -> Result<Member, CallError> {
        let me = self.me.filter(|me| *me < self.count);
        me.and_then(Member::at).ok_or(CallError::BadArg)
    }

    pub(crate) fn rules(&self) -> Result<Rules, CallError> {
        let rules = Rules {
            run: self.run,
            ..Rules::of(Duration::from_millis(self.lease_ms))
        };
        rules.check().map_err(|_| CallError::BadArg)?;
        Ok(rules)
    }

    pub(crate) fn agent(&self) -> Result<AgentSetup, CallError> {
        Ok(AgentSetup {
            members: self.members()?,
            rules: self.rules()?,
            bugs: ProtocolBugs::NONE,
            lifetime: Lifetime(machine::random()?),
        })
    }

    pub(crate) fn voter(&self, start: &VoterStart) -> Result<VoterSetup, CallError> {
        Ok(VoterSetup {
            members: self.members()?,
            me: self.me()?,
            rules: self.rules()?,
            bugs: ProtocolBugs::NONE,
            lifetime: Lifetime::new(start.life, machine::random()? as u32),
            quarantine: Duration::from_millis(start.quarantine_ms),
            fences: Fences {
                floor: start.floor.map(Fence),
                durable: start.durable,
                origin: Fence(start.origin),
            },
            guests: start.guests,
            misconfigured: start.misconfigured,
            begins: false,
        })
    }
}

/// `frame_version() -> Version`: the version of frames that this library speaks.
#[rustler::nif]
fn frame_version() -> u8 {
    frame::VERSION
}
