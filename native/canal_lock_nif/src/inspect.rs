//! The NIFs that inspect a table: permits out, holders, memory. They change nothing.
//!
//! Long answers are returned in pieces. If no key is long, a piece of keys takes about 0.1 ms and a piece of holders up
//! to 1 ms, so these calls run on a dirty scheduler. Each piece has the serial number of the table, so all pieces of an
//! answer are from the same table.

use crate::arguments::{non_negative, with_key};
use crate::caller::Caller;
use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use crate::incarnation::{current, with_table, Incarnation, INCARNATIONS};
use crate::key::{decode, StoredKey};
use crate::waits::now_ms;
use permit_table::{
    bucket_view, inject, pin, reserve, Cursor, Holder, OutOfMemory, Permits, Usage,
};
use rustler::{Encoder, Env, Error, LocalPid, NifResult, Term};

mod atoms {
    rustler::atoms! {
        barriers_refused, changed, done, granted, handed_over, holders, keys, max_per, memory, not_held, ok, permits,
        reclaimed, refused, released, released_by_death, timed_out, transferred, waiting
    }
}

fn permits_out(call: CallEnv<'_>, key: Term<'_>) -> Result<u64, CallError> {
    with_table(call, key, |open, pin, key| Ok(open.table.count(pin, key)))
}

/// `count(Key) -> Permits`: the permits out.
#[rustler::nif]
fn count(env: Env, key: Term) -> NifResult<u64> {
    let call = CallEnv::from_env(env);
    Ok(permits_out(call, key)?)
}

/// `buckets(Key, MaxPer) -> {Full, Rest}`: the full buckets, and the permits in the next one.
#[rustler::nif]
fn buckets(env: Env, key: Term, max_per: Term) -> NifResult<(u64, u64)> {
    let call = CallEnv::from_env(env);
    let max_per = non_negative(call, max_per.as_c_arg()).filter(|&max_per| max_per > 0);
    let max_per = max_per.ok_or(Error::BadArg)?;
    let out = permits_out(call, key)?;
    Ok(bucket_view(out, max_per))
}

/// A list that is being built.
type List = Result<Vec<ErlNifTerm>, OutOfMemory>;

/// `{Serial, List, Next | done} | changed`: the items that `collect` adds to the list, and the position of the next
/// piece that it returns.
///
/// Calls `collect` with the open table if its serial number is `serial`, or if that is 0, as for the first piece.
fn piece<'a, N: Encoder>(
    env: Env<'a>,
    serial: u64,
    collect: impl FnOnce(CallEnv<'a>, &Incarnation, &mut List) -> Result<Option<N>, CallError>,
) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let pin = pin();
    inject::panic();
    let open = current(&pin).ok_or(CallError::NotStarted)?;
    if serial != 0 && serial != open.serial {
        return Ok(atoms::changed().encode(env));
    }
    let mut list = Ok(Vec::new());
    let next = collect(call, open, &mut list)?;
    let list = list.map_err(CallError::from)?;
    let list = call.term(enif::list(call, list.into_iter(), enif::nil()));
    let next = next.map_or(atoms::done().encode(env), |next| next.encode(env));
    Ok((open.serial, list, next).encode(env))
}

/// Adds a tuple to the list. A list that has failed stays failed.
fn add(list: &mut List, tuple: Result<Option<ErlNifTerm>, OutOfMemory>) {
    let Ok(tuples) = list else {
        return;
    };
    match tuple {
        Ok(None) => {}
        Ok(Some(tuple)) if reserve(tuples, 1).is_ok() => tuples.push(tuple),
        _ => *list = Err(OutOfMemory),
    }
}

/// `{Key, Permits}`
fn key_and_permits(
    call: CallEnv<'_>,
    key: &StoredKey,
    permits: u64,
) -> Result<Option<ErlNifTerm>, OutOfMemory> {
    let key = decode::term(call, key)?;
    Ok(Some(enif::tuple(call, &[key, enif::number(call, permits)])))
}

/// The pid of a holder. For a proxy, the pid of the process that it represents. `None` if the holder has died since its
/// permits were read, because it may have been a proxy whose record is already removed (R2).
fn pid(
    call: CallEnv<'_>,
    open: &Incarnation,
    word: u64,
) -> Result<Option<ErlNifTerm>, OutOfMemory> {
    let holder = Caller::from_word(word);
    let represented = open.proxies.holder(call, holder)?;
    // The table is asked last, because a record is removed after the proxy's slot.
    Ok(represented.or_else(|| open.table.knows(holder.holder()).then(|| holder.pid())))
}

/// `keys(Serial, After, Limit) -> {Serial, [{Key, Permits}], Next | done} | changed`: keys with permits out.
#[rustler::nif(schedule = "DirtyCpu")]
fn keys(env: Env<'_>, serial: u64, after: u64, limit: usize) -> NifResult<Term<'_>> {
    piece(env, serial, |call, open, list| {
        Ok(open.table.keys_after(after, limit, |key, permits| {
            add(list, key_and_permits(call, key, permits));
        }))
    })
}

/// The position of the next piece of holders: the fields of a [`Cursor`].
type CursorFields = (u64, u64, u64);

fn cursor((part, slot, order): CursorFields) -> Cursor {
    Cursor { part, slot, order }
}

fn cursor_fields(cursor: Cursor) -> CursorFields {
    (cursor.part, cursor.slot, cursor.order)
}

/// `permits(Serial, From) -> {Serial, [{Pid, Key, Permits}], Next | done} | changed`: all holders with their
/// keys.
#[rustler::nif(schedule = "DirtyCpu")]
fn permits(env: Env<'_>, serial: u64, from: CursorFields) -> NifResult<Term<'_>> {
    piece(env, serial, |call, open, list| {
        let next = open.table.permits_from(cursor(from), |seen| {
            let permits = enif::number(call, seen.permits);
            let tuple = pid(call, open, seen.holder).and_then(|pid| {
                let Some(pid) = pid else {
                    return Ok(None);
                };
                let key = decode::term(call, seen.key)?;
                Ok(Some(enif::tuple(call, &[pid, key, permits])))
            });
            add(list, tuple);
        })?;
        Ok(next.map(cursor_fields))
    })
}

/// `holders(Serial, From, Key) -> {Serial, [{Pid, Permits}], Next | done} | changed`: the holders of one key.
#[rustler::nif(schedule = "DirtyCpu")]
fn holders<'a>(
    env: Env<'a>,
    serial: u64,
    from: CursorFields,
    key: Term<'a>,
) -> NifResult<Term<'a>> {
    piece(env, serial, |call, open, list| {
        let visit = |seen: Permits<'_, StoredKey>| {
            let tuple = |pid| enif::tuple(call, &[pid, enif::number(call, seen.permits)]);
            add(list, pid(call, open, seen.holder).map(|pid| pid.map(tuple)));
        };
        let next = with_key(call, key.as_c_arg(), |key| {
            Ok(open.table.holders_from(cursor(from), key, visit)?)
        })?;
        Ok(next.map(cursor_fields))
    })
}

/// `held(Serial, From, Pid) -> {Serial, [{Key, Permits}], Next | done} | changed`: the keys that one process
/// holds.
#[rustler::nif(schedule = "DirtyCpu")]
fn held<'a>(env: Env<'a>, serial: u64, from: u64, pid: Term<'a>) -> NifResult<Term<'a>> {
    piece(env, serial, |call, open, list| {
        let Some(holder) = holder(call, open, pid)? else {
            return Ok(None);
        };
        let visit = |seen: Permits<'_, StoredKey>| {
            add(list, key_and_permits(call, seen.key, seen.permits));
        };
        Ok(open.table.held(holder, from, visit)?)
    })
}

/// A local process as a holder, or the proxy of a process on another node. `None` if that has no proxy.
fn holder(
    call: CallEnv<'_>,
    open: &Incarnation,
    pid: Term<'_>,
) -> Result<Option<Holder>, CallError> {
    if !pid.is_pid() {
        return Err(CallError::BadArg);
    }
    let process = match pid.decode::<LocalPid>() {
        Ok(local) => Some(Caller::from_pid(local.as_c_arg())),
        Err(_) => with_key(call, pid.as_c_arg(), |pid| Ok(open.proxies.proxy(pid)))?,
    };
    Ok(process.map(Caller::holder))
}

/// `queues(Serial, From) -> {Serial, [{Key, Waiting, Pid, Ms}], Next | done} | changed`: the keys with waiting
/// requests, each with the process that has waited longest, and since how many milliseconds.
#[rustler::nif(schedule = "DirtyCpu")]
fn queues(env: Env<'_>, serial: u64, from: (usize, u64)) -> NifResult<Term<'_>> {
    piece(env, serial, |call, open, list| {
        let now = now_ms();
        let next = open.table.queues_from(from, |key, line| {
            let waiting = enif::number(call, line.waiting as u64);
            let waited_ms = enif::number(call, now.saturating_sub(line.since));
            let tuple = pid(call, open, line.oldest).and_then(|pid| {
                let Some(pid) = pid else {
                    return Ok(None);
                };
                let key = decode::term(call, key)?;
                Ok(Some(enif::tuple(call, &[key, waiting, pid, waited_ms])))
            });
            add(list, tuple);
        })?;
        Ok(next)
    })
}

/// The map that `info/0` returns.
fn info_map<'a>(env: Env<'a>, max_per: Term<'a>, usage: Usage) -> NifResult<Term<'a>> {
    let Usage { totals, .. } = usage;
    let numbers = [
        (atoms::keys(), usage.keys as u64),
        (atoms::permits(), usage.permits),
        (atoms::holders(), usage.holders as u64),
        (atoms::waiting(), usage.waiting as u64),
        (atoms::memory(), vm_allocator::bytes() as u64),
        (atoms::barriers_refused(), usage.barriers_refused),
        (atoms::granted(), totals.granted),
        (atoms::refused(), totals.refused),
        (atoms::released(), totals.released),
        (atoms::released_by_death(), totals.released_by_death),
        (atoms::not_held(), totals.not_held),
        (atoms::reclaimed(), totals.reclaimed),
        (atoms::handed_over(), totals.handed_over),
        (atoms::timed_out(), totals.timed_out),
        (atoms::transferred(), totals.transferred),
    ];
    Term::map_from_pairs(env, &numbers)?.map_put(atoms::max_per(), max_per)
}

/// `info() -> #{atom() => term()}`. Dirty, because it visits all holders.
#[rustler::nif(schedule = "DirtyCpu")]
fn info(env: Env<'_>) -> NifResult<Term<'_>> {
    let call = CallEnv::from_env(env);
    let open = INCARNATIONS.shared().ok_or(CallError::NotStarted)?;
    inject::panic();
    let max_per = decode::term(call, &open.max_per.lock()).map_err(CallError::from)?;
    info_map(env, call.term(max_per), open.table.usage())
}

/// Makes the atoms of `info/0` that no Erlang module of the library mentions. If they were made later, the VM's atom
/// table might be full, which ends the VM (P9).
pub(crate) fn make_atoms(env: Env<'_>) {
    let map = info_map(env, atoms::ok().encode(env), Usage::default());
    assert!(map.is_ok(), "the keys of a map differ");
}
