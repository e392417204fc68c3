//! What a history has.

use crate::random::Random;
use crate::simulation::clock::{Real, MICROSECOND, MILLISECOND, SECOND};
use crate::simulation::network::Conditions;
use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};

/// What histories are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setting {
    /// Changes and faults of all kinds.
    #[default]
    General,
    /// One name that all nodes want, and small lists. When a record is decided, a quorum of the list before often gets
    /// no message about it for a lease: the shortest way to two holders.
    Contended,
    /// No faults. Each change begins when the one before is done, and some links are slow when a record is decided.
    Hurried,
    /// A majority is lost, and the operator resets.
    Resets,
}

/// Beyond the seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub setting: Setting,
    pub bugs: ProtocolBugs,
    /// No faults: nothing may be lost, and waits are short.
    pub calm: Option<bool>,
    /// Whether answers of voters of different views count together, and whether voters in quarantine answer.
    pub mixed_views: bool,
    pub quarantined_answers: bool,
    pub trace: bool,
}

impl Options {
    #[must_use]
    pub fn of(setting: Setting) -> Options {
        let calm = match setting {
            Setting::General => None,
            Setting::Hurried => Some(true),
            Setting::Contended | Setting::Resets => Some(false),
        };
        Options {
            setting,
            calm,
            ..Options::default()
        }
    }

    #[must_use]
    pub fn bug(mut self, bug: ProtocolBug) -> Options {
        self.bugs = self.bugs.with(bug);
        self
    }
}

/// Lists are the bits of a word, by node.
#[derive(Clone, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub first: u32,
    /// The lists of the operator, one after the other.
    pub lists: Vec<u32>,
    pub lease_ms: u64,
    pub conditions: Conditions,
    /// The average time between faults. `None`: no faults.
    pub fault_gap: Option<Real>,
    /// Whether files are lost.
    pub loses_files: bool,
    pub drift: i64,
    /// How long a write takes at most.
    pub store: Real,
    pub names: usize,
    /// The longest time from lock to unlock, and the average pause before the next lock.
    pub hold: Real,
    pub think: Real,
    pub timeout: Real,
    /// When a majority is lost.
    pub disaster: Option<Real>,
    /// The pause between two changes.
    pub pause: Real,
    pub active: Real,
}

impl Plan {
    pub fn draw(random: &mut Random, options: &Options) -> Plan {
        let setting = options.setting;
        let nodes = random.between(3, if setting == Setting::Contended { 5 } else { 7 }) as usize;
        let calm = options.calm.unwrap_or_else(|| random.chance(150));
        let first = list(random, nodes);
        let changes = random.between(1, 6);
        let mut lists = Vec::new();
        for _ in 0..changes {
            // Back to an earlier list, a member more or less, or any.
            let last = lists.last().copied().unwrap_or(first);
            lists.push(match random.below(4) {
                0 => first,
                1 => match last ^ 1 << random.below(nodes as i64) {
                    0 => last,
                    other => other,
                },
                _ => list(random, nodes),
            });
        }
        let lease_ms = random.pick(&[1000, 1000, 4000]);
        let lease = lease_ms as Real * MILLISECOND;
        let plan = Plan {
            nodes,
            first,
            lists,
            lease_ms,
            conditions: conditions(random, calm),
            fault_gap: (!calm).then(|| random.spread(100 * MILLISECOND, 3 * lease)),
            loses_files: random.chance(400),
            drift: if random.chance(700) { 10_000 } else { 0 },
            store: random.spread(MILLISECOND, if calm { 10 * MILLISECOND } else { SECOND }),
            names: random.between(1, 2) as usize,
            hold: random.pick(&[10 * MILLISECOND, lease / 2, 4 * lease]),
            think: random.pick(&[5 * MILLISECOND, lease / 10, lease]),
            timeout: random.spread(lease / 10, 4 * lease),
            pause: random.pick(&[0, lease / 10, lease, 3 * lease]),
            active: random.between(4, 20) * lease,
            disaster: None,
        };
        match setting {
            Setting::General => plan,
            Setting::Contended => plan.contended(random),
            Setting::Hurried => plan.hurried(random),
            Setting::Resets => match random.chance(500) {
                true => plan.contended(random).with_disaster(random),
                false => plan.with_disaster(random),
            },
        }
    }

    fn hurried(self, random: &mut Random) -> Plan {
        let lease_ms = 10_000;
        let lease = lease_ms as Real * MILLISECOND;
        let lists = (0..6).map(|_| list(random, self.nodes)).collect();
        Plan {
            lease_ms,
            lists,
            hold: 4 * lease,
            think: lease / 10,
            timeout: 2 * lease,
            pause: lease,
            active: 3 * lease,
            ..self
        }
    }

    fn contended(self, random: &mut Random) -> Plan {
        let lease = self.lease();
        // Small lists and large ones in turn: a quorum of a large one can be cut off when it is replaced.
        let mut lists = Vec::new();
        for place in 0..6 {
            let count = match place % 2 {
                0 => random.weighted(&[(40, 1), (20, 2), (40, 3)]),
                _ => random.weighted(&[(80, 3), (20, 4)]),
            };
            lists.push(of_size(random, self.nodes, count));
        }
        Plan {
            first: of_size(random, self.nodes, 3),
            lists,
            active: 12 * lease,
            loses_files: false,
            names: 1,
            hold: 6 * lease,
            think: lease / 20,
            timeout: 4 * lease,
            pause: random.pick(&[lease / 20, lease * 2]),
            fault_gap: Some(random.spread(lease / 4, 8 * lease)),
            store: 5 * MILLISECOND,
            conditions: Conditions::GOOD,
            drift: 0,
            ..self
        }
    }

    fn with_disaster(self, random: &mut Random) -> Plan {
        let lease = self.lease();
        let disaster = random.between(lease, 6 * lease);
        Plan {
            disaster: Some(disaster),
            active: disaster + random.between(4, 12) * lease,
            loses_files: false,
            store: random.pick(&[self.store, 300 * MILLISECOND]),
            ..self
        }
    }

    pub fn is_calm(&self) -> bool {
        self.fault_gap.is_none()
    }

    pub fn lease(&self) -> Real {
        self.lease_ms as Real * MILLISECOND
    }
}

/// Small lists are more likely: they have the fewest votes to spare.
fn list(random: &mut Random, nodes: usize) -> u32 {
    let count = random.weighted(&[(20, 1), (15, 2), (40, 3), (15, 4), (10, 5)]);
    of_size(random, nodes, count)
}

fn of_size(random: &mut Random, nodes: usize, count: usize) -> u32 {
    let mut places: Vec<usize> = (0..nodes).collect();
    random.shuffle(&mut places);
    let places = places.into_iter().take(count.min(nodes));
    places.fold(0, |list, place| list | 1 << place)
}

fn conditions(random: &mut Random, calm: bool) -> Conditions {
    let near = random.pick(&[
        (100 * MICROSECOND, MILLISECOND),
        (100 * MICROSECOND, MILLISECOND),
        (2 * MILLISECOND, 40 * MILLISECOND),
    ]);
    // Over slow links, a vote that was given unasked can end before the new voters have the lock.
    if calm {
        return Conditions::GOOD;
    }
    Conditions {
        near,
        far: random.pick(&[0, 0, 10, 100]),
        far_most: random.pick(&[300 * MILLISECOND, 3 * SECOND]),
        lost: random.pick(&[0, 0, 10, 100, 300]),
        duplicated: random.pick(&[0, 0, 50]),
        held_back: random.pick(&[0, 0, 5, 30]),
        in_order: random.chance(600),
    }
}
