//! Keys that fit into a cache line together with their count: atoms, integers, floats, local pids, binaries of up to 32
//! bytes, and tuples of up to seven of these that need no more than four words. They are parsed into registers and a few words
//! of the stack, and nothing is allocated to look one up.
//!
//! ```text
//!   db                     shape  ATOM                        words  the atom
//!   {app, 12345}           shape  TUPLE+2, ATOM, INTEGER      words  the atom, 12345
//!   <<"0123456789">>       shape  BINARY+10                   words  "01234567", "89" and zeros
//! ```
//!
//! A shape says how many words each part has, so the words of two keys of one shape stand in the same places, and what is
//! left is zero: comparing is comparing five words.

use crate::enif;
use crate::key::{tag, TermKey};
use permit_table::{OutOfMemory, Query};
use rustler::{Binary, Env, LocalPid, Term};
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

const WORDS: usize = 4;

/// A tuple of more parts would not leave each a byte of the shape.
const MAX_ARITY: usize = 7;

/// A key of the small kind. It is filled in place: to move one just made would read words that are still being written.
#[derive(Default)]
pub(crate) struct Small {
    shape: u64,
    words: [u64; WORDS],
    used: usize,
}

impl Small {
    /// Takes the key, if it is of this kind. `self` is empty before.
    #[inline(always)]
    pub(crate) fn parse(&mut self, term: Term<'_>) -> bool {
        if term.is_atom() {
            self.push(tag::ATOM, enif::word(term.as_c_arg()))
        } else if let Some(elements) = enif::tuple(term) {
            self.tag(tag::TUPLE + elements.len() as u64);
            elements.len() <= MAX_ARITY
                && elements
                    .iter()
                    .all(|&element| self.part(enif::element(term, element)))
        } else {
            self.other_part(term)
        }
    }

    pub(crate) fn shape(&self) -> u64 {
        self.shape
    }

    /// The words in use: as many as the shape says.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words[..self.used]
    }

    #[inline(always)]
    fn part(&mut self, term: Term<'_>) -> bool {
        if term.is_atom() {
            self.push(tag::ATOM, enif::word(term.as_c_arg()))
        } else {
            self.other_part(term)
        }
    }

    #[inline(always)]
    fn other_part(&mut self, term: Term<'_>) -> bool {
        if let Ok(integer) = term.decode::<i64>() {
            self.push(tag::INTEGER, integer as u64)
        } else if let Ok(binary) = Binary::from_term(term) {
            self.push_bytes(&binary)
        } else {
            self.rare_part(term)
        }
    }

    #[cold]
    fn rare_part(&mut self, term: Term<'_>) -> bool {
        if let Some(bits) = float_bits(term) {
            self.push(tag::FLOAT, bits)
        } else if let Ok(pid) = term.decode::<LocalPid>() {
            self.push(
                tag::PID,
                enif::pid_word(term.get_env(), pid.as_c_arg()).get(),
            )
        } else {
            term.is_empty_list() && {
                self.tag(tag::NIL);
                true
            }
        }
    }

    #[inline(always)]
    fn tag(&mut self, tag: u64) {
        self.shape = self.shape << 8 | tag;
    }

    #[inline(always)]
    fn push(&mut self, tag: u64, word: u64) -> bool {
        self.tag(tag);
        let fits = self.used < WORDS;
        if fits {
            self.words[self.used] = word;
            self.used += 1;
        }
        fits
    }

    #[inline(always)]
    fn push_bytes(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= 8 * (WORDS - self.used);
        if fits {
            self.tag(tag::BINARY + bytes.len() as u64);
            let (words, rest) = bytes.as_chunks::<8>();
            for word in words {
                self.words[self.used] = u64::from_ne_bytes(*word);
                self.used += 1;
            }
            if !rest.is_empty() {
                let mut last = [0; 8];
                last[..rest.len()].copy_from_slice(rest);
                self.words[self.used] = u64::from_ne_bytes(last);
                self.used += 1;
            }
        }
        fits
    }
}

/// The bits of a float, such that they are equal when the floats are `=:=`: before OTP 27 the two zeros are.
pub(crate) fn float_bits(term: Term<'_>) -> Option<u64> {
    let float: f64 = term.decode().ok()?;
    let bits = if float == 0.0 && zeros_are_one(term.get_env()) {
        0.0f64.to_bits()
    } else {
        float.to_bits()
    };
    Some(bits)
}

fn zeros_are_one(env: Env<'_>) -> bool {
    static ZEROS_ARE_ONE: OnceLock<bool> = OnceLock::new();
    *ZEROS_ARE_ONE.get_or_init(|| {
        use rustler::Encoder;
        enif::identical(
            0.0f64.encode(env).as_c_arg(),
            (-0.0f64).encode(env).as_c_arg(),
        )
    })
}

impl Hash for Small {
    #[inline(always)]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.shape);
        for word in self.words() {
            hasher.write_u64(*word);
        }
    }
}

impl Query<TermKey> for Small {
    #[inline(always)]
    fn to_key(&self) -> Result<TermKey, OutOfMemory> {
        Ok(TermKey::small(self.shape, self.words))
    }
}
