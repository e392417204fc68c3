//! The slot of a process: the record of the permits that it holds.
//!
//! ```text
//!   [ holder | displaced, since | key | key | overflow | released_by_holder ]     64 bytes, a cache line
//!                         |        |            |           '-> number of releases, a statistic
//!                         |        |            '-> further keys, and what other threads record (`overflow.rs`)
//!                         |        '-> key's node, permits of it
//!                         '-> when its process began to hold permits
//! ```
//!
//! # States of a slot
//!
//! ```text
//!       occupy           watched               death                              no                   vacate
//!  FREE ----> RETIRING ---------> identity word ----> RETIRING: word reused? ---> RELEASING permits ----> FREE
//!                                      ^                        |
//!                                      '------------------------'
//!                                       yes: the new process keeps the slot
//! ```
//!
//! A slot gets the word of its process when the VM watches that process. Before, it is RETIRING too: other threads that
//! look for it wait.
//!
//! The head of `holder.rs` defines *identity word* and *alive*, and says why the callback of a death asks whether the
//! word is reused; that of `holders.rs` defines *place*. While the callback asks, a call that looks for the slot waits,
//! for microseconds. The callback holds no lock during that time, so a call may hold one while it waits. Neither does a
//! process that sets up its watch.
//!
//! # Invariants
//!
//! - **H1** One thread at a time changes the keys in a slot, and each change happens before the next. So plain stores
//!   are enough. A process changes the slot that has its word, inside its own calls. A callback changes a slot that it
//!   has made RELEASING, until it vacates it. The two never overlap. No call finds a slot that is RELEASING, and no
//!   call that found it before is still running: the VM has answered the callback that no process with the word is
//!   alive. That leaves two cases for each process with the word:
//!   - It has made its last call. Its calls happen before the answer, so the fence after the answer orders them before
//!     the changes by the callback.
//!   - Its entry in the VM's process table was not visible yet. Its first call finds the word replaced. The callback
//!     executes a SeqCst fence between the replacement and the question, the process between its entry and its first
//!     call. So at least one of the two sees what the other has written.
//! - **H2** An inline key with permits > 0 names a node whose count includes them, unless they are lost (W7). So it is
//!   alive (K6). Permits are added to it after the count has gone up, and subtracted before it goes down. An inline
//!   key with 0 permits may name memory that has been reused: its pointer is never followed. Permits move from an
//!   inline key to the overflow under the lock of the overflow, so a reader that has the lock sees them in one of the
//!   two.
//!
//! # Since when a process holds permits
//!
//! The thread that records the first permits of a process writes the time before them: the process itself, or a thread
//! that grants it a request or gives it a permit, under the lock of its overflow. If several do so at the same time,
//! any of their times is right. A reader that has read permits (Acquire, or under that lock) reads the time that was
//! written before them, or a later one. `holders.rs` says which time it is.
//!
//! # Reading slots of other processes
//!
//! Inspection reads the slots of other processes (`reading.rs`), and needs H2 across threads. A pinned reader
//! reads permits > 0 (Acquire), and then the node. Let M be the node that it reads: the one that was stored before
//! these permits (Release), or a later one. The reader may follow M while it is pinned.
//!
//! Proof by contradiction. Suppose that M has been freed.
//! 1. M died before that (K6: with no permit in use or lost). So this inline key was set to 0 permits after M was
//!    stored in it (its permits were released or moved).
//! 2. The free did not wait for the pin. So that store of 0 happened before the first read under the pin: by E3 if the
//!    pin entered a later epoch, by E2 if the barrier of the sweep came before the pin.
//! 3. So the reader has read permits that were stored after that 0. Their node was stored after M, and the reader,
//!    which reads the node last, cannot read M.
//!
//! [`Slot::permits`] only adds up and follows no pointer, so it needs none of this.

use crate::holder::RESERVED;
use crate::inject;
use crate::keys::Node;
use crate::memory::{allocate, free, OutOfMemory};
use crate::overflow::{Overflow, Wait};
use crate::sync::{
    fence, ordering, yield_now, AtomicPtr, AtomicU32, AtomicU64, OneWriter, Ordering,
};
use equivalent::Equivalent;
use std::ptr::{self, NonNull};

/// Instead of an identity word: no process has the slot.
const FREE: u64 = 0;

/// Instead of an identity word: it is not decided yet which process has the slot. Either the VM does not watch the
/// process yet, or a process with the word has died, and the callback asks whether another one is alive.
pub(crate) const RETIRING: u64 = u64::MAX;

/// Instead of an identity word: the process is dead, and its permits are being released.
pub(crate) const RELEASING: u64 = u64::MAX - 1;

const _: () = assert!(FREE < RESERVED && RELEASING == RESERVED && RELEASING < RETIRING);

/// Keys in the slot itself. With two it fills a cache line.
const INLINE: usize = 2;

/// A release by a process that does not hold the key. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHeld;

/// A key in a slot.
pub(crate) struct InlineKey<K> {
    pub(crate) node: AtomicPtr<Node<K>>,
    pub(crate) permits: AtomicU64,
}

impl<K> Default for InlineKey<K> {
    fn default() -> Self {
        Self {
            node: AtomicPtr::new(ptr::null_mut()),
            permits: AtomicU64::new(0),
        }
    }
}

#[repr(C, align(64))]
pub(crate) struct Slot<K> {
    /// The identity word of its process, or [`FREE`], [`RETIRING`] or [`RELEASING`].
    holder: AtomicU64,
    /// The number of processes with this place whose slots are displaced (H4).
    pub(crate) displaced: AtomicU32,
    /// When its process began to hold permits, if it holds any.
    since: AtomicU32,
    pub(crate) inline: [InlineKey<K>; INLINE],
    /// Stays with the slot when its process dies, because a reader may be using it.
    overflow: AtomicPtr<Overflow<K>>,
    /// Permits that the processes of this slot have released themselves. Counted here because a release has this cache
    /// line anyway. Relaxed, and not through `sync.rs`, for the reasons in `counters.rs`.
    pub(crate) released_by_holder: std::sync::atomic::AtomicU64,
    /// Checks H1: one writer of the inline keys at a time.
    writer: OneWriter,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot<u64>>() == 64);

impl<K> Default for Slot<K> {
    fn default() -> Self {
        Self {
            holder: AtomicU64::new(FREE),
            displaced: AtomicU32::new(0),
            since: AtomicU32::new(0),
            inline: Default::default(),
            overflow: AtomicPtr::new(ptr::null_mut()),
            released_by_holder: Default::default(),
            writer: Default::default(),
        }
    }
}

impl<K> Drop for Slot<K> {
    fn drop(&mut self) {
        if let Some(overflow) = NonNull::new(self.overflow.load(Ordering::Relaxed)) {
            // SAFETY: `overflow_or_new` allocated it, and no other thread has the slot.
            unsafe { free(overflow) };
        }
    }
}

/// A slot in state [`RETIRING`]. On drop its word becomes `next`.
struct Retiring<'a> {
    holder: &'a AtomicU64,
    next: u64,
}

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        // Relaxed: the fence of `retire` precedes it.
        self.holder.store(self.next, Ordering::Relaxed);
    }
}

impl<K> Slot<K> {
    /// The identity word of its process, or [`FREE`], [`RETIRING`] or [`RELEASING`].
    #[inline(always)]
    pub(crate) fn holder(&self) -> u64 {
        self.holder.load(Ordering::Acquire)
    }

    /// The identity word of its process, if it has one. Waits while the slot is RETIRING.
    pub(crate) fn settled_holder(&self) -> Option<u64> {
        loop {
            match self.holder() {
                RETIRING => yield_now(),
                FREE | RELEASING => return None,
                word => return Some(word),
            }
        }
    }

    /// Takes the slot for a process that is not watched yet: it is RETIRING then. Returns false if it is not free.
    pub(crate) fn occupy(&self) -> bool {
        // Acquire: everything that the death of the last holder did to the slot is visible.
        let ordering = ordering("h1_taken_relaxed", Ordering::AcqRel);
        self.holder
            .compare_exchange(FREE, RETIRING, ordering, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends the state RETIRING of a slot that the caller has occupied or made. `word` is the identity word of its
    /// process now, or [`RELEASING`]: no process has it.
    pub(crate) fn assign(&self, word: u64) {
        // Release: a thread that finds the word sees what the slot was before.
        self.holder.store(word, Ordering::Release);
    }

    /// Replaces the identity word `word` by RETIRING. Returns the previous value. If several threads try, one succeeds.
    pub(crate) fn replace_word(&self, word: u64) -> u64 {
        // Relaxed: the fence of `retire` follows it.
        let (Ok(was) | Err(was)) =
            self.holder
                .compare_exchange(word, RETIRING, Ordering::Relaxed, Ordering::Relaxed);
        was
    }

    /// Decides about a slot whose word the caller has replaced. Returns true if the slot is now RELEASING and the
    /// caller's (H1). Otherwise the word is reused and restored. It is also restored if `is_reused` panics.
    pub(crate) fn retire(&self, word: u64, is_reused: impl FnOnce() -> bool) -> bool {
        let mut retiring = Retiring {
            holder: &self.holder,
            next: word,
        };
        // One of two sides (H1): the word is replaced before this fence, and the VM's process table is read after it.
        fence(Ordering::SeqCst);
        if is_reused() {
            return false;
        }
        // All calls of processes that had the word happen before what the caller does (H1).
        fence(Ordering::Acquire);
        retiring.next = RELEASING;
        true
    }

    /// Makes the slot free. Its process holds nothing and makes no further call.
    pub(crate) fn vacate(&self) {
        self.writer.check();
        if let Some(overflow) = self.overflow() {
            overflow.lock().shrink_to_fit();
        }
        // Release: the next process that gets the slot finds it empty.
        let ordering = ordering("h1_vacated_relaxed", Ordering::Release);
        self.holder.store(FREE, ordering);
    }

    /// The overflow, if it has been made. For calls of the process itself, and for readers.
    pub(crate) fn overflow(&self) -> Option<&Overflow<K>> {
        // SAFETY: freed together with its slot.
        unsafe { self.overflow.load(Ordering::Acquire).as_ref() }
    }

    /// The overflow, which is made if there is none. The process itself and a giver can do that at the same time.
    pub(crate) fn overflow_or_new(&self) -> Result<&Overflow<K>, OutOfMemory> {
        if let Some(overflow) = self.overflow() {
            return Ok(overflow);
        }
        let fresh = allocate(Overflow::new())?;
        // Acquire and Release: as in `overflow_of_dead`.
        let swapped = self.overflow.compare_exchange(
            ptr::null_mut(),
            fresh.as_ptr(),
            ordering("o2_overflow_made_relaxed", Ordering::AcqRel),
            Ordering::Acquire,
        );
        let overflow = swapped.map_or_else(
            |theirs| {
                // SAFETY: allocated above, and not published.
                unsafe { free(fresh) };
                theirs
            },
            |_| fresh.as_ptr(),
        );
        // SAFETY: as in `overflow`.
        Ok(unsafe { &*overflow })
    }

    /// The overflow, for the callback of a death, which has replaced the word. A giver can be making it at the same
    /// time. Each of the two does a read-modify-write of the pointer, so one follows the other: the callback finds the
    /// overflow, or the giver sees that the word is replaced (O2).
    fn overflow_of_dead(&self) -> Option<&Overflow<K>> {
        let null = ptr::null_mut();
        let (Ok(found) | Err(found)) =
            self.overflow
                .compare_exchange(null, null, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: as in `overflow`.
        unsafe { found.as_ref() }
    }

    /// Reserves an inline key for one more permit of `node`, or of a key that has no node yet. Recording the permit
    /// then cannot fail.
    #[inline(always)]
    pub(crate) fn reserve(&self, node: Option<&Node<K>>) -> Result<&InlineKey<K>, OutOfMemory> {
        self.writer.check();
        let wanted = node.map_or(ptr::null(), ptr::from_ref);
        let mut free = None;
        for key in &self.inline {
            if key.permits.load(Ordering::Relaxed) == 0 {
                free = free.or(Some(key));
            } else if ptr::eq(key.node.load(Ordering::Relaxed), wanted) {
                return Ok(key);
            }
        }
        match free {
            Some(key) => Ok(key),
            None => self.move_last_key(),
        }
    }

    /// Writes the time at which its process begins to hold permits, if it holds none. To be called before permits are
    /// recorded.
    #[inline(always)]
    pub(crate) fn begin(&self, now: impl FnOnce() -> u32) {
        let [first, second] = &self.inline;
        let inline = first.permits.load(Ordering::Relaxed) | second.permits.load(Ordering::Relaxed);
        let holds_none = |overflow: &Overflow<K>| overflow.permits.load(Ordering::Relaxed) == 0;
        if inline == 0 && self.overflow().is_none_or(holds_none) {
            self.since.store(now(), Ordering::Relaxed);
        }
    }

    /// When its process began to hold permits, if permits on record were read before.
    pub(crate) fn since(&self) -> u32 {
        self.since.load(Ordering::Relaxed)
    }

    /// Records permits of `node`, which the count already includes, in the reserved inline key. Cannot fail.
    #[inline(always)]
    pub(crate) fn record(
        &self,
        key: &InlineKey<K>,
        node: &Node<K>,
        more: u64,
        now: impl FnOnce() -> u32,
    ) {
        self.writer.check();
        self.begin(now);
        key.node
            .store(ptr::from_ref(node).cast_mut(), Ordering::Release);
        let permits = key.permits.load(Ordering::Relaxed);
        // Release: a reader that sees the permits sees the node (H2).
        let ordering = ordering("h2_recorded_relaxed", Ordering::Release);
        key.permits.store(permits + more, ordering);
    }

    /// Removes one permit of the key from the record, if it is an inline key. Then `lower` lowers the count. Returns
    /// whether it has.
    #[inline(always)]
    pub(crate) fn release_inline<Q: Equivalent<K>>(
        &self,
        query: &Q,
        lower: impl Fn(&Node<K>),
    ) -> bool {
        self.writer.check();
        // Not a loop, because the compiler does not unroll it.
        let [first, second] = &self.inline;
        self.release_key(first, query, &lower) || self.release_key(second, query, &lower)
    }

    #[inline(always)]
    fn release_key<Q: Equivalent<K>>(
        &self,
        key: &InlineKey<K>,
        query: &Q,
        lower: &impl Fn(&Node<K>),
    ) -> bool {
        let permits = key.permits.load(Ordering::Relaxed);
        if permits == 0 {
            return false;
        }
        // SAFETY: permits > 0 (H2), and only this thread changes that (H1).
        let node = unsafe { &*key.node.load(Ordering::Relaxed) };
        if !query.equivalent(&node.key) {
            return false;
        }
        // Release, as in `record`: a reader can see the remaining permits before it has seen those that were recorded.
        let ordering = ordering("h2_released_relaxed", Ordering::Release);
        key.permits.store(permits - 1, ordering);
        // Before the count is lowered, because a panic in there must not leave it out.
        self.count_releases(1);
        lower(node);
        true
    }

    /// Removes one permit of the key from the record, if it is in the overflow. The caller lowers the count.
    pub(crate) fn take_overflow<Q: Equivalent<K>>(
        &self,
        query: &Q,
        sort_key: impl FnOnce() -> u64,
    ) -> Option<&Node<K>> {
        let overflow = self.overflow()?;
        inject::panic();
        let sort_key = sort_key();
        let mut record = overflow.lock();
        let (node, _) = record.held(query, sort_key)?;
        // SAFETY: it is on record with a permit (O1), which is counted or lost until the caller lowers the count.
        let node = unsafe { node.as_ref() };
        record.take(node, 1);
        self.count_releases(1);
        Some(node)
    }

    /// A request that waits, of a dead process.
    pub(crate) fn any_wait(&self) -> Option<Wait<K>> {
        self.overflow_of_dead()?.lock().any_wait()
    }

    /// Removes the permits of a key from the record of a dead process. The caller lowers the count of the node.
    pub(crate) fn take_any(&self) -> Option<(&Node<K>, u64)> {
        self.writer.check();
        inject::panic();
        let held = |key: &&InlineKey<K>| key.permits.load(Ordering::Relaxed) > 0;
        let (node, permits) = match self.inline.iter().find(held) {
            Some(key) => {
                let permits = key.permits.swap(0, Ordering::AcqRel);
                (key.node.load(Ordering::Relaxed), permits)
            }
            None => {
                let (node, permits) = self.overflow_of_dead()?.lock().pop()?;
                (node.as_ptr(), permits)
            }
        };
        // SAFETY: permits > 0 (H2, O1), and only this thread changes that (H1, O2).
        Some((unsafe { &*node }, permits))
    }

    /// The permits of a key on the record, and its node.
    pub(crate) fn held<Q: Equivalent<K>>(
        &self,
        query: &Q,
        sort_key: u64,
    ) -> Option<(&Node<K>, u64)> {
        self.writer.check();
        let inline = self.inline.iter().filter_map(|key| {
            let permits = key.permits.load(Ordering::Relaxed);
            let node = NonNull::new(key.node.load(Ordering::Relaxed))?;
            // SAFETY: permits > 0 (H2), and only this thread changes that (H1).
            (permits > 0 && query.equivalent(unsafe { &node.as_ref().key }))
                .then_some((node, permits))
        });
        let overflow = self.overflow();
        let overflow = overflow.and_then(|overflow| overflow.lock().held(query, sort_key));
        let held = inline.chain(overflow);
        let (node, permits) = held.reduce(|(node, permits), (_, more)| (node, permits + more))?;
        // SAFETY: as above, and only this process lowers its permits in the overflow.
        Some((unsafe { node.as_ref() }, permits))
    }

    /// Removes up to `most` permits of a node from the inline keys. Returns how many. The count still includes
    /// those that are not lost.
    pub(crate) fn take_inline(&self, node: &Node<K>, most: u64) -> u64 {
        self.writer.check();
        let mut left = most;
        for key in &self.inline {
            let held = key.permits.load(Ordering::Relaxed);
            let taken = held.min(left);
            if taken > 0 && ptr::eq(key.node.load(Ordering::Relaxed), node) {
                key.permits.store(held - taken, Ordering::Release);
                left -= taken;
            }
        }
        most - left
    }

    /// The permits of its process, of all keys together: the number at some instant, unless a call of the process is
    /// running. Relaxed: no pointer is followed because of it. The process does not wait for it.
    pub(crate) fn permits(&self) -> u64 {
        let inline = self.inline.iter();
        let inline = inline.map(|key| key.permits.load(Ordering::Relaxed));
        let inline = inline.fold(0, u64::saturating_add);
        inline.saturating_add(
            self.overflow()
                .map_or(0, |overflow| overflow.permits.load(Ordering::Relaxed)),
        )
    }

    /// Frees the last inline key by moving its permits to the overflow. So a process that holds many keys for long, and
    /// acquires and releases others, does the latter in its slot.
    #[cold]
    fn move_last_key(&self) -> Result<&InlineKey<K>, OutOfMemory> {
        let mut record = self.overflow_or_new()?.lock();
        let [.., key] = &self.inline;
        let permits = key.permits.load(Ordering::Relaxed);
        // SAFETY: permits > 0 (H2), because no inline key is free.
        let node = unsafe { &*key.node.load(Ordering::Relaxed) };
        record.reserve(node)?;
        record.credit(node, permits);
        // Under the lock: a reader sees the permits in one of the two.
        key.permits.store(0, Ordering::Release);
        Ok(key)
    }

    #[inline(always)]
    pub(crate) fn count_releases(&self, permits: u64) {
        // Only this thread writes it (H1).
        let released = self.released_by_holder.load(Ordering::Relaxed);
        self.released_by_holder
            .store(released + permits, Ordering::Relaxed);
    }
}
