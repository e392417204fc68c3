//! Fences of forgotten names.
//!
//! A name without holders and waiters takes no memory, but its next fence must be higher than its last. The voter
//! keeps the last fence of each *partition* of names. When a name returns, its fences begin above the floor of its
//! partition. Voters that saw the same locks of a partition, in the same order, give the same fences, so no second
//! round is needed to agree on a fence.
//!
//! A caller that chooses names of one partition can cause one more exchange of messages for their locks.

use crate::groups::partition;
use crate::message::{Fence, Name};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Floors {
    floors: Vec<Fence>,
    /// No given or recorded fence is higher.
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
        self.floors[self.index(name)]
    }

    /// Keeps the last fence of a forgotten name.
    pub(super) fn keep(&mut self, name: &Name, fence: Fence) {
        let index = self.index(name);
        self.floors[index] = self.floors[index].max(fence);
        self.seen(fence);
    }

    /// Records that a name uses `fence`.
    pub(super) fn seen(&mut self, fence: Fence) {
        self.highest = self.highest.max(fence);
    }

    /// No name gets `fence` or a lower one again.
    pub(super) fn raise(&mut self, fence: Fence) {
        for floor in &mut self.floors {
            *floor = (*floor).max(fence);
        }
        self.seen(fence);
    }

    /// The partition of the name.
    pub(super) fn index(&self, name: &Name) -> usize {
        partition(name, self.floors.len())
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
    fn other_floors_do_not_change() {
        let mut floors = Floors::new(1024);
        floors.keep(&name("a"), Fence(7));
        assert_eq!(floors.of(&name("b")), Fence(0));
    }
}
