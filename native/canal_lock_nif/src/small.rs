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
//! Each question to the VM costs about a nanosecond, so the hot calls ask as few as they can: what is asked most often
//! comes first, and nobody asks what the elements of a tuple are, or how large a number is. The guess is that all of
//! them are **immediate**: that the word of the element is the whole of it, as with atoms, local pids and small
//! integers. If the table knows the key that the guess makes, the guess is right:
//!
//! - A key gets IMMEDIATE parts only by [`Small::parse`], which has asked, and has seen of each that its word depends
//!   on its value alone (an integer is made anew from its value, and has to come out as the same word).
//! - A word denotes one term at a time. So a term with that word is that very atom, pid or integer, and never one
//!   that lives on a heap; and an equal term has no other word.
//!
//! If the table does not know it, the call begins anew and asks.
//!
//! A release need not guess: the keys that its process holds say what the term would have to be ([`Unread`]).

use crate::enif::{self, Here};
use crate::key::{tag, TermKey};
use equivalent::Equivalent;
use permit_table::{OutOfMemory, Query};
use rustler::sys::ErlNifTerm;
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
    let immediate = if enif::is_atom(here, term) {
        true
    } else if let Some(elements) = enif::elements(here, term) {
        return match *elements {
            [a, b] => Some(with.call(&Guess::tuple([a, b]))),
            [a] => Some(apart(with, &Guess::tuple([a]))),
            [a, b, c] => Some(apart(with, &Guess::tuple([a, b, c]))),
            [a, b, c, d] => Some(apart(with, &Guess::tuple([a, b, c, d]))),
            _ => None,
        };
    } else {
        enif::is_number(here, term)
    };
    if immediate {
        return Some(with.call(&Guess::immediate(term)));
    }
    if let Some(bytes) = enif::bytes(here, term) {
        return match bytes.len() {
            1..=8 => Some(apart(with, &Guess::<1>::bytes(bytes))),
            9..=16 => Some(apart(with, &Guess::<2>::bytes(bytes))),
            17..=24 => Some(apart(with, &Guess::<3>::bytes(bytes))),
            25..=32 => Some(apart(with, &Guess::<4>::bytes(bytes))),
            _ => None,
        };
    }
    enif::is_pid(here, term).then(|| apart(with, &Guess::immediate(term)))
}

/// The same, as a function of its own for all shapes of so many words. The caller has room for few: with all shapes in
/// one, the call that catches panics no longer has the rest within itself, and the compiler runs out of registers.
#[inline(never)]
fn apart<W: WithGuess, const N: usize>(with: W, guess: &Guess<N>) -> W::Answer {
    with.call(guess)
}

impl Guess<1> {
    #[inline(always)]
    fn immediate(term: ErlNifTerm) -> Self {
        Self {
            shape: tag::IMMEDIATE,
            words: [enif::word(term)],
        }
    }
}

impl<const N: usize> Guess<N> {
    /// A tuple of immediate elements.
    #[inline(always)]
    fn tuple(elements: [ErlNifTerm; N]) -> Self {
        Self {
            shape: tuple_shape(N),
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

/// The shape of a tuple of so many immediate elements.
#[inline(always)]
const fn tuple_shape(arity: usize) -> u64 {
    let mut shape = tag::TUPLE + arity as u64;
    let mut elements = 0;
    while elements < arity {
        shape = shape << 8 | tag::IMMEDIATE;
        elements += 1;
    }
    shape
}

/// A term that is compared with a key without having been read: the shape of the key says what to ask of the term. It
/// may be equal, and not be found to be: only an immediate term, a tuple of these and a binary are.
pub(crate) struct Unread<'a> {
    pub(crate) here: Here<'a>,
    pub(crate) term: ErlNifTerm,
}

impl Equivalent<TermKey> for Unread<'_> {
    #[inline(always)]
    fn equivalent(&self, key: &TermKey) -> bool {
        let (shape, words) = key.parts();
        if shape == tag::IMMEDIATE {
            return words[0] == enif::word(self.term);
        }
        if shape & !(tag::BINARY - 1) == tag::BINARY {
            return self.is_bytes(key);
        }
        match enif::elements(self.here, self.term) {
            Some(&[a, b]) => Guess::tuple([a, b]).equivalent(key),
            Some(&[a, b, c]) => Guess::tuple([a, b, c]).equivalent(key),
            Some(&[a]) => Guess::tuple([a]).equivalent(key),
            Some(&[a, b, c, d]) => Guess::tuple([a, b, c, d]).equivalent(key),
            _ => false,
        }
    }
}

impl Unread<'_> {
    fn is_bytes(&self, key: &TermKey) -> bool {
        let Some(bytes) = enif::bytes(self.here, self.term) else {
            return false;
        };
        match bytes.len() {
            1..=8 => Guess::<1>::bytes(bytes).equivalent(key),
            9..=16 => Guess::<2>::bytes(bytes).equivalent(key),
            17..=24 => Guess::<3>::bytes(bytes).equivalent(key),
            25..=32 => Guess::<4>::bytes(bytes).equivalent(key),
            _ => false,
        }
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

/// A guess and the key that it turns out to be hash alike. Two words at a time: the hasher multiplies twice as rarely.
#[inline(always)]
fn hash_small<H: Hasher>(shape: u64, words: &[u64], hasher: &mut H) {
    let pair = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
    match *words {
        [] => hasher.write_u64(shape),
        [a] => hasher.write_u128(pair(shape, a)),
        [a, b] => {
            hasher.write_u128(pair(shape, a));
            hasher.write_u64(b);
        }
        [a, b, c] => {
            hasher.write_u128(pair(shape, a));
            hasher.write_u128(pair(b, c));
        }
        [a, b, c, d, ..] => {
            hasher.write_u128(pair(shape, a));
            hasher.write_u128(pair(b, c));
            hasher.write_u64(d);
        }
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
