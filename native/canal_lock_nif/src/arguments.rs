//! What comes in: keys of any kind, and numbers of any size.

use crate::decode;
use crate::enif::{self, Here};
use crate::interned::Handle;
use crate::key::TermKey;
use crate::large::{Large, Reading};
use crate::raised::Raised;
use crate::small::Small;
use permit_table::{Capacity, Query};
use rustler::schedule::consume_timeslice;
use rustler::sys::ErlNifTerm;
use rustler::{ResourceArc, Term};

/// How much of a key is read in a hundredth of a timeslice, which is ten microseconds.
const BYTES_PER_PERCENT: usize = 16 * 1024;

/// Less is read in a microsecond, if we can read it ourselves.
const BYTES_WORTH_A_WORD: usize = 1024;

/// What to do with a key that is known for sure; compiled for each kind.
pub(crate) trait WithKey {
    type Answer;

    fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<Self::Answer, Raised>;
}

/// Calls with the key that a term is, or that it is a handle on. A long key raises [`Raised::Long`].
pub(crate) fn with_key<W: WithKey>(
    here: Here<'_>,
    key: ErlNifTerm,
    with: W,
) -> Result<W::Answer, Raised> {
    if let Some(small) = Small::parse(here, key) {
        return with.call(&small);
    }
    if let Ok(handle) = here.term(key).decode::<ResourceArc<Handle>>() {
        return with.call(&*handle);
    }
    let large = Large::parse(here.term(key), Reading::Brief)?;
    // The VM should know how long a call has taken, or a process that uses such keys gets more than its share.
    // (The least that can be said is ten microseconds. Most keys take less than one; but what only the VM can read
    // takes longer than its length says.)
    if large.bytes() >= BYTES_WORTH_A_WORD || matches!(large, Large::Copied { .. }) {
        let percent = (large.bytes() / BYTES_PER_PERCENT).clamp(1, 100);
        consume_timeslice(here.env(), percent as i32);
    }
    with.call(&large)
}

/// Calls with a key that was kept.
pub(crate) fn with_kept<W: WithKey>(
    here: Here<'_>,
    key: &TermKey,
    with: W,
) -> Result<W::Answer, Raised> {
    match key.share_interned() {
        Some(interned) => with.call(&Handle::new(interned)),
        None => with_key(here, decode::term(here, key)?, with),
    }
}

/// A term to be kept and shown; no key to look for, if it is long.
pub(crate) fn to_show(here: Here<'_>, term: ErlNifTerm) -> Result<TermKey, Raised> {
    match Small::parse(here, term) {
        Some(small) => Ok(small.to_key()?),
        None => Ok(Large::parse(here.term(term), Reading::Thorough)?.to_key()?),
    }
}

/// `MaxPer * Buckets` of two non-negative integers of any size.
#[inline(always)]
pub(crate) fn capacity(
    here: Here<'_>,
    max_per: ErlNifTerm,
    buckets: ErlNifTerm,
) -> Option<Capacity> {
    Some(Capacity::of(
        non_negative(here, max_per)?,
        non_negative(here, buckets)?,
    ))
}

/// A non-negative integer of any size; what is beyond 64 bits is the greatest of them.
#[inline(always)]
pub(crate) fn non_negative(here: Here<'_>, term: ErlNifTerm) -> Option<u64> {
    match enif::unsigned(here, term) {
        Some(integer) => Some(integer),
        None => beyond_64_bits(here.term(term)),
    }
}

#[cold]
fn beyond_64_bits(term: Term<'_>) -> Option<u64> {
    (term.is_integer() && enif::is_positive(term)).then_some(u64::MAX)
}
