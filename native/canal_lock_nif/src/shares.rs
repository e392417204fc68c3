//! The NIFs for shared keys only: keys of which this node has a share. They have their own namespace.

use crate::arguments::{capacity, non_negative};
use crate::caller::Caller;
use crate::calls::{answer, release_in};
use crate::enif::{CallEnv, ErlNifTerm};
use crate::error::CallError;
use crate::incarnation::{with_table_in, Incarnation, INCARNATIONS};
use crate::inspect::{piece, Item};
use crate::key::{with_key, with_optimistic_encoding, EncodedTerm, Namespace, OptimisticCall};
use crate::raw_nif::raw_nif;
use crate::waits::{permits, progress};
use permit_table::{inject, pin, Acquired, Capacity, Demand, Pin, Share, ShareUse};
use rustler::{Encoder, Env, LocalPid, NifResult, Term};

pub(crate) mod atoms {
    rustler::atoms! { changed, declare, none, not_held, ok }
}

const SHARED: Namespace = Namespace::Shared;

raw_nif!("acquire_shared", 4, acquire_shared);

/// `acquire_shared(Key, MaxPer, Buckets, Permits) -> {acquired, N} | full | declare | {raise, Cause, Arguments}`.
/// `declare`: the agent has set another capacity.
#[inline(always)]
fn acquire_shared(call: CallEnv<'_>, arguments: &[ErlNifTerm; 4]) -> ErlNifTerm {
    let capacity = capacity(call, arguments[1], arguments[2]);
    let demand = capacity.and_then(|capacity| {
        let permits = permits(call, arguments[3])?;
        Ok(Demand::of(capacity, permits))
    });
    let Ok(demand) = demand else {
        return CallError::BadArg.answer(call, arguments);
    };
    let key = arguments[0];
    match with_optimistic_encoding(call, key, AcquireShared { call, demand }) {
        Some(answer) => answer,
        None => acquire_shared_verified(call, arguments, demand),
    }
}

struct AcquireShared<'a> {
    call: CallEnv<'a>,
    demand: Demand,
}

impl OptimisticCall for AcquireShared<'_> {
    type Answer = ErlNifTerm;

    const NAMESPACE: Namespace = SHARED;

    #[inline(always)]
    fn try_encoded(self, key: &EncodedTerm<'_>) -> Option<ErlNifTerm> {
        let pin = pin();
        inject::panic();
        let open = INCARNATIONS.current(&pin)?;
        let acquired = acquire_in(open, &pin, self.call, key, self.demand);
        // Not `declare` by an encoding that may be wrong.
        Some(answer(self.call, acquired.ok()??))
    }
}

#[inline(always)]
fn acquire_in(
    open: &Incarnation,
    pin: &Pin,
    call: CallEnv<'_>,
    key: &EncodedTerm<'_>,
    demand: Demand,
) -> Result<Option<Acquired>, CallError> {
    let caller = Caller::of(call).holder();
    let watch = || open.watch_caller(call);
    open.table.acquire_shared(pin, caller, key, demand, watch)
}

#[cold]
fn acquire_shared_verified(
    call: CallEnv<'_>,
    arguments: &[ErlNifTerm; 4],
    demand: Demand,
) -> ErlNifTerm {
    let acquired = with_key(call, SHARED, arguments[0], |key| {
        let pin = pin();
        inject::panic();
        let open = INCARNATIONS.current(&pin).ok_or(CallError::NotStarted)?;
        acquire_in(open, &pin, call, key, demand)
    });
    match acquired {
        Ok(Some(acquired)) => answer(call, acquired),
        Ok(None) => atoms::declare().as_c_arg(),
        Err(error) => error.answer(call, arguments),
    }
}

raw_nif!("release_shared", 1, release_shared);

/// `release_shared(Key) -> ok | {error, not_held} | {raise, Cause, Arguments}`
#[inline(always)]
fn release_shared(call: CallEnv<'_>, arguments: &[ErlNifTerm; 1]) -> ErlNifTerm {
    match release_in::<true>(call, arguments[0]) {
        Ok(()) => atoms::ok().as_c_arg(),
        Err(CallError::NotHeld) => call.env().error_tuple(atoms::not_held()).as_c_arg(),
        Err(error) => error.answer(call, arguments),
    }
}

/// `set_share(Serial, Key, Share, Limit, Passed | none) -> done | more | changed`: `more` if `settle` must be called.
/// `changed` if the open table has another serial number.
#[rustler::nif]
fn set_share<'a>(
    env: Env<'a>,
    serial: u64,
    key: Term<'a>,
    share: Term<'a>,
    limit: Term<'a>,
    passed: Term<'a>,
) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let number = |term: Term<'a>| non_negative(call, term.as_c_arg());
    let capacity = |term| Ok::<_, CallError>(Capacity::of(number(term)?, 1));
    let is_none = passed == atoms::none().encode(env);
    let passed = (!is_none).then(|| capacity(passed)).transpose()?;
    let share = Share::new(number(share)?, passed, capacity(limit)?);
    with_table_of(env, serial, key, |open, pin, key| {
        let (_, is_settled) = open.table.set_share(pin, key, &share, call)?;
        Ok(progress(env, is_settled).encode(env))
    })
}

/// `lose(Serial, Key, Pid) -> Lost | changed`: how many permits of the process were not lost before, if the share was
/// set to 0 with `Passed = none`. `changed` if the open table has another serial number.
#[rustler::nif]
fn lose<'a>(env: Env<'a>, serial: u64, key: Term<'a>, pid: LocalPid) -> NifResult<Term<'a>> {
    let holder = Caller::from_pid(pid.as_c_arg()).holder();
    with_table_of(env, serial, key, |open, pin, key| {
        Ok(open.table.lose(pin, holder, key)?.encode(env))
    })
}

/// `take_share(Serial, Key) -> {Share, Passed | none, InUse, Waiting, Need, Next, {WasRefused, WasUsed}} | none |
/// changed`: whether a call was refused, and one granted, since the last time. `changed` if the open table has another
/// serial number.
#[rustler::nif]
fn take_share<'a>(env: Env<'a>, serial: u64, key: Term<'a>) -> NifResult<Term<'a>> {
    let none = atoms::none().encode(env);
    let row = |of: ShareUse| {
        let passed = of
            .passed
            .map_or(none, |passed| passed.permits().encode(env));
        let marks = (of.was_refused, of.was_used);
        (
            of.share, passed, of.in_use, of.waiting, of.need, of.next, marks,
        )
            .encode(env)
    };
    with_table_of(env, serial, key, |open, pin, key| {
        Ok(open.table.take_share(pin, key).map_or(none, row))
    })
}

/// Calls `with` with the open table and a shared key, if the serial number of that table is `serial`. Otherwise the
/// answer is `changed`.
fn with_table_of<'a>(
    env: Env<'a>,
    serial: u64,
    key: Term<'a>,
    with: impl FnOnce(&Incarnation, &Pin, &EncodedTerm<'_>) -> Result<Term<'a>, CallError>,
) -> NifResult<Term<'a>> {
    with_table_in(env, SHARED, key, |open, pin, key| {
        if open.serial != serial {
            return Ok(atoms::changed().encode(env));
        }
        with(open, pin, key)
    })
}

/// `shared_keys(Serial, After, Limit) -> {Serial, [{Key, Share, InUse}], Next | done} | changed`
#[rustler::nif(schedule = "DirtyCpu")]
fn shared_keys(env: Env<'_>, serial: u64, after: u64, limit: usize) -> NifResult<Term<'_>> {
    piece(env, serial, |piece| {
        let keys = piece.open.table.shares_after(piece.pin, after, limit)?;
        piece.add(keys, |(key, share, in_use)| {
            [Item::Key(key), Item::Number(share), Item::Number(in_use)]
        })
    })
}
