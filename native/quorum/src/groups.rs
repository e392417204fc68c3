//! Which members vote for a name.
//!
//! The members of a large cluster do not all vote for each name. A name belongs to a *partition*, by a hash, and each
//! partition has a *group* of [`replicas`](crate::members::Members::replicas) members, its voters. A lock is held by a
//! quorum of each group of its names.
//!
//! ```text
//!   name --> partition --> group, in order of preference      m2, m0, m4
//!                          quorum: any two of them
//! ```
//!
//! The group of a partition has the members with the highest scores, where a score is a hash of partition and member
//! (rendezvous hashing: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", ToN 1998). It
//! depends on the configured members only, never on which of them are alive, so any two quorums of a name have a voter
//! in common. The scores also order the group. All agents prefer the same voters, so these see the same locks and give
//! the same fences; and each member is the first choice for the same share of the partitions.

use crate::members::{Member, MemberSet, Members, MAX_REPLICAS};
use crate::message::{scatter, Name, Names};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The groups of all partitions. Cheap to clone.
#[derive(Clone)]
pub struct Groups(Arc<Table>);

struct Table {
    members: Members,
    /// By partition.
    groups: Vec<Group>,
}

struct Group {
    /// In the order of preference.
    voters: Vec<Member>,
    quorums: Quorums,
}

/// The quorums that a lock needs: one in each group of its names. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quorums {
    /// Different ones.
    groups: Arc<[MemberSet]>,
    /// How many votes of each group.
    size: usize,
}

impl Groups {
    /// The groups of a member list, for this many partitions, which is a power of two.
    #[must_use]
    pub fn new(members: Members, partitions: usize) -> Groups {
        Groups::among(members.iter().collect(), members, partitions)
    }

    /// The groups if there were no other members than `some`. An agent that used those of the connected members would
    /// break the protocol: see [`ProtocolBug::LivingGroups`](crate::protocol_bug::ProtocolBug::LivingGroups).
    pub(crate) fn among(some: MemberSet, members: Members, partitions: usize) -> Groups {
        let key = |member: Member| (member, scatter(member.place() as u64));
        let keys: Vec<(Member, u64)> = some.iter().map(key).collect();
        let mut known: Vec<Quorums> = Vec::new();
        let groups = (0..partitions).map(|partition| {
            let voters = preferred(partition, &keys, members.replicas());
            let set: MemberSet = voters.iter().copied().collect();
            // Groups with the same members share their memory.
            let place = known.partition_point(|quorums| quorums.groups[0] < set);
            if known.get(place).is_none_or(|at| at.groups[0] != set) {
                known.insert(place, Quorums::new([set].into(), members.quorum()));
            }
            let quorums = known[place].clone();
            Group { voters, quorums }
        });
        let groups = groups.collect();
        Groups(Arc::new(Table { members, groups }))
    }

    /// The partition of `name`.
    pub(crate) fn partition(&self, name: &Name) -> usize {
        partition(name, self.0.groups.len())
    }

    /// The voters of a partition, in the order of preference.
    pub(crate) fn voters(&self, partition: usize) -> &[Member] {
        &self.0.groups[partition].voters
    }

    /// The partitions of `names`, each once.
    pub(crate) fn partitions(&self, names: &Names) -> Vec<usize> {
        let mut partitions: Vec<usize> = names.iter().map(|name| self.partition(name)).collect();
        partitions.sort_unstable();
        partitions.dedup();
        partitions
    }

    /// What a lock of `names` needs.
    #[must_use]
    pub fn quorums(&self, names: &Names) -> Quorums {
        if let Some(name) = names.single() {
            return self.0.groups[self.partition(name)].quorums.clone();
        }
        let mut groups: Vec<MemberSet> = names.iter().map(|name| self.group(name)).collect();
        groups.sort_unstable();
        groups.dedup();
        Quorums::new(groups.into(), self.0.members.quorum())
    }

    /// Those of `names` that `member` votes for. `None` if there are none.
    #[must_use]
    pub fn served(&self, names: &Names, member: Member) -> Option<Names> {
        if names.iter().all(|name| self.serves(member, name)) {
            return Some(names.clone());
        }
        let served = names.iter().filter(|name| self.serves(member, name));
        Names::new(served.cloned().collect())
    }

    /// Whether `member` votes for `name`.
    #[must_use]
    pub fn serves(&self, member: Member, name: &Name) -> bool {
        self.is_whole() || self.group(name).contains(member)
    }

    /// The voters of `name`, in the order of preference.
    #[must_use]
    pub fn voters_of(&self, name: &Name) -> &[Member] {
        self.voters(self.partition(name))
    }

    /// The group of `name`.
    #[must_use]
    pub fn group(&self, name: &Name) -> MemberSet {
        self.0.groups[self.partition(name)].quorums.groups[0]
    }

    /// The different groups.
    pub(crate) fn all(&self) -> Vec<MemberSet> {
        let mut groups: Vec<MemberSet> = self.sets().collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// How many partitions have a quorum among `voters`, and how many there are.
    #[must_use]
    pub fn with_quorum(&self, voters: MemberSet) -> (usize, usize) {
        let quorum = self.0.members.quorum();
        let with = self.sets().filter(|set| set.and(voters).len() >= quorum);
        (with.count(), self.0.groups.len())
    }

    fn sets(&self) -> impl Iterator<Item = MemberSet> + '_ {
        self.0.groups.iter().map(|group| group.quorums.groups[0])
    }

    /// Whether all members vote for each name.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.0.members.replicas() == self.0.members.count()
    }
}

/// With this value, partition 0 prefers the first eight members in the order of the list. Models with one partition can
/// therefore name voters by their preference.
const SALT: u64 = 24_443;

/// The `count` members with the highest scores for a partition, in descending order. `keys` has a hash of each member.
fn preferred(partition: usize, keys: &[(Member, u64)], count: usize) -> Vec<Member> {
    let partition = scatter(SALT + partition as u64);
    let mut best: Vec<(u64, Member)> = Vec::with_capacity(count + 1);
    for (member, key) in keys {
        let score = scatter(partition ^ key);
        let place = best.partition_point(|(other, _)| *other > score);
        if place < count {
            best.insert(place, (score, *member));
            best.truncate(count);
        }
    }
    best.into_iter().map(|(_, member)| member).collect()
}

/// The partition of `name`, below `partitions`: the FxHash (of Firefox and rustc) of its length and bytes, scattered.
pub(crate) fn partition(name: &Name, partitions: usize) -> usize {
    let bytes = name.bytes();
    let hash = bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    (scatter(hash) % partitions as u64) as usize
}

impl Quorums {
    /// `size` votes of each of the groups, which have at most [`MAX_REPLICAS`] members.
    pub(crate) fn new(groups: Arc<[MemberSet]>, size: usize) -> Quorums {
        debug_assert!(groups.iter().all(|group| group.len() <= MAX_REPLICAS));
        Quorums { groups, size }
    }

    /// Half of the votes of each group, for [`ProtocolBug::ReadHalf`](crate::protocol_bug::ProtocolBug::ReadHalf).
    pub(crate) fn half(&self) -> Quorums {
        let groups = Arc::clone(&self.groups);
        let size = self.groups[0].len() / 2;
        Quorums::new(groups, size.max(1))
    }

    /// Whether `votes` contain a quorum of each group.
    #[must_use]
    pub fn met_by(&self, votes: MemberSet) -> bool {
        let mut groups = self.groups.iter();
        groups.all(|group| group.and(votes).len() >= self.size)
    }

    /// The members of all groups.
    #[must_use]
    pub fn voters(&self) -> MemberSet {
        let groups = self.groups.iter();
        groups.fold(MemberSet::EMPTY, |all, group| all.or(*group))
    }

    pub(crate) fn groups(&self) -> &[MemberSet] {
        &self.groups
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }
}

// Equal members have equal groups if the number of partitions is the same.
impl PartialEq for Groups {
    fn eq(&self, other: &Groups) -> bool {
        (self.0.members, self.0.groups.len()) == (other.0.members, other.0.groups.len())
    }
}

impl Eq for Groups {}

impl Hash for Groups {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.members, self.0.groups.len()).hash(state);
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} groups of {:?}", self.0.groups.len(), self.0.members)
    }
}

impl std::fmt::Debug for Quorums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of each {:?}", self.size, self.groups)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::members::MAX_MEMBERS;
    use crate::rules::Rules;

    fn groups(count: usize, replicas: usize) -> Groups {
        let members = Members::new(count).unwrap().with_replicas(replicas);
        Groups::new(members.unwrap(), Rules::default().partitions)
    }

    fn name(number: usize) -> Name {
        Name::new(format!("name {number}").as_bytes()).unwrap()
    }

    #[test]
    fn the_first_partition_prefers_the_members_in_their_order() {
        for (count, replicas) in [(1, 1), (3, 3), (5, 3), (8, 5)] {
            let groups = groups(count, replicas);
            let voters = groups.voters(0).iter().map(|member| member.place());
            assert_eq!(
                voters.collect::<Vec<_>>(),
                (0..replicas).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn any_two_quorums_of_a_group_have_a_voter_in_common() {
        for (count, replicas) in [(1, 1), (2, 2), (3, 3), (4, 3), (4, 4), (9, 3), (64, 5)] {
            let groups = groups(count, replicas);
            for set in groups.sets() {
                assert_eq!(set.len(), replicas);
            }
            let size = groups.quorums(&name(0).into()).size();
            assert!(2 * size > replicas && 2 * (size - 1) <= replicas);
        }
    }

    /// The partitions, and the first choices, are spread over the members within a fifth of the mean.
    #[test]
    fn each_member_serves_about_the_same_share() {
        for (count, replicas) in [(2, 2), (3, 3), (5, 5), (6, 5), (8, 3), (16, 3), (16, 5)] {
            let groups = groups(count, replicas);
            for member in Members::new(count).unwrap().iter() {
                let share = |voters: &dyn Fn(&Group) -> bool, mean: usize| {
                    let count = groups.0.groups.iter().filter(|group| voters(group)).count();
                    assert!(count.abs_diff(mean) * 5 <= mean, "{count} of {member:?}");
                };
                let partitions = groups.0.groups.len();
                share(&|group| group.voters[0] == member, partitions / count);
                let mean = partitions * replicas / count;
                share(&|group| group.voters.contains(&member), mean);
            }
        }
    }

    /// Rendezvous hashing: a member that is added takes its share, and no other partition changes.
    #[test]
    fn one_more_member_changes_each_group_by_at_most_one() {
        let (before, after) = (groups(15, 3), groups(16, 3));
        let mut moved = 0;
        for (old, new) in before.sets().zip(after.sets()) {
            assert!(new.minus(old).len() <= 1);
            moved += new.minus(old).len();
        }
        assert!(moved > 4096 * 3 / 16 / 2 && moved < 4096 * 3 / 16 * 2);
    }

    #[test]
    fn a_lock_of_several_names_needs_a_quorum_of_each_group() {
        let groups = groups(16, 3);
        let names = Names::new((0..4).map(name).collect()).unwrap();
        let quorums = groups.quorums(&names);
        let all: MemberSet = (0..MAX_MEMBERS).filter_map(Member::at).collect();
        assert!(quorums.met_by(all) && quorums.met_by(quorums.voters()));
        for name in names.iter() {
            let voters = groups.voters(groups.partition(name));
            let without = all.without(voters[0]).without(voters[1]);
            assert!(quorums.met_by(all.without(voters[0])));
            assert!(!quorums.met_by(without));
            for member in (0..16).filter_map(Member::at) {
                let served = groups.served(&names, member);
                let is_served = served.is_some_and(|some| some.iter().any(|other| other == name));
                assert_eq!(is_served, voters.contains(&member));
            }
        }
    }

    #[test]
    fn a_quorum_is_counted_for_each_partition() {
        let groups = groups(16, 3);
        let all: MemberSet = (0..16).filter_map(Member::at).collect();
        assert_eq!(groups.with_quorum(all), (4096, 4096));
        assert_eq!(groups.with_quorum(MemberSet::EMPTY), (0, 4096));
        let down = all.without(Member::at(3).unwrap());
        assert_eq!(groups.with_quorum(down), (4096, 4096));
        // Two of sixteen are both in about 2.5 % of the groups.
        let (with, _) = groups.with_quorum(down.without(Member::at(4).unwrap()));
        assert!((3900..4090).contains(&with), "{with}");
    }
}
