//! Reads arguments of NIFs that are integers of any size.

use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use permit_table::Capacity;
use rustler::Encoder;

/// `MaxPer * Buckets` of two non-negative integers of any size.
#[inline(always)]
pub(crate) fn capacity(
    call: CallEnv<'_>,
    max_per: ErlNifTerm,
    buckets: ErlNifTerm,
) -> Result<Capacity, CallError> {
    let max_per = non_negative(call, max_per)?;
    Ok(Capacity::of(max_per, non_negative(call, buckets)?))
}

/// A non-negative integer of any size. Integers beyond 64 bits are read as `u64::MAX`.
#[inline(always)]
pub(crate) fn non_negative(call: CallEnv<'_>, term: ErlNifTerm) -> Result<u64, CallError> {
    let byte = enif::byte(enif::word(term));
    let number = byte.or_else(|| non_negative_above_byte(call, term));
    number.ok_or(CallError::BadArg)
}

fn non_negative_above_byte(call: CallEnv<'_>, term: ErlNifTerm) -> Option<u64> {
    let term = call.term(term);
    let is_beyond_64_bits = || term.is_integer() && term > 0.encode(call.env());
    let integer = term.decode().ok();
    integer.or_else(|| is_beyond_64_bits().then_some(u64::MAX))
}
