//! Measures the cost of the machines in memory: without network or BEAM, with encoded frames.
//!
//! `cargo bench -p quorum` prints the figures of `docs/performance.md`. Rounds of compared cases alternate, and medians
//! are shown. With the argument `quick` it runs for a second, to check that it works.

use quorum::agent::{Adoption, Agent, AgentOutput, AgentSetup, Request};
use quorum::frame;
use quorum::members::{Member, Members};
use quorum::message::{Fence, Frame, Lifetime, Mode, Name, Names, Token};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::voter::{Voter, VoterOutput, VoterSetup};
use stats_alloc::{Region, StatsAlloc, INSTRUMENTED_SYSTEM};
use std::alloc::System;
use std::hint::black_box;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// One agent, and all voters.
struct Cluster {
    now: Time,
    agent: Agent,
    voters: Vec<Voter>,
    granted: Vec<Token>,
    bytes: Vec<u8>,
    frames: u64,
    requests: u64,
    /// The longest call of a machine, if measured.
    longest: Option<Duration>,
}

impl Cluster {
    fn new(count: usize) -> Cluster {
        let rules = Rules::default();
        let now = Time(0);
        let bugs = ProtocolBugs::NONE;
        let setup = AgentSetup {
            members: Members::new(count).unwrap(),
            rules,
            bugs,
            lifetime: Lifetime(1),
        };
        let agent = Agent::new(setup, now);
        let voters = (0..count)
            .map(|me| voter(count, me, Lifetime::new(1, me as u32), now))
            .collect();
        let (granted, bytes) = (Vec::new(), Vec::new());
        let mut cluster = Cluster {
            now,
            agent,
            voters,
            granted,
            bytes,
            frames: 0,
            requests: 0,
            longest: None,
        };
        for member in setup.members.iter() {
            cluster.agent.up(now, member);
        }
        // The other agents never settle, so the quarantine lasts its full time.
        for _ in 0..20 {
            cluster.now = cluster.now + Duration::from_secs(1);
            let now = cluster.now;
            cluster.agent.tick(now);
            cluster.voters.iter_mut().for_each(|voter| voter.tick(now));
            cluster.run();
        }
        cluster
    }

    fn name(&self, i: u64) -> Names {
        Name::new(format!("an/ordinary/name/{i:08}").as_bytes())
            .unwrap()
            .into()
    }

    fn lock(&mut self, names: Names) {
        self.requests += 1;
        self.agent.lock(
            self.now,
            Request(self.requests),
            names,
            Mode::Write,
            Duration::from_secs(60),
        );
    }

    fn unlock(&mut self, token: Token) {
        self.requests += 1;
        assert!(self
            .agent
            .unlock_async(self.now, token, Request(self.requests)));
    }

    /// Encodes and decodes a frame.
    fn wire(&mut self, frame: &Frame) -> Frame {
        self.frames += 1;
        self.bytes.clear();
        frame::encode_into(frame, &mut self.bytes);
        frame::decode(&self.bytes).unwrap()
    }

    /// Runs until no machine sends a frame.
    fn run(&mut self) {
        loop {
            let begin = Instant::now();
            self.agent.flush(self.now);
            self.longest = self.longest.map(|longest| longest.max(begin.elapsed()));
            let mut answered = false;
            for output in self.agent.outputs() {
                match output {
                    AgentOutput::Send(send) => {
                        let frame = self.wire(&send.frame);
                        let begin = Instant::now();
                        let voter = send.to.member().unwrap().place();
                        self.voters[voter].receive(self.now, member(0).into(), frame);
                        self.longest = self.longest.map(|longest| longest.max(begin.elapsed()));
                    }
                    AgentOutput::Granted { token, .. } => self.granted.push(token),
                    AgentOutput::Accepted { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            for place in 0..self.voters.len() {
                for output in self.voters[place].outputs() {
                    let VoterOutput::Send(send) = output else {
                        continue;
                    };
                    if send.to == member(0).into() {
                        let frame = self.wire(&send.frame);
                        let begin = Instant::now();
                        self.agent.receive(self.now, member(place), frame);
                        self.longest = self.longest.map(|longest| longest.max(begin.elapsed()));
                        answered = true;
                    }
                }
            }
            if !answered {
                return;
            }
        }
    }

    /// Locks and unlocks `count` names, `together` at a time. Returns nanoseconds and frames per pair.
    fn pairs(&mut self, count: u64, together: u64) -> (f64, f64) {
        let names: Vec<Names> = (0..count).map(|i| self.name(1_000_000 + i)).collect();
        let (frames, begin) = (self.frames, Instant::now());
        for group in names.chunks(together as usize) {
            let held = self.granted.len();
            group.iter().for_each(|names| self.lock(names.clone()));
            self.run();
            let granted = self.granted.split_off(held);
            assert_eq!(granted.len(), group.len());
            granted.into_iter().for_each(|token| self.unlock(token));
            self.run();
        }
        let nanos = begin.elapsed().as_nanos() as f64;
        (
            nanos / count as f64,
            (self.frames - frames) as f64 / count as f64,
        )
    }

    /// Locks `count` names and keeps them.
    fn hold(&mut self, count: u64) {
        for i in 0..count {
            let names = self.name(i);
            self.lock(names);
            if i % 1000 == 999 {
                self.run();
            }
        }
        self.run();
        assert_eq!(self.granted.len() as u64, count);
    }

    /// Restarts a voter until it knows all locks. Returns the nanoseconds of all calls, and of the longest.
    fn restart(&mut self, life: u32) -> (f64, f64) {
        self.voters[1] = voter(self.voters.len(), 1, Lifetime::new(life, 0), self.now);
        self.longest = Some(Duration::ZERO);
        let begin = Instant::now();
        self.run();
        let all = begin.elapsed().as_nanos() as f64;
        assert!(self
            .agent
            .locks()
            .all(|lock| lock.votes.contains(member(1))));
        (
            all,
            self.longest.take().unwrap_or_default().as_nanos() as f64,
        )
    }

    /// Adopts a list of new voters, and runs until no lock relies on the list before. Returns the same as `restart`.
    fn change(&mut self, life: u32) -> (f64, f64) {
        let count = self.voters.len();
        let new = |me| voter(count, me, Lifetime::new(life, 0), self.now);
        self.voters = (0..count).map(new).collect();
        let members = Members::new(count).unwrap();
        let adoption = Adoption {
            members,
            connected: members.iter().collect(),
            rules: Rules::default(),
            is_next: true,
        };
        let begin = Instant::now();
        self.agent.adopt(self.now, adoption);
        self.longest = Some(begin.elapsed());
        for member in members.iter() {
            let begin = Instant::now();
            self.agent.sealed(self.now, member);
            self.longest = self.longest.map(|longest| longest.max(begin.elapsed()));
        }
        self.run();
        assert!(self.agent.is_kept());
        (
            begin.elapsed().as_nanos() as f64,
            self.longest.take().unwrap_or_default().as_nanos() as f64,
        )
    }

    /// Sends one heartbeat to all voters and back. Returns nanoseconds.
    fn heartbeat(&mut self) -> f64 {
        self.now = self.now + Rules::default().heartbeat;
        let (frames, begin) = (self.frames, Instant::now());
        self.agent.tick(self.now);
        self.voters
            .iter_mut()
            .for_each(|voter| voter.tick(self.now));
        self.run();
        // And a notice, when the quarantine of the restarted voter ends.
        let expected = 2 * self.voters.len() as u64;
        assert!([expected, expected + 1].contains(&(self.frames - frames)));
        begin.elapsed().as_nanos() as f64
    }
}

fn voter(count: usize, me: usize, lifetime: Lifetime, now: Time) -> Voter {
    let members = Members::new(count).unwrap();
    let (rules, bugs) = (Rules::default(), ProtocolBugs::NONE);
    Voter::new(
        VoterSetup {
            members,
            me: member(me),
            rules,
            bugs,
            lifetime,
            quarantine: rules.voter_lease,
            mark: Fence(0),
            durable: false,
            guests: false,
            begins: false,
        },
        now,
    )
}

fn member(place: usize) -> Member {
    Member::at(place).unwrap()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The bytes per held lock, at one agent and `voters` voters together.
fn memory(count: u64, voters: usize) -> f64 {
    let mut cluster = Cluster::new(voters);
    // First grows all vectors that double to their final capacity.
    cluster.hold(1000);
    let held: Vec<Token> = cluster.granted.drain(..).collect();
    held.into_iter().for_each(|token| cluster.unlock(token));
    cluster.run();
    let region = Region::new(ALLOCATOR);
    cluster.hold(count);
    cluster.granted = Vec::new();
    let change = region.change();
    let bytes = change.bytes_allocated as f64 - change.bytes_deallocated as f64
        + change.bytes_reallocated as f64;
    black_box(&cluster);
    bytes / count as f64
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "quick");
    let (rounds, pairs, held) = if quick {
        (3, 100, 1000)
    } else {
        (15, 2000, 100_000)
    };

    println!("lock and unlock_async, one agent and n voters on one core, frames as bytes; medians of {rounds} rounds");
    println!("| n | one at a time: ns/pair | pairs/s | frames/pair | 100 together: ns/pair | pairs/s | frames/pair |");
    println!("|---|---|---|---|---|---|---|");
    for count in (3..=15).step_by(2) {
        let mut cluster = Cluster::new(count);
        let mut figures = [Vec::new(), Vec::new()];
        let mut frames = [0.0, 0.0];
        for _ in 0..rounds {
            for (way, together) in [1, 100].into_iter().enumerate() {
                let (nanos, sent) = cluster.pairs(pairs, together);
                figures[way].push(nanos);
                frames[way] = sent;
            }
        }
        let [singly, together] = figures.map(median);
        let second = |nanos: f64| 1e9 / nanos;
        println!(
            "| {count} | {singly:.0} | {:.0} | {:.1} | {together:.0} | {:.0} | {:.2} |",
            second(singly),
            frames[0],
            second(together),
            frames[1]
        );
    }

    println!();
    println!("with {held} locks held, and with none; n = 3; medians of {rounds} rounds");
    let mut full = Cluster::new(3);
    full.hold(held);
    let mut empty = Cluster::new(3);
    let mut figures: [Vec<f64>; 11] = Default::default();
    let lease = full.agent.lease();
    let lock = full
        .agent
        .locks()
        .nth(held as usize / 2)
        .map(|lock| lock.token)
        .unwrap();
    let standing = full.agent.standing(lock).unwrap();
    for round in 0..rounds {
        figures[0].push(full.pairs(pairs, 1).0);
        figures[1].push(empty.pairs(pairs, 1).0);
        figures[2].push(full.pairs(pairs, 100).0);
        figures[3].push(empty.pairs(pairs, 100).0);
        figures[4].push(full.heartbeat());
        figures[5].push(empty.heartbeat());
        let begin = Instant::now();
        for _ in 0..pairs * 10 {
            assert!(black_box(&lease).holds(black_box(&standing), || full.now));
        }
        figures[6].push(begin.elapsed().as_nanos() as f64 / (pairs * 10) as f64);
        let (all, longest) = full.restart(1000 + round as u32);
        figures[7].push(all);
        figures[8].push(longest);
    }
    // At the end, because the new voters are in quarantine and grant nothing new.
    for round in 0..rounds {
        let (all, longest) = full.change(100_000 + round as u32);
        figures[9].push(all);
        figures[10].push(longest);
    }
    let [a, b, c, d, e, f, g, h, i, j, k] = figures.map(median);
    println!("| | {held} held | none held |");
    println!("|---|---|---|");
    println!("| a pair, one at a time: ns | {a:.0} | {b:.0} |");
    println!("| a pair, 100 together: ns | {c:.0} | {d:.0} |");
    println!("| a heartbeat to all voters and back: ns | {e:.0} | {f:.0} |");
    println!("| `held`: ns | {g:.1} | |");
    println!(
        "| restart of a voter until it knows all locks: ms | {:.1} | |",
        h / 1e6
    );
    println!(
        "| longest call of a machine during that: ms | {:.2} | |",
        i / 1e6
    );
    println!(
        "| change of all members until no lock needs the old ones: ms | {:.1} | |",
        j / 1e6
    );
    println!(
        "| longest call of a machine during that: ms | {:.2} | |",
        k / 1e6
    );

    println!();
    let [one, three] = [memory(held, 1), memory(held, 3)];
    let voter = (three - one) / 2.0;
    let agent = one - voter;
    println!("memory of a held lock, of a name of 25 bytes: {agent:.0} bytes at its agent, {voter:.0} at each voter");
}
