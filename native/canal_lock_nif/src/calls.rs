//! The calls that count: `acquire` and `release`, as raw NIF functions.

use crate::arguments::{capacity, with_key};
use crate::caller::Caller;
use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use crate::incarnation::current;
use crate::key::read::{at_first_sight, Attempt, Reading, Unread};
use permit_table::{fault, pin, Acquired, Capacity, NotHeld};
use rustler::sys::ErlNifEnv;
use rustler::Nif;
use std::ffi::{c_char, c_int};
use std::panic::{catch_unwind, AssertUnwindSafe};

mod atoms {
    rustler::atoms! { acquired, full, not_held, ok }
}

/// Registers a raw NIF beside those of the macro.
macro_rules! raw_nif {
    ($name:literal, $arity:literal, $body:path) => {
        const _: () = {
            unsafe extern "C" fn entry(
                env: *mut ErlNifEnv,
                _arity: c_int,
                arguments: *const ErlNifTerm,
            ) -> ErlNifTerm {
                // SAFETY: the VM calls with the environment of the calling process, valid during the call.
                let call = unsafe { CallEnv::new(env) };
                // SAFETY: it gives as many arguments as the function was registered for. They are read one by one
                // where they stand: to copy them all at once would read words that have just been written, as one.
                let arguments = unsafe { &*arguments.cast::<[ErlNifTerm; $arity]>() };
                catch_unwind(AssertUnwindSafe(|| $body(call, arguments)))
                    .unwrap_or_else(|_| CallError::Panicked.answer(call, arguments))
            }

            rustler::codegen_runtime::inventory::submit!(Nif {
                name: concat!($name, "\0").as_ptr() as *const c_char,
                arity: $arity,
                flags: 0,
                raw_func: entry,
            });
        };
    };
}

// The hot calls answer with a term at every turn, instead of with a result that is looked into at the end: a result
// that is written as bytes and read back as a word stalls the processor for longer than most of what a call does.

raw_nif!("acquire", 3, acquire);

/// `acquire(Key, MaxPer, Buckets) -> {acquired, N} | full | {raise, Cause, Arguments}`
#[inline(always)]
fn acquire(call: CallEnv<'_>, arguments: &[ErlNifTerm; 3]) -> ErlNifTerm {
    let &[key, max_per, buckets] = arguments;
    let Some(capacity) = capacity(call, max_per, buckets) else {
        return CallError::BadArg.answer(call, arguments);
    };
    at_first_sight(call, key, Acquire { call, capacity })
        .unwrap_or_else(|| acquire_surely(call, arguments, capacity))
}

struct Acquire<'a> {
    call: CallEnv<'a>,
    capacity: Capacity,
}

impl Attempt for Acquire<'_> {
    type Answer = ErlNifTerm;

    #[inline(always)]
    fn call(self, key: &Reading<'_>) -> Option<ErlNifTerm> {
        let Acquire { call, capacity } = self;
        let pin = pin();
        fault::point();
        let open = current(&pin)?;
        let caller = Caller::of(call);
        let watch = || open.watch_caller(call, caller);
        let table = &open.table;
        let acquired = table.acquire_known(&pin, caller.holder(), key, capacity, watch);
        // After an error nothing has changed either. It will come again, or the second try is worth it.
        Some(answer(call, acquired.ok()??))
    }
}

/// Acquires a key that is new, or was not read right at first sight; and says what went wrong.
#[cold]
fn acquire_surely(
    call: CallEnv<'_>,
    arguments: &[ErlNifTerm; 3],
    capacity: Capacity,
) -> ErlNifTerm {
    let acquired = with_key(call, arguments[0], |key| {
        let pin = pin();
        fault::point();
        let open = current(&pin).ok_or(CallError::NotStarted)?;
        let caller = Caller::of(call);
        let watch = || open.watch_caller(call, caller);
        let table = &open.table;
        table.acquire(&pin, caller.holder(), key, capacity, watch)
    });
    match acquired {
        Ok(acquired) => answer(call, acquired),
        Err(error) => error.answer(call, arguments),
    }
}

/// `{acquired, N} | full`
#[inline(always)]
fn answer(call: CallEnv<'_>, acquired: Acquired) -> ErlNifTerm {
    match acquired {
        Acquired::Permit(out) => {
            let acquired = atoms::acquired().as_c_arg();
            enif::tuple(call, &[acquired, enif::number(call, out)])
        }
        Acquired::Full => atoms::full().as_c_arg(),
    }
}

raw_nif!("release", 1, release);
raw_nif!("release", 3, release_counted);

/// `release(Key) -> ok | {error, not_held} | {raise, Cause, Arguments}`
#[inline(always)]
fn release(call: CallEnv<'_>, arguments: &[ErlNifTerm; 1]) -> ErlNifTerm {
    let not_held = || call.env().error_tuple(atoms::not_held()).as_c_arg();
    release_or(call, arguments, not_held)
}

/// `release(Key, MaxPer, Buckets) -> ok | {raise, Cause, Arguments}`. The numbers are not looked at: they are there to
/// come back, so that the caller need not keep them meanwhile. So is the key that is not held.
#[inline(always)]
fn release_counted(call: CallEnv<'_>, arguments: &[ErlNifTerm; 3]) -> ErlNifTerm {
    let not_held = || CallError::NotHeld.answer(call, arguments);
    release_or(call, arguments, not_held)
}

#[inline(always)]
fn release_or(
    call: CallEnv<'_>,
    arguments: &[ErlNifTerm],
    not_held: impl FnOnce() -> ErlNifTerm,
) -> ErlNifTerm {
    let key = arguments[0];
    if at_first_sight(call, key, Release { call }).is_some() {
        return atoms::ok().as_c_arg();
    }
    match release_surely(call, key) {
        Ok(Ok(())) => atoms::ok().as_c_arg(),
        Ok(Err(NotHeld)) => not_held(),
        Err(error) => error.answer(call, arguments),
    }
}

struct Release<'a> {
    call: CallEnv<'a>,
}

impl Attempt for Release<'_> {
    type Answer = ();

    #[inline(always)]
    fn call(self, key: &Reading<'_>) -> Option<()> {
        let pin = pin();
        fault::point();
        let open = current(&pin)?;
        let caller = Caller::of(self.call).holder();
        open.table.release_known(&pin, caller, key).then_some(())
    }

    fn call_unread(&self, key: &Unread) -> Option<()> {
        let pin = pin();
        let open = current(&pin)?;
        let caller = Caller::of(self.call).holder();
        open.table.release_inline(&pin, caller, key).then_some(())
    }
}

/// Releases a key that was not read right at first sight, or is not held.
#[cold]
fn release_surely(call: CallEnv<'_>, key: ErlNifTerm) -> Result<Result<(), NotHeld>, CallError> {
    with_key(call, key, |key| {
        let pin = pin();
        let open = current(&pin).ok_or(CallError::NotStarted)?;
        let caller = Caller::of(call).holder();
        Ok(open.table.release(&pin, caller, key))
    })
}
