//! Why a call raises. Only Erlang code can attach an explanation to an error, so the modules in `src/` catch these
//! atoms where a user could meet them.

use rustler::Error;

/// Why a call raises.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallError {
    /// An argument is not what it must be.
    BadArg,
    /// The machine was ended, or is not the one of this node any more.
    Ended,
    /// A call before this one has panicked in the middle of it: a bug of ours. The machine must not be used again.
    Broken,
    /// The system gives no random numbers.
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
