//! The reasons why a NIF raises. Only Erlang code can add `error_info` to an error, so the modules in `src/` catch
//! these atoms where a user could see them.

use rustler::Error;

/// Why a call raises.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallError {
    /// An argument is invalid.
    BadArg,
    /// The machine was ended, or another one has replaced it.
    Ended,
    /// An earlier call panicked during a step, because of a bug in this library. The machine must not be used again.
    Broken,
    /// The operating system returned no random numbers.
    NoRandom,
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::BadArg => Error::BadArg,
            CallError::Ended => Error::RaiseAtom("ended"),
            CallError::Broken => Error::RaiseAtom("broken"),
            CallError::NoRandom => Error::RaiseAtom("no_random_numbers"),
        }
    }
}
