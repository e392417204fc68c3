//! The members of a view: a list of nodes that is the same on all of them and does not change. And the nodes whose
//! agents lock without being members: *clients*.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The most members of a cluster. A set of members fits into one word.
pub const MAX_MEMBERS: usize = 16;

/// A member, by its index in the member list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member(u8);

impl Member {
    /// The member at index `place`, from 0. `None` from [`MAX_MEMBERS`] on.
    #[must_use]
    pub fn at(place: usize) -> Option<Member> {
        u8::try_from(place)
            .ok()
            .filter(|_| place < MAX_MEMBERS)
            .map(Member)
    }

    /// The index in the member list, below [`MAX_MEMBERS`].
    #[must_use]
    pub fn place(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// A node with an agent: a member, or a client. Clients have numbers that each voter gives them, and that no other node
/// has as long as the voter knows the client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Node(u32);

impl Node {
    /// The client of this number. `None` if the number is too high.
    #[must_use]
    pub fn client(number: u32) -> Option<Node> {
        number.checked_add(MAX_MEMBERS as u32).map(Node)
    }

    /// The member, if it is one.
    #[must_use]
    pub fn member(self) -> Option<Member> {
        Member::at(self.0 as usize)
    }

    /// Whether it is a client.
    #[must_use]
    pub fn is_client(self) -> bool {
        self.member().is_none()
    }

    /// The number of the client, if it is one.
    #[must_use]
    pub fn client_number(self) -> Option<u32> {
        self.0.checked_sub(MAX_MEMBERS as u32)
    }
}

impl From<Member> for Node {
    fn from(member: Member) -> Node {
        Node(member.0.into())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client_number() {
            Some(number) => write!(f, "c{number}"),
            None => write!(f, "m{}", self.0),
        }
    }
}

/// A set of members.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberSet(u64);

impl MemberSet {
    /// The empty set.
    pub const EMPTY: MemberSet = MemberSet(0);

    /// The set as a word: bit `i` stands for the member at index `i`.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The set of the members whose bits are set.
    #[must_use]
    pub fn from_bits(bits: u64) -> MemberSet {
        MemberSet(bits)
    }

    /// The set with `member` added.
    #[must_use]
    pub fn with(self, member: Member) -> MemberSet {
        MemberSet(self.0 | 1 << member.0)
    }

    /// The set with `member` removed.
    #[must_use]
    pub fn without(self, member: Member) -> MemberSet {
        MemberSet(self.0 & !(1 << member.0))
    }

    /// The members that are not in `other`.
    #[must_use]
    pub fn minus(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 & !other.0)
    }

    /// The union of both sets.
    #[must_use]
    pub fn or(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 | other.0)
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn and(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 & other.0)
    }

    /// Whether `member` is in the set.
    #[must_use]
    pub fn contains(self, member: Member) -> bool {
        self.0 & 1 << member.0 != 0
    }

    /// The number of members in the set.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates in the order of the member list.
    pub fn iter(self) -> impl Iterator<Item = Member> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let member = (left != 0).then(|| Member(left.trailing_zeros() as u8))?;
            left &= left - 1;
            Some(member)
        })
    }
}

impl fmt::Debug for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<Member> for MemberSet {
    fn from_iter<I: IntoIterator<Item = Member>>(members: I) -> MemberSet {
        members.into_iter().fold(MemberSet::EMPTY, MemberSet::with)
    }
}

/// The member list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Members(u8);

impl Members {
    /// A list of `count` members. `None` if `count` is not in 1..=[`MAX_MEMBERS`].
    #[must_use]
    pub fn new(count: usize) -> Option<Members> {
        (1..=MAX_MEMBERS)
            .contains(&count)
            .then_some(Members(count as u8))
    }

    /// The number of members.
    #[must_use]
    pub fn count(self) -> usize {
        usize::from(self.0)
    }

    /// Iterates over all members in the order of the list.
    pub fn iter(self) -> impl Iterator<Item = Member> {
        (0..self.0).map(Member)
    }

    /// Whether `member` is in the list.
    #[must_use]
    pub fn contains(self, member: Member) -> bool {
        member.0 < self.0
    }

    /// How many votes a lock needs, for a reader or a writer. Any two sets of this size have a member in common.
    #[must_use]
    pub fn quorum(self) -> usize {
        self.count() / 2 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorums_intersect_each_other() {
        for count in 1..=MAX_MEMBERS {
            let members = Members::new(count).unwrap();
            assert!(2 * members.quorum() > count);
            assert!(
                2 * (members.quorum() - 1) <= count,
                "a smaller quorum would be enough for {count}"
            );
        }
    }

    #[test]
    fn a_list_has_one_to_16_members() {
        assert_eq!(Members::new(0), None);
        assert_eq!(Members::new(17), None);
        let members = Members::new(16).unwrap();
        assert_eq!(members.iter().collect::<MemberSet>().bits(), 0xffff);
        assert_eq!(Member::at(16), None);
    }

    #[test]
    fn set_operations() {
        let [a, b] = [Member(0), Member(15)];
        let both: MemberSet = [a, b].into_iter().collect();
        assert_eq!((both.len(), both.bits()), (2, 1 << 15 | 1));
        assert_eq!(both.iter().collect::<Vec<_>>(), [a, b]);
        assert_eq!(both.without(a), MemberSet::EMPTY.with(b));
        assert_eq!(
            (
                both.minus(both.without(a)),
                both.and(both.without(a)).contains(a)
            ),
            (both.without(b), false)
        );
        assert!(both.minus(both).is_empty());
    }
}
