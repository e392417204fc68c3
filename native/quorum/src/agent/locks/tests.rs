use super::*;
use crate::message::Name;

const LEFT: Duration = Duration::from_nanos(10);

fn insert(locks: &mut Locks, token: u64, votes: u64, now: i64) -> bool {
    insert_with(locks, token, votes, (0, i64::MAX), now)
}

fn insert_with(
    locks: &mut Locks,
    token: u64,
    votes: u64,
    (provisional, end): (u64, i64),
    now: i64,
) -> bool {
    let votes = MemberSet::from_bits(votes);
    let provisional = (MemberSet::from_bits(provisional), Time(end));
    let lock = HeldLock {
        token: Token(token),
        names: Name::new(&token.to_be_bytes()).unwrap().into(),
        mode: Mode::Write,
        fence: Fence(token),
        last: Fence(token),
        since: Time(0),
        pass_until: None,
        asked: votes,
        standing: Arc::new(Standing::with(votes, 2, provisional)),
    };
    locks.insert(Token(token), lock, Time(now))
}

/// Three voters, of which the middle one has not renewed its votes. Lock 1 has the votes of the first two, and its
/// holder was notified. Lock 2 has all three.
fn first_at_risk() -> Locks {
    let mut locks = Locks::new(Members::new(3).unwrap(), 2, LEFT);
    for (place, until) in [100, 10, 100].into_iter().enumerate() {
        locks.lease.set(Member::at(place).unwrap(), Time(until));
    }
    assert!(!insert(&mut locks, 1, 0b011, 0));
    assert!(!insert(&mut locks, 2, 0b111, 0));
    assert_eq!(at_risk(&mut locks, 5), [Token(1)]);
    locks
}

fn at_risk(locks: &mut Locks, now: i64) -> Vec<Token> {
    let ending = locks.look(Time(now));
    assert_eq!(ending.expired, []);
    ending.at_risk
}

/// The last voter forgets its votes. Both locks then have the same votes.
#[test]
fn a_lock_whose_votes_become_those_of_a_lock_at_risk_is_at_risk() {
    let mut locks = first_at_risk();
    locks.begin(Member::at(2).unwrap(), Time(100));
    assert!(locks.deadline() <= Some(Time(5)));
    assert!(at_risk(&mut locks, 5).contains(&Token(2)));
    assert_eq!(at_risk(&mut locks, 5), []);
}

/// The last voter loses its vote for the second lock only.
#[test]
fn a_lock_that_joins_a_lock_at_risk_is_at_risk() {
    let mut locks = first_at_risk();
    let last = Member::at(2).unwrap();
    assert!(locks.vote(Token(2), last, false));
    // Its holder is notified now, and not again.
    assert!(!locks.vote(Token(2), last, false));
    assert_eq!(at_risk(&mut locks, 5), []);
}

/// Its unasked vote ends, and is not confirmed.
#[test]
fn a_lock_whose_unasked_vote_ends_joins_a_lock_at_risk() {
    let mut locks = first_at_risk();
    assert!(!insert_with(&mut locks, 3, 0b111, (0b100, 7), 5));
    assert_eq!(
        (locks.deadline(), at_risk(&mut locks, 6)),
        (Some(Time(7)), vec![])
    );
    assert_eq!(at_risk(&mut locks, 7), [Token(3)]);
    assert_eq!(at_risk(&mut locks, 8), []);
}

/// Its holder is notified at once, unless the voters have renewed their votes since the others were notified.
#[test]
fn a_new_lock_with_the_votes_of_a_lock_at_risk_is_at_risk() {
    let mut locks = first_at_risk();
    assert!(insert(&mut locks, 3, 0b011, 5));
    assert_eq!(at_risk(&mut locks, 5), []);
    locks.lease.set(Member::at(1).unwrap(), Time(30));
    assert!(!insert(&mut locks, 4, 0b011, 6));
    assert_eq!(at_risk(&mut locks, 6), []);
    let all = [1, 2, 3, 4].map(Token);
    assert_eq!(at_risk(&mut locks, 21), [all[0], all[2], all[3]]);
}

/// Once until more is left again, and expired at the end.
#[test]
fn a_renewed_lock_is_at_risk_again_later() {
    let mut locks = first_at_risk();
    let middle = Member::at(1).unwrap();
    assert_eq!(locks.deadline(), Some(Time(10)));
    locks.lease.set(middle, Time(30));
    assert_eq!(at_risk(&mut locks, 6), []);
    assert_eq!(locks.deadline(), Some(Time(21)));
    assert_eq!(at_risk(&mut locks, 20), []);
    assert_eq!(at_risk(&mut locks, 21), [Token(1)]);
    assert_eq!(locks.look(Time(30)).expired, [Token(1)]);
}

/// A lock with three votes, of which two end one after the other; and a lock of these two voters.
#[test]
fn a_lock_is_at_risk_when_its_voters_with_margin_are_no_quorum() {
    let mut locks = Locks::new(Members::new(3).unwrap(), 2, LEFT);
    for (place, until) in [100, 50, 30].into_iter().enumerate() {
        locks.lease.set(Member::at(place).unwrap(), Time(until));
    }
    assert_eq!((locks.deadline(), at_risk(&mut locks, 0)), (None, vec![]));
    assert!(!insert(&mut locks, 1, 0b111, 0));
    assert_eq!(locks.deadline(), Some(Time(21)));
    assert_eq!(at_risk(&mut locks, 21), []);
    assert_eq!(locks.deadline(), Some(Time(41)));
    assert_eq!(at_risk(&mut locks, 40), []);
    assert_eq!(at_risk(&mut locks, 41), [Token(1)]);
    assert_eq!(locks.deadline(), Some(Time(50)));
    assert!(!insert(&mut locks, 2, 0b011, 0));
    assert_eq!(locks.deadline(), Some(Time::LONG_AGO));
    assert_eq!(at_risk(&mut locks, 41), [Token(2)]);
    assert_eq!(locks.look(Time(50)).expired, [Token(1), Token(2)]);
}

#[test]
fn each_voter_knows_its_locks() {
    let mut locks = first_at_risk();
    let [first, _, last] = [0, 1, 2].map(|place| Member::at(place).unwrap());
    let digest = |tokens: &[u64]| {
        let tokens = tokens.iter().map(|token| Token(*token));
        tokens.fold(Digest::default(), Digest::with)
    };
    let lacking = |locks: &Locks, member| {
        let tokens = locks.lacking(member, Token(0), false);
        let tokens = tokens.map(|token| token.0);
        tokens.collect::<Vec<_>>()
    };
    assert_eq!(
        (locks.digest(first), locks.digest(last)),
        (digest(&[1, 2]), digest(&[2]))
    );
    assert_eq!(
        (lacking(&locks, first), lacking(&locks, last)),
        (vec![], vec![1])
    );
    locks.vote(Token(1), last, true);
    assert_eq!(
        (locks.digest(last), lacking(&locks, last)),
        (digest(&[1, 2]), vec![])
    );
    locks.begin(last, Time(100));
    assert_eq!(
        (locks.digest(last), lacking(&locks, last)),
        (digest(&[]), vec![1, 2])
    );
    locks.remove(Token(1));
    assert_eq!(
        (locks.digest(first), lacking(&locks, last)),
        (digest(&[2]), vec![2])
    );
    locks.remove(Token(2));
    assert!(locks.is_empty() && locks.deadline().is_none());
    assert_eq!(lacking(&locks, last), []);
}

/// Lock 1 with the votes of the first two of three voters, in transition to a list of two members.
fn in_transition() -> (Locks, [Member; 3]) {
    let mut locks = Locks::new(Members::new(3).unwrap(), 2, LEFT);
    let voters = [0, 1, 2].map(|place| Member::at(place).unwrap());
    for voter in voters {
        locks.lease.set(voter, Time(100));
    }
    insert(&mut locks, 1, 0b011, 0);
    locks.adopt(Members::new(2).unwrap(), 2, LEFT, true);
    (locks, voters)
}

/// It has no votes, and continues at both members.
#[test]
fn a_lock_in_transition_waits_for_its_deadline() {
    let (mut locks, [first, second, _]) = in_transition();
    for member in [first, second] {
        assert!(locks.continues(member, Token(1)));
        assert_eq!(locks.digest(member), Digest::default());
    }
    // Votes are no news for its holder.
    assert!(!locks.vote(Token(1), first, true));
    assert!(!locks.continues_any(first));
    assert_eq!(locks.deadline(), Some(Time(91)));
    assert_eq!(at_risk(&mut locks, 90), []);
    assert_eq!(at_risk(&mut locks, 91), [Token(1)]);
    assert_eq!(locks.deadline(), Some(Time(100)));
    assert_eq!(locks.look(Time(100)).expired, [Token(1)]);
    locks.remove(Token(1));
    assert!(locks.is_empty() && locks.deadline().is_none());
}

/// A voter that has no vote for a lock in transition may not be settled without it.
#[test]
fn a_lock_in_transition_continues_until_it_is_confirmed() {
    let (mut locks, [first, second, _]) = in_transition();
    locks.vote(Token(1), first, false);
    assert!(locks.continues(first, Token(1)));
    locks.vote(Token(1), first, true);
    locks.vote(Token(1), second, true);
    assert!(!locks.continues_any(first) && !locks.continues_any(second));
    // A further session has no votes, and knows of no lock.
    locks.begin_adopted(first);
    assert!(locks.continues(first, Token(1)));
    assert_eq!(locks.held[&Token(1)].standing.votes().bits(), 0b10);
    // One that no lock continues is not asserted in a quarantine.
    insert(&mut locks, 2, 0b10, 0);
    assert!(locks
        .lacking(first, Token(0), false)
        .eq([Token(1), Token(2)]));
    assert!(locks.lacking(first, Token(0), true).eq([Token(1)]));
}

/// It moves when both are true: it is kept, and a quorum of live votes is there.
#[test]
fn a_kept_lock_moves_with_the_last_live_vote() {
    let (mut locks, [first, second, _]) = in_transition();
    for voter in [first, second] {
        locks.lease.set(voter, Time(120));
    }
    locks.vote(Token(1), first, true);
    assert!(locks.seal(first, Time(99)).is_empty());
    assert!(locks.seal(second, Time(99)).is_empty());
    assert!(!locks.move_lock(Token(1), Time(99)) && !locks.is_settled());
    locks.vote(Token(1), second, true);
    // Too little is left, so its set is looked at.
    assert!(!locks.move_lock(Token(1), Time(115)) && locks.is_settled());
    assert_eq!(at_risk(&mut locks, 115), [Token(1)]);
    assert_eq!(locks.look(Time(120)).expired, [Token(1)]);
}
