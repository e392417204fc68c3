//! Fences of forgotten names.
//!
//! A name without holders and waiters takes no memory, but its next fence must be higher than its last. So the voter
//! keeps a table of *floors*: a hash of a name says at which place its last fence is kept, if that is higher than the
//! fence there. When the name returns, its fences begin above that. With a single floor for all names, voters that saw
//! locks of different names in different orders would give different fences for each, and each lock would need a second
//! round trip to agree on one.
//!
//! A caller that chooses names of one place can cause one more exchange of messages for their locks.

use crate::message::{scatter, Fence, Name};

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

    /// The place of the name: the FxHash (of Firefox and rustc) of its length and bytes, scattered.
    fn index(&self, name: &Name) -> usize {
        let bytes = name.bytes();
        let hash = bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        (scatter(hash) % self.floors.len() as u64) as usize
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
