//! Property test: the list and its heads after arbitrary calls and steps of the sweep.

use super::*;
use crate::allocated::memory_of;
use crate::keys::{sort_key_of_hash, NewNode};
use crate::permit_count::{Capacity, PermitCount};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Do {
    Acquire(u64),
    Release(u64),
    /// Doubles the number of ranges, as if there were many keys.
    Grow,
    Step(usize),
}

/// Up to 16 chunks of heads.
const MOST_BITS: u32 = MIN_BITS + 4;

fn anything() -> impl Strategy<Value = Do> {
    prop_oneof![
        6 => (0..24u64).prop_map(Do::Acquire),
        6 => (0..24u64).prop_map(Do::Release),
        1 => Just(Do::Grow),
        8 => prop_oneof![3 => 1..6usize, 1 => Just(CHUNK)].prop_map(Do::Step),
    ]
}

/// Equal hashes, adjacent hashes, and hashes on both sides of heads.
fn hashes() -> impl Strategy<Value = Vec<u64>> {
    let range = (0..1u64 << MOST_BITS).prop_map(|range| range << (u64::BITS - MOST_BITS));
    let hash = prop_oneof![
        Just(0),
        Just(u64::MAX),
        range.clone(),
        range.prop_map(|sort_key| sort_key.wrapping_sub(1)),
        any::<u64>(),
    ];
    prop::collection::vec(hash, 1..12)
}

/// All links of the list.
fn links(keys: &Keys<u64>) -> Vec<*mut Link> {
    let mut links = Vec::new();
    let (mut cursor, _) = keys.entry(0).link.next();
    // SAFETY: there is one thread, so all links of the list are alive.
    while let Some(link) = unsafe { cursor.as_ref() } {
        links.push(cursor);
        let (next, marked) = link.next();
        assert!(!marked, "K7: a marked link");
        cursor = next;
    }
    links
}

fn check(keys: &Keys<u64>, sort_key: impl Fn(u64) -> u64, out: &BTreeMap<u64, u64>) {
    let links = links(keys);
    // SAFETY: as in `links`.
    let orders = links.iter().map(|link| unsafe { (**link).sort_key });
    assert!(orders.is_sorted(), "K1");
    let nodes = links.iter().filter_map(|link| Link::node::<u64>(*link));
    // SAFETY: as above.
    let nodes = nodes.map(|node| unsafe { node.as_ref() });
    let nodes: Vec<_> = nodes.collect();
    assert_eq!(keys.len(), nodes.len());
    let alive = nodes
        .iter()
        .filter_map(|node| Some((node.key, node.count.permits()?)));
    let alive: Vec<_> = alive.collect();
    let by_key: BTreeMap<_, _> = alive.iter().copied().collect();
    assert_eq!(by_key.len(), alive.len(), "K4: a key that is there twice");
    for (key, out) in out {
        assert_eq!(by_key.get(key).copied().unwrap_or(0), *out, "K6: key {key}");
    }
    let pin = epochs::pin();
    for key in 0..24 {
        let found = keys.get(&pin, sort_key(key), &key);
        assert_eq!(found.is_some(), by_key.contains_key(&key), "key {key}");
    }
}

/// Checks that the linked heads are those in the list.
fn check_heads(keys: &Keys<u64>) {
    let heads = keys.heads.values();
    let heads = heads.filter(|head| head.state() == LINKED);
    // The first head is the start of the list.
    assert_eq!(links(keys).len() - keys.len(), heads.count() - 1);
}

proptest! {
    /// P8, K1, K4, K6, K7: for any sequence of calls and sweep steps, while heads are added and removed, the list is
    /// sorted, and each key with permits in use is found with its count. In the end all memory is freed.
    #[test]
    fn p8_any_history_keeps_the_list_valid_and_leaks_nothing(
        hashes in hashes(),
        history in prop::collection::vec(anything(), 0..200),
    ) {
        let sort_key = |key: u64| sort_key_of_hash(hashes[key as usize % hashes.len()]);
        let empty = || (Keys::<u64>::new().unwrap(), Sweep::new());
        let (keys, mut sweep) = empty();
        let mut out = BTreeMap::<u64, u64>::new();
        for step in history {
            match step {
                Do::Acquire(key) => {
                    let pin = epochs::pin();
                    match keys.get(&pin, sort_key(key), &key) {
                        Some(node) => {
                            node.count.acquire(Capacity::MAX.into()).unwrap();
                        }
                        None => {
                            let new = NewNode::with(PermitCount::with_permits(1), &key, sort_key(key)).unwrap();
                            prop_assert!(keys.insert(&pin, &key, new).is_ok());
                        }
                    }
                    *out.entry(key).or_default() += 1;
                }
                Do::Release(key) => {
                    let permits = out.entry(key).or_default();
                    if *permits > 0 {
                        *permits -= 1;
                        keys.get(&epochs::pin(), sort_key(key), &key).unwrap().count.release(1);
                    }
                }
                Do::Grow => {
                    let bits = keys.bits();
                    keys.resize(bits, (bits + 1).min(MOST_BITS));
                }
                Do::Step(budget) => {
                    sweep.step(&keys, budget);
                }
            }
            check(&keys, sort_key, &out);
        }
        check_heads(&keys);
        for (key, permits) in out {
            if let Some(node) = keys.get(&epochs::pin(), sort_key(key), &key) {
                node.count.release(permits);
            }
        }
        // The current pass, and two more.
        for _ in 0..3 {
            // Pins of other tests can delay it.
            let budget = || if keys.bits() == MIN_BITS { 1 } else { CHUNK };
            while sweep.step(&keys, budget()).0 != Progress::Done {
                std::thread::yield_now();
            }
        }
        prop_assert_eq!((keys.len(), keys.bits()), (0, MIN_BITS));
        prop_assert_eq!(memory_of(keys), memory_of(empty().0));
        prop_assert!(sweep.waiting.is_empty() && sweep.unstamped.is_empty());
    }
}

/// P9: a node is never lost because its list entry cannot be allocated.
#[test]
fn p9_sweep_reserves_before_it_unlinks() {
    let mut sweep = Sweep::<u64>::new();
    assert!(sweep.reserve().is_ok());
    assert!(sweep.unstamped.capacity() > 0 && sweep.waiting.capacity() > 0);
}
/// K3: a head that a caller is linking is not in the list yet, so it cannot be unlinked.
#[test]
fn k3_head_being_linked_is_closed_later() {
    let keys = Keys::<u64>::new().unwrap();
    let pin = epochs::pin();
    let head = keys.heads.get(1).unwrap();
    assert!(head.change(UNLINKED, LINKING));
    assert!(Sweep::close(&pin, &keys, head).is_err());
    assert!(head.change(LINKING, UNLINKED));
    assert!(Sweep::close(&pin, &keys, head).is_ok());
    assert_eq!(head.state(), LEAVING);
}

/// The caller accounts for all units spent, including indivisible work beyond the budget.
#[test]
fn work_beyond_the_budget_is_counted() {
    let (keys, mut sweep) = (Keys::<u64>::new().unwrap(), Sweep::new());
    // Makes a second chunk of heads, which is not needed.
    keys.resize(MIN_BITS, MIN_BITS + 1);
    keys.link_head(&epochs::pin(), u64::MAX);
    let mut most = 0;
    loop {
        let (progress, spent) = sweep.step(&keys, 1);
        most = most.max(spent);
        if progress == Progress::Done {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(most, UNITS_PER_CHUNK);
}
