//! The table that is open, and those who must not die unnoticed.
//!
//! ```text
//!   INCARNATIONS -----------.                          .---- ManagerWatch   down: closes, unless it is kept
//!                           v                          v     (the manager's handle; one for each that adopts it)
//!                      Incarnation  <-----------  gate (shared)
//!                      table, watches                  ^
//!                           '-------------------> HolderWatch x 1024       down: gives back
//! ```
//!
//! How tables follow one another, and what a late death may touch, is `permit_table`'s (`incarnations.rs`, I1 to I5).
//! Here is what only the VM can do: it keeps the watches, and tells them of deaths. A table that is kept (I4) needs
//! no manager but for holders on other nodes and the sweep. In order, a manager closes its table itself; it is freed
//! by whoever manages the next one, or by the one that closes it in order.

use crate::enif::{self, Here};
use crate::key::TermKey;
use crate::remote::Remotes;
use parking_lot::Mutex;
use permit_table::{
    fault, pin, Dismantle, Gate, GivenBack, Holder, Incarnations, Opening, OutOfMemory, Pin,
    Progress, Shared, Table,
};
use rustler::sys::ErlNifPid;
use rustler::{Env, LocalPid, Monitor, Resource, ResourceArc};
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

/// Watches on holders per table. Each has a lock and a tree of monitors of its own in the VM, so that many processes
/// that come and go at once rarely meet.
const WATCHES: usize = 1024;

/// Watches let go in one step of dismantling. With 200,000 processes alive the VM takes away 1,600 monitors with
/// them.
const WATCHES_PER_STEP: usize = 8;

/// Pids are numbered above four bits of type tag. Only a hint: see `Holder::new`.
const PID_TAG_BITS: u32 = 4;

/// Why a table, or a place in one, could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    OutOfMemory,
    /// The VM would not watch the process.
    NotWatched,
}

/// One table, its watches, and what else outlives a manager that crashes.
pub(crate) struct Incarnation {
    pub(crate) table: Table<TermKey>,
    pub(crate) remotes: Remotes,
    /// Tells it from all others.
    pub(crate) serial: u64,
    /// What the manager was started with, to be shown. It is copied or replaced as a whole: a panic leaves one or the
    /// other.
    pub(crate) max_per: Mutex<TermKey>,
    watches: Vec<ResourceArc<HolderWatch>>,
}

/// Told of the deaths of holders.
pub(crate) struct HolderWatch(Gate<Incarnation>);

/// Told of the death of the manager; the manager's own handle on its table.
pub(crate) struct ManagerWatch(Gate<Incarnation>);

static INCARNATIONS: Incarnations<Incarnation> = Incarnations::new();

// The VM tells of a death once. What is done then allocates nothing that it needs, and if it panics (a bug of ours),
// it is tried once more, here or in `Table::give_back`. rustler keeps a second panic from the VM, and one in a
// destructor; what is on record then stays out until the table is closed by the next one.

#[rustler::resource_impl]
impl Resource for HolderWatch {
    const IMPLEMENTS_DOWN: bool = true;

    fn down<'a>(&'a self, _: Env<'a>, pid: LocalPid, _: Monitor) {
        let pin = pin();
        if let Some(incarnation) = self.0.incarnation(&pin) {
            let dead = Caller::from_pid(pid.as_c_arg());
            let _: GivenBack = incarnation.table.give_back(&pin, dead.holder());
        }
    }
}

#[rustler::resource_impl]
impl Resource for ManagerWatch {
    const IMPLEMENTS_DOWN: bool = true;

    fn down<'a>(&'a self, _: Env<'a>, _: LocalPid, _: Monitor) {
        let abandon = || self.0.abandon();
        if catch_unwind(AssertUnwindSafe(abandon)).is_err() {
            abandon();
        }
    }
}

impl Dismantle for Incarnation {
    fn dismantle(&mut self, budget: usize) -> bool {
        if self.table.dismantle(budget) || self.remotes.dismantle(budget) {
            return true;
        }
        let left = self.watches.len().saturating_sub(WATCHES_PER_STEP);
        self.watches.truncate(left);
        left > 0
    }
}

impl Incarnation {
    /// Has the VM tell us of the death of the calling process.
    #[cold]
    pub(crate) fn watch_caller(&self, here: Here<'_>, place: u64) -> Result<(), Trouble> {
        let watch = &self.watches[place as usize % WATCHES];
        let env = here.env();
        fault::point();
        let watched = match env.monitor(watch, &env.pid()) {
            Some(_) => Ok(()),
            None => Err(Trouble::NotWatched),
        };
        // A second watch, after a panic here, would find nothing left to give back.
        fault::point();
        watched
    }
}

/// The open incarnation.
#[inline(always)]
pub(crate) fn current(pin: &Pin) -> Option<&Incarnation> {
    INCARNATIONS.current(pin)
}

/// The open incarnation, to be kept for longer than a pin should be.
pub(crate) fn current_shared() -> Option<Shared<Incarnation>> {
    INCARNATIONS.shared()
}

/// A local process, as the table knows it.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    word: NonZeroU64,
    pub(crate) place: u64,
}

impl Caller {
    /// The calling process.
    #[inline(always)]
    pub(crate) fn of(here: Here<'_>) -> Self {
        Self::from_pid(&enif::self_pid(here))
    }

    /// Can this be the word of a local pid? All of them have the same tag.
    pub(crate) fn is_word(word: u64) -> bool {
        word & ((1 << PID_TAG_BITS) - 1) != 0
    }

    /// A local process.
    #[inline(always)]
    pub(crate) fn from_pid(pid: &ErlNifPid) -> Self {
        let word = enif::pid_word(pid);
        Self {
            word,
            place: word.get() >> PID_TAG_BITS,
        }
    }

    #[inline(always)]
    pub(crate) fn holder(self) -> Holder {
        // SAFETY: a process runs on one thread at a time, the VM hands it from one to the next, and calls from it
        // only in normal NIFs, which it cannot be killed inside of; its death is told after the last of them, and
        // once.
        unsafe { Holder::new(self.word, self.place) }
    }
}

/// What a manager wants of its table.
pub(crate) struct Wishes {
    /// How many processes the VM may have.
    pub(crate) processes: usize,
    /// To be shown.
    pub(crate) max_per: TermKey,
    /// Not to lose it by dying, and to adopt one that is there (I4).
    pub(crate) keep: bool,
}

/// Gives the calling process a table to manage. That is an empty one, which closes the one before; or one that was
/// kept.
pub(crate) fn open(env: Env<'_>, wishes: Wishes) -> Result<ResourceArc<ManagerWatch>, Trouble> {
    let opening = INCARNATIONS.opening(wishes.keep)?;
    if let Some((gate, open)) = opening.adopted() {
        let handle = watch_manager(env, gate)?;
        fault::point();
        *open.max_per.lock() = wishes.max_per;
        return Ok(handle);
    }
    open_anew(env, wishes, opening)
}

fn open_anew(
    env: Env<'_>,
    wishes: Wishes,
    opening: Opening<Incarnation>,
) -> Result<ResourceArc<ManagerWatch>, Trouble> {
    static SERIALS: AtomicU64 = AtomicU64::new(1);
    let table = Table::new(wishes.processes)?;
    fault::memory()?;
    let mut watches = Vec::new();
    watches
        .try_reserve_exact(WATCHES)
        .map_err(|_| OutOfMemory)?;
    watches.extend((0..WATCHES).map(|_| ResourceArc::new(HolderWatch(opening.gate()))));
    let handle = watch_manager(env, opening.gate())?;
    fault::point();
    // From here on nothing can fail or panic: the ways to the old table and to the new one change together.
    opening.open(Incarnation {
        table,
        remotes: Remotes::default(),
        serial: SERIALS.fetch_add(1, Ordering::Relaxed),
        max_per: Mutex::new(wishes.max_per),
        watches,
    });
    Ok(handle)
}

/// A handle for the calling process, whose death it hears of.
fn watch_manager(
    env: Env<'_>,
    gate: Gate<Incarnation>,
) -> Result<ResourceArc<ManagerWatch>, Trouble> {
    let handle = ResourceArc::new(ManagerWatch(gate));
    match env.monitor(&handle, &env.pid()) {
        Some(_) => Ok(handle),
        None => Err(Trouble::NotWatched),
    }
}

impl ManagerWatch {
    /// The table that is managed, as long as it is open.
    pub(crate) fn incarnation<'a>(&self, pin: &'a Pin) -> Option<&'a Incarnation> {
        self.0.incarnation(pin)
    }

    /// Closes the table, if it is still open.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// One bounded step of the sweep.
    pub(crate) fn sweep_step(&self, budget: usize) -> Progress {
        let pin = pin();
        match self.incarnation(&pin) {
            Some(incarnation) => incarnation.table.sweep_step(budget),
            None => Progress::Done,
        }
    }
}

/// One bounded step of freeing what has been closed, the oldest first.
pub(crate) fn dismantle_step(budget: usize) -> Progress {
    INCARNATIONS.dismantle_step(budget)
}
