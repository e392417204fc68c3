//! The network between the nodes: each history has one of its own character, each direction of each pair its own
//! state.
//!
//! Nothing is assumed of it but that what arrives was sent: frames are late (by longer than any lease, if need be),
//! lost, doubled, overtaken by others, and held back from before a crash until long after it.

use super::clock::{Real, MICROSECOND, MILLISECOND, SECOND};
use super::random::Random;

/// What kind of network it is. Chances are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// The usual delay, from and to.
    pub near: (Real, Real),
    /// How often it is an unusual one: up to `far_most`, each order of magnitude as likely.
    pub far: i64,
    /// See `far`.
    pub far_most: Real,
    /// How many are lost.
    pub lost: i64,
    /// How many come twice.
    pub twice: i64,
    /// How many are held back for 5 to 30 seconds, and overtaken meanwhile.
    pub held_back: i64,
    /// Whether frames of a link arrive in the order they were sent, those held back apart.
    pub in_order: bool,
}

impl Manner {
    /// Quick, and nothing goes wrong.
    pub const QUIET: Manner = Manner {
        near: (100 * MICROSECOND, MILLISECOND),
        far: 0,
        far_most: MILLISECOND,
        lost: 0,
        twice: 0,
        held_back: 0,
        in_order: true,
    };
}

/// One direction of a pair of nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// How many faults cut it at the moment.
    cuts: u32,
    /// Nothing arrives before.
    still: Real,
    /// When the last frame in order arrives.
    last: Real,
    /// How many are lost besides, in thousandths.
    worse: i64,
    /// How many are held back besides, in thousandths.
    holds_back: i64,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    members: usize,
    manner: Manner,
    links: Vec<Link>,
    /// When the last of all frames sent so far arrives.
    last: Real,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// When it arrives, if it does.
    pub arrives: Option<Real>,
    /// When it arrives once more.
    pub again: Option<Real>,
    /// Whether it is held back.
    pub held_back: bool,
}

impl Network {
    /// Between `members` nodes.
    #[must_use]
    pub fn new(members: usize, manner: Manner) -> Network {
        Network {
            members,
            manner,
            links: vec![Link::default(); members * members],
            last: 0,
        }
    }

    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.members + to]
    }

    /// Sends a frame now.
    pub fn route(&mut self, random: &mut Random, real: Real, from: usize, to: usize) -> Route {
        let manner = self.manner;
        let link = *self.link(from, to);
        if from == to {
            // A message within a node: never lost, never overtaken.
            let arrives = (real + random.between(MICROSECOND, 50 * MICROSECOND)).max(link.last + 1);
            self.link(from, to).last = arrives;
            self.last = self.last.max(arrives);
            return Route {
                arrives: Some(arrives),
                ..Route::default()
            };
        }
        if link.cuts > 0 || random.chance(manner.lost + link.worse) {
            return Route::default();
        }
        let held_back = random.chance(manner.held_back + link.holds_back);
        let mut route = Route {
            arrives: Some(self.arrival(random, real, from, to, held_back)),
            again: None,
            held_back,
        };
        if random.chance(manner.twice) {
            let late = random.chance(100);
            route.again = Some(self.arrival(random, real, from, to, late));
        }
        self.last = self
            .last
            .max(route.arrives.unwrap_or(0))
            .max(route.again.unwrap_or(0));
        route
    }

    fn arrival(
        &mut self,
        random: &mut Random,
        real: Real,
        from: usize,
        to: usize,
        held_back: bool,
    ) -> Real {
        if held_back {
            return real + random.between(5 * SECOND, 30 * SECOND);
        }
        let manner = self.manner;
        let delay = if random.chance(manner.far) {
            random.spread(manner.near.1, manner.far_most)
        } else {
            random.between(manner.near.0, manner.near.1)
        };
        let link = self.link(from, to);
        let mut arrives = (real + delay).max(link.still);
        if manner.in_order {
            arrives = arrives.max(link.last + 1);
            link.last = arrives;
        }
        arrives
    }

    /// Nothing goes from `from` to `to` any more. Counted: as many [`Network::mend`] mend it.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.link(from, to).cuts += 1;
    }

    /// See [`Network::cut`].
    pub fn mend(&mut self, from: usize, to: usize) {
        let link = self.link(from, to);
        link.cuts = link.cuts.saturating_sub(1);
    }

    /// Whether nothing goes from `from` to `to`.
    #[must_use]
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.links[from * self.members + to].cuts > 0
    }

    /// What is sent from `from` to `to` from now on arrives at `until` at the earliest, all at once and in its order:
    /// something long is on the same line before it.
    pub fn stand_still(&mut self, from: usize, to: usize, until: Real) {
        self.link(from, to).still = until;
    }

    /// So many more are lost, or held back, of a thousand.
    pub fn worsen(&mut self, from: usize, to: usize, lost: i64, held_back: i64) {
        let link = self.link(from, to);
        (link.worse, link.holds_back) = (lost, held_back);
    }

    /// From now on all is well; what is under way stays so.
    pub fn calm(&mut self) {
        self.manner = Manner::QUIET;
        for link in &mut self.links {
            *link = Link {
                last: 0,
                ..Link::default()
            };
        }
    }

    /// When the last frame that was sent so far arrives.
    #[must_use]
    pub fn last_arrival(&self) -> Real {
        self.last
    }
}
