//! The manager's calls: the life of the table, its upkeep, and holders on other nodes.

use crate::arguments::{capacity, to_show};
use crate::calls::answer;
use crate::enif::Here;
use crate::incarnation::{self, Incarnation, ManagerWatch, Wishes};
use crate::interned;
use crate::key::TermKey;
use crate::raised::Raised;
use crate::remote::{Remains, Remotes};
use permit_table::{fault, pin, Progress, Table};
use rustler::{Atom, Env, Error, NifResult, ResourceArc, Term};

mod atoms {
    rustler::atoms! { done, more, ok, waiting }
}

/// `open(ProcessLimit, MaxPer, Keep) -> Handle`: a table for the caller to manage.
#[rustler::nif]
fn open(
    env: Env,
    processes: usize,
    max_per: Term,
    keep: bool,
) -> NifResult<ResourceArc<ManagerWatch>> {
    let wishes = Wishes {
        processes,
        max_per: to_show(Here::from_env(env), max_per.as_c_arg())?,
        keep,
    };
    Ok(incarnation::open(env, wishes).map_err(Raised::from)?)
}

/// `close(Handle) -> ok`
#[rustler::nif]
fn close(handle: ResourceArc<ManagerWatch>) -> Atom {
    handle.close();
    atoms::ok()
}

/// `sweep_step(Handle, Budget) -> more | waiting | done`: looks at about so many keys.
#[rustler::nif]
fn sweep_step(handle: ResourceArc<ManagerWatch>, budget: usize) -> Atom {
    progress(handle.sweep_step(budget))
}

/// `dismantle_step(Budget) -> more | waiting | done`: frees about so many keys of closed tables.
#[rustler::nif]
fn dismantle_step(budget: usize) -> Atom {
    progress(incarnation::dismantle_step(budget))
}

/// `has_unused_keys() -> boolean()`: is there anything for the next one?
#[rustler::nif]
fn has_unused_keys() -> bool {
    fault::point();
    interned::has_unused()
}

/// `free_unused_keys() -> ok`: long keys that nobody uses any more. Dirty, for the system may take long to take them
/// back.
#[rustler::nif(schedule = "DirtyCpu")]
fn free_unused_keys() -> Atom {
    interned::free_unused();
    atoms::ok()
}

fn progress(progress: Progress) -> Atom {
    match progress {
        Progress::More => atoms::more(),
        Progress::Waiting => atoms::waiting(),
        Progress::Done => atoms::done(),
    }
}

/// Calls with the table that is managed.
fn managed<T>(
    handle: &ManagerWatch,
    with: impl FnOnce(&Remotes, &Table<TermKey>) -> Result<T, Raised>,
) -> Result<T, Raised> {
    let pin = pin();
    let Incarnation { remotes, table, .. } = handle.incarnation(&pin).ok_or(Raised::NotStarted)?;
    fault::point();
    with(remotes, table)
}

/// `remote_acquire(Handle, {Pid, Connection}, Call, {Key, MaxPer, Buckets}) -> {acquired, N} | full`: a permit for a
/// process on another node, asked for by its call.
#[rustler::nif]
fn remote_acquire<'a>(
    env: Env<'a>,
    handle: ResourceArc<ManagerWatch>,
    (pid, connection): (Term<'a>, Term<'a>),
    call: Term<'a>,
    (key, max_per, buckets): (Term<'a>, Term<'a>, Term<'a>),
) -> NifResult<Term<'a>> {
    let here = Here::from_env(env);
    let capacity = capacity(here, max_per.as_c_arg(), buckets.as_c_arg()).ok_or(Error::BadArg)?;
    let acquired = managed(&handle, |remotes, table| {
        let connected = (pid.as_c_arg(), connection.as_c_arg());
        let (call, key) = (call.as_c_arg(), key.as_c_arg());
        remotes.acquire(here, table, connected, call, key, capacity)
    })?;
    Ok(here.term(answer(here, acquired)))
}

/// `remote_end_call(Handle, Pid, Call, Confirmed) -> boolean()`: the call has confirmed that the holder knows of the
/// permit, or it has died. Answers whether the holder is still one.
#[rustler::nif]
fn remote_end_call(
    env: Env,
    handle: ResourceArc<ManagerWatch>,
    pid: Term,
    call: Term,
    confirmed: bool,
) -> NifResult<bool> {
    let here = Here::from_env(env);
    let Remains(remains) = managed(&handle, |remotes, table| {
        remotes.end_call(here, table, pid.as_c_arg(), call.as_c_arg(), confirmed)
    })?;
    Ok(remains)
}

/// `remote_release(Handle, Pid, Key) -> {Released :: boolean(), StillAHolder :: boolean()}`
#[rustler::nif]
fn remote_release(
    env: Env,
    handle: ResourceArc<ManagerWatch>,
    pid: Term,
    key: Term,
) -> NifResult<(bool, bool)> {
    let here = Here::from_env(env);
    let (released, Remains(remains)) = managed(&handle, |remotes, table| {
        remotes.release(here, table, pid.as_c_arg(), key.as_c_arg())
    })?;
    Ok((released, remains))
}

/// `remote_give_back(Handle, Pid) -> ok`: the holder has died, or its node has gone.
#[rustler::nif]
fn remote_give_back(env: Env, handle: ResourceArc<ManagerWatch>, pid: Term) -> NifResult<Atom> {
    let here = Here::from_env(env);
    managed(&handle, |remotes, table| {
        remotes.give_back(here, table, pid.as_c_arg())
    })?;
    Ok(atoms::ok())
}

/// `remote_holders(Handle) -> [{Pid, Connection, [Call]}]`: the holders on other nodes, each with its calls that are
/// not over. Dirty, for there may be very many; it changes nothing.
#[rustler::nif(schedule = "DirtyCpu")]
fn remote_holders(env: Env<'_>, handle: ResourceArc<ManagerWatch>) -> NifResult<Term<'_>> {
    let here = Here::from_env(env);
    let holders = managed(&handle, |remotes, _| remotes.list(here))?;
    Ok(here.term(holders))
}
