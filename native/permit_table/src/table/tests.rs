//! What can be seen only from inside: memory that fails, panics, dead keys, the number of heads.

use super::*;
use crate::fault::{arm, disarm, Fault};
use crate::keys::{Link, CHUNK};
use crate::pin;
use std::cell::Cell;
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Any number is a key, and asked for by itself.
impl Key for u64 {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Query<u64> for u64 {
    fn to_key(&self) -> Result<u64, OutOfMemory> {
        Ok(*self)
    }
}

fn acquire(table: &Table<u64>, holder: Holder, key: u64) -> Result<Acquired, OutOfMemory> {
    table.acquire(&pin(), holder, &key, Capacity::of(9, 1), || Ok(()))
}

/// How many permits are out: so many have the keys counted, and so many have their holders on record.
#[track_caller]
fn permits(table: &Table<u64>) -> u64 {
    let mut counted = 0;
    let mut after = Some(0);
    while let Some(start) = after {
        after = table.keys_after(start, 64, |_, out| counted += out);
    }
    assert_eq!(table.usage().permits, counted);
    counted
}

/// P9: whichever allocation of a call fails, the call says so and nothing has changed; and the same call goes
/// through when there is memory again.
#[test]
fn p9_no_memory_at_any_point_changes_nothing() {
    // SAFETY: one thread, and nothing after `give_back`.
    let holder = |word, place| unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) };
    // The first permit of all; one of a key that is there; the third key of a holder; a holder whose place is
    // taken.
    let calls = [
        (holder(1, 0), 1),
        (holder(2, 1), 1),
        (holder(1, 0), 2),
        (holder(1, 0), 3),
        (holder(3, 0), 4),
    ];
    let table = Table::new(4096).unwrap();
    let mut failures = 0;
    for (holder, key) in calls {
        for grants in 0.. {
            let before = table.usage();
            arm(Fault::Memory, grants);
            let outcome = acquire(&table, holder, key);
            disarm();
            if outcome.is_ok() {
                break;
            }
            failures += 1;
            let after = table.usage();
            assert_eq!(
                (after.keys, permits(&table), after.holders),
                (before.keys, before.permits, before.holders)
            );
            assert_eq!(
                table.count(&pin(), &key),
                u64::from(key == 1 && before.keys > 0)
            );
        }
    }
    assert!(failures >= 7, "{failures} allocations were made to fail");
    assert_eq!(permits(&table), 5);
    for (word, place) in [(1, 0), (2, 1), (3, 0)] {
        table.give_back(&pin(), holder(word, place), || false);
    }
    assert_eq!(permits(&table), 0);
}

/// P9, H4: a place does not count a holder that there was no memory for. Calls there would always take a lock.
#[test]
fn p9_a_holder_that_is_not_displaced_is_not_counted() {
    // SAFETY: one thread, and nothing after `give_back`.
    let holder = |word| unsafe { Holder::new(NonZeroU64::new(word).unwrap(), 0) };
    let table = Table::new(16).unwrap();
    acquire(&table, holder(1), 1).unwrap();
    let home = table.holders.find(holder(1)).unwrap();
    for grants in 0..2 {
        arm(Fault::Memory, grants);
        assert!(acquire(&table, holder(2), 1).is_err());
        disarm();
        assert_eq!(home.displaced().load(crate::sync::Ordering::Relaxed), 0);
    }
    acquire(&table, holder(2), 1).unwrap();
    assert_eq!(home.displaced().load(crate::sync::Ordering::Relaxed), 1);
}

/// P9: a key is on the account together with its node, or not at all.
#[test]
fn p9_a_key_without_memory_for_its_node_costs_nothing() {
    #[derive(PartialEq, Eq, Hash)]
    struct Long;
    impl Key for Long {
        fn heap_bytes(&self) -> usize {
            1000
        }
    }
    impl Query<Long> for Long {
        fn to_key(&self) -> Result<Long, OutOfMemory> {
            Ok(Long)
        }
    }
    let account = Account::default();
    arm(Fault::Memory, 0);
    assert!(NewNode::with_one_permit(&Long, 1, &account).is_err());
    disarm();
    assert_eq!(account.bytes(), 0);
    let new = NewNode::with_one_permit(&Long, 1, &account).unwrap();
    assert_eq!(account.bytes(), size_of::<Node<Long>>() + 1000);
    drop(new);
    assert_eq!(account.bytes(), 0);
}

/// P8: with the first key behind it a head is linked in, so that no lookup walks until the next sweep.
#[test]
fn p8_a_key_links_the_head_of_its_range() {
    let table = Table::<u64>::new(16).unwrap();
    let pin = pin();
    for range in [1u64, 2, 3] {
        let head = range << (u64::BITS - table.keys.bits());
        let order = order_of_key(head);
        assert_ne!(table.keys.entry(order).link.order(), head);
        let new = NewNode::with_one_permit(&range, order, &table.account).unwrap();
        assert!(matches!(
            table.keys.insert(&pin, &range, new),
            Inserted::New(_)
        ));
        assert_eq!(table.keys.entry(order).link.order(), head);
    }
}

/// P8: a caller that has read the number of heads before they became fewer makes a chunk that is not needed. It goes
/// with the next pass.
#[test]
fn p8_a_chunk_that_comes_late_goes_too() {
    let table = Table::<u64>::new(16).unwrap();
    let before = table.usage();
    let bits = table.keys.bits();
    table.keys.resize(bits, bits + 2);
    table.keys.link_head(&pin(), u64::MAX, &table.account);
    table.keys.resize(bits + 2, bits);
    assert!(table.usage().memory > before.memory);
    while table.sweep_step(&mut Budget::of(1000)) != Progress::Done {
        std::thread::yield_now();
    }
    assert_eq!(table.usage().memory, before.memory);
}

/// P8, P9: a step without memory takes nothing out, and the pass goes on from there.
#[test]
fn p8_a_pass_goes_on_after_a_step_without_memory() {
    // SAFETY: one thread.
    let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
    let table = Table::new(16).unwrap();
    for key in 0..10 {
        acquire(&table, holder, key).unwrap();
        table.release(&pin(), holder, &key).unwrap();
    }
    let step = || table.sweep_step(&mut Budget::of(64));
    let finish = || {
        while step() != Progress::Done {
            std::thread::yield_now();
        }
    };
    // What is used no more goes with the second pass.
    finish();
    arm(Fault::Memory, 0);
    assert_eq!(step(), Progress::Waiting);
    disarm();
    assert_eq!(table.usage().keys, 10);
    finish();
    assert_eq!(table.usage().keys, 0);
}

/// More heads than keys would be a waste, and with fewer a lookup would be a walk. Where their number changes
/// matters little; but that it wavers with the number of keys would cost much.
#[test]
fn p8_heads_come_with_the_keys_and_go_with_them() {
    // SAFETY: one thread, and nothing after `give_back`.
    let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
    let table = Table::new(16).unwrap();
    let heads = || 1 << table.keys.bits();
    let chunk = CHUNK as u64;
    let take = |keys| {
        for key in keys {
            acquire(&table, holder, key).unwrap();
        }
    };
    let give = |keys| {
        for key in keys {
            table.release(&pin(), holder, &key).unwrap();
        }
        // What is used no more goes with the second pass, its heads with the third.
        for _ in 0..3 {
            loop {
                match table.sweep_step(&mut Budget::of(1000)) {
                    Progress::Done => break,
                    Progress::Waiting => std::thread::yield_now(),
                    Progress::More => {}
                }
            }
        }
    };
    take(0..chunk);
    assert_eq!(heads(), chunk);
    take(chunk..chunk + 1);
    assert_eq!(heads(), 2 * chunk);
    take(chunk + 1..2 * chunk + 1);
    assert_eq!(heads(), 4 * chunk);
    give(chunk + 1..2 * chunk + 1);
    assert_eq!(heads(), 4 * chunk, "still more keys than a quarter");
    give(chunk..chunk + 1);
    assert_eq!(heads(), 2 * chunk);
    give(1..chunk);
    assert_eq!(heads(), chunk, "never fewer");
    table.give_back(&pin(), holder, || false);
}

/// Puts in a key with this order, if it is not there.
fn insert<'a>(table: &'a Table<u64>, pin: &'a Pin, key: u64, order: u64) -> Option<&'a Node<u64>> {
    let new = NewNode::with_one_permit(&key, order, &table.account).unwrap();
    match table.keys.insert(pin, &key, new) {
        Inserted::New(node) => Some(node),
        Inserted::Present(_) => None,
    }
}

/// K4: a key that has died is passed over before the sweep has unlinked it, and so is another that happens to have
/// the same hash; but nobody puts in what is there.
#[test]
fn k4_of_the_nodes_with_one_key_one_is_alive() {
    let table = Table::<u64>::new(16).unwrap();
    let pin = pin();
    let order = order_of_key(42);
    let insert = |key| insert(&table, &pin, key, order);
    let get = |key| table.keys.get(&pin, order, &key);
    let first = insert(1).unwrap();
    assert!(get(1).is_some() && insert(1).is_none());
    assert!(get(2).is_none() && insert(2).is_some());
    assert!(get(1).is_some() && insert(1).is_none(), "behind the other");

    first.buckets.release(1);
    first.buckets.sweep();
    first.buckets.sweep();
    assert!(get(1).is_none());
    let second = insert(1).unwrap();
    assert!(get(1).is_some_and(|found| std::ptr::eq(found, second)));
    assert!(get(2).is_some() && insert(2).is_none());
}

/// K4: a link that is marked does not end the run of its order. Of two keys with one hash, an insertion finds the one
/// behind it.
#[test]
fn k4_a_key_behind_a_marked_one_is_not_put_in_again() {
    let table = Table::<u64>::new(16).unwrap();
    let pin = pin();
    let order = order_of_key(42);
    let insert = |key| insert(&table, &pin, key, order);
    insert(1).unwrap();
    let first = insert(2).unwrap();
    // All that the sweep does to it but to unlink it.
    first.buckets.release(1);
    first.buckets.sweep();
    first.buckets.sweep();
    // SAFETY: a node begins with its link (repr(C)).
    unsafe { &*std::ptr::from_ref(first).cast::<Link>() }.mark();
    assert!(insert(1).is_none());
    assert!(insert(2).is_some());
}

/// K1, K2: a link that is marked may stand behind a greater one, which was linked in after the mark. A look that ends a
/// piece there tells the greater key once.
#[test]
fn k2_a_key_in_front_of_a_smaller_marked_one_is_told_once() {
    let table = Table::<u64>::new(16).unwrap();
    let pin = pin();
    // Each is its own order, so they stand in one range.
    let insert = |order| insert(&table, &pin, order, order).unwrap();
    let [_, idle, _] = [1, 3, 7].map(insert);
    // All that the sweep does to it but to unlink it.
    idle.buckets.release(1);
    idle.buckets.sweep();
    idle.buckets.sweep();
    // SAFETY: a node begins with its link (repr(C)).
    unsafe { &*std::ptr::from_ref(idle).cast::<Link>() }.mark();
    insert(5);
    let mut told = Vec::new();
    let mut after = Some(0);
    for _ in 0..9 {
        let Some(start) = after else { break };
        after = table.keys_after(start, 1, |key, _| told.push(*key));
    }
    assert_eq!((told, after), (vec![1, 5, 7], None));
}

/// E2: while the kernel refuses barriers, nothing is freed, and the usage says so. Then the sweep goes on.
#[test]
fn e2_nothing_is_freed_while_barriers_are_refused() {
    // SAFETY: one thread.
    let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
    let table = Table::new(16).unwrap();
    let step = || table.sweep_step(&mut Budget::of(64));
    acquire(&table, holder, 1).unwrap();
    table.release(&pin(), holder, &1).unwrap();
    while step() != Progress::Done {}
    let before = table.usage();

    arm(Fault::Barriers, 0);
    for _ in 0..5 {
        assert_ne!(step(), Progress::Done);
    }
    assert_eq!(crate::epochs::quiet_before(), 0, "no stamp is smaller");
    let hits = disarm();
    let refused = table.usage();
    assert_eq!((refused.keys, refused.memory), (0, before.memory));
    let count = refused.barriers_refused - before.barriers_refused;
    assert!(count > 0 && hits as u64 >= count);

    // Other tests' pins may hold it up for a moment.
    while step() != Progress::Done {
        std::thread::yield_now();
    }
    let after = table.usage();
    assert_eq!(after.barriers_refused, refused.barriers_refused);
    assert_eq!(after.memory, before.memory - 64);
}

/// Calls, with the panic of so many places on; answers nothing if it panicked.
fn with_panic<T>(grants: usize, call: impl FnOnce() -> T) -> Option<T> {
    arm(Fault::Panic, grants);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    assert_eq!(disarm() > 0, outcome.is_err());
    outcome.ok()
}

/// So many times as there are places to panic in, until the call goes through; answers what came of it, and how
/// often it panicked.
fn through_panics<T>(mut call: impl FnMut() -> T, mut check: impl FnMut()) -> (T, usize) {
    for grants in 0.. {
        if let Some(answer) = with_panic(grants, &mut call) {
            return (answer, grants);
        }
        check();
    }
    unreachable!()
}

/// P9: a panic (a bug of ours) anywhere in a call that takes or releases leaves everything as it was, and no
/// lock.
#[test]
fn p9_a_panic_anywhere_changes_nothing() {
    // SAFETY: one thread, and nothing after `give_back`.
    let holder = |word, place| unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) };
    let table = Table::new(4096).unwrap();
    let mut panics = 0;
    let watched = Cell::new(0);
    let watch = || {
        fault::point();
        watched.set(watched.get() + 1);
        fault::point();
        Ok::<(), OutOfMemory>(())
    };
    let calls = [
        (1, 0, 1),
        (2, 1, 1),
        (1, 0, 2),
        (1, 0, 3),
        (1, 0, 4),
        (1, 0, 4),
        (3, 0, 4),
    ];
    for (word, place, key) in calls {
        let before = table.usage();
        let first = table.holders.find(holder(word, place)).is_none();
        watched.set(0);
        let (outcome, panicked) = through_panics(
            || {
                let holder = holder(word, place);
                table.acquire(&pin(), holder, &key, Capacity::of(9, 1), watch)
            },
            || {
                let after = table.usage();
                assert_eq!(
                    (after.keys, permits(&table), after.holders),
                    (before.keys, before.permits, before.holders)
                );
            },
        );
        assert!(matches!(outcome, Ok(Acquired::Permit(_))));
        assert_eq!(
            watched.get() > 0,
            first,
            "watched if it is new, in spite of all"
        );
        panics += panicked;
    }
    for (word, place, key) in calls {
        let before = permits(&table);
        let holder = holder(word, place);
        let (released, panicked) = through_panics(
            || table.release(&pin(), holder, &key),
            || assert_eq!(permits(&table), before),
        );
        assert_eq!(released, Ok(()));
        panics += panicked;
    }
    assert!(panics >= 20, "{panics} places panicked");
    assert_eq!(permits(&table), 0);
}

/// H5: who adds up what is held does not wait for a holder of many keys, though that one is in the middle of a call.
#[test]
fn h5_a_sum_waits_for_no_holder() {
    /// Asks for the sum wherever it is compared, which is inside the lock of a holder of many keys.
    struct Asking<'a>(u64, &'a Table<u64>);
    impl Hash for Asking<'_> {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }
    impl Equivalent<u64> for Asking<'_> {
        fn equivalent(&self, key: &u64) -> bool {
            let usage = self.1.usage();
            assert_eq!((usage.permits, usage.holders), (4, 1));
            self.0 == *key
        }
    }
    // SAFETY: one thread, and nothing after `give_back`.
    let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
    let table = Table::new(16).unwrap();
    for key in 0..4 {
        acquire(&table, holder, key).unwrap();
    }
    let asking = Asking(3, &table);
    assert_eq!(table.release(&pin(), holder, &asking), Ok(()));
    assert_eq!(permits(&table), 3);
    table.give_back(&pin(), holder, || false);
}

/// P4, P9: a panic in the middle of a death loses nothing of it, and nothing is given back twice.
#[test]
fn p4_a_death_gives_back_in_spite_of_a_panic() {
    // SAFETY: one thread, and nothing after `give_back`.
    let holder = |word, place| unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) };
    for grants in 0.. {
        let table = Table::new(4096).unwrap();
        for (word, place) in [(1, 0), (2, 1), (3, 0)] {
            for key in [1, 1, 2, 3, 4, 4, 5] {
                acquire(&table, holder(word, place), key).unwrap();
            }
        }
        let mut hits = 0;
        for (dead, left) in [(holder(1, 0), 14), (holder(3, 0), 7)] {
            arm(Fault::Panic, grants);
            let given = table.give_back(&pin(), dead, || {
                fault::point();
                false
            });
            hits += disarm();
            assert_eq!(given, 7);
            assert!(table.holders.find(dead).is_none());
            assert_eq!(permits(&table), left);
        }
        assert_eq!(table.usage().totals.given_back, 14);
        assert_eq!(table.count(&pin(), &1), 2);
        if hits == 0 {
            assert!(grants >= 7, "{grants} places");
            return;
        }
    }
}

/// P4, P9: a panic while it is asked whether a word is reused changes nothing, and it is asked again.
#[test]
fn p4_a_new_process_inherits_in_spite_of_a_panic() {
    // SAFETY: one thread, and `give_back` is called for a process before the next one has its word.
    let holder = |word, place| unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) };
    let table = Table::new(4096).unwrap();
    for heir in [holder(1, 0), holder(3, 0)] {
        for key in [1, 2, 3] {
            acquire(&table, heir, key).unwrap();
        }
        let mut asked = 0;
        arm(Fault::Panic, 0);
        let given = table.give_back(&pin(), heir, || {
            asked += 1;
            fault::point();
            true
        });
        assert_eq!((disarm(), asked, given), (1, 2, 0));
        assert!((1..4).all(|key| table.release(&pin(), heir, &key).is_ok()));
    }
    assert_eq!(permits(&table), 0);
}

/// P8, P9: a sweep that panics anywhere is taken up by the next one: every idle key goes, and so do the heads.
#[test]
fn p8_a_sweep_that_panics_is_taken_up_by_the_next() {
    // SAFETY: one thread.
    let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
    let keys = 3 * crate::keys::CHUNK as u64;
    let mut panics = 0;
    for first in 0..5 {
        let table = Table::new(16).unwrap();
        acquire(&table, holder, 0).unwrap();
        for key in 1..=keys {
            acquire(&table, holder, key).unwrap();
            table.release(&pin(), holder, &key).unwrap();
        }
        let mut grants = first;
        let mut swept = 0;
        while swept < 8 {
            match with_panic(grants, || table.sweep_step(&mut Budget::of(256))) {
                Some(Progress::Done) => swept += 1,
                Some(_) => {}
                None => panics += 1,
            }
            // Further on in each step.
            grants = if grants > 1500 {
                first % 7
            } else {
                grants + 13
            };
        }
        let mut swept = 0;
        while swept < 4 {
            swept += usize::from(table.sweep_step(&mut Budget::of(256)) == Progress::Done);
        }
        assert_eq!(table.usage().keys, 1);
        assert_eq!(table.keys.bits(), crate::keys::MIN_BITS);
        let bytes = table.usage().memory;
        acquire(&table, holder, 1).unwrap();
        assert_eq!(
            table.usage().memory,
            bytes + 64,
            "but for the node nothing is left"
        );
    }
    assert!(panics > 100, "{panics} panics");
}

/// P8, P9: a head whose way out of the list was interrupted by a panic is out before its chunk is given up.
#[test]
fn p8_a_panic_leaves_no_head_in_the_list_that_will_be_freed() {
    // SAFETY: one thread.
    let holder = unsafe { Holder::new(NonZeroU64::MIN, 0) };
    let table = Table::new(16).unwrap();
    for key in 0..2 * crate::keys::CHUNK as u64 {
        acquire(&table, holder, key).unwrap();
        table.release(&pin(), holder, &key).unwrap();
    }
    while table.sweep_step(&mut Budget::of(256)) != Progress::Done {}
    // As long as somebody is inside, nothing is freed: so what is in the list can be looked at.
    let _inside = pin();
    let mut grants = 0;
    let mut panics = 0;
    loop {
        grants = (grants + 1) % 40;
        match with_panic(grants, || table.sweep_step(&mut Budget::of(16))) {
            Some(Progress::More) => {}
            Some(_) => break,
            None => panics += 1,
        }
    }
    assert!(panics > 100, "{panics} panics");
    assert_eq!(table.keys.bits(), crate::keys::MIN_BITS);
    let mut heads = 0;
    let (mut next, _) = table.keys.entry(0).link.next();
    // SAFETY: pinned since before the sweep began to take anything out.
    while let Some(link) = unsafe { next.as_ref() } {
        let head = table.keys.entry(link.order());
        assert!(
            std::ptr::eq(&head.link, link),
            "a head that is not there any more"
        );
        heads += 1;
        (next, _) = link.next();
    }
    assert!(heads > 1000, "{heads} heads");
}

#[test]
fn p9_a_table_that_cannot_be_made_leaves_nothing() {
    for grants in 0..3 {
        arm(Fault::Memory, grants);
        assert!(Table::<u64>::new(16).is_err());
        disarm();
    }
    assert!(Table::<u64>::new(16).is_ok());
    assert!(Table::<u64>::new(usize::MAX).is_err());
}
