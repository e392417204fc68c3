//! Reads terms of any depth in one pass: tuples, lists and maps, with everything inside them.

use super::encoded_term::EncodedTerm;
use super::encoding::{tag, with_size};
use super::namespace::Namespace;
use super::reader::{Part, ReadMode, Reader, Rest};
use crate::enif::{self, CallEnv, ErlNifTerm};
use crate::error::CallError;

/// The work of an iterator over a map.
const MAP_WORK: usize = 16;

/// The work of a part that is not read by its word alone, in addition to its words. It takes about 15 ns.
const PART_WORK: usize = 3;

/// Calls `with` with an encoded term that the VM has confirmed.
pub(crate) fn with_verified_encoding<T>(
    call: CallEnv<'_>,
    namespace: Namespace,
    term: ErlNifTerm,
    mode: ReadMode,
    with: impl FnOnce(&EncodedTerm<'_>) -> T,
) -> Result<T, CallError> {
    let mut reader = Reader::new(call, mode);
    reader.read(Part::of(call, term))?;
    Ok(with(&reader.encoded(namespace, term)))
}

/// The part to read next, if one is left inside the term.
type Next<'a> = Result<Option<Part<'a>>, CallError>;

impl<'a> Reader<'a> {
    #[inline(always)]
    pub(super) fn read(&mut self, root: Part<'a>) -> Result<(), CallError> {
        let outcome = self.read_parts(root);
        self.report_work();
        outcome
    }

    fn read_parts(&mut self, root: Part<'a>) -> Result<(), CallError> {
        let mut next = Some(root);
        loop {
            next = match next {
                Some(part) => {
                    self.spend(PART_WORK)?;
                    match part {
                        Part::Tuple(elements) => self.tuple(elements)?,
                        Part::Binary(bytes) => {
                            self.bytes(tag::BYTES, bytes)?;
                            None
                        }
                        Part::List(list) => self.list(list)?,
                        Part::Map(map, size) => self.map(map, size)?,
                        Part::Other(term) => self.other(term)?,
                    }
                }
                None => match self.rests.pop() {
                    Some(Rest::Elements(rest)) => self.elements(rest)?,
                    Some(Rest::List { rest, start, count }) => {
                        self.list_from(rest, start, count)?
                    }
                    Some(Rest::Part(term)) => self.part(term)?,
                    None => return Ok(()),
                },
            };
        }
    }

    #[inline(never)]
    fn other(&mut self, term: ErlNifTerm) -> Next<'a> {
        let term = self.call.term(term);
        if term.is_list() && term.as_c_arg() != enif::nil() {
            return self.list(term.as_c_arg());
        }
        self.leaf(term)?;
        Ok(None)
    }

    #[inline(always)]
    fn tuple(&mut self, elements: &'a [ErlNifTerm]) -> Next<'a> {
        // Each element takes at least one word.
        self.require(1 + elements.len())?;
        self.push(with_size(tag::TUPLE, elements.len()))?;
        self.elements(elements)
    }

    fn part(&mut self, term: ErlNifTerm) -> Next<'a> {
        if !self.is_assumed_immediate(term) {
            return Ok(Some(Part::of(self.call, term)));
        }
        self.push(enif::word(term))?;
        Ok(None)
    }

    fn elements(&mut self, elements: &'a [ErlNifTerm]) -> Next<'a> {
        for (index, &element) in elements.iter().enumerate() {
            if self.is_assumed_immediate(element) {
                self.push(enif::word(element))?;
                continue;
            }
            match Part::of(self.call, element) {
                Part::Binary(bytes) => self.bytes(tag::BYTES, bytes)?,
                part => {
                    // An empty rest need not be read later.
                    if let rest @ [_, ..] = &elements[index + 1..] {
                        self.rests.push(Rest::Elements(rest))?;
                    }
                    return Ok(Some(part));
                }
            }
        }
        Ok(None)
    }

    /// Encodes a list of bytes in full, or the bytes at the beginning of another list.
    fn list(&mut self, list: ErlNifTerm) -> Next<'a> {
        if enif::list_cell(self.call, list).is_none() {
            return self.other(list);
        }
        let start = self.words.values().len();
        self.push(tag::LIST)?;
        let (mut rest, mut length, mut bits) = (list, 0, u64::BITS);
        // Eight bytes at a time, until fewer follow.
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
                self.spend(count)?;
                self.words.push(bytes)?;
            }
        }
        if rest == enif::nil() {
            self.words.values_mut()[start] = with_size(tag::STRING, length);
            return Ok(None);
        }
        // They are elements like others: one word each.
        let more = length - length.div_ceil(8);
        self.words.extend(more, std::iter::repeat_n(0, more))?;
        let elements = &mut self.words.values_mut()[start + 1..];
        for index in (0..length).rev() {
            let byte = elements[index / 8] >> (8 * (index % 8)) & 0xff;
            elements[index] = enif::byte_word(byte).expect("it was read from one");
        }
        self.list_from(rest, start, length)
    }

    fn list_from(&mut self, mut rest: ErlNifTerm, start: usize, mut count: usize) -> Next<'a> {
        while let Some((head, tail)) = enif::list_cell(self.call, rest) {
            rest = tail;
            count += 1;
            if !self.is_assumed_immediate(head) {
                self.rests.push(Rest::List { rest, start, count })?;
                return Ok(Some(Part::of(self.call, head)));
            }
            self.push(enif::word(head))?;
        }
        let is_proper = rest == enif::nil();
        let tag = if is_proper { tag::LIST } else { tag::IMPROPER };
        self.words.values_mut()[start] = with_size(tag, count);
        if is_proper {
            Ok(None)
        } else {
            self.part(rest)
        }
    }

    fn map(&mut self, map: ErlNifTerm, size: usize) -> Next<'a> {
        if size == 0 {
            self.push(with_size(tag::MAP, size))?;
            return Ok(None);
        }
        self.spend(1 + MAP_WORK)?;
        self.require(2 * size)?;
        self.words.push(with_size(tag::MAP, size))?;
        let start = self.rests.values().len();
        let mut are_all_assumed = true;
        enif::visit_pairs(self.call, map, size, |key, value| {
            for part in [key, value] {
                are_all_assumed = are_all_assumed && self.is_assumed_immediate(part);
                if are_all_assumed {
                    self.push(enif::word(part))?;
                } else {
                    self.rests.push(Rest::Part(part))?;
                }
            }
            Ok::<(), CallError>(())
        })?;
        // The first one is popped first.
        self.rests.values_mut()[start..].reverse();
        Ok(None)
    }
}
