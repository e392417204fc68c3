//! Limits of the wire format, and list readers that check a limit before they allocate.
//!
//! postcard's errors cannot carry which bound was broken. A reader stores the [`Bound`] in a thread-local cell, and
//! `frame::decode`, which called the reader, takes it from there.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

/// The lowest version of the format that this version of the library speaks. The version is the first byte of every
/// frame.
pub const LOWEST: u8 = 2;
/// The highest one. Two nodes use the highest version that both speak.
pub const HIGHEST: u8 = if cfg!(feature = "next_version") { 3 } else { 2 };
/// The longest name, in bytes: enough for paths and URLs. A frame can carry [`MAX_NAMES`] names of this length.
pub const MAX_NAME: usize = 1024;
/// The most names of one lock.
pub const MAX_NAMES: usize = 64;
/// The most operations of a batch, and the most replies of its answer.
pub const MAX_OPS: usize = 4096;
/// The most tokens of one list: live tokens of a `Sync`, missing tokens, revoked tokens.
pub const MAX_TOKENS: usize = 4096;
/// The most hints, and the most recalls, of one notice.
pub const MAX_HINTS: usize = 256;
/// The most other agents that a `Mismatch` lists.
pub const MAX_OTHERS: usize = 16;
/// The highest fence. A higher one in a frame is an error.
pub const MAX_FENCE: u64 = 1 << 62;

/// A limit that every frame keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// A list has at most as many elements as there are bytes after its count.
    Count,
    /// At most [`MAX_OPS`] operations.
    Ops,
    /// At most [`MAX_OPS`] replies.
    Replies,
    /// At most [`MAX_TOKENS`] live tokens.
    Live,
    /// At most [`MAX_TOKENS`] missing tokens.
    Missing,
    /// At most [`MAX_TOKENS`] revoked tokens.
    Revoked,
    /// At most [`MAX_HINTS`] hints.
    Hints,
    /// At most [`MAX_HINTS`] recalls.
    Recalls,
    /// At most [`MAX_OTHERS`] other agents.
    Others,
    /// A lock has 1 to [`MAX_NAMES`] names.
    Names,
    /// A name has 1 to [`MAX_NAME`] bytes.
    Name,
    /// The names of a lock, live tokens and missing tokens are in ascending order.
    Order,
    /// A fence is at most [`MAX_FENCE`].
    Fence,
}

impl fmt::Display for Bound {
    /// How the frame breaks the bound.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Count => write!(f, "a count of more elements than bytes that follow"),
            Bound::Ops => write!(f, "more than {MAX_OPS} operations"),
            Bound::Replies => write!(f, "more than {MAX_OPS} replies"),
            Bound::Live => write!(f, "more than {MAX_TOKENS} live tokens"),
            Bound::Missing => write!(f, "more than {MAX_TOKENS} missing tokens"),
            Bound::Revoked => write!(f, "more than {MAX_TOKENS} revoked tokens"),
            Bound::Hints => write!(f, "more than {MAX_HINTS} hints"),
            Bound::Recalls => write!(f, "more than {MAX_HINTS} recalls"),
            Bound::Others => write!(f, "more than {MAX_OTHERS} other agents"),
            Bound::Names => write!(f, "a lock of no names or more than {MAX_NAMES}"),
            Bound::Name => write!(f, "a name of no bytes or more than {MAX_NAME}"),
            Bound::Order => write!(f, "names or tokens that are not in ascending order"),
            Bound::Fence => write!(f, "a fence above {MAX_FENCE}"),
        }
    }
}

thread_local! {
    static BROKEN: Cell<Option<Bound>> = const { Cell::new(None) };
}

/// Takes the bound that was broken since [`forget_broken`].
pub(crate) fn broken() -> Option<Bound> {
    BROKEN.take()
}

/// Clears the cell: code that deserializes messages outside a frame may have set it.
pub(crate) fn forget_broken() {
    BROKEN.set(None);
}

pub(crate) fn refuse<E: Error>(bound: Bound) -> E {
    BROKEN.set(Some(bound));
    E::custom(bound)
}

/// The number of elements, if the frame can contain that many and `most` allows them. There is no size hint if the
/// count exceeds the bytes left: see `input.rs`.
pub(crate) fn count<'de, A: SeqAccess<'de>>(
    elements: &A,
    most: usize,
    bound: Bound,
) -> Result<usize, A::Error> {
    match elements.size_hint() {
        None => Err(refuse(Bound::Count)),
        Some(count) if count > most => Err(refuse(bound)),
        Some(count) => Ok(count),
    }
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
            return Err(refuse(Bound::Order));
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
    bound: Bound,
    order: Order,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de> + Ord> Visitor<'de> for Bounded<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {}", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<Vec<T>, A::Error> {
        let count = count(&elements, self.most, self.bound)?;
        list(elements, count, self.order)
    }
}

macro_rules! bounded_lists {
    ($($name:ident: $most:expr, $bound:expr, $order:expr;)*) => {
        $(pub(crate) fn $name<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
        where
            T: Deserialize<'de> + Ord,
            D: Deserializer<'de>,
        {
            let (most, bound, order, of) = ($most, $bound, $order, PhantomData);
            deserializer.deserialize_seq(Bounded { most, bound, order, of })
        })*
    };
}

// One function for each list of a frame, as `serde(deserialize_with)` names them.
bounded_lists! {
    ops: MAX_OPS, Bound::Ops, Order::Any;
    replies: MAX_OPS, Bound::Replies, Order::Any;
    live: MAX_TOKENS, Bound::Live, Order::Ascending;
    missing: MAX_TOKENS, Bound::Missing, Order::Ascending;
    revoked: MAX_TOKENS, Bound::Revoked, Order::Any;
    hints: MAX_HINTS, Bound::Hints, Order::Any;
    recalls: MAX_HINTS, Bound::Recalls, Order::Any;
    others: MAX_OTHERS, Bound::Others, Order::Any;
}

pub(crate) fn fence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let fence = u64::deserialize(deserializer)?;
    if fence > MAX_FENCE {
        return Err(refuse(Bound::Fence));
    }
    Ok(fence)
}
