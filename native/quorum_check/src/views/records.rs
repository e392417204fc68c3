//! What a history remembers: locks, requests, records, and changes.

use crate::simulation::clock::Real;
use quorum::lease::Standing;
use quorum::message::{Fence, Name, Token};
use quorum::view::{Record, ViewId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a history has broken.
#[derive(Clone, Debug)]
pub struct Broken {
    pub label: &'static str,
    pub text: String,
}

pub struct Held {
    pub node: usize,
    pub life: u64,
    pub token: Token,
    pub name: usize,
    pub fence: Fence,
    pub standing: Arc<Standing>,
}

/// A question to all voters which names have votes.
#[derive(Default)]
pub struct Question {
    /// The locks that were held when it began: node, life of its agent, token.
    pub held: Vec<(usize, u64, Token)>,
    /// How many voters of each view have answered, and the names.
    pub answers: BTreeMap<ViewId, (usize, BTreeSet<Name>)>,
}

#[derive(Default)]
pub struct Checks {
    pub broken: Option<Broken>,
    pub passed: bool,
    /// How often the check was delayed for a reset.
    pub delays: u32,
    pub held: Vec<Held>,
    pub asked: BTreeMap<u64, (usize, usize, Real)>,
    pub last: BTreeMap<usize, Fence>,
    pub records: BTreeMap<ViewId, Record>,
    /// The clusters, in the order of their first records.
    pub clusters: Vec<u64>,
    /// The nodes that lock a free name one after the other, after all faults. `None` before that.
    pub probes: Option<Vec<usize>>,
    pub questions: Vec<Question>,
}

#[derive(Clone, Copy, Debug)]
pub struct Reset {
    pub list: u32,
    /// Request, node, and life of its voter.
    pub open: Option<(u64, usize, u64)>,
}

#[derive(Debug)]
pub struct Operator {
    /// The list of the last change that is done.
    pub list: u32,
    pub next: usize,
    /// The change that is not answered: request, node, life of its voter, list, and when it began.
    pub open: Option<(u64, usize, u64, u32, Real)>,
    /// The reset that is not done.
    pub reset: Option<Reset>,
    /// The nodes that no later list has: they stay dead, or return to an old cluster.
    pub dead: u32,
    /// The list of the reset, and those of all records that were known before it.
    pub survivors: u32,
    pub old: Vec<u32>,
    /// The lists that were asked for, and when: they may still be decided.
    pub asked: Vec<(Real, u32)>,
}

impl Operator {
    pub fn new(list: u32) -> Operator {
        Operator {
            list,
            next: 0,
            open: None,
            reset: None,
            dead: 0,
            survivors: 0,
            old: Vec::new(),
            asked: Vec::new(),
        }
    }
}
