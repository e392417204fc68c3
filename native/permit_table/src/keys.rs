//! Maps a key to its word: a concurrent map with lock-free lookups and insertions.
//!
//! It is a split-ordered list (Shalev and Shavit, "Split-Ordered Lists: Lock-Free Extensible Hash Tables", JACM 2006):
//! one linked list of all keys, sorted by hash, and an array of heads that point into it. With `2^bits` ranges, the
//! range of a key is the first `bits` bits of its hash. So doubling the number of ranges is one store and moves
//! nothing. Each range then has a new head in its middle. The new heads are linked one by one as keys are inserted (P8:
//! no call waits for growth).
//!
//! ```text
//!   heads (bits = 2)   [00]           [01]           [10]           [11]
//!                       |              |              |              |
//!   sort key           000 -> 0011 -> 010 -> 0101 -> 100 ---------> 110 -> 1111 -> end
//!                      head   key     head   key     head           head   key
//! ```
//!
//! The sort key of a key is its hash with the last bit set. The sort key of a head is the first bits of its range
//! followed by zeros. So the two are never equal. Lookups use the parent of a head that is not linked yet. The sort key
//! of the parent lacks the lowest bit that is set. The place of a head in the array (`index`) is given by the number of
//! bits that distinguish it from its parent, then by these bits. So a head keeps its place when the ranges double. (The
//! paper numbers ranges by the *last* bits, and sorts by the reversed hash, for the same purpose. Finding the lowest
//! set bit is one instruction, reversing a word is not.)
//!
//! # Invariants
//!
//! - **K1** The unmarked links are sorted by sort key. Among links of the same sort key, the newer one comes first.
//! - **K2** The `next` pointer of a marked link never changes again. A link is marked before it is unlinked.
//! - **K3** Only the sweep (`sweep.rs`) marks and unlinks, one sweep at a time. All other threads only insert: by a
//!   compare-and-swap on the `next` pointer of an unmarked link, directly behind which the new link goes.
//! - **K4** Of the nodes with the same key at most one is not dead. A dead node stays dead. A caller that finds a dead
//!   node passes over it, and inserts a new one in *front* of its run of equal sort keys, without waiting for the
//!   sweep.
//! - **K5** An unlinked node is freed only when no thread that was pinned at that time is still inside (`epochs.rs`).
//! - **K6** A node whose count or share is not 0, or that has a queue or lost permits, is not dead, hence linked, hence
//!   not freed. So a holder and a waiter may keep its address.
//! - **K7** Between two steps of the sweep no link is marked. So each step starts from a clean list.
//!
//! K1 lets a search stop at the first greater sort key. The reason: a new link is inserted behind the last unmarked
//! link of smaller sort key, so in front of any run of marked links there. Hence a marked link of greater sort key
//! never precedes an unmarked link of smaller sort key. (The reverse is possible; searches pass over it.)

use crate::memory::{allocate, free, OutOfMemory};
use crate::permit_count::{CountSeen, PermitCount};
use crate::sync::{ordering, sized, AtomicPtr, AtomicU32, AtomicU8, AtomicUsize, Ordering};
use crate::{epochs::Pin, lazy_array::LazyArray};
use equivalent::Equivalent;
use std::ptr::{self, NonNull};

/// A type that can be stored as a key.
pub trait Key: Send + Sync + 'static {
    /// Bytes on the heap beyond the size of the key itself: the cost of freeing and of reporting it.
    fn heap_bytes(&self) -> usize;
}

/// A value by which a key is looked up, and from which a new key is made. Equal queries have equal hashes.
pub trait Query<K>: std::hash::Hash + Equivalent<K> {
    /// The key to store. Called at most once per call.
    fn to_key(&self) -> Result<K, OutOfMemory>;
}

/// Heads per chunk. A chunk has 96 KiB and is allocated in a few microseconds. The first one serves 4,096 keys.
pub(crate) const CHUNK: usize = sized(2, 64, 4096);

/// Units of a budget that freeing a chunk costs.
pub(crate) const UNITS_PER_CHUNK: usize = 64;

/// The table has at least as many ranges as one chunk has heads.
pub(crate) const MIN_BITS: u32 = CHUNK.trailing_zeros();

/// It has at most 2^26 ranges. Beyond that the runs between two heads get longer: 16 keys with a thousand million keys,
/// which is acceptable. The array of chunk pointers has 128 KiB.
const MAX_BITS: u32 = sized(3, 10, 26) as u32;

/// The lowest bit of a `next` pointer: the link is being unlinked (K2).
const MARK: usize = 1;

/// The list element that keys and heads share.
#[repr(C)]
pub(crate) struct Link {
    /// The next link or null, plus [`MARK`].
    next: AtomicPtr<Link>,
    pub(crate) sort_key: u64,
}

/// An entry point into the list.
#[repr(C)]
pub(crate) struct Head {
    pub(crate) link: Link,
    state: AtomicU8,
}

/// [`Head::state`]: not in the list. Lookups use its parent.
pub(crate) const UNLINKED: u8 = 0;
/// A thread is linking it. Lookups use its parent.
pub(crate) const LINKING: u8 = 1;
pub(crate) const LINKED: u8 = 2;
/// Being unlinked, or not in the list for good, with the rest of its chunk to follow. Lookups use its parent.
pub(crate) const LEAVING: u8 = 3;

/// A key with its word. It has 64 bytes if the key has 40, and shares a cache line with no other node.
#[repr(C, align(64))]
pub(crate) struct Node<K> {
    link: Link,
    pub(crate) count: PermitCount,
    pub(crate) key: K,
}

pub(crate) struct Keys<K> {
    pub(crate) heads: LazyArray<Head, CHUNK>,
    /// The number of ranges is `2^bits`.
    bits: AtomicU32,
    len: AtomicUsize,
    /// Keys that the sweep has unlinked. Only the sweep changes it; it is a statistic.
    pub(crate) reclaimed: std::sync::atomic::AtomicU64,
    _nodes: std::marker::PhantomData<Box<Node<K>>>,
}

/// A node that is not published yet. Freed on drop.
pub(crate) struct NewNode<K>(NonNull<Node<K>>);

/// A position in the list: behind `before`, whose pointer was `next`.
pub(crate) struct Gap<'a> {
    pub(crate) before: &'a Link,
    pub(crate) next: *mut Link,
}

impl Link {
    fn new(sort_key: u64) -> Self {
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            sort_key,
        }
    }

    /// The pointer to the next link, and whether this link is marked.
    #[inline(always)]
    pub(crate) fn next(&self) -> (*mut Link, bool) {
        // Acquire: a thread that sees a link sees what it points to.
        let next = self.next.load(Ordering::Acquire);
        (next.map_addr(|a| a & !MARK), next.addr() & MARK != 0)
    }

    /// If this link is unmarked and points to `expected`, makes it point to `new`.
    ///
    /// AcqRel: a thread that finds `new` sees its key and its word.
    pub(crate) fn redirect(&self, expected: *mut Link, new: *mut Link) -> bool {
        let ordering = ordering("k1_published_relaxed", Ordering::AcqRel);
        self.next
            .compare_exchange(expected, new, ordering, Ordering::Relaxed)
            .is_ok()
    }

    /// Marks this link. Returns its final target (K2).
    pub(crate) fn mark(&self) -> *mut Link {
        loop {
            let (next, marked) = self.next();
            if marked || self.redirect(next, next.map_addr(|a| a | MARK)) {
                return next;
            }
        }
    }

    /// This link as a node, or `None` if it belongs to a head.
    pub(crate) fn node<K>(link: *mut Link) -> Option<NonNull<Node<K>>> {
        // SAFETY: the caller found `link` in the list, under a pin or as its only user, so it is alive.
        let is_node = unsafe { (*link).sort_key & 1 == 1 };
        // An odd sort key means that the pointer was made from a pointer to a node (repr(C): the link comes first).
        is_node.then(|| NonNull::new(link.cast::<Node<K>>()).expect("links are not null"))
    }
}

impl Head {
    fn new(index: usize) -> Self {
        Self {
            link: Link::new(sort_key_at(index)),
            state: AtomicU8::new(UNLINKED),
        }
    }

    pub(crate) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// Changes the state from `from` to `to`. Returns false if it was not `from`.
    pub(crate) fn change(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

impl<K> Node<K> {
    /// The [`sort_key_of_hash`] of its key's hash.
    pub(crate) fn sort_key(&self) -> u64 {
        self.link.sort_key
    }
}

impl<K: Key> NewNode<K> {
    /// A new key with this word.
    pub(crate) fn with(
        count: PermitCount,
        query: &impl Query<K>,
        sort_key: u64,
    ) -> Result<Self, OutOfMemory> {
        let key = query.to_key()?;
        let link = Link::new(sort_key);
        let node = allocate(Node { link, count, key })?;
        Ok(Self(node))
    }
}

impl<K> Drop for NewNode<K> {
    fn drop(&mut self) {
        // SAFETY: allocated above, and not published.
        unsafe { free(self.0) };
    }
}

/// The units of a budget that freeing a key costs: 1, plus 1 for each page that goes back to the system.
pub(crate) fn cost_of_freeing(key: &impl Key) -> usize {
    const PAGE: usize = 4096;
    1 + key.heap_bytes() / PAGE
}

impl<K: Key> Keys<K> {
    /// An empty map.
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let heads = LazyArray::new(1 << MAX_BITS)?;
        // Head 0 is the ancestor of all heads and the start of the list.
        heads.get_or_create(0, Head::new)?.change(UNLINKED, LINKED);
        Ok(Self {
            heads,
            bits: AtomicU32::new(MIN_BITS),
            len: AtomicUsize::new(0),
            reclaimed: Default::default(),
            _nodes: std::marker::PhantomData,
        })
    }

    /// The number of keys, idle ones included.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(crate) fn count_reclaimed(&self) {
        self.len.fetch_sub(1, Ordering::Relaxed);
        self.reclaimed.fetch_add(1, Ordering::Relaxed);
    }

    /// Relaxed: each head of an enclosing range is a correct entry. An old number only makes a walk longer.
    pub(crate) fn bits(&self) -> u32 {
        self.bits.load(Ordering::Relaxed)
    }

    /// Changes the number of ranges, unless another thread just has.
    pub(crate) fn resize(&self, from: u32, to: u32) {
        // A failed exchange means that another thread has resized it.
        let _ = self
            .bits
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The node of a key. Writes nothing (P2).
    #[inline(always)]
    pub(crate) fn get<'a, Q: Equivalent<K>>(
        &'a self,
        pin: &'a Pin,
        sort_key: u64,
        query: &Q,
    ) -> Option<&'a Node<K>> {
        self.get_with_word(pin, sort_key, query)
            .map(|(node, _)| node)
    }

    /// As [`Keys::get`], and its word at an instant when it was not dead.
    ///
    /// The sweep can unlink the head by which the search enters, and then the search misses later insertions. The
    /// result is still correct: it was true when the head was found linked, which is within this call. A caller that
    /// inserts the key because of it will notice the other node.
    #[inline(always)]
    pub(crate) fn get_with_word<'a, Q: Equivalent<K>>(
        &'a self,
        _pin: &'a Pin,
        sort_key: u64,
        query: &Q,
    ) -> Option<(&'a Node<K>, CountSeen)> {
        let (mut cursor, _) = self.entry(sort_key).link.next();
        // SAFETY: pinned, so every link that the list leads to is alive (K5).
        while let Some(link) = unsafe { cursor.as_ref() } {
            if link.sort_key >= sort_key {
                if link.sort_key > sort_key {
                    break;
                }
                if let Some(found) = Self::live_node(cursor, query) {
                    return Some(found);
                }
            }
            (cursor, _) = link.next();
        }
        None
    }

    /// Inserts a new node. Returns it as an error if the key is present by now: another caller has inserted it.
    pub(crate) fn insert<'a, Q: Equivalent<K>>(
        &'a self,
        pin: &'a Pin,
        query: &Q,
        new: NewNode<K>,
    ) -> Result<&'a Node<K>, NewNode<K>> {
        // SAFETY: it is alive, and it is only read here.
        let link = unsafe { &new.0.as_ref().link };
        self.link_head(pin, link.sort_key);
        // Before it is in the list: the sweep can reclaim a key without a share at once.
        let len = self.len.fetch_add(1, Ordering::Relaxed) + 1;
        loop {
            let Some(gap) = self.gap(pin, &self.entry(link.sort_key).link, link.sort_key) else {
                continue;
            };
            if Self::run_has(&gap, link.sort_key, query) {
                self.len.fetch_sub(1, Ordering::Relaxed);
                return Err(new);
            }
            link.next.store(gap.next, Ordering::Relaxed);
            // The swap succeeds only if nothing was inserted here since the run was read (K3). This ensures K4.
            if gap.before.redirect(gap.next, new.0.as_ptr().cast()) {
                break;
            }
        }
        let node = new.0;
        std::mem::forget(new);
        self.grow_when_loaded(len);
        // SAFETY: the pin keeps it alive (K5).
        Ok(unsafe { node.as_ref() })
    }

    /// The nearest linked head whose sort key is not greater than `sort_key`: the head of its range, or an ancestor.
    #[inline(always)]
    pub(crate) fn entry(&self, sort_key: u64) -> &Head {
        let mut range = self.range(sort_key);
        loop {
            match self.heads.get(index(range)) {
                Some(head) if head.state() == LINKED => return head,
                _ => range = parent(range),
            }
        }
    }

    /// The sort key of the head of the range that contains `sort_key`.
    #[inline(always)]
    fn range(&self, sort_key: u64) -> u64 {
        sort_key & (u64::MAX << (u64::BITS - self.bits()))
    }

    /// The position for `sort_key`, searched from `start`: behind the last unmarked link of smaller sort key. Returns
    /// `None` if `start` is marked and so cannot be used any more.
    pub(crate) fn gap<'a>(&self, _pin: &'a Pin, start: &'a Link, sort_key: u64) -> Option<Gap<'a>> {
        let (next, marked) = start.next();
        if marked {
            return None;
        }
        let mut gap = Gap {
            before: start,
            next,
        };
        let mut cursor = next;
        // SAFETY: pinned (K5).
        while let Some(link) = unsafe { cursor.as_ref() } {
            let (next, marked) = link.next();
            if !marked {
                if link.sort_key >= sort_key {
                    break;
                }
                gap = Gap { before: link, next };
            }
            cursor = next;
        }
        Some(gap)
    }

    /// Links the head of the range of `sort_key`, if it is not linked yet. Without memory for it, lookups keep using
    /// its parent.
    pub(crate) fn link_head(&self, pin: &Pin, sort_key: u64) {
        let range = self.range(sort_key);
        let head = self.heads.get_or_create(index(range), Head::new);
        let Ok(head) = head else {
            return;
        };
        if head.state() != UNLINKED || !head.change(UNLINKED, LINKING) {
            return;
        }
        // From here on nothing can panic: in state LINKING, the sweep would wait for the head forever.
        let link = ptr::from_ref(&head.link).cast_mut();
        loop {
            let start = self.entry(parent(range));
            let Some(gap) = self.gap(pin, &start.link, range) else {
                continue;
            };
            head.link.next.store(gap.next, Ordering::Relaxed);
            if gap.before.redirect(gap.next, link) {
                break;
            }
        }
        // Release: a thread that sees LINKED, and enters at the head, finds it in the list.
        head.state.store(LINKED, Ordering::Release);
    }

    /// Doubles the number of ranges if there are more keys than ranges. Allocates nothing and moves nothing.
    fn grow_when_loaded(&self, len: usize) {
        let bits = self.bits();
        if len > 1 << bits && bits < MAX_BITS {
            self.resize(bits, bits + 1);
        }
    }

    /// Whether a live node with the key is among those of `sort_key` behind the gap.
    fn run_has<Q: Equivalent<K>>(gap: &Gap<'_>, sort_key: u64, query: &Q) -> bool {
        let mut cursor = gap.next;
        // SAFETY: the gap was found under a pin that its lifetime still borrows (K5).
        while let Some(link) = unsafe { cursor.as_ref() } {
            let (next, marked) = link.next();
            if !marked {
                if link.sort_key != sort_key {
                    return false;
                }
                if Self::live_node(cursor, query).is_some() {
                    return true;
                }
            }
            cursor = next;
        }
        false
    }

    /// The link as a node, with its word, if it has the key and is not dead (K4).
    #[inline(always)]
    fn live_node<'a, Q: Equivalent<K>>(
        link: *mut Link,
        query: &Q,
    ) -> Option<(&'a Node<K>, CountSeen)> {
        let node = Link::node::<K>(link)?;
        // SAFETY: the caller is pinned and found the link in the list (K5).
        let node = unsafe { node.as_ref() };
        if !query.equivalent(&node.key) {
            return None;
        }
        let word = node.count.read();
        (!word.is_dead()).then_some((node, word))
    }

    /// Calls `visit` with each key whose sort key is greater than `after`, and with the greatest sort key so far, until
    /// `visit` returns false. (A marked link can stand behind an unmarked link of greater sort key. A walk that
    /// continued after the smaller sort key would visit the greater one twice.)
    pub(crate) fn walk<'a>(
        &'a self,
        pin: &'a Pin,
        after: u64,
        mut visit: impl FnMut(NonNull<Node<K>>, u64) -> bool,
    ) {
        let gap = loop {
            // With `+ 1`, the gap is behind all links of exactly this sort key. Nothing is behind the greatest sort
            // key.
            let Some(sort_key) = after.checked_add(1) else {
                return;
            };
            if let Some(gap) = self.gap(pin, &self.entry(after).link, sort_key) {
                break gap;
            }
        };
        let mut cursor = gap.next;
        let mut reached = after;
        // SAFETY: pinned (K5).
        while let Some(link) = unsafe { cursor.as_ref() } {
            if let Some(node) = Link::node::<K>(cursor) {
                reached = reached.max(link.sort_key);
                if !visit(node, reached) {
                    return;
                }
            }
            (cursor, _) = link.next();
        }
    }
}

impl<K> Drop for Keys<K> {
    fn drop(&mut self) {
        let first = self.heads.get(0).expect("made by `new`");
        let (mut cursor, _) = first.link.next();
        // SAFETY: linked, and only this loop frees nodes, after it has read their link. No thread is inside.
        while let Some(link) = unsafe { cursor.as_ref() } {
            let (next, _) = link.next();
            if let Some(node) = Link::node::<K>(cursor) {
                // SAFETY: as above.
                unsafe { free(node) };
            }
            cursor = next;
        }
    }
}

/// The sort key of a key with this hash.
#[inline(always)]
pub(crate) fn sort_key_of_hash(hash: u64) -> u64 {
    hash | 1
}

/// The sort key of the head from which the head of this sort key was split. 0 is the ancestor of all heads.
pub(crate) fn parent(sort_key: u64) -> u64 {
    sort_key & sort_key.wrapping_sub(1)
}

/// The place of a head in the array: the heads of the k-th doubling start at `2^(k-1)`.
#[inline(always)]
fn index(sort_key: u64) -> usize {
    if sort_key == 0 {
        return 0;
    }
    let zeros = sort_key.trailing_zeros();
    let generation = 1 << (u64::BITS - 1 - zeros);
    generation | ((sort_key >> zeros) >> 1) as usize
}

/// The sort key of the head at an index: the inverse of [`index`].
fn sort_key_at(index: usize) -> u64 {
    match index.checked_ilog2() {
        None => 0,
        Some(bits) => {
            let rest = index as u64 & ((1 << bits) - 1);
            (rest << 1 | 1) << (u64::BITS - 1 - bits)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn heads_have_one_place_and_a_smaller_parent() {
        for place in 0..10_000 {
            assert_eq!(index(sort_key_at(place)), place);
            let ancestor = parent(sort_key_at(place));
            assert!(place == 0 || ancestor < sort_key_at(place) && index(ancestor) < place);
        }
        // The ranges of 2^b occupy the first 2^b places.
        let mut places: Vec<_> = (0..64u64).map(|range| index(range << 58)).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..64));
    }

    /// With more ranges, the array of heads would have no place for them.
    #[test]
    fn p9_number_of_heads_is_limited() {
        let keys = Keys::<u64>::new().unwrap();
        keys.resize(MIN_BITS, MAX_BITS);
        keys.grow_when_loaded(usize::MAX);
        assert_eq!(keys.bits(), MAX_BITS);
    }
}
