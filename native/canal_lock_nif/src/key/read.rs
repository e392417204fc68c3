//! From a term to its encoding, in one pass over the term.
//!
//! # At first sight
//!
//! Each question to the VM costs one to two nanoseconds. Most parts of most keys are **immediate**: the word of the
//! part is the whole of it. So a call first reads its key *at first sight* ([`at_first_sight`]): it takes each word
//! that looks immediate for an immediate, and each reference for one of this node, without a question. That reading
//! may be wrong. It is compared with stored keys only, and no key is made of it:
//!
//! - A stored key was read *for sure* ([`Reader`] with [`Care::Sure`]), which has asked, and stores a word only if
//!   the VM says that the word depends on the value alone.
//! - A word denotes one term at a time. So where a stored key has that word, the part is that very atom, pid or
//!   integer.
//! - A reference is compared as a whole besides.
//!
//! So if the table has the key, the reading was right. If it does not, the call starts again and reads for sure.

use super::encoding::{last_word, looks_immediate, looks_like_list, tag, with_size};
use super::interned::Interned;
use super::stack::Stack;
use super::{TermKey, INLINE};
use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use ahash::RandomState;
use equivalent::Equivalent;
use permit_table::{fault, OutOfMemory, Query};
use rustler::schedule::consume_timeslice;
use rustler::{Encoder, LocalPid, Term, TermType};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// Parts of a term, or words of its binaries, that are read on a normal scheduler; in bytes, 64 KiB. To read, hash,
/// compare and store as much takes about 0.1 ms, and a hop to a dirty scheduler and back a few microseconds.
const BRIEF: usize = 64 * 1024 / 8;

/// The same on a dirty one: half a gigabyte. A term may be far larger than its memory, when its parts are shared; to
/// encode all of it would take the node down (P9).
const THOROUGH: usize = (1 << 29) / 8;

/// What the encoding of one part by the external format is worth of these, which takes about 0.2 us.
const EXTERNAL_WORK: usize = 64;

/// What an iterator over a map is worth.
const MAP_WORK: usize = 16;

/// What a part that is not read by its word alone is worth beside its words, which takes about 15 ns.
const PART_WORK: usize = 3;

/// Work that takes about half a microsecond: less is not reported to the VM.
const WORK_TO_REPORT: usize = 128;

/// Work that takes about ten microseconds, a hundredth of a timeslice.
const WORK_PER_PERCENT: usize = 1536;

/// An encoding in the making. Most keys need no memory but the stack's.
type Words = Stack<u64, 32>;

/// A key as a call has it: to look one up, and to make one of.
pub(crate) struct Reading<'a> {
    words: &'a [u64],
    /// The term, where the words do not tell everything; and how many bytes of it were read.
    whole: Option<(ErlNifTerm, usize)>,
}

impl<'a> Reading<'a> {
    #[inline(always)]
    pub(super) fn of(words: &'a [u64]) -> Self {
        Self { words, whole: None }
    }

    #[inline(always)]
    pub(super) fn words(&self) -> &[u64] {
        self.words
    }

    #[inline(always)]
    pub(super) fn whole(&self) -> Option<ErlNifTerm> {
        self.whole.map(|(term, _)| term)
    }

    /// A hash that is equal for equal keys, and has nothing to do with that of a table.
    pub(crate) fn digest(&self) -> u64 {
        seed().hash_one(self)
    }
}

impl Hash for Reading<'_> {
    #[inline(always)]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut pairs = self.words.chunks_exact(2);
        for pair in &mut pairs {
            hasher.write_u128(u128::from(pair[0]) | u128::from(pair[1]) << 64);
        }
        if let [last] = pairs.remainder() {
            hasher.write_u64(*last);
        }
    }
}

impl Equivalent<TermKey> for Reading<'_> {
    #[inline(always)]
    fn equivalent(&self, key: &TermKey) -> bool {
        key.is(self)
    }
}

impl Query<TermKey> for Reading<'_> {
    fn to_key(&self) -> Result<TermKey, OutOfMemory> {
        if let [tag::INTERNED, address] = *self.words {
            let shared: *const Interned = std::ptr::with_exposed_provenance(address as usize);
            // SAFETY: made by `Handle::read`, which keeps what is shared as long as the reading lasts. The key that is
            // made of these words is counted by itself.
            unsafe { Arc::increment_strong_count(shared) };
        }
        if self.words.len() <= INLINE && self.whole.is_none() {
            return Ok(TermKey::inline(self.words));
        }
        fault::memory()?;
        let mut encoding = Vec::new();
        encoding
            .try_reserve_exact(self.words.len())
            .map_err(|_| OutOfMemory)?;
        encoding.extend_from_slice(self.words);
        Ok(TermKey::boxed(encoding.into_boxed_slice(), self.whole))
    }
}

/// Of hashes that never leave this process of the operating system.
fn seed() -> &'static RandomState {
    // If making it panicked, the lock would stay empty for the next one.
    static SEED: OnceLock<RandomState> = OnceLock::new();
    SEED.get_or_init(RandomState::new)
}

/// A call with a key that is read at first sight. A trait, because a closure has no attribute `inline`.
pub(crate) trait Attempt {
    type Answer;

    /// Nothing, if the table does not have the key: it may have been read wrong.
    fn call(self, key: &Reading<'_>) -> Option<Self::Answer>;

    /// The same with a term that takes longer to read than to compare, where there is nothing but a few keys to compare
    /// it with.
    fn call_unread(&self, _key: &Unread) -> Option<Self::Answer> {
        None
    }
}

/// A term that is compared as a whole, with keys that are stored so.
pub(crate) struct Unread(ErlNifTerm);

impl Equivalent<TermKey> for Unread {
    fn equivalent(&self, key: &TermKey) -> bool {
        key.copy().is_some_and(|copy| enif::identical(copy, self.0))
    }
}

/// Makes a call with what a term reads as at first sight; nothing if it cannot be read so.
///
/// The frequent kinds of keys are read without a loop.
#[inline(always)]
pub(crate) fn at_first_sight<A: Attempt>(
    call: CallEnv<'_>,
    term: ErlNifTerm,
    attempt: A,
) -> Option<A::Answer> {
    let word = enif::word;
    let immediate = |term| looks_immediate(word(term));
    if immediate(term) {
        return attempt.call(&Reading::of(&[word(term)]));
    }
    let part = Part::of(call, term);
    match part {
        Part::Tuple(&[a, b]) if immediate(a) && immediate(b) => {
            return attempt.call(&Reading::of(&[TWO, word(a), word(b)]));
        }
        Part::Tuple(&[a, b, c]) if immediate(a) && immediate(b) && immediate(c) => {
            return apart(attempt, &[THREE, word(a), word(b), word(c)]);
        }
        Part::Binary(bytes) => match bytes.len() {
            1..=8 => return apart(attempt, &binary::<2>(bytes)),
            9..=16 => return apart(attempt, &binary::<3>(bytes)),
            17..=24 => return apart(attempt, &binary::<4>(bytes)),
            25..=32 => return apart(attempt, &binary::<5>(bytes)),
            _ => {}
        },
        _ => {}
    }
    any_at_first_sight(call, term, part, attempt)
}

/// A term that is not taken by its word alone; by what has been asked of it.
enum Part<'a> {
    Tuple(&'a [ErlNifTerm]),
    Binary(&'a [u8]),
    /// It looks like one, at least.
    List(ErlNifTerm),
    /// With its size.
    Map(ErlNifTerm, usize),
    Other(ErlNifTerm),
}

impl<'a> Part<'a> {
    #[inline(always)]
    fn of(call: CallEnv<'a>, term: ErlNifTerm) -> Self {
        if looks_like_list(enif::word(term)) {
            Part::List(term)
        } else if let Some(elements) = enif::elements(call, term) {
            Part::Tuple(elements)
        } else if let Some(bytes) = enif::bytes(call, term) {
            Part::Binary(bytes)
        } else if let Some(size) = enif::map_size(call, term) {
            Part::Map(term, size)
        } else {
            Part::Other(term)
        }
    }
}

/// The same, as a function of its own for each number of words. The caller has room for few: with all kinds in one, the
/// call that catches panics no longer has the rest within itself, and the compiler runs out of registers.
#[inline(never)]
fn apart<A: Attempt, const N: usize>(attempt: A, words: &[u64; N]) -> Option<A::Answer> {
    attempt.call(&Reading::of(words))
}

#[inline(never)]
fn any_at_first_sight<A: Attempt>(
    call: CallEnv<'_>,
    term: ErlNifTerm,
    part: Part<'_>,
    attempt: A,
) -> Option<A::Answer> {
    if let Part::Other(_) = part {
        if let Some(answer) = attempt.call_unread(&Unread(term)) {
            return Some(answer);
        }
    }
    let mut reader = Reader::new(call, Care::FirstSight);
    reader.read(part).ok()?;
    attempt.call(&reader.reading(term))
}

const TWO: u64 = with_size(tag::TUPLE, 2);
const THREE: u64 = with_size(tag::TUPLE, 3);

/// A binary of `N - 1` words. The length is known but for the last word, so that nothing is copied by a loop.
#[inline(always)]
fn binary<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    words[0] = with_size(tag::BYTES, bytes.len());
    for (index, word) in words[1..].iter_mut().enumerate() {
        *word = match bytes[8 * index..].first_chunk::<8>() {
            Some(whole) => u64::from_le_bytes(*whole),
            None => last_word(bytes),
        };
    }
    words
}

/// Calls with what a term reads as for sure.
pub(crate) fn with_term<T>(
    call: CallEnv<'_>,
    term: ErlNifTerm,
    care: Care,
    with: impl FnOnce(&Reading<'_>) -> T,
) -> Result<T, CallError> {
    let mut reader = Reader::new(call, care);
    reader.read(Part::of(call, term))?;
    Ok(with(&reader.reading(term)))
}

/// How a term is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// With as few questions as can be; what is long is not read.
    FirstSight,
    /// For sure; a long key is not read ([`CallError::Long`]), because this is a normal scheduler. A key is long if it
    /// has more than [`BRIEF`] parts, or does not say in advance how long it is (a fun, a bitstring, an integer beyond
    /// 1024 bits). Nothing else decides that, so either all equal keys are long or none is.
    Sure,
    /// For sure, on a dirty scheduler, up to [`THOROUGH`] parts. A key with more is refused
    /// ([`CallError::OutOfMemory`]).
    Thorough,
}

/// What is still to be read of a term.
#[derive(Clone, Copy)]
enum Rest<'a> {
    Elements(&'a [ErlNifTerm]),
    List {
        rest: ErlNifTerm,
        /// Where the words of the list begin, and how many elements have been read.
        start: usize,
        length: usize,
    },
    /// Where the keys and values of the map begin among those of all maps, and where the next one is.
    Pairs {
        start: usize,
        next: usize,
    },
}

struct Reader<'a> {
    call: CallEnv<'a>,
    care: Care,
    words: Words,
    /// The words do not tell everything.
    is_opaque: bool,
    /// What may still be read, in words.
    left: usize,
    /// Of the terms that the reader is inside of. Terms of any depth are read without recursion: a stack overflow would
    /// take the VM down (P9).
    rests: Stack<Rest<'a>, 4>,
    /// Keys and values of the maps among them.
    pairs: Stack<ErlNifTerm, 8>,
}

/// The part that comes next, if a term has one that is not done at once.
type Next<'a> = Result<Option<Part<'a>>, CallError>;

impl<'a> Reader<'a> {
    #[inline(always)]
    fn new(call: CallEnv<'a>, care: Care) -> Self {
        Self {
            call,
            care,
            words: Words::new(),
            is_opaque: false,
            left: care.limit(),
            rests: Stack::new(),
            pairs: Stack::new(),
        }
    }

    #[inline(always)]
    fn read(&mut self, root: Part<'a>) -> Result<(), CallError> {
        let outcome = self.read_parts(root);
        self.report_work();
        outcome
    }

    fn read_parts(&mut self, root: Part<'a>) -> Result<(), CallError> {
        let mut next = Some(root);
        loop {
            if next.is_some() {
                self.work_off(PART_WORK)?;
            }
            next = match next {
                Some(Part::Tuple(elements)) => self.tuple(elements)?,
                Some(Part::Binary(bytes)) => self.bytes(tag::BYTES, bytes)?,
                Some(Part::List(list)) => self.list(list)?,
                Some(Part::Map(map, size)) => self.map(map, size)?,
                Some(Part::Other(term)) => self.other(self.call.term(term))?,
                None => match self.rests.pop() {
                    Some(Rest::Elements(rest)) => self.elements(rest)?,
                    Some(Rest::List {
                        rest,
                        start,
                        length,
                    }) => self.list_from(rest, start, length)?,
                    Some(Rest::Pairs { start, next }) => self.pairs_from(start, next)?,
                    None => return Ok(()),
                },
            };
        }
    }

    #[inline(always)]
    fn reading(&self, root: ErlNifTerm) -> Reading<'_> {
        Reading {
            words: self.words.values(),
            whole: self.is_opaque.then(|| (root, 8 * self.work())),
        }
    }

    fn work(&self) -> usize {
        self.care.limit() - self.left
    }

    /// The VM should know how long a call takes, or a process that uses such keys gets more than its share.
    #[inline(always)]
    fn report_work(&self) {
        if self.care != Care::Thorough && self.work() >= WORK_TO_REPORT {
            let percent = (self.work() / WORK_PER_PERCENT).clamp(1, 100);
            consume_timeslice(self.call.env(), percent as i32);
        }
    }

    /// Is the term's word the whole of it, as far as the reader cares?
    #[inline(always)]
    fn takes(&self, term: ErlNifTerm) -> bool {
        self.care == Care::FirstSight && looks_immediate(enif::word(term))
    }

    #[inline(always)]
    fn tuple(&mut self, elements: &'a [ErlNifTerm]) -> Next<'a> {
        self.push(with_size(tag::TUPLE, elements.len()))?;
        self.elements(elements)
    }

    fn elements(&mut self, elements: &'a [ErlNifTerm]) -> Next<'a> {
        // Each is worth a word at least.
        self.may_read(elements.len())?;
        for (index, &element) in elements.iter().enumerate() {
            if self.takes(element) {
                self.push(enif::word(element))?;
                continue;
            }
            match Part::of(self.call, element) {
                Part::Binary(bytes) => self.bytes(tag::BYTES, bytes).map(drop)?,
                part => {
                    // With nothing behind it, there is nothing to come back to.
                    if let rest @ [_, ..] = &elements[index + 1..] {
                        self.rests.push(Rest::Elements(rest))?;
                    }
                    return Ok(Some(part));
                }
            }
        }
        Ok(None)
    }

    /// Encodes a list, if it is one of bytes; or else the bytes that it begins with.
    fn list(&mut self, list: ErlNifTerm) -> Next<'a> {
        if enif::list_cell(self.call, list).is_none() {
            return self.other(self.call.term(list));
        }
        let start = self.words.values().len();
        self.push(tag::LIST)?;
        let (mut rest, mut length, mut bits) = (list, 0, u64::BITS);
        // Eight bytes at a time, until it was less.
        while bits == u64::BITS {
            let mut bytes = 0;
            bits = 0;
            while bits < u64::BITS {
                let Some((head, tail)) = enif::list_cell(self.call, rest) else {
                    break;
                };
                let Some(byte) = enif::byte(enif::word(head)) else {
                    break;
                };
                bytes |= byte << bits;
                bits += u8::BITS;
                rest = tail;
            }
            if bits > 0 {
                let count = (bits / u8::BITS) as usize;
                length += count;
                self.work_off(count - 1)?;
                self.push(bytes)?;
            }
        }
        if rest == enif::nil() {
            self.words.values_mut()[start] = with_size(tag::STRING, length);
            return Ok(None);
        }
        // They are elements like others: a word each.
        let more = length - length.div_ceil(8);
        self.words.extend(more, std::iter::repeat_n(0, more))?;
        let elements = &mut self.words.values_mut()[start + 1..];
        for index in (0..length).rev() {
            let byte = elements[index / 8] >> (8 * (index % 8)) & 0xff;
            elements[index] = enif::byte_word(byte).expect("it was read from one");
        }
        self.list_from(rest, start, length)
    }

    fn list_from(&mut self, mut rest: ErlNifTerm, start: usize, mut length: usize) -> Next<'a> {
        while let Some((head, tail)) = enif::list_cell(self.call, rest) {
            rest = tail;
            length += 1;
            if !self.takes(head) {
                self.rests.push(Rest::List {
                    rest,
                    start,
                    length,
                })?;
                return Ok(Some(Part::of(self.call, head)));
            }
            self.push(enif::word(head))?;
        }
        let is_proper = rest == enif::nil();
        let tag = if is_proper { tag::LIST } else { tag::IMPROPER };
        self.words.values_mut()[start] = with_size(tag, length);
        if is_proper {
            return Ok(None);
        }
        if self.takes(rest) {
            self.push(enif::word(rest))?;
            return Ok(None);
        }
        Ok(Some(Part::of(self.call, rest)))
    }

    fn map(&mut self, map: ErlNifTerm, size: usize) -> Next<'a> {
        self.push(with_size(tag::MAP, size))?;
        if size == 0 {
            return Ok(None);
        }
        self.work_off(MAP_WORK)?;
        self.may_read(2 * size)?;
        let start = self.pairs.values().len();
        let mut takes_all = true;
        let pairs = enif::pairs(self.call, map, size).ok_or(CallError::OutOfMemory)?;
        for (pair_key, pair_value) in pairs {
            takes_all = takes_all && self.takes(pair_key) && self.takes(pair_value);
            if takes_all {
                self.push(enif::word(pair_key))?;
                self.push(enif::word(pair_value))?;
            } else {
                self.pairs.push(pair_key)?;
                self.pairs.push(pair_value)?;
            }
        }
        self.pairs_from(start, start)
    }

    fn pairs_from(&mut self, start: usize, mut next: usize) -> Next<'a> {
        while let Some(&part) = self.pairs.values().get(next) {
            next += 1;
            if !self.takes(part) {
                self.rests.push(Rest::Pairs { start, next })?;
                return Ok(Some(Part::of(self.call, part)));
            }
            self.push(enif::word(part))?;
        }
        self.pairs.truncate(start);
        Ok(None)
    }

    /// A term that is no tuple, no list cell and no binary.
    fn other(&mut self, term: Term<'a>) -> Next<'a> {
        match term.get_type() {
            TermType::Atom => self.immediate(term),
            TermType::List if term.as_c_arg() == enif::nil() => self.immediate(term),
            TermType::List => self.list(term.as_c_arg()),
            TermType::Integer => self.integer(term),
            TermType::Float => self.two(tag::FLOAT, float_bits(term)),
            TermType::Pid if term.decode::<LocalPid>().is_ok() => self.immediate(term),
            TermType::Port if enif::is_local_port(term) => self.immediate(term),
            TermType::Pid | TermType::Port => self.external(term),
            TermType::Ref => {
                let hash = self.reference_hash(term)?;
                self.opaque(hash)
            }
            // How long it is, it does not say.
            _ if self.care != Care::Thorough => Err(CallError::Long),
            TermType::Binary => self.external(term),
            _ => self.opaque(enif::internal_hash(term, 0)),
        }
    }

    /// A term whose word is the whole of it, for sure.
    fn immediate(&mut self, term: Term<'_>) -> Next<'a> {
        let word = enif::word(term.as_c_arg());
        if looks_immediate(word) {
            self.push(word)?;
            Ok(None)
        } else {
            self.two(tag::WORD, word)
        }
    }

    fn integer(&mut self, term: Term<'_>) -> Next<'a> {
        if let Ok(integer) = term.decode::<i64>() {
            // A small integer has the same word when it is made again from its value.
            if integer.encode(term.get_env()).as_c_arg() == term.as_c_arg() {
                self.immediate(term)
            } else {
                self.two(tag::INTEGER, integer as u64)
            }
        } else if let Ok(integer) = term.decode::<u64>() {
            self.two(tag::UNSIGNED, integer)
        } else if self.care == Care::Thorough || enif::is_short_integer(term) {
            self.external(term)
        } else {
            Err(CallError::Long)
        }
    }

    fn two(&mut self, tag: u64, word: u64) -> Next<'a> {
        self.push(tag)?;
        self.push(word)?;
        Ok(None)
    }

    fn opaque(&mut self, hash: u64) -> Next<'a> {
        self.is_opaque = true;
        self.two(tag::OPAQUE, hash)
    }

    /// By the external format, which is the same for equal terms of this kind.
    fn external(&mut self, term: Term<'_>) -> Next<'a> {
        self.work_off(EXTERNAL_WORK)?;
        self.bytes(tag::EXTERNAL, &enif::external_format(term)?)
    }

    fn bytes(&mut self, tag: u64, bytes: &[u8]) -> Next<'a> {
        let words = bytes.len() / 8;
        self.push(with_size(tag, bytes.len()))?;
        self.work_off(words)?;
        let whole = bytes.chunks_exact(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        self.words.extend(words, whole.map(word))?;
        if bytes.len() % 8 > 0 {
            self.push(last_word(bytes))?;
        }
        Ok(None)
    }

    #[inline(always)]
    fn push(&mut self, word: u64) -> Result<(), CallError> {
        self.work_off(1)?;
        Ok(self.words.push(word)?)
    }

    #[inline(always)]
    fn work_off(&mut self, work: usize) -> Result<(), CallError> {
        self.left = self.left.checked_sub(work).ok_or(self.exceeded())?;
        Ok(())
    }

    /// At least this much is to be read: a term that is too long is refused before it is read.
    #[inline(always)]
    fn may_read(&self, work: usize) -> Result<(), CallError> {
        if work <= self.left {
            Ok(())
        } else {
            Err(self.exceeded())
        }
    }

    /// More than may be read.
    fn exceeded(&self) -> CallError {
        match self.care {
            Care::Thorough => CallError::OutOfMemory,
            Care::FirstSight | Care::Sure => CallError::Long,
        }
    }

    /// The hash of a reference. The VM's own takes one of another node for longer than it may be (in OTP 25; and later
    /// it differs for equal ones of different lengths), so these are hashed by what the external format says.
    fn reference_hash(&mut self, term: Term<'_>) -> Result<u64, CallError> {
        if self.care == Care::FirstSight {
            return Ok(local_reference_hash(term));
        }
        self.work_off(EXTERNAL_WORK)?;
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

impl Care {
    fn limit(self) -> usize {
        match self {
            Care::FirstSight | Care::Sure => BRIEF,
            Care::Thorough => THOROUGH,
        }
    }
}

/// Who made a reference, and its words, by the external format (tag 90: how many words, who, the words).
///
/// That is the name of the node and its creation; of this node they change when it gets a name. References may be equal
/// and of different lengths, the rest being zeros.
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

/// With a salt of 32 bits, of which OTP 25 uses as many.
fn local_reference_hash(term: Term<'_>) -> u64 {
    static SALT: OnceLock<u32> = OnceLock::new();
    let salt = SALT.get_or_init(|| seed().hash_one("salt") as u32);
    enif::internal_hash(term, u64::from(*salt))
}

/// The bits of a float, such that they are equal when the floats are `=:=`: before OTP 27 the two zeros are.
fn float_bits(term: Term<'_>) -> u64 {
    let float: f64 = term.decode().unwrap_or(0.0);
    if float == 0.0 && term == 0.0f64.encode(term.get_env()) {
        return 0.0f64.to_bits();
    }
    float.to_bits()
}
