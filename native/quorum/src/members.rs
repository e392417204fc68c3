//! Who takes part: a list of nodes that is the same on all of them and stands still while they run.

use serde::{Deserialize, Serialize};
use std::fmt;

/// No cluster has more members. A set of them is a word, and a lock asks each.
pub const MAX_MEMBERS: usize = 16;

/// A node, by its place in the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member(u8);

impl Member {
    /// The member at `place`, from 0; none past [`MAX_MEMBERS`].
    #[must_use]
    pub fn at(place: usize) -> Option<Member> {
        u8::try_from(place)
            .ok()
            .filter(|_| place < MAX_MEMBERS)
            .map(Member)
    }

    /// Its place in the list, below [`MAX_MEMBERS`].
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

/// Some of the members.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberSet(u16);

impl MemberSet {
    /// Nobody.
    pub const EMPTY: MemberSet = MemberSet(0);

    /// As one word: bit `i` is the member at place `i`.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// From one word.
    #[must_use]
    pub fn from_bits(bits: u16) -> MemberSet {
        MemberSet(bits)
    }

    /// With `member`, too.
    #[must_use]
    pub fn with(self, member: Member) -> MemberSet {
        MemberSet(self.0 | 1 << member.0)
    }

    /// Without `member`.
    #[must_use]
    pub fn without(self, member: Member) -> MemberSet {
        MemberSet(self.0 & !(1 << member.0))
    }

    /// Those that are not in `other`.
    #[must_use]
    pub fn minus(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 & !other.0)
    }

    /// Those that are in either.
    #[must_use]
    pub fn or(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 | other.0)
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 & other.0)
    }

    /// Whether `member` is one of them.
    #[must_use]
    pub fn contains(self, member: Member) -> bool {
        self.0 & 1 << member.0 != 0
    }

    /// How many.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// In the order of the list.
    pub fn iter(self) -> impl Iterator<Item = Member> {
        (0..MAX_MEMBERS as u8)
            .map(Member)
            .filter(move |member| self.contains(*member))
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

/// The list, as one of its members sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    count: u8,
    me: Member,
}

impl Members {
    /// `count` members, of which this node is the one at place `me`. None if there are none or more than
    /// [`MAX_MEMBERS`], or if `me` is not among them.
    #[must_use]
    pub fn new(count: usize, me: usize) -> Option<Members> {
        let member = Member::at(me)?;
        (me < count && count <= MAX_MEMBERS).then_some(Members {
            count: count as u8,
            me: member,
        })
    }

    /// How many there are.
    #[must_use]
    pub fn count(self) -> usize {
        usize::from(self.count)
    }

    /// This node.
    #[must_use]
    pub fn me(self) -> Member {
        self.me
    }

    /// All of them, in the order of the list.
    pub fn iter(self) -> impl Iterator<Item = Member> {
        (0..self.count).map(Member)
    }

    /// Whether `member` is in the list.
    #[must_use]
    pub fn contains(self, member: Member) -> bool {
        member.0 < self.count
    }

    /// How many votes make a lock, of a reader or a writer. Any two such sets have a member in common.
    #[must_use]
    pub fn quorum(self) -> usize {
        self.count() / 2 + 1
    }

    /// How many members are in every set of that many and any quorum, less one: whoever asks that many has met each
    /// quorum there ever was.
    #[must_use]
    pub fn co_quorum(self) -> usize {
        self.count() - self.quorum() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_quorums_meet_and_so_do_a_quorum_and_a_co_quorum() {
        for count in 1..=MAX_MEMBERS {
            let members = Members::new(count, 0).unwrap();
            assert!(2 * members.quorum() > count);
            assert!(
                2 * (members.quorum() - 1) <= count,
                "a smaller one would do for {count}"
            );
            assert_eq!(members.quorum() + members.co_quorum(), count + 1);
        }
    }

    #[test]
    fn a_list_has_one_to_sixteen_members_and_this_node_is_one() {
        assert_eq!(Members::new(0, 0), None);
        assert_eq!(Members::new(17, 0), None);
        assert_eq!(Members::new(3, 3), None);
        let members = Members::new(16, 15).unwrap();
        assert_eq!(members.me().place(), 15);
        assert_eq!(members.iter().collect::<MemberSet>().bits(), u16::MAX);
        assert_eq!(Member::at(16), None);
    }

    #[test]
    fn a_set_is_what_was_put_into_it() {
        let [a, b] = [Member(0), Member(15)];
        let both: MemberSet = [a, b].into_iter().collect();
        assert_eq!((both.len(), both.bits()), (2, 0x8001));
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
