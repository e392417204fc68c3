//! A load: five loops on each node lock and unlock the same names all the time, over links with latency.

use quorum::agent::{Agent, AgentOutput, AgentSetup, Request};
use quorum::members::{Member, Members};
use quorum::message::{Batch, Fence, Frame, Lifetime, Mode, Name, Op, Send, Token};
use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::voter::{Fences, Voter, VoterOutput, VoterSetup};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

/// Concurrent loops of each node.
pub const LOOPS: usize = 5;

/// Latency between nodes, unless the test sets another one, and within a node.
const FAR: Duration = Duration::from_micros(200);
const NEAR: Duration = Duration::from_micros(20);

/// Additional random latency: at most `JITTER`, and at most `HICCUP` for one frame in fifty.
const JITTER: Duration = Duration::from_micros(200);
pub const HICCUP: Duration = Duration::from_millis(3);

/// A cluster under load.
pub struct Load {
    now: Time,
    agents: Vec<Agent>,
    voters: Vec<Voter>,
    bugs: ProtocolBugs,
    lifetimes: u32,
    names: u64,
    mode: fn(u64) -> Mode,
    /// The random state for names and latencies. `None`: constant latencies.
    random: Option<u64>,
    /// When the last frame of each link arrives.
    last: BTreeMap<(usize, usize), Time>,
    /// No frame passes between these two nodes.
    pub cut: Option<(usize, usize)>,
    /// These two nodes are disconnected for 100 ms of each 500 ms.
    pub flapping: Option<(usize, usize)>,
    /// Latency between nodes.
    pub far: Duration,
    /// The additional latency of one frame in fifty.
    pub hiccup: Duration,
    /// Frames to and from this node take longer by this time.
    pub slow: Option<(usize, Duration)>,
    /// The disk of this node stores nothing.
    pub full: Option<usize>,
    /// Nodes that do not run.
    pub dead: BTreeSet<usize>,
    /// Nodes that lock nothing.
    pub idle: BTreeSet<usize>,
    /// Frames in flight, by arrival time and order of sending.
    wire: BinaryHeap<Reverse<(Time, u64, usize, Send)>>,
    sent: u64,
    repairs: usize,
    requests: u64,
    asked: BTreeMap<Request, (usize, Time)>,
    waits: Vec<Duration>,
    /// The number of locks that each node got.
    shares: Vec<usize>,
    /// How many locks other nodes have got since each node got its last one.
    behind: Vec<usize>,
    most_behind: usize,
}

/// What a load achieved in a span of time.
#[derive(Debug)]
pub struct Figures {
    pub per_second: usize,
    /// The longest wait, ended or not.
    pub longest: Duration,
    /// The number of locks of each node that locks.
    pub shares: Vec<usize>,
    /// The most locks that other nodes got while a node waited.
    pub most_behind: usize,
    /// How many batches had a `Sync`: the votes at the voter differed from those that its agent knew.
    pub repairs: usize,
}

impl Figures {
    pub fn least(&self) -> usize {
        self.shares.iter().copied().min().unwrap_or_default()
    }

    pub fn most(&self) -> usize {
        self.shares.iter().copied().max().unwrap_or_default()
    }
}

impl Load {
    /// All nodes write-lock one name, over links with constant latency.
    pub fn new(nodes: usize) -> Load {
        Load {
            now: Time(1_000_000_000),
            agents: Vec::new(),
            voters: Vec::new(),
            bugs: ProtocolBugs::NONE,
            lifetimes: 0,
            names: 1,
            mode: |_| Mode::Write,
            random: None,
            last: BTreeMap::new(),
            cut: None,
            flapping: None,
            far: FAR,
            hiccup: HICCUP,
            slow: None,
            full: None,
            dead: BTreeSet::new(),
            idle: BTreeSet::new(),
            wire: BinaryHeap::new(),
            sent: 0,
            repairs: 0,
            requests: 0,
            asked: BTreeMap::new(),
            waits: Vec::new(),
            shares: vec![0; nodes],
            behind: vec![0; nodes],
            most_behind: 0,
        }
    }

    /// How many names there are, and in which mode each request locks one.
    pub fn names(mut self, names: u64, mode: fn(u64) -> Mode) -> Load {
        (self.names, self.mode) = (names, mode);
        self
    }

    /// With a seed, latencies differ from frame to frame.
    pub fn jitter(mut self, seed: Option<u64>) -> Load {
        self.random = seed;
        self
    }

    pub fn bug(mut self, bug: Option<ProtocolBug>) -> Load {
        self.bugs = bug.map_or(self.bugs, |bug| self.bugs.with(bug));
        self
    }

    /// Starts all agents and voters, and runs for three seconds.
    pub fn start(mut self) -> Load {
        for node in 0..self.shares.len() {
            let agent = self.new_agent();
            self.agents.push(agent);
            let voter = self.new_voter(node);
            self.voters.push(voter);
        }
        self.play(Duration::from_secs(3));
        self
    }

    fn new_agent(&mut self) -> Agent {
        self.lifetimes += 1;
        let setup = AgentSetup {
            members: self.members(),
            rules: Rules::default(),
            bugs: self.bugs,
            lifetime: Lifetime(self.lifetimes.into()),
            seed: self.lifetimes.into(),
        };
        let mut agent = Agent::new(setup, self.now);
        let members = self.members().iter();
        members.for_each(|member| agent.up(self.now, member));
        agent
    }

    fn new_voter(&mut self, node: usize) -> Voter {
        self.lifetimes += 1;
        let rules = Rules::default();
        let setup = VoterSetup {
            members: self.members(),
            me: Member::at(node).expect("a few nodes"),
            rules,
            bugs: self.bugs,
            lifetime: Lifetime::new(self.lifetimes, 0),
            quarantine: rules.quarantine,
            knows_clients: true,
            conflicted: false,
            fences: Fences {
                floor: Some(Fence(0)),
                origin: Fence(1 << 40),
                durable: true,
                paced: true,
            },
        };
        Voter::new(setup, &[], self.now)
    }

    fn members(&self) -> Members {
        Members::new(self.shares.len()).expect("a few nodes")
    }

    /// The voter of a node crashes and starts again.
    pub fn restart_voter(&mut self, node: usize) {
        self.voters[node] = self.new_voter(node);
    }

    /// A node stops: its agent releases what it has, then neither its agent nor its voter answers any more. No other
    /// agent is informed.
    pub fn stop(&mut self, node: usize) {
        self.idle.insert(node);
        let now = self.now;
        let asked = self.asked.iter().filter(|(_, (of, _))| *of == node);
        for request in asked.map(|(request, _)| *request).collect::<Vec<_>>() {
            self.asked.remove(&request);
            self.agents[node].cancel(now, request);
        }
        self.run("farewell", Duration::from_millis(200));
        self.dead.insert(node);
    }

    fn running(&self) -> impl Iterator<Item = usize> + use<> {
        let dead = self.dead.clone();
        (0..self.shares.len()).filter(move |node| !dead.contains(node))
    }

    fn locking(&self) -> impl Iterator<Item = usize> + use<> {
        let idle = self.idle.clone();
        self.running().filter(move |node| !idle.contains(node))
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
        let (request, now) = (Request(self.requests), self.now);
        self.asked.insert(request, (node, now));
        let mode = (self.mode)(self.requests);
        let what = self.draw(self.names).to_string();
        let what = Name::new(what.as_bytes()).expect("a short name");
        self.agents[node].lock(now, request, what.into(), mode, Duration::from_secs(600));
    }

    fn send(&mut self, from: usize, send: Send) {
        let to = place(&send);
        if let Frame::Batch(Batch { ops, .. }) = &send.frame {
            self.repairs += usize::from(ops.iter().any(|op| matches!(op, Op::Sync { .. })));
        }
        if self.cut == Some((from.min(to), from.max(to))) || self.dead.contains(&to) {
            return;
        }
        let most = if self.draw(50) == 1 {
            self.hiccup
        } else {
            JITTER
        };
        let more = Duration::from_nanos(self.draw(most.as_nanos() as u64));
        let slow = self
            .slow
            .filter(|(slow, _)| to != from && [to, from].contains(slow));
        let slow = slow.map_or(Duration::ZERO, |(_, by)| by);
        let arrives = self.now + slow + if to == from { NEAR } else { self.far } + more;
        let last = self.last.entry((from, to)).or_insert(arrives);
        *last = arrives.max(*last);
        self.sent += 1;
        self.wire.push(Reverse((*last, self.sent, from, send)));
    }

    /// Releases a granted lock and requests the next one.
    fn release_and_repeat(&mut self, node: usize, request: Request, token: Token) {
        let now = self.now;
        let (_, since) = self.asked.remove(&request).expect("a request of this load");
        self.waits.push(now - since);
        self.shares[node] += 1;
        self.behind.iter_mut().for_each(|behind| *behind += 1);
        self.behind[node] = 0;
        for node in self.locking() {
            self.most_behind = self.most_behind.max(self.behind[node]);
        }
        self.requests += 1;
        let unlock = Request(self.requests);
        assert!(self.agents[node].try_unlock(now, token, unlock));
        self.lock(node);
    }

    fn settle(&mut self) {
        for node in self.running() {
            for output in self.voters[node].outputs() {
                match output {
                    VoterOutput::Send(send) => self.send(node, send),
                    VoterOutput::Store(_) if self.full == Some(node) => {}
                    VoterOutput::Store(mark) => {
                        self.voters[node].stored(self.now, mark);
                    }
                    superseded => panic!("{superseded:?}"),
                }
            }
            let mut outputs = self.agents[node].outputs();
            while !outputs.is_empty() {
                for output in outputs {
                    match output {
                        AgentOutput::Send(send) => self.send(node, send),
                        AgentOutput::Granted { request, token, .. } => {
                            self.release_and_repeat(node, request, token)
                        }
                        AgentOutput::Accepted { .. } | AgentOutput::Counted(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
                self.agents[node].flush(self.now);
                outputs = self.agents[node].outputs();
            }
        }
    }

    /// Runs for `span`, counted from now, and prints the figures.
    pub fn run(&mut self, title: &str, span: Duration) -> Figures {
        if self.asked.is_empty() {
            for node in self.locking() {
                (0..LOOPS).for_each(|_| self.lock(node));
            }
        }
        self.waits.clear();
        self.repairs = 0;
        self.shares.fill(0);
        self.behind.fill(0);
        self.most_behind = 0;
        match self.flapping {
            Some(link) => self.flap(link, span),
            None => self.play(span),
        }
        let now = self.now;
        let unended = self.asked.values().map(|(_, since)| now - *since);
        let longest = self.waits.iter().copied().chain(unended).max();
        let figures = Figures {
            per_second: self.waits.len() * 1000 / span.as_millis() as usize,
            longest: longest.unwrap_or_default(),
            shares: self.locking().map(|node| self.shares[node]).collect(),
            most_behind: self.most_behind,
            repairs: self.repairs,
        };
        println!(
            "{title}: {} locks/s, longest wait {:?}, {:?}, {} behind, {} repairs",
            figures.per_second,
            figures.longest,
            figures.shares,
            figures.most_behind,
            figures.repairs
        );
        figures
    }

    fn flap(&mut self, (one, other): (usize, usize), span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.cut = Some((one, other));
            self.wire.retain(|Reverse((_, _, from, send))| {
                let ends = (*from, place(send));
                ends != (one, other) && ends != (other, one)
            });
            let ends = [(one, other), (other, one)];
            for (node, peer) in ends {
                self.agents[node].down(self.now, member(peer));
            }
            self.play(Duration::from_millis(100));
            self.cut = None;
            for (node, peer) in ends {
                self.agents[node].up(self.now, member(peer));
            }
            self.play(Duration::from_millis(400));
        }
    }

    fn play(&mut self, span: Duration) {
        let end = self.now + span;
        (0..self.shares.len()).for_each(|node| self.agents[node].flush(self.now));
        self.settle();
        while self.now < end {
            let arrives = self.wire.peek().map(|Reverse((at, ..))| *at);
            let agents = self.running().map(|node| &self.agents[node]);
            let agents = agents.filter_map(Agent::deadline).min();
            let voters = self.running().map(|node| &self.voters[node]);
            let voters = voters.filter_map(Voter::deadline).min();
            let ticks = agents.into_iter().chain(voters).min();
            let next = arrives.into_iter().chain(ticks).min().unwrap_or(end);
            let now = next.clamp(self.now, end);
            self.now = now;
            if ticks.is_some_and(|at| at <= now) {
                for node in self.running() {
                    self.voters[node].tick(now);
                    self.agents[node].tick(now);
                    self.agents[node].flush(now);
                }
            }
            while self.wire.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
                let Some(Reverse((_, _, from, send))) = self.wire.pop() else {
                    break;
                };
                let to = place(&send);
                if !self.dead.contains(&to) {
                    self.arrive(from, to, send.frame);
                }
            }
            self.settle();
        }
    }

    fn arrive(&mut self, from: usize, to: usize, frame: Frame) {
        let (from, now) = (member(from), self.now);
        match frame {
            Frame::Batch(_) | Frame::Floor(_) => self.voters[to].receive(now, from.into(), frame),
            Frame::Ack(_) | Frame::Notice(_) => self.agents[to].receive(now, from, frame),
        }
        self.agents[to].flush(now);
    }
}

fn member(node: usize) -> Member {
    Member::at(node).expect("a member")
}

/// The receiver. No node is a client.
fn place(send: &Send) -> usize {
    send.to.member().expect("a member").place()
}
