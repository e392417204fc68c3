//! Keys on the heap: those that do not fit into a table's node, and those that their words do not determine.

use super::encoded_term::EncodedTerm;
use super::namespace::Namespace;
use crate::enif::{ErlNifTerm, TermCopy};
use permit_table::{reserve_exact, OutOfMemory};

/// The least memory of an environment that contains a copied term, in bytes (measured on OTP 25).
const ENVIRONMENT_BYTES: usize = 2400;

/// The words of a key, and a copy of its term if they do not determine it.
#[derive(Default)]
pub(super) struct LargeKey {
    /// The encoding. If there is a copy, its size in bytes follows: a field of its own would not fit into a node.
    pub(super) words: Box<[u64]>,
    pub(super) copy: Option<TermCopy>,
}

impl LargeKey {
    pub(super) fn of(term: &EncodedTerm<'_>) -> Result<Self, OutOfMemory> {
        let copy_bytes = term.opaque.map(|(_, bytes)| ENVIRONMENT_BYTES + bytes);
        let mut words = Vec::new();
        reserve_exact(&mut words, term.words.len() + copy_bytes.iter().len())?;
        words.extend_from_slice(term.words);
        words.extend(copy_bytes.map(|bytes| bytes as u64));
        vm_allocator::add(copy_bytes.unwrap_or(0));
        Ok(Self {
            words: words.into_boxed_slice(),
            copy: term.opaque.map(|(opaque, _)| TermCopy::of(opaque)),
        })
    }

    pub(super) fn namespace(&self) -> Namespace {
        Namespace::of(self.words.first().copied().unwrap_or(0))
    }

    #[inline(always)]
    pub(super) fn is_equal(&self, term: &EncodedTerm<'_>) -> bool {
        let is_copy = |(opaque, _)| self.is_copy_of(opaque);
        self.words.len() >= term.words.len()
            && term.is_prefix_of(&self.words)
            && term.opaque.is_none_or(is_copy)
    }

    /// Whether the key has a copy of a term, and this term is `=:=` to it.
    #[inline(always)]
    pub(super) fn is_copy_of(&self, term: ErlNifTerm) -> bool {
        self.copy.as_ref().is_some_and(|copy| copy.is_of(term))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.words) + self.copy_bytes()
    }

    /// The bytes of the copy and its environment, if there is one.
    fn copy_bytes(&self) -> usize {
        match (&self.copy, &*self.words) {
            (Some(_), [.., bytes]) => *bytes as usize,
            _ => 0,
        }
    }
}

impl Drop for LargeKey {
    fn drop(&mut self) {
        vm_allocator::subtract(self.copy_bytes());
    }
}
