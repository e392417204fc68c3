use super::*;
use loom::sync::Arc;

fn member(place: usize) -> Member {
    Member::at(place).unwrap()
}

/// L1: a voter loses its vote for this lock and then gets a new expiry for other votes. The new expiry must not
/// count for the old vote.
#[test]
fn l1_a_new_expiry_does_not_count_for_an_old_vote() {
    loom::model(|| {
        let lease = Arc::new(Lease::new());
        let [kept, lapsed] = [member(0), member(1)];
        lease.set(kept, Time(100));
        lease.set(lapsed, Time(5));
        let lock = Arc::new(Standing::new(MemberSet::EMPTY.with(kept).with(lapsed), 2));
        let agent = {
            let (lease, lock) = (Arc::clone(&lease), Arc::clone(&lock));
            loom::thread::spawn(move || {
                lock.set(lock.votes().without(lapsed));
                lease.set(lapsed, Time(100));
            })
        };
        assert!(!lease.holds(&lock, || Time(10)));
        agent.join().unwrap();
    });
}

/// L2: a thread that knows that a lock was withdrawn does not find it held.
#[test]
fn l2_a_withdrawn_lock_is_not_held() {
    loom::model(|| {
        let lease = Arc::new(Lease::new());
        lease.set(member(0), Time(100));
        let lock = Arc::new(Standing::new(MemberSet::EMPTY.with(member(0)), 1));
        let withdrawn = Arc::new(AtomicU64::new(0));
        let agent = {
            let (lock, withdrawn) = (Arc::clone(&lock), Arc::clone(&withdrawn));
            loom::thread::spawn(move || {
                lock.set(MemberSet::EMPTY);
                withdrawn.store(1, Ordering::Release);
            })
        };
        let known = withdrawn.load(Ordering::Acquire) == 1;
        assert!(!(lease.holds(&lock, || Time(10)) && known));
        agent.join().unwrap();
    });
}

/// L3: a thread that knows that a lease has ended finds no lock held, although the agent stores an expiry
/// concurrently.
#[test]
fn l3_an_ended_lease_holds_no_lock() {
    loom::model(|| {
        let lease = Arc::new(Lease::new());
        lease.set(member(0), Time(100));
        let lock = Standing::new(MemberSet::EMPTY.with(member(0)), 1);
        let agent = {
            let lease = Arc::clone(&lease);
            loom::thread::spawn(move || lease.set(member(0), Time(200)))
        };
        let ended = Arc::new(AtomicU64::new(0));
        let ender = {
            let (lease, ended) = (Arc::clone(&lease), Arc::clone(&ended));
            loom::thread::spawn(move || {
                lease.end();
                ended.store(1, Ordering::Release);
            })
        };
        let known = ended.load(Ordering::Acquire) == 1;
        assert!(!(lease.holds(&lock, || Time(10)) && known));
        agent.join().unwrap();
        ender.join().unwrap();
        assert!(!lease.holds(&lock, || Time(10)));
    });
}

/// While the agent adds a vote, two others of three hold the lock. `holds` returns, with the correct answer.
#[test]
fn a_concurrent_vote_does_not_disturb_a_call() {
    loom::model(|| {
        let lease = Arc::new(Lease::new());
        (0..3).for_each(|place| lease.set(member(place), Time(100)));
        let lock = Arc::new(Standing::new(
            MemberSet::EMPTY.with(member(0)).with(member(1)),
            2,
        ));
        let agent = {
            let lock = Arc::clone(&lock);
            loom::thread::spawn(move || lock.set(lock.votes().with(member(2))))
        };
        assert!(lease.holds(&lock, || Time(10)));
        assert!(!lease.holds(&lock, || Time(100)));
        agent.join().unwrap();
    });
}

/// One thread calls `holds` while the agent adopts a list. The agent is not the spawned thread: loom does not find some
/// orders then, in which the reader runs between two of its writes.
fn while_adopting(
    lease: Lease,
    lock: Standing,
    holds: impl Fn(&Lease, &Standing) + Send + 'static,
    adopts: impl Fn(&Lease, &Standing),
) {
    let (lease, lock) = (Arc::new(lease), Arc::new(lock));
    let reader = {
        let (lease, lock) = (Arc::clone(&lease), Arc::clone(&lock));
        loom::thread::spawn(move || holds(&lease, &lock))
    };
    adopts(&lease, &lock);
    reader.join().unwrap();
}

/// L4: at each moment the votes of the list before hold it, or the deadline does.
#[test]
fn l4_a_lock_is_held_while_its_agent_adopts_a_list() {
    loom::model(|| {
        let lease = Lease::new();
        lease.set(member(0), Time(20));
        let lock = Standing::new(MemberSet::EMPTY.with(member(0)), 1);
        let holds = |lease: &Lease, lock: &Standing| assert!(lease.holds(lock, || Time(19)));
        while_adopting(lease, lock, holds, |lease, lock| {
            lock.adopt(lease.held_until(lock), 1);
            lease.set(member(0), NONE);
        });
    });
}

/// L4: votes of the new list, and the expiries of its voters, do not count.
#[test]
fn l4_a_lock_in_transition_is_held_until_its_deadline() {
    loom::model(|| {
        let lease = Lease::new();
        lease.set(member(0), Time(20));
        let lock = Standing::new(MemberSet::EMPTY.with(member(0)), 1);
        let holds = |lease: &Lease, lock: &Standing| assert!(!lease.holds(lock, || Time(20)));
        while_adopting(lease, lock, holds, |lease, lock| {
            lock.adopt(lease.held_until(lock), 1);
            lease.set(member(0), NONE);
            lock.confirm(member(0));
            lease.set(member(0), Time(100));
        });
    });
}

/// L1: a lock that has moved is held by votes of the new list, and by none of the list before.
#[test]
fn l1_an_expiry_of_the_list_before_does_not_count_for_a_new_vote() {
    loom::model(|| {
        let lease = Lease::new();
        // The voter at this place has no vote for the lock.
        lease.set(member(0), Time(50));
        lease.set(member(1), Time(20));
        let lock = Standing::new(MemberSet::EMPTY.with(member(1)), 1);
        let holds = |lease: &Lease, lock: &Standing| assert!(!lease.holds(lock, || Time(30)));
        while_adopting(lease, lock, holds, |lease, lock| {
            lock.adopt(lease.held_until(lock), 1);
            (0..2).for_each(|place| lease.set(member(place), NONE));
            lock.confirm(member(0));
            lease.set(member(0), Time(30));
            lock.count();
        });
    });
}

/// L2, L3: a withdrawn lock is not held until its deadline, nor is one of an ended lease.
#[test]
fn l3_a_deadline_ends_with_the_lease_and_with_the_lock() {
    for withdraws in [false, true] {
        loom::model(move || {
            let lease = Arc::new(Lease::new());
            lease.set(member(0), Time(100));
            let lock = Arc::new(Standing::new(MemberSet::EMPTY.with(member(0)), 1));
            let over = Arc::new(AtomicU64::new(0));
            let ender = {
                let (lease, lock) = (Arc::clone(&lease), Arc::clone(&lock));
                let over = Arc::clone(&over);
                loom::thread::spawn(move || {
                    lock.adopt(Time(100), 1);
                    match withdraws {
                        true => lock.withdraw(),
                        false => lease.end(),
                    }
                    over.store(1, Ordering::Release);
                })
            };
            let known = over.load(Ordering::Acquire) == 1;
            assert!(!(lease.holds(&lock, || Time(10)) && known));
            ender.join().unwrap();
            assert!(!lease.holds(&lock, || Time(10)));
        });
    }
}
