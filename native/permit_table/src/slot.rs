//! What one process holds.
//!
//! ```text
//!   [ holder | displaced | entry | entry | more | released ]     64 bytes, a cache line
//!                            |              |       '-> counted for people
//!                            |              '-> further keys: a list of the process's own (`sorted_list.rs`)
//!                            '-> key's node, permits of it
//! ```
//!
//! # Whose it is
//!
//! ```text
//!         take                    death                                no                       vacate
//!   FREE ------> identity word ----------> RETIRING: is the word reused? ----> GIVING permits back --------> FREE
//!                      ^                              |
//!                      '------------------------------'
//!                       yes: the new process keeps the slot
//! ```
//!
//! The word of a dead process can already be that of a new one ("Identity" in `holders.rs`). So the callback of a death
//! first takes the word away: a call that looks for the slot now waits. Then the callback asks whether a process with
//! the word is alive, and decides. That takes microseconds. The callback holds no lock in between, so a call may wait
//! with one.
//!
//! # Invariants
//! - **H1** One thread at a time changes what is on record in a slot, and each change happens before the next. So plain
//!   stores are enough. A process changes the slot that has its word, inside its own calls. A callback changes a slot
//!   that it has made GIVING, until it vacates it. These do not meet: no call finds a slot that is GIVING, and none
//!   that has found it before is still running. For the VM has answered the callback that no process with the word is
//!   alive. So each of them has made its last call, or its entry in the VM's process table was not to be seen yet. The
//!   calls of the former happen before the answer, and, by the fence after it, before what the callback does. The
//!   latter finds in its first call that the word has been taken away: between that and the question is a SeqCst fence,
//!   and between the entry and the first call is another, so one of the two sides sees what the other has done.
//! - **H2** An entry with permits > 0 names a node whose count includes them (K6: so it is alive). They are added
//!   after the count has gone up, and subtracted before it goes down. An entry with 0 permits may name memory that is
//!   something else by now: it is never followed. A key can be on record in an entry and among the further keys: what a
//!   process has of it is the sum. Permits move from an entry to the further keys under the lock of the latter, so a
//!   reader that has the lock sees them in one of the two.
//! - **H5** Whenever its process is in no call, the sum beside the further keys is that of their permits.
//!   So what a process has in all is read without a walk and without a lock, and it does not wait for who reads it.
//!
//! # Looking on from elsewhere
//!
//! Those who want to know what is held read slots of others ([`Slot::gather`]), and need H2 across threads. Whoever
//! has pinned, reads permits > 0 (Acquire), and then the node, sees the node that goes with that store (Release) or a
//! later one, M. M may be followed as long as the pin lasts. For suppose that it had been freed: then it had died, so
//! its permits had left this entry before, released or moved, by a store of 0 that came after M was stored here. If
//! the free did not wait for the pin, that 0 had happened before the pin's first read: by E3, if the pin has entered
//! a later epoch, or by E2, if the sweep's barrier fell before it entered. So the permits that were read are of a
//! later store than that 0, and the node that goes with them is later than M: a contradiction. Those who only add up
//! what is held ([`Slot::permits`]) follow nothing, and need none of this.

use crate::epochs::Pin;
use crate::inject;
use crate::keys::Node;
use crate::memory::{reserve, Account};
use crate::out_of_memory::OutOfMemory;
use crate::sorted_list::{change, Ordered, SortedList};
use crate::sync::{
    fence, ordering, seeded, yield_now, AtomicPtr, AtomicU32, AtomicU64, Mutex, OneWriter, Ordering,
};
use equivalent::Equivalent;
use std::num::NonZeroU64;
use std::ptr::{self, NonNull};

/// In place of an identity word: no process has the slot.
const FREE: u64 = 0;

/// In place of an identity word: a process with it has died, and it is not decided whether another one is alive.
pub(crate) const RETIRING: u64 = u64::MAX;

/// In place of an identity word: the process is dead, and its permits are being given back.
pub(crate) const GIVING: u64 = u64::MAX - 1;

const _: () = assert!(FREE < GIVING && GIVING < RETIRING);

/// Entries in the slot itself: with them it fills a cache line.
const INLINE: usize = 2;

/// How often an entry is read again whose key changes while it is looked at. One that goes on changing belongs to a
/// process that takes and releases as fast as it can, and holds none of the keys all the time.
const GLANCES: usize = 8;

/// Further keys of one holder that are copied while its lock is held, about 50 µs.
const KEYS_PER_PIECE: usize = 1024;

/// The caller does not hold what it wants to release. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld;

/// Permits of one key that one holder has.
#[derive(Debug)]
pub struct Permits<'a, K> {
    /// The identity word of the holder.
    pub holder: u64,
    /// The key.
    pub key: &'a K,
    /// How many.
    pub permits: u64,
}

pub(crate) struct Entry<K> {
    node: AtomicPtr<Node<K>>,
    permits: AtomicU64,
}

impl<K> Default for Entry<K> {
    fn default() -> Self {
        Self {
            node: AtomicPtr::new(ptr::null_mut()),
            permits: AtomicU64::new(0),
        }
    }
}

impl<K> Entry<K> {
    /// Node and permits of one moment, if there are any.
    fn glance<'a>(&self, _pin: &'a Pin) -> Option<(&'a Node<K>, u64)> {
        for _ in 0..GLANCES {
            let before = self.node.load(Ordering::Acquire);
            // Acquire: H2.
            let permits = self.permits.load(Ordering::Acquire);
            if permits == 0 {
                return None;
            }
            let node = self.node.load(Ordering::Acquire);
            // Otherwise the permits of one key could be told of the next.
            if ptr::eq(before, node) || seeded("h2_permits_of_one_told_of_another") {
                // SAFETY: read under the pin, after permits > 0: see "Looking on from elsewhere".
                return Some((unsafe { &*node }, permits));
            }
        }
        None
    }
}

/// A key that is not in its holder's slot itself.
struct Held<K> {
    node: NonNull<Node<K>>,
    /// The node's.
    order: u64,
    permits: u64,
}

impl<K> Held<K> {
    fn is_of(&self, node: &Node<K>) -> bool {
        ptr::eq(self.node.as_ptr(), node)
    }
}

impl<K> Ordered for Held<K> {
    fn order(&self) -> u64 {
        self.order
    }
}

// SAFETY: a pointer to a node that is alive as long as permits > 0 (H2), and nodes are shared between threads anyway.
unsafe impl<K: Send + Sync> Send for Held<K> {}

/// What a process holds beyond its slot.
///
/// A panic inside the lock (a bug of ours, in a hash or in a comparison) leaves it free and the list whole: to search
/// or to copy changes nothing, and what is inserted or removed is so in one step, with the count and the sum, between
/// which nothing can panic.
struct More<K> {
    keys: Mutex<SortedList<Held<K>>>,
    /// Permits of all these keys together (H5). Changed under the lock, so a load and a store do. It is a number for
    /// people, and nobody follows anything because of it: relaxed.
    permits: AtomicU64,
}

impl<K> More<K> {
    fn new() -> Self {
        Self {
            keys: Mutex::new(SortedList::default()),
            permits: AtomicU64::new(0),
        }
    }

    fn permits(&self) -> u64 {
        self.permits.load(Ordering::Relaxed)
    }

    fn add(&self, permits: u64) {
        self.permits
            .store(self.permits() + permits, Ordering::Relaxed);
    }

    fn subtract(&self, permits: u64) {
        self.permits
            .store(self.permits() - permits, Ordering::Relaxed);
    }
}

/// What one process holds.
#[repr(C, align(64))]
pub(crate) struct Slot<K> {
    /// The identity word of its process, or [`FREE`], [`RETIRING`] or [`GIVING`].
    holder: AtomicU64,
    /// How many processes that belong here live elsewhere (H4).
    displaced: AtomicU32,
    entries: [Entry<K>; INLINE],
    more: AtomicPtr<More<K>>,
    /// Permits released by the processes whose slot it has been. Counted here because a release has the line at hand
    /// anyway; relaxed, and not through `sync.rs`, for the reasons that `tally.rs` gives.
    released: std::sync::atomic::AtomicU64,
    /// Of the entries and what is beyond (H1).
    writer: OneWriter,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot<u64>>() == 64);

impl<K> Default for Slot<K> {
    fn default() -> Self {
        Self {
            holder: AtomicU64::new(FREE),
            displaced: AtomicU32::new(0),
            entries: Default::default(),
            more: AtomicPtr::new(ptr::null_mut()),
            released: Default::default(),
            writer: Default::default(),
        }
    }
}

/// A slot that is [`RETIRING`], until this is dropped.
struct Retiring<'a> {
    holder: &'a AtomicU64,
    next: u64,
}

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        // Relaxed: the fence of `retire` comes before it.
        self.holder.store(self.next, Ordering::Relaxed);
    }
}

impl<K> Slot<K> {
    /// The identity word of its process, or [`FREE`], [`RETIRING`] or [`GIVING`].
    #[inline(always)]
    pub(crate) fn holder(&self) -> u64 {
        self.holder.load(Ordering::Acquire)
    }

    /// The identity word of its process, if it has one. Waits until that is decided.
    fn settled_holder(&self) -> Option<u64> {
        loop {
            match self.holder() {
                RETIRING if !seeded("h1_retiring_taken_for_free") => yield_now(),
                FREE | GIVING | RETIRING => return None,
                word => return Some(word),
            }
        }
    }

    /// Makes it the slot of a process, unless it is another's.
    pub(crate) fn take(&self, word: NonZeroU64) -> bool {
        // Acquire: what the last holder's death did to it is done.
        let order = ordering("h1_taken_relaxed", Ordering::AcqRel);
        self.holder
            .compare_exchange(FREE, word.get(), order, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes it away from this word, if it has it: it is `next` then. Returns what it was. Of several that try, one
    /// succeeds.
    pub(crate) fn take_away(&self, word: u64, next: u64) -> u64 {
        // Relaxed: the fence of `retire` comes behind it; or the caller is the process itself.
        let (Ok(was) | Err(was)) =
            self.holder
                .compare_exchange(word, next, Ordering::Relaxed, Ordering::Relaxed);
        was
    }

    /// Decides about a slot that the caller has made RETIRING. It is GIVING then, and the caller's (H1); unless its
    /// word is reused, or `is_reused` panics: then it has the word again.
    pub(crate) fn retire(&self, word: u64, is_reused: impl FnOnce() -> bool) -> bool {
        let mut retiring = Retiring {
            holder: &self.holder,
            next: word,
        };
        // One side of two: the word is taken away before it, and the VM's process table is read behind it (H1).
        if !seeded("h1_asked_without_a_fence") {
            fence(Ordering::SeqCst);
        }
        if is_reused() && !seeded("h1_reuse_ignored") {
            return false;
        }
        // All calls of those that have been alive happen before what the caller does (H1).
        if !seeded("h1_answered_without_a_fence") {
            fence(Ordering::Acquire);
        }
        if !seeded("h1_given_back_under_its_word") {
            retiring.next = GIVING;
        }
        true
    }

    /// Lets it go: its process holds nothing, and will not come again.
    pub(crate) fn vacate(&self, account: &Account) {
        self.writer.check();
        if let Some(more) = self.more() {
            // The lock itself stays with the place: a reader may be using it.
            change(&more.keys, account).list.shrink_to_fit();
        }
        // Release: the next one to take it finds it clean.
        let order = ordering("h1_vacated_relaxed", Ordering::Release);
        self.holder.store(FREE, order);
    }

    #[inline(always)]
    pub(crate) fn displaced(&self) -> &AtomicU32 {
        &self.displaced
    }

    /// Room for one more permit of `node`, or of a key that has no node yet: nothing can fail after this.
    #[inline(always)]
    pub(crate) fn reserve(
        &self,
        node: Option<&Node<K>>,
        account: &Account,
    ) -> Result<&Entry<K>, OutOfMemory> {
        self.writer.check();
        let wanted = node.map_or(ptr::null(), ptr::from_ref);
        let mut free = None;
        for entry in &self.entries {
            if entry.permits.load(Ordering::Relaxed) == 0 {
                free = free.or(Some(entry));
            } else if ptr::eq(entry.node.load(Ordering::Relaxed), wanted) {
                return Ok(entry);
            }
        }
        match free {
            Some(entry) => Ok(entry),
            None => self.make_place(account),
        }
    }

    /// Records a permit of `node`, whose count includes it already, in the place reserved for it. Cannot fail.
    #[inline(always)]
    pub(crate) fn record(&self, entry: &Entry<K>, node: &Node<K>) {
        self.writer.check();
        entry
            .node
            .store(ptr::from_ref(node).cast_mut(), Ordering::Release);
        let permits = entry.permits.load(Ordering::Relaxed);
        // Release: a reader that sees the permits sees the node (H2).
        let order = ordering("h2_recorded_relaxed", Ordering::Release);
        entry.permits.store(permits + 1, order);
    }

    /// Takes one permit of the key off the record, and gives it back to the count.
    #[inline(always)]
    pub(crate) fn release<Q: Equivalent<K>>(
        &self,
        pin: &Pin,
        query: &Q,
        account: &Account,
        order: impl FnOnce() -> u64,
    ) -> Result<(), NotHeld> {
        self.release_inline(pin, query)
            .or_else(|NotHeld| self.release_more(query, order, account))
    }

    /// The same, if the key is one of those in the slot itself.
    #[inline(always)]
    pub(crate) fn release_inline<Q: Equivalent<K>>(
        &self,
        _pin: &Pin,
        query: &Q,
    ) -> Result<(), NotHeld> {
        self.writer.check();
        // Not a loop: the compiler does not unroll it.
        let [first, second] = &self.entries;
        if self.release_entry(first, query) || self.release_entry(second, query) {
            return Ok(());
        }
        Err(NotHeld)
    }

    #[inline(always)]
    fn release_entry<Q: Equivalent<K>>(&self, entry: &Entry<K>, query: &Q) -> bool {
        let permits = entry.permits.load(Ordering::Relaxed);
        if permits == 0 {
            return false;
        }
        // SAFETY: permits > 0 (H2), and only we change that (H1).
        let node = unsafe { &*entry.node.load(Ordering::Relaxed) };
        if !query.equivalent(&node.key) {
            return false;
        }
        let too_soon = seeded("h2_given_back_before_off_the_record");
        if too_soon {
            node.buckets.release(1);
        }
        entry.permits.store(permits - 1, Ordering::Release);
        if !too_soon {
            node.buckets.release(1);
        }
        self.count_release();
        true
    }

    /// Gives back all that is on record, and adds its permits up.
    pub(crate) fn release_all(&self, _pin: &Pin, account: &Account, given: &mut u64) {
        self.writer.check();
        // Nothing between taking permits off the record and this can panic, so none is lost and none is given back
        // twice, though a panic may come between two of them.
        let mut give = |node: NonNull<Node<K>>, permits: u64| {
            // SAFETY: permits > 0 (H2), and only we change that (H1).
            unsafe { node.as_ref() }.buckets.release(permits);
            *given += permits;
        };
        for entry in &self.entries {
            inject::panic();
            let permits = if seeded("p4_given_back_and_left_on_record") {
                entry.permits.load(Ordering::Acquire)
            } else {
                entry.permits.swap(0, Ordering::AcqRel)
            };
            if let Some(node) = NonNull::new(entry.node.load(Ordering::Relaxed)) {
                if permits > 0 {
                    give(node, permits);
                }
            }
        }
        if let Some(more) = self.more() {
            let mut keys = change(&more.keys, account);
            while let Some(held) = keys.list.pop() {
                if !seeded("h5_given_back_and_left_in_the_sum") {
                    more.subtract(held.permits);
                }
                give(held.node, held.permits);
                inject::panic();
            }
        }
    }

    /// How many permits its process has, of all keys together: as many as at some moment, unless it takes or releases
    /// just now. Nobody waits for it, and nothing is followed because of it: relaxed.
    pub(crate) fn permits(&self) -> u64 {
        let inline = self.entries.iter();
        let inline = inline.map(|entry| entry.permits.load(Ordering::Relaxed));
        inline.sum::<u64>() + self.more().map_or(0, More::permits)
    }

    /// Notes what its process holds of one key, or of the keys from this order on, as many as are copied in one piece.
    /// Returns the order to go on from. A process with more than two keys waits for its lock while they are copied.
    ///
    /// Every piece is of a range of orders, wherever the keys of the range are on record. So a key that moves within
    /// the record between two pieces is noted once.
    pub(crate) fn gather<'a>(
        &self,
        pin: &'a Pin,
        only: Option<&Node<K>>,
        from: u64,
        seen: &mut Vec<Permits<'a, K>>,
    ) -> Result<Option<u64>, OutOfMemory> {
        let is_wanted = |node: &Node<K>| only.is_none_or(|only| ptr::eq(node, only));
        let (from, to) = only.map_or((from, u64::MAX), |only| (only.order(), only.order()));
        let start = seen.len();
        loop {
            let Some(holder) = self.settled_holder() else {
                return Ok(None);
            };
            let more = self.more().map(|more| more.keys.lock());
            // A key that is released and acquired again may have moved in between, and must not be noted twice: where
            // it was seen last counts.
            let [first, second] = self.entries.each_ref().map(|entry| entry.glance(pin));
            let moved = |(node, _): &(&Node<K>, u64)| {
                second.is_some_and(|(other, _)| ptr::eq(other, *node))
                    && !seeded("h2_moved_and_told_twice")
            };
            let mut inline = [first.filter(|first| !moved(first)), second];
            let is_late = more.is_none() && self.more().is_some();
            if is_late && !seeded("h2_moved_to_where_none_looks") {
                // What was in an entry may be there now.
                continue;
            }
            let mut note = |node: &'a Node<K>, permits| {
                reserve(seen, 1)?;
                seen.push(Permits {
                    holder,
                    key: &node.key,
                    permits,
                });
                Ok(())
            };
            let mut next = None;
            let mut last = from;
            let further = more.iter().flat_map(|more| more.from(from));
            for (copied, held) in further.take_while(|held| held.order <= to).enumerate() {
                if copied >= KEYS_PER_PIECE && held.order > last {
                    next = Some(held.order);
                    break;
                }
                last = held.order;
                // SAFETY: on record as long as we have the lock (H2), so it is there as long as the pin lasts.
                let node = unsafe { &*held.node.as_ptr().cast_const() };
                let here = inline
                    .iter_mut()
                    .filter_map(|entry| entry.take_if(|(other, _)| held.is_of(other)));
                let permits = held.permits + here.map(|(_, permits)| permits).sum::<u64>();
                if is_wanted(node) {
                    note(node, permits)?;
                }
            }
            let end = next.map_or(to, |next| next - 1);
            for (node, permits) in inline.into_iter().flatten() {
                if is_wanted(node) && (from..=end).contains(&node.order()) {
                    note(node, permits)?;
                }
            }
            drop(more);
            if holder == self.holder() || seeded("h1_not_asked_again_whose_it_is") {
                return Ok(next);
            }
            // It has died, and the slot may be another's by now. Or the slot is RETIRING, and may keep its word.
            if seeded("h1_what_others_hold_forgotten_too") {
                seen.clear();
            }
            seen.truncate(start);
        }
    }

    fn more(&self) -> Option<&More<K>> {
        // SAFETY: freed with its slot, not before.
        unsafe { self.more.load(Ordering::Acquire).as_ref() }
    }

    /// Makes the last entry free: its permits move to the further keys. So a process that holds many keys for long, and
    /// acquires and releases others, does the latter in the slot.
    #[cold]
    fn make_place(&self, account: &Account) -> Result<&Entry<K>, OutOfMemory> {
        let more = match self.more() {
            Some(more) => more,
            None => {
                let fresh = account.allocate(More::new())?;
                self.more.store(fresh.as_ptr(), Ordering::Release);
                // SAFETY: as in `more`.
                unsafe { fresh.as_ref() }
            }
        };
        let [.., entry] = &self.entries;
        let permits = entry.permits.load(Ordering::Relaxed);
        if seeded("h2_moved_and_not_told") {
            entry.permits.store(0, Ordering::Release);
            drop(more.keys.lock());
        }
        let mut keys = change(&more.keys, account);
        if let Some(node) = NonNull::new(entry.node.load(Ordering::Relaxed)) {
            // SAFETY: permits > 0 (H2), as there is no free entry.
            let order = unsafe { node.as_ref() }.order();
            match keys.list.find_mut(order, |held| held.node == node) {
                Some(held) => held.permits += permits,
                None => keys.list.reserve(order)?.insert(Held {
                    node,
                    order,
                    permits,
                }),
            }
            more.add(permits);
        }
        // Under the lock: who looks on sees it in one of the two at least.
        entry.permits.store(0, Ordering::Release);
        Ok(entry)
    }

    /// The same, if it is one of those beyond.
    #[cold]
    pub(crate) fn release_more<Q: Equivalent<K>>(
        &self,
        query: &Q,
        order: impl FnOnce() -> u64,
        account: &Account,
    ) -> Result<(), NotHeld> {
        self.writer.check();
        let more = self.more().ok_or(NotHeld)?;
        let mut keys = change(&more.keys, account);
        inject::panic();
        let order = order();
        let is_wanted = |held: &Held<K>| {
            // SAFETY: what is on record has permits (H2).
            query.equivalent(unsafe { &held.node.as_ref().key })
        };
        let held = keys.list.find_mut(order, is_wanted).ok_or(NotHeld)?;
        // SAFETY: as above.
        let node = unsafe { held.node.as_ref() };
        if held.permits > 1 {
            held.permits -= 1;
        } else {
            keys.list.remove(order, |held| held.is_of(node));
        }
        more.subtract(1);
        node.buckets.release(1);
        self.count_release();
        Ok(())
    }

    #[inline(always)]
    fn count_release(&self) {
        // Only we write it (H1).
        let released = self.released.load(Ordering::Relaxed);
        self.released.store(released + 1, Ordering::Relaxed);
    }

    /// How many permits have been released from here.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// Frees what it has allocated. Called where no other thread can see it.
    pub(crate) fn free_more(&self, account: &Account) {
        let more = self.more.swap(ptr::null_mut(), Ordering::AcqRel);
        if let Some(more) = NonNull::new(more) {
            // SAFETY: allocated with this account by `make_place`, and just taken out by us.
            unsafe {
                account.replace(more.as_ref().keys.lock().bytes(), 0);
                account.free(more);
            }
        }
    }
}
