//! Keys that do not fit into a cache line.
//!
//! Strings, lists, longer binaries, deeper or larger tuples are **encoded**: what a walk tells of them, word for
//! word. It is the same for two terms if and only if they are `=:=`, so keys are compared as words.
//!
//! What the documented functions of `erl_nif` cannot look into, or only in an order that is nobody's (maps, funs,
//! references, big integers, bitstrings, what belongs to other nodes), and whatever contains such a thing, is
//! **copied** into an environment of its own, and the VM itself compares it (`enif_is_identical`). It is found by a
//! digest of what the walk can tell, made with a random seed; of what stays opaque the VM's own hash goes in. That
//! one has 32 bits before OTP 27 and no seed, and goes in for funs only, which strangers cannot send. (How long the VM
//! takes to hash and copy a fun cannot be foreseen either: if what it has captured shares parts without end, for ever,
//! as to send it would.) Of all others we hash what the external format says.

use crate::enif::{self, Here};
use crate::key::{tag, TermKey};
use crate::raised::Raised;
use crate::small::words_of;
use crate::walk::{make_room_inline, walk, Stop, Visitor};
use ahash::RandomState;
use equivalent::Equivalent;
use permit_table::{fault, make_room, OutOfMemory, Query};
use rustler::sys::{enif_alloc_env, enif_make_copy};
use rustler::{Term, TermType};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::OnceLock;

/// An encoding. Of most keys it needs no memory but the stack's: two words to a number in a tuple or a list, one to
/// eight bytes of a binary.
type Words = SmallVec<[u64; 32]>;

/// A key that is not [`Small`](crate::small::Small).
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack, and to be small there is not worth a box"
)]
pub(crate) enum Large<'a> {
    Encoded(Words),
    Copied {
        term: Term<'a>,
        digest: u64,
        /// How many bytes the walk has been told of.
        size: usize,
    },
}

/// How much of a term is looked at before it is refused as a key: half a gigabyte. A term may be far larger than its
/// memory, when its parts are shared; to write it all down would take the node down (P9).
const MAX_BYTES: usize = 1 << 29;

/// How much of a term is looked at on a normal scheduler. To read, hash, compare and store as much takes about a tenth
/// of a millisecond, and a hop to a dirty scheduler and back a few microseconds.
const MAX_BRIEF_BYTES: usize = 64 * 1024;

/// How long a term may be to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// On a normal scheduler: what is longer is [`Raised::Long`]. So is what does not say beforehand how long it is:
    /// funs, bitstrings and huge integers.
    Brief,
    /// On a dirty one: what is longer is refused for good.
    Thorough,
}

impl Reading {
    fn max_bytes(self) -> usize {
        match self {
            Reading::Brief => MAX_BRIEF_BYTES,
            Reading::Thorough => MAX_BYTES,
        }
    }

    fn raised(self, stop: Stop) -> Raised {
        match (stop, self) {
            (Stop::Long, Reading::Brief) => Raised::Long,
            _ => OutOfMemory.into(),
        }
    }
}

impl<'a> Large<'a> {
    /// How much of the term has been looked at.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Large::Encoded(words) => size_of_val(words.as_slice()),
            Large::Copied { size, .. } => *size,
        }
    }

    /// The key that any term is.
    pub(crate) fn parse(term: Term<'a>, reading: Reading) -> Result<Self, Raised> {
        let mut encoder = Encoder {
            words: Words::new(),
            reading,
        };
        match walk(term, &mut encoder) {
            Ok(()) => return Ok(Large::Encoded(encoder.words)),
            Err(Stop::Unwanted) => {}
            Err(stop) => return Err(reading.raised(stop)),
        }
        let mut digester = Digester::new(reading);
        match walk(term, &mut digester) {
            Ok(()) => Ok(Large::Copied {
                term,
                digest: digester.hasher.finish(),
                size: digester.size,
            }),
            Err(stop) => Err(reading.raised(stop)),
        }
    }

    /// Equal for equal keys, and not to be foreseen by strangers.
    pub(crate) fn digest(&self) -> u64 {
        match self {
            Large::Encoded(words) => seed().hash_one(words),
            Large::Copied { digest, .. } => *digest,
        }
    }
}

/// Of digests.
fn seed() -> &'static RandomState {
    // If making it panicked, the lock would stay empty for the next one.
    static SEED: OnceLock<RandomState> = OnceLock::new();
    SEED.get_or_init(RandomState::new)
}

impl Hash for Large<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        match self {
            Large::Encoded(words) => words.hash(hasher),
            Large::Copied { digest, .. } => hasher.write_u64(*digest),
        }
    }
}

impl Equivalent<TermKey> for Large<'_> {
    fn equivalent(&self, key: &TermKey) -> bool {
        match self {
            Large::Encoded(words) => key.encoding() == Some(words.as_slice()),
            Large::Copied { term, digest, .. } => key.copy().is_some_and(|(copy, of_copy)| {
                of_copy == *digest && enif::identical(copy, term.as_c_arg())
            }),
        }
    }
}

impl Query<TermKey> for Large<'_> {
    fn to_key(&self) -> Result<TermKey, OutOfMemory> {
        match self {
            Large::Encoded(words) => {
                fault::memory()?;
                let mut exact = Vec::new();
                exact
                    .try_reserve_exact(words.len())
                    .map_err(|_| OutOfMemory)?;
                exact.extend_from_slice(words);
                Ok(TermKey::encoded(exact.into_boxed_slice()))
            }
            Large::Copied { term, digest, size } => {
                fault::memory()?;
                // SAFETY: the environment is new and becomes the key's; the copy lives in it. Where the VM has no
                // memory for either, it ends the node, as it does everywhere.
                let (environment, copy) = unsafe {
                    let environment = enif_alloc_env();
                    (environment, enif_make_copy(environment, term.as_c_arg()))
                };
                Ok(TermKey::copied(environment, copy, *digest, *size))
            }
        }
    }
}

/// Writes down what a walk tells; wants nothing that has no order or no inside.
struct Encoder {
    words: Words,
    reading: Reading,
}

impl Encoder {
    fn reserve(&mut self, words: usize) -> Result<(), Stop> {
        if self.words.len() + words > self.reading.max_bytes() / size_of::<u64>() {
            return Err(Stop::Long);
        }
        Ok(make_room_inline(&mut self.words, words)?)
    }
}

impl Visitor for Encoder {
    fn word(&mut self, tag: u64, payload: Option<u64>) -> Result<(), Stop> {
        self.reserve(2)?;
        self.words.push(tag);
        self.words.extend(payload);
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let words = bytes.len().div_ceil(8);
        self.reserve(1 + words)?;
        self.words.push(tag::sized(tag::BYTES, bytes.len()));
        let start = self.words.len();
        self.words.resize(start + words, 0);
        words_of(bytes, &mut self.words[start..]);
        Ok(())
    }

    fn opaque(&mut self, _: Term<'_>) -> Result<(), Stop> {
        Err(Stop::Unwanted)
    }

    fn map(&mut self, _: usize) -> Result<(), Stop> {
        Err(Stop::Unwanted)
    }

    fn pair(&mut self) {}
    fn end_pair(&mut self) {}
    fn end_map(&mut self) {}
}

/// A reference, in the external format (tag 90): how many words, who made it, its words.
struct Reference<'a> {
    /// The name of the node and its creation.
    origin: &'a [u8],
    /// References may be equal and of different lengths, the rest being zeros. (The VM's own hash of one from another
    /// node reads beyond it, at least in OTP 25.)
    words: [u32; 5],
}

impl<'a> Reference<'a> {
    fn read(external: &'a [u8]) -> Self {
        let mut words = [0; 5];
        let [131, 90, high, low, rest @ ..] = external else {
            return Self { origin: &[], words };
        };
        let count = usize::from(u16::from_be_bytes([*high, *low]));
        let (_, all) = rest.as_rchunks::<4>();
        let first = all.len().saturating_sub(count);
        for (word, bytes) in words.iter_mut().zip(&all[first..]) {
            *word = u32::from_be_bytes(*bytes);
        }
        let origin = &rest[..rest.len().saturating_sub(4 * count)];
        Self { origin, words }
    }
}

/// The least that is told of a pair of a map.
const PAIR_BYTES: usize = 32;

type SeededHasher = <RandomState as BuildHasher>::Hasher;

/// Hashes what a walk tells. The pairs of a map are hashed each for itself, and their hashes added: a sum has no
/// order.
struct Digester {
    hasher: SeededHasher,
    /// Of the maps that the walk is inside of: what was hashed before, and the sum of the pairs so far.
    outer: Vec<(SeededHasher, u64)>,
    size: usize,
    reading: Reading,
}

impl Digester {
    fn new(reading: Reading) -> Self {
        Self {
            hasher: seed().build_hasher(),
            outer: Vec::new(),
            size: 0,
            reading,
        }
    }

    fn add(&mut self, tag: u64, payload: u64) -> Result<(), Stop> {
        self.hasher.write_u64(tag);
        self.hasher.write_u64(payload);
        self.count(16)
    }

    /// By what the external format says, which is the same for equal terms of this kind.
    fn external(&mut self, term: Term<'_>) -> Result<(), Stop> {
        let bytes = enif::with_external_format(term, |bytes| self.bytes(bytes));
        bytes.unwrap_or(Err(Stop::OutOfMemory))
    }

    /// By its words and its origin; but the name of this node changes when it gets one, and its creation too.
    fn reference(&mut self, term: Term<'_>) -> Result<(), Stop> {
        let ours = enif::make_reference(Here::from_env(term.get_env()));
        let added = enif::with_external_format(ours, |ours| {
            enif::with_external_format(term, |bytes| {
                let Reference { origin, words } = Reference::read(bytes);
                if origin != Reference::read(ours).origin {
                    self.bytes(origin)?;
                }
                words
                    .into_iter()
                    .try_for_each(|word| self.add(tag::OPAQUE, word.into()))
            })
        });
        added.flatten().unwrap_or(Err(Stop::OutOfMemory))
    }

    fn count(&mut self, bytes: usize) -> Result<(), Stop> {
        self.size += bytes;
        if self.size > self.reading.max_bytes() {
            return Err(Stop::Long);
        }
        Ok(())
    }
}

impl Visitor for Digester {
    fn word(&mut self, tag: u64, payload: Option<u64>) -> Result<(), Stop> {
        self.add(tag, payload.unwrap_or(0))
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.add(tag::BYTES, bytes.len() as u64)?;
        self.count(bytes.len())?;
        self.hasher.write(bytes);
        Ok(())
    }

    fn opaque(&mut self, term: Term<'_>) -> Result<(), Stop> {
        let is_brief = self.reading == Reading::Brief;
        match term.get_type() {
            TermType::Integer if is_brief && !enif::is_short_integer(term) => Err(Stop::Long),
            TermType::Integer | TermType::Pid => self.external(term),
            TermType::Ref => self.reference(term),
            TermType::Port => match enif::local_port_word(term) {
                Some(word) => self.add(tag::OPAQUE, word),
                None => self.external(term),
            },
            _ if is_brief => Err(Stop::Long),
            TermType::Binary => self.external(term),
            _ => self.add(tag::OPAQUE, enif::internal_hash(term)),
        }
    }

    fn map(&mut self, size: usize) -> Result<(), Stop> {
        self.add(tag::MAP, size as u64)?;
        // Of each pair both parts will be told: a map that is too long is so before its pairs are looked for.
        if size > (self.reading.max_bytes() - self.size) / PAIR_BYTES {
            return Err(Stop::Long);
        }
        make_room(&mut self.outer, 1)?;
        let before = std::mem::replace(&mut self.hasher, seed().build_hasher());
        self.outer.push((before, 0));
        Ok(())
    }

    fn pair(&mut self) {
        self.hasher = seed().build_hasher();
    }

    fn end_pair(&mut self) {
        if let Some((_, sum)) = self.outer.last_mut() {
            *sum = sum.wrapping_add(self.hasher.finish());
        }
    }

    fn end_map(&mut self) {
        if let Some((before, sum)) = self.outer.pop() {
            self.hasher = before;
            self.hasher.write_u64(sum);
        }
    }
}
