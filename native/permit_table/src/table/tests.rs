//! Tests that need access to the internals: failed allocations, panics, dead keys, the number of heads.

use super::*;
use crate::allocated::{allocated, memory_of};
use crate::epochs::pin;
use crate::inject::{arm, disarm, Failure};
use crate::keys::{Link, CHUNK, MIN_BITS};
use crate::permit_count::Capacity;
use crate::queues::WaitEnd;
use crate::shared_word::Share;
use crate::sync::{sized, Ordering::Relaxed};
use crate::transfers::Given;
use crate::waits::{WaitRequest, Waited};
use crate::Cursor;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Keys are numbers, and each is its own query.
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

fn holder(word: u64, place: u64) -> Holder {
    // SAFETY: each test has one thread. Calls after `release_all` count as those of the next process.
    unsafe { Holder::new(NonZeroU64::new(word).unwrap(), place) }
}

/// The holder of tests that need only one.
fn me() -> Holder {
    holder(1, 0)
}

fn acquire(table: &Table<u64>, holder: Holder, key: u64) -> Result<Acquired, OutOfMemory> {
    table.acquire(&pin(), holder, &key, Capacity::of(9, 1), || Ok(()))
}

/// Leaves these keys idle, and marked as used since the last sweep.
fn use_once(table: &Table<u64>, keys: Range<u64>) {
    for key in keys {
        acquire(table, me(), key).unwrap();
        table.release(&pin(), me(), &key, ()).unwrap();
    }
}

/// The number of permits in use. Checks that the counts of the keys and the records of the holders agree.
#[track_caller]
fn permits(table: &Table<u64>) -> u64 {
    let pin = pin();
    let (keys, end) = table.keys_after(&pin, 0, usize::MAX).unwrap();
    let counted = keys.iter().map(|(_, in_use)| in_use).sum();
    assert_eq!((end, table.usage().permits), (None, counted));
    counted
}

/// Runs `passes` passes of the sweep. Pins of other tests can delay one.
fn sweep(table: &Table<u64>, passes: usize) {
    for _ in 0..passes {
        while table.sweep_step(256).0 != Progress::Done {
            std::thread::yield_now();
        }
    }
}

/// Runs a call in which the failure occurs after `grants` places of its kind. Returns its result, unless it panicked.
fn with_failure<T>(failure: Failure, grants: usize, call: impl FnOnce() -> T) -> Option<T> {
    arm(failure, grants);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    assert_eq!(disarm() > 0 && failure == Failure::Panic, outcome.is_err());
    outcome.ok()
}

/// Repeats a call with the failure at the first place, the second, and so on, until it succeeds. Returns its result,
/// and the number of failed calls.
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

/// P9, H4: if an allocation fails or the code panics (a bug) anywhere in an acquire or a release, nothing has changed,
/// no lock is held, and the same call succeeds afterwards. A slot does not count a displaced holder whose insertion
/// failed: otherwise calls at this place would always take a lock.
#[test]
fn p9_failure_anywhere_in_a_call_changes_nothing() {
    // The very first permit; one of an existing key; further keys of a holder, the last one twice; a holder whose place
    // is taken, of an existing key and of a new one.
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
        let state = |key| {
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
            let before = state(key);
            let first = table.holders.find(holder).is_none();
            watched.set(0);
            let (acquired, failed) = through_failures(
                failure,
                || table.acquire(&pin(), holder, &key, Capacity::of(9, 1), watch),
                || {
                    assert_eq!(state(key), before);
                    let home = table.holders.find(me());
                    let displaced = home.map_or(0, |home| home.displaced.load(Relaxed));
                    let displaced_slots = [3, 4].map(|word| table.knows(self::holder(word, 0)));
                    assert_eq!(displaced, displaced_slots.map(u32::from).iter().sum());
                },
            );
            assert!(matches!(acquired, Acquired::Permit(_)));
            assert_eq!(watched.get() > 0, first, "watched if it is the first call");
            failures += failed;
        }
        for (holder, key) in calls {
            let before = state(key);
            let release = || table.release(&pin(), holder, &key, ());
            failures += through_failures(failure, release, || assert_eq!(state(key), before)).1;
        }
        assert!(failures >= least, "{failure:?}: {failures}");
        assert_eq!(permits(&table), 0);
    }
}

/// P8: the first insertion behind a head links it, so no lookup walks until the next sweep.
#[test]
fn p8_insertion_links_the_head_of_the_range() {
    let table = Table::<u64>::new(16).unwrap();
    let pin = pin();
    for range in [1u64, 2, 3] {
        let head = range << (u64::BITS - table.keys.bits());
        let sort_key = sort_key_of_hash(head);
        assert_ne!(table.keys.entry(sort_key).link.sort_key, head);
        insert(&table, &pin, range, sort_key).unwrap();
        assert_eq!(table.keys.entry(sort_key).link.sort_key, head);
    }
}

/// P8: a pass links the heads of the ranges that a growing table got after their keys were inserted. Otherwise lookups
/// of these keys would start at an ancestor and walk, until another key is inserted there.
#[test]
fn p8_sweep_links_the_heads_of_ranges_with_keys() {
    let table = Table::new(16).unwrap();
    let keys = 0..3 * CHUNK as u64;
    for key in keys.clone() {
        acquire(&table, me(), key).unwrap();
    }
    sweep(&table, 1);
    for key in keys {
        let sort_key = table.sort_key(&key);
        let range = sort_key & (u64::MAX << (u64::BITS - table.keys.bits()));
        assert_eq!(table.keys.entry(sort_key).link.sort_key, range);
    }
}

/// P8: a caller that reads the number of heads before it shrinks can allocate an unneeded chunk. The next pass frees
/// it.
#[test]
fn p8_late_chunk_is_freed_by_the_next_pass() {
    let table = Table::<u64>::new(16).unwrap();
    let before = allocated();
    let bits = table.keys.bits();
    table.keys.resize(bits, bits + 2);
    table.keys.link_head(&pin(), u64::MAX);
    table.keys.resize(bits + 2, bits);
    let chunk = allocated() - before;
    assert!(chunk >= 16 * CHUNK as isize);
    sweep(&table, 1);
    // The sweep has lists of its own.
    assert!(allocated() - before < chunk / 10);
}

/// P8, P9: a step without memory unlinks nothing, and the pass continues from there.
#[test]
fn p8_pass_continues_after_a_step_without_memory() {
    let table = Table::new(16).unwrap();
    use_once(&table, 1..11);
    // Unused keys are reclaimed by the second pass.
    sweep(&table, 1);
    let step = || table.sweep_step(64).0;
    let progress = with_failure(Failure::Memory, 0, step);
    assert_eq!(progress, Some(Progress::Waiting));
    assert_eq!(table.usage().keys, 10);
    sweep(&table, 1);
    assert_eq!(table.usage().keys, 0);
}

/// P8: with more heads than keys memory is wasted, with fewer a lookup becomes a walk. The exact threshold matters
/// little, but it must not change back and forth with each key.
#[test]
fn p8_number_of_heads_follows_the_number_of_keys() {
    let table = Table::new(16).unwrap();
    let chunk = CHUNK as u64;
    for (is_acquire, keys, heads) in [
        (true, 0..chunk, chunk),
        (true, chunk..chunk + 1, 2 * chunk),
        (true, chunk + 1..2 * chunk + 1, 4 * chunk),
        // More keys than a quarter of the heads are left.
        (false, chunk + 1..2 * chunk + 1, 4 * chunk),
        (false, chunk..chunk + 1, 2 * chunk),
        // There are never fewer heads than this.
        (false, 1..chunk, chunk),
    ] {
        for key in keys {
            if is_acquire {
                acquire(&table, me(), key).unwrap();
            } else {
                table.release(&pin(), me(), &key, ()).unwrap();
            }
        }
        if !is_acquire {
            // Unused keys are reclaimed by the second pass, their heads by the third.
            sweep(&table, 3);
        }
        assert_eq!(1 << table.keys.bits(), heads);
    }
}

/// Inserts a key with this sort key, unless it is present.
fn insert<'a>(
    table: &'a Table<u64>,
    pin: &'a Pin,
    key: u64,
    sort_key: u64,
) -> Option<&'a Node<u64>> {
    let new = NewNode::with(PermitCount::with_permits(1), &key, sort_key).unwrap();
    table.keys.insert(pin, &key, new).ok()
}

/// Does what the sweep does to an idle key, except marking and unlinking its link.
fn kill(node: &Node<u64>) {
    node.count.release(1);
    node.count.sweep();
    assert!(node.count.sweep());
}

fn mark(node: &Node<u64>) {
    // SAFETY: a node begins with its link (repr(C)).
    unsafe { &*std::ptr::from_ref(node).cast::<Link>() }.mark();
}

/// K4: lookups and insertions pass over a dead key that is not unlinked yet, and over another key with the same hash.
/// An insertion finds a present key, also behind a marked link.
#[test]
fn k4_one_node_per_key_is_alive() {
    let table = Table::<u64>::new(16).unwrap();
    let pin = pin();
    let sort_key = sort_key_of_hash(42);
    let insert = |key| insert(&table, &pin, key, sort_key);
    let get = |key| table.keys.get(&pin, sort_key, &key);
    let first = insert(1).unwrap();
    assert!(get(1).is_some() && insert(1).is_none());
    assert!(get(2).is_none() && insert(2).is_some());
    assert!(
        get(1).is_some() && insert(1).is_none(),
        "behind the other key"
    );

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

/// K1, K2: a marked link can stand behind a greater one that was linked after the mark. An inspection in pieces reports
/// the greater key once. No piece ends between two keys of the same sort key.
#[test]
fn k2_key_before_a_smaller_marked_one_is_reported_once() {
    let table = Table::<u64>::new(16).unwrap();
    let pin = pin();
    let insert = |key, sort_key| insert(&table, &pin, key, sort_key).unwrap();
    // Their sort keys are all in one range.
    let [_, idle, ..] =
        [(1, 1), (3, 3), (7, 7), (8, 7)].map(|(key, sort_key)| insert(key, sort_key));
    kill(idle);
    mark(idle);
    insert(5, 5);
    let mut reported = Vec::new();
    let mut after = Some(0);
    for _ in 0..9 {
        let Some(start) = after else { break };
        let (keys, next) = table.keys_after(&pin, start, 1).unwrap();
        reported.extend(keys.into_iter().map(|(key, _)| *key));
        after = next;
    }
    reported.sort_unstable();
    assert_eq!((reported, after), (vec![1, 5, 7, 8], None));
}

/// E2: while the kernel refuses barriers, nothing is freed, and the usage reports it. Afterwards the sweep continues.
#[test]
fn e2_refused_barriers_free_nothing() {
    let table = Table::new(16).unwrap();
    use_once(&table, 1..2);
    sweep(&table, 1);
    let (before, memory) = (table.usage(), allocated());

    arm(Failure::Barriers, 0);
    for _ in 0..5 {
        assert_ne!(table.sweep_step(64).0, Progress::Done);
    }
    assert_eq!(crate::epochs::quiet_before(), 0, "no stamp is smaller");
    let hits = disarm();
    let refused = table.usage();
    assert!(refused.keys == 0 && allocated() >= memory);
    let count = refused.barriers_refused - before.barriers_refused;
    assert!(count > 0 && hits as u64 >= count);

    sweep(&table, 1);
    let after = table.usage();
    assert_eq!(after.barriers_refused, refused.barriers_refused);
    assert!(allocated() < memory);
}

/// O4: reading the usage does not wait for a holder of many keys that is inside a call.
#[test]
fn h5_usage_takes_no_lock_of_a_holder() {
    /// Reads the usage in each comparison, which happens inside the lock of the holder.
    struct ReadsUsage<'a>(u64, &'a Table<u64>);
    impl Hash for ReadsUsage<'_> {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }
    impl Equivalent<u64> for ReadsUsage<'_> {
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
    let query = ReadsUsage(3, &table);
    assert_eq!(table.release(&pin(), me(), &query, ()), Ok(()));
    assert_eq!(permits(&table), 3);
}

/// P4, P9: a panic while a death is handled loses no permit, and releases none twice. A panic in `is_reused` changes
/// nothing, and it is called again.
#[test]
fn p4_panic_during_a_death_loses_no_permit() {
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
                let answer = || {
                    inject::panic();
                    is_reused
                };
                let released = table.release_all(&pin(), dead, answer, ());
                hits += disarm();
                assert_eq!(released, 7 * lost);
                assert_eq!(table.holders.find(dead).is_some(), is_reused);
                assert_eq!(permits(&table), 21 - 7 * lost * deaths);
                assert_eq!(table.count(&pin(), &1), 6 - 2 * lost * deaths);
            }
            assert_eq!(table.usage().totals.released_by_death, 14 * lost);
            if hits == 0 {
                assert!(grants >= places, "{grants} places");
                break;
            }
        }
    }
}

/// P8, P9: if the sweep panics anywhere, the next step completes its work: every idle key is reclaimed, and so are the
/// heads.
#[test]
fn p8_step_after_a_panic_completes_the_sweep() {
    let keys = 3 * CHUNK as u64 + 1;
    let mut panics = 0;
    for first in 0..5 {
        let table = Table::new(16).unwrap();
        acquire(&table, me(), 0).unwrap();
        use_once(&table, 1..keys);
        let mut grants = first;
        let mut swept = 0;
        while swept < 8 {
            let step = || table.sweep_step(256).0;
            match with_failure(Failure::Panic, grants, step) {
                Some(Progress::Done) => swept += 1,
                Some(_) => {}
                None => panics += 1,
            }
            // Later in each step.
            grants = if grants > 1500 {
                first % 7
            } else {
                grants + 13
            };
        }
        sweep(&table, 4);
        assert_eq!((table.usage().keys, table.keys.bits()), (1, MIN_BITS));
        let bytes = allocated();
        acquire(&table, me(), 1).unwrap();
        assert_eq!(allocated(), bytes + 64, "only the new node is added");
    }
    assert!(panics > sized(0, 40, 100), "{panics} panics");
}

/// P8, P9: if a panic interrupts the unlinking of a head, it is completed before the chunk of the head is removed.
#[test]
fn p8_panic_leaves_no_freed_head_in_the_list() {
    let table = Table::new(16).unwrap();
    use_once(&table, 0..2 * CHUNK as u64);
    sweep(&table, 1);
    // While this thread is pinned, nothing is freed. So the list can be read.
    let _inside = pin();
    let mut grants = 0;
    let mut panics = 0;
    loop {
        grants = (grants + 1) % 40;
        match with_failure(Failure::Panic, grants, || table.sweep_step(16).0) {
            Some(Progress::More) => {}
            Some(_) => break,
            None => panics += 1,
        }
    }
    assert!(panics > sized(0, 20, 100), "{panics} panics");
    assert_eq!(table.keys.bits(), MIN_BITS);
    let mut heads = 0;
    let (mut next, _) = table.keys.entry(0).link.next();
    // SAFETY: pinned since before the sweep began to unlink.
    while let Some(link) = unsafe { next.as_ref() } {
        let head = table.keys.entry(link.sort_key);
        assert!(std::ptr::eq(&head.link, link), "a head that was removed");
        heads += 1;
        (next, _) = link.next();
    }
    assert!(heads > 1000, "{heads} heads");
}

#[test]
fn p9_failed_creation_of_a_table_leaks_nothing() {
    let new = || Table::<u64>::new(16);
    let (_, failures) = through_failures(Failure::Memory, new, || ());
    assert_eq!(
        failures, 6,
        "two for the counters, two for the keys, one each for holders and queues"
    );
    assert!(Table::<u64>::new(usize::MAX).is_err());
}

/// What was told: the number of a request, and its end.
type Inbox = Arc<Mutex<Vec<(u64, WaitEnd)>>>;

struct Letter(u64, Inbox);

impl Notice for Letter {
    type Context<'a> = ();

    fn now_us() -> u64 {
        0
    }

    fn send(self, (): (), end: WaitEnd) {
        self.1.lock().push((self.0, end));
    }
}

fn demand(permits: u64, capacity: u64) -> Demand {
    Demand::of(Capacity::of(capacity, 1), NonZeroU64::new(permits).unwrap())
}

/// A table with requests of all kinds.
struct Scene {
    table: Table<u64, Letter>,
    inbox: Inbox,
}

/// The keys of the scene, and those that the calls add.
const SCENE_KEYS: [u64; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

/// Processes 7 and 8 have no record yet.
const SCENE_HOLDERS: Range<u64> = 1..9;

/// What a call must not change if it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SceneState {
    rows: BTreeMap<(u64, u64), u64>,
    waiting: Vec<usize>,
    told: Vec<(u64, WaitEnd)>,
    holders: usize,
    totals: Totals,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            table: Table::new(4096).unwrap(),
            inbox: Inbox::default(),
        };
        // 1 has permits in its slot and in its overflow, and a request. 5 and 6 share a place.
        for (number, key, permits, capacity) in [
            (1, 1, 2, 9),
            (1, 2, 1, 1),
            (1, 3, 1, 1),
            (1, 4, 1, 1),
            (2, 5, 1, 1),
            (5, 1, 1, 9),
            (5, 6, 2, 9),
        ] {
            scene.acquire(number, key, demand(permits, capacity));
        }
        assert_eq!(scene.give(5, 6, 1, 1), Ok(Given::Given));
        assert_eq!(scene.give(5, 1, 6, 2), Ok(Given::Given));
        for (request, number, key, permits, capacity) in [
            // Collects a permit.
            (0, 2, 1, 2, 4),
            (1, 3, 1, 1, 4),
            (2, 2, 1, 1, 4),
            (3, 3, 1, 3, 4),
            // Cannot be satisfied.
            (4, 4, 1, 5, 4),
            (5, 4, 2, 1, 1),
            (6, 1, 5, 1, 1),
        ] {
            let waited = scene.wait(number, key, request, demand(permits, capacity));
            assert_eq!(waited, Ok(Waited::Waiting));
        }
        assert_eq!(scene.table.count(&pin(), &1), 4);
        scene.assert_consistent();
        scene
    }

    fn holder(number: u64) -> Holder {
        holder(number, if number == 6 { 5 } else { number })
    }

    fn acquire(&self, number: u64, key: u64, demand: Demand) {
        let watch = || Ok::<(), OutOfMemory>(());
        let acquired = self
            .table
            .acquire(&pin(), Self::holder(number), &key, demand, watch);
        assert!(matches!(acquired, Ok(Acquired::Permit(_))));
    }

    fn wait(
        &self,
        number: u64,
        key: u64,
        request: u64,
        demand: Demand,
    ) -> Result<Waited, OutOfMemory> {
        let ask = WaitRequest {
            demand,
            is_shared: false,
            max_waiting: usize::MAX,
            request_hash: request / 2,
            now: request,
            notice: Letter(request, self.inbox.clone()),
        };
        let watch = || {
            inject::panic();
            inject::out_of_memory()
        };
        self.table
            .wait(&pin(), Self::holder(number), &key, ask, watch, ())
    }

    fn cancel(&self, number: u64, request: u64) -> bool {
        let is_it = |letter: &Letter| letter.0 == request;
        let ended = self
            .table
            .cancel(&pin(), Self::holder(number), request / 2, is_it, ());
        ended.is_some()
    }

    fn give(&self, giver: u64, target: u64, key: u64, permits: u64) -> Result<Given, OutOfMemory> {
        let permits = NonZeroU64::new(permits).unwrap();
        let [giver, target] = [giver, target].map(Self::holder);
        let watch = || {
            inject::out_of_memory()?;
            Ok::<bool, OutOfMemory>(true)
        };
        self.table.give(&pin(), giver, target, &key, permits, watch)
    }

    fn release_many(&self, number: u64, key: u64, permits: u64) -> Result<(), NotHeld> {
        let permits = NonZeroU64::new(permits).unwrap();
        self.table
            .release_many(&pin(), Self::holder(number), &key, permits, ())
    }

    fn release(&self, number: u64, key: u64) -> Result<(), NotHeld> {
        self.table.release(&pin(), Self::holder(number), &key, ())
    }

    fn resize(&self, key: u64, capacity: u64) -> bool {
        let capacity = Capacity::of(capacity, 1);
        let settled = self.table.resize(&pin(), &key, capacity, usize::MAX, ());
        settled.unwrap()
    }

    fn die(&self, number: u64) -> u64 {
        let answer = || {
            inject::panic();
            false
        };
        self.table
            .release_all(&pin(), Self::holder(number), answer, ())
    }

    fn rows(&self) -> BTreeMap<(u64, u64), u64> {
        let mut rows = BTreeMap::new();
        let pin = pin();
        let (reported, next) = self.table.permits_from(&pin, Cursor::default()).unwrap();
        assert_eq!(next, None);
        for row in reported {
            let before = rows.insert((row.holder, *row.key), row.permits);
            assert_eq!(before, None, "reported twice");
        }
        rows
    }

    fn state(&self) -> SceneState {
        let usage = self.table.usage();
        SceneState {
            rows: self.rows(),
            waiting: SCENE_KEYS
                .map(|key| self.table.waiting(&pin(), &key))
                .into(),
            told: self.inbox.lock().clone(),
            holders: usage.holders,
            totals: usage.totals,
        }
    }

    /// No permit is lost or counted twice, and no request is told twice.
    #[track_caller]
    fn assert_consistent(&self) {
        let SceneState {
            rows,
            waiting,
            told,
            ..
        } = self.state();
        for key in SCENE_KEYS {
            let of_key = rows.iter().filter(|((_, of), _)| *of == key);
            let in_use = of_key.map(|(_, permits)| permits).sum::<u64>();
            assert_eq!(
                self.table.count(&pin(), &key),
                in_use,
                "permits of key {key}"
            );
        }
        let usage = self.table.usage();
        assert_eq!(usage.permits, rows.values().sum::<u64>());
        assert_eq!(usage.waiting, waiting.iter().sum::<usize>());
        let mut requests: Vec<u64> = told.iter().map(|(request, _)| *request).collect();
        requests.sort_unstable();
        requests.dedup();
        assert_eq!(requests.len(), told.len(), "told twice: {told:?}");
    }

    /// Releases everything that is held. Returns how many requests wait after that.
    #[track_caller]
    fn drain(&self) -> usize {
        let release_one = || {
            let mut rows = self.rows().into_keys();
            rows.any(|(number, key)| self.release(number, key).is_ok())
        };
        while release_one() {
            self.assert_consistent();
        }
        // With nothing in use, a request that can be satisfied has been granted. So none has collected anything.
        assert_eq!(self.rows(), BTreeMap::new());
        self.table.usage().waiting
    }

    /// Ends the scene: the table works, and nothing is left except memory. Returns how much. So many requests cannot be
    /// satisfied.
    #[track_caller]
    fn end(self, unsatisfiable: usize) -> isize {
        self.table.reopen();
        for key in SCENE_KEYS {
            // A panic while a queue is settled releases the permits in hand. The next call on the key hands them over.
            let waited = self.wait(8, key, 100, demand(2, 1));
            assert_eq!((waited, self.cancel(8, 100)), (Ok(Waited::Waiting), true));
            self.assert_consistent();
        }
        let left = self.drain();
        assert!(left <= unsatisfiable, "{left} requests are left");
        for key in SCENE_KEYS {
            assert!(self.resize(key, 9));
        }
        assert_eq!(self.drain(), 0);
        assert_eq!(self.wait(4, 1, 101, demand(2, 1)), Ok(Waited::Waiting));
        for number in SCENE_HOLDERS {
            self.die(number);
            self.assert_consistent();
        }
        let pass = || while self.table.sweep_step(256).0 != Progress::Done {};
        (0..4).for_each(|_| pass());
        let usage = self.table.usage();
        assert_eq!(
            (usage.keys, usage.permits, usage.waiting, usage.holders),
            (0, 0, 0, 0)
        );
        assert!({ SCENE_HOLDERS }.all(|number| !self.table.knows(Self::holder(number))));
        let totals = usage.totals;
        assert_eq!(totals.granted, totals.released + totals.released_by_death);
        memory_of(self.table)
    }
}

type SceneCall = fn(&Scene) -> Result<(), OutOfMemory>;

/// Calls of the scene. They succeed unless memory is short.
const SCENE_CALLS: [(&str, SceneCall); 22] = [
    ("wait in a lane", |scene| {
        let waited = scene.wait(7, 1, 50, demand(1, 4))?;
        assert_eq!(waited, Waited::Waiting);
        Ok(())
    }),
    ("wait in a new lane", |scene| {
        let waited = scene.wait(7, 1, 50, demand(2, 3))?;
        assert_eq!(waited, Waited::Waiting);
        Ok(())
    }),
    ("wait in a new queue", |scene| {
        let waited = scene.wait(2, 3, 50, demand(1, 1))?;
        assert_eq!(waited, Waited::Waiting);
        Ok(())
    }),
    ("wait of a displaced process, for a new key", |scene| {
        let waited = scene.wait(6, 9, 50, demand(2, 1))?;
        assert_eq!(waited, Waited::Waiting);
        Ok(())
    }),
    ("wait for a new key, of a process with a list", |scene| {
        assert_eq!(scene.wait(1, 9, 50, demand(1, 1))?, Waited::Permit(1));
        Ok(())
    }),
    ("wait for a free permit of a key with a queue", |scene| {
        let waited = scene.wait(7, 1, 50, demand(2, 6))?;
        assert_eq!(waited, Waited::Permit(6));
        Ok(())
    }),
    ("cancel of the first", |scene| {
        assert!(scene.cancel(2, 0));
        Ok(())
    }),
    ("cancel of the only one", |scene| {
        assert!(scene.cancel(4, 5));
        Ok(())
    }),
    ("release of a key with a queue", |scene| {
        assert_eq!(scene.release(1, 1), Ok(()));
        Ok(())
    }),
    ("release of a further key", |scene| {
        assert_eq!(scene.release(1, 2), Ok(()));
        Ok(())
    }),
    ("release from the overflow", |scene| {
        assert_eq!(scene.release(6, 1), Ok(()));
        Ok(())
    }),
    (
        "release of a key without a queue, from the overflow",
        |scene| {
            assert_eq!(scene.release(1, 6), Ok(()));
            Ok(())
        },
    ),
    ("release of several", |scene| {
        assert_eq!(scene.release_many(1, 1, 2), Ok(()));
        Ok(())
    }),
    ("release of several, from the overflow", |scene| {
        assert_eq!(scene.release_many(1, 6, 2), Ok(()));
        Ok(())
    }),
    ("gift to a process without a record", |scene| {
        assert_eq!(scene.give(1, 7, 1, 2)?, Given::Given);
        Ok(())
    }),
    (
        "gift from the overflow, to a process with a request",
        |scene| {
            assert_eq!(scene.give(1, 4, 6, 1)?, Given::Given);
            Ok(())
        },
    ),
    ("death of a process with everything", |scene| {
        assert_eq!(scene.die(1), 7);
        Ok(())
    }),
    ("death of the first in the queue", |scene| {
        // Its second request can be granted the permit that the first one has collected.
        assert!((1..=2).contains(&scene.die(2)));
        Ok(())
    }),
    ("death of a process that was given a permit", |scene| {
        assert_eq!(scene.die(6), 1);
        Ok(())
    }),
    ("resize", |scene| {
        assert!(scene.resize(1, 6));
        Ok(())
    }),
    ("resize to less", |scene| {
        assert!(scene.resize(1, 1));
        Ok(())
    }),
    ("close", |scene| {
        assert!(scene.table.close(usize::MAX, ()));
        Ok(())
    }),
];

/// P2, P4, P9, P13, W6: an allocation fails, or the code panics (a bug), anywhere in a call that waits, ends a wait,
/// grants or gives. No permit is lost or counted twice, and every request that waits can still be granted. A call
/// without memory has changed nothing. The next calls succeed.
#[test]
fn p9_failure_anywhere_in_a_wait_or_a_grant_loses_nothing() {
    let mut failures = BTreeMap::new();
    for (name, call) in SCENE_CALLS {
        let unsatisfiable = match name {
            "resize to less" => 3,
            "wait of a displaced process, for a new key" => 2,
            _ => 1,
        };
        let memory = {
            let scene = Scene::new();
            call(&scene).unwrap();
            scene.assert_consistent();
            scene.end(unsatisfiable)
        };
        for failure in [Failure::Allocation, Failure::Memory, Failure::Panic] {
            // An interpreter takes half an hour for all.
            for grants in (0..).step_by(sized(1, 9, 1)) {
                let scene = Scene::new();
                let before = scene.state();
                arm(failure, grants);
                let outcome = catch_unwind(AssertUnwindSafe(|| call(&scene)));
                let hits = disarm();
                let context = format!("{name}, {failure:?} {grants}");
                let result = catch_unwind(AssertUnwindSafe(|| {
                    scene.assert_consistent();
                    match outcome {
                        Ok(Ok(())) => {}
                        Ok(Err(OutOfMemory)) => {
                            assert_eq!(scene.state(), before);
                        }
                        Err(_) => assert_eq!(failure, Failure::Panic),
                    }
                    if name.starts_with("wait") && (hits > 0 && failure == Failure::Panic) {
                        // It left nothing.
                        let after = scene.state();
                        assert_eq!(after.rows, before.rows);
                        assert_eq!(
                            (&after.waiting, &after.told),
                            (&before.waiting, &before.told)
                        );
                        assert!({ SCENE_HOLDERS }.all(|number| !scene.cancel(number, 50)));
                    }
                    let left = scene.end(unsatisfiable);
                    // Empty lists keep some memory. It depends on which keys share one.
                    assert!(
                        left <= memory + 2048,
                        "{left} bytes are left, usually {memory}"
                    );
                }));
                assert!(result.is_ok(), "{context}");
                *failures.entry(failure as u64).or_insert(0) += hits;
                if hits == 0 {
                    break;
                }
            }
        }
    }
    assert!(
        failures
            .values()
            .all(|failures| *failures > sized(0, 7, 40)),
        "{failures:?}"
    );
}

/// O2: without a slot, a release by the next process with the pid has nothing to search.
#[test]
fn o2_gift_to_a_dead_process_makes_no_slot() {
    let table = Table::<u64, Letter>::new(16).unwrap();
    let [giver, target] = [1, 7].map(Scene::holder);
    let watch = || Ok::<(), OutOfMemory>(());
    let acquired = table.acquire(&pin(), giver, &5, demand(1, 1), watch);
    assert_eq!(acquired, Ok(Acquired::Permit(1)));
    let one = NonZeroU64::MIN;
    let dead = || Ok::<bool, OutOfMemory>(false);
    let given = table.give(&pin(), giver, target, &5, one, dead);
    assert_eq!(given, Ok(Given::NotAlive));
    assert!(!table.knows(target));
    let alive = || Ok::<bool, OutOfMemory>(true);
    let given = table.give(&pin(), giver, target, &5, one, alive);
    assert_eq!(given, Ok(Given::Given));
    assert!(table.knows(target));
}

/// P13: when a process gets the message of a request, the totals no longer count the request as one that waits.
/// Otherwise the next request of the process, for another key, could be refused because of the one that has ended.
#[test]
fn p13_totals_count_the_end_of_a_request_before_its_message() {
    type Seen = Arc<Mutex<Vec<(WaitEnd, usize, u64, u64)>>>;
    /// Reads the totals when it is sent, which takes no lock of a queue or of a holder.
    struct ReadsTotals(Arc<Table<u64, ReadsTotals>>, Seen);
    impl Notice for ReadsTotals {
        type Context<'a> = ();

        fn now_us() -> u64 {
            1000
        }

        fn send(self, (): (), end: WaitEnd) {
            let usage = self.0.usage();
            let Totals {
                handed_over,
                wait_us,
                ..
            } = usage.totals;
            let seen = (end, usage.waiting, handed_over, wait_us);
            self.1.lock().push(seen);
        }
    }
    let table = Arc::new(Table::new(16).unwrap());
    let seen = Seen::default();
    let watch = || Ok::<(), OutOfMemory>(());
    let one = || demand(1, 1);
    let acquired = table.acquire(&pin(), me(), &7, one(), watch);
    assert_eq!(acquired, Ok(Acquired::Permit(1)));
    for request_hash in 0..3 {
        let ask = WaitRequest {
            demand: one(),
            is_shared: false,
            max_waiting: usize::MAX,
            request_hash,
            now: 300,
            notice: ReadsTotals(table.clone(), seen.clone()),
        };
        let waited = table.wait(&pin(), holder(2, 1), &7, ask, watch, ());
        assert_eq!(waited, Ok(Waited::Waiting));
    }
    table.release(&pin(), me(), &7, ()).unwrap();
    assert!(table.close(2, ()));
    let expected = [
        (WaitEnd::Granted(1), 2, 1, 700),
        (WaitEnd::Closed, 1, 1, 700),
        (WaitEnd::Closed, 0, 1, 700),
    ];
    assert_eq!(*seen.lock(), expected);
}

/// O1: a request that fails for lack of memory leaves no row on the record of its process. Such a row would name a key
/// that can be reclaimed.
#[test]
fn o1_wait_without_memory_leaves_no_row() {
    for failure in [Failure::Allocation, Failure::Memory] {
        for grants in 0.. {
            let scene = Scene::new();
            let wait = || scene.wait(7, 1, 50, demand(2, 3));
            let waited = with_failure(failure, grants, wait).unwrap();
            let slot = scene.table.holders.find(Scene::holder(7));
            let overflow = slot.and_then(|slot| slot.overflow());
            let rows = overflow.map_or(0, |overflow| overflow.lock().rows(0).count());
            assert_eq!(rows, usize::from(waited.is_ok()), "{failure:?} {grants}");
            if waited.is_ok() {
                assert!(grants > 4, "{grants} failures");
                break;
            }
        }
    }
}

/// O1: a request that had collected permits leaves no row on the record of its process when it ends without them. Such
/// a row would name a key that can be reclaimed.
#[test]
fn o1_request_that_had_collected_leaves_no_row() {
    let ends: [fn(&Scene); 2] = [
        |scene| assert!(scene.cancel(7, 50)),
        |scene| assert!(scene.table.close(usize::MAX, ())),
    ];
    for end in ends {
        let scene = Scene {
            table: Table::new(16).unwrap(),
            inbox: Inbox::default(),
        };
        scene.acquire(2, 1, demand(1, 2));
        assert_eq!(scene.wait(7, 1, 50, demand(2, 2)), Ok(Waited::Waiting));
        assert_eq!(scene.rows(), [((2, 1), 1), ((7, 1), 1)].into());
        end(&scene);
        let slot = scene.table.holders.find(Scene::holder(7)).unwrap();
        assert_eq!(slot.overflow().unwrap().lock().rows(0).count(), 0);
        assert_eq!((scene.table.count(&pin(), &1), scene.drain()), (1, 0));
    }
}

/// P8, P9: a request that was about to wait leaves no queue when its call panics, so the sweep reclaims the key.
#[test]
fn p8_wait_that_panics_leaves_no_key() {
    for grants in 0.. {
        let scene = Scene {
            table: Table::new(16).unwrap(),
            inbox: Inbox::default(),
        };
        let wait = || scene.wait(7, 1, 50, demand(2, 1));
        let waited = with_failure(Failure::Panic, grants, wait);
        assert_eq!(scene.table.usage().waiting, usize::from(waited.is_some()));
        for _ in 0..2 {
            while scene.table.sweep_step(256).0 != Progress::Done {
                std::thread::yield_now();
            }
        }
        assert_eq!(scene.table.usage().keys, usize::from(waited.is_some()));
        if waited.is_some() {
            assert!(grants > 3, "{grants} panics");
            break;
        }
    }
}

/// P9, P13: a panic between the end of the last request of a key and the end of its queue leaves the queue empty. When
/// the table closes, the requests for the other keys end all the same.
#[test]
fn p13_closing_passes_queues_that_a_panic_has_left_empty() {
    const KEYS: u64 = 1_000;
    let scene = Scene {
        table: Table::new(1024).unwrap(),
        inbox: Inbox::default(),
    };
    for key in 0..KEYS {
        let waited = scene.wait(1 + key, key, key, demand(1, 0));
        assert_eq!(waited, Ok(Waited::Waiting));
    }
    for key in (0..KEYS).step_by(2) {
        let cancel = || scene.cancel(1 + key, key);
        // The first place is before the request leaves its queue.
        assert_eq!(with_failure(Failure::Panic, 1, cancel), None);
        assert!(!cancel());
    }
    assert_eq!(scene.table.usage().waiting, 500);
    assert!(scene.table.close(usize::MAX, ()));
    let closed = scene.inbox.lock().clone().into_iter();
    let closed: BTreeSet<u64> = closed.map(|(request, _)| request).collect();
    assert!(closed.into_iter().eq((1..KEYS).step_by(2)));
}

/// P9: an allocation fails, or the code panics (a bug), anywhere in a call for a shared key. No permit is lost or
/// counted twice, and the same call succeeds afterwards.
#[test]
fn p9_failure_anywhere_in_a_call_for_a_shared_key_loses_nothing() {
    type Call = fn(&Table<u64, Letter>, &Inbox) -> Result<(), OutOfMemory>;
    const KEY: u64 = 1;
    fn set(table: &Table<u64, Letter>, share: u64) -> Result<(u64, bool), OutOfMemory> {
        let limit = Capacity::of(4, 1);
        table.set_share(&pin(), &KEY, &Share::new(share, Some(limit), limit), ())
    }
    fn acquire(table: &Table<u64, Letter>, number: u64) -> Result<Option<Acquired>, OutOfMemory> {
        let watch = || Ok::<(), OutOfMemory>(());
        table.acquire_shared(&pin(), holder(number, number), &KEY, demand(1, 4), watch)
    }
    fn wait(table: &Table<u64, Letter>, inbox: &Inbox, permits: u64) -> Result<(), OutOfMemory> {
        let ask = WaitRequest {
            demand: demand(permits, 4),
            is_shared: true,
            max_waiting: usize::MAX,
            request_hash: permits,
            now: 0,
            notice: Letter(permits, inbox.clone()),
        };
        let watch = || Ok::<(), OutOfMemory>(());
        let waited = table.wait(&pin(), holder(9, 9), &KEY, ask, watch, ())?;
        assert_eq!(waited, Waited::Waiting);
        Ok(())
    }
    let calls: [(bool, Call); 5] = [
        (false, |table, _| set(table, 1).map(|_| ())),
        (true, |table, _| set(table, 0).map(|_| ())),
        (true, |table, _| set(table, 4).map(|_| ())),
        (true, |table, _| acquire(table, 8).map(|_| ())),
        (true, |table, inbox| wait(table, inbox, 1)),
    ];
    let mut failures = 0;
    for (has_queue, call) in calls {
        for failure in [Failure::Allocation, Failure::Memory, Failure::Panic] {
            for grants in 0.. {
                let (table, inbox) = (Table::new(4096).unwrap(), Inbox::default());
                if has_queue {
                    set(&table, 2).unwrap();
                    acquire(&table, 1).unwrap();
                    // Collects a permit.
                    wait(&table, &inbox, 3).unwrap();
                    wait(&table, &inbox, 2).unwrap();
                }
                arm(failure, grants);
                let outcome = catch_unwind(AssertUnwindSafe(|| call(&table, &inbox)));
                let hits = disarm();
                assert_eq!(outcome.is_err(), hits > 0 && failure == Failure::Panic);
                let consistent = || {
                    let pin = pin();
                    let (rows, _) = table.holders_from(&pin, Cursor::default(), &KEY).unwrap();
                    let held = rows.iter().map(|row| row.permits).sum::<u64>();
                    assert_eq!(
                        (table.count(&pin, &KEY), table.usage().permits),
                        (held, held)
                    );
                };
                consistent();
                let mut is_settled = set(&table, 4).unwrap().1;
                while !is_settled {
                    is_settled = table.settle(&pin(), &KEY, ());
                }
                consistent();
                if has_queue {
                    assert!(inbox.lock().iter().any(|(of, _)| *of == 3));
                }
                for number in [1, 8, 9] {
                    table.release_all(&pin(), holder(number, number), || false, ());
                }
                assert_eq!(set(&table, 0), Ok((0, true)));
                while table.sweep_step(256).0 != Progress::Done {}
                while table.sweep_step(256).0 != Progress::Done {}
                while table.sweep_step(256).0 != Progress::Done {}
                let usage = table.usage();
                assert_eq!((usage.keys, usage.permits, usage.waiting), (0, 0, 0));
                failures += hits;
                if hits == 0 {
                    break;
                }
            }
        }
    }
    assert!(failures > 10, "{failures}");
}

/// P8: a process that has no permit of a key loses none, and the key is idle.
#[test]
fn p8_nothing_that_is_lost_leaves_nothing() {
    let table = Table::<u64, ()>::new(64).unwrap();
    let watch = || Ok::<(), OutOfMemory>(());
    let share = Share::new(0, None, Capacity::of(0, 1));
    let (key, holder) = (1, holder(1, 1));
    table
        .acquire(&pin(), holder, &2, Capacity::of(1, 1), watch)
        .unwrap();
    table.set_share(&pin(), &key, &share, ()).unwrap();
    assert_eq!(table.lose(&pin(), holder, &key), Ok(0));
    assert!(!table.queues.has_lost(table.sort_key(&key)));
    for _ in 0..2 {
        while table.sweep_step(256).0 != Progress::Done {}
    }
    assert_eq!(table.usage().keys, 1);
}

/// P9: the same in calls that make permits lost, and with lost ones.
#[test]
fn p9_failure_anywhere_while_permits_are_lost() {
    type Call = fn(&Table<u64, Letter>) -> Result<(), OutOfMemory>;
    const KEY: u64 = 1;
    fn set(table: &Table<u64, Letter>, share: u64, passed: Option<Capacity>) {
        let share = Share::new(share, passed, Capacity::of(2, 1));
        assert!(table.set_share(&pin(), &KEY, &share, ()).unwrap().1);
    }
    fn lose(table: &Table<u64, Letter>, number: u64) -> Result<u64, OutOfMemory> {
        table.lose(&pin(), holder(number, number), &KEY)
    }
    fn give(table: &Table<u64, Letter>) -> Result<(), OutOfMemory> {
        let watch = || Ok::<bool, OutOfMemory>(true);
        let (giver, target) = (holder(1, 1), holder(3, 3));
        let given = table.give(&pin(), giver, target, &KEY, NonZeroU64::MIN, watch)?;
        assert_eq!(given, Given::Given);
        Ok(())
    }
    let calls: [(bool, Call); 4] = [
        (false, |table| lose(table, 1).map(|_| ())),
        (false, give),
        (true, give),
        (true, |table| {
            assert_eq!(table.release(&pin(), holder(1, 1), &KEY, ()), Ok(()));
            Ok(())
        }),
    ];
    let mut failures = 0;
    for (is_lost, call) in calls {
        for failure in [Failure::Allocation, Failure::Memory, Failure::Panic] {
            for grants in 0.. {
                let table = Table::<u64, Letter>::new(64).unwrap();
                set(&table, 2, Some(Capacity::of(2, 1)));
                for number in [1, 2] {
                    let watch = || Ok::<(), OutOfMemory>(());
                    let holder = holder(number, number);
                    let acquired = table.acquire_shared(&pin(), holder, &KEY, demand(1, 2), watch);
                    assert!(matches!(acquired, Ok(Some(Acquired::Permit(_)))));
                }
                set(&table, 0, None);
                if is_lost {
                    assert_eq!(lose(&table, 1), Ok(1));
                }
                arm(failure, grants);
                let outcome = catch_unwind(AssertUnwindSafe(|| call(&table)));
                let hits = disarm();
                assert_eq!(outcome.is_err(), hits > 0 && failure == Failure::Panic);
                // No row without permits is left (O1).
                let slot = table.holders.find(holder(3, 3));
                if let Some(overflow) = slot.and_then(|slot| slot.overflow()) {
                    let record = overflow.lock();
                    assert!(record.rows(0).all(|(_, row)| row.counted() == 1));
                }
                let lost: u64 = [1, 2, 3]
                    .map(|number| lose(&table, number).unwrap())
                    .iter()
                    .sum();
                assert!((1..=2).contains(&lost), "{lost}");
                assert_eq!(table.count(&pin(), &KEY), 0);
                for number in [1, 2, 3] {
                    table.release_all(&pin(), holder(number, number), || false, ());
                }
                assert_eq!(table.count(&pin(), &KEY), 0);
                assert!(!table.queues.has_lost(table.sort_key(&KEY)));
                for _ in 0..3 {
                    while table.sweep_step(256).0 != Progress::Done {}
                }
                assert_eq!(table.usage().keys, 0);
                failures += hits;
                if hits == 0 {
                    break;
                }
            }
        }
    }
    assert!(failures > 10, "{failures}");
}
