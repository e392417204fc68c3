//! F1 and F3 for messages about views: each has exactly one encoding, any bytes decode to a message or an error, and
//! the longest ones fit into a frame.

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use quorum::envelope::Content;
use quorum::frame::{decode_content, encode_content, MAX_FENCE, MAX_FRAME, VERSION};
use quorum::message::{Fence, Lifetime};
use quorum::view::Role;
use quorum::view::{Ballot, Id, NodeName, Peer, Record, ViewId};
use quorum::view_message::{Readiness, Report, ViewMessage};

/// The kind byte of messages about views.
const VIEW: u8 = 4;
/// The highest number of a cluster and of a view.
const SMALL: u64 = 1 << 58;
/// The shortest and the longest lease.
const LEASES: std::ops::RangeInclusive<u64> = 1000..=u32::MAX as u64;

fn node() -> impl Strategy<Value = NodeName> {
    "[a-z]{1,4}@[a-z]{0,3}".prop_map(|name| NodeName::new(&name).unwrap())
}

fn nodes() -> impl Strategy<Value = Vec<NodeName>> {
    btree_set(node(), 0..=16).prop_map(|nodes| nodes.into_iter().collect())
}

fn peers() -> impl Strategy<Value = Vec<Peer>> {
    let peer = |node: NodeName| {
        let id = Id(node.text().len() as u64 * 77);
        Peer { node, id }
    };
    nodes().prop_map(move |nodes| nodes.into_iter().map(peer).collect())
}

fn fence() -> impl Strategy<Value = Fence> {
    (0..=MAX_FENCE).prop_map(Fence)
}

fn record() -> impl Strategy<Value = Record> {
    let members = peers().prop_filter("a member", |peers| !peers.is_empty());
    let id = (0..=SMALL, 0..=SMALL).prop_map(|(cluster, number)| ViewId { cluster, number });
    (id, LEASES, members, peers(), fence()).prop_map(|(id, lease_ms, members, before, fence)| {
        Record {
            id,
            lease_ms,
            members,
            before,
            fence,
        }
    })
}

fn ballot() -> impl Strategy<Value = Ballot> {
    (any::<u64>(), any::<u64>()).prop_map(|(round, proposer)| Ballot { round, proposer })
}

fn report() -> impl Strategy<Value = Report> {
    let agent = (node(), any::<u64>().prop_map(Lifetime));
    let agents =
        option::of(btree_set(agent, 0..=9).prop_map(|agents| agents.into_iter().collect()));
    (any::<u64>(), any::<bool>(), fence(), agents).prop_map(|(id, votes, floor, agents)| Report {
        id: Id(id),
        votes,
        floor,
        agents,
    })
}

fn readiness() -> impl Strategy<Value = Readiness> {
    let head = (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>());
    (head, fence(), option::of("[a-z ]{0,20}"), nodes()).prop_map(
        |((nonce, id, lease_ms, is_over), fence, trouble, silent)| Readiness {
            nonce,
            id: Id(id),
            lease_ms,
            is_over,
            fence,
            trouble,
            silent,
        },
    )
}

fn message() -> impl Strategy<Value = ViewMessage> {
    let fresh = (
        nodes(),
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
    );
    prop_oneof![
        any::<bool>().prop_map(|agent| ViewMessage::Ask(if agent {
            Role::Agent
        } else {
            Role::Voter
        })),
        record().prop_map(ViewMessage::Record),
        any::<u64>().prop_map(|id| ViewMessage::Known { id: Id(id) }),
        record().prop_map(ViewMessage::Learn),
        report().prop_map(ViewMessage::Report),
        (any::<u64>(), any::<bool>())
            .prop_map(|(nonce, agents)| ViewMessage::Ready { nonce, agents }),
        readiness().prop_map(ViewMessage::Readiness),
        ballot().prop_map(ViewMessage::Prepare),
        (ballot(), option::of((ballot(), record())))
            .prop_map(|(ballot, accepted)| ViewMessage::Promise { ballot, accepted }),
        ballot().prop_map(ViewMessage::Refused),
        (ballot(), record()).prop_map(|(ballot, record)| ViewMessage::Accept(ballot, record)),
        ballot().prop_map(ViewMessage::Accepted),
        fresh.prop_map(|(list, id, lease_ms, start, answers)| ViewMessage::Fresh {
            list,
            id: Id(id),
            lease_ms,
            start,
            answers,
        }),
        record().prop_map(ViewMessage::Reset),
    ]
}

fn encoded(message: ViewMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_content(&Content::View(message), &mut bytes);
    bytes
}

/// Asserts F1: what decodes has these bytes and no others.
fn judge(bytes: &[u8]) {
    if let Ok(content) = decode_content(bytes) {
        let mut again = Vec::new();
        encode_content(&content, &mut again);
        assert_eq!(again, bytes, "{content:?}");
    }
}

proptest! {
    #[test]
    fn f1_a_message_has_one_encoding(message in message()) {
        let bytes = encoded(message.clone());
        prop_assert_eq!(decode_content(&bytes), Ok(Content::View(message)));
        for end in 0..bytes.len() {
            prop_assert!(decode_content(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn f1_corrupt_messages(message in message(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encoded(message);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        judge(&bytes);
    }

    #[test]
    fn f1_any_bytes(rest in vec(prop_oneof![0..8u8, 0..4u8, any::<u8>()], 0..200)) {
        judge(&[&[VERSION, VIEW], rest.as_slice()].concat());
    }
}

/// F3. Names of 255 characters of four bytes, 256 agents, and records of 16 members in both lists.
#[test]
fn f3_the_longest_messages_fit() {
    let node = |place: usize| NodeName::new(&format!("{place:03}{}", "x".repeat(1017))).unwrap();
    let peers = |from: usize| -> Vec<Peer> {
        let id = Id(u64::MAX);
        (from..from + 16)
            .map(|place| Peer {
                node: node(place),
                id,
            })
            .collect()
    };
    let record = Record {
        id: ViewId {
            cluster: SMALL,
            number: SMALL,
        },
        lease_ms: *LEASES.end(),
        members: peers(0),
        before: peers(16),
        fence: Fence(MAX_FENCE),
    };
    let report = Report {
        id: Id(u64::MAX),
        votes: true,
        floor: Fence(MAX_FENCE),
        agents: Some(
            (0..256)
                .map(|place| (node(place), Lifetime(u64::MAX)))
                .collect(),
        ),
    };
    for message in [ViewMessage::Learn(record), ViewMessage::Report(report)] {
        let bytes = encoded(message);
        assert!(bytes.len() <= MAX_FRAME, "{}", bytes.len());
        assert!(decode_content(&bytes).is_ok());
    }
}

/// A node is a member once, and a view has members.
#[test]
fn views_with_wrong_lists_are_rejected() {
    let peer = |node: &str, id| Peer {
        node: NodeName::new(node).unwrap(),
        id: Id(id),
    };
    let record = |members: Vec<Peer>| Record {
        members,
        ..Record::first(vec![peer("a", 1)], 1000)
    };
    let bytes = |members| {
        let mut bytes = vec![VERSION, VIEW];
        bytes.extend(postcard_of(&ViewMessage::Record(record(members))));
        bytes
    };
    assert!(decode_content(&bytes(vec![peer("a", 1), peer("b", 2)])).is_ok());
    for members in [
        vec![],
        vec![peer("a", 1), peer("a", 2)],
        vec![peer("b", 1), peer("a", 2)],
        (0..17)
            .map(|place| peer(&format!("{place:02}"), 1))
            .collect(),
    ] {
        assert!(
            decode_content(&bytes(members.clone())).is_err(),
            "{members:?}"
        );
    }
}

/// The times of a lease are parts of it, and Erlang has the numbers as small integers.
#[test]
fn views_with_wrong_numbers_are_rejected() {
    let peer = Peer {
        node: NodeName::new("a").unwrap(),
        id: Id(1),
    };
    let right = Record::first(vec![peer], 1000);
    let is_accepted = |record: Record| {
        let mut bytes = vec![VERSION, VIEW];
        bytes.extend(postcard_of(&ViewMessage::Record(record)));
        decode_content(&bytes).is_ok()
    };
    let with = |cluster, number, lease_ms| Record {
        id: ViewId { cluster, number },
        lease_ms,
        ..right.clone()
    };
    assert!(is_accepted(with(SMALL, SMALL, *LEASES.end())));
    assert!(!is_accepted(with(SMALL + 1, 0, 1000)));
    assert!(!is_accepted(with(0, SMALL + 1, 1000)));
    assert!(!is_accepted(with(0, 0, 999)));
    assert!(!is_accepted(with(0, 0, LEASES.end() + 1)));
}

fn postcard_of(message: &ViewMessage) -> Vec<u8> {
    postcard::to_stdvec(message).unwrap()
}
