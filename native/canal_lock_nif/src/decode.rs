//! A stored key as a term again, for those who ask what is held.
//!
//! What comes out is `=:=` to what went in. Keys of any depth are built without recursion (P9).

use crate::enif::{self, Here};
use crate::key::{tag, TermKey};
use permit_table::{make_room, OutOfMemory};
use rustler::sys::ErlNifTerm;

/// The term that a key was made from, as a term of this environment.
pub(crate) fn term(here: Here<'_>, key: &TermKey) -> Result<ErlNifTerm, OutOfMemory> {
    if let Some(interned) = key.interned() {
        return term(here, interned.key());
    }
    if let Some((copy, _)) = key.copy() {
        return Ok(enif::copied(here, copy));
    }
    match key.encoding() {
        Some(words) => encoded(here, words),
        None => {
            let (shape, words) = key.parts();
            small(here, shape, words)
        }
    }
}

/// The tags of a shape stand in its bytes, the first part's highest.
fn small(here: Here<'_>, shape: u64, words: &[u64]) -> Result<ErlNifTerm, OutOfMemory> {
    let mut tags = shape.to_be_bytes().into_iter().map(u64::from).peekable();
    while tags.next_if_eq(&0).is_some() {}
    let is_tuple = tags
        .next_if(|tag| (tag::TUPLE..tag::BINARY).contains(tag))
        .is_some();
    let mut words = words.iter().copied();
    let mut parts = Stack::default();
    for tag in tags {
        let part = match tag {
            tag::IMMEDIATE | tag::INTEGER | tag::FLOAT => {
                number_or_word(here, tag, words.next().unwrap_or(0))
            }
            tag::NIL => enif::nil(here),
            size => enif::binary(here, (size - tag::BINARY) as usize, &mut words),
        };
        parts.push(part)?;
    }
    Ok(if is_tuple {
        enif::tuple(here, &parts.0)
    } else {
        parts.last(here)
    })
}

fn number_or_word(here: Here<'_>, tag: u64, word: u64) -> ErlNifTerm {
    match tag {
        tag::INTEGER => enif::integer(here.env(), word as i64),
        tag::FLOAT => enif::float(here, f64::from_bits(word)),
        // SAFETY: the word of an immediate term that was handed in as (part of) a key is that term, anywhere.
        _ => unsafe { enif::from_word(word) },
    }
}

/// What has been built of the terms around, and inside of which.
#[derive(Default)]
struct Stack(Vec<ErlNifTerm>);

impl Stack {
    fn push(&mut self, term: ErlNifTerm) -> Result<(), OutOfMemory> {
        make_room(&mut self.0, 1)?;
        self.0.push(term);
        Ok(())
    }

    fn last(&mut self, here: Here<'_>) -> ErlNifTerm {
        self.0.pop().unwrap_or_else(|| enif::nil(here))
    }
}

/// A term that is not complete yet; its parts are on the stack from `start` on.
struct Open {
    start: usize,
    what: What,
}

enum What {
    Tuple(usize),
    List,
    /// A list whose next part is its tail.
    Tail,
}

/// Reads what `large::Encoder` has written down.
fn encoded(here: Here<'_>, words: &[u64]) -> Result<ErlNifTerm, OutOfMemory> {
    let mut words = words.iter().copied();
    let mut parts = Stack::default();
    let mut open: Vec<Open> = Vec::new();
    while let Some(word) = words.next() {
        let (tag, size) = (word & 0xff, (word >> 8) as usize);
        let what = match tag {
            tag::IMMEDIATE | tag::INTEGER | tag::FLOAT => {
                parts.push(number_or_word(here, tag, words.next().unwrap_or(0)))?;
                None
            }
            tag::NIL => {
                parts.push(enif::nil(here))?;
                None
            }
            tag::BYTES => {
                parts.push(enif::binary(here, size, &mut words))?;
                None
            }
            tag::ELEMENTS => Some(What::Tuple(size)),
            tag::LIST => Some(What::List),
            // The end of a list, or what its tail is announced by.
            _ => {
                if let Some(list) = open.last_mut() {
                    list.what = What::Tail;
                }
                if tag == tag::END {
                    parts.push(enif::nil(here))?;
                }
                None
            }
        };
        if let Some(what) = what {
            make_room(&mut open, 1)?;
            let start = parts.0.len();
            open.push(Open { start, what });
        }
        close_complete(here, &mut parts, &mut open, tag == tag::TAIL)?;
    }
    Ok(parts.last(here))
}

/// Puts terms together whose last part has come; that may complete the one around, and so on.
fn close_complete(
    here: Here<'_>,
    parts: &mut Stack,
    open: &mut Vec<Open>,
    tail_to_come: bool,
) -> Result<(), OutOfMemory> {
    while let Some(Open { start, what }) = open.last() {
        let inside = parts.0.get(*start..).unwrap_or(&[]);
        let whole = match what {
            What::Tuple(arity) if inside.len() == *arity => enif::tuple(here, inside),
            What::Tail if !tail_to_come => match inside.split_last() {
                Some((tail, elements)) => enif::list(here, elements, *tail),
                None => enif::nil(here),
            },
            _ => return Ok(()),
        };
        parts.0.truncate(*start);
        open.pop();
        parts.push(whole)?;
    }
    Ok(())
}
