//! The NIFs that count, `acquire` and `release`, as raw NIF functions.
//!
//! Each NIF first tries its call with an optimistic encoding of the key (`key/optimistic.rs`). If the result is `None`,
//! it repeats the call with a verified encoding, which also reports errors.

use crate::arguments::capacity;
use crate::caller::Caller;
use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::{with_arguments, CallError};
use crate::incarnation::{Incarnation, INCARNATIONS};
use crate::key::{
    with_key, with_optimistic_encoding, EncodedTerm, Namespace, OptimisticCall, WholeTerm,
};
use crate::raw_nif::raw_nif;
use permit_table::{inject, pin, Acquired, Capacity, NotHeld, Pin};

mod atoms {
    rustler::atoms! { acquired, full, not_held, ok }
}

// Each branch of a hot call makes the term that it returns. If the branches returned a Rust value, it would be written
// as bytes and read back as a word, which stalls the processor for longer than most of a call takes.

raw_nif!("acquire", 3, acquire);
raw_nif!("acquire", 4, acquire_or_return);

/// `acquire(Key, MaxPer, Buckets, Other) -> {acquired, N} | {raise, full | Cause, Arguments}`. The last argument is not
/// read. It is returned with the others, so the Erlang side need not keep them during the call. `full` is not counted,
/// because the caller can wait after it.
#[inline(always)]
fn acquire_or_return(call: CallEnv<'_>, arguments: &[ErlNifTerm; 4]) -> ErlNifTerm {
    let answer = acquire(call, arguments);
    if answer == atoms::full().as_c_arg() {
        return with_arguments(call, atoms::full(), arguments);
    }
    answer
}

/// `acquire(Key, MaxPer, Buckets) -> {acquired, N} | full | {raise, Cause, Arguments}`
#[inline(always)]
fn acquire<const ARITY: usize>(call: CallEnv<'_>, arguments: &[ErlNifTerm; ARITY]) -> ErlNifTerm {
    let (key, max_per, buckets) = (arguments[0], arguments[1], arguments[2]);
    let Ok(capacity) = capacity(call, max_per, buckets) else {
        return CallError::BadArg.answer(call, arguments);
    };
    match with_optimistic_encoding(call, key, Acquire::<ARITY> { call, capacity }) {
        Some(answer) => answer,
        None => acquire_verified(call, arguments, capacity),
    }
}

struct Acquire<'a, const ARITY: usize> {
    call: CallEnv<'a>,
    capacity: Capacity,
}

impl<const ARITY: usize> OptimisticCall for Acquire<'_, ARITY> {
    type Answer = ErlNifTerm;

    const NAMESPACE: Namespace = Namespace::Local;

    #[inline(always)]
    fn try_encoded(self, key: &EncodedTerm<'_>) -> Option<ErlNifTerm> {
        let Acquire { call, capacity } = self;
        let pin = pin();
        inject::panic();
        let open = INCARNATIONS.current(&pin)?;
        let caller = Caller::of(call).holder();
        let watch = || open.watch_caller(call);
        let table = &open.table;
        let acquired = table.acquire_known(&pin, caller, key, capacity, watch);
        // Fails if the holder cannot be recorded or monitored: the verified call reports that. `None`: the table does
        // not have this key.
        let acquired = acquired.ok()??;
        count_refusal::<ARITY>(&pin, open, acquired);
        Some(answer(call, acquired))
    }
}

/// Repeats an acquire that the optimistic encoding has not decided, and reports its errors.
#[cold]
fn acquire_verified<const ARITY: usize>(
    call: CallEnv<'_>,
    arguments: &[ErlNifTerm; ARITY],
    capacity: Capacity,
) -> ErlNifTerm {
    let acquired = with_key(call, Namespace::Local, arguments[0], |key| {
        let pin = pin();
        inject::panic();
        let open = INCARNATIONS.current(&pin).ok_or(CallError::NotStarted)?;
        let caller = Caller::of(call).holder();
        let watch = || open.watch_caller(call);
        let acquired = open.table.acquire(&pin, caller, key, capacity, watch)?;
        count_refusal::<ARITY>(&pin, open, acquired);
        Ok(acquired)
    });
    match acquired {
        Ok(acquired) => answer(call, acquired),
        Err(error) => error.answer(call, arguments),
    }
}

/// `full` is the answer of `acquire/3` to its caller.
#[inline(always)]
fn count_refusal<const ARITY: usize>(pin: &Pin, open: &Incarnation, acquired: Acquired) {
    if ARITY == 3 && acquired == Acquired::Full {
        open.table.count_refusal(pin);
    }
}

/// `{acquired, N} | full`
#[inline(always)]
pub(crate) fn answer(call: CallEnv<'_>, acquired: Acquired) -> ErlNifTerm {
    match acquired {
        Acquired::Permit(in_use) => {
            let acquired = atoms::acquired().as_c_arg();
            enif::tuple(call, &[acquired, enif::number(call, in_use)])
        }
        Acquired::Full => atoms::full().as_c_arg(),
    }
}

raw_nif!("release", 1, release);
raw_nif!("release", 3, release_counted);

/// `release(Key) -> ok | {error, not_held} | {raise, Cause, Arguments}`
#[inline(always)]
fn release(call: CallEnv<'_>, arguments: &[ErlNifTerm; 1]) -> ErlNifTerm {
    match release_key(call, arguments[0]) {
        Ok(()) => atoms::ok().as_c_arg(),
        Err(CallError::NotHeld) => call.env().error_tuple(atoms::not_held()).as_c_arg(),
        Err(error) => error.answer(call, arguments),
    }
}

/// `release(Key, MaxPer, Buckets) -> ok | {raise, Cause, Arguments}`. The integers are not read. An error returns them,
/// so the Erlang side need not keep them during the call. A key that is not held is the cause `not_held`.
#[inline(always)]
fn release_counted(call: CallEnv<'_>, arguments: &[ErlNifTerm; 3]) -> ErlNifTerm {
    match release_key(call, arguments[0]) {
        Ok(()) => atoms::ok().as_c_arg(),
        Err(error) => error.answer(call, arguments),
    }
}

#[inline(always)]
fn release_key(call: CallEnv<'_>, key: ErlNifTerm) -> Result<(), CallError> {
    release_in::<false>(call, key)
}

/// As `release_key`, for a key of either namespace.
#[inline(always)]
pub(crate) fn release_in<const IS_SHARED: bool>(
    call: CallEnv<'_>,
    key: ErlNifTerm,
) -> Result<(), CallError> {
    match with_optimistic_encoding(call, key, Release::<IS_SHARED>(call)) {
        Some(()) => Ok(()),
        None => release_verified(call, Namespace::shared_if(IS_SHARED), key),
    }
}

struct Release<'a, const IS_SHARED: bool>(CallEnv<'a>);

impl<const IS_SHARED: bool> OptimisticCall for Release<'_, IS_SHARED> {
    type Answer = ();

    const NAMESPACE: Namespace = Namespace::shared_if(IS_SHARED);

    #[inline(always)]
    fn try_encoded(self, key: &EncodedTerm<'_>) -> Option<()> {
        let pin = pin();
        inject::panic();
        let open = INCARNATIONS.current(&pin)?;
        let caller = Caller::of(self.0).holder();
        let released = open.table.release_known(&pin, caller, key, self.0);
        released.then_some(())
    }

    fn try_whole_term(&self, key: &WholeTerm) -> Option<()> {
        let pin = pin();
        let open = INCARNATIONS.current(&pin)?;
        let caller = Caller::of(self.0).holder();
        let released = open.table.release_inline(&pin, caller, key, self.0);
        released.then_some(())
    }
}

/// Repeats a release that the optimistic encoding has not decided, and reports its errors.
#[cold]
fn release_verified(
    call: CallEnv<'_>,
    namespace: Namespace,
    key: ErlNifTerm,
) -> Result<(), CallError> {
    with_key(call, namespace, key, |key| {
        let pin = pin();
        let open = INCARNATIONS.current(&pin).ok_or(CallError::NotStarted)?;
        let caller = Caller::of(call).holder();
        let released = open.table.release(&pin, caller, key, call);
        released.map_err(|NotHeld| CallError::NotHeld)
    })
}
