//! Errors of calls, and how the Erlang side receives them.
//!
//! Only Erlang code can attach an explanation (`error_info`, EEP 54) to an error, so the modules in `src/` raise. The
//! hot calls return `{raise, Cause, Arguments}`, because matching that costs less than catching an exception. All other
//! calls raise the cause, which the Erlang side catches.

use crate::enif::{self, CallEnv, ErlNifTerm};
use permit_table::OutOfMemory;
use rustler::{Atom, Error};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread;

mod atoms {
    rustler::atoms! { badarg, raise }
}

/// Why a call raises.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallError {
    /// An argument has the wrong type.
    BadArg,
    /// The key is long (`key/interned.rs`). Nothing has changed; the caller interns the key and repeats the call.
    Long,
    /// No table is open.
    NotStarted,
    /// There is no memory, or the key is too long to be stored.
    OutOfMemory,
    /// The VM did not monitor the process.
    NotWatched,
    /// The caller does not hold the key. `release/1` returns this; `release/3` reports it.
    NotHeld,
    /// A panic (a bug in this library). It must not reach the VM, which would abort.
    Panicked,
}

impl From<OutOfMemory> for CallError {
    fn from(_: OutOfMemory) -> Self {
        CallError::OutOfMemory
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        // Not `RaiseTerm`: it allocates a box, which fails when there is no memory.
        Error::RaiseAtom(error.cause())
    }
}

impl CallError {
    fn cause(self) -> &'static str {
        match self {
            CallError::BadArg => "badarg",
            CallError::Long => "intern",
            CallError::NotStarted => "not_started",
            CallError::OutOfMemory => "system_limit",
            CallError::NotWatched => "not_watched",
            CallError::NotHeld => "not_held",
            CallError::Panicked => "nif_panicked",
        }
    }

    /// `{raise, Cause, Arguments}`
    #[cold]
    pub(crate) fn answer(self, call: CallEnv<'_>, arguments: &[ErlNifTerm]) -> ErlNifTerm {
        let cause = Atom::from_str(call.env(), self.cause()).unwrap_or(atoms::badarg());
        with_arguments(call, cause, arguments)
    }
}

/// `{raise, Cause, Arguments}`
#[cold]
pub(crate) fn with_arguments(
    call: CallEnv<'_>,
    cause: Atom,
    arguments: &[ErlNifTerm],
) -> ErlNifTerm {
    let arguments = enif::short_list(call, arguments);
    let parts = [atoms::raise().as_c_arg(), cause.as_c_arg(), arguments];
    enif::tuple(call, &parts)
}

/// Runs a callback of the VM. A panic must not leave it, because the VM would abort.
pub(crate) fn contain_panic(callback: impl FnOnce()) -> thread::Result<()> {
    catch_unwind(AssertUnwindSafe(callback))
}

/// Runs a callback of the VM, and once more if it panics.
pub(crate) fn repeat_after_panic(callback: impl Fn()) {
    let _ = contain_panic(&callback).or_else(|_| contain_panic(&callback));
}
