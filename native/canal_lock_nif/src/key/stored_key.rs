//! The keys that tables and records of proxies own.

use super::encoded_term::EncodedTerm;
use super::encoding::tag;
use super::namespace::Namespace;
use super::{interned::Interned, large_key::LargeKey};
use equivalent::Equivalent;
use permit_table::{Key, OutOfMemory, Query};
use std::{num::NonZeroU64, ptr, sync::Arc};

/// Words of a small key.
const INLINE: usize = 5;

/// A key that a table compares with encoded terms.
pub(crate) struct StoredKey(pub(super) Form);

/// Which form a key has depends only on its value.
pub(super) enum Form {
    Small(SmallKey),
    Large(OnHeap),
}

// A table's node has three more words, so both fit on one cache line. The compiler stores `Large` in the last four
// words, and 0 in the first one, because no small key begins with 0.
const _: () = assert!(size_of::<StoredKey>() == size_of::<[u64; INLINE]>());

/// The encoding, padded with zeros.
#[repr(C)]
pub(super) struct SmallKey {
    first: NonZeroU64,
    rest: [u64; INLINE - 1],
}

pub(super) enum OnHeap {
    Own(LargeKey),
    Interned(Arc<Interned>, Namespace),
}

impl SmallKey {
    /// `None` if the encoding is too long, or does not determine the term.
    fn of(term: &EncodedTerm<'_>) -> Option<Self> {
        let (first, others) = term.words.split_first()?;
        let mut rest = [0; INLINE - 1];
        rest.get_mut(..others.len())?.copy_from_slice(others);
        let first = NonZeroU64::new(*first)?;
        term.opaque.is_none().then_some(Self { first, rest })
    }

    /// The encoding. Zeros follow.
    #[inline(always)]
    pub(super) fn words(&self) -> &[u64; INLINE] {
        // SAFETY: `repr(C)`: this many words, one after the other.
        unsafe { &*ptr::from_ref(self).cast() }
    }
}

impl OnHeap {
    pub(super) fn key(&self) -> &LargeKey {
        match self {
            OnHeap::Own(key) => key,
            OnHeap::Interned(interned, _) => &interned.key,
        }
    }
}

impl StoredKey {
    pub(crate) fn namespace(&self) -> Namespace {
        match &self.0 {
            Form::Small(small) => Namespace::of(small.first.get()),
            Form::Large(OnHeap::Own(own)) => own.namespace(),
            Form::Large(OnHeap::Interned(_, namespace)) => *namespace,
        }
    }
}

impl Key for StoredKey {
    /// Counts an interned key in full for each key that shares it.
    fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Small(_) => 0,
            Form::Large(large) => large.key().heap_bytes(),
        }
    }
}

impl Equivalent<StoredKey> for EncodedTerm<'_> {
    #[inline(always)]
    fn equivalent(&self, key: &StoredKey) -> bool {
        if self.words.len() > INLINE || self.opaque.is_some() {
            return matches!(&key.0, Form::Large(OnHeap::Own(own)) if own.is_equal(self));
        }
        match &key.0 {
            Form::Small(small) => self.is_prefix_of(small.words()),
            Form::Large(OnHeap::Own(_)) => false,
            Form::Large(OnHeap::Interned(interned, namespace)) => {
                *self.words == interned.words(*namespace)
            }
        }
    }
}

impl Query<StoredKey> for EncodedTerm<'_> {
    /// A small key needs no memory, so it cannot fail.
    fn to_key(&self) -> Result<StoredKey, OutOfMemory> {
        if let [first, address] = *self.words {
            let namespace = Namespace::of(first);
            if namespace.flip(first) == tag::INTERNED {
                // SAFETY: only `with_key` makes such words. It keeps the interned key during the call.
                let interned = unsafe { Interned::from_address(address) };
                return Ok(StoredKey(Form::Large(OnHeap::Interned(
                    interned, namespace,
                ))));
            }
        }
        Ok(StoredKey(match SmallKey::of(self) {
            Some(small) => Form::Small(small),
            None => Form::Large(OnHeap::Own(LargeKey::of(self)?)),
        }))
    }
}
