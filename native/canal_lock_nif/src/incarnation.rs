//! Tables opened and closed, and the watch on whoever must not die unnoticed.
//!
//! A table is an incarnation: it begins empty, and what is in it ends with it. At most one is open.
//!
//! ```text
//!   CURRENT ------------------.                        .---- ManagerWatch   down: closes, unless it is kept
//!                             v                        v     (the manager's handle; one for each that adopts it)
//!                        Incarnation  <---------  Gate (shared)
//!                        table, watches                ^
//!                             '-----------------> HolderWatch x 1024       down: gives back
//! ```
//!
//! - **I1** The way to an incarnation is `CURRENT` for callers and its own gate for its watches. A death callback
//!   acts on the table that it watched for, never on one that was opened since: a parent sees the `'EXIT'` of a
//!   manager, and may start the next one, before the callback of the old one has run.
//! - **I2** To close is to take both ways away. Whoever is inside by then finishes its call on the closed table,
//!   whose permits are void anyway. The table is freed when nobody is inside any more (`permit_table::stamp`), a
//!   piece at a time, by whoever manages the next table, or by the one that closes it in order.
//! - **I3** A process that has died holding permits of a closed table changes nothing: its watch finds the gate
//!   empty.
//! - **I4** A table that is kept stays open when its manager dies; nothing in it needs one but holders on other nodes
//!   and the sweep. The next manager that wants to keep one adopts it, with a watch of its own on the same gate; any
//!   other opens a new one, which closes it. In order, a manager closes its table itself.

use crate::enif::{self, Here};
use crate::key::TermKey;
use crate::remote::Remotes;
use parking_lot::Mutex;
use permit_table::{
    fault, make_room, pin, quiet_before, stamp, GivenBack, Holder, Pin, Progress, Table,
};
use rustler::sys::ErlNifPid;
use rustler::{Env, LocalPid, Monitor, Resource, ResourceArc};
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::Arc;

/// Watches on holders per table. Each has a lock and a tree of monitors of its own in the VM, so that many processes
/// that come and go at once rarely meet.
const WATCHES: usize = 1024;

/// Watches let go in one step of dismantling. With 200,000 processes alive the VM takes away 1,600 monitors with
/// them.
const WATCHES_PER_STEP: usize = 8;

/// In place of the stamp of a closed incarnation: nobody is inside any more. Stamps start above it.
const QUIET: u64 = 0;

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
    /// It stays open when the manager dies (I4).
    kept: bool,
    watches: Vec<ResourceArc<HolderWatch>>,
}

/// The way from the watches to their incarnation; null when it is closed.
#[derive(Default)]
struct Gate(AtomicPtr<Incarnation>);

/// Told of the deaths of holders.
pub(crate) struct HolderWatch(Arc<Gate>);

/// Told of the death of the manager; the manager's own handle on its table.
pub(crate) struct ManagerWatch(Arc<Gate>);

/// The open incarnation, or null. Counted as an `Arc`.
static CURRENT: AtomicPtr<Incarnation> = AtomicPtr::new(ptr::null_mut());

/// Closed incarnations, each with the stamp of its closing. Whoever opens or closes one holds this lock.
///
/// A panic inside (a bug of ours) leaves it free, and each table either open or closed: whatever may go wrong comes
/// before the ways to a table are changed. One that is being freed stays in the list until nothing is left of it.
static CLOSED: Mutex<Vec<(u64, Arc<Incarnation>)>> = Mutex::new(Vec::new());

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
        let close = || {
            if !self.incarnation(&pin()).is_some_and(|own| own.kept) {
                self.close();
            }
        };
        if catch_unwind(AssertUnwindSafe(close)).is_err() {
            close();
        }
    }
}

impl Gate {
    fn incarnation<'a>(&self, _pin: &'a Pin) -> Option<&'a Incarnation> {
        // SAFETY: it is freed only when nobody is inside who was when it left this place (I2).
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

impl Incarnation {
    /// The way that its watches come by.
    fn gate(&self) -> Arc<Gate> {
        self.watches[0].0.clone()
    }

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
pub(crate) fn current(_pin: &Pin) -> Option<&Incarnation> {
    // SAFETY: as in `Gate::incarnation`.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The open incarnation, to be kept for longer than a pin should be.
pub(crate) fn current_kept() -> Option<Arc<Incarnation>> {
    let _pin = pin();
    let open = CURRENT.load(Ordering::Acquire).cast_const();
    if open.is_null() {
        return None;
    }
    // SAFETY: from `Arc::into_raw` in `open`. The list of closed ones keeps its count while we are inside.
    unsafe {
        Arc::increment_strong_count(open);
        Some(Arc::from_raw(open))
    }
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
    let mut closed = CLOSED.lock();
    if wishes.keep {
        // SAFETY: whoever takes it out of there holds the lock.
        if let Some(open) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
            if open.kept {
                return adopt(env, open, wishes.max_per);
            }
        }
    }
    let gate = Arc::new(Gate::default());
    let table = Table::new(wishes.processes)?;
    fault::memory()?;
    let mut watches = Vec::new();
    watches
        .try_reserve_exact(WATCHES)
        .map_err(|_| Trouble::OutOfMemory)?;
    watches.extend((0..WATCHES).map(|_| ResourceArc::new(HolderWatch(gate.clone()))));
    let handle = ResourceArc::new(ManagerWatch(gate));
    // Room for the one that is closed now, and for this one some day: closing must not fail.
    make_room(&mut closed, 2)?;
    watch_manager(env, &handle)?;
    fault::point();
    // From here on nothing can fail or panic: the ways to the old table and to the new one change together.
    static SERIALS: AtomicU64 = AtomicU64::new(1);
    let incarnation = Incarnation {
        table,
        remotes: Remotes::default(),
        serial: SERIALS.fetch_add(1, Ordering::Relaxed),
        max_per: Mutex::new(wishes.max_per),
        kept: wishes.keep,
        watches,
    };
    let fresh = Arc::into_raw(Arc::new(incarnation)).cast_mut();
    handle.0 .0.store(fresh, Ordering::Release);
    let previous = CURRENT.swap(fresh, Ordering::AcqRel);
    if !previous.is_null() {
        // SAFETY: it was open until now, so it is alive, and stays so while we hold the lock.
        let previous = unsafe { &*previous };
        close_gate(&previous.gate(), &mut closed);
    }
    Ok(handle)
}

fn adopt(
    env: Env<'_>,
    open: &Incarnation,
    max_per: TermKey,
) -> Result<ResourceArc<ManagerWatch>, Trouble> {
    let handle = ResourceArc::new(ManagerWatch(open.gate()));
    watch_manager(env, &handle)?;
    fault::point();
    *open.max_per.lock() = max_per;
    Ok(handle)
}

fn watch_manager(env: Env<'_>, handle: &ResourceArc<ManagerWatch>) -> Result<(), Trouble> {
    match env.monitor(handle, &env.pid()) {
        Some(_) => Ok(()),
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
        let mut closed = CLOSED.lock();
        fault::point();
        close_gate(&self.0, &mut closed);
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

fn close_gate(gate: &Gate, closed: &mut Vec<(u64, Arc<Incarnation>)>) {
    let incarnation = gate.0.swap(ptr::null_mut(), Ordering::AcqRel);
    if incarnation.is_null() {
        return;
    }
    // Failing means that another one has been opened: it stays.
    let _ = CURRENT.compare_exchange(
        incarnation,
        ptr::null_mut(),
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    // SAFETY: from `Arc::into_raw` in `open`; the gate gave it up just now, to nobody but us.
    let incarnation = unsafe { Arc::from_raw(incarnation) };
    // `open` has reserved the room.
    closed.push((stamp(), incarnation));
}

/// One bounded step of freeing what has been closed, the oldest first.
pub(crate) fn dismantle_step(budget: usize) -> Progress {
    let mut closed = CLOSED.lock();
    fault::point();
    let Some((stamp, incarnation)) = closed.first_mut() else {
        return Progress::Done;
    };
    if *stamp != QUIET {
        if *stamp >= quiet_before() {
            return Progress::Waiting;
        }
        // To ask again at each step would interrupt all processors each time.
        *stamp = QUIET;
    }
    // Nobody is inside by a pin; somebody may still be looking at it from `current_kept`.
    let Some(alone) = Arc::get_mut(incarnation) else {
        return Progress::Waiting;
    };
    let budget = budget.max(1);
    fault::point();
    if alone.table.dismantle(budget) || alone.remotes.dismantle(budget) {
        return Progress::More;
    }
    let left = alone.watches.len().saturating_sub(WATCHES_PER_STEP);
    alone.watches.truncate(left);
    if left == 0 {
        let gone = closed.remove(0);
        drop(closed);
        drop(gone);
    }
    Progress::More
}
