//! Names that everybody wants all the time, over links that take a while.

use crate::cluster::{name, Cluster};
use quorum::agent::{AgentOutput, Request};
use quorum::message::{Frame, Mode, Send, Token};
use quorum::time::Time;
use quorum::voter::VoterOutput;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// Of each node.
const LOOPS: usize = 5;

/// How long a frame takes: between nodes, and within one.
const FAR: Duration = Duration::from_micros(200);
const NEAR: Duration = Duration::from_micros(20);

/// By how much it takes longer: mostly by less than this, and one in fifty by less than that.
const JITTER: Duration = Duration::from_micros(200);
const HICCUP: Duration = Duration::from_millis(3);

struct Fight {
    cluster: Cluster,
    names: u64,
    mode: fn(u64) -> Mode,
    /// For names and links; without, all links are alike.
    random: Option<u64>,
    /// When the last frame from one to another arrives.
    last: BTreeMap<(usize, usize), Time>,
    /// Between these nothing arrives.
    cut: Option<(usize, usize)>,
    /// Frames under way, by when they arrive and in which order they were sent.
    wire: BinaryHeap<Reverse<(Time, u64, usize, Send)>>,
    sent: u64,
    requests: u64,
    asked: BTreeMap<Request, Time>,
    waits: Vec<Duration>,
    /// How many locks each node got.
    shares: Vec<usize>,
}

impl Fight {
    /// With a seed links are of different lengths, from frame to frame.
    fn new(nodes: usize, names: u64, mode: fn(u64) -> Mode, seed: Option<u64>) -> Fight {
        let mut fight = Fight {
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
            (0..LOOPS).for_each(|_| fight.lock(node));
        }
        fight
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

    /// Whoever has the lock gives it back, and wants it again.
    fn had(&mut self, node: usize, request: Request, token: Token) {
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
                            self.had(node, request, token)
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

/// 4 nodes with 5 loops each, as in the design's figures, and others: they come in turn, node by node.
#[test]
fn writers_share_one_name() {
    for nodes in [2, 3, 4, 5, 8, 16] {
        let mut fight = Fight::new(nodes, 1, |_| Mode::Write, None);
        fight.run(Duration::from_secs(20));
        let longest = fight.waits.iter().max().unwrap();
        let per_second = fight.waits.len() / 20;
        println!(
            "{nodes} nodes: {per_second} locks/s, longest wait {longest:?}, {:?}",
            fight.shares
        );
        assert!(
            *longest < Duration::from_millis(100),
            "{longest:?} at {nodes} nodes"
        );
        assert!(
            per_second > 3000,
            "{per_second} locks a second at {nodes} nodes"
        );
        let [least, most] = [
            fight.shares.iter().min().unwrap(),
            fight.shares.iter().max().unwrap(),
        ];
        assert!(least * 2 > *most, "{:?}", fight.shares);
    }
}

/// Nine readers to one writer, of one name and of ten, while frames come sooner or later: nobody is forgotten, which
/// would cost up to `retry_most`; nor does anybody lose its place in a line, which would cost some turns of all others.
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
        let mut fight = Fight::new(4, names, mode, seed);
        fight.run(Duration::from_secs(20));
        let longest = fight.waits.iter().max().unwrap();
        println!(
            "{names} names, readers: {} locks/s, longest wait {longest:?}, {:?}",
            fight.waits.len() / 20,
            fight.shares
        );
        assert!(*longest < Duration::from_millis(100), "{longest:?}");
    }
}

/// One node cannot reach the voter that is the first for all others.
#[test]
fn one_node_does_not_see_the_first() {
    for nodes in [3, 4, 5, 6, 8] {
        for seed in [None, Some(1), Some(2)] {
            let mut fight = Fight::new(nodes, 1, |_| Mode::Write, seed);
            fight.cut = Some((0, nodes - 1));
            fight.run(Duration::from_secs(20));
            let longest = fight.waits.iter().max().unwrap();
            let per_second = fight.waits.len() / 20;
            println!(
                "{nodes} nodes, one does not see the first: {per_second} locks/s, longest wait {longest:?}, {:?}",
                fight.shares
            );
            assert!(
                per_second > 400,
                "{per_second} locks a second at {nodes} nodes"
            );
        }
    }
}
