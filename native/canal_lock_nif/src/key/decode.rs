//! Decodes stored keys, for calls that return keys. The term is `=:=` to the one that the key was made from.
//!
//! Decoding does not recurse, because the stack overflow of a deep key would end the VM (P9).

use super::encoding::{tag, tag_and_size};
use super::namespace::Namespace;
use super::stored_key::{Form, StoredKey};
use crate::enif::{self, CallEnv, ErlNifTerm};
use permit_table::{reserve, OutOfMemory};
use rustler::{Encoder, NewBinary, Term};
use std::iter;

/// The term of a key, in this environment.
pub(crate) fn term(call: CallEnv<'_>, key: &StoredKey) -> Result<ErlNifTerm, OutOfMemory> {
    let large = match &key.0 {
        Form::Small(small) => return decode(call, small.words()),
        Form::Large(large) => large.key(),
    };
    match &large.copy {
        Some(copy) => Ok(copy.to_term(call)),
        None => decode(call, &large.words),
    }
}

/// A term that is not complete yet.
struct Open {
    tag: u64,
    /// The index of its first part in the list of decoded parts.
    start: usize,
    /// How many parts it has when it is complete.
    parts: usize,
}

/// The term that begins with the first word. Words after it are not read.
fn decode(call: CallEnv<'_>, words: &[u64]) -> Result<ErlNifTerm, OutOfMemory> {
    let (first, others) = words.split_first().expect("an encoding contains a term");
    let first = Namespace::of(*first).flip(*first);
    let mut words = iter::once(first).chain(others.iter().copied());
    let mut decoded = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    while let Some(word) = words.next() {
        let (tag, size) = tag_and_size(word);
        let parts = match tag {
            tag::TUPLE | tag::LIST => Some(size),
            tag::IMPROPER => Some(size + 1),
            tag::MAP => Some(2 * size),
            _ => None,
        };
        if let Some(parts) = parts {
            reserve(&mut open, 1)?;
            let start = decoded.len();
            open.push(Open { tag, start, parts });
        } else {
            let leaf = leaf(call, word, &mut words)?;
            reserve(&mut decoded, 1)?;
            decoded.push(leaf);
        }
        // The last part of a term completes it. That may complete the term around it, and so on.
        while let Some(complete) = open.last() {
            if decoded.len() < complete.start + complete.parts {
                break;
            }
            let whole = compose(call, complete.tag, &decoded[complete.start..])?;
            decoded.truncate(complete.start);
            open.pop();
            reserve(&mut decoded, 1)?;
            decoded.push(whole);
        }
        if open.is_empty() {
            break;
        }
    }
    Ok(decoded.pop().expect("an encoding contains a term"))
}

/// A term that contains no other terms.
fn leaf(
    call: CallEnv<'_>,
    word: u64,
    words: &mut impl Iterator<Item = u64>,
) -> Result<ErlNifTerm, OutOfMemory> {
    let mut next = || words.next().expect("an encoding determines its own length");
    let (tag, size) = tag_and_size(word);
    let env = call.env();
    Ok(match tag {
        tag::INTEGER => (next() as i64).encode(env).as_c_arg(),
        tag::UNSIGNED => next().encode(env).as_c_arg(),
        // It is finite, because it was read from a float.
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
        // SAFETY: the word of an immediate, which is the same term in every environment.
        _ => unsafe { enif::from_word(if tag == tag::WORD { next() } else { word }) },
    })
}

fn compose(call: CallEnv<'_>, tag: u64, parts: &[ErlNifTerm]) -> Result<ErlNifTerm, OutOfMemory> {
    Ok(match (tag, parts) {
        (tag::TUPLE, elements) => enif::tuple(call, elements),
        (tag::IMPROPER, [elements @ .., tail]) => enif::list(call, elements.iter().copied(), *tail),
        (tag::MAP, pairs) => enif::map(call, &every_second(pairs, 0)?, &every_second(pairs, 1)?),
        (_, elements) => enif::list(call, elements.iter().copied(), enif::nil()),
    })
}

fn every_second(pairs: &[ErlNifTerm], first: usize) -> Result<Vec<ErlNifTerm>, OutOfMemory> {
    let mut list = Vec::new();
    reserve(&mut list, pairs.len() / 2)?;
    list.extend(pairs.iter().skip(first).step_by(2));
    Ok(list)
}

fn bytes(size: usize, words: &mut impl Iterator<Item = u64>) -> Result<Vec<u8>, OutOfMemory> {
    let mut bytes = Vec::new();
    reserve(&mut bytes, size)?;
    bytes.resize(size, 0);
    fill(&mut bytes, words);
    Ok(bytes)
}

/// Reads the bytes from their words.
fn fill(bytes: &mut [u8], words: &mut impl Iterator<Item = u64>) {
    for (bytes, word) in bytes.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}
