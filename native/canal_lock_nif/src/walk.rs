//! A way through a term of any size and depth, without recursion: a stack overflow would take the VM down (P9).
//!
//! The walk is depth first, and tells a [`Visitor`] of what it meets so that equal terms (by `=:=`) make equal tales,
//! and different terms different ones, as far as the documented functions of `erl_nif` can look into them. What stays
//! opaque is told as such, and so are maps, whose pairs come in no order that could be relied on.

use crate::enif::{self, Here};
use crate::key::tag;
use crate::small::float_bits;
use permit_table::{fault, OutOfMemory};
use rustler::sys::ErlNifTerm;
use rustler::{Binary, LocalPid, MapIterator, Term, TermType};
use smallvec::{Array, SmallVec};

/// Why a walk ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The visitor does not want this kind of term.
    Unwanted,
    /// It takes longer than the visitor has time for.
    Long,
    /// No memory for the walk's own stack, or for what the visitor makes of it.
    OutOfMemory,
}

impl From<OutOfMemory> for Stop {
    fn from(_: OutOfMemory) -> Self {
        Stop::OutOfMemory
    }
}

/// What a walk tells.
pub(crate) trait Visitor {
    /// A word of the tale: a tag, with a size above it or with `payload` behind it, as `key::tag` says.
    fn word(&mut self, tag: u64, payload: Option<u64>) -> Result<(), Stop>;
    /// A binary.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Stop>;
    /// A big integer, a bitstring, a fun, or a pid, port or reference that is not a local pid.
    fn opaque(&mut self, term: Term<'_>) -> Result<(), Stop>;
    /// A map of `size` pairs begins. Each is told between `pair` and `end_pair`.
    fn map(&mut self, size: usize) -> Result<(), Stop>;
    /// A pair begins.
    fn pair(&mut self);
    /// A pair ends.
    fn end_pair(&mut self);
    /// The map ends.
    fn end_map(&mut self);
}

/// A term that the walk is inside of.
enum Frame<'a> {
    Elements {
        parent: Term<'a>,
        rest: &'a [ErlNifTerm],
    },
    List(Term<'a>),
    Map {
        pairs: Vec<(Term<'a>, Term<'a>)>,
        /// The value of the pair whose key has been told.
        value: Option<Term<'a>>,
        inside_pair: bool,
    },
}

/// Few keys are deeper: of those no memory is asked for.
type Frames<'a> = SmallVec<[Frame<'a>; 4]>;

/// Room for so many more in a list that begins on the stack.
pub(crate) fn make_room_inline<A: Array>(
    list: &mut SmallVec<A>,
    more: usize,
) -> Result<(), OutOfMemory> {
    if list.capacity() - list.len() >= more {
        return Ok(());
    }
    fault::memory()?;
    list.try_reserve(more).map_err(|_| OutOfMemory)
}

/// Walks through `root` and everything in it.
pub(crate) fn walk(root: Term<'_>, visitor: &mut impl Visitor) -> Result<(), Stop> {
    let mut frames = Frames::new();
    let mut next = Some(root);
    while let Some(term) = next {
        if let Some(frame) = enter(term, visitor)? {
            make_room_inline(&mut frames, 1)?;
            frames.push(frame);
        }
        next = advance(&mut frames, visitor)?;
    }
    Ok(())
}

/// Tells of a term; a frame if there is something inside.
fn enter<'a>(term: Term<'a>, visitor: &mut impl Visitor) -> Result<Option<Frame<'a>>, Stop> {
    match term.get_type() {
        TermType::Atom => visitor.word(tag::IMMEDIATE, Some(enif::word(term.as_c_arg())))?,
        TermType::Integer => match enif::signed(term) {
            Some(integer) => visitor.word(tag::INTEGER, Some(integer as u64))?,
            None => visitor.opaque(term)?,
        },
        TermType::Float => match float_bits(term) {
            Some(bits) => visitor.word(tag::FLOAT, Some(bits))?,
            None => visitor.opaque(term)?,
        },
        TermType::Binary => match Binary::from_term(term) {
            Ok(binary) => visitor.bytes(&binary)?,
            Err(_) => visitor.opaque(term)?,
        },
        TermType::Pid => match term.decode::<LocalPid>() {
            Ok(pid) => {
                let word = enif::pid_word(pid.as_c_arg()).get();
                visitor.word(tag::IMMEDIATE, Some(word))?;
            }
            Err(_) => visitor.opaque(term)?,
        },
        TermType::List if term.is_empty_list() => visitor.word(tag::NIL, None)?,
        TermType::List => {
            visitor.word(tag::LIST, None)?;
            return Ok(Some(Frame::List(term)));
        }
        TermType::Tuple => {
            let here = Here::from_env(term.get_env());
            let rest = enif::elements(here, term.as_c_arg()).unwrap_or(&[]);
            visitor.word(tag::sized(tag::ELEMENTS, rest.len()), None)?;
            return Ok(Some(Frame::Elements { parent: term, rest }));
        }
        TermType::Map => {
            let size = term.map_size().unwrap_or(0);
            visitor.map(size)?;
            fault::memory()?;
            let mut pairs = Vec::new();
            pairs
                .try_reserve_exact(size)
                .map_err(|_| Stop::OutOfMemory)?;
            pairs.extend(MapIterator::new(term).into_iter().flatten());
            return Ok(Some(Frame::Map {
                pairs,
                value: None,
                inside_pair: false,
            }));
        }
        TermType::Fun | TermType::Port | TermType::Ref | TermType::Unknown => {
            visitor.opaque(term)?
        }
    }
    Ok(None)
}

/// The next term inside the innermost frame that has one left.
fn advance<'a>(
    frames: &mut Frames<'a>,
    visitor: &mut impl Visitor,
) -> Result<Option<Term<'a>>, Stop> {
    while let Some(frame) = frames.last_mut() {
        match frame {
            Frame::Elements { parent, rest } => {
                if let Some((first, others)) = rest.split_first() {
                    let term = enif::element(*parent, *first);
                    *rest = others;
                    return Ok(Some(term));
                }
            }
            Frame::List(rest) => {
                let rest_of_list = *rest;
                if let Some((head, tail)) = enif::list_cell(rest_of_list) {
                    *rest = tail;
                    return Ok(Some(head));
                }
                if rest_of_list.is_empty_list() {
                    visitor.word(tag::END, None)?;
                } else {
                    visitor.word(tag::TAIL, None)?;
                    frames.pop();
                    return Ok(Some(rest_of_list));
                }
            }
            Frame::Map {
                pairs,
                value,
                inside_pair,
            } => {
                if let Some(value) = value.take() {
                    return Ok(Some(value));
                }
                if std::mem::take(inside_pair) {
                    visitor.end_pair();
                }
                if let Some((pair_key, pair_value)) = pairs.pop() {
                    visitor.pair();
                    *inside_pair = true;
                    *value = Some(pair_value);
                    return Ok(Some(pair_key));
                }
                visitor.end_map();
            }
        }
        frames.pop();
    }
    Ok(None)
}
