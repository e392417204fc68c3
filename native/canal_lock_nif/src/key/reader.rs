//! Reads terms into words, with a limit on the work: here the terms that contain no other terms, in `walk.rs` all
//! others.

use super::encoded_term::{seed, EncodedTerm};
use super::encoding::{last_word, looks_immediate, looks_like_list, tag, with_size};
use super::inline_vec::InlineVec;
use super::namespace::Namespace;
use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use rustler::schedule::consume_timeslice;
use rustler::{Binary, Encoder, LocalPid, Term};
use std::sync::OnceLock;

/// Limit of a key on a normal scheduler: parts of the term, or words of its binaries. In bytes, 64 KiB. Encoding,
/// hashing, comparing and storing that much takes about 0.1 ms. A switch to a dirty scheduler and back takes a few
/// microseconds.
const NORMAL_LIMIT: usize = 64 * 1024 / 8;

/// The limit on a dirty scheduler: half a gigabyte. A term whose parts are shared may be far larger than its memory;
/// encoding it in full would exhaust the node's memory (P9).
const LONG_LIMIT: usize = (1 << 29) / 8;

/// Work that takes about half a microsecond: less is not reported to the VM.
const WORK_TO_REPORT: usize = 128;

/// Work that takes about ten microseconds, a hundredth of a timeslice.
const WORK_PER_PERCENT: usize = 1536;

/// The work of encoding one part by the external format, which takes about 0.2 us.
const EXTERNAL_WORK: usize = 64;

/// How a term is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// With the fewest calls of the VM, up to [`NORMAL_LIMIT`]. The encoding may be wrong (`optimistic.rs`).
    Optimistic,
    /// The VM confirms each part. A long key is not read ([`CallError::Long`]), because this is a normal scheduler. A
    /// key is long if it has more than [`NORMAL_LIMIT`] parts, or if its length is not known before it is read (a fun,
    /// a native record, a bitstring, an integer beyond 1024 bits). Only the value decides that, so equal keys are all
    /// long or all not long.
    Verified,
    /// As [`Verified`](Self::Verified), on a dirty scheduler, up to [`LONG_LIMIT`] parts. A longer key is
    /// [`CallError::OutOfMemory`].
    OnDirtyScheduler,
}

impl ReadMode {
    /// The limit, and the error of a longer key.
    fn limit(self) -> (usize, CallError) {
        match self {
            ReadMode::Optimistic | ReadMode::Verified => (NORMAL_LIMIT, CallError::Long),
            ReadMode::OnDirtyScheduler => (LONG_LIMIT, CallError::OutOfMemory),
        }
    }
}

/// A term that is not read by its word alone, as far as the VM has been asked.
pub(super) enum Part<'a> {
    Tuple(&'a [ErlNifTerm]),
    Binary(&'a [u8]),
    /// By its word, a non-empty list.
    List(ErlNifTerm),
    /// A map and its size.
    Map(ErlNifTerm, usize),
    Other(ErlNifTerm),
}

impl<'a> Part<'a> {
    #[inline(always)]
    pub(super) fn of(call: CallEnv<'a>, term: ErlNifTerm) -> Self {
        if looks_like_list(enif::word(term)) {
            Part::List(term)
        } else if let Some(elements) = enif::elements(call, term) {
            Part::Tuple(elements)
        } else if let Ok(binary) = Binary::from_term(call.term(term)) {
            Part::Binary(binary.as_slice())
        } else if let Some(size) = enif::map_size(call, term) {
            Part::Map(term, size)
        } else {
            Part::Other(term)
        }
    }
}

/// The unread rest of a term.
#[derive(Clone, Copy)]
pub(super) enum Rest<'a> {
    Elements(&'a [ErlNifTerm]),
    List {
        rest: ErlNifTerm,
        /// The index of the list's first word.
        start: usize,
        /// How many elements have been read.
        count: usize,
    },
    /// A key or a value of a map. An iterator over a map cannot be kept, so all of them are.
    Part(ErlNifTerm),
}

/// A term that is being read. Most keys need no memory but the stack's.
pub(super) struct Reader<'a> {
    pub(super) call: CallEnv<'a>,
    pub(super) mode: ReadMode,
    pub(super) words: InlineVec<u64, 32>,
    /// The words do not determine the term.
    pub(super) is_opaque: bool,
    /// The work that is still allowed.
    left: usize,
    /// The rests of the terms around the current part. The reader does not recurse, because the stack overflow of a
    /// deep term would end the VM (P9).
    pub(super) rests: InlineVec<Rest<'a>, 8>,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub(super) fn new(call: CallEnv<'a>, mode: ReadMode) -> Self {
        Self {
            call,
            mode,
            words: InlineVec::new(),
            is_opaque: false,
            left: mode.limit().0,
            rests: InlineVec::new(),
        }
    }

    /// What was read, as a key of a namespace. To be called once: a second call would change the first word back.
    #[inline(always)]
    pub(super) fn encoded(&mut self, namespace: Namespace, root: ErlNifTerm) -> EncodedTerm<'_> {
        if let [first, ..] = self.words.values_mut() {
            *first = namespace.flip(*first);
        }
        EncodedTerm {
            words: self.words.values(),
            opaque: self.is_opaque.then(|| (root, 8 * self.work())),
        }
    }

    fn work(&self) -> usize {
        self.mode.limit().0 - self.left
    }

    /// Reports the time of a call to the VM. Otherwise a process with large keys gets more than its share.
    #[inline(always)]
    pub(super) fn report_work(&self) {
        if self.mode != ReadMode::OnDirtyScheduler && self.work() >= WORK_TO_REPORT {
            let percent = (self.work() / WORK_PER_PERCENT).clamp(1, 100);
            consume_timeslice(self.call.env(), percent as i32);
        }
    }

    #[inline(always)]
    pub(super) fn spend(&mut self, work: usize) -> Result<(), CallError> {
        self.require(work)?;
        self.left -= work;
        Ok(())
    }

    /// Fails if less than this work is allowed, so that a term that is too long is refused before it is read.
    #[inline(always)]
    pub(super) fn require(&self, work: usize) -> Result<(), CallError> {
        if work <= self.left {
            Ok(())
        } else {
            Err(self.mode.limit().1)
        }
    }

    /// Whether the term's word is pushed without asking the VM.
    #[inline(always)]
    pub(super) fn is_assumed_immediate(&self, term: ErlNifTerm) -> bool {
        self.mode == ReadMode::Optimistic && looks_immediate(enif::word(term))
    }

    #[inline(always)]
    pub(super) fn push(&mut self, word: u64) -> Result<(), CallError> {
        self.spend(1)?;
        Ok(self.words.push(word)?)
    }

    pub(super) fn bytes(&mut self, tag: u64, bytes: &[u8]) -> Result<(), CallError> {
        let words = bytes.len() / 8;
        self.spend(1 + bytes.len().div_ceil(8))?;
        self.words.push(with_size(tag, bytes.len()))?;
        let whole = bytes.chunks_exact(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        self.words.extend(words, whole.map(word))?;
        if bytes.len() % 8 > 0 {
            self.words.push(last_word(bytes))?;
        }
        Ok(())
    }

    /// A term that is neither a tuple, a list cell, a map nor a binary.
    ///
    /// It does not call `enif_term_type`, which ends the VM for a type that it does not know: in OTP 29, a native
    /// record.
    #[inline(always)]
    pub(super) fn leaf(&mut self, term: Term<'a>) -> Result<(), CallError> {
        if term.is_ref() {
            let hash = self.reference_hash(term)?;
            self.opaque(hash)
        } else if term.is_float() {
            let float: f64 = term.decode().unwrap_or(0.0);
            // Before OTP 27, 0.0 and -0.0 are `=:=`.
            let is_zero = float == 0.0 && term == 0.0f64.encode(term.get_env());
            self.tagged_word(tag::FLOAT, if is_zero { 0 } else { float.to_bits() })
        } else if term.is_number() {
            self.integer(term)
        } else if term.is_atom() || term.as_c_arg() == enif::nil() {
            self.immediate(term)
        } else if term.is_pid() || term.is_port() {
            if term.decode::<LocalPid>().is_ok() || enif::is_local_port(term) {
                self.immediate(term)
            } else {
                self.external(term)
            }
        } else if self.mode != ReadMode::OnDirtyScheduler {
            // The length of the others is not known before they are read.
            Err(CallError::Long)
        } else if term > Term::list_new_empty(term.get_env()) {
            // By the order of terms, a bitstring.
            self.external(term)
        } else {
            // Without a salt: code that chooses what a fun captures can compute funs that collide.
            self.opaque(term.hash_internal(0).into())
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
        } else if self.mode == ReadMode::OnDirtyScheduler || enif::is_short_integer(term) {
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

/// The VM's hash. On OTP 25 both it and its salt have 32 bits. References with the same hash collide in every table,
/// and a comparison distinguishes them. A million references of `make_ref/0` contained 179 such pairs.
fn local_reference_hash(term: Term<'_>) -> u64 {
    static SALT: OnceLock<u32> = OnceLock::new();
    let salt = SALT.get_or_init(|| seed().hash_one("salt") as u32);
    term.hash_internal(*salt).into()
}
