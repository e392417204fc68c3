//! Optimistic encodings: a call first reads its key with as few calls of the VM as possible.
//!
//! Each call of the VM takes one to two nanoseconds. Most parts of most keys are **immediate**: the word of the part
//! determines it. An optimistic encoding takes each word that looks immediate for an immediate, and each reference for
//! one of this node, without asking the VM. So it may be wrong. It is only compared with stored keys; no key is made
//! from it:
//!
//! - A stored key is made from a verified encoding. That stores a word only if the VM confirms that the word depends on
//!   the value alone.
//! - A word denotes one term at a time. So if a stored key has that word, the part is the same atom, pid or integer.
//! - A reference is also compared as a term.
//!
//! So if the table has the key, the encoding is right. If not, the call starts again with a verified encoding.

use super::encoded_term::EncodedTerm;
use super::encoding::{last_word, looks_immediate, tag, with_size};
use super::namespace::Namespace;
use super::reader::{Part, ReadMode, Reader};
use super::stored_key::{Form, OnHeap, StoredKey};
use crate::enif::{self, CallEnv, ErlNifTerm};
use equivalent::Equivalent;

/// A call that can be made with an optimistic encoding. If it returns an answer, a stored key equals the argument, so
/// the answer is final. If it returns `None`, nothing has changed, and the call starts again with a
/// verified encoding. This is a trait because a closure cannot be `inline(always)`.
pub(crate) trait OptimisticCall {
    type Answer;

    /// Of the key. A constant, so that it costs nothing.
    const NAMESPACE: Namespace;

    /// Makes the call if the table has the key.
    fn try_encoded(self, key: &EncodedTerm<'_>) -> Option<Self::Answer>;

    /// Makes the call without an encoding, if only a few keys have to be compared. Used for terms that take longer to
    /// read than to compare.
    fn try_whole_term(&self, _key: &WholeTerm) -> Option<Self::Answer> {
        None
    }
}

/// An argument that is compared with the copies of stored keys, without an encoding.
pub(crate) struct WholeTerm(ErlNifTerm, Namespace);

impl Equivalent<StoredKey> for WholeTerm {
    fn equivalent(&self, key: &StoredKey) -> bool {
        // Not with interned keys: a comparison of long terms takes long.
        matches!(&key.0, Form::Large(OnHeap::Own(own))
            if own.namespace() == self.1 && own.is_copy_of(self.0))
    }
}

/// Makes a call with the optimistic encoding of a term. The frequent types of keys are read without a loop.
#[inline(always)]
pub(crate) fn with_optimistic_encoding<C: OptimisticCall>(
    env: CallEnv<'_>,
    term: ErlNifTerm,
    call: C,
) -> Option<C::Answer> {
    let word = enif::word;
    let first = |word| C::NAMESPACE.flip(word);
    let immediate = |term| looks_immediate(word(term));
    if immediate(term) {
        return call.try_encoded(&EncodedTerm::of(&[first(word(term))]));
    }
    let part = Part::of(env, term);
    match part {
        Part::Tuple(&[a, b]) if immediate(a) && immediate(b) => {
            return call.try_encoded(&EncodedTerm::of(&[first(TUPLE_OF_2), word(a), word(b)]));
        }
        Part::Tuple(&[a, b, c]) if immediate(a) && immediate(b) && immediate(c) => {
            return try_words(call, &[first(TUPLE_OF_3), word(a), word(b), word(c)]);
        }
        Part::Binary(bytes) => match bytes.len() {
            1..=8 => return try_words(call, &binary::<2>(C::NAMESPACE, bytes)),
            9..=16 => return try_words(call, &binary::<3>(C::NAMESPACE, bytes)),
            17..=24 => return try_words(call, &binary::<4>(C::NAMESPACE, bytes)),
            25..=32 => return try_words(call, &binary::<5>(C::NAMESPACE, bytes)),
            _ => {}
        },
        _ => {}
    }
    try_any(env, term, part, call)
}

/// A function of its own for each number of words. Inlined into the caller, all types together use more registers than
/// there are, and the compiler no longer inlines the body into the function that catches panics.
#[inline(never)]
fn try_words<C: OptimisticCall, const N: usize>(call: C, words: &[u64; N]) -> Option<C::Answer> {
    call.try_encoded(&EncodedTerm::of(words))
}

#[inline(never)]
fn try_any<C: OptimisticCall>(
    env: CallEnv<'_>,
    term: ErlNifTerm,
    part: Part<'_>,
    call: C,
) -> Option<C::Answer> {
    if let Part::Other(_) = part {
        if let answered @ Some(_) = call.try_whole_term(&WholeTerm(term, C::NAMESPACE)) {
            return answered;
        }
    }
    let mut reader = Reader::new(env, ReadMode::Optimistic);
    // If this fails, the verified encoding reports the error.
    reader.read(part).ok()?;
    call.try_encoded(&reader.encoded(C::NAMESPACE, term))
}

const TUPLE_OF_2: u64 = with_size(tag::TUPLE, 2);
const TUPLE_OF_3: u64 = with_size(tag::TUPLE, 3);

/// The encoding of a binary, which has `N - 1` words of bytes. Only the last word has a variable length, so no loop
/// copies bytes.
#[inline(always)]
fn binary<const N: usize>(namespace: Namespace, bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    words[0] = namespace.flip(with_size(tag::BYTES, bytes.len()));
    for (index, word) in words[1..].iter_mut().enumerate() {
        *word = match bytes[8 * index..].first_chunk::<8>() {
            Some(whole) => u64::from_le_bytes(*whole),
            None => last_word(bytes),
        };
    }
    words
}
