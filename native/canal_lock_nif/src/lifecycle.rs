//! The calls of the manager, for the life and the upkeep of the table, and of proxies.

use crate::arguments::{to_show, with_key};
use crate::caller::Caller;
use crate::enif::CallEnv;
use crate::error::CallError;
use crate::incarnation::{self, current, ManagerWatch, INCARNATIONS};
use crate::key::interned;
use permit_table::{fault, pin, Budget, Progress};
use rustler::schedule::consume_timeslice;
use rustler::{Atom, Env, NifResult, ResourceArc, Term};

/// Units of a budget in a percent of a timeslice, which is a millisecond.
const UNITS_PER_PERCENT: usize = 25;

/// What `open` takes of a timeslice: it makes a thousand watches.
const PERCENT_TO_OPEN: i32 = 10;

/// What a step of dismantling takes: the caller then waits until the processes whose monitors are removed have run.
const PERCENT_TO_DISMANTLE: i32 = 100;

mod atoms {
    rustler::atoms! { done, more, none, ok, waiting }
}

/// `open(ProcessLimit, MaxPer, Keep) -> Handle`: a table for the caller to manage.
#[rustler::nif]
fn open(
    env: Env,
    processes: usize,
    max_per: Term,
    keep: bool,
) -> NifResult<ResourceArc<ManagerWatch>> {
    let max_per = to_show(CallEnv::from_env(env), max_per.as_c_arg())?;
    consume_timeslice(env, PERCENT_TO_OPEN);
    Ok(incarnation::open(env, processes, max_per, keep)?)
}

/// `close(Handle) -> ok`
#[rustler::nif]
fn close(handle: ResourceArc<ManagerWatch>) -> Atom {
    handle.gate.close();
    atoms::ok()
}

/// `sweep_step(Handle, Units) -> more | waiting | done`: looks at or frees about this many keys. Its work counts as
/// time of the calling process.
#[rustler::nif]
fn sweep_step(env: Env, handle: ResourceArc<ManagerWatch>, units: usize) -> Atom {
    let mut budget = Budget::of(units);
    let pin = pin();
    let progress = match handle.gate.incarnation(&pin) {
        Some(open) => open.table.sweep_step(&mut budget),
        None => Progress::Done,
    };
    let percent = (budget.spent() / UNITS_PER_PERCENT).clamp(1, 100);
    consume_timeslice(env, percent as i32);
    in_words(progress)
}

/// `dismantle_step() -> more | waiting | done`: lets the VM remove monitors of closed tables. What is left of them is
/// for `free_unused`.
#[rustler::nif]
fn dismantle_step(env: Env) -> Atom {
    let progress = INCARNATIONS.dismantle_step();
    if progress == Progress::More {
        consume_timeslice(env, PERCENT_TO_DISMANTLE);
    }
    in_words(progress)
}

fn in_words(progress: Progress) -> Atom {
    match progress {
        Progress::More => atoms::more(),
        Progress::Waiting => atoms::waiting(),
        Progress::Done => atoms::done(),
    }
}

/// `has_unused() -> boolean()`: is there anything for the next one?
#[rustler::nif]
fn has_unused() -> bool {
    fault::point();
    interned::has_unused() || INCARNATIONS.has_emptied()
}

/// `free_unused() -> ok`: frees long keys that are not in use, and closed tables. Dirty: a table of a million keys
/// takes about 0.25 s.
#[rustler::nif(schedule = "DirtyCpu")]
fn free_unused() -> Atom {
    interned::free_unused();
    INCARNATIONS.drop_emptied();
    atoms::ok()
}

/// `represent(Pid) -> ok | Proxy`: the caller is the proxy of a process on another node from now on, unless another
/// one is.
#[rustler::nif]
fn represent<'a>(env: Env<'a>, holder: Term<'a>) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let other = with_key(call, holder.as_c_arg(), |holder| {
        let pin = pin();
        let open = current(&pin).ok_or(CallError::NotStarted)?;
        fault::point();
        open.proxies
            .represent(call, holder, || open.watch_proxy(call))
    })?;
    Ok(call.term(other.map_or(atoms::ok().as_c_arg(), Caller::pid)))
}

/// `proxy_of(Pid) -> Proxy | none`
#[rustler::nif]
fn proxy_of<'a>(env: Env<'a>, holder: Term<'a>) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let proxy = with_key(call, holder.as_c_arg(), |holder| {
        let pin = pin();
        let open = current(&pin).ok_or(CallError::NotStarted)?;
        fault::point();
        Ok(open.proxies.proxy(holder))
    })?;
    Ok(call.term(proxy.map_or(atoms::none().as_c_arg(), Caller::pid)))
}
