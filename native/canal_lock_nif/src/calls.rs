//! The calls that count: `acquire` and `release`, as raw NIF functions.

use crate::arguments::{capacity, with_key, WithKey};
use crate::enif::{self, Here};
use crate::incarnation::{current, Caller};
use crate::key::TermKey;
use crate::raised::Raised;
use crate::small::{guess, Guess, Unread, WithGuess};
use permit_table::{fault, pin, Acquired, Capacity, NotHeld, Query};
use rustler::sys::{ErlNifEnv, ErlNifTerm};
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
                let here = unsafe { Here::new(env) };
                // SAFETY: it gives as many arguments as the function was registered for. They are read one by one
                // where they stand: to copy them all at once would read words that have just been written, as one.
                let arguments = unsafe { &*arguments.cast::<[ErlNifTerm; $arity]>() };
                catch_unwind(AssertUnwindSafe(|| $body(here, arguments)))
                    .unwrap_or_else(|_| Raised::Panicked.answer(here, arguments))
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
fn acquire(here: Here<'_>, arguments: &[ErlNifTerm; 3]) -> ErlNifTerm {
    let &[key, max_per, buckets] = arguments;
    let Some(capacity) = capacity(here, max_per, buckets) else {
        return Raised::BadArg.answer(here, arguments);
    };
    match guess(here, key, Acquire { here, capacity }) {
        Some(Some(answer)) => answer,
        _ => acquire_surely(here, arguments, capacity),
    }
}

struct Acquire<'a> {
    here: Here<'a>,
    capacity: Capacity,
}

impl WithGuess for Acquire<'_> {
    type Answer = Option<ErlNifTerm>;

    #[inline(always)]
    fn call<const N: usize>(self, guess: &Guess<N>) -> Option<ErlNifTerm> {
        let here = self.here;
        let pin = pin();
        fault::point();
        let open = current(&pin)?;
        let caller = Caller::of(here);
        let watch = move || open.watch_caller(here, caller.place);
        let acquired = open
            .table
            .acquire_known(&pin, caller.holder(), guess, self.capacity, watch);
        // After an error nothing has changed either. It will come again, or the second try is worth it.
        let acquired = acquired.ok()??;
        Some(answer(here, acquired))
    }
}

/// Acquires a key that is new, or not of the kind that is guessed; and says what went wrong.
#[cold]
fn acquire_surely(here: Here<'_>, arguments: &[ErlNifTerm; 3], capacity: Capacity) -> ErlNifTerm {
    struct Surely<'a>(Here<'a>, Capacity);

    impl WithKey for Surely<'_> {
        type Answer = Acquired;

        fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<Acquired, Raised> {
            let Surely(here, capacity) = self;
            let pin = pin();
            fault::point();
            let open = current(&pin).ok_or(Raised::NotStarted)?;
            let caller = Caller::of(here);
            let watch = || open.watch_caller(here, caller.place);
            let acquired = open
                .table
                .acquire(&pin, caller.holder(), key, capacity, watch)?;
            Ok(acquired)
        }
    }

    match with_key(here, arguments[0], Surely(here, capacity)) {
        Ok(acquired) => answer(here, acquired),
        Err(raised) => raised.answer(here, arguments),
    }
}

/// `{acquired, N} | full`
#[inline(always)]
pub(crate) fn answer(here: Here<'_>, acquired: Acquired) -> ErlNifTerm {
    match acquired {
        Acquired::Permit(out) => enif::tagged(here, atoms::acquired(), out),
        Acquired::Full => atoms::full().as_c_arg(),
    }
}

raw_nif!("release", 1, release);
raw_nif!("release", 3, release_counted);

/// `release(Key) -> ok | {error, not_held} | {raise, Cause, Arguments}`
#[inline(always)]
fn release(here: Here<'_>, arguments: &[ErlNifTerm; 1]) -> ErlNifTerm {
    let not_held = || here.env().error_tuple(atoms::not_held()).as_c_arg();
    release_or(here, arguments, not_held)
}

/// `release(Key, MaxPer, Buckets) -> ok | {raise, Cause, Arguments}`. The numbers are not looked at: they are there to
/// come back, so that the caller need not keep them meanwhile. So is the key that is not held.
#[inline(always)]
fn release_counted(here: Here<'_>, arguments: &[ErlNifTerm; 3]) -> ErlNifTerm {
    let not_held = || Raised::NotHeld.answer(here, arguments);
    release_or(here, arguments, not_held)
}

#[inline(always)]
fn release_or(
    here: Here<'_>,
    arguments: &[ErlNifTerm],
    not_held: impl FnOnce() -> ErlNifTerm,
) -> ErlNifTerm {
    let key = arguments[0];
    if release_inline(here, key) || guess(here, key, Release { here }) == Some(true) {
        return atoms::ok().as_c_arg();
    }
    match release_surely(here, key) {
        Ok(Ok(())) => atoms::ok().as_c_arg(),
        Ok(Err(NotHeld)) => not_held(),
        Err(raised) => raised.answer(here, arguments),
    }
}

/// Releases a key that is one of the two that the caller's slot names; those say what the term has to be read as.
#[inline(always)]
fn release_inline(here: Here<'_>, key: ErlNifTerm) -> bool {
    let pin = pin();
    fault::point();
    let Some(open) = current(&pin) else {
        return false;
    };
    let caller = Caller::of(here).holder();
    open.table
        .release_inline(&pin, caller, &Unread { here, term: key })
}

struct Release<'a> {
    here: Here<'a>,
}

impl WithGuess for Release<'_> {
    type Answer = bool;

    #[cold]
    fn call<const N: usize>(self, guess: &Guess<N>) -> bool {
        let pin = pin();
        let Some(open) = current(&pin) else {
            return false;
        };
        let caller = Caller::of(self.here).holder();
        open.table.release_more(&pin, caller, guess)
    }
}

/// Releases a key that is not of the kind that is guessed, or is not held.
#[cold]
fn release_surely(here: Here<'_>, key: ErlNifTerm) -> Result<Result<(), NotHeld>, Raised> {
    struct Surely<'a>(Here<'a>);

    impl WithKey for Surely<'_> {
        type Answer = Result<(), NotHeld>;

        fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<Self::Answer, Raised> {
            let pin = pin();
            let open = current(&pin).ok_or(Raised::NotStarted)?;
            let caller = Caller::of(self.0).holder();
            Ok(open.table.release(&pin, caller, key))
        }
    }

    with_key(here, key, Surely(here))
}
