//! The network between the nodes. Each direction of each link has a state of its own.
//!
//! A frame that arrives was sent; the network guarantees nothing else. It delays frames for longer than any lease,
//! loses, duplicates and reorders them, and delivers frames from before a crash long after it.

use crate::random::Random;
use crate::simulation::clock::{Real, MICROSECOND, MILLISECOND, SECOND};

/// The conditions of a history's network. Probabilities are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// The usual delay, from and to.
    pub near: (Real, Real),
    /// The probability of an unusual delay: up to `far_most`, with each order of magnitude equally likely.
    pub far: i64,
    pub far_most: Real,
    pub lost: i64,
    pub duplicated: i64,
    /// The probability that a frame is held back for 5 to 30 seconds, while later frames overtake it.
    pub held_back: i64,
    /// Whether the frames of a link arrive in the order in which they were sent, except those held back.
    pub in_order: bool,
}

impl Conditions {
    pub const GOOD: Conditions = Conditions {
        near: (100 * MICROSECOND, MILLISECOND),
        far: 0,
        far_most: MILLISECOND,
        lost: 0,
        duplicated: 0,
        held_back: 0,
        in_order: true,
    };
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// How many open faults cut it.
    cuts: u32,
    /// No frame arrives before.
    stalled_until: Real,
    /// When the last frame that was not held back arrives.
    last: Real,
    /// Added to the probability of a loss.
    more_lost: i64,
    /// Added to the probability of being held back.
    more_held_back: i64,
}

#[derive(Debug)]
pub struct Network {
    members: usize,
    conditions: Conditions,
    links: Vec<Link>,
    /// When the last of all frames sent so far arrives.
    last: Real,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// None if it is lost.
    pub arrives: Option<Real>,
    pub duplicate: Option<Real>,
    pub held_back: bool,
}

impl Network {
    pub fn new(members: usize, conditions: Conditions) -> Network {
        Network {
            members,
            conditions,
            links: vec![Link::default(); members * members],
            last: 0,
        }
    }

    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.members + to]
    }

    pub fn route(&mut self, random: &mut Random, real: Real, from: usize, to: usize) -> Route {
        let conditions = self.conditions;
        let link = *self.link(from, to);
        if from == to {
            // A message within a node is never lost or overtaken.
            let arrives = (real + random.between(MICROSECOND, 50 * MICROSECOND)).max(link.last + 1);
            self.link(from, to).last = arrives;
            self.last = self.last.max(arrives);
            return Route {
                arrives: Some(arrives),
                ..Route::default()
            };
        }
        if link.cuts > 0 || random.chance(conditions.lost + link.more_lost) {
            return Route::default();
        }
        let held_back = random.chance(conditions.held_back + link.more_held_back);
        let arrives = Some(self.arrival(random, real, from, to, held_back));
        let mut duplicate = None;
        if random.chance(conditions.duplicated) {
            let late = random.chance(100);
            duplicate = Some(self.arrival(random, real, from, to, late));
        }
        self.last = self.last.max(arrives.max(duplicate).unwrap_or(0));
        Route {
            arrives,
            duplicate,
            held_back,
        }
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
        let conditions = self.conditions;
        let delay = if random.chance(conditions.far) {
            random.spread(conditions.near.1, conditions.far_most)
        } else {
            random.between(conditions.near.0, conditions.near.1)
        };
        let link = self.link(from, to);
        let mut arrives = (real + delay).max(link.stalled_until);
        if conditions.in_order {
            arrives = arrives.max(link.last + 1);
            link.last = arrives;
        }
        arrives
    }

    /// Cuts a link until [`Network::restore`] was called as many times, or [`Network::mend`].
    pub fn cut(&mut self, from: usize, to: usize) {
        self.link(from, to).cuts += 1;
    }

    pub fn restore(&mut self, from: usize, to: usize) {
        let link = self.link(from, to);
        link.cuts = link.cuts.saturating_sub(1);
    }

    /// Restores a link, whatever faults have cut it.
    pub fn mend(&mut self, from: usize, to: usize) {
        self.link(from, to).cuts = 0;
    }

    /// Frames that are sent from now on arrive at `until` at the earliest, in their order.
    pub fn stall(&mut self, from: usize, to: usize, until: Real) {
        self.link(from, to).stalled_until = until;
    }

    pub fn degrade(&mut self, from: usize, to: usize, lost: i64, held_back: i64) {
        let link = self.link(from, to);
        (link.more_lost, link.more_held_back) = (lost, held_back);
    }

    /// All links are good from now on. Frames in flight keep their arrival.
    pub fn heal(&mut self) {
        self.conditions = Conditions::GOOD;
        self.links.fill(Link::default());
    }

    pub fn last_arrival(&self) -> Real {
        self.last
    }
}
