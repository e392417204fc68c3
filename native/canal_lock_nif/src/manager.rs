//! The NIFs that the manager calls: they open, sweep and close a table, and free what no call can reach. `represent`
//! and `proxy_of` are for proxies.

use crate::clock::now_us;
use crate::enif::{self, CallEnv};
use crate::incarnation::{self, with_table, KeeperWatch, INCARNATIONS, WAITERS_PER_STEP};
use crate::{caller::Caller, error::CallError, key::interned};
use permit_table::{inject, pin, Progress};
use rustler::schedule::consume_timeslice;
use rustler::{Atom, Encoder, Env, NifResult, ResourceArc, Term};

/// Budget units per percent of a timeslice. A timeslice is a millisecond.
const UNITS_PER_PERCENT: usize = 25;

/// The part of a timeslice that `open` takes: it makes a thousand watches.
const PERCENT_TO_OPEN: i32 = 10;

/// The part that a step of dismantling takes: the caller then waits until the processes whose monitors were removed
/// have run.
const PERCENT_TO_DISMANTLE: i32 = 100;

/// The part that [`WAITERS_PER_STEP`] take.
const PERCENT_TO_END_WAITS: i32 = 25;

mod atoms {
    rustler::atoms! { closed, done, last, more, none, ok, others, waiting }
}

/// `open(ProcessLimit, MaxPer, Keep, MaxWaiting) -> Handle | more`: a table for the caller to manage. `more`: it has
/// told a piece of the processes that wait for the previous table; the caller must call again.
#[rustler::nif]
fn open<'a>(
    env: Env<'a>,
    processes: usize,
    max_per: Term<'a>,
    keep: bool,
    max_waiting: usize,
) -> NifResult<Term<'a>> {
    let max_per = enif::external_format(max_per).map_err(CallError::from)?;
    let handle = incarnation::open(env, processes, max_per, keep, max_waiting)?;
    let (percent, answer) = match handle {
        Some(handle) => (PERCENT_TO_OPEN, handle.encode(env)),
        None => (PERCENT_TO_END_WAITS, atoms::more().encode(env)),
    };
    consume_timeslice(env, percent);
    Ok(answer)
}

/// `join(KeepOnCrash) -> Handle | none`: makes the caller a standby, which keeps the table open.
#[rustler::nif]
fn join(env: Env, keep_on_crash: bool) -> NifResult<Term> {
    let handle = incarnation::join(env, keep_on_crash)?;
    Ok(handle.map_or_else(|| atoms::none().encode(env), |handle| handle.encode(env)))
}

/// `adopt(Handle, MaxPer, MaxWaiting) -> ok | closed | more`: makes a standby the manager. `more`: as of `open`.
#[rustler::nif]
fn adopt(
    env: Env,
    handle: ResourceArc<KeeperWatch>,
    max_per: Term,
    max_waiting: usize,
) -> NifResult<Atom> {
    let max_per = enif::external_format(max_per).map_err(CallError::from)?;
    Ok(match handle.adopt(env, max_per, max_waiting) {
        None => {
            consume_timeslice(env, PERCENT_TO_END_WAITS);
            atoms::more()
        }
        Some(true) => atoms::ok(),
        Some(false) => atoms::closed(),
    })
}

/// `is_open(Handle) -> boolean()`
#[rustler::nif]
fn is_open(handle: ResourceArc<KeeperWatch>) -> bool {
    inject::panic();
    handle.gate.incarnation(&pin()).is_some()
}

/// `leave(Handle) -> last | others`: the caller shuts down cleanly. `last`: it must close the table.
#[rustler::nif]
fn leave(env: Env, handle: ResourceArc<KeeperWatch>) -> Atom {
    if handle.leave(env) {
        atoms::last()
    } else {
        atoms::others()
    }
}

/// `configure(Handle, MaxPer, MaxWaiting) -> ok`: changes these options of the table.
#[rustler::nif]
fn configure(
    handle: ResourceArc<KeeperWatch>,
    max_per: Term,
    max_waiting: usize,
) -> NifResult<Atom> {
    let max_per = enif::external_format(max_per).map_err(CallError::from)?;
    handle.configure(max_per, max_waiting);
    Ok(atoms::ok())
}

/// `end_waits(Handle) -> more | done`: tells a piece of the waiting processes that the table closes. From then on none
/// starts to wait.
#[rustler::nif]
fn end_waits(env: Env, handle: ResourceArc<KeeperWatch>) -> Atom {
    let pin = pin();
    let open = handle.gate.incarnation(&pin);
    let call = CallEnv::from_env(env);
    let is_done = open.is_none_or(|open| open.table.close(WAITERS_PER_STEP, call));
    consume_timeslice(env, PERCENT_TO_END_WAITS);
    if is_done {
        atoms::done()
    } else {
        atoms::more()
    }
}

/// `close(Handle) -> ok`: the table, and all waits that [`end_waits`] has not ended.
#[rustler::nif]
fn close(env: Env, handle: ResourceArc<KeeperWatch>) -> Atom {
    handle.gate.close(|open| open.end_waits(env));
    atoms::ok()
}

/// `sweep_step(Handle, Units) -> more | waiting | done`: checks or frees about this many keys, and reports the time to
/// the VM.
#[rustler::nif]
fn sweep_step(env: Env, handle: ResourceArc<KeeperWatch>, units: usize) -> Atom {
    let pin = pin();
    let open = handle.gate.incarnation(&pin);
    let (progress, spent) = open.map_or((Progress::Done, 0), |open| open.table.sweep_step(units));
    let percent = (spent / UNITS_PER_PERCENT).clamp(1, 100);
    consume_timeslice(env, percent as i32);
    progress_atom(progress)
}

/// `advance_clock(Handle, Interval_ms) -> ok`: the next call follows after the interval.
#[rustler::nif]
fn advance_clock(handle: ResourceArc<KeeperWatch>, interval_ms: u64) -> Atom {
    inject::panic();
    let pin = pin();
    if let Some(open) = handle.gate.incarnation(&pin) {
        let interval_us = interval_ms.saturating_mul(1000);
        open.table
            .advance_clock(now_us().saturating_add(interval_us));
    }
    atoms::ok()
}

/// `take_longest_wait(Handle) -> Wait_us`: `longest_wait_us`, which begins at 0 again.
#[rustler::nif]
fn take_longest_wait(handle: ResourceArc<KeeperWatch>) -> u64 {
    inject::panic();
    let pin = pin();
    let open = handle.gate.incarnation(&pin);
    open.map_or(0, |open| open.table.take_longest_wait())
}

/// `dismantle_step() -> more | waiting | done`: lets the VM remove monitors of closed tables. `free_unused` frees the
/// rest.
#[rustler::nif]
fn dismantle_step(env: Env) -> Atom {
    let progress = INCARNATIONS.dismantle_step();
    if progress == Progress::More {
        consume_timeslice(env, PERCENT_TO_DISMANTLE);
    }
    progress_atom(progress)
}

fn progress_atom(progress: Progress) -> Atom {
    match progress {
        Progress::More => atoms::more(),
        Progress::Waiting => atoms::waiting(),
        Progress::Done => atoms::done(),
    }
}

/// `has_unused() -> boolean()`: whether `free_unused` has anything to free.
#[rustler::nif]
fn has_unused() -> bool {
    inject::panic();
    interned::has_unused() || INCARNATIONS.has_emptied()
}

/// `free_unused() -> ok`: frees long keys that are not in use, and closed tables. Dirty, because a table of a million
/// keys takes about 0.25 s.
#[rustler::nif(schedule = "DirtyCpu")]
fn free_unused() -> Atom {
    interned::free_unused();
    INCARNATIONS.drop_emptied();
    atoms::ok()
}

/// `represent(Pid) -> ok | Proxy`: makes the caller the proxy of a process on another node, or returns the live proxy
/// of that process.
#[rustler::nif]
fn represent<'a>(env: Env<'a>, holder: Term<'a>) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let other = with_table(env, holder, |open, _, holder| {
        let watch = || open.watch_proxy(call);
        open.proxies.represent(call, holder, watch)
    })?;
    Ok(call.term(other.map_or(atoms::ok().as_c_arg(), Caller::pid)))
}

/// `proxy_of(Pid) -> Proxy | none`
#[rustler::nif]
fn proxy_of<'a>(env: Env<'a>, holder: Term<'a>) -> NifResult<Term<'a>> {
    let proxy = with_table(env, holder, |open, _, holder| {
        Ok(open.proxies.proxy(holder))
    })?;
    let call = CallEnv::from_env(env);
    Ok(call.term(proxy.map_or(atoms::none().as_c_arg(), Caller::pid)))
}
