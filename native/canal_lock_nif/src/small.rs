//! Keys that fit into a cache line together with their count: atoms, integers, floats, local pids, binaries of up to
//! 32 bytes, and tuples of up to seven of these that need no more than four words. Nothing is allocated to look one
//! up.
//!
//! ```text
//!   db                     shape  IMMEDIATE                          words  the atom
//!   {app, 12345}           shape  TUPLE+2, IMMEDIATE, IMMEDIATE      words  the atom, the integer
//!   <<"0123456789">>       shape  BINARY+10                          words  "01234567", "89" and zeros
//! ```
//!
//! A shape says how many words each part has, so the words of two keys of one shape stand in the same places, and
//! what is left is zero: comparing is comparing words.
//!
//! # Guessing
//!
//! Each question to the VM costs about as much as hashing the whole key. So the hot calls do not ask what the
//! elements of a tuple are. They guess that all of them are **immediate**: that the word of the element is the whole
//! of it, as with atoms, local pids and small integers. If the table knows the key that the guess makes, the guess is
//! right:
//!
//! - A key gets IMMEDIATE parts only by [`Small::parse`], which has asked, and has seen of each that its word depends
//!   on its value alone (an integer is made anew from its value, and has to come out as the same word).
//! - A word denotes one term at a time. So a term with that word is that very atom, pid or integer, and never one
//!   that lives on a heap; and an equal term has no other word.
//!
//! If the table does not know it, the call begins anew and asks.

use crate::enif::{self, Here};
use crate::key::{tag, TermKey};
use equivalent::Equivalent;
use permit_table::{OutOfMemory, Query};
use rustler::sys::{ErlNifTerm, ErlNifTermType};
use rustler::{Binary, Env, LocalPid, Term};
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

const WORDS: usize = 4;

/// A tuple of more parts would not leave each a byte of the shape.
const MAX_ARITY: usize = 7;

/// What a small key may be, by its shape and the `N` words that the shape speaks of.
pub(crate) struct Guess<const N: usize> {
    shape: u64,
    words: [u64; N],
}

/// What to do with a guess; compiled for each number of words.
pub(crate) trait WithGuess {
    type Answer;

    fn call<const N: usize>(self, guess: &Guess<N>) -> Self::Answer;
}

/// Calls with what a term may be as a small key; nothing if it is none for sure.
#[inline(always)]
pub(crate) fn guess<W: WithGuess>(here: Here<'_>, term: ErlNifTerm, with: W) -> Option<W::Answer> {
    match enif::term_type(here, term) {
        ErlNifTermType::ERL_NIF_TERM_TYPE_ATOM
        | ErlNifTermType::ERL_NIF_TERM_TYPE_INTEGER
        | ErlNifTermType::ERL_NIF_TERM_TYPE_PID => Some(with.call(&Guess {
            shape: tag::IMMEDIATE,
            words: [enif::word(term)],
        })),
        ErlNifTermType::ERL_NIF_TERM_TYPE_TUPLE => match *enif::elements(here, term)? {
            [a] => Some(with.call(&Guess::tuple([a]))),
            [a, b] => Some(with.call(&Guess::tuple([a, b]))),
            [a, b, c] => Some(with.call(&Guess::tuple([a, b, c]))),
            [a, b, c, d] => Some(with.call(&Guess::tuple([a, b, c, d]))),
            _ => None,
        },
        ErlNifTermType::ERL_NIF_TERM_TYPE_BITSTRING => {
            let bytes = enif::bytes(here, term)?;
            match bytes.len() {
                1..=8 => Some(with.call(&Guess::<1>::bytes(bytes))),
                9..=16 => Some(with.call(&Guess::<2>::bytes(bytes))),
                17..=24 => Some(with.call(&Guess::<3>::bytes(bytes))),
                25..=32 => Some(with.call(&Guess::<4>::bytes(bytes))),
                _ => None,
            }
        }
        _ => None,
    }
}

impl<const N: usize> Guess<N> {
    /// A tuple of immediate elements.
    #[inline(always)]
    fn tuple(elements: [ErlNifTerm; N]) -> Self {
        let mut shape = tag::TUPLE + N as u64;
        for _ in 0..N {
            shape = shape << 8 | tag::IMMEDIATE;
        }
        Self {
            shape,
            words: elements.map(enif::word),
        }
    }

    /// A binary of as many words. The length is known but for the last word, so that nothing is copied by a loop.
    #[inline(always)]
    fn bytes(bytes: &[u8]) -> Self {
        let mut words = [0; N];
        for (index, word) in words.iter_mut().enumerate() {
            *word = match bytes[8 * index..].first_chunk::<8>() {
                Some(whole) => u64::from_le_bytes(*whole),
                None => last_word(bytes),
            };
        }
        Self {
            shape: tag::BINARY + bytes.len() as u64,
            words,
        }
    }
}

impl<const N: usize> Hash for Guess<N> {
    #[inline(always)]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hash_small(self.shape, &self.words, hasher);
    }
}

impl<const N: usize> Equivalent<TermKey> for Guess<N> {
    #[inline(always)]
    fn equivalent(&self, key: &TermKey) -> bool {
        key.is_small(self.shape, &self.words)
    }
}

/// A small key for sure.
pub(crate) struct Small {
    shape: u64,
    words: [u64; WORDS],
    used: usize,
}

impl Small {
    /// The key, if it is of this kind.
    pub(crate) fn parse(here: Here<'_>, term: ErlNifTerm) -> Option<Self> {
        let mut small = Self {
            shape: 0,
            words: [0; WORDS],
            used: 0,
        };
        match enif::elements(here, term) {
            None => small.part(here.term(term))?,
            Some(elements) if elements.len() > MAX_ARITY => return None,
            Some(elements) => {
                small.tag(tag::TUPLE + elements.len() as u64);
                for &element in elements {
                    small.part(here.term(element))?;
                }
            }
        }
        Some(small)
    }

    fn part(&mut self, term: Term<'_>) -> Option<()> {
        if term.is_atom() {
            self.word(tag::IMMEDIATE, enif::word(term.as_c_arg()))
        } else if let Ok(pid) = term.decode::<LocalPid>() {
            self.word(tag::IMMEDIATE, enif::pid_word(pid.as_c_arg()).get())
        } else if let Some(integer) = enif::signed(term) {
            if enif::integer(term.get_env(), integer) == term.as_c_arg() {
                self.word(tag::IMMEDIATE, enif::word(term.as_c_arg()))
            } else {
                self.word(tag::INTEGER, integer as u64)
            }
        } else if let Some(bits) = float_bits(term) {
            self.word(tag::FLOAT, bits)
        } else if let Ok(binary) = Binary::from_term(term) {
            self.bytes(&binary)
        } else if term.is_empty_list() {
            self.tag(tag::NIL);
            Some(())
        } else {
            None
        }
    }

    fn tag(&mut self, tag: u64) {
        self.shape = self.shape << 8 | tag;
    }

    fn word(&mut self, tag: u64, word: u64) -> Option<()> {
        *self.words.get_mut(self.used)? = word;
        self.tag(tag);
        self.used += 1;
        Some(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.used + bytes.len().div_ceil(8);
        words_of(bytes, self.words.get_mut(self.used..end)?);
        self.tag(tag::BINARY + bytes.len() as u64);
        self.used = end;
        Some(())
    }
}

impl Hash for Small {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hash_small(self.shape, &self.words[..self.used], hasher);
    }
}

impl Equivalent<TermKey> for Small {
    fn equivalent(&self, key: &TermKey) -> bool {
        key.is_small(self.shape, &self.words)
    }
}

impl Query<TermKey> for Small {
    fn to_key(&self) -> Result<TermKey, OutOfMemory> {
        Ok(TermKey::small(self.shape, self.words))
    }
}

/// A guess and the key that it turns out to be hash alike.
#[inline(always)]
fn hash_small<H: Hasher>(shape: u64, words: &[u64], hasher: &mut H) {
    hasher.write_u64(shape);
    for word in words {
        hasher.write_u64(*word);
    }
}

/// Fills `words`, which are as many as the bytes need.
pub(crate) fn words_of(bytes: &[u8], words: &mut [u64]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_le_bytes(*bytes);
    }
    if let (false, Some(last)) = (rest.is_empty(), words.last_mut()) {
        *last = last_word(bytes);
    }
}

/// The bytes beyond the last whole word, filled up with zeros.
#[inline(always)]
fn last_word(bytes: &[u8]) -> u64 {
    let rest = bytes.len() % 8;
    match bytes.last_chunk::<8>() {
        // They are the highest bytes of the last eight.
        Some(last) => u64::from_le_bytes(*last) >> (8 * (8 - rest)),
        None => bytes
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
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
    // As that in `large.rs`: a panic inside would leave it empty.
    static ZEROS_ARE_ONE: OnceLock<bool> = OnceLock::new();
    *ZEROS_ARE_ONE.get_or_init(|| {
        use rustler::Encoder;
        enif::identical(
            0.0f64.encode(env).as_c_arg(),
            (-0.0f64).encode(env).as_c_arg(),
        )
    })
}
