//! Readers: the state of reading a term into words, with a limit on the work.
//!
//! `leaves.rs` reads the terms that contain no other terms, `walk.rs` all others.

use super::encoding::{last_word, looks_immediate, looks_like_list, with_size};
use super::inline_vec::InlineVec;
use super::reading::{OpaqueTerm, Reading};
use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;
use rustler::schedule::consume_timeslice;

/// Limit of a key on a normal scheduler: parts of the term, or words of its binaries. In bytes, 64 KiB. Reading,
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

/// How a term is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// With the fewest calls of the VM, up to [`NORMAL_LIMIT`]. The reading may be wrong (`optimistic.rs`).
    Optimistic,
    /// The VM confirms each part. A long key is not read ([`CallError::Long`]), because this is a normal scheduler. A
    /// key is long if it has more than [`NORMAL_LIMIT`] parts, or if its length is not known before it is read (a fun,
    /// a bitstring, an integer beyond 1024 bits). Only the value decides that, so equal keys are all long or all not
    /// long.
    Verified,
    /// As [`Verified`](Self::Verified), on a dirty scheduler, up to [`LONG_LIMIT`] parts. A longer key is
    /// [`CallError::OutOfMemory`].
    VerifiedLong,
}

impl ReadMode {
    fn limit(self) -> usize {
        match self {
            ReadMode::Optimistic | ReadMode::Verified => NORMAL_LIMIT,
            ReadMode::VerifiedLong => LONG_LIMIT,
        }
    }

    fn limit_exceeded(self) -> CallError {
        match self {
            ReadMode::Optimistic | ReadMode::Verified => CallError::Long,
            ReadMode::VerifiedLong => CallError::OutOfMemory,
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
        } else if let Some(bytes) = enif::bytes(call, term) {
            Part::Binary(bytes)
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
        length: usize,
    },
    /// Indexes in the list of all maps' keys and values: of the first one of this map, and of the next one to read.
    Pairs {
        start: usize,
        next: usize,
    },
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
    pub(super) rests: InlineVec<Rest<'a>, 4>,
    /// Keys and values of the maps among these terms.
    pub(super) pairs: InlineVec<ErlNifTerm, 8>,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub(super) fn new(call: CallEnv<'a>, mode: ReadMode) -> Self {
        Self {
            call,
            mode,
            words: InlineVec::new(),
            is_opaque: false,
            left: mode.limit(),
            rests: InlineVec::new(),
            pairs: InlineVec::new(),
        }
    }

    #[inline(always)]
    pub(super) fn reading(&self, root: ErlNifTerm) -> Reading<'_> {
        Reading {
            words: self.words.values(),
            opaque: self.is_opaque.then(|| OpaqueTerm {
                term: root,
                bytes: 8 * self.work(),
            }),
        }
    }

    fn work(&self) -> usize {
        self.mode.limit() - self.left
    }

    /// Reports the time of a call to the VM. Otherwise a process with large keys gets more than its share.
    #[inline(always)]
    pub(super) fn report_work(&self) {
        if self.mode != ReadMode::VerifiedLong && self.work() >= WORK_TO_REPORT {
            let percent = (self.work() / WORK_PER_PERCENT).clamp(1, 100);
            consume_timeslice(self.call.env(), percent as i32);
        }
    }

    #[inline(always)]
    pub(super) fn spend(&mut self, work: usize) -> Result<(), CallError> {
        let exceeded = self.mode.limit_exceeded();
        self.left = self.left.checked_sub(work).ok_or(exceeded)?;
        Ok(())
    }

    /// Fails if less than this work is allowed, so that a term that is too long is refused before it is read.
    #[inline(always)]
    pub(super) fn require(&self, work: usize) -> Result<(), CallError> {
        if work <= self.left {
            Ok(())
        } else {
            Err(self.mode.limit_exceeded())
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
}
