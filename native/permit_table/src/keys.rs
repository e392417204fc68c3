//! From a key to its word: a concurrent map with lock-free lookups and insertions.
//!
//! A split-ordered list (Shalev and Shavit, "Split-Ordered Lists: Lock-Free Extensible Hash Tables", JACM 2006): one
//! linked list of all keys, sorted by hash, and an array of heads that lead into it. With `2^bits` ranges, the
//! range of a key is the first `bits` bits of its hash. So doubling the number of ranges moves nothing: it is one
//! store, after which each range has a new head half-way, and the new heads are linked in one by one as keys arrive
//! (P8: no call waits for growth).
//!
//! ```text
//!   heads (bits = 2)   [00]           [01]           [10]           [11]
//!                       |              |              |              |
//!   order              000 -> 0011 -> 010 -> 0101 -> 100 ---------> 110 -> 1111 -> end
//!                      head   key     head   key     head           head   key
//! ```
//!
//! A key's order is its hash with the last bit set; a head's is its range's first bits followed by zeros, so they
//! never tie. A head that is not linked yet is served by its parent, the one whose order lacks the lowest bit that is
//! set. In the array a head stands by the number of bits that tell it from its parent's, then by those bits
//! (`index`): so a head keeps its place when the ranges double. (The paper numbers ranges by the *last* bits, and
//! sorts by the reversed hash, for the same end; to find the lowest bit set is an instruction, to reverse a word is
//! not.)
//!
//! # Invariants
//! - **K1** The links that are not marked are sorted by order; of those of one order, the newer comes first.
//! - **K2** The pointer out of a marked link never changes again. A link is marked before it is unlinked.
//! - **K3** Only the sweep (`sweep.rs`), one at a time, marks and unlinks. Everybody else only inserts, by a
//!   compare-and-swap on the pointer out of an unmarked link, directly behind which the new one goes.
//! - **K4** Of the nodes with one key at most one is not dead. A dead one never comes back: whoever finds a dead node
//!   passes over it, and puts a new one in *front* of its run of equal orders, without waiting for the sweep.
//! - **K5** What has been unlinked is freed only when nobody who was pinned then is inside any more (`epochs.rs`).
//! - **K6** A node whose count is not 0 is not dead, hence linked, hence not freed: a holder may keep its address.
//!
//! Why K1 lets a search stop at the first greater order: a new link is put behind the last unmarked link of smaller
//! order, so in front of any run of marked ones there. Hence a marked link of greater order never stands before an
//! unmarked one of smaller order. (The reverse may be, and is passed over.)

use crate::buckets::Buckets;
use crate::epochs::Pin;
use crate::inject;
use crate::lazy_array::LazyArray;
use crate::memory::Account;
use crate::out_of_memory::OutOfMemory;
use crate::sync::{ordering, seeded, sized, AtomicPtr, AtomicU32, AtomicU8, AtomicUsize, Ordering};
use equivalent::Equivalent;
use std::ptr::{self, NonNull};

/// What can be stored as a key.
pub trait Key: Send + Sync + 'static {
    /// Bytes on the heap beyond the key's own size, for the account of the table's memory.
    fn heap_bytes(&self) -> usize;
}

/// What a key is looked up by, and made from when it is new. Equal queries hash alike.
pub trait Query<K>: std::hash::Hash + Equivalent<K> {
    /// The key to store. It is asked for at most once a call.
    fn to_key(&self) -> Result<K, OutOfMemory>;
}

/// Heads to a chunk: a chunk of 96 KiB is made in a few microseconds, and the first one serves 4096 keys.
pub(crate) const CHUNK: usize = sized(2, 64, 4096);

/// What it is worth of a budget to free a chunk.
pub(crate) const UNITS_PER_CHUNK: usize = 64;

/// The table never has fewer ranges than one chunk has heads.
pub(crate) const MIN_BITS: u32 = CHUNK.trailing_zeros();

/// Nor more than 2^26: beyond that the runs between two heads get longer, which a thousand million keys bear (at 16).
/// The array of chunk pointers is 128 KiB with it.
const MAX_BITS: u32 = sized(3, 10, 26) as u32;

/// The lowest bit of a pointer out of a link: the link is on its way out (K2).
const MARK: usize = 1;

/// What keys and heads have in common: their place in the list.
#[repr(C)]
pub(crate) struct Link {
    /// The next link or null, with [`MARK`].
    next: AtomicPtr<Link>,
    order: u64,
}

/// A way into the list.
#[repr(C)]
pub(crate) struct Head {
    pub(crate) link: Link,
    state: AtomicU8,
}

/// [`Head::state`]: not in the list; its parent serves.
pub(crate) const UNLINKED: u8 = 0;
/// Somebody is linking it in; its parent serves.
pub(crate) const LINKING: u8 = 1;
/// In the list.
pub(crate) const LINKED: u8 = 2;
/// On its way out of the list, or out, for good, with the rest of its chunk to follow; its parent serves.
pub(crate) const LEAVING: u8 = 3;
/// The same of one that never was in the list.
pub(crate) const CLOSED: u8 = 4;

/// A key with its word. 64 bytes with a key of 40, and never on a cache line with another's.
#[repr(C, align(64))]
pub(crate) struct Node<K> {
    link: Link,
    pub(crate) buckets: Buckets,
    pub(crate) key: K,
}

/// The map.
pub(crate) struct Keys<K> {
    heads: LazyArray<Head, CHUNK>,
    /// There are `2^bits` ranges.
    bits: AtomicU32,
    /// Keys in the list.
    len: AtomicUsize,
    /// Keys that the sweep has taken out. Only the sweep counts it, and it is counted for people.
    reclaimed: std::sync::atomic::AtomicU64,
    _nodes: std::marker::PhantomData<Box<Node<K>>>,
}

/// A node that nobody else can see yet. Freed when it is dropped.
pub(crate) struct NewNode<'a, K: Key> {
    node: NonNull<Node<K>>,
    account: &'a Account,
}

/// A head that is `LINKING`, and will be what `outcome` says when this is dropped: a panic on the way must not leave
/// it so, or the sweep would wait for it for ever.
struct Linking<'a> {
    head: &'a Head,
    outcome: u8,
}

impl Drop for Linking<'_> {
    fn drop(&mut self) {
        self.head.state.store(self.outcome, Ordering::Release);
    }
}

/// What became of a new node.
pub(crate) enum Inserted<'a, 'n, K: Key> {
    /// It is in the list.
    New(&'a Node<K>),
    /// Somebody else's node with the key is.
    Present(NewNode<'n, K>),
}

/// Where a link belongs: behind `before`, whose pointer was `next`.
pub(crate) struct Gap<'a> {
    pub(crate) before: &'a Link,
    pub(crate) next: *mut Link,
}

impl Link {
    fn new(order: u64) -> Self {
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            order,
        }
    }

    /// The pointer to the next link, and whether this one is marked.
    #[inline(always)]
    pub(crate) fn next(&self) -> (*mut Link, bool) {
        // Acquire: whoever sees a link sees what it points to.
        let next = self.next.load(Ordering::Acquire);
        (next.map_addr(|a| a & !MARK), next.addr() & MARK != 0)
    }

    /// Lets this link, if it is not marked, point to `new` instead of `expected`.
    pub(crate) fn redirect(&self, expected: *mut Link, new: *mut Link) -> bool {
        if seeded("k3_redirected_without_compare") {
            self.next.store(new, Ordering::Release);
            return true;
        }
        let order = ordering("k1_published_relaxed", Ordering::AcqRel);
        self.next
            .compare_exchange(expected, new, order, Ordering::Relaxed)
            .is_ok()
    }

    /// Marks this link, and answers what it points to from now on (K2).
    pub(crate) fn mark(&self) -> *mut Link {
        loop {
            let (next, marked) = self.next();
            if marked || self.redirect(next, next.map_addr(|a| a | MARK)) {
                return next;
            }
        }
    }

    pub(crate) fn order(&self) -> u64 {
        self.order
    }

    /// This link as a node, unless it is a head's.
    pub(crate) fn node<K>(link: *mut Link) -> Option<NonNull<Node<K>>> {
        // SAFETY: callers have got `link` from the list, under a pin or as its only user: it is alive.
        let is_node = unsafe { (*link).order & 1 == 1 };
        // An odd order says that the pointer was made from one to a node (repr(C): the link comes first).
        is_node.then(|| NonNull::new(link.cast::<Node<K>>()).expect("links are not null"))
    }
}

impl Head {
    fn new(index: usize) -> Self {
        Self {
            link: Link::new(order_at(index)),
            state: AtomicU8::new(UNLINKED),
        }
    }

    pub(crate) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// Goes from one state to another; false if it was in neither of these two to begin with.
    pub(crate) fn change(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

impl<K> Node<K> {
    /// [`order_of_key`] of its key's hash.
    pub(crate) fn order(&self) -> u64 {
        self.link.order
    }
}

impl<'a, K: Key> NewNode<'a, K> {
    /// A key with one permit out.
    pub(crate) fn with_one_permit(
        query: &impl Query<K>,
        order: u64,
        account: &'a Account,
    ) -> Result<Self, OutOfMemory> {
        let key = query.to_key()?;
        let heap_bytes = key.heap_bytes();
        let node = account.allocate(Node {
            link: Link::new(order),
            buckets: Buckets::with_one_permit(),
            key,
        })?;
        account.add(heap_bytes);
        Ok(Self { node, account })
    }
}

impl<K: Key> Drop for NewNode<'_, K> {
    fn drop(&mut self) {
        // SAFETY: allocated above with this account, and nobody else has seen it.
        unsafe { free_node(self.node, self.account) };
    }
}

/// Frees a node and its key; returns what that is worth of a budget: one, and one more for each page of the key, which
/// the system takes back.
///
/// # Safety
/// It was made with this account, and nobody can use it any more.
pub(crate) unsafe fn free_node<K: Key>(node: NonNull<Node<K>>, account: &Account) -> usize {
    const PAGE: usize = 4096;
    // SAFETY: alive until the next line.
    let heap_bytes = unsafe { node.as_ref().key.heap_bytes() };
    // SAFETY: as the caller says.
    unsafe { account.free(node) };
    account.subtract(heap_bytes);
    1 + heap_bytes / PAGE
}

impl<K: Key> Keys<K> {
    /// An empty map. [`Keys::free`] it with the same account.
    pub(crate) fn new(account: &Account) -> Result<Self, OutOfMemory> {
        let heads = LazyArray::new(1 << MAX_BITS, account)?;
        let first = heads.get_or_create(0, account, Head::new);
        let first = first.inspect_err(|_| {
            // SAFETY: made above, and nobody else knows it.
            unsafe { heads.free(account) };
        })?;
        // Head 0 is everybody's forefather: it is the list's beginning.
        first.change(UNLINKED, LINKED);
        Ok(Self {
            heads,
            bits: AtomicU32::new(MIN_BITS),
            len: AtomicUsize::new(0),
            reclaimed: Default::default(),
            _nodes: std::marker::PhantomData,
        })
    }

    /// How many keys there are, idle ones included.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Notes that the sweep has unlinked a key.
    pub(crate) fn forget_one(&self) {
        self.len.fetch_sub(1, Ordering::Relaxed);
        self.reclaimed.fetch_add(1, Ordering::Relaxed);
    }

    /// How many the sweep has unlinked.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed.load(Ordering::Relaxed)
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits.load(Ordering::Relaxed)
    }

    /// Changes the number of ranges, unless somebody else just has.
    pub(crate) fn resize(&self, from: u32, to: u32) {
        // A lost race means that somebody has resized it already.
        let _ = self
            .bits
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn heads(&self) -> &LazyArray<Head, CHUNK> {
        &self.heads
    }

    /// The node of a key. Writes nothing (P2).
    ///
    /// The head that it enters by may be taken out meanwhile, and what has been put in since then be missed. The
    /// answer is right all the same: it was so when the head was found linked, which is within the call. Whoever
    /// wants to put a key in because of it will notice.
    #[inline(always)]
    pub(crate) fn get<'a, Q: Equivalent<K>>(
        &'a self,
        _pin: &'a Pin,
        order: u64,
        query: &Q,
    ) -> Option<&'a Node<K>> {
        let (mut cursor, _) = self.entry(order).link.next();
        // SAFETY: pinned, so whatever the list leads to is alive (K5).
        while let Some(link) = unsafe { cursor.as_ref() } {
            if link.order >= order {
                if link.order > order {
                    break;
                }
                if let Some(node) = Self::live_node(cursor, query) {
                    return Some(node);
                }
            }
            (cursor, _) = link.next();
        }
        None
    }

    /// Puts a new node in, unless the key is there by now.
    pub(crate) fn insert<'a, 'n, Q: Equivalent<K>>(
        &'a self,
        pin: &'a Pin,
        query: &Q,
        new: NewNode<'n, K>,
    ) -> Inserted<'a, 'n, K> {
        // SAFETY: it is alive, and it is only read here.
        let link = unsafe { &new.node.as_ref().link };
        self.link_head(pin, link.order, new.account);
        loop {
            let Some(gap) = self.gap(pin, &self.entry(link.order).link, link.order) else {
                continue;
            };
            if Self::run_has(&gap, link.order, query) && !seeded("k4_present_put_in_again") {
                return Inserted::Present(new);
            }
            link.next.store(gap.next, Ordering::Relaxed);
            // The swap succeeds only if nothing has been put here since the run was read (K3): so K4 holds.
            if gap.before.redirect(gap.next, new.node.as_ptr().cast()) {
                break;
            }
        }
        let node = new.node;
        std::mem::forget(new);
        self.grow_when_loaded(self.len.fetch_add(1, Ordering::Relaxed) + 1);
        // SAFETY: it is in the list with a permit out (K6), and the pin keeps it after that.
        Inserted::New(unsafe { node.as_ref() })
    }

    /// The nearest head in the list whose order is not greater than `order`: that of its range, or a forefather.
    #[inline(always)]
    pub(crate) fn entry(&self, order: u64) -> &Head {
        let mut range = self.range(order);
        loop {
            match self.heads.get(index(range)) {
                Some(head) if head.state() == LINKED => return head,
                _ => range = parent(range),
            }
        }
    }

    /// The order of the head of the range that `order` is in.
    #[inline(always)]
    fn range(&self, order: u64) -> u64 {
        order & (u64::MAX << (u64::BITS - self.bits()))
    }

    /// The place for `order`, searched from `start` on: behind the last unmarked link of smaller order. Nothing if
    /// `start` is marked, so is no way in any more.
    pub(crate) fn gap<'a>(&self, _pin: &'a Pin, start: &'a Link, order: u64) -> Option<Gap<'a>> {
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
                if link.order >= order {
                    break;
                }
                gap = Gap { before: link, next };
            }
            cursor = next;
        }
        Some(gap)
    }

    /// Links the head of the range of `order` in, if it is not there yet. Without memory for it, the parent goes on
    /// serving.
    pub(crate) fn link_head(&self, pin: &Pin, order: u64, account: &Account) {
        let range = self.range(order);
        let head = self.heads.get_or_create(index(range), account, Head::new);
        let Ok(head) = head else {
            return;
        };
        if head.state() != UNLINKED || !head.change(UNLINKED, LINKING) {
            return;
        }
        let mut linking = Linking {
            head,
            outcome: UNLINKED,
        };
        inject::panic();
        let link = ptr::from_ref(&head.link).cast_mut();
        if seeded("k1_said_to_be_linked_too_soon") {
            head.state.store(LINKED, Ordering::Release);
        }
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
        linking.outcome = LINKED;
    }

    /// With more keys than ranges, the number of ranges doubles. No memory is asked for, and nothing moves.
    fn grow_when_loaded(&self, len: usize) {
        let bits = self.bits();
        if len > 1 << bits && bits < MAX_BITS {
            self.resize(bits, bits + 1);
        }
    }

    /// Is there a live node with the key among those of `order` behind the gap?
    fn run_has<Q: Equivalent<K>>(gap: &Gap<'_>, order: u64, query: &Q) -> bool {
        let mut cursor = gap.next;
        // SAFETY: the gap was found under a pin that its lifetime still borrows (K5).
        while let Some(link) = unsafe { cursor.as_ref() } {
            let (next, marked) = link.next();
            if !marked {
                if link.order != order {
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

    /// The link as a node, if it has the key and is not dead (K4).
    #[inline(always)]
    fn live_node<'a, Q: Equivalent<K>>(link: *mut Link, query: &Q) -> Option<&'a Node<K>> {
        let node = Link::node::<K>(link)?;
        // SAFETY: callers are pinned and have got the link from the list (K5).
        let node = unsafe { node.as_ref() };
        (query.equivalent(&node.key) && node.buckets.permits().is_some()).then_some(node)
    }

    /// Calls `visit` with each key whose order is greater than `after`, as long as it says so, and with the greatest
    /// order so far. (A marked link may stand behind a greater one that is not marked. A walk that went on after that
    /// smaller order would visit the greater one again.)
    pub(crate) fn walk<'a>(
        &'a self,
        pin: &'a Pin,
        after: u64,
        mut visit: impl FnMut(NonNull<Node<K>>, u64) -> bool,
    ) {
        let gap = loop {
            // With `+ 1` the place behind all links of that very order. The greatest has none behind it.
            let Some(order) = after.checked_add(1) else {
                return;
            };
            if let Some(gap) = self.gap(pin, &self.entry(after).link, order) {
                break gap;
            }
        };
        let mut cursor = gap.next;
        let mut reached = after;
        // SAFETY: pinned (K5).
        while let Some(link) = unsafe { cursor.as_ref() } {
            if let Some(node) = Link::node::<K>(cursor) {
                reached = reached.max(link.order);
                if !visit(node, reached) {
                    return;
                }
            }
            (cursor, _) = link.next();
        }
    }

    /// Frees everything.
    ///
    /// # Safety
    /// The map was made with this account, nobody else is inside, and it is not used for anything else again.
    pub(crate) unsafe fn free(&self, account: &Account) {
        let (mut cursor, _) = self.entry(0).link.next();
        // SAFETY: linked, and only this loop frees, after it has read the link.
        while let Some(link) = unsafe { cursor.as_ref() } {
            let (next, _) = link.next();
            if let Some(node) = Link::node::<K>(cursor) {
                // SAFETY: the caller says that no thread is inside.
                unsafe { free_node(node, account) };
            }
            cursor = next;
        }
        // SAFETY: as the caller says.
        unsafe { self.heads.free(account) };
    }
}

/// The order of a key with this hash.
#[inline(always)]
pub(crate) fn order_of_key(hash: u64) -> u64 {
    hash | 1
}

/// The order of the head that the one of this order was split off from; 0 is everybody's forefather.
pub(crate) fn parent(order: u64) -> u64 {
    order & order.wrapping_sub(1)
}

/// Where in the array the head of an order stands: those that came with the k-th doubling from `2^(k-1)` on.
#[inline(always)]
fn index(order: u64) -> usize {
    if order == 0 {
        return 0;
    }
    let zeros = order.trailing_zeros();
    let generation = 1 << (u64::BITS - 1 - zeros);
    generation | ((order >> zeros) >> 1) as usize
}

/// The order of the head at an index: the inverse of [`index`].
fn order_at(index: usize) -> u64 {
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
    fn a_head_has_one_place_and_a_smaller_forefather() {
        for place in 0..10_000 {
            assert_eq!(index(order_at(place)), place);
            let forefather = parent(order_at(place));
            assert!(place == 0 || forefather < order_at(place) && index(forefather) < place);
        }
        // The ranges of 2^b fill the first 2^b places.
        let mut places: Vec<_> = (0..64u64).map(|range| index(range << 58)).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..64));
    }

    /// Beyond it the array of heads would have no place for them.
    #[test]
    fn p9_the_number_of_heads_has_a_limit() {
        let account = Account::default();
        let keys = Keys::<u64>::new(&account).unwrap();
        keys.resize(MIN_BITS, MAX_BITS);
        keys.grow_when_loaded(usize::MAX);
        assert_eq!(keys.bits(), MAX_BITS);
        // SAFETY: nobody else knows it.
        unsafe { keys.free(&account) };
    }
}
