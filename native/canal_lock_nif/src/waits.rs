//! The NIFs of requests that wait, of several permits, and of permits that are given to another process.

use crate::arguments::{capacity, non_negative};
use crate::calls::answer;
use crate::clock::now_us;
use crate::enif::{CallEnv, ErlNifTerm};
use crate::incarnation::{with_table, with_table_in, Incarnation, INCARNATIONS};
use crate::key::{EncodedTerm, Namespace};
use crate::notice::{Message, RequestId};
use crate::{caller::Caller, error::CallError};
use permit_table::{inject, pin, Acquired, Demand, Given, NotHeld, Pin, WaitRequest, Waited};
use rustler::schedule::consume_timeslice;
use rustler::{Atom, Env, Error, LocalPid, NifResult, Term};
use std::num::NonZeroU64;

pub(crate) mod atoms {
    rustler::atoms! {
        declare, done, full, many, more, not_alive, not_held, not_waiting, ok, waiting
    }
}

pub(crate) fn permits(call: CallEnv<'_>, term: ErlNifTerm) -> Result<NonZeroU64, CallError> {
    let permits = non_negative(call, term)?;
    NonZeroU64::new(permits).ok_or(CallError::BadArg)
}

fn demand(
    call: CallEnv<'_>,
    max_per: Term<'_>,
    buckets: Term<'_>,
    number: Term<'_>,
) -> Result<Demand, CallError> {
    let capacity = capacity(call, max_per.as_c_arg(), buckets.as_c_arg())?;
    Ok(Demand::of(capacity, permits(call, number.as_c_arg())?))
}

/// `acquire_many(Key, MaxPer, Buckets, Permits) -> {acquired, N} | full`. `full` is not counted, because the caller can
/// wait after it.
#[rustler::nif]
fn acquire_many<'a>(
    env: Env<'a>,
    key: Term<'a>,
    max_per: Term<'a>,
    buckets: Term<'a>,
    number: Term<'a>,
) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let demand = demand(call, max_per, buckets, number)?;
    let acquired = with_table(env, key, |open, pin, key| {
        let caller = Caller::of(call).holder();
        let watch = || open.watch_caller(call);
        open.table.acquire(pin, caller, key, demand, watch)
    })?;
    Ok(call.term(answer(call, acquired)))
}

/// `release_many(Namespace, Key, Permits) -> ok | {error, not_held}`
#[rustler::nif]
fn release_many<'a>(
    env: Env<'a>,
    namespace: Namespace,
    key: Term<'a>,
    number: Term<'a>,
) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let number = permits(call, number.as_c_arg())?;
    let released = with_table_in(env, namespace, key, |open, pin, key| {
        let caller = Caller::of(call).holder();
        Ok(open.table.release_many(pin, caller, key, number, call))
    })?;
    Ok(match released {
        Ok(()) => call.term(atoms::ok().as_c_arg()),
        Err(NotHeld) => env.error_tuple(atoms::not_held()),
    })
}

/// `wait(Namespace, Key, MaxPer, Buckets, Permits, MaxWaiting, Ref) -> {acquired, N} | waiting | full | declare`: the
/// caller gets a message with the reference if the answer is `waiting`. `declare` is as for `acquire_shared`.
#[rustler::nif]
#[expect(clippy::too_many_arguments)]
fn wait<'a>(
    env: Env<'a>,
    namespace: Namespace,
    key: Term<'a>,
    max_per: Term<'a>,
    buckets: Term<'a>,
    number: Term<'a>,
    max_waiting: Term<'a>,
    reference: Term<'a>,
) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let demand = demand(call, max_per, buckets, number)?;
    let max_waiting = non_negative(call, max_waiting.as_c_arg())?;
    let waited = with_table_in(env, namespace, key, |open, pin, key| {
        let caller = Caller::of(call).holder();
        let watch = || open.watch_caller(call);
        let id = RequestId::of(reference);
        let request = WaitRequest {
            demand,
            is_shared: namespace == Namespace::Shared,
            max_waiting: usize::try_from(max_waiting).unwrap_or(usize::MAX),
            request_hash: id.hash(),
            now: now_us(),
            notice: Message::new(call, id),
        };
        let waited = open.table.wait(pin, caller, key, request, watch, call)?;
        if waited == Waited::Full {
            open.table.count_refusal(pin);
        }
        Ok(waited)
    })?;
    let waited = match waited {
        Waited::Permit(in_use) => answer(call, Acquired::Permit(in_use)),
        Waited::Waiting => atoms::waiting().as_c_arg(),
        Waited::Full => atoms::full().as_c_arg(),
        Waited::Closed => return Err(CallError::NotStarted.into()),
        Waited::Declare => atoms::declare().as_c_arg(),
    };
    Ok(call.term(waited))
}

/// `count_refusal() -> ok`: counts `full` of `acquire/4` or `acquire_many/4`, if the caller does not wait after it.
#[rustler::nif]
fn count_refusal() -> Atom {
    inject::panic();
    let pin = pin();
    if let Some(open) = INCARNATIONS.current(&pin) {
        open.table.count_refusal(&pin);
    }
    atoms::ok()
}

/// `cancel(Ref, IsTimeout) -> ok | not_waiting`: ends a request of the caller. If it does not wait, the caller has its
/// message, or it has none.
#[rustler::nif]
fn cancel(env: Env<'_>, reference: Term<'_>, is_timeout: bool) -> NifResult<Atom> {
    let call = CallEnv::from_env(env);
    if !reference.is_ref() {
        return Err(Error::BadArg);
    }
    let pin = pin();
    inject::panic();
    let Some(open) = INCARNATIONS.current(&pin) else {
        return Ok(atoms::not_waiting());
    };
    let caller = Caller::of(call).holder();
    let id = RequestId::of(reference);
    let is_it = |message: &Message| message.is_of(id);
    let Some(since) = open.table.cancel(&pin, caller, id.hash(), is_it, call) else {
        return Ok(atoms::not_waiting());
    };
    if is_timeout {
        open.table.count_timeout(&pin, since);
    }
    Ok(atoms::ok())
}

/// `resize(Key, MaxPer, Buckets, Most) -> done | more | many`: changes the capacity of all requests, and grants a piece
/// of them; or changes nothing, because more than `Most` wait.
#[rustler::nif]
fn resize<'a>(
    env: Env<'a>,
    key: Term<'a>,
    max_per: Term<'a>,
    buckets: Term<'a>,
    most: usize,
) -> NifResult<Atom> {
    let call = CallEnv::from_env(env);
    let capacity = capacity(call, max_per.as_c_arg(), buckets.as_c_arg())?;
    let is_done = with_table(env, key, |open, pin, key| {
        let is_settled = open.table.resize(pin, key, capacity, most, call);
        Ok(is_settled.map(|is_settled| is_settled || settle_piece(open, pin, key, call)))
    })?;
    Ok(is_done.map_or(atoms::many(), |is_done| progress(env, is_done)))
}

/// `settle(Namespace, Key) -> done | more`: grants a piece of the requests that can be granted after `resize` or
/// `set_share`.
#[rustler::nif]
fn settle<'a>(env: Env<'a>, namespace: Namespace, key: Term<'a>) -> NifResult<Atom> {
    let call = CallEnv::from_env(env);
    let is_done = with_table_in(env, namespace, key, |open, pin, key| {
        Ok(settle_piece(open, pin, key, call))
    })?;
    Ok(progress(env, is_done))
}

/// Steps of a piece: at most 320 grants with that of `resize`, which take 0.2 to 0.4 ms.
const STEPS_PER_PIECE: usize = 4;

/// The part of a timeslice that a piece takes.
const PERCENT_OF_PIECE: i32 = 50;

fn settle_piece(open: &Incarnation, pin: &Pin, key: &EncodedTerm<'_>, call: CallEnv<'_>) -> bool {
    (0..STEPS_PER_PIECE).any(|_| open.table.settle(pin, key, call))
}

/// A piece that is not the last one has taken its whole time.
pub(crate) fn progress(env: Env<'_>, is_done: bool) -> Atom {
    if is_done {
        return atoms::done();
    }
    consume_timeslice(env, PERCENT_OF_PIECE);
    atoms::more()
}

/// `waiting(Key) -> N`: the requests that wait.
#[rustler::nif]
fn waiting(env: Env<'_>, key: Term<'_>) -> NifResult<usize> {
    with_table(env, key, |open, pin, key| Ok(open.table.waiting(pin, key)))
}

/// `give(Namespace, Key, Pid, Permits) -> ok | {error, not_held | not_alive}`
#[rustler::nif]
fn give<'a>(
    env: Env<'a>,
    namespace: Namespace,
    key: Term<'a>,
    target: LocalPid,
    number: Term<'a>,
) -> NifResult<Term<'a>> {
    let call = CallEnv::from_env(env);
    let number = permits(call, number.as_c_arg())?;
    let given = with_table_in(env, namespace, key, |open, pin, key| {
        let giver = Caller::of(call).holder();
        let receiver = Caller::from_pid(target.as_c_arg());
        let watch = || Ok::<bool, CallError>(open.watch_if_alive(env, target));
        open.table
            .give(pin, giver, receiver.holder(), key, number, watch)
    })?;
    Ok(match given {
        Given::Given => call.term(atoms::ok().as_c_arg()),
        Given::NotHeld => env.error_tuple(atoms::not_held()),
        Given::NotAlive => env.error_tuple(atoms::not_alive()),
    })
}
