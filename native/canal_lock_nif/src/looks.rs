//! The calls that look: what is out, who holds it, what it costs. They change nothing.
//!
//! What may be long is told in pieces. Each of them is a call of about a tenth of a millisecond (of keys) or up to one
//! (of holders), if what it tells of is not long in itself: a key, or all that a process holds. So it runs on a dirty
//! scheduler. The serial number of the table goes along, so that the pieces of one answer are of one table.

use crate::arguments::{non_negative, with_key, WithKey};
use crate::decode;
use crate::enif::{self, Here};
use crate::incarnation::{self, current, Caller, Incarnation};
use crate::interned::Handle;
use crate::key::TermKey;
use crate::raised::Raised;
use permit_table::{
    bucket_view, fault, make_room, pin, Cursor, Holder, OutOfMemory, Pin, Query, Totals, Usage,
};
use rustler::sys::ErlNifTerm;
use rustler::{Encoder, Env, Error, LocalPid, NifMap, NifResult, ResourceArc, Term, TermType};

mod atoms {
    rustler::atoms! { changed, done }
}

struct Count;

impl WithKey for Count {
    type Answer = u64;

    fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<u64, Raised> {
        let pin = pin();
        let open = current(&pin).ok_or(Raised::NotStarted)?;
        fault::point();
        Ok(open.table.count(&pin, key))
    }
}

/// `intern(Key) -> Handle`: for another try of a call that has raised `intern`. Dirty, for the key is long.
#[rustler::nif(schedule = "DirtyCpu")]
fn intern(key: Term) -> NifResult<ResourceArc<Handle>> {
    Ok(ResourceArc::new(Handle::of(key)?))
}

/// `count(Key)`: permits out.
#[rustler::nif]
fn count(env: Env, key: Term) -> NifResult<u64> {
    Ok(with_key(Here::from_env(env), key.as_c_arg(), Count)?)
}

/// `buckets(Key, MaxPer) -> {Full, Rest}`: full buckets, and permits in the next one.
#[rustler::nif]
fn buckets(env: Env, key: Term, max_per: Term) -> NifResult<(u64, u64)> {
    let here = Here::from_env(env);
    let max_per = non_negative(here, max_per.as_c_arg())
        .filter(|max_per| *max_per > 0)
        .ok_or(Error::BadArg)?;
    let out = with_key(here, key.as_c_arg(), Count)?;
    Ok(bucket_view(out, max_per))
}

/// The open table, if it is still the one that the pieces before were of; any, if there were none (0).
fn same(pin: &Pin, serial: u64) -> Result<Option<&Incarnation>, Raised> {
    let open = current(pin).ok_or(Raised::NotStarted)?;
    Ok(Some(open).filter(|open| serial == 0 || serial == open.serial))
}

/// A list in the making.
type List = Result<Vec<ErlNifTerm>, OutOfMemory>;

/// `{Serial, List, Next | done} | changed`: what `tell` adds to the list, and where it says to go on.
fn piece<'a>(
    env: Env<'a>,
    serial: u64,
    tell: impl FnOnce(Here<'a>, &Incarnation, &mut List) -> Result<Option<u64>, Raised>,
) -> NifResult<Term<'a>> {
    let here = Here::from_env(env);
    let pin = pin();
    fault::point();
    let Some(open) = same(&pin, serial)? else {
        return Ok(atoms::changed().encode(env));
    };
    let mut list = Ok(Vec::new());
    let next = tell(here, open, &mut list)?;
    let list = list.map_err(Raised::from)?;
    let list = here.term(enif::list(here, &list, enif::nil(here)));
    let next = match next {
        Some(next) => next.encode(env),
        None => atoms::done().encode(env),
    };
    Ok((open.serial, list, next).encode(env))
}

/// Adds a tuple to a list in the making. What has gone wrong before stays so.
fn add(list: &mut List, tuple: Result<ErlNifTerm, OutOfMemory>) {
    let Ok(so_far) = list else {
        return;
    };
    match tuple {
        Ok(tuple) if make_room(so_far, 1).is_ok() => so_far.push(tuple),
        _ => *list = Err(OutOfMemory),
    }
}

fn number(here: Here<'_>, number: u64) -> ErlNifTerm {
    number.encode(here.env()).as_c_arg()
}

/// `{Key, Permits}`
fn key_and_permits(here: Here<'_>, key: &TermKey, permits: u64) -> Result<ErlNifTerm, OutOfMemory> {
    let key = decode::term(here, key)?;
    Ok(enif::tuple(here, &[key, number(here, permits)]))
}

/// The pid of a holder, unless it is one of another node that has been forgotten since.
fn pid(here: Here<'_>, open: &Incarnation, word: u64) -> Option<ErlNifTerm> {
    if Caller::is_word(word) {
        // SAFETY: the word of a local pid is the whole of the term, whether the process lives or not.
        return Some(unsafe { enif::from_word(word) });
    }
    open.remotes.pid(here, word)
}

/// `keys(Serial, After, Limit) -> {Serial, [{Key, Permits}], Next | done} | changed`: what is out.
#[rustler::nif(schedule = "DirtyCpu")]
fn keys(env: Env<'_>, serial: u64, after: u64, limit: usize) -> NifResult<Term<'_>> {
    piece(env, serial, |here, open, list| {
        Ok(open.table.keys_after(after, limit, |key, permits| {
            add(list, key_and_permits(here, key, permits));
        }))
    })
}

/// `permits(Serial, Cursor) -> {Serial, [{Pid, Key, Permits}], Next | done} | changed`: who holds what.
#[rustler::nif(schedule = "DirtyCpu")]
fn permits(env: Env<'_>, serial: u64, cursor: u64) -> NifResult<Term<'_>> {
    piece(env, serial, |here, open, list| {
        let from = Cursor::from_number(cursor);
        let next = open.table.permits_from(from, |seen| {
            if let Some(pid) = pid(here, open, seen.holder) {
                let tuple = decode::term(here, seen.key)
                    .map(|key| enif::tuple(here, &[pid, key, number(here, seen.permits)]));
                add(list, tuple);
            }
        })?;
        Ok(next.map(Cursor::to_number))
    })
}

/// `holders(Serial, Cursor, Key) -> {Serial, [{Pid, Permits}], Next | done} | changed`: who holds permits of one key.
#[rustler::nif(schedule = "DirtyCpu")]
fn holders<'a>(env: Env<'a>, serial: u64, cursor: u64, key: Term<'a>) -> NifResult<Term<'a>> {
    struct Holders<'a, V>(&'a Incarnation, Cursor, V);

    impl<V: FnMut(u64, u64)> WithKey for Holders<'_, V> {
        type Answer = Option<Cursor>;

        fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<Self::Answer, Raised> {
            let Holders(open, from, visit) = self;
            Ok(open.table.holders_from(from, key, visit)?)
        }
    }

    piece(env, serial, |here, open, list| {
        let visit = |word, permits| {
            if let Some(pid) = pid(here, open, word) {
                add(list, Ok(enif::tuple(here, &[pid, number(here, permits)])));
            }
        };
        let holders = Holders(open, Cursor::from_number(cursor), visit);
        let next = with_key(here, key.as_c_arg(), holders)?;
        Ok(next.map(Cursor::to_number))
    })
}

/// `held(Pid) -> [{Key, Permits}]`: what one process holds. Dirty, for a process may hold very much, and it cannot be
/// told in pieces.
#[rustler::nif(schedule = "DirtyCpu")]
fn held<'a>(env: Env<'a>, pid: Term<'a>) -> NifResult<Term<'a>> {
    let here = Here::from_env(env);
    let open = incarnation::current_shared().ok_or(Raised::NotStarted)?;
    fault::point();
    let mut list = Ok(Vec::new());
    if let Some(holder) = holder(here, &open, pid)? {
        let visited = open.table.held(holder, |key, permits| {
            add(&mut list, key_and_permits(here, key, permits));
        });
        visited.map_err(Raised::from)?;
    }
    let list = list.map_err(Raised::from)?;
    Ok(here.term(enif::list(here, &list, enif::nil(here))))
}

/// A process to look at; none if it is of another node and not known.
fn holder(here: Here<'_>, open: &Incarnation, pid: Term<'_>) -> Result<Option<Holder>, Raised> {
    if pid.get_type() != TermType::Pid {
        return Err(Raised::BadArg);
    }
    match pid.decode::<LocalPid>() {
        Ok(local) => Ok(Some(Caller::from_pid(local.as_c_arg()).holder())),
        Err(_) => open.remotes.holder(here, pid.as_c_arg()),
    }
}

#[derive(NifMap)]
struct Info<'a> {
    max_per: Term<'a>,
    keys: usize,
    permits: u64,
    holders: usize,
    memory: usize,
    granted: u64,
    refused: u64,
    released: u64,
    given_back: u64,
    not_held: u64,
    reclaimed: u64,
}

impl<'a> Info<'a> {
    fn new(max_per: Term<'a>, usage: Usage) -> Self {
        let Usage {
            keys,
            permits,
            holders,
            memory,
            totals,
        } = usage;
        let Totals {
            granted,
            refused,
            released,
            given_back,
            not_held,
            reclaimed,
        } = totals;
        Info {
            max_per,
            keys,
            permits,
            holders,
            memory,
            granted,
            refused,
            released,
            given_back,
            not_held,
            reclaimed,
        }
    }
}

/// `info()`. Dirty, for it walks over all holders.
#[rustler::nif(schedule = "DirtyCpu")]
fn info(env: Env<'_>) -> NifResult<Info<'_>> {
    let here = Here::from_env(env);
    let open = incarnation::current_shared().ok_or(Raised::NotStarted)?;
    fault::point();
    let max_per = decode::term(here, &open.max_per.lock()).map_err(Raised::from)?;
    Ok(Info::new(here.term(max_per), open.table.usage()))
}

/// Makes the atoms of an answer that no Erlang module of ours mentions. Later there may be no room for them, which is
/// the end of the VM (P9).
pub(crate) fn make_atoms(env: Env<'_>) {
    let _: Term<'_> = Info::new(atoms::done().encode(env), Usage::default()).encode(env);
}
