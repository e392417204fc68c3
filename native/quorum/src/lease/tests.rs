use super::*;

/// A provisional vote counts until it ends, or as any other when it is confirmed.
#[test]
fn provisional_votes_end_earlier() {
    let lease = Lease::new();
    let voters: Vec<Member> = (0..3).filter_map(Member::at).collect();
    voters.iter().for_each(|voter| lease.set(*voter, Time(100)));
    let votes = MemberSet::EMPTY.with(voters[0]).with(voters[1]);
    let lock = |end| Standing::with(votes, 2, (MemberSet::EMPTY.with(voters[1]), Time(end)));
    let first = lock(20);
    assert!(lease.holds(&first, || Time(19)) && !lease.holds(&first, || Time(20)));
    assert_eq!(first.end(), Some(Time(20)));
    // A third vote replaces it.
    first.confirm(voters[2]);
    assert!(lease.holds(&first, || Time(99)) && !lease.holds(&first, || Time(100)));
    first.set(votes);
    assert!(!lease.holds(&first, || Time(20)));
    first.confirm(voters[1]);
    assert!(lease.holds(&first, || Time(99)) && first.end().is_none());
    // An end after the lease does not extend it.
    let late = lock(500);
    assert!(lease.holds(&late, || Time(99)) && !lease.holds(&late, || Time(100)));
}

#[test]
fn a_quorum_of_valid_votes_holds() {
    let lease = Lease::new();
    let voters: Vec<Member> = (0..3).filter_map(Member::at).collect();
    let lock = Standing::new(voters.iter().copied().collect(), 2);
    assert!(!lease.holds(&lock, || Time(0)));
    for (place, voter) in voters.iter().enumerate() {
        lease.set(*voter, Time(10 * (place as i64 + 1)));
    }
    assert!(lease.holds(&lock, || Time(19)));
    assert!(
        !lease.holds(&lock, || Time(20)),
        "a vote is valid before its expiry, not at it"
    );
    assert_eq!(lease.until(lock.votes(), 2), Time(20));
    lock.set(lock.votes().without(voters[2]));
    assert!(lease.holds(&lock, || Time(9)));
    assert!(!lease.holds(&lock, || Time(10)));
    assert_eq!(
        lease.until(lock.votes(), 3),
        Time::LONG_AGO,
        "two votes never reach a quorum of three"
    );
}

/// L1: the clock is read last. If the call paused after it had read the clock, it could count a vote that has
/// expired since together with one that was granted since.
#[test]
fn l1_a_vote_that_comes_after_the_clock_was_read_does_not_count() {
    let lease = Lease::new();
    let lock = Standing::new(MemberSet::from_bits(0b11), 2);
    let [expiring, late] = [Member::at(0).unwrap(), Member::at(1).unwrap()];
    lease.set(expiring, Time(20));
    let clock = || {
        lease.set(late, Time(100));
        Time(10)
    };
    assert!(!lease.holds(&lock, clock));
}

#[test]
fn an_ended_lease_stays_ended() {
    let lease = Lease::new();
    let lock = Standing::new(MemberSet::from_bits(0b11), 2);
    let [one, other] = [Member::at(0).unwrap(), Member::at(1).unwrap()];
    lease.set(one, Time(10));
    lease.set(other, Time(10));
    assert!(lease.holds(&lock, || Time(5)));
    lease.end();
    assert!(!lease.holds(&lock, || Time(5)));
    for until in [Time(20), Time(i64::MAX), Time::LONG_AGO, Time(20)] {
        lease.set(one, until);
        lease.set(other, until);
        assert!(!lease.holds(&lock, || Time(i64::MIN)), "{until:?}");
    }
    assert_eq!(lease.until(lock.votes(), 2), Time::LONG_AGO);
}

#[test]
fn no_expiry_ends_a_lease() {
    let lease = Lease::new();
    let voter = Member::at(0).unwrap();
    lease.set(voter, Time::LONG_AGO);
    lease.set(voter, Time(10));
    assert_eq!(lease.valid(voter), Time(10));
}

#[test]
fn a_copy_is_independent() {
    let (lease, lock) = (Lease::new(), Standing::new(MemberSet::from_bits(1), 1));
    let (other, copy) = (lease.clone(), lock.clone());
    assert!(other == lease && copy == lock);
    lease.set(Member::at(0).unwrap(), Time(10));
    lock.set(MemberSet::EMPTY);
    assert!(other != lease && copy != lock);
}

/// L4, and what follows when its votes count. An earlier deadline is not extended by votes that do not count.
#[test]
fn a_lock_in_transition_is_held_until_its_deadline() {
    let lease = Lease::new();
    let lock = Standing::new(MemberSet::from_bits(0b11), 2);
    let [one, other] = [Member::at(0).unwrap(), Member::at(1).unwrap()];
    lease.set(one, Time(20));
    lease.set(other, Time(30));
    assert_eq!(lease.held_until(&lock), Time(20));
    for quorum in [1, 2] {
        lock.adopt(lease.held_until(&lock), quorum);
        lease.reset();
        assert_eq!((lock.votes(), lock.quorum()), (MemberSet::EMPTY, quorum));
        lock.confirm(one);
        lock.confirm(other);
        lease.set(one, Time(50));
        lease.set(other, Time(50));
        assert!(lease.holds(&lock, || Time(19)) && !lease.holds(&lock, || Time(20)));
    }
    lock.count();
    assert!(lease.holds(&lock, || Time(49)) && !lease.holds(&lock, || Time(50)));
    lock.set(MemberSet::EMPTY);
    assert!(lease.holds(&lock, || Time(19)) && !lease.holds(&lock, || Time(20)));
    let copy = lock.clone();
    assert_eq!(copy, lock);
    lock.withdraw();
    assert!(!lease.holds(&lock, || Time(19)) && lease.holds(&copy, || Time(19)));
    lease.end();
    assert!(!lease.holds(&copy, || Time(19)));
}

/// Otherwise a call that is slow could take the votes of one list for those of another.
#[test]
fn no_word_of_an_earlier_list_comes_back() {
    let lock = Standing::new(MemberSet::from_bits(0b11), 2);
    let mut words = std::collections::HashSet::new();
    for _ in 0..100 {
        assert!(words.insert(lock.word()));
        lock.adopt(Time(0), 2);
        assert!(words.insert(lock.word()));
        lock.set(MemberSet::from_bits(0b11));
        lock.count();
    }
}
