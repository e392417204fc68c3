//! Stored keys: what a table compares with readings.

use super::encoded_key::EncodedKey;
use super::interned::Interned;
use super::reading::Reading;
use crate::enif::ErlNifTerm;
use equivalent::Equivalent;
use permit_table::{Key, OutOfMemory, Query};
use std::ptr;
use std::sync::Arc;

/// A stored key: an encoded key, or the encoded address of an interned key, of which it then owns one count.
#[repr(transparent)]
pub(crate) struct TermKey(EncodedKey);

impl TermKey {
    /// The key's own encoding, or that of the interned key.
    pub(super) fn encoded(&self) -> &EncodedKey {
        // SAFETY: counted since `to_key`, until `drop`.
        let interned = self.interned().map(|interned| unsafe { &*interned });
        interned.map_or(&self.0, |interned| &interned.key)
    }

    /// Whether the key has a copy of its own of a term, and this term is `=:=` to it.
    pub(super) fn is_copy_of(&self, term: ErlNifTerm) -> bool {
        self.0.is_copy_of(term)
    }

    fn interned(&self) -> Option<*const Interned> {
        let address = self.0.interned_address()?;
        Some(ptr::with_exposed_provenance(address as usize))
    }
}

impl Key for TermKey {
    /// Counts an interned key in full for each key that shares it.
    fn heap_bytes(&self) -> usize {
        self.encoded().heap_bytes()
    }
}

impl Drop for TermKey {
    fn drop(&mut self) {
        if let Some(interned) = self.interned() {
            // SAFETY: from an `Arc`, counted since `to_key`, and dropped once.
            drop(unsafe { Arc::from_raw(interned) });
        }
    }
}

impl Equivalent<TermKey> for Reading<'_> {
    #[inline(always)]
    fn equivalent(&self, key: &TermKey) -> bool {
        key.0.is_equal(self)
    }
}

impl Query<TermKey> for Reading<'_> {
    fn to_key(&self) -> Result<TermKey, OutOfMemory> {
        let key = TermKey(EncodedKey::of(self)?);
        if let Some(interned) = key.interned() {
            // SAFETY: made by `Handle::with_reading`, which keeps the interned key during the reading. The new key owns
            // this count.
            unsafe { Arc::increment_strong_count(interned) };
        }
        Ok(key)
    }
}
