//! Opens, keeps and closes tables, and watches the keepers and the holders of each.
//!
//! ```text
//!   INCARNATIONS -----------.                          .---- KeeperWatch    down: closes the table after the last one
//!                           v                          v     (the handle of a manager or a standby)
//!                      Incarnation  <-----------  gate (shared)
//!                      table, watches                  ^
//!                           '-------------------> HolderWatch x 1024       down: releases all permits of the process
//!                                                 HolderWatch x 128        down: the same, for proxies (R2)
//! ```
//!
//! `permit_table` decides how tables follow one another, and what a death that is reported late may access
//! (`incarnations.rs`, I1 to I5). This file adds what needs the VM: the VM keeps the watches and reports deaths to
//! them. Each process that keeps the table open, the manager or a standby, is a *keeper*. The table closes when its
//! last keeper ends, unless that crashes with `keep_on_crash`. A kept table (I4) needs a manager only to sweep it and
//! to start proxies.

use crate::clock::now_us;
use crate::enif::{self, CallEnv};
use crate::error::{repeat_after_panic, CallError};
use crate::key::{with_key, EncodedTerm, Namespace, StoredKey};
use crate::{caller::Caller, notice::Message, proxies::Proxies};
use parking_lot::Mutex;
use permit_table::{
    inject, pin, reserve, Dismantle, Gate, Incarnations, Opening, OutOfMemory, Pin, Table,
};
use rustler::{Env, LocalPid, Monitor, NifResult, OwnedBinary, Resource, ResourceArc, Term};
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Watches on holders per table. Each has its own lock and tree of monitors in the VM, so processes that start and end
/// at the same time rarely contend.
const WATCHES: usize = 1024;

/// Watches on proxies per table. There are fewer proxies.
const PROXY_WATCHES: usize = 128;

/// Waiting processes that one step tells that their table closes.
pub(crate) const WAITERS_PER_STEP: usize = 128;

/// One step of dismantling drops watches until these had this many monitors. For each monitor the VM sends a signal to
/// the process, which then runs for about 10 µs.
const MONITORS_PER_STEP: usize = 64;

/// A table, from open to close, with everything that outlives a manager that crashes.
pub(crate) struct Incarnation {
    pub(crate) table: Table<StoredKey, Message>,
    pub(crate) proxies: Proxies,
    /// Unique among all incarnations.
    pub(crate) serial: u64,
    /// Changed under the lock of [`INCARNATIONS`], in one step with the decision to close.
    keepers: Mutex<Keepers>,
    /// The manager's option, for `info/0`, in the external format. It is read or replaced as a whole, so a panic leaves
    /// the old or the new.
    pub(crate) max_per: Mutex<OwnedBinary>,
    /// The watches on holders, then those on proxies.
    watches: Vec<ResourceArc<HolderWatch>>,
}

/// The VM reports deaths of holders or of proxies to it.
pub(crate) struct HolderWatch {
    gate: Gate<Incarnation>,
    of_proxies: bool,
    /// The number of its monitors in the VM.
    monitors: AtomicUsize,
}

/// A keeper's handle on its table. The VM reports the keeper's death to it.
pub(crate) struct KeeperWatch {
    pub(crate) gate: Gate<Incarnation>,
}

/// The processes that keep a table open.
#[derive(Default)]
struct Keepers {
    /// Also dead ones whose deaths are not reported yet.
    known: Vec<Keeper>,
    /// The last one has crashed with `keep_on_crash`.
    kept: bool,
}

struct Keeper {
    pid: LocalPid,
    keep_on_crash: bool,
}

impl Keepers {
    /// The calling process. It outlives the dead ones, so their late reports decide nothing any more.
    fn add_caller(&mut self, env: Env<'_>, keep_on_crash: bool) -> Result<(), OutOfMemory> {
        reserve(&mut self.known, 1)?;
        self.known.retain(|keeper| keeper.pid.is_alive(env));
        let pid = env.pid();
        self.known.push(Keeper { pid, keep_on_crash });
        self.kept = false;
        Ok(())
    }

    /// Returns whether the table must close.
    fn remove(&mut self, pid: LocalPid, is_crash: bool) -> bool {
        let keeper = self.known.iter().position(|keeper| keeper.pid == pid);
        let keeper = keeper.map(|index| self.known.swap_remove(index));
        self.kept |=
            self.known.is_empty() && keeper.is_some_and(|keeper| is_crash && keeper.keep_on_crash);
        self.known.is_empty() && !self.kept
    }

    /// Whether the next manager adopts the table. Otherwise it is closed once the deaths are reported.
    fn is_kept(&self, env: Env<'_>) -> bool {
        let keeps = |keeper: &Keeper| keeper.keep_on_crash || keeper.pid.is_alive(env);
        self.kept || self.known.iter().any(keeps)
    }
}

/// All incarnations. A closed one is dismantled on a normal scheduler, where the VM removes the monitors before it runs
/// the caller again. A dirty scheduler then drops it.
pub(crate) static INCARNATIONS: Incarnations<Incarnation> = Incarnations::new();

// The VM reports a death once. The callback needs no memory. If it panics (a bug in this library), it is repeated once,
// here or in `Table::release_all`. Permits still recorded after a second panic stay in use until the table is closed.

#[rustler::resource_impl]
impl Resource for HolderWatch {
    fn down<'a>(&'a self, env: Env<'a>, pid: LocalPid, monitor: Monitor) {
        self.monitors.fetch_sub(1, Ordering::Relaxed);
        repeat_after_panic(|| {
            let pin = pin();
            if let Some(open) = self.gate.incarnation(&pin) {
                let dead = Caller::from_pid(pid.as_c_arg());
                let is_reused = || open.watch_if_alive(env, pid);
                let call = CallEnv::from_env(env);
                open.table.release_all(&pin, dead.holder(), is_reused, call);
                if self.of_proxies {
                    open.proxies.forget(dead, monitor);
                }
            }
        });
    }
}

#[rustler::resource_impl]
impl Resource for KeeperWatch {
    fn down<'a>(&'a self, env: Env<'a>, pid: LocalPid, _: Monitor) {
        repeat_after_panic(|| {
            let is_last = |open: &Incarnation| open.keepers.lock().remove(pid, true);
            self.gate.close_if(is_last, |open| open.end_waits(env));
        });
    }
}

impl KeeperWatch {
    /// To be called by a keeper that shuts down cleanly. Returns whether the table must close.
    pub(crate) fn leave(&self, env: Env<'_>) -> bool {
        let mut is_last = false;
        let decide = |open: &Incarnation| {
            is_last = open.keepers.lock().remove(env.pid(), false);
            false
        };
        self.gate.close_if(decide, |_| ());
        is_last
    }

    /// Changes the options of the open table.
    pub(crate) fn configure(&self, max_per: OwnedBinary, max_waiting: usize) {
        inject::panic();
        if let Some(open) = self.gate.incarnation(&pin()) {
            *open.max_per.lock() = max_per;
            open.table.set_max_waiting(max_waiting);
        }
    }

    /// Makes the calling process, which has this handle, the manager. Returns `None` as [`open`] does, and whether the
    /// table is still open.
    pub(crate) fn adopt(
        &self,
        env: Env<'_>,
        max_per: OwnedBinary,
        max_waiting: usize,
    ) -> Option<bool> {
        let pin = pin();
        let Some(open) = self.gate.incarnation(&pin) else {
            return Some(false);
        };
        if !open.has_ended_waits(env) {
            return None;
        }
        self.configure(max_per, max_waiting);
        open.table.reopen();
        Some(true)
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
        reserve(&mut watches, WATCHES + PROXY_WATCHES)?;
        watches.extend((0..WATCHES + PROXY_WATCHES).map(|index| {
            ResourceArc::new(Self {
                gate: gate.clone(),
                of_proxies: index >= WATCHES,
                monitors: AtomicUsize::new(0),
            })
        }));
        Ok(watches)
    }

    /// Makes the VM report the death of a process.
    fn watch(this: &ResourceArc<Self>, env: Env<'_>, pid: LocalPid) -> Result<Monitor, CallError> {
        let monitor = enif::monitor(env, this, pid).ok_or(CallError::NotWatched)?;
        this.monitors.fetch_add(1, Ordering::Relaxed);
        Ok(monitor)
    }
}

impl Incarnation {
    /// Makes the VM report the death of the calling process.
    #[cold]
    pub(crate) fn watch_caller(&self, call: CallEnv<'_>) -> Result<(), CallError> {
        inject::panic();
        let watch = self.watch_of(Caller::of(call));
        HolderWatch::watch(watch, call.env(), call.env().pid())?;
        // If this panics, the caller is watched again later. The second report of its death finds nothing to release.
        inject::panic();
        Ok(())
    }

    /// Makes the VM report the death of the calling process, which is a proxy.
    pub(crate) fn watch_proxy(&self, call: CallEnv<'_>) -> Result<Monitor, CallError> {
        let watch = &self.watches[WATCHES + Caller::of(call).number() as usize % PROXY_WATCHES];
        HolderWatch::watch(watch, call.env(), call.env().pid())
    }

    /// Whether a process with this pid is alive. If so, makes the VM report its death: of a process that is given a
    /// permit, or of one that has the pid of a dead one.
    pub(crate) fn watch_if_alive(&self, env: Env<'_>, pid: LocalPid) -> bool {
        inject::panic();
        let watch = self.watch_of(Caller::from_pid(pid.as_c_arg()));
        // The VM also monitors a process that is exiting, which is not alive.
        pid.is_alive(env) && HolderWatch::watch(watch, env, pid).is_ok()
    }

    /// The previous manager may have died while it closed the table. The waits that it has left end in steps.
    fn has_ended_waits(&self, env: Env<'_>) -> bool {
        !self.table.is_closing() || self.table.close(WAITERS_PER_STEP, CallEnv::from_env(env))
    }

    /// Tells all waiting processes that the table closes.
    pub(crate) fn end_waits(&self, env: Env<'_>) {
        // After a panic (a bug), tries once more. The waiters that are left wait until their timeouts.
        repeat_after_panic(|| _ = self.table.close(usize::MAX, CallEnv::from_env(env)));
    }

    fn watch_of(&self, process: Caller) -> &ResourceArc<HolderWatch> {
        &self.watches[process.number() as usize % WATCHES]
    }
}

/// Calls `with` with the open table and the verified encoding of a key or of a handle, under a pin.
pub(crate) fn with_table<T>(
    env: Env<'_>,
    key: Term<'_>,
    with: impl FnOnce(&Incarnation, &Pin, &EncodedTerm<'_>) -> Result<T, CallError>,
) -> NifResult<T> {
    with_table_in(env, Namespace::Local, key, with)
}

/// As [`with_table`], with a key of a namespace.
pub(crate) fn with_table_in<T>(
    env: Env<'_>,
    namespace: Namespace,
    key: Term<'_>,
    with: impl FnOnce(&Incarnation, &Pin, &EncodedTerm<'_>) -> Result<T, CallError>,
) -> NifResult<T> {
    let answer = with_key(CallEnv::from_env(env), namespace, key.as_c_arg(), |key| {
        let pin = pin();
        inject::panic();
        let open = INCARNATIONS.current(&pin).ok_or(CallError::NotStarted)?;
        with(open, &pin, key)
    });
    Ok(answer?)
}

/// Returns the calling process's handle on a table to manage. That is the open table, if it is kept. Otherwise it is an
/// empty one for `processes`, and the previous table is closed.
///
/// Returns `None` if it has only ended a piece of the waits for a table that closes: call it again. They end while
/// callers still find that table, so a request that one of them cancels is found (W3).
pub(crate) fn open(
    env: Env<'_>,
    processes: usize,
    max_per: OwnedBinary,
    keep_on_crash: bool,
    max_waiting: usize,
) -> Result<Option<ResourceArc<KeeperWatch>>, CallError> {
    static SERIALS: AtomicU64 = AtomicU64::new(1);
    let opening = INCARNATIONS.opening()?;
    if let Some((gate, open)) = kept(&opening, env) {
        if !open.has_ended_waits(env) {
            return Ok(None);
        }
        let handle = keep(env, gate, &open.keepers, keep_on_crash)?;
        handle.configure(max_per, max_waiting);
        open.table.reopen();
        return Ok(Some(handle));
    }
    let replaced = opening.current().map(|(_, open)| open);
    if replaced.is_some_and(|open| !open.table.close(WAITERS_PER_STEP, CallEnv::from_env(env))) {
        return Ok(None);
    }
    let unless_open = replaced.map(Reopen);
    let table = Table::new(processes)?;
    table.set_max_waiting(max_waiting);
    // Until the manager advances it.
    table.advance_clock(now_us());
    let watches = HolderWatch::all(&opening.gate())?;
    let keepers = Mutex::default();
    let handle = keep(env, opening.gate(), &keepers, keep_on_crash)?;
    inject::panic();
    // From here on nothing can fail or panic: the old table is closed and the new one opened in one step.
    mem::forget(unless_open);
    let incarnation = Incarnation {
        table,
        proxies: Proxies::default(),
        serial: SERIALS.fetch_add(1, Ordering::Relaxed),
        keepers,
        max_per: Mutex::new(max_per),
        watches,
    };
    opening.open(incarnation);
    Ok(Some(handle))
}

/// Returns the calling process's handle on the open table, which it keeps open as a standby. Returns `None` if there is
/// no table to keep: the manager opens or closes it.
pub(crate) fn join(
    env: Env<'_>,
    keep_on_crash: bool,
) -> Result<Option<ResourceArc<KeeperWatch>>, CallError> {
    let opening = INCARNATIONS.opening()?;
    let Some((gate, open)) = kept(&opening, env).filter(|(_, open)| !open.table.is_closing())
    else {
        return Ok(None);
    };
    Ok(Some(keep(env, gate, &open.keepers, keep_on_crash)?))
}

/// The open table, if it has a keeper that lives, or is kept without one.
fn kept<'a>(
    opening: &'a Opening<Incarnation>,
    env: Env<'_>,
) -> Option<(Gate<Incarnation>, &'a Incarnation)> {
    opening
        .current()
        .filter(|(_, open)| open.keepers.lock().is_kept(env))
}

/// An open table whose waits have ended. On drop, requests can wait for it again: the next table could not be opened.
struct Reopen<'a>(&'a Incarnation);

impl Drop for Reopen<'_> {
    fn drop(&mut self) {
        self.0.table.reopen();
    }
}

/// A handle for the calling process, which becomes a keeper. The VM reports its death to the handle.
fn keep(
    env: Env<'_>,
    gate: Gate<Incarnation>,
    keepers: &Mutex<Keepers>,
    keep_on_crash: bool,
) -> Result<ResourceArc<KeeperWatch>, CallError> {
    let handle = ResourceArc::new(KeeperWatch { gate });
    enif::monitor(env, &handle, env.pid()).ok_or(CallError::NotWatched)?;
    inject::panic();
    keepers.lock().add_caller(env, keep_on_crash)?;
    Ok(handle)
}
