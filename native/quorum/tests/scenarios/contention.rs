//! One name that everybody wants all the time, over links that take a while.

use crate::cluster::{name, Cluster};
use quorum::agent::{AgentOutput, Request};
use quorum::message::{Frame, Mode, Send, Token};
use quorum::time::Time;
use quorum::voter::VoterOutput;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// How long a frame takes: between nodes, and within one.
const FAR: Duration = Duration::from_micros(200);
const NEAR: Duration = Duration::from_micros(20);

struct Fight {
    cluster: Cluster,
    /// Frames under way, by when they arrive and in which order they were sent.
    wire: BinaryHeap<Reverse<(Time, u64, usize, Send)>>,
    sent: u64,
    requests: u64,
    mode: fn(u64) -> Mode,
    asked: BTreeMap<Request, Time>,
    waits: Vec<Duration>,
    /// How many locks each node got.
    shares: Vec<usize>,
}

impl Fight {
    fn new(nodes: usize, loops: usize, mode: fn(u64) -> Mode) -> Fight {
        let cluster = Cluster::new(nodes);
        let mut fight = Fight {
            cluster,
            wire: BinaryHeap::new(),
            sent: 0,
            requests: 0,
            mode,
            asked: BTreeMap::new(),
            waits: Vec::new(),
            shares: vec![0; nodes],
        };
        for node in 0..nodes {
            (0..loops).for_each(|_| fight.lock(node));
        }
        fight
    }

    fn lock(&mut self, node: usize) {
        self.requests += 1;
        let (request, now) = (Request(self.requests), self.cluster.now);
        self.asked.insert(request, now);
        let mode = (self.mode)(self.requests);
        self.cluster.agents[node].lock(
            now,
            request,
            name("x").into(),
            mode,
            Duration::from_secs(60),
        );
    }

    fn send(&mut self, from: usize, send: Send) {
        let takes = if send.to.place() == from { NEAR } else { FAR };
        self.sent += 1;
        self.wire
            .push(Reverse((self.cluster.now + takes, self.sent, from, send)));
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

/// 4 nodes with 5 loops each, as in the design's figures: nobody waits for a second, and no node gets the most.
#[test]
fn writers_share_one_name() {
    for nodes in [2, 3, 4, 5, 8, 16] {
        let mut fight = Fight::new(nodes, 5, |_| Mode::Write);
        fight.run(Duration::from_secs(20));
        let longest = fight.waits.iter().max().unwrap();
        let per_second = fight.waits.len() / 20;
        println!(
            "{nodes} nodes: {per_second} locks/s, longest wait {longest:?}, {:?}",
            fight.shares
        );
        assert!(
            *longest < Duration::from_secs(1),
            "{longest:?} at {nodes} nodes"
        );
        assert!(
            per_second > 500,
            "{per_second} locks a second at {nodes} nodes"
        );
        let [least, most] = [
            fight.shares.iter().min().unwrap(),
            fight.shares.iter().max().unwrap(),
        ];
        assert!(least * 2 > *most, "{:?}", fight.shares);
    }
}

/// Nine readers to one writer: neither waits for a second.
#[test]
fn readers_and_writers_share_one_name() {
    let mut fight = Fight::new(4, 5, |request| {
        if request % 10 < 2 {
            Mode::Write
        } else {
            Mode::Read
        }
    });
    fight.run(Duration::from_secs(20));
    let longest = fight.waits.iter().max().unwrap();
    println!(
        "{} locks/s, longest wait {longest:?}, {:?}",
        fight.waits.len() / 20,
        fight.shares
    );
    assert!(*longest < Duration::from_secs(1), "{longest:?}");
}
