//! A load: loops on each node lock and unlock names all the time, over links with latency.
//!
//! The members are the first nodes. All other nodes are clients: they have an agent and no voter.

use crate::choice::Choice;
use crate::figures::Figures;
use quorum::agent::{Agent, AgentOutput, AgentSetup, Request};
use quorum::members::{Member, Members, Node};
use quorum::message::{Batch, Fence, Frame, Lifetime, Mode, Op, Send, Token};
use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::voter::{Voter, VoterOutput, VoterSetup};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

/// Concurrent loops of each node, unless the test sets another number.
const LOOPS: usize = 5;

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
    members: Members,
    choice: Choice,
    mode: fn(u64) -> Mode,
    /// The random state for names and latencies. `None`: constant latencies.
    random: Option<u64>,
    /// When the last frame of each link arrives.
    last: BTreeMap<(usize, usize), Time>,
    /// No frame passes between these two nodes.
    pub cut: Option<(usize, usize)>,
    /// These two nodes are disconnected for 100 ms of each 500 ms.
    pub flapping: Option<(usize, usize)>,
    /// Concurrent loops of each node.
    pub loops: usize,
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
    /// The nodes whose machines were called since their outputs were last taken.
    called: BTreeSet<usize>,
    /// When the next timer of each node's machines is due.
    due: Vec<Option<Time>>,
    /// Frames in flight, by arrival time and order of sending.
    wire: BinaryHeap<Reverse<(Time, u64, usize, Send)>>,
    sent: u64,
    frames: usize,
    repairs: usize,
    longest_queue: usize,
    requests: u64,
    asked: BTreeMap<Request, Asked>,
    waits: Vec<Duration>,
    /// The number of locks that each node got.
    shares: Vec<usize>,
    /// How many locks other nodes have got since each node got its last one.
    behind: Vec<usize>,
    most_behind: usize,
}

/// A request that was not answered.
#[derive(Clone, Copy)]
struct Asked {
    node: usize,
    /// The number of the loop on its node.
    of: usize,
    since: Time,
}

impl Load {
    /// This many members write-lock one name, over links with constant latency.
    pub fn new(members: usize) -> Load {
        Load {
            now: Time(1_000_000_000),
            agents: Vec::new(),
            voters: Vec::new(),
            bugs: ProtocolBugs::NONE,
            lifetimes: 0,
            members: Members::new(members).expect("a few members"),
            choice: Choice::Shared(1),
            mode: |_| Mode::Write,
            random: None,
            last: BTreeMap::new(),
            cut: None,
            flapping: None,
            loops: LOOPS,
            far: FAR,
            hiccup: HICCUP,
            slow: None,
            full: None,
            dead: BTreeSet::new(),
            idle: BTreeSet::new(),
            called: BTreeSet::new(),
            due: Vec::new(),
            wire: BinaryHeap::new(),
            sent: 0,
            frames: 0,
            repairs: 0,
            longest_queue: 0,
            requests: 0,
            asked: BTreeMap::new(),
            waits: Vec::new(),
            shares: vec![0; members],
            behind: vec![0; members],
            most_behind: 0,
        }
    }

    /// How many clients there are besides the members.
    pub fn clients(mut self, clients: usize) -> Load {
        let nodes = self.members.count() + clients;
        (self.shares, self.behind) = (vec![0; nodes], vec![0; nodes]);
        self
    }

    /// How many names there are, and in which mode each request locks one.
    pub fn names(mut self, names: u64, mode: fn(u64) -> Mode) -> Load {
        (self.choice, self.mode) = (Choice::Shared(names), mode);
        self
    }

    /// Which names each request write-locks.
    pub fn choice(mut self, choice: Choice) -> Load {
        self.choice = choice;
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

    /// Starts all agents and voters, and runs for one second.
    pub fn start(mut self) -> Load {
        for node in 0..self.shares.len() {
            let agent = self.new_agent();
            self.agents.push(agent);
            if node < self.members.count() {
                let voter = self.new_voter(node, false);
                self.voters.push(voter);
            }
        }
        self.play(Duration::from_secs(1));
        self
    }

    fn new_agent(&mut self) -> Agent {
        self.lifetimes += 1;
        let setup = AgentSetup {
            members: self.members,
            rules: Rules::default(),
            bugs: self.bugs,
            lifetime: Lifetime(self.lifetimes.into()),
        };
        let mut agent = Agent::new(setup, self.now);
        let members = self.members.iter();
        members.for_each(|member| agent.up(self.now, member));
        agent
    }

    fn new_voter(&mut self, node: usize, guests: bool) -> Voter {
        self.lifetimes += 1;
        let rules = Rules::default();
        let setup = VoterSetup {
            members: self.members,
            me: member(node),
            rules,
            bugs: self.bugs,
            lifetime: Lifetime::new(self.lifetimes, 0),
            quarantine: rules.voter_lease,
            guests,
            begins: false,
            mark: Fence(0),
            durable: true,
        };
        Voter::new(setup, self.now)
    }

    /// The voter of a node crashes and starts again, in a cluster without clients.
    pub fn restart_voter(&mut self, node: usize) {
        self.voters[node] = self.new_voter(node, false);
    }

    /// The same, and clients may have its votes, so its quarantine does not end early.
    pub fn restart_voter_with_guests(&mut self, node: usize) {
        self.voters[node] = self.new_voter(node, true);
    }

    /// A node stops: its agent releases what it has, then neither its agent nor its voter answers any more. No other
    /// agent is informed.
    pub fn stop(&mut self, node: usize) {
        self.idle.insert(node);
        let now = self.now;
        let asked = self.asked.iter().filter(|(_, asked)| asked.node == node);
        for request in asked.map(|(request, _)| *request).collect::<Vec<_>>() {
            self.asked.remove(&request);
            self.agents[node].cancel(now, request);
        }
        self.run("farewell", Duration::from_millis(200));
        self.dead.insert(node);
    }

    /// A node dies while it waits for locks, and releases nothing. No other agent is informed.
    pub fn die(&mut self, node: usize) {
        self.idle.insert(node);
        self.asked.retain(|_, asked| asked.node != node);
        self.dead.insert(node);
    }

    /// No loop locks any more. Whether, within `span`, all requests are granted and all locks unlocked, and no machine
    /// keeps anything of them.
    pub fn ends_within(&mut self, span: Duration) -> bool {
        self.idle = (0..self.shares.len()).collect();
        self.play(span);
        let agents = self.agents.iter().all(Agent::is_empty);
        self.asked.is_empty() && agents && self.voters.iter().all(Voter::is_empty)
    }

    fn running(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.shares.len()).filter(|node| !self.dead.contains(node))
    }

    fn locking(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.running().filter(|node| !self.idle.contains(node))
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

    /// The next request of a loop.
    fn lock(&mut self, node: usize, of: usize) {
        self.requests += 1;
        let (request, since) = (Request(self.requests), self.now);
        self.asked.insert(request, Asked { node, of, since });
        let mode = (self.mode)(self.requests);
        let (choice, number) = (self.choice, self.requests);
        let names = choice.names(node, of, number, |below| self.draw(below));
        self.agents[node].lock(since, request, names, mode, Duration::from_secs(600));
    }

    fn send(&mut self, from: usize, send: Send) {
        let to = self.place(&send);
        self.frames += 1;
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

    /// Releases a granted lock and requests the next one, unless its node has become idle.
    fn release_and_repeat(&mut self, node: usize, request: Request, token: Token) {
        let now = self.now;
        let asked = self.asked.remove(&request);
        let Asked { of, since, .. } = asked.expect("a request of this load");
        self.waits.push(now - since);
        self.shares[node] += 1;
        self.behind.iter_mut().for_each(|behind| *behind += 1);
        self.behind[node] = 0;
        let most_behind = self.locking().map(|node| self.behind[node]).max();
        self.most_behind = self.most_behind.max(most_behind.unwrap_or_default());
        self.requests += 1;
        let unlock = Request(self.requests);
        assert!(self.agents[node].unlock_async(now, token, unlock));
        if !self.idle.contains(&node) {
            self.lock(node, of);
        }
    }

    /// Carries out what the machines that were called have put out.
    fn settle(&mut self) {
        for node in std::mem::take(&mut self.called) {
            let outputs = self.voters.get_mut(node).map(Voter::outputs);
            for output in outputs.into_iter().flatten() {
                match output {
                    VoterOutput::Send(send) => self.send(node, send),
                    VoterOutput::Store(_) | VoterOutput::StoreGuests(_)
                        if self.full == Some(node) => {}
                    VoterOutput::Store(mark) => {
                        self.voters[node].stored(self.now, mark);
                    }
                    VoterOutput::StoreGuests(true) => self.voters[node].guests_stored(self.now),
                    VoterOutput::StoreGuests(false) => {}
                    other => panic!("{other:?}"),
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
                        AgentOutput::Accepted { .. } | AgentOutput::GaveBack => {}
                        other => panic!("{other:?}"),
                    }
                }
                self.agents[node].flush(self.now);
                outputs = self.agents[node].outputs();
            }
            let voter = self.voters.get(node).and_then(Voter::deadline);
            let deadlines = [self.agents[node].deadline(), voter];
            self.due[node] = deadlines.into_iter().flatten().min();
        }
    }

    /// Runs for `span`, counted from now, and prints the figures.
    pub fn run(&mut self, title: &str, span: Duration) -> Figures {
        if self.asked.is_empty() {
            for node in self.locking().collect::<Vec<_>>() {
                (0..self.loops).for_each(|of| self.lock(node, of));
            }
        }
        self.waits.clear();
        (self.frames, self.repairs, self.longest_queue) = (0, 0, 0);
        self.shares.fill(0);
        self.behind.fill(0);
        self.most_behind = 0;
        match self.flapping {
            Some(link) => self.flap(link, span),
            None => self.play(span),
        }
        let now = self.now;
        let unended = self.asked.values().map(|asked| now - asked.since);
        let longest = self.waits.iter().copied().chain(unended).max();
        let figures = Figures {
            locks: self.waits.len(),
            per_second: self.waits.len() * 1000 / span.as_millis() as usize,
            longest: longest.unwrap_or_default(),
            shares: self.locking().map(|node| self.shares[node]).collect(),
            most_behind: self.most_behind,
            frames: self.frames,
            longest_queue: self.longest_queue,
            repairs: self.repairs,
        };
        println!("{title}: {figures}");
        figures
    }

    fn flap(&mut self, (one, other): (usize, usize), span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.cut = Some((one, other));
            let wire = std::mem::take(&mut self.wire).into_iter();
            let passes = |Reverse((_, _, from, send)): &Reverse<(Time, u64, usize, Send)>| {
                let ends = (*from, self.place(send));
                ends != (one, other) && ends != (other, one)
            };
            self.wire = wire.filter(passes).collect();
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
        self.due = vec![None; self.shares.len()];
        self.called = self.running().collect();
        (0..self.shares.len()).for_each(|node| self.agents[node].flush(self.now));
        self.settle();
        while self.now < end {
            let arrives = self.wire.peek().map(|Reverse((at, ..))| *at);
            let due = self.due.iter().flatten().min().copied();
            let next = arrives.into_iter().chain(due).min().unwrap_or(end);
            let now = next.clamp(self.now, end);
            self.now = now;
            for node in 0..self.due.len() {
                if self.due[node].is_some_and(|at| at <= now) {
                    let voter = self.voters.get_mut(node);
                    voter.into_iter().for_each(|voter| voter.tick(now));
                    self.agents[node].tick(now);
                    self.agents[node].flush(now);
                    self.called.insert(node);
                }
            }
            while self.wire.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
                let Some(Reverse((_, _, from, send))) = self.wire.pop() else {
                    break;
                };
                let to = self.place(&send);
                if !self.dead.contains(&to) {
                    self.arrive(from, to, send.frame);
                    self.called.insert(to);
                }
            }
            self.watch_queues();
            self.settle();
        }
    }

    /// The waiting positions at each voter.
    fn watch_queues(&mut self) {
        let waiting = self.voters.iter().map(|voter| voter.queued());
        let longest = waiting.max().unwrap_or_default();
        self.longest_queue = self.longest_queue.max(longest);
    }

    fn arrive(&mut self, from: usize, to: usize, frame: Frame) {
        let now = self.now;
        match frame {
            Frame::Batch(_) | Frame::Life(_) => {
                let from = self.node(from);
                self.voters[to].receive(now, from, frame);
            }
            Frame::Ack(_) | Frame::Notice(_) => self.agents[to].receive(now, member(from), frame),
        }
        self.agents[to].flush(now);
    }

    /// How voters call a node.
    fn node(&self, place: usize) -> Node {
        match place.checked_sub(self.members.count()) {
            Some(client) => Node::client(client as u32).expect("a few clients"),
            None => member(place).into(),
        }
    }

    /// The receiver.
    fn place(&self, send: &Send) -> usize {
        match (send.to.member(), send.to.client_number()) {
            (Some(member), _) => member.place(),
            (None, Some(client)) => self.members.count() + client as usize,
            (None, None) => unreachable!("a node is a member or a client"),
        }
    }
}

fn member(node: usize) -> Member {
    Member::at(node).expect("a member")
}
