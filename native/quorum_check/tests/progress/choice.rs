//! Which names each request locks.

use quorum::message::{Name, Names};

/// Which names each request locks.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// One of this many names, which all nodes lock.
    Shared(u64),
    /// Each loop locks this many names that no other loop locks, one after the other.
    Own(u64),
    /// From two to eight of this many names, which all nodes lock.
    Several(u64),
}

impl Choice {
    /// The names of the request with this number, of this loop. `draw` returns a random number below its argument.
    pub fn names(
        self,
        node: usize,
        of: usize,
        number: u64,
        mut draw: impl FnMut(u64) -> u64,
    ) -> Names {
        match self {
            Choice::Shared(names) => name(draw(names).to_string()).into(),
            Choice::Own(names) => name(format!("{node}/{of}/{}", number % names)).into(),
            Choice::Several(names) => {
                let mut left: Vec<u64> = (0..names).collect();
                let count = 2 + draw(7);
                let drawn = (0..count).map(|_| left.swap_remove(draw(left.len() as u64) as usize));
                let drawn = drawn.map(|number| name(number.to_string()));
                Names::new(drawn.collect()).expect("a few different names")
            }
        }
    }
}

fn name(text: String) -> Name {
    Name::new(text.as_bytes()).expect("a short name")
}
