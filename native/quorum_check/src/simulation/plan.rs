//! Plans: how many nodes a history has, how good its network is, which faults occur, and how busy the clients are.
//!
//! Each history has a few kinds of faults, because all kinds at once would hide one another.

use crate::random::Random;
use crate::simulation::clock::{Real, MICROSECOND, MILLISECOND, SECOND};
use crate::simulation::fault::Fault;
use crate::simulation::network::Conditions;
use crate::simulation::options::Options;
use quorum::members::Members;
use quorum::rules::Rules;
use std::time::Duration;

/// Probabilities are in thousandths.
#[derive(Clone, Debug)]
pub struct Plan {
    pub members: usize,
    /// How many nodes have an agent and no voter.
    pub guests: usize,
    pub rules: Rules,
    /// How long clients lock and faults occur.
    pub active: Real,
    pub conditions: Conditions,
    /// The kinds of faults, by weight. If empty, more invariants are checked.
    pub faults: Vec<(i64, Fault)>,
    /// The average time between faults.
    pub fault_gap: Real,
    /// How often a fault lasts about as long as the leases, and how long then, from and to.
    pub long_spans: (i64, Real, Real),
    /// The largest error of a clock's rate, in parts per million.
    pub drift: i64,
    /// How late a timer fires at most.
    pub lateness: Real,
    /// How often an agent does not flush after an event, but together with later events.
    pub late_flushes: i64,
    /// How long a write to the disk takes at most.
    pub store: Real,
    pub clients: usize,
    /// The average time from a client's unlock to its next lock.
    pub think: Real,
    /// How many requests are tries.
    pub tries: i64,
    /// How long a request waits, from and to.
    pub timeouts: (Real, Real),
    /// The longest time from lock to unlock.
    pub hold: Real,
    /// How many names are contended.
    pub hot: usize,
    /// How many other names there are.
    pub cold: usize,
    pub readers: i64,
    /// How often a client revokes a name before it locks.
    pub revocations: i64,
    /// How often an agent is informed that a link is down.
    pub informed: i64,
}

/// With the agents of 16 members: 100 agents.
const MANY: usize = 84;

/// Sets of names are the bits of a `u32`.
pub const MOST_NAMES: usize = 32;

impl Plan {
    pub fn draw(random: &mut Random, options: &Options) -> Plan {
        let fault_free = options.faults.is_none() && random.chance(150);
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
        let faults = match &options.faults {
            Some(faults) => faults.iter().map(|fault| (1, *fault)).collect(),
            None if fault_free => Vec::new(),
            None => draw_faults(random),
        };
        let rules = draw_rules(random, fault_free);
        let (members, guests) = match draw_guests(random) {
            MANY if options.members.is_none() => (16, MANY),
            MANY => (members, 0),
            guests => (members, guests),
        };
        let members = options.members.unwrap_or(members);
        let guests = options.guests.unwrap_or(guests);
        let nodes = members + guests;
        let is_large = nodes > 20;
        let most_clients = if is_large { 1 } else { 4 };
        let clients = random.between(1, most_clients) as usize;
        let active = random.spread(2 * SECOND, 24 * SECOND);
        // From rarely used to always busy, with a bound on the number of locks.
        let locks = random.spread(10, 250);
        let think = (active * (nodes * clients) as i64 / locks).max(5 * MILLISECOND);
        let most_store = if fault_free { SECOND / 100 } else { 3 * SECOND };
        let rules = options.rules.map_or(rules, |change| change(rules));
        let lease = rules.voter_lease.as_nanos() as Real;
        let drift = options.drift.unwrap_or(10_000);
        let plan = Plan {
            members,
            guests,
            rules,
            active,
            conditions: draw_conditions(random, fault_free),
            faults,
            fault_gap: random.spread(200 * MILLISECOND, 5 * SECOND),
            long_spans: (300, lease * 7 / 10, lease * 13 / 10),
            drift: if random.chance(800) { drift } else { 0 },
            lateness: if fault_free {
                5 * MILLISECOND
            } else {
                random.spread(MILLISECOND, 400 * MILLISECOND)
            },
            late_flushes: random.pick(&[0, 0, 200, 800]),
            store: random.spread(100 * MICROSECOND, most_store),
            clients,
            think,
            tries: random.pick(&[0, 50, 300]),
            timeouts: (5 * MILLISECOND, 20 * SECOND),
            hold: random.pick(&[10 * MILLISECOND, SECOND, 5 * SECOND, 30 * SECOND]),
            hot: random.between(1, 4) as usize,
            cold: random.between(0, 12) as usize,
            readers: random.pick(&[0, 100, 500, 900]),
            revocations: random.pick(&[0, 0, 20, 100]),
            informed: random.pick(&[0, 500, 1000]),
        };
        let plan = plan.with_old_disks();
        let may_be_long = !(is_large || fault_free) && options.faults.is_none();
        if options.long || may_be_long && random.chance(50) {
            plan.long(random, options)
        } else if options.contended || !is_large && random.chance(50) {
            plan.contended()
        } else if !is_large && random.chance(60) {
            plan.crowded(random)
        } else {
            plan
        }
    }

    /// Several leases, in which locks are held, requests wait, and links are cut for longer than a lease. Most other
    /// histories end before a second lease does.
    fn long(mut self, random: &mut Random, options: &Options) -> Plan {
        let lease = self.rules.voter_lease.as_nanos() as Real;
        if options.faults.is_none() && !self.is_fault_free() {
            self.faults.retain(|(_, fault)| *fault != Fault::OldDisk);
            self.faults.truncate(2);
            for fault in [Fault::VoterMoves, Fault::CutBothWays] {
                self.faults.push((random.between(2, 6), fault));
            }
        }
        Plan {
            active: random.between(4, 8) * lease,
            fault_gap: random.between(lease * 3 / 10, lease * 6 / 10),
            long_spans: (800, lease, 2 * lease),
            clients: 1,
            think: SECOND,
            timeouts: (SECOND, 3 * lease),
            hold: 8 * lease,
            hot: random.pick(&[1, 1, 2]),
            cold: 0,
            readers: random.pick(&[0, 0, 300]),
            ..self
        }
    }

    /// Several clients of each node lock one name again and again, so locks are passed on within nodes.
    fn crowded(self, random: &mut Random) -> Plan {
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

    /// With old disks, no fault hides the later life of a voter from all others: the protocol does not survive that.
    fn with_old_disks(mut self) -> Plan {
        use Fault::*;
        if self.faults.iter().any(|(_, fault)| *fault == OldDisk) {
            let harmless = [OldDisk, AgentCrash, GuestLeaves, Flap];
            self.faults.retain(|(_, fault)| harmless.contains(fault));
            let bad = &mut self.conditions;
            (bad.far, bad.lost, bad.held_back) = (bad.far.min(10), bad.lost.min(10), 0);
        }
        self
    }

    fn contended(self) -> Plan {
        Plan {
            active: 30 * SECOND,
            fault_gap: 3 * SECOND,
            clients: 1,
            think: SECOND / 2,
            hold: 30 * SECOND,
            hot: 1,
            cold: 0,
            readers: 0,
            ..self
        }
    }

    /// All nodes: the members, then the guests.
    pub fn nodes(&self) -> usize {
        self.members + self.guests
    }

    /// The list of members.
    pub fn list(&self) -> Members {
        Members::new(self.members).expect("a few members")
    }

    pub fn is_fault_free(&self) -> bool {
        self.faults.is_empty()
    }
}

/// In most histories all nodes are members.
fn draw_guests(random: &mut Random) -> usize {
    let few = random.between(4, 10) as usize;
    random.weighted(&[(657, 0), (120, 1), (100, 2), (80, 3), (40, few), (3, MANY)])
}

fn draw_faults(random: &mut Random) -> Vec<(i64, Fault)> {
    let kinds = random.between(1, 5);
    (0..kinds)
        .map(|_| (random.between(1, 5), random.pick(Fault::ALL)))
        .collect()
}

fn draw_conditions(random: &mut Random, fault_free: bool) -> Conditions {
    let near = random.pick(&[
        (100 * MICROSECOND, MILLISECOND),
        (100 * MICROSECOND, MILLISECOND),
        (2 * MILLISECOND, 40 * MILLISECOND),
        (20 * MILLISECOND, 90 * MILLISECOND),
    ]);
    let in_order = random.chance(600);
    if fault_free {
        return Conditions {
            near,
            in_order,
            ..Conditions::GOOD
        };
    }
    Conditions {
        near,
        far: random.pick(&[0, 0, 10, 50, 200]),
        far_most: random
            .pick(&[300 * MILLISECOND, 3 * SECOND, 15 * SECOND])
            .max(near.1),
        lost: random.pick(&[0, 0, 10, 100, 300]),
        duplicated: random.pick(&[0, 0, 50, 200]),
        held_back: random.pick(&[0, 0, 0, 5, 30]),
        in_order,
    }
}

/// Usually the time constants of production, otherwise short ones. The other bounds are often so small that they are
/// reached.
fn draw_rules(random: &mut Random, fault_free: bool) -> Rules {
    let rules = Rules {
        floors: random.pick(&[1, 2, 64, 4096]),
        fence_block: random.pick(&[1, 4, 1 << 20]),
        batch: if fault_free {
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
        attempt: Duration::from_millis(random.pick(&[400, 700, 1000])),
        at_risk: Duration::from_secs(holder / 2),
        ..rules
    }
}
