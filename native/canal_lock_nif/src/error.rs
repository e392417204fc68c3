//! Why a call raises, and how the Erlang side learns of it.
//!
//! Only Erlang code can attach an explanation (`error_info`, EEP 54) to an error, so the modules in `src/` raise. The
//! hot calls hand them `{raise, Cause, Arguments}` as an answer: to match on it costs less than to catch. All others
//! raise the cause, which is caught.

use crate::enif::{self, CallEnv, ErlNifTerm};
use permit_table::OutOfMemory;
use rustler::{Atom, Error};

mod atoms {
    rustler::atoms! { badarg, raise }
}

/// Why a call raises.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallError {
    /// An argument is of the wrong type.
    BadArg,
    /// The key takes long to read ([`Care`](crate::key::read::Care)): it has to be interned first. Nothing has changed.
    Long,
    /// No table is open.
    NotStarted,
    /// There is no memory, or the key is too long for it.
    OutOfMemory,
    /// The VM would not watch the process.
    NotWatched,
    /// The caller does not hold the key. That is reported, where it is not an answer.
    NotHeld,
    /// A bug of ours. It must not reach the VM, which would die of it.
    Panicked,
}

impl From<OutOfMemory> for CallError {
    fn from(_: OutOfMemory) -> Self {
        CallError::OutOfMemory
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        // Not `RaiseTerm`, which allocates a box: not for saying that there is no memory.
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
        let arguments = enif::list(call, arguments.iter().copied(), enif::nil());
        let cause = Atom::from_str(call.env(), self.cause()).unwrap_or(atoms::badarg());
        let parts = [atoms::raise().as_c_arg(), cause.as_c_arg(), arguments];
        enif::tuple(call, &parts)
    }
}
