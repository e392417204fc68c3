//! The NIFs that inspect a table: permits in use, holders, memory. They change nothing.
//!
//! Long answers are returned in pieces. If no key is long, a piece of keys takes about 0.1 ms and a piece of holders up
//! to 1 ms, so these calls run on a dirty scheduler. Each piece has the serial number of the table, so all pieces of an
//! answer are from the same table.

use crate::caller::Caller;
use crate::clock::now_us;
use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use crate::incarnation::{with_table, Incarnation, INCARNATIONS};
use crate::key::{decode, with_key, EncodedTerm, Namespace, StoredKey};
use permit_table::{inject, pin, reserve, Cursor, Holder, OutOfMemory, Pin};
use rustler::{Encoder, Env, LocalPid, NifResult, Term};
use Item::{Key, Number, Process};

pub(crate) mod atoms {
    rustler::atoms! {
        barriers_refused, changed, done, granted, handed_over, holders, keys, longest_wait_us, max_per, memory,
        not_held, permits, reclaimed, refused, released, released_by_death, timed_out, transferred, wait_us, waiting
    }
}

/// `count(Key) -> Permits`: the permits in use.
#[rustler::nif]
fn count(env: Env, key: Term) -> NifResult<u64> {
    with_table(env, key, |open, pin, key| Ok(open.table.count(pin, key)))
}

/// A piece of a long answer.
pub(crate) struct Piece<'a> {
    call: CallEnv<'a>,
    pub(crate) open: &'a Incarnation,
    pub(crate) pin: &'a Pin,
    list: Vec<ErlNifTerm>,
}

/// What becomes an element of a tuple.
pub(crate) enum Item<'a> {
    /// The word of a holder.
    Process(u64),
    Key(&'a StoredKey),
    Number(u64),
}

impl<'a> Piece<'a> {
    /// Adds a tuple for each row, without those of holders that have died. Returns the position of the next piece.
    pub(crate) fn add<R, Position, const N: usize>(
        &mut self,
        (rows, next): (Vec<R>, Position),
        items: impl Fn(R) -> [Item<'a>; N],
    ) -> Result<Position, CallError> {
        reserve(&mut self.list, rows.len())?;
        'rows: for row in rows {
            let mut terms = [enif::nil(); N];
            for (term, item) in terms.iter_mut().zip(items(row)) {
                *term = match item {
                    Process(word) => match self.pid(word)? {
                        Some(pid) => pid,
                        None => continue 'rows,
                    },
                    Key(key) => decode::term(self.call, key)?,
                    Number(number) => enif::number(self.call, number),
                };
            }
            self.list.push(enif::tuple(self.call, &terms));
        }
        Ok(next)
    }

    /// The pid of a holder. For a proxy, the pid of the process that it represents. `None` if the holder has died since
    /// its permits were read, because it may have been a proxy whose record is already removed (R2).
    fn pid(&self, word: u64) -> Result<Option<ErlNifTerm>, OutOfMemory> {
        let holder = Caller::from_word(word);
        let represented = self.open.proxies.holder(self.call, holder)?;
        // The table is asked last, because a record is removed after the proxy's slot.
        let is_known = || self.open.table.knows(holder.holder());
        Ok(represented.or_else(|| is_known().then(|| holder.pid())))
    }

    /// A local process as a holder, or the proxy of a process on another node. `None` if that has no proxy.
    fn holder(&self, pid: Term<'_>) -> Result<Option<Holder>, CallError> {
        if !pid.is_pid() {
            return Err(CallError::BadArg);
        }
        let proxy = |pid: &EncodedTerm<'_>| Ok(self.open.proxies.proxy(pid));
        let process = match pid.decode::<LocalPid>() {
            Ok(local) => Some(Caller::from_pid(local.as_c_arg())),
            Err(_) => with_key(self.call, Namespace::Local, pid.as_c_arg(), proxy)?,
        };
        Ok(process.map(Caller::holder))
    }
}

/// `{Serial, List, Next | done} | changed`: what `collect` adds to the piece, and the position of the next one that it
/// returns.
///
/// Calls `collect` with the open table if its serial number is `serial`, or if that is 0, as for the first piece.
pub(crate) fn piece<N: Encoder>(
    env: Env<'_>,
    serial: u64,
    collect: impl FnOnce(&mut Piece<'_>) -> Result<Option<N>, CallError>,
) -> NifResult<Term<'_>> {
    let call = CallEnv::from_env(env);
    let pin = pin();
    inject::panic();
    let open = INCARNATIONS.current(&pin).ok_or(CallError::NotStarted)?;
    if serial != 0 && serial != open.serial {
        return Ok(atoms::changed().encode(env));
    }
    let mut piece = Piece {
        call,
        open,
        pin: &pin,
        list: Vec::new(),
    };
    let next = collect(&mut piece)?;
    let list = call.term(enif::list(call, piece.list.into_iter(), enif::nil()));
    let next = next.map_or(atoms::done().encode(env), |next| next.encode(env));
    Ok((open.serial, list, next).encode(env))
}

/// The rows of the keys of a namespace.
fn of<'a, R, Position>(
    namespace: Namespace,
    (mut rows, next): (Vec<R>, Position),
    key: impl Fn(&R) -> &'a StoredKey,
) -> (Vec<R>, Position) {
    rows.retain(|row| key(row).namespace() == namespace);
    (rows, next)
}

/// `keys(Serial, After, Limit) -> {Serial, [{Key, Permits}], Next | done} | changed`: keys with permits in use.
#[rustler::nif(schedule = "DirtyCpu")]
fn keys(env: Env<'_>, serial: u64, after: u64, limit: usize) -> NifResult<Term<'_>> {
    piece(env, serial, |piece| {
        let keys = piece.open.table.keys_after(piece.pin, after, limit)?;
        piece.add(keys, |(key, permits)| [Key(key), Number(permits)])
    })
}

/// `permits(Namespace, Serial, From) -> {Serial, [{Pid, Key, Permits, Held_ms}], Next | done} | changed`: all holders
/// with their keys.
#[rustler::nif(schedule = "DirtyCpu")]
fn permits(env: Env<'_>, namespace: Namespace, serial: u64, from: Cursor) -> NifResult<Term<'_>> {
    piece(env, serial, |piece| {
        let rows = piece.open.table.permits_from(piece.pin, from)?;
        let rows = of(namespace, rows, |row| row.key);
        let now = now_us();
        piece.add(rows, |row| {
            let (holder, permits) = (Process(row.holder), Number(row.permits));
            [holder, Key(row.key), permits, held_ms(now, row.since)]
        })
    })
}

/// `holders(Namespace, Serial, From, Key) -> {Serial, [{Pid, Permits}], Next | done} | changed`: the holders of one
/// key.
#[rustler::nif(schedule = "DirtyCpu")]
fn holders<'a>(
    env: Env<'a>,
    namespace: Namespace,
    serial: u64,
    from: Cursor,
    key: Term<'a>,
) -> NifResult<Term<'a>> {
    piece(env, serial, |piece| {
        let (open, pin) = (piece.open, piece.pin);
        let read = |key: &EncodedTerm<'_>| Ok(open.table.holders_from(pin, from, key)?);
        let rows = with_key(piece.call, namespace, key.as_c_arg(), read)?;
        piece.add(rows, |row| [Process(row.holder), Number(row.permits)])
    })
}

/// `held(Serial, From, Pid) -> {Serial, [{Key, Permits}], Next | done} | changed`: the keys that one process
/// holds.
#[rustler::nif(schedule = "DirtyCpu")]
fn held<'a>(env: Env<'a>, serial: u64, from: u64, pid: Term<'a>) -> NifResult<Term<'a>> {
    piece(env, serial, |piece| {
        let Some(holder) = piece.holder(pid)? else {
            return Ok(None);
        };
        let rows = piece.open.table.held(piece.pin, holder, from)?;
        let rows = of(Namespace::Local, rows, |row| row.key);
        piece.add(rows, |row| [Key(row.key), Number(row.permits)])
    })
}

/// `holder(Serial, From, Pid) -> {Serial, [{Permits, Held_ms}], Next | done} | changed`: as `held`, without the keys.
#[rustler::nif(schedule = "DirtyCpu")]
fn holder<'a>(env: Env<'a>, serial: u64, from: u64, pid: Term<'a>) -> NifResult<Term<'a>> {
    piece(env, serial, |piece| {
        let Some(holder) = piece.holder(pid)? else {
            return Ok(None);
        };
        let rows = piece.open.table.held(piece.pin, holder, from)?;
        let rows = of(Namespace::Local, rows, |row| row.key);
        let now = now_us();
        piece.add(rows, |row| [Number(row.permits), held_ms(now, row.since)])
    })
}

/// How long the holder of a row has held permits. 0 until the next tick of the sweep.
fn held_ms<'a>(now_us: u64, since_us: u64) -> Item<'a> {
    Number(now_us.saturating_sub(since_us) / 1000)
}

/// `queues(Serial, From) -> {Serial, [{Key, Waiting, Pid, Ms}], Next | done} | changed`: the keys with waiting
/// requests, each with the process that has waited longest, and since how many milliseconds.
#[rustler::nif(schedule = "DirtyCpu")]
fn queues(env: Env<'_>, serial: u64, from: (usize, u64)) -> NifResult<Term<'_>> {
    piece(env, serial, |piece| {
        let now = now_us();
        let queues = piece.open.table.queues_from(piece.pin, from)?;
        let queues = of(Namespace::Local, queues, |queue| queue.key);
        piece.add(queues, |queue| {
            let (waiting, oldest) = (Number(queue.waiting as u64), Process(queue.oldest));
            let waited_ms = Number(now.saturating_sub(queue.since) / 1000);
            [Key(queue.key), waiting, oldest, waited_ms]
        })
    })
}

/// `info() -> #{atom() => term()}`. Dirty, because it visits all holders.
#[rustler::nif(schedule = "DirtyCpu")]
fn info(env: Env<'_>) -> NifResult<Term<'_>> {
    let pin = pin();
    let open = INCARNATIONS.current(&pin).ok_or(CallError::NotStarted)?;
    inject::panic();
    let max_per = env.binary_to_term(&open.max_per.lock());
    let (max_per, _) = max_per.ok_or(CallError::OutOfMemory)?;
    let usage = open.table.usage();
    let totals = usage.totals;
    let numbers = [
        (atoms::keys(), usage.keys as u64),
        (atoms::permits(), usage.permits),
        (atoms::holders(), usage.holders as u64),
        (atoms::waiting(), usage.waiting as u64),
        (atoms::longest_wait_us(), usage.longest_wait_us),
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
        (atoms::wait_us(), totals.wait_us),
        (atoms::transferred(), totals.transferred),
    ];
    Term::map_from_pairs(env, &numbers)?.map_put(atoms::max_per(), max_per)
}
