//! What kind of history a seed is: how many nodes, how good the network, which faults and how often, how busy the
//! clients. Each history has few kinds of trouble, drawn anew; all kinds at once would hide one another.

use super::clock::{Real, MICROSECOND, MILLISECOND, SECOND};
use super::faults::Fault;
use super::network::Manner;
use super::random::Random;
use super::Settings;
use quorum::rules::Rules;
use std::time::Duration;

/// What becomes of fences when a voter dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fences {
    /// They are stored.
    Durable,
    /// They are lost: the new life asks the others.
    Lost,
}

/// The character of a history.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many nodes.
    pub members: usize,
    /// By which constants they live.
    pub rules: Rules,
    /// How long clients and faults go on.
    pub active: Real,
    /// The network.
    pub manner: Manner,
    /// Which faults, by weight. None: then also nothing bad may be heard of.
    pub faults: Vec<(i64, Fault)>,
    /// From one fault to the next, on average.
    pub fault_gap: Real,
    /// How wrong clocks may be, in parts per million.
    pub drift: i64,
    /// How late timers come, at most.
    pub lateness: Real,
    /// How often, of a thousand, a machine's frames are not sent after each event but together with those of later
    /// ones.
    pub drains: i64,
    /// What becomes of fences.
    pub fences: Fences,
    /// How long storing one takes, at most.
    pub store: Real,
    /// Of each node.
    pub clients: usize,
    /// From a client's unlock to its next lock, on average.
    pub think: Real,
    /// From lock to unlock, at most.
    pub hold: Real,
    /// How many names are fought over.
    pub hot: usize,
    /// How many are not.
    pub cold: usize,
    /// How many locks are of readers, of a thousand.
    pub readers: i64,
    /// How often somebody forces an unlock, in thousandths of locks.
    pub forced: i64,
    /// How often an agent is told that a link came or went, in thousandths.
    pub told: i64,
}

/// Names fit into the bits of a word.
pub const MOST_NAMES: usize = 32;

impl Plan {
    /// Drawn.
    #[must_use]
    pub fn draw(random: &mut Random, settings: &Settings) -> Plan {
        let calm = settings.faults.is_none() && random.chance(150);
        let members = random.weighted(&[
            (440, 3),
            (160, 5),
            (200, 4),
            (80, 2),
            (40, 1),
            (30, 6),
            (30, 7),
            (8, 8),
            (2, 16),
        ]);
        let faults = match &settings.faults {
            Some(faults) => faults.iter().map(|fault| (1, *fault)).collect(),
            None if calm => Vec::new(),
            None => draw_faults(random),
        };
        let rules = draw_rules(random, calm);
        let members = settings.members.unwrap_or(members);
        let clients = random.between(1, 4) as usize;
        let active = random.spread(2 * SECOND, 24 * SECOND);
        // From a sleepy history to one that is busy all the time; but none that takes all day.
        let locks = random.spread(10, 250);
        let think = (active * (members * clients) as i64 / locks).max(5 * MILLISECOND);
        let plan = Plan {
            members,
            rules: settings.rules.map_or(rules, |change| change(rules)),
            active,
            manner: draw_manner(random, calm),
            faults,
            fault_gap: random.spread(200 * MILLISECOND, 5 * SECOND),
            drift: if random.chance(800) {
                settings.drift
            } else {
                0
            },
            lateness: if calm {
                5 * MILLISECOND
            } else {
                random.spread(MILLISECOND, 400 * MILLISECOND)
            },
            drains: random.pick(&[0, 0, 200, 800]),
            fences: random.pick(&[Fences::Durable, Fences::Durable, Fences::Lost]),
            store: random.spread(
                100 * MICROSECOND,
                if calm { 10 * MILLISECOND } else { 3 * SECOND },
            ),
            clients,
            think,
            hold: random.pick(&[10 * MILLISECOND, SECOND, 5 * SECOND, 30 * SECOND]),
            hot: random.between(1, 4) as usize,
            cold: random.between(0, 12) as usize,
            readers: random.pick(&[0, 100, 500, 900]),
            forced: random.pick(&[0, 0, 20, 100]),
            told: random.pick(&[0, 500, 1000]),
        };
        if settings.fight || random.chance(50) {
            plan.fight()
        } else if random.chance(60) {
            plan.crowd(random)
        } else {
            plan
        }
    }

    /// Many of each node want one name, again and again: so locks are passed on.
    fn crowd(self, random: &mut Random) -> Plan {
        let rules = Rules {
            run: random.pick(&[2, 16]),
            run_time: Duration::from_millis(random.pick(&[50, 60_000])),
            ..self.rules
        };
        Plan {
            rules,
            active: random.spread(2 * SECOND, 10 * SECOND),
            clients: 4,
            think: 20 * MILLISECOND,
            hold: random.pick(&[5 * MILLISECOND, SECOND]),
            hot: 1,
            cold: 0,
            readers: random.pick(&[0, 0, 200]),
            ..self
        }
    }

    fn fight(self) -> Plan {
        let second = SECOND;
        Plan {
            active: 30 * second,
            fault_gap: 3 * second,
            clients: 1,
            think: second / 2,
            hold: 30 * second,
            hot: 1,
            cold: 0,
            readers: 0,
            ..self
        }
    }

    /// Whether nothing goes wrong but what clients do to each other.
    #[must_use]
    pub fn calm(&self) -> bool {
        self.faults.is_empty()
    }
}

fn draw_faults(random: &mut Random) -> Vec<(i64, Fault)> {
    let kinds = random.between(1, 5);
    (0..kinds)
        .map(|_| (random.between(1, 5), random.pick(Fault::ALL)))
        .collect()
}

fn draw_manner(random: &mut Random, calm: bool) -> Manner {
    let near = random.pick(&[
        (100 * MICROSECOND, MILLISECOND),
        (100 * MICROSECOND, MILLISECOND),
        (2 * MILLISECOND, 40 * MILLISECOND),
        (20 * MILLISECOND, 90 * MILLISECOND),
    ]);
    let in_order = random.chance(600);
    if calm {
        return Manner {
            near,
            in_order,
            ..Manner::QUIET
        };
    }
    Manner {
        near,
        far: random.pick(&[0, 0, 10, 50, 200]),
        far_most: random
            .pick(&[300 * MILLISECOND, 3 * SECOND, 15 * SECOND])
            .max(near.1),
        lost: random.pick(&[0, 0, 10, 100, 300]),
        twice: random.pick(&[0, 0, 50, 200]),
        held_back: random.pick(&[0, 0, 0, 5, 30]),
        in_order,
    }
}

/// Those of clusters, more often than not; else small numbers, where other numbers of them are all the same, and
/// bounds that are met.
fn draw_rules(random: &mut Random, calm: bool) -> Rules {
    let rules = Rules {
        fence_floors: random.pick(&[1, 2, 16, 1024]),
        fence_block: random.pick(&[1, 4, 1 << 20]),
        batch: if calm {
            1024
        } else {
            random.pick(&[1, 2, 16, 1024, 1024])
        },
        pending_unlocks: random.pick(&[1, 4, 4096]),
        ..Rules::default()
    };
    if random.chance(700) {
        return rules;
    }
    let holder = random.between(3, 6) as u64;
    let voter = holder + 2;
    Rules {
        heartbeat: Duration::from_millis(holder * 200),
        holder_lease: Duration::from_secs(holder),
        voter_lease: Duration::from_secs(voter),
        quarantine: Duration::from_secs(voter),
        attempt: Duration::from_millis(random.pick(&[400, 700, 1000])),
        at_risk: Duration::from_secs(holder / 2),
        ..rules
    }
}
