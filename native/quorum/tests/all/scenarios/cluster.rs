//! A cluster in one process. Frames arrive in the order of sending unless a test cuts or holds a link.

use quorum::agent::{Agent, AgentOutput, AgentSetup, Loss, Path, Refusal, Request};
use quorum::frame;
use quorum::lease::Standing;
use quorum::members::{Member, Members, Node};
use quorum::message::{
    Batch, Fence, Frame, Life, Lifetime, Mode, Name, Names, Op, Reply, Send, Token, Verdict,
};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::voter::{Voter, VoterOutput, VoterSetup};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The mark that a voter starts with, and whether it stores higher ones.
#[derive(Clone, Copy)]
pub struct Mark {
    pub fence: Fence,
    pub durable: bool,
}

/// That of a new voter that stores nothing.
pub const NEW: Mark = known(0);

/// A mark of a voter that stores nothing.
pub const fn known(mark: u64) -> Mark {
    Mark {
        fence: Fence(mark),
        durable: false,
    }
}

/// A mark of a voter that stores higher ones.
pub const fn durable(mark: u64) -> Mark {
    Mark {
        fence: Fence(mark),
        durable: true,
    }
}

/// The default rules with one change. Each lock takes one fence: see `passing.rs` for runs.
pub fn rules(change: fn(&mut Rules)) -> Rules {
    let mut rules = Rules {
        run: 1,
        ..Rules::default()
    };
    change(&mut rules);
    rules
}

pub const SECOND: Duration = Duration::from_secs(1);

/// A lock as its holder has it.
#[derive(Clone, Debug)]
pub struct Lock {
    pub node: usize,
    pub token: Token,
    pub fence: u64,
    pub path: Path,
    pub standing: Arc<Standing>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum Answer {
    Granted(Lock),
    Refused(Refusal),
    Unlocked { confirmed: bool },
    Accepted,
}

pub struct Cluster {
    pub now: Time,
    pub rules: Rules,
    pub members: Members,
    pub agents: Vec<Agent>,
    pub voters: Vec<Voter>,
    pub answers: BTreeMap<Request, Answer>,
    pub lost: Vec<(Token, Loss)>,
    pub at_risk: Vec<Token>,
    /// The nodes whose requests gave their votes back.
    pub gave_back: Vec<usize>,
    /// Whether the file of each voter says that there may be guests, and what voters have requested to store there.
    pub guests: Vec<bool>,
    pub storing_guests: Vec<(usize, bool)>,
    pub slow_disks: bool,
    /// The last mark that each voter requested to store.
    pub store: BTreeMap<usize, Fence>,
    /// The voters that were superseded, and by which lifetime.
    pub superseded: Vec<(usize, Lifetime)>,
    /// All delivered frames, oldest first.
    pub arrived: Vec<(usize, Send)>,
    pub wire: VecDeque<(usize, Send)>,
    cut: BTreeSet<(usize, usize)>,
    answers_lost: BTreeSet<(usize, usize)>,
    held: BTreeSet<(usize, usize)>,
    requests: u64,
    lifetimes: u64,
}

impl Cluster {
    /// Creates a cluster in which every agent has a session at every voter.
    pub fn new(count: usize) -> Cluster {
        Cluster::with(count, rules(|_| ()), NEW)
    }

    pub fn with(count: usize, rules: Rules, mark: Mark) -> Cluster {
        Cluster::of(Members::new(count).unwrap(), rules, mark)
    }

    fn of(members: Members, rules: Rules, mark: Mark) -> Cluster {
        let count = members.count();
        let mut cluster = Cluster {
            now: Time(1_000_000_000),
            rules,
            members,
            agents: Vec::new(),
            voters: Vec::new(),
            answers: BTreeMap::new(),
            lost: Vec::new(),
            at_risk: Vec::new(),
            gave_back: Vec::new(),
            guests: vec![false; count],
            storing_guests: Vec::new(),
            slow_disks: false,
            store: BTreeMap::new(),
            superseded: Vec::new(),
            arrived: Vec::new(),
            wire: VecDeque::new(),
            cut: BTreeSet::new(),
            answers_lost: BTreeSet::new(),
            held: BTreeSet::new(),
            requests: 0,
            lifetimes: 0,
        };
        for place in 0..count {
            let agent = cluster.agent();
            cluster.agents.push(agent);
            let voter = cluster.voter(place, mark);
            cluster.voters.push(voter);
        }
        for place in 0..count {
            cluster.connect(place);
        }
        cluster.run();
        cluster
    }

    /// Adds a client: a node without a voter. Returns its index, which is above those of all members.
    pub fn add_client(&mut self) -> usize {
        let (agent, place) = (self.agent(), self.agents.len());
        self.agents.push(agent);
        self.connect(place);
        self.run();
        place
    }

    pub fn node(&self, place: usize) -> Node {
        match place.checked_sub(self.members.count()) {
            None => at(place).into(),
            Some(client) => Node::client(client as u32).unwrap(),
        }
    }

    pub fn place(&self, node: Node) -> usize {
        let client = node.client_number();
        client.map_or_else(
            || node.member().unwrap().place(),
            |number| self.members.count() + number as usize,
        )
    }

    fn agent(&mut self) -> Agent {
        self.lifetimes += 1;
        let setup = AgentSetup {
            members: self.members,
            rules: self.rules,
            bugs: ProtocolBugs::NONE,
            lifetime: Lifetime(self.lifetimes),
        };
        Agent::new(setup, self.now)
    }

    /// With a higher life than all others.
    fn voter(&mut self, place: usize, mark: Mark) -> Voter {
        self.lifetimes += 1;
        let lifetime = Lifetime::new(self.lifetimes as u32, 0);
        self.voter_of(place, lifetime, mark)
    }

    fn voter_of(&self, place: usize, lifetime: Lifetime, mark: Mark) -> Voter {
        let setup = VoterSetup {
            members: self.members,
            me: at(place),
            rules: self.rules,
            bugs: ProtocolBugs::NONE,
            lifetime,
            quarantine: self.rules.voter_lease,
            mark: mark.fence,
            durable: mark.durable,
            guests: match mark.durable {
                true => self.guests[place],
                false => self.agents.len() > self.members.count(),
            },
            begins: false,
        };
        Voter::new(setup, self.now)
    }

    /// Crashes the voter of a node and starts one with this lifetime.
    pub fn restart_voter_as(&mut self, place: usize, lifetime: Lifetime, mark: Mark) {
        self.voters[place] = self.voter_of(place, lifetime, mark);
    }

    fn connect(&mut self, place: usize) {
        for member in 0..self.voters.len() {
            self.agents[place].up(self.now, at(member));
        }
    }

    /// Crashes and restarts the voter of a node.
    pub fn restart_voter(&mut self, place: usize, mark: Mark) {
        self.voters[place] = self.voter(place, mark);
    }

    /// Crashes and restarts the agent of a node. The holders of its locks die with it.
    pub fn restart_agent(&mut self, place: usize) {
        self.agents[place] = self.agent();
        self.connect(place);
    }

    /// Drops all frames from one node to another from now on.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    /// Drops all answers of one voter to another from now on, and no other frame.
    pub fn lose_answers(&mut self, from: usize, to: usize) {
        self.answers_lost.insert((from, to));
    }

    /// Drops all frames between two nodes from now on, without a disconnect event.
    pub fn cut_both(&mut self, one: usize, other: usize) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Cuts a node off from all others in both directions, without a disconnect event.
    pub fn isolate(&mut self, node: usize) {
        for other in (0..self.agents.len()).filter(|other| *other != node) {
            self.cut_both(node, other);
        }
    }

    /// Restores the links between two nodes.
    pub fn mend(&mut self, one: usize, other: usize) {
        self.cut.remove(&(one, other));
        self.cut.remove(&(other, one));
    }

    pub fn heal(&mut self) {
        self.cut.clear();
        self.answers_lost.clear();
        self.held.clear();
        self.run();
    }

    /// Delivers held frames. Cut links stay cut.
    pub fn release(&mut self) {
        self.held.clear();
        self.run();
    }

    /// Delivers the held frames from one node to another.
    pub fn release_link(&mut self, from: usize, to: usize) {
        self.held.remove(&(from, to));
        self.run();
    }

    /// Holds all frames from one node to another until `heal` or `release`.
    pub fn hold(&mut self, from: usize, to: usize) {
        self.held.insert((from, to));
    }

    fn request(&mut self) -> Request {
        self.requests += 1;
        Request(self.requests)
    }

    fn ask(&mut self, node: usize, names: &[&str], mode: Mode, timeout: Duration) -> Request {
        let names = names.iter().map(|bytes| self.name(bytes)).collect();
        self.ask_for(node, Names::new(names).unwrap(), mode, timeout)
    }

    fn ask_for(&mut self, node: usize, names: Names, mode: Mode, timeout: Duration) -> Request {
        let request = self.request();
        self.agents[node].lock(self.now, request, names, mode, timeout);
        self.run();
        request
    }

    /// See [`name`].
    pub fn name(&self, bytes: &str) -> Name {
        name(bytes)
    }

    pub fn lock(&mut self, node: usize, name: &str, timeout: Duration) -> Request {
        self.ask(node, &[name], Mode::Write, timeout)
    }

    pub fn rlock(&mut self, node: usize, name: &str, timeout: Duration) -> Request {
        self.ask(node, &[name], Mode::Read, timeout)
    }

    pub fn lock_many(&mut self, node: usize, names: &[&str], timeout: Duration) -> Request {
        self.ask(node, names, Mode::Write, timeout)
    }

    /// A lock that must be granted immediately.
    pub fn locked(&mut self, node: usize, name: &str) -> Lock {
        let request = self.lock(node, name, SECOND);
        self.granted(request)
    }

    /// `count` locks that must be granted immediately.
    pub fn locked_many(&mut self, node: usize, prefix: &str, count: usize) -> Vec<Lock> {
        let names = (0..count).map(|i| Name::new(format!("{prefix}{i}").as_bytes()).unwrap());
        let requests = names.map(|name| self.ask_for(node, name.into(), Mode::Write, SECOND));
        let requests: Vec<Request> = requests.collect();
        requests.into_iter().map(|one| self.granted(one)).collect()
    }

    pub fn rlocked(&mut self, node: usize, name: &str) -> Lock {
        let request = self.rlock(node, name, SECOND);
        self.granted(request)
    }

    /// The lock that was granted to a request.
    pub fn granted(&self, request: Request) -> Lock {
        match self.answers.get(&request) {
            Some(Answer::Granted(lock)) => lock.clone(),
            answer => panic!("{request:?} was not granted: {answer:?}"),
        }
    }

    pub fn is_granted(&self, request: Request) -> bool {
        matches!(self.answers.get(&request), Some(Answer::Granted(_)))
    }

    pub fn refused(&self, request: Request) -> Refusal {
        match self.answers.get(&request) {
            Some(Answer::Refused(why)) => *why,
            answer => panic!("{request:?} was not refused: {answer:?}"),
        }
    }

    pub fn unlock(&mut self, lock: &Lock) -> Request {
        let request = self.request();
        assert!(self.agents[lock.node].unlock(self.now, lock.token, request));
        self.run();
        request
    }

    pub fn unlock_async(&mut self, lock: &Lock) -> Request {
        let request = self.request();
        assert!(self.agents[lock.node].unlock_async(self.now, lock.token, request));
        self.run();
        request
    }

    /// Whether an unlock is answered, and whether a quorum has confirmed it.
    pub fn unlocked(&self, unlock: Request) -> Option<bool> {
        match self.answers.get(&unlock)? {
            Answer::Unlocked { confirmed } => Some(*confirmed),
            answer => panic!("{unlock:?} is not an unlock: {answer:?}"),
        }
    }

    /// Returns the fence of the lock.
    pub fn lock_and_unlock(&mut self, node: usize, name: &str) -> u64 {
        let lock = self.locked(node, name);
        self.unlock(&lock);
        lock.fence
    }

    /// Unlocks the last locks of a test. Then nothing is left.
    pub fn unlock_last(&mut self, locks: impl IntoIterator<Item = Lock>) {
        for lock in locks {
            self.unlock(&lock);
        }
        self.assert_empty();
    }

    /// Releases the lock that was granted to a request.
    pub fn unlock_granted(&mut self, request: Request) -> Lock {
        let lock = self.granted(request);
        self.unlock_async(&lock);
        lock
    }

    /// Stores the last mark that each voter requested.
    pub fn store_pending(&mut self) {
        for (voter, mark) in &self.store {
            self.voters[*voter].stored(self.now, *mark);
        }
    }

    /// Locks once, so that all voters store their first mark.
    pub fn store_first_marks(&mut self) {
        let request = self.lock(0, "first", SECOND);
        self.store_pending();
        self.store.clear();
        self.run();
        self.unlock_granted(request);
        self.run();
    }

    pub fn held(&self, lock: &Lock) -> bool {
        let agent = &self.agents[lock.node];
        let held = agent.lease().holds(&lock.standing, || self.now);
        assert_eq!(held, agent.held(lock.token, self.now));
        held
    }

    /// Delivers all frames that can be delivered.
    pub fn run(&mut self) {
        self.collect();
        for _ in 0..100_000 {
            let movable =
                |(from, send): &(usize, Send)| !self.held.contains(&(*from, self.place(send.to)));
            let Some(place) = self.wire.iter().position(movable) else {
                return;
            };
            let (from, send) = self.wire.remove(place).unwrap();
            let link = (from, self.place(send.to));
            let is_answer = matches!(send.frame, Frame::Life(Life::Answer { .. }));
            let is_lost = is_answer && self.answers_lost.contains(&link);
            if !(is_lost || self.cut.contains(&link)) {
                self.deliver(from, send);
            }
            self.collect();
        }
        panic!("100,000 frames did not settle the cluster");
    }

    /// Delivers a frame, encoded and decoded.
    pub fn deliver(&mut self, from: usize, send: Send) {
        let bytes = frame::encode(&send.frame);
        let frame = frame::decode(&bytes).unwrap();
        assert_eq!(frame, send.frame);
        let (to, sender) = (self.place(send.to), self.node(from));
        self.arrived.push((from, send));
        match frame {
            Frame::Batch(_) | Frame::Life(_) => self.voters[to].receive(self.now, sender, frame),
            Frame::Ack(_) | Frame::Notice(_) => self.agents[to].receive(self.now, at(from), frame),
        }
    }

    /// Delivers a batch with these operations, in the name of the agent of a node. Returns the replies. The agent must
    /// have sent a batch since the arrived frames were taken. The voter ignores its next batches in this session.
    pub fn forge(&mut self, node: usize, voter: usize, ops: Vec<Op>) -> Vec<Reply> {
        let sent = |(from, send): &(usize, Send)| match &send.frame {
            Frame::Batch(batch) if *from == node => Some(batch.clone()),
            _ => None,
        };
        let last = self.arrived.iter().rev().find_map(sent);
        let batch = Batch {
            session: self.agents[node].status().nth(voter).unwrap().session,
            seq: 1_000_000,
            ops,
            ..last.expect("a batch of this agent")
        };
        let (from, frame) = (self.node(node), Frame::Batch(batch));
        self.voters[voter].receive(self.now, from, frame);
        let replies = |output| match output {
            VoterOutput::Send(Send {
                frame: Frame::Ack(ack),
                ..
            }) => Some(ack.verdict),
            _ => None,
        };
        let verdict = self.voters[voter].outputs().into_iter().find_map(replies);
        let Some(Verdict::Done { replies, .. }) = verdict else {
            panic!("{verdict:?}");
        };
        replies
    }

    fn collect(&mut self) {
        for node in 0..self.voters.len() {
            for output in self.voters[node].outputs() {
                self.take_from_voter(node, output);
            }
        }
        for node in 0..self.agents.len() {
            self.agents[node].flush(self.now);
            for output in self.agents[node].outputs() {
                self.take(node, output);
            }
        }
    }

    fn take_from_voter(&mut self, node: usize, output: VoterOutput) {
        match output {
            VoterOutput::Send(send) => self.wire.push_back((node, send)),
            VoterOutput::Store(fence) => drop(self.store.insert(node, fence)),
            VoterOutput::Superseded { seen } => self.superseded.push((node, seen)),
            VoterOutput::Ready => unreachable!("no view begins"),
            VoterOutput::StoreGuests(guests) => {
                self.storing_guests.push((node, guests));
                if !self.slow_disks {
                    self.store_guests();
                }
            }
        }
    }

    /// Stores what voters have requested to store of guests.
    pub fn store_guests(&mut self) {
        for (node, guests) in std::mem::take(&mut self.storing_guests) {
            self.guests[node] = guests;
            if guests {
                self.voters[node].guests_stored(self.now);
            }
        }
    }

    fn take(&mut self, node: usize, output: AgentOutput) {
        let (request, answer) = match output {
            AgentOutput::Send(send) => return self.wire.push_back((node, send)),
            AgentOutput::Lost { token, why } => return self.lost.push((token, why)),
            AgentOutput::AtRisk { token } => return self.at_risk.push(token),
            AgentOutput::GaveBack => return self.gave_back.push(node),
            AgentOutput::Granted {
                request,
                token,
                path,
                fence,
                standing,
                ..
            } => (
                request,
                Answer::Granted(Lock {
                    node,
                    token,
                    fence: fence.0,
                    path,
                    standing,
                }),
            ),
            AgentOutput::Refused { request, why } => (request, Answer::Refused(why)),
            AgentOutput::Unlocked { request, confirmed } => {
                (request, Answer::Unlocked { confirmed })
            }
            AgentOutput::Accepted { request } => (request, Answer::Accepted),
        };
        let earlier = self.answers.insert(request, answer);
        assert!(earlier.is_none(), "{request:?} is answered twice");
    }

    /// Advances the time and fires all timers on the way.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            let agents = self.agents.iter().filter_map(Agent::deadline);
            let voters = self.voters.iter().filter_map(Voter::deadline);
            let next = agents.chain(voters).min().unwrap_or(end);
            let now = next.clamp(self.now + Duration::from_nanos(1), end);
            self.now = now;
            self.agents.iter_mut().for_each(|agent| agent.tick(now));
            self.voters.iter_mut().for_each(|voter| voter.tick(now));
            self.run();
        }
    }

    /// The batches delivered since the last call.
    pub fn batches(&mut self) -> Vec<(usize, usize, Batch)> {
        let arrived = std::mem::take(&mut self.arrived).into_iter();
        let batch = |(from, send): (usize, Send)| match send.frame {
            Frame::Batch(batch) => Some((from, self.place(send.to), batch)),
            _ => None,
        };
        arrived.filter_map(batch).collect()
    }

    /// The operations delivered since the last call.
    pub fn ops(&mut self) -> Vec<Op> {
        let batches = self.batches().into_iter();
        batches.flat_map(|(_, _, batch)| batch.ops).collect()
    }

    /// Q9, Q10: no state is left anywhere when no process holds or requests a lock.
    pub fn assert_empty(&mut self) {
        self.pass(self.rules.voter_lease + self.rules.heartbeat * 2);
        self.agents
            .iter()
            .for_each(|agent| assert!(agent.is_empty(), "{agent:#?}"));
        self.voters
            .iter()
            .for_each(|voter| assert!(voter.is_empty(), "{voter:#?}"));
    }
}

pub fn at(place: usize) -> Member {
    Member::at(place).unwrap()
}

pub fn name(bytes: &str) -> Name {
    Name::new(bytes.as_bytes()).unwrap()
}

/// The number of unlocks among these operations.
pub fn unlocks(ops: &[Op]) -> usize {
    let unlocks = |op: &&Op| matches!(op, Op::Unlock { .. });
    ops.iter().filter(unlocks).count()
}
