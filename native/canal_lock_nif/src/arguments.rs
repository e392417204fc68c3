//! Reads arguments of NIFs: keys and integers.

use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use crate::key::{with_verified_encoding, EncodedTerm, Handle, ReadMode, StoredKey};
use permit_table::{Capacity, Query};
use rustler::{Encoder, ResourceArc};

/// Calls `with` with the verified encoding of a key or of a handle. A long key is [`CallError::Long`].
pub(crate) fn with_key<T>(
    call: CallEnv<'_>,
    key: ErlNifTerm,
    with: impl FnOnce(&EncodedTerm<'_>) -> Result<T, CallError>,
) -> Result<T, CallError> {
    match call.term(key).decode::<ResourceArc<Handle>>() {
        Ok(handle) => handle.with_encoding(with)?,
        Err(_) => with_verified_encoding(call, key, ReadMode::Verified, with)?,
    }
}

/// A copy of a term, to be stored and returned. Calls do not find it as a key if it is long, because it is not
/// interned.
pub(crate) fn stored_term(call: CallEnv<'_>, term: ErlNifTerm) -> Result<StoredKey, CallError> {
    let key = with_verified_encoding(call, term, ReadMode::OnDirtyScheduler, |key| key.to_key());
    Ok(key??)
}

/// `MaxPer * Buckets` of two non-negative integers of any size.
#[inline(always)]
pub(crate) fn capacity(
    call: CallEnv<'_>,
    max_per: ErlNifTerm,
    buckets: ErlNifTerm,
) -> Option<Capacity> {
    let max_per = non_negative(call, max_per)?;
    Some(Capacity::of(max_per, non_negative(call, buckets)?))
}

/// A non-negative integer of any size. Integers beyond 64 bits are read as `u64::MAX`.
#[inline(always)]
pub(crate) fn non_negative(call: CallEnv<'_>, term: ErlNifTerm) -> Option<u64> {
    enif::byte(enif::word(term)).or_else(|| non_negative_above_byte(call, term))
}

fn non_negative_above_byte(call: CallEnv<'_>, term: ErlNifTerm) -> Option<u64> {
    let term = call.term(term);
    let is_beyond_64_bits = || term.is_integer() && term > 0.encode(call.env());
    let integer = term.decode().ok();
    integer.or_else(|| is_beyond_64_bits().then_some(u64::MAX))
}
