//! Namespaces: equal terms in different namespaces are different keys.
//!
//! The two lowest bits of the first word of an encoding are equal: both are 1 in an immediate, and 0 in a tag. In the
//! first word of a shared key, the second lowest bit is flipped.

use rustler::{Decoder, Error, NifResult, Term};

pub(crate) mod atoms {
    rustler::atoms! { local, shared }
}

/// The namespace of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// Keys of `canal_lock`.
    Local,
    /// Keys of which this node has a share (`canal_lock_cluster`).
    Shared,
}

/// Not derived: that asks the VM whether the term is an atom.
impl Decoder<'_> for Namespace {
    fn decode(term: Term<'_>) -> NifResult<Self> {
        match term.as_c_arg() {
            word if word == atoms::local().as_c_arg() => Ok(Namespace::Local),
            word if word == atoms::shared().as_c_arg() => Ok(Namespace::Shared),
            _ => Err(Error::BadArg),
        }
    }
}

impl Namespace {
    pub(crate) const fn shared_if(is_shared: bool) -> Self {
        match is_shared {
            true => Namespace::Shared,
            false => Namespace::Local,
        }
    }

    /// Changes the first word of an encoding of the local namespace to that of this one, or back.
    #[inline(always)]
    pub(super) const fn flip(self, first: u64) -> u64 {
        match self {
            Namespace::Local => first,
            Namespace::Shared => first ^ 0b10,
        }
    }

    /// The namespace of an encoding with this first word.
    #[inline(always)]
    pub(super) const fn of(first: u64) -> Self {
        if (first ^ first >> 1) & 1 == 0 {
            Namespace::Local
        } else {
            Namespace::Shared
        }
    }
}
