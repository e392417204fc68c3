//! What comes in: keys of any kind, and numbers of any size.

use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use crate::key::interned::Handle;
use crate::key::read::{with_term, Care, Reading};
use crate::key::TermKey;
use permit_table::{Capacity, Query};
use rustler::{Encoder, ResourceArc};

/// Calls with the key that a term is, or that it is a handle on. A long key raises [`CallError::Long`].
pub(crate) fn with_key<T>(
    call: CallEnv<'_>,
    key: ErlNifTerm,
    with: impl FnOnce(&Reading<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    match call.term(key).decode::<ResourceArc<Handle>>() {
        Ok(handle) => handle.read(with)?,
        Err(_) => with_term(call, key, Care::Sure, with)?,
    }
}

/// A term to be kept and shown; no key to look for, if it is long.
pub(crate) fn to_show(call: CallEnv<'_>, term: ErlNifTerm) -> Result<TermKey, CallError> {
    Ok(with_term(call, term, Care::Thorough, |key| key.to_key())??)
}

/// `MaxPer * Buckets` of two non-negative integers of any size.
#[inline(always)]
pub(crate) fn capacity(
    call: CallEnv<'_>,
    max_per: ErlNifTerm,
    buckets: ErlNifTerm,
) -> Option<Capacity> {
    Some(Capacity::of(
        non_negative(call, max_per)?,
        non_negative(call, buckets)?,
    ))
}

/// A non-negative integer of any size; what is beyond 64 bits is the greatest of them.
#[inline(always)]
pub(crate) fn non_negative(call: CallEnv<'_>, term: ErlNifTerm) -> Option<u64> {
    enif::byte(enif::word(term)).or_else(|| larger(call, term))
}

fn larger(call: CallEnv<'_>, term: ErlNifTerm) -> Option<u64> {
    let term = call.term(term);
    let is_beyond_64_bits = || term.is_integer() && term > 0.encode(call.env());
    let integer = term.decode().ok();
    integer.or_else(|| is_beyond_64_bits().then_some(u64::MAX))
}
