//! Names: the byte strings that locks lock.

use crate::bounds::{self, Order, MAX_NAME, MAX_NAMES};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// What a quorum lock locks: 1 to [`MAX_NAME`] bytes of any value. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// Copies `bytes`. `None` if there are none, or more than [`MAX_NAME`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Name> {
        (1..=MAX_NAME)
            .contains(&bytes.len())
            .then(|| Name(bytes.into()))
    }

    /// The bytes of the name.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Names are ordered as their bytes.
impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// The names of one lock: 1 to [`MAX_NAMES`] different names, in ascending order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Names(Arc<[Name]>);

impl Names {
    /// Sorts `names`. `None` if there are none, more than [`MAX_NAMES`], or one of them twice.
    #[must_use]
    pub fn new(mut names: Vec<Name>) -> Option<Names> {
        names.sort_unstable();
        let fit = (1..=MAX_NAMES).contains(&names.len());
        (fit && names.windows(2).all(|pair| pair[0] < pair[1])).then(|| Names(names.into()))
    }

    /// Iterates in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Name> {
        self.0.iter()
    }

    /// The name, if there is exactly one.
    #[must_use]
    pub fn single(&self) -> Option<&Name> {
        match &*self.0 {
            [name] => Some(name),
            _ => None,
        }
    }
}

impl From<Name> for Names {
    fn from(name: Name) -> Names {
        Names([name].into())
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.bytes())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        Name::new(bytes).ok_or_else(|| D::Error::custom("a name of a wrong length"))
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
        write!(f, "from 1 to {MAX_NAMES} names in ascending order")
    }

    /// Most locks have one name, which needs no intermediate list.
    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Names, A::Error> {
        match bounds::count(&names, MAX_NAMES)? {
            1 => names.next_element()?.map(Name::into).ok_or_else(none),
            0 => Err(none()),
            count => Ok(Names(bounds::list(names, count, Order::Ascending)?.into())),
        }
    }
}

fn none<E: Error>() -> E {
    E::custom("a lock of no names")
}
