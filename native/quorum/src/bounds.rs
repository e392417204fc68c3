//! The version and the limits of the wire format, and list readers that check a limit before they allocate.

use crate::members::MAX_MEMBERS;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::Deserialize;
use std::fmt;
use std::marker::PhantomData;

/// The version of the format: the first byte of every frame.
pub const VERSION: u8 = 1;
/// The longest name, in bytes: enough for paths and URLs. A frame can carry [`MAX_NAMES`] names of this length.
pub const MAX_NAME: usize = 1024;
/// The most names of one lock.
pub const MAX_NAMES: usize = 64;
/// The most operations of a batch, and the most replies of its answer.
pub const MAX_OPS: usize = 4096;
/// The most tokens of one list: live tokens of a `Sync`, missing tokens, revoked tokens.
pub const MAX_TOKENS: usize = 4096;
/// The most votes, and the most recalls, of one notice.
pub const MAX_NOTICE: usize = 256;
/// The most other agents that a `Mismatch` lists.
pub const MAX_OTHERS: usize = 16;
/// The longest name of a node, in bytes: Erlang limits it to 255 characters.
pub const MAX_NODE_NAME: usize = 1020;
/// The most agents of one report. A voter with more of them reports that any agent may count on its votes.
pub const MAX_AGENTS: usize = 256;
/// The longest reason why a file cannot be written, in bytes.
pub const MAX_TROUBLE: usize = 1024;
/// With more held locks, or votes, a step that replaces the list of members may take longer than a millisecond.
pub(crate) const LONG_STEP: usize = 1000;
/// The shortest lease, in milliseconds.
pub const MIN_LEASE_MS: u64 = 1000;
/// The highest fence. A higher one in a frame is an error.
pub const MAX_FENCE: u64 = 1 << 62;

/// The number of elements, if the frame can contain that many and `most` allows them. There is no size hint if the
/// count exceeds the bytes left: see `input.rs`.
pub(crate) fn count<'de, A: SeqAccess<'de>>(elements: &A, most: usize) -> Result<usize, A::Error> {
    elements
        .size_hint()
        .filter(|count| *count <= most)
        .ok_or_else(|| A::Error::custom("a list that is too long"))
}

/// Reads `count` elements into a list with exactly that capacity.
pub(crate) fn list<'de, T, A>(
    mut elements: A,
    count: usize,
    order: Order,
) -> Result<Vec<T>, A::Error>
where
    T: Deserialize<'de> + Ord,
    A: SeqAccess<'de>,
{
    let mut list = Vec::with_capacity(count);
    while let Some(element) = elements.next_element()? {
        if order == Order::Ascending && list.last().is_some_and(|last| *last >= element) {
            return Err(A::Error::custom("elements that do not ascend"));
        }
        list.push(element);
    }
    Ok(list)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Any,
    Ascending,
}

/// Visitor for a list of at most `most` elements.
struct Bounded<T> {
    most: usize,
    order: Order,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de> + Ord> Visitor<'de> for Bounded<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {}", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<Vec<T>, A::Error> {
        let count = count(&elements, self.most)?;
        list(elements, count, self.order)
    }
}

macro_rules! bounded_lists {
    ($($name:ident: $most:expr, $order:expr;)*) => {
        $(pub(crate) fn $name<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
        where
            T: Deserialize<'de> + Ord,
            D: Deserializer<'de>,
        {
            let (most, order, of) = ($most, $order, PhantomData);
            deserializer.deserialize_seq(Bounded { most, order, of })
        })*
    };
}

// One function for each list of a frame, as `serde(deserialize_with)` names them.
bounded_lists! {
    ops: MAX_OPS, Order::Any;
    replies: MAX_OPS, Order::Any;
    live: MAX_TOKENS, Order::Ascending;
    missing: MAX_TOKENS, Order::Ascending;
    revoked: MAX_TOKENS, Order::Any;
    given: MAX_NOTICE, Order::Any;
    recalls: MAX_NOTICE, Order::Any;
    others: MAX_OTHERS, Order::Any;
    node_names: MAX_MEMBERS, Order::Ascending;
    peers: MAX_MEMBERS, Order::Ascending;
    of_agents: MAX_AGENTS, Order::Ascending;
}

/// A small integer in Erlang.
pub(crate) fn small<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    at_most(deserializer, 1 << 58)
}

/// A lease: other times are parts of it.
pub(crate) fn lease_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match at_most(deserializer, u32::MAX.into())? {
        lease_ms if lease_ms >= MIN_LEASE_MS => Ok(lease_ms),
        _ => Err(D::Error::custom("a lease that is too short")),
    }
}

fn at_most<'de, D: Deserializer<'de>>(deserializer: D, most: u64) -> Result<u64, D::Error> {
    let number = u64::deserialize(deserializer)?;
    match number <= most {
        true => Ok(number),
        false => Err(D::Error::custom("a number that is too high")),
    }
}

pub(crate) fn fence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    at_most(deserializer, MAX_FENCE)
}
