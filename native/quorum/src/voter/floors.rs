//! How far the fences of forgotten names went.
//!
//! A name that nobody holds or waits for takes no memory, but its next fence has to be higher than its last. So its
//! last one goes into one of a fixed number of floors, chosen by a hash of the name, and a name that comes back
//! begins above its floor. Voters that saw the same locks of the names of a floor, in the same order, give the same
//! numbers: then no second round is needed to agree on one.
//!
//! The hash is FNV-1a (Fowler, Noll, Vo), the same on all members. Names made to share a floor cost those who made
//! them a round more, and do no other harm.

use crate::message::{Fence, Name};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Floors {
    floors: Vec<Fence>,
    /// None that was given is past it, nor any that was heard of.
    highest: Fence,
}

impl Floors {
    pub(super) fn new(count: usize) -> Floors {
        Floors {
            floors: vec![Fence(0); count],
            highest: Fence(0),
        }
    }

    pub(super) fn highest(&self) -> Fence {
        self.highest
    }

    pub(super) fn of(&self, name: &Name) -> Fence {
        self.floors[self.place(name)]
    }

    /// A name is forgotten, whose last fence was `fence`.
    pub(super) fn keep(&mut self, name: &Name, fence: Fence) {
        let place = self.place(name);
        self.floors[place] = self.floors[place].max(fence);
        self.seen(fence);
    }

    /// `fence` is in use for some name.
    pub(super) fn seen(&mut self, fence: Fence) {
        self.highest = self.highest.max(fence);
    }

    /// Nothing up to `fence` is given again, whatever the name.
    pub(super) fn raise(&mut self, fence: Fence) {
        for floor in &mut self.floors {
            *floor = (*floor).max(fence);
        }
        self.seen(fence);
    }

    fn place(&self, name: &Name) -> usize {
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv);
        (hash % self.floors.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &str) -> Name {
        Name::new(bytes.as_bytes()).unwrap()
    }

    #[test]
    fn a_floor_only_rises() {
        let mut floors = Floors::new(8);
        floors.keep(&name("a"), Fence(7));
        floors.keep(&name("a"), Fence(3));
        assert_eq!(
            (floors.of(&name("a")), floors.highest()),
            (Fence(7), Fence(7))
        );
        floors.raise(Fence(5));
        assert_eq!(
            (floors.of(&name("a")), floors.highest()),
            (Fence(7), Fence(7))
        );
        floors.raise(Fence(9));
        assert_eq!(
            (floors.of(&name("b")), floors.highest()),
            (Fence(9), Fence(9))
        );
    }

    #[test]
    fn other_floors_stay_where_they_are() {
        let mut floors = Floors::new(1024);
        floors.keep(&name("a"), Fence(7));
        assert_eq!(floors.of(&name("b")), Fence(0));
    }
}
