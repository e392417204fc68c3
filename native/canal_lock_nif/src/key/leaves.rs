//! Reads the terms that contain no other terms.

use super::encoding::{looks_immediate, tag};
use super::reader::{ReadMode, Reader};
use super::reading::seed;
use crate::enif;
use crate::error::CallError;
use rustler::{Encoder, LocalPid, Term, TermType};
use std::sync::OnceLock;

/// The work of encoding one part by the external format, which takes about 0.2 us.
const EXTERNAL_WORK: usize = 64;

impl<'a> Reader<'a> {
    /// A term that is neither a tuple, a list cell, a map nor a binary.
    #[inline(always)]
    pub(super) fn leaf(&mut self, term: Term<'a>, term_type: TermType) -> Result<(), CallError> {
        match term_type {
            // Of lists, only `[]` is a leaf.
            TermType::Atom | TermType::List => self.immediate(term),
            TermType::Integer => self.integer(term),
            TermType::Float => self.tagged_word(tag::FLOAT, float_bits(term)),
            TermType::Pid if term.decode::<LocalPid>().is_ok() => self.immediate(term),
            TermType::Port if enif::is_local_port(term) => self.immediate(term),
            TermType::Pid | TermType::Port => self.external(term),
            TermType::Ref => {
                let hash = self.reference_hash(term)?;
                self.opaque(hash)
            }
            // The length of the others is not known before they are read.
            _ if self.mode != ReadMode::VerifiedLong => Err(CallError::Long),
            TermType::Binary => self.external(term),
            _ => self.opaque(enif::internal_hash(term, 0)),
        }
    }

    /// A term that the VM says is immediate.
    fn immediate(&mut self, term: Term<'_>) -> Result<(), CallError> {
        let word = enif::word(term.as_c_arg());
        if looks_immediate(word) {
            self.push(word)
        } else {
            self.tagged_word(tag::WORD, word)
        }
    }

    fn integer(&mut self, term: Term<'_>) -> Result<(), CallError> {
        if let Ok(integer) = term.decode::<i64>() {
            // A small integer has the same word when it is made again from its value.
            if integer.encode(term.get_env()).as_c_arg() == term.as_c_arg() {
                self.immediate(term)
            } else {
                self.tagged_word(tag::INTEGER, integer as u64)
            }
        } else if let Ok(integer) = term.decode::<u64>() {
            self.tagged_word(tag::UNSIGNED, integer)
        } else if self.mode == ReadMode::VerifiedLong || enif::is_short_integer(term) {
            self.external(term)
        } else {
            Err(CallError::Long)
        }
    }

    fn tagged_word(&mut self, tag: u64, word: u64) -> Result<(), CallError> {
        self.spend(2)?;
        self.words.push(tag)?;
        Ok(self.words.push(word)?)
    }

    fn opaque(&mut self, hash: u64) -> Result<(), CallError> {
        self.is_opaque = true;
        self.tagged_word(tag::OPAQUE, hash)
    }

    /// Encodes by the external format, which is the same for equal terms of these types.
    fn external(&mut self, term: Term<'_>) -> Result<(), CallError> {
        self.spend(EXTERNAL_WORK)?;
        self.bytes(tag::EXTERNAL, &enif::external_format(term)?)
    }

    /// The hash of a reference. A reference of another node is hashed by its external format. The VM's own hash takes
    /// it for longer than it may be on OTP 25; on later releases that hash differs between equal references of
    /// different lengths.
    fn reference_hash(&mut self, term: Term<'_>) -> Result<u64, CallError> {
        if self.mode == ReadMode::Optimistic {
            return Ok(local_reference_hash(term));
        }
        self.spend(EXTERNAL_WORK)?;
        let external = enif::external_format(term)?;
        let (origin, words) = parts_of_reference(&external);
        let ours = enif::external_format(*self.call.env().make_ref())?;
        if origin == parts_of_reference(&ours).0 {
            Ok(local_reference_hash(term))
        } else {
            Ok(seed().hash_one((origin, words)))
        }
    }
}

/// The origin and the words of a reference in the external format (tag 90: number of words, origin, words).
///
/// The origin is the name and the creation of the node. This node's origin changes when the node gets a name. Equal
/// references may have different lengths; the missing words are zeros.
fn parts_of_reference(external: &[u8]) -> (&[u8], [u32; 5]) {
    let mut words = [0; 5];
    let [131, 90, high, low, rest @ ..] = external else {
        return (&[], words);
    };
    let count = usize::from(u16::from_be_bytes([*high, *low]));
    let (origin, numbers) = rest.split_at(rest.len().saturating_sub(4 * count));
    for (word, bytes) in words.iter_mut().zip(numbers.chunks_exact(4)) {
        *word = u32::from_be_bytes(bytes.try_into().unwrap());
    }
    (origin, words)
}

/// The VM's hash, with a salt of 32 bits: OTP 25 uses no more.
fn local_reference_hash(term: Term<'_>) -> u64 {
    static SALT: OnceLock<u32> = OnceLock::new();
    let salt = SALT.get_or_init(|| seed().hash_one("salt") as u32);
    enif::internal_hash(term, u64::from(*salt))
}

/// The bits of a float. They are equal if the floats are `=:=`, which 0.0 and -0.0 are before OTP 27.
fn float_bits(term: Term<'_>) -> u64 {
    let float: f64 = term.decode().unwrap_or(0.0);
    if float == 0.0 && term == 0.0f64.encode(term.get_env()) {
        return 0.0f64.to_bits();
    }
    float.to_bits()
}
