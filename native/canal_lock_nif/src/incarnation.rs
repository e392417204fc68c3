//! The table that is open, and those who must not die unnoticed.
//!
//! ```text
//!   INCARNATIONS -----------.                          .---- ManagerWatch   down: closes, unless it is kept
//!                           v                          v     (the manager's handle; one for each that adopts it)
//!                      Incarnation  <-----------  gate (shared)
//!                      table, watches                  ^
//!                           '-------------------> HolderWatch x 1024       down: gives back
//!                                                 HolderWatch x 128        down: the same, for proxies (R2)
//! ```
//!
//! How tables follow one another, and what a late death may touch, is `permit_table`'s (`incarnations.rs`, I1 to I5).
//! Here is what only the VM can do: it keeps the watches, and reports deaths to them. A table that is kept (I4) needs a
//! manager for the sweep only, and to start proxies. A manager that shuts down cleanly closes its table itself; the
//! table is freed by that manager, or by the next one.

use crate::caller::Caller;
use crate::enif::{self, CallEnv};
use crate::error::CallError;
use crate::key::TermKey;
use crate::proxies::Proxies;
use parking_lot::Mutex;
use permit_table::{fault, make_room, pin, Dismantle, Gate, Incarnations, OutOfMemory, Pin, Table};
use rustler::{Env, LocalPid, Monitor, Resource, ResourceArc};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

/// Watches on holders per table. Each has a lock and a tree of monitors of its own in the VM, so that many processes
/// that come and go at once rarely meet.
const WATCHES: usize = 1024;

/// The same for proxies, of which there are fewer.
const PROXY_WATCHES: usize = 128;

/// Watches are let go step by step, until they had this many monitors. For each monitor the VM sends a signal to the
/// process, which then runs for about 10 µs.
const MONITORS_PER_STEP: usize = 64;

/// One table, its watches, and what else outlives a manager that crashes.
pub(crate) struct Incarnation {
    pub(crate) table: Table<TermKey>,
    pub(crate) proxies: Proxies,
    /// Tells it from all others.
    pub(crate) serial: u64,
    /// What the manager was started with, to be shown. It is copied or replaced as a whole: a panic leaves one or the
    /// other.
    pub(crate) max_per: Mutex<TermKey>,
    /// Those on holders, then those on proxies.
    watches: Vec<ResourceArc<HolderWatch>>,
}

/// Told of the deaths of holders, or of proxies.
pub(crate) struct HolderWatch {
    gate: Gate<Incarnation>,
    of_proxies: bool,
    /// How many monitors it has in the VM.
    monitors: AtomicUsize,
}

/// Told of the death of the manager; the manager's own handle on its table.
pub(crate) struct ManagerWatch {
    pub(crate) gate: Gate<Incarnation>,
}

/// All of them. What is closed is dismantled on a normal scheduler, on which the VM then removes the monitors before it
/// runs the caller again; and dropped on a dirty one.
pub(crate) static INCARNATIONS: Incarnations<Incarnation> = Incarnations::new();

// The VM reports a death once. What is done then allocates nothing that it needs, and if it panics (a bug of ours),
// it is tried once more, here or in `Table::give_back`. What is on record after a second panic stays out until the
// table is closed by the next one.

/// Runs a callback of the VM, which a panic must not leave: the VM would abort.
pub(crate) fn contain_panic(callback: impl FnOnce()) -> thread::Result<()> {
    catch_unwind(AssertUnwindSafe(callback))
}

#[rustler::resource_impl]
impl Resource for HolderWatch {
    const IMPLEMENTS_DOWN: bool = true;
    const IMPLEMENTS_DESTRUCTOR: bool = true;

    fn down<'a>(&'a self, env: Env<'a>, pid: LocalPid, monitor: Monitor) {
        self.monitors.fetch_sub(1, Ordering::Relaxed);
        let handle = || {
            let pin = pin();
            if let Some(incarnation) = self.gate.incarnation(&pin) {
                let dead = Caller::from_pid(pid.as_c_arg());
                let is_reused = || incarnation.watch_next(env, pid);
                incarnation.table.give_back(&pin, dead.holder(), is_reused);
                if self.of_proxies {
                    incarnation.proxies.forget(dead, monitor);
                }
            }
        };
        let _ = contain_panic(handle).or_else(|_| contain_panic(handle));
    }

    fn destructor(self, _: Env<'_>) {
        let _ = contain_panic(|| drop(self));
    }
}

#[rustler::resource_impl]
impl Resource for ManagerWatch {
    const IMPLEMENTS_DOWN: bool = true;
    const IMPLEMENTS_DESTRUCTOR: bool = true;

    fn down<'a>(&'a self, _: Env<'a>, _: LocalPid, _: Monitor) {
        let handle = || self.gate.abandon();
        let _ = contain_panic(handle).or_else(|_| contain_panic(handle));
    }

    fn destructor(self, _: Env<'_>) {
        let _ = contain_panic(|| drop(self));
    }
}

impl Dismantle for Incarnation {
    fn dismantle(&mut self) -> bool {
        let mut monitors = 0;
        while let Some(watch) = self.watches.pop() {
            monitors += watch.monitors.load(Ordering::Relaxed);
            if monitors >= MONITORS_PER_STEP {
                return true;
            }
        }
        false
    }
}

impl HolderWatch {
    fn all(gate: &Gate<Incarnation>) -> Result<Vec<ResourceArc<Self>>, OutOfMemory> {
        let mut watches = Vec::new();
        make_room(&mut watches, WATCHES + PROXY_WATCHES)?;
        watches.extend((0..WATCHES + PROXY_WATCHES).map(|index| {
            ResourceArc::new(Self {
                gate: gate.clone(),
                of_proxies: index >= WATCHES,
                monitors: AtomicUsize::new(0),
            })
        }));
        Ok(watches)
    }

    /// Has the VM report the death of a process.
    fn watch(this: &ResourceArc<Self>, env: Env<'_>, pid: LocalPid) -> Result<Monitor, CallError> {
        let monitor = enif::monitor(env, this, pid).ok_or(CallError::NotWatched)?;
        this.monitors.fetch_add(1, Ordering::Relaxed);
        Ok(monitor)
    }
}

impl Incarnation {
    /// Has the VM report the death of the calling process.
    #[cold]
    pub(crate) fn watch_caller(&self, call: CallEnv<'_>, caller: Caller) -> Result<(), CallError> {
        fault::point();
        HolderWatch::watch(self.watch_of(caller), call.env(), call.env().pid())?;
        // A second watch, after a panic here, would find nothing left to give back.
        fault::point();
        Ok(())
    }

    /// The same of a proxy, which is the calling process.
    pub(crate) fn watch_proxy(&self, call: CallEnv<'_>) -> Result<Monitor, CallError> {
        let watch = &self.watches[WATCHES + Caller::of(call).place() as usize % PROXY_WATCHES];
        HolderWatch::watch(watch, call.env(), call.env().pid())
    }

    /// Asked when a death is reported: is another process with this pid alive? Then its death will be reported, too.
    fn watch_next(&self, env: Env<'_>, pid: LocalPid) -> bool {
        let watch = self.watch_of(Caller::from_pid(pid.as_c_arg()));
        // The VM also monitors a process that is exiting, and so is not alive anymore.
        pid.is_alive(env) && HolderWatch::watch(watch, env, pid).is_ok()
    }

    fn watch_of(&self, process: Caller) -> &ResourceArc<HolderWatch> {
        &self.watches[process.place() as usize % WATCHES]
    }
}

/// The open incarnation.
#[inline(always)]
pub(crate) fn current(pin: &Pin) -> Option<&Incarnation> {
    INCARNATIONS.current(pin)
}

/// Gives the calling process a table to manage. That is an empty one, for as many processes as the VM may have, which
/// closes the one before; or one that was kept. With `keep` the manager does not lose it by dying, and adopts one that
/// is there (I4).
pub(crate) fn open(
    env: Env<'_>,
    processes: usize,
    max_per: TermKey,
    keep: bool,
) -> Result<ResourceArc<ManagerWatch>, CallError> {
    static SERIALS: AtomicU64 = AtomicU64::new(1);
    let opening = INCARNATIONS.opening(keep)?;
    if let Some((gate, open)) = opening.adopted() {
        let handle = watch_manager(env, gate)?;
        fault::point();
        *open.max_per.lock() = max_per;
        return Ok(handle);
    }
    let table = Table::new(processes)?;
    let watches = HolderWatch::all(&opening.gate())?;
    let handle = watch_manager(env, opening.gate())?;
    fault::point();
    // From here on nothing can fail or panic: the ways to the old table and to the new one change together.
    opening.open(Incarnation {
        table,
        proxies: Proxies::default(),
        serial: SERIALS.fetch_add(1, Ordering::Relaxed),
        max_per: Mutex::new(max_per),
        watches,
    });
    Ok(handle)
}

/// A handle for the calling process, whose death it hears of.
fn watch_manager(
    env: Env<'_>,
    gate: Gate<Incarnation>,
) -> Result<ResourceArc<ManagerWatch>, CallError> {
    let handle = ResourceArc::new(ManagerWatch { gate });
    enif::monitor(env, &handle, env.pid()).ok_or(CallError::NotWatched)?;
    Ok(handle)
}
