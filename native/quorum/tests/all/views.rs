//! The voters of nodes without agents: first starts, changes, lost files, resets.

use quorum::envelope::Post;
use quorum::message::Fence;
use quorum::node_voter::{
    ChangeAnswer, NodeVoter, NodeVoterOutput, NodeVoterSetup, Phase, State, Why,
};
use quorum::protocol_bug::ProtocolBugs;
use quorum::rules::Rules;
use quorum::time::Time;
use quorum::view::Role;
use quorum::view::{NodeName, Record};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const LEASE_MS: u64 = 1000;

/// Messages arrive at once, and writes are complete at once.
#[derive(Default)]
struct Nodes {
    now: Time,
    voters: BTreeMap<NodeName, NodeVoter>,
    files: BTreeMap<NodeName, State>,
    answers: Vec<ChangeAnswer>,
    cut: BTreeSet<NodeName>,
    /// The writes of these nodes do not end.
    full: BTreeSet<NodeName>,
    starts: u64,
    wire: VecDeque<(NodeName, Post)>,
}

fn name(node: &str) -> NodeName {
    NodeName::new(node).unwrap()
}

fn list(nodes: &str) -> Vec<NodeName> {
    nodes.chars().map(|node| name(&node.to_string())).collect()
}

impl Nodes {
    /// Nodes with one-letter names, which start with the list of `seeds`.
    fn start(nodes: &str, seeds: &str) -> Nodes {
        let mut started = Nodes::default();
        started.start_nodes(nodes, seeds);
        started
    }

    fn start_nodes(&mut self, nodes: &str, seeds: &str) {
        for node in list(nodes) {
            self.starts += 1;
            let setup = NodeVoterSetup {
                node: node.clone(),
                seeds: list(seeds),
                lease_ms: LEASE_MS,
                rules: Rules::of(Duration::from_millis(LEASE_MS)),
                bugs: ProtocolBugs::NONE,
                durable: true,
                clients: false,
                random: self.starts,
            };
            let file = self.files.get(&node).cloned();
            let voter = NodeVoter::new(setup, file, self.now);
            self.voters.insert(node, voter);
        }
        self.settle();
    }

    fn stop(&mut self, nodes: &str) {
        list(nodes)
            .iter()
            .for_each(|node| drop(self.voters.remove(node)));
    }

    fn lose(&mut self, nodes: &str) {
        self.stop(nodes);
        list(nodes)
            .iter()
            .for_each(|node| drop(self.files.remove(node)));
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            let names: Vec<NodeName> = self.voters.keys().cloned().collect();
            for node in names {
                for output in self.voters.get_mut(&node).unwrap().outputs() {
                    self.output(&node, output);
                }
            }
            let Some((from, post)) = self.wire.pop_front() else {
                return;
            };
            let is_cut =
                from != post.to && (self.cut.contains(&from) || self.cut.contains(&post.to));
            if let (Role::Voter, false, Some(voter)) =
                (post.role, is_cut, self.voters.get_mut(&post.to))
            {
                voter.receive(self.now, &from, post.envelope);
            }
        }
        panic!("the nodes send messages for ever");
    }

    fn output(&mut self, node: &NodeName, output: NodeVoterOutput) {
        match output {
            NodeVoterOutput::Post(post) => self.wire.push_back((node.clone(), post)),
            NodeVoterOutput::Store(..) if self.full.contains(node) => {}
            NodeVoterOutput::Store(number, state) => {
                assert_eq!(State::decode(&state.encode()).as_ref(), Ok(&*state));
                self.files.insert(node.clone(), *state);
                let now = self.now;
                self.voters.get_mut(node).unwrap().stored(now, number);
            }
            NodeVoterOutput::Answer(_, answer) => self.answers.push(answer),
            _ => {}
        }
    }

    /// Lets time pass in steps of 10 ms.
    fn wait(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now = self.now + Duration::from_millis(10);
            let now = self.now;
            self.voters.values_mut().for_each(|voter| voter.tick(now));
            self.settle();
        }
    }

    fn change(&mut self, at: &str, to: &str) -> ChangeAnswer {
        let now = self.now;
        self.voters
            .get_mut(&name(at))
            .unwrap()
            .change(now, 1, list(to));
        self.answer()
    }

    fn answer(&mut self) -> ChangeAnswer {
        self.settle();
        for _ in 0..500 {
            if let Some(answer) = self.answers.pop() {
                return answer;
            }
            self.wait(10);
        }
        panic!("no answer");
    }

    fn record(&self, node: &str) -> Option<&Record> {
        self.voters[&name(node)].state().record.as_ref()
    }

    fn phases(&self, nodes: &str) -> Vec<Phase> {
        list(nodes)
            .iter()
            .map(|node| self.voters[node].status().phase)
            .collect()
    }

    fn all_vote(&self, nodes: &str) -> bool {
        self.phases(nodes)
            .iter()
            .all(|phase| *phase == Phase::Voting)
    }
}

#[test]
fn nodes_with_the_same_list_form_view_0() {
    let mut nodes = Nodes::start("ab", "abc");
    nodes.wait(2000);
    assert_eq!(nodes.phases("ab"), [Phase::NoView; 2]);
    nodes.start_nodes("c", "abc");
    nodes.wait(2000);
    assert!(nodes.all_vote("abc"));
    assert_eq!(nodes.record("a"), nodes.record("c"));
    // A node with another list forms none with them.
    let mut nodes = Nodes::start("abc", "abc");
    nodes.stop("c");
    nodes.files.clear();
    let mut nodes = Nodes::start("ab", "ab");
    nodes.start_nodes("c", "abc");
    nodes.wait(2000);
    assert!(nodes.all_vote("ab"));
    assert_eq!(nodes.phases("c"), [Phase::Client]);
}

#[test]
fn members_are_replaced_added_and_removed() {
    let mut nodes = Nodes::start("abcde", "abc");
    nodes.wait(2000);
    let steps = [
        ("a", "abd"),
        ("b", "abcde"),
        ("c", "abc"),
        ("a", "d"),
        ("d", "de"),
        ("e", "abc"),
    ];
    for (number, (at, to)) in steps.into_iter().enumerate() {
        assert_eq!(
            nodes.change(at, to),
            ChangeAnswer::Done(number as u64 + 1),
            "{to}"
        );
        assert!(nodes.record(&to[..1]).unwrap().is_list(&list(to)));
        nodes.wait(1500);
        assert!(nodes.all_vote(to), "{to}");
    }
    // The same list again.
    assert_eq!(nodes.change("a", "abc"), ChangeAnswer::Done(6));
}

#[test]
fn a_change_that_is_not_ready_proposes_nothing() {
    let mut nodes = Nodes::start("abc", "abc");
    nodes.wait(2000);
    assert_eq!(
        nodes.change("a", "abcd"),
        ChangeAnswer::NotReady(vec![(name("d"), Why::Down)])
    );
    assert_eq!(nodes.record("a").unwrap().id.number, 0);
    // A member that is down may stay in the list.
    nodes.start_nodes("d", "abc");
    nodes.stop("c");
    assert_eq!(nodes.change("a", "abcd"), ChangeAnswer::Done(1));
}

#[test]
fn a_lost_file_is_a_lost_member_that_comes_back() {
    let mut nodes = Nodes::start("abc", "abc");
    nodes.wait(2000);
    for (number, node) in ["a", "b", "c"].into_iter().enumerate() {
        nodes.lose(node);
        nodes.start_nodes(node, "abc");
        nodes.wait(3000);
        assert!(nodes.all_vote("abc"), "{node} {:#?}", nodes.voters);
        assert_eq!(nodes.record("a").unwrap().id.number, number as u64 + 1);
    }
}

#[test]
fn a_member_that_left_returns_with_its_old_file() {
    let mut nodes = Nodes::start("abcde", "abcde");
    nodes.wait(2000);
    nodes.stop("de");
    assert_eq!(nodes.change("a", "abc"), ChangeAnswer::Done(1));
    // Those that left form no quorum of their list, also if they hear nobody.
    nodes.cut = ["a", "b", "c"].map(name).into();
    nodes.start_nodes("de", "abcde");
    nodes.wait(3000);
    assert!(!nodes.all_vote("d") || nodes.record("d").unwrap().id.number == 0);
    nodes.cut.clear();
    nodes.wait(1000);
    assert_eq!(nodes.change("a", "abcde"), ChangeAnswer::Done(2));
    nodes.wait(2000);
    assert!(nodes.all_vote("abcde"));
}

#[test]
fn a_reset_needs_all_survivors_and_no_other_member() {
    let mut nodes = Nodes::start("abcde", "abcde");
    nodes.wait(2000);
    let reset = |nodes: &mut Nodes, at: &str, to: &str| {
        let now = nodes.now;
        nodes
            .voters
            .get_mut(&name(at))
            .unwrap()
            .reset(now, 1, list(to));
        nodes.answer()
    };
    assert_eq!(
        reset(&mut nodes, "a", "abcd"),
        ChangeAnswer::Running(vec![name("e")])
    );
    nodes.stop("cde");
    assert_eq!(reset(&mut nodes, "a", "ab"), ChangeAnswer::Done(0));
    let record = nodes.record("a").unwrap().clone();
    assert!(record.fence > Fence(1 << 39) && record.is_list(&list("ab")));
    assert!(!nodes.all_vote("ab"));
    nodes.wait(2000);
    assert!(nodes.all_vote("ab"));
    // The others are the old cluster, and are refused.
    nodes.start_nodes("cd", "abcde");
    nodes.wait(3000);
    assert_ne!(nodes.record("c").unwrap().id.cluster, record.id.cluster);
    assert_eq!(nodes.change("b", "b"), ChangeAnswer::Done(1));
}
