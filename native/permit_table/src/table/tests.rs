//! What can be seen only from inside: memory that fails, panics, dead keys, the number of heads.

use super::*;
use crate::buckets::Idleness;
use crate::inject::{arm, disarm, Failure};
use crate::keys::{Link, CHUNK, MIN_BITS};
use crate::pin;
use crate::sync::Ordering::Relaxed;
use std::cell::Cell;
use std::num::NonZeroU64;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Any number is a key, and asked for by itself.
impl Key for u64 {
    fn heap_bytes(&self) -> usize {
        if *self == LONG {
            1000
        } else {
            0
        }
    }
}

/// The one key that says that it has something on the heap.
const LONG: u64 = u64::MAX;

impl Query<u64> for u64 {
    fn to_key(&self) -> Result<u64, OutOfMemory> {
        Ok(*self)
    }
}

fn holder(word: u64, place: u64) -> Holder {
    // SAFETY: each test is one thread, and what it does after `release_all` is what the next process does.
    unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) }
}

/// The holder where one will do.
fn me() -> Holder {
    holder(1, 0)
}

fn acquire(table: &Table<u64>, holder: Holder, key: u64) -> Result<Acquired, OutOfMemory> {
    table.acquire(&pin(), holder, &key, Capacity::of(9, 1), || Ok(()))
}

/// Leaves these keys idle, and used since the last sweep.
fn use_once(table: &Table<u64>, keys: Range<u64>) {
    for key in keys {
        acquire(table, me(), key).unwrap();
        table.release(&pin(), me(), &key).unwrap();
    }
}

/// How many permits are out: so many have the keys counted, and so many have their holders on record.
#[track_caller]
fn permits(table: &Table<u64>) -> u64 {
    let mut counted = 0;
    let end = table.keys_after(0, usize::MAX, |_, out| counted += out);
    assert_eq!((end, table.usage().permits), (None, counted));
    counted
}

/// Some passes of the sweep. Other tests' pins may hold one up for a moment.
fn sweep(table: &Table<u64>, passes: usize) {
    for _ in 0..passes {
        while table.sweep_step(&mut Budget::of(256)) != Progress::Done {
            std::thread::yield_now();
        }
    }
}

/// Runs a call that meets the fault after `grants` places of its kind. Returns its result, unless it panicked.
fn with_failure<T>(failure: Failure, grants: usize, call: impl FnOnce() -> T) -> Option<T> {
    arm(failure, grants);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    assert_eq!(disarm() > 0 && failure == Failure::Panic, outcome.is_err());
    outcome.ok()
}

/// Calls with the fault at one place after the other, until the call goes through; returns its answer, and how often it
/// did not.
fn through_failures<T, E>(
    failure: Failure,
    mut call: impl FnMut() -> Result<T, E>,
    mut check: impl FnMut(),
) -> (T, usize) {
    for grants in 0.. {
        if let Some(Ok(answer)) = with_failure(failure, grants, &mut call) {
            return (answer, grants);
        }
        check();
    }
    unreachable!()
}

/// P9, H4: wherever memory fails or the code panics (a bug of ours) in a call that takes or releases, nothing has
/// changed, no lock is left, and the same call goes through afterwards. A place counts no holder that there was no
/// memory for: calls there would always take a lock.
#[test]
fn p9_a_fault_anywhere_in_a_call_changes_nothing() {
    // The first permit of all; one of a key that is there; further keys of a holder, the last one twice; a holder whose
    // place is taken, of a key that is there and of a new one.
    let calls = [
        (me(), 1),
        (holder(2, 1), 1),
        (me(), 2),
        (me(), 3),
        (me(), 4),
        (me(), 4),
        (holder(3, 0), 4),
        (holder(4, 0), 5),
    ];
    for (failure, least) in [(Failure::Memory, 12), (Failure::Panic, 25)] {
        let table = Table::new(4096).unwrap();
        let mut failures = 0;
        let is = |key| {
            let usage = table.usage();
            let count = table.count(&pin(), &key);
            (usage.keys, permits(&table), usage.holders, count)
        };
        let watched = Cell::new(0);
        let watch = || {
            inject::panic();
            watched.set(watched.get() + 1);
            inject::panic();
            Ok::<(), OutOfMemory>(())
        };
        for (holder, key) in calls {
            let before = is(key);
            let first = table.holders.find(holder).is_none();
            watched.set(0);
            let (acquired, failed) = through_failures(
                failure,
                || table.acquire(&pin(), holder, &key, Capacity::of(9, 1), watch),
                || {
                    assert_eq!(is(key), before);
                    let home = table.holders.find(me());
                    let displaced = home.map_or(0, |home| home.displaced().load(Relaxed));
                    let there = [3, 4].map(|word| table.holders.has(self::holder(word, 0)));
                    assert_eq!(displaced, there.map(u32::from).iter().sum());
                },
            );
            assert!(matches!(acquired, Acquired::Permit(_)));
            assert_eq!(watched.get() > 0, first, "if it is new, in spite of all");
            failures += failed;
        }
        for (holder, key) in calls {
            let before = is(key);
            let release = || table.release(&pin(), holder, &key);
            failures += through_failures(failure, release, || assert_eq!(is(key), before)).1;
        }
        assert!(failures >= least, "{failure:?}: {failures}");
        assert_eq!(permits(&table), 0);
    }
}

/// P9: a key is on the account together with its node, or not at all.
#[test]
fn p9_a_key_without_memory_for_its_node_costs_nothing() {
    let account = Account::default();
    let new = || NewNode::with_one_permit(&LONG, 1, &account);
    let failed = with_failure(Failure::Memory, 0, || new().is_err());
    assert_eq!((failed, account.bytes()), (Some(true), 0));
    let new = new().unwrap();
    assert_eq!(account.bytes(), size_of::<Node<u64>>() + 1000);
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
        insert(&table, &pin, range, order).unwrap();
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
    sweep(&table, 1);
    assert_eq!(table.usage().memory, before.memory);
}

/// P8, P9: a step without memory takes nothing out, and the pass goes on from there.
#[test]
fn p8_a_pass_goes_on_after_a_step_without_memory() {
    let table = Table::new(16).unwrap();
    use_once(&table, 1..11);
    // What is used no more goes with the second pass.
    sweep(&table, 1);
    let step = || table.sweep_step(&mut Budget::of(64));
    let progress = with_failure(Failure::Memory, 0, step);
    assert_eq!(progress, Some(Progress::Waiting));
    assert_eq!(table.usage().keys, 10);
    sweep(&table, 1);
    assert_eq!(table.usage().keys, 0);
}

/// More heads than keys would be a waste, and with fewer a lookup would be a walk. Where their number changes
/// matters little; but that it wavers with the number of keys would cost much.
#[test]
fn p8_heads_come_with_the_keys_and_go_with_them() {
    let table = Table::new(16).unwrap();
    let heads = || 1 << table.keys.bits();
    let chunk = CHUNK as u64;
    let take = |keys: Range<u64>| {
        for key in keys {
            acquire(&table, me(), key).unwrap();
        }
    };
    let give = |keys: Range<u64>| {
        for key in keys {
            table.release(&pin(), me(), &key).unwrap();
        }
        // What is used no more goes with the second pass, its heads with the third.
        sweep(&table, 3);
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
}

/// Puts in a key with this order, if it is not there.
fn insert<'a>(table: &'a Table<u64>, pin: &'a Pin, key: u64, order: u64) -> Option<&'a Node<u64>> {
    let new = NewNode::with_one_permit(&key, order, &table.account).unwrap();
    match table.keys.insert(pin, &key, new) {
        Inserted::New(node) => Some(node),
        Inserted::Present(_) => None,
    }
}

/// All that the sweep does to an idle key, but to mark its link and to unlink it.
fn kill(node: &Node<u64>) {
    node.buckets.release(1);
    node.buckets.sweep();
    assert_eq!(node.buckets.sweep(), Idleness::Dead);
}

fn mark(node: &Node<u64>) {
    // SAFETY: a node begins with its link (repr(C)).
    unsafe { &*std::ptr::from_ref(node).cast::<Link>() }.mark();
}

/// K4: a key that has died is passed over before the sweep has unlinked it, and so is another that happens to have
/// the same hash. An insertion finds a key that is there, also behind a link that is marked.
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

    kill(first);
    assert!(get(1).is_none());
    let second = insert(1).unwrap();
    assert!(get(1).is_some_and(|found| std::ptr::eq(found, second)));
    assert!(get(2).is_some() && insert(2).is_none());

    kill(second);
    mark(second);
    assert!(get(2).is_some() && insert(2).is_none());
    assert!(get(1).is_none() && insert(1).is_some());
}

/// K1, K2: a link that is marked may stand behind a greater one, which was linked in after the mark. A look that ends a
/// piece there tells the greater key once. And no piece ends between two keys of one order.
#[test]
fn k2_a_key_in_front_of_a_smaller_marked_one_is_told_once() {
    let table = Table::<u64>::new(16).unwrap();
    let pin = pin();
    let insert = |key, order| insert(&table, &pin, key, order).unwrap();
    // Of such orders that all stand in one range.
    let [_, idle, ..] = [(1, 1), (3, 3), (7, 7), (8, 7)].map(|(key, order)| insert(key, order));
    kill(idle);
    mark(idle);
    insert(5, 5);
    let mut told = Vec::new();
    let mut after = Some(0);
    for _ in 0..9 {
        let Some(start) = after else { break };
        after = table.keys_after(start, 1, |key, _| told.push(*key));
    }
    told.sort_unstable();
    assert_eq!((told, after), (vec![1, 5, 7, 8], None));
}

/// E2: while the kernel refuses barriers, nothing is freed, and the usage says so. Then the sweep goes on.
#[test]
fn e2_nothing_is_freed_while_barriers_are_refused() {
    let table = Table::new(16).unwrap();
    use_once(&table, 1..2);
    sweep(&table, 1);
    let before = table.usage();

    arm(Failure::Barriers, 0);
    for _ in 0..5 {
        assert_ne!(table.sweep_step(&mut Budget::of(64)), Progress::Done);
    }
    assert_eq!(crate::epochs::quiet_before(), 0, "no stamp is smaller");
    let hits = disarm();
    let refused = table.usage();
    assert_eq!((refused.keys, refused.memory), (0, before.memory));
    let count = refused.barriers_refused - before.barriers_refused;
    assert!(count > 0 && hits as u64 >= count);

    sweep(&table, 1);
    let after = table.usage();
    assert_eq!(after.barriers_refused, refused.barriers_refused);
    assert_eq!(after.memory, before.memory - 64);
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
    let table = Table::new(16).unwrap();
    for key in 0..4 {
        acquire(&table, me(), key).unwrap();
    }
    let asking = Asking(3, &table);
    assert_eq!(table.release(&pin(), me(), &asking), Ok(()));
    assert_eq!(permits(&table), 3);
}

/// P4, P9: a panic in the middle of a death loses nothing of it, and nothing is given back twice. While it is asked
/// whether another process has the word, a panic changes nothing, and it is asked again.
#[test]
fn p4_a_death_gives_back_in_spite_of_a_panic() {
    for (is_reused, places) in [(false, 7), (true, 1)] {
        let lost = u64::from(!is_reused);
        for grants in 0.. {
            let table = Table::new(4096).unwrap();
            for holder in [me(), holder(2, 1), holder(3, 0)] {
                for key in [1, 1, 2, 3, 4, 4, 5] {
                    acquire(&table, holder, key).unwrap();
                }
            }
            let mut hits = 0;
            for (deaths, dead) in [(1, me()), (2, holder(3, 0))] {
                arm(Failure::Panic, grants);
                let given = table.release_all(&pin(), dead, || {
                    inject::panic();
                    is_reused
                });
                hits += disarm();
                assert_eq!(given, 7 * lost);
                assert_eq!(table.holders.find(dead).is_some(), is_reused);
                assert_eq!(permits(&table), 21 - 7 * lost * deaths);
                assert_eq!(table.count(&pin(), &1), 6 - 2 * lost * deaths);
            }
            assert_eq!(table.usage().totals.given_back, 14 * lost);
            if hits == 0 {
                assert!(grants >= places, "{grants} places");
                break;
            }
        }
    }
}

/// P8, P9: a sweep that panics anywhere is taken up by the next one: every idle key goes, and so do the heads.
#[test]
fn p8_a_sweep_that_panics_is_taken_up_by_the_next() {
    let keys = 3 * CHUNK as u64 + 1;
    let mut panics = 0;
    for first in 0..5 {
        let table = Table::new(16).unwrap();
        acquire(&table, me(), 0).unwrap();
        use_once(&table, 1..keys);
        let mut grants = first;
        let mut swept = 0;
        while swept < 8 {
            let step = || table.sweep_step(&mut Budget::of(256));
            match with_failure(Failure::Panic, grants, step) {
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
        sweep(&table, 4);
        assert_eq!((table.usage().keys, table.keys.bits()), (1, MIN_BITS));
        let bytes = table.usage().memory;
        acquire(&table, me(), 1).unwrap();
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
    let table = Table::new(16).unwrap();
    use_once(&table, 0..2 * CHUNK as u64);
    sweep(&table, 1);
    // As long as somebody is inside, nothing is freed: so what is in the list can be looked at.
    let _inside = pin();
    let mut grants = 0;
    let mut panics = 0;
    loop {
        grants = (grants + 1) % 40;
        match with_failure(Failure::Panic, grants, || {
            table.sweep_step(&mut Budget::of(16))
        }) {
            Some(Progress::More) => {}
            Some(_) => break,
            None => panics += 1,
        }
    }
    assert!(panics > 100, "{panics} panics");
    assert_eq!(table.keys.bits(), MIN_BITS);
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
    let new = || Table::<u64>::new(16);
    let (_, failures) = through_failures(Failure::Memory, new, || ());
    assert_eq!(
        failures, 5,
        "the tally, the keys and their heads, the holders"
    );
    assert!(Table::<u64>::new(usize::MAX).is_err());
}
