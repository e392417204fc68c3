//! Contention: all nodes request the same names all the time, over links with latency.

use crate::cluster::{name, Cluster};
use quorum::agent::{AgentOutput, Request};
use quorum::message::{Frame, Mode, Send, Token};
use quorum::time::Time;
use quorum::voter::VoterOutput;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// Concurrent loops of each node.
const LOOPS: usize = 5;

/// Latency between nodes, and within a node.
const FAR: Duration = Duration::from_micros(200);
const NEAR: Duration = Duration::from_micros(20);

/// Additional random latency: at most `JITTER`, and at most `HICCUP` for one frame in fifty.
const JITTER: Duration = Duration::from_micros(200);
const HICCUP: Duration = Duration::from_millis(3);

struct Contention {
    cluster: Cluster,
    names: u64,
    mode: fn(u64) -> Mode,
    /// The random state for names and latencies. `None`: constant latencies.
    random: Option<u64>,
    /// When the last frame of each link arrives.
    last: BTreeMap<(usize, usize), Time>,
    /// No frame passes between these two nodes.
    cut: Option<(usize, usize)>,
    /// Frames in flight, by arrival time and order of sending.
    wire: BinaryHeap<Reverse<(Time, u64, usize, Send)>>,
    sent: u64,
    requests: u64,
    asked: BTreeMap<Request, Time>,
    waits: Vec<Duration>,
    /// The number of locks that each node got.
    shares: Vec<usize>,
}

impl Contention {
    /// With a seed, latencies differ from frame to frame.
    fn new(nodes: usize, names: u64, mode: fn(u64) -> Mode, seed: Option<u64>) -> Contention {
        let mut load = Contention {
            cluster: Cluster::new(nodes),
            names,
            mode,
            random: seed,
            last: BTreeMap::new(),
            cut: None,
            wire: BinaryHeap::new(),
            sent: 0,
            requests: 0,
            asked: BTreeMap::new(),
            waits: Vec::new(),
            shares: vec![0; nodes],
        };
        for node in 0..nodes {
            (0..LOOPS).for_each(|_| load.lock(node));
        }
        load
    }

    /// Knuth's MMIX generator. 0 without a seed.
    fn draw(&mut self, below: u64) -> u64 {
        let Some(random) = &mut self.random else {
            return 0;
        };
        *random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % below
    }

    fn lock(&mut self, node: usize) {
        self.requests += 1;
        let (request, now) = (Request(self.requests), self.cluster.now);
        self.asked.insert(request, now);
        let mode = (self.mode)(self.requests);
        let what = name(&self.draw(self.names).to_string());
        self.cluster.agents[node].lock(now, request, what.into(), mode, Duration::from_secs(60));
    }

    fn send(&mut self, from: usize, send: Send) {
        let to = send.to.place();
        if self.cut == Some((from.min(to), from.max(to))) {
            return;
        }
        let most = if self.draw(50) == 1 { HICCUP } else { JITTER };
        let more = Duration::from_nanos(self.draw(most.as_nanos() as u64));
        let arrives = self.cluster.now + if to == from { NEAR } else { FAR } + more;
        let last = self.last.entry((from, to)).or_insert(arrives);
        *last = arrives.max(*last);
        self.sent += 1;
        self.wire.push(Reverse((*last, self.sent, from, send)));
    }

    /// Releases a granted lock and requests the next one.
    fn release_and_repeat(&mut self, node: usize, request: Request, token: Token) {
        let now = self.cluster.now;
        self.waits.push(now - self.asked.remove(&request).unwrap());
        self.shares[node] += 1;
        self.requests += 1;
        let unlock = Request(self.requests);
        assert!(self.cluster.agents[node].try_unlock(now, token, unlock));
        self.lock(node);
    }

    fn settle(&mut self) {
        for node in 0..self.shares.len() {
            for output in self.cluster.voters[node].outputs() {
                let VoterOutput::Send(send) = output else {
                    continue;
                };
                self.send(node, send);
            }
            let mut outputs = self.cluster.agents[node].outputs();
            while !outputs.is_empty() {
                for output in outputs {
                    match output {
                        AgentOutput::Send(send) => self.send(node, send),
                        AgentOutput::Granted { request, token, .. } => {
                            self.release_and_repeat(node, request, token)
                        }
                        AgentOutput::Accepted { .. } => {}
                        other => panic!("{other:?}"),
                    }
                }
                self.cluster.agents[node].flush(self.cluster.now);
                outputs = self.cluster.agents[node].outputs();
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.cluster.now + span;
        (0..self.shares.len()).for_each(|node| self.cluster.agents[node].flush(self.cluster.now));
        self.settle();
        while self.cluster.now < end {
            let arrives = self.wire.peek().map(|Reverse((at, ..))| *at);
            let agents = self
                .cluster
                .agents
                .iter()
                .filter_map(|agent| agent.deadline());
            let ticks = agents
                .chain(
                    self.cluster
                        .voters
                        .iter()
                        .filter_map(|voter| voter.deadline()),
                )
                .min();
            let now = [arrives, ticks]
                .into_iter()
                .flatten()
                .min()
                .unwrap()
                .max(self.cluster.now);
            self.cluster.now = now;
            if ticks.is_some_and(|at| at <= now) {
                for node in 0..self.shares.len() {
                    self.cluster.voters[node].tick(now);
                    self.cluster.agents[node].tick(now);
                    self.cluster.agents[node].flush(now);
                }
            }
            while self.wire.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
                let Some(Reverse((_, _, from, Send { to, frame }))) = self.wire.pop() else {
                    break;
                };
                let (to, from) = (to.place(), crate::cluster::at(from));
                match frame {
                    Frame::Batch(_) | Frame::Floor(_) => {
                        self.cluster.voters[to].receive(now, from, frame)
                    }
                    Frame::Ack(_) | Frame::Notice(_) => {
                        self.cluster.agents[to].receive(now, from, frame)
                    }
                }
                self.cluster.agents[to].flush(now);
            }
            self.settle();
        }
    }
}

/// Runs for 20 s and prints the figures. Returns the longest wait and the locks per second.
fn figures(title: &str, load: &mut Contention) -> (Duration, usize) {
    load.run(Duration::from_secs(20));
    let longest = *load.waits.iter().max().unwrap();
    let per_second = load.waits.len() / 20;
    println!(
        "{title}: {per_second} locks/s, longest wait {longest:?}, {:?}",
        load.shares
    );
    (longest, per_second)
}

/// Nodes with 5 loops each get one name in a fair order. The figures for 4 nodes are in `docs/quorum.md`.
#[test]
fn writers_share_one_name() {
    for nodes in [2, 3, 4, 5, 8, 16] {
        let mut load = Contention::new(nodes, 1, |_| Mode::Write, None);
        let title = format!("{nodes} nodes");
        let (longest, per_second) = figures(&title, &mut load);
        assert!(longest < Duration::from_millis(100), "{title}: {longest:?}");
        assert!(per_second > 3000, "{title}: {per_second} locks/s");
        let [least, most] =
            [load.shares.iter().min(), load.shares.iter().max()].map(Option::unwrap);
        assert!(least * 2 > *most, "{title}: {:?}", load.shares);
    }
}

/// Nine readers per writer, on one name and on ten, with random latencies. A forgotten request would wait up to
/// `retry_most`. A lost queue position would cost several rounds of all others.
#[test]
fn readers_and_writers_share_names() {
    let mode = |request| {
        if request % 10 == 0 {
            Mode::Write
        } else {
            Mode::Read
        }
    };
    for (names, seed) in [(1, None), (1, Some(1)), (10, Some(1)), (10, Some(2))] {
        let mut load = Contention::new(4, names, mode, seed);
        let (longest, _) = figures(&format!("{names} names, readers"), &mut load);
        assert!(longest < Duration::from_millis(100), "{longest:?}");
    }
}

/// One node cannot reach the voter that is the first voter of all others.
#[test]
fn one_node_cannot_reach_the_first_voter() {
    for nodes in [3, 4, 5, 6, 8] {
        for seed in [None, Some(1), Some(2)] {
            let mut load = Contention::new(nodes, 1, |_| Mode::Write, seed);
            load.cut = Some((0, nodes - 1));
            let title = format!("{nodes} nodes, one cannot reach the first voter");
            let (_, per_second) = figures(&title, &mut load);
            assert!(per_second > 400, "{title}: {per_second} locks/s");
        }
    }
}
