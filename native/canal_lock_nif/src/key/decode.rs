//! A stored key as a term again, for calls that show keys. The term is `=:=` to the one that the key was made of.
//!
//! Keys of any depth are decoded without recursion (P9).

use super::encoding::{size_of, tag};
use super::TermKey;
use crate::enif::{self, CallEnv, ErlNifTerm};
use permit_table::{make_room, OutOfMemory};
use rustler::{Encoder, NewBinary, Term};

/// The term that a key was made of, as a term of this environment.
pub(crate) fn term(call: CallEnv<'_>, key: &TermKey) -> Result<ErlNifTerm, OutOfMemory> {
    if let Some(interned) = key.interned() {
        return term(call, &interned.key);
    }
    match (key.copy(), key.encoding()) {
        (Some(copy), _) => Ok(enif::copied(call, copy)),
        (None, Some(words)) => decoded(call, words),
        (None, None) => decoded(call, &key.words),
    }
}

/// A term that is not complete yet.
struct Open {
    tag: u64,
    /// Where its parts begin among all that have been decoded, and how many there will be.
    start: usize,
    parts: usize,
}

/// The term that begins with the first word; what follows it is not read.
fn decoded(call: CallEnv<'_>, words: &[u64]) -> Result<ErlNifTerm, OutOfMemory> {
    let mut words = words.iter().copied();
    let mut parts = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    while let Some(word) = words.next() {
        let (tag, size) = size_of(word);
        let inside = match tag {
            tag::TUPLE | tag::LIST => Some(size),
            tag::IMPROPER => Some(size + 1),
            tag::MAP => Some(2 * size),
            _ => None,
        };
        if let Some(inside) = inside {
            make_room(&mut open, 1)?;
            open.push(Open {
                tag,
                start: parts.len(),
                parts: inside,
            });
        } else {
            let leaf = leaf(call, word, &mut words)?;
            make_room(&mut parts, 1)?;
            parts.push(leaf);
        }
        // The last part of a term completes it; that may complete the one around, and so on.
        while let Some(complete) = open.last() {
            if parts.len() < complete.start + complete.parts {
                break;
            }
            let whole = composed(call, complete.tag, &parts[complete.start..])?;
            parts.truncate(complete.start);
            open.pop();
            make_room(&mut parts, 1)?;
            parts.push(whole);
        }
        if open.is_empty() {
            break;
        }
    }
    Ok(parts.pop().expect("an encoding has a term"))
}

/// A term with nothing inside.
fn leaf(
    call: CallEnv<'_>,
    word: u64,
    words: &mut impl Iterator<Item = u64>,
) -> Result<ErlNifTerm, OutOfMemory> {
    let mut next = || words.next().expect("an encoding says how long it is");
    let (tag, size) = size_of(word);
    let env = call.env();
    Ok(match tag {
        tag::INTEGER => (next() as i64).encode(env).as_c_arg(),
        tag::UNSIGNED => next().encode(env).as_c_arg(),
        // It is finite, for it was read from a float.
        tag::FLOAT => f64::from_bits(next()).encode(env).as_c_arg(),
        tag::BYTES => {
            let mut binary = NewBinary::new(env, size);
            fill(&mut binary, words);
            Term::from(binary).as_c_arg()
        }
        tag::STRING => {
            let bytes = bytes(size, words)?.into_iter();
            let elements = bytes.map(|byte| enif::number(call, byte.into()));
            enif::list(call, elements, enif::nil())
        }
        tag::EXTERNAL => {
            let term = env.binary_to_term(&bytes(size, words)?);
            term.ok_or(OutOfMemory)?.0.as_c_arg()
        }
        // SAFETY: the word of an immediate term that was handed in as (part of) a key is that term, anywhere.
        tag::WORD => unsafe { enif::from_word(next()) },
        // SAFETY: as above.
        _ => unsafe { enif::from_word(word) },
    })
}

fn composed(call: CallEnv<'_>, tag: u64, parts: &[ErlNifTerm]) -> Result<ErlNifTerm, OutOfMemory> {
    Ok(match (tag, parts) {
        (tag::TUPLE, elements) => enif::tuple(call, elements),
        (tag::IMPROPER, [elements @ .., tail]) => enif::list(call, elements.iter().copied(), *tail),
        (tag::MAP, pairs) => enif::map(call, &every_second(pairs, 0)?, &every_second(pairs, 1)?),
        (_, elements) => enif::list(call, elements.iter().copied(), enif::nil()),
    })
}

fn every_second(pairs: &[ErlNifTerm], first: usize) -> Result<Vec<ErlNifTerm>, OutOfMemory> {
    let mut list = Vec::new();
    make_room(&mut list, pairs.len() / 2)?;
    list.extend(pairs.iter().skip(first).step_by(2));
    Ok(list)
}

fn bytes(size: usize, words: &mut impl Iterator<Item = u64>) -> Result<Vec<u8>, OutOfMemory> {
    let mut bytes = Vec::new();
    make_room(&mut bytes, size)?;
    bytes.resize(size, 0);
    fill(&mut bytes, words);
    Ok(bytes)
}

/// Takes the bytes from as many words as hold them.
fn fill(bytes: &mut [u8], words: &mut impl Iterator<Item = u64>) {
    for (bytes, word) in bytes.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}
