//! Reading what has a bound: the bound is looked at before the elements are.
//!
//! Which bound was broken has to go round postcard, whose errors have no room for it: it waits in a cell of the
//! thread until [`decode`](super::decode), which has called all this, fetches it.

use super::error::Bound;
use super::{MAX_FENCE, MAX_HINTS, MAX_NAMES, MAX_OPS, MAX_TOKENS};
use crate::message::{Name, Names, Op, Reply, Token};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

thread_local! {
    static BROKEN: Cell<Option<Bound>> = const { Cell::new(None) };
}

/// Which bound has been broken since [`forget_broken`].
pub(super) fn broken() -> Option<Bound> {
    BROKEN.take()
}

/// Whoever reads messages by other means than frames may have left one.
pub(super) fn forget_broken() {
    BROKEN.set(None);
}

fn refuse<E: Error>(bound: Bound) -> E {
    BROKEN.set(Some(bound));
    E::custom(bound)
}

/// How many elements there are, if they can be there and may. Without a hint the count is past the bytes that are
/// left: see `input.rs`.
fn count<'de, A: SeqAccess<'de>>(
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

/// The `count` elements, with no memory for more.
fn list<'de, T, A>(mut elements: A, count: usize, order: Order) -> Result<Vec<T>, A::Error>
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
enum Order {
    Any,
    Ascending,
}

/// A list of at most so many.
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

fn bounded<'de, T, D>(
    deserializer: D,
    most: usize,
    bound: Bound,
    order: Order,
) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de> + Ord,
    D: Deserializer<'de>,
{
    deserializer.deserialize_seq(Bounded {
        most,
        bound,
        order,
        of: PhantomData,
    })
}

pub(crate) fn ops<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Op>, D::Error> {
    bounded(deserializer, MAX_OPS, Bound::Ops, Order::Any)
}

pub(crate) fn replies<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Reply>, D::Error> {
    bounded(deserializer, MAX_OPS, Bound::Replies, Order::Any)
}

pub(crate) fn live<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Token>, D::Error> {
    bounded(deserializer, MAX_TOKENS, Bound::Live, Order::Ascending)
}

pub(crate) fn missing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Token>, D::Error> {
    bounded(deserializer, MAX_TOKENS, Bound::Missing, Order::Ascending)
}

pub(crate) fn revoked<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Token>, D::Error> {
    bounded(deserializer, MAX_TOKENS, Bound::Revoked, Order::Any)
}

pub(crate) fn hints<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Name>, D::Error> {
    bounded(deserializer, MAX_HINTS, Bound::Hints, Order::Any)
}

pub(crate) fn fence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let fence = u64::deserialize(deserializer)?;
    if fence > MAX_FENCE {
        return Err(refuse(Bound::Fence));
    }
    Ok(fence)
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.bytes())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        Name::new(bytes).ok_or_else(|| refuse(Bound::Name))
    }
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Names, D::Error> {
        deserializer.deserialize_seq(InOrder)
    }
}

struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from 1 to {MAX_NAMES} names that ascend")
    }

    /// Most locks have one name, and need no list on the way.
    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Names, A::Error> {
        match count(&names, MAX_NAMES, Bound::Names)? {
            1 => names
                .next_element()?
                .map(Name::into)
                .ok_or_else(|| refuse(Bound::Names)),
            0 => Err(refuse(Bound::Names)),
            count => Ok(Names(list(names, count, Order::Ascending)?.into())),
        }
    }
}
