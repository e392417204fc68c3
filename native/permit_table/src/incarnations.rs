//! Incarnations: opens one table at a time, closes it, and frees it when no thread is inside.
//!
//! An incarnation is one table from open to close. Each starts empty. The type of its content does not matter here: in
//! `canal_lock` it is a table with the monitors of its holders.
//!
//! ```text
//!   Incarnations                                              closed   [ (stamp, *), (stamp, *), ... ]
//!     current ------------.                                                     |            |
//!                         v                                                     v            v
//!                    Incarnation  <----------- open                        Incarnation  Incarnation
//!                    content                     ^  ^  ^
//!                         '----------------------'  |  |                      null <-- open
//!                                                 Gate Gate                             ^
//!                                              one per monitor                         Gate
//! ```
//!
//! # Invariants
//!
//! - **I1** Callers find an incarnation by `current`, death callbacks by its own gate. A death acts on the incarnation
//!   in which the process was watched, never on a later one: the next incarnation may be open before the death of the
//!   process that opened the last one is reported. The gate leads to an incarnation before `current` does. A caller can
//!   acquire permits and die as soon as it finds the incarnation, and its death must find it too.
//! - **I2** Closing removes both pointers, once. Calls that are inside by then finish on the closed incarnation, and
//!   have no effect outside it. It is freed when no thread is inside by a pin that is older than the stamp, which is
//!   given after both pointers are removed (`epochs.rs`).
//! - **I3** A call through the gate of a closed incarnation finds nothing and changes nothing.
//! - **I4** A process that opens finds the open incarnation. It adopts it, with the same gate, or replaces it. A
//!   decision to close and the closing are one step, so no process adopts an incarnation that another one has decided
//!   to close.
//! - **I5** Opening, closing and freeing hold the lock on `closed`. From opening to closing, the list has reserved
//!   memory for each open incarnation, so closing cannot fail.
//!
//! # Orderings
//!
//! Both pointers are stored with Release and loaded with Acquire: a thread that finds an incarnation sees its content.
//! That no thread finds it after its stamp requires only that the pointers are removed before the stamp is given. E2
//! and E3 provide the rest. Uses inside happen before the freeing (E4).

use crate::epochs::{pin, quiet_before, stamp, Pin};
use crate::memory::{reserve, OutOfMemory};
use crate::sync::{const_unless_loom, ordering, Arc, AtomicPtr, Mutex, MutexGuard, Ordering};
use crate::{inject, sweep::Progress};
use std::{panic::RefUnwindSafe, ptr};

/// Replaces the stamp of a closed incarnation when no pinned thread is inside. Stamps start above it.
const QUIET: u64 = 0;

/// The content of an incarnation.
pub trait Dismantle: Send + Sync + 'static {
    /// Frees a part that must be freed in steps. Returns whether more parts are left. The rest is dropped afterwards.
    /// The incarnation is closed, and no other thread is inside.
    fn dismantle(&mut self) -> bool;
}

/// At most one open `T`, and the closed ones that are not freed yet. It is a static:
///
/// ```
/// use permit_table::{pin, Dismantle, Incarnations, OutOfMemory, Progress};
///
/// struct Store(u64);
/// impl Dismantle for Store {
///     fn dismantle(&mut self) -> bool {
///         false
///     }
/// }
///
/// static STORES: Incarnations<Store> = Incarnations::new();
/// let number = || STORES.current(&pin()).map(|store| store.0);
///
/// let opening = STORES.opening()?;
/// let first = opening.gate();
/// opening.open(Store(1));
/// assert_eq!(number(), Some(1));
///
/// let opening = STORES.opening()?;
/// let second = opening.gate();
/// opening.open(Store(2));
/// first.close(|_| ());
/// assert_eq!(number(), Some(2), "the second closed the first");
///
/// second.close(|_| ());
/// assert_eq!(number(), None);
/// while STORES.dismantle_step() != Progress::Done {}
/// STORES.drop_emptied();
/// # Ok::<(), OutOfMemory>(())
/// ```
pub struct Incarnations<T: 'static> {
    /// The open incarnation, or null. It is the reference of the [`Arc`].
    current: AtomicPtr<Incarnation<T>>,
    /// Oldest first.
    ///
    /// A panic inside the lock (a bug) unlocks it, and leaves each incarnation either open or closed: everything that
    /// can fail precedes the change of the pointers.
    closed: Mutex<Vec<Closed<T>>>,
}

struct Incarnation<T: 'static> {
    gate: Gate<T>,
    opened: T,
}

struct Closed<T: 'static> {
    /// A stamp, or [`QUIET`].
    stamp: u64,
    /// It is dismantled and must be dropped.
    is_emptied: bool,
    /// The only reference, and no box, because threads that are inside still read it.
    incarnation: Arc<Incarnation<T>>,
}

/// Leads to one incarnation while that is open. Each monitor of a process has one.
pub struct Gate<T: 'static>(Arc<Target<T>>);

struct Target<T: 'static> {
    incarnations: &'static Incarnations<T>,
    /// Null before the incarnation is opened and after it is closed.
    open: AtomicPtr<Incarnation<T>>,
}

/// The right to open. While it exists, no other thread opens, closes or frees.
pub struct Opening<T: 'static> {
    closed: MutexGuard<'static, Vec<Closed<T>>>,
    gate: Gate<T>,
}

impl<T: Dismantle> Incarnations<T> {
    const_unless_loom! {
        /// No incarnation is open.
        pub fn new() -> Self {
            Self {
                current: AtomicPtr::new(ptr::null_mut()),
                closed: Mutex::new(Vec::new()),
            }
        }
    }

    /// The open incarnation.
    ///
    /// # Cost
    /// One load.
    #[inline(always)]
    pub fn current<'a>(&self, _pin: &'a Pin) -> Option<&'a T> {
        // SAFETY: it is freed only after all threads that were inside when it left this pointer have left (I2).
        let open = unsafe { self.current.load(Ordering::Acquire).as_ref() };
        open.map(|open| &open.opened)
    }

    /// The right to open an incarnation.
    ///
    /// # Errors
    /// [`OutOfMemory`]: nothing has changed.
    pub fn opening(&'static self) -> Result<Opening<T>, OutOfMemory> {
        let mut closed = self.closed.lock();
        // One for the open incarnation, and one for the next (I5).
        reserve(&mut closed, 2)?;
        let gate = Gate(Arc::new(Target {
            incarnations: self,
            open: AtomicPtr::new(ptr::null_mut()),
        }));
        Ok(Opening { closed, gate })
    }

    /// Frees a part of the oldest closed incarnation. [`Incarnations::drop_emptied`] frees the rest.
    pub fn dismantle_step(&self) -> Progress {
        let mut closed = self.closed.lock();
        inject::panic();
        let Some(oldest) = closed.iter_mut().find(|closed| !closed.is_emptied) else {
            return Progress::Done;
        };
        if oldest.stamp != QUIET {
            if oldest.stamp >= quiet_before() {
                return Progress::Waiting;
            }
            // Another barrier at each step would interrupt all processors each time.
            oldest.stamp = QUIET;
        }
        inject::panic();
        let alone = Arc::get_mut(&mut oldest.incarnation).expect("the only reference");
        oldest.is_emptied = !alone.opened.dismantle();
        Progress::More
    }

    /// Whether there is work for [`Incarnations::drop_emptied`].
    pub fn has_emptied(&self) -> bool {
        self.closed.lock().iter().any(|closed| closed.is_emptied)
    }

    /// Drops the closed incarnations that have been dismantled. This can take long; other threads can open an
    /// incarnation during that time.
    pub fn drop_emptied(&self) {
        loop {
            let mut closed = self.closed.lock();
            let Some(index) = closed.iter().position(|closed| closed.is_emptied) else {
                return;
            };
            let emptied = closed.remove(index);
            drop(closed);
            drop(emptied);
        }
    }
}

// Each change is one step, so after a panic each incarnation is either open or closed. At worst one is never freed.
impl<T> RefUnwindSafe for Incarnations<T> {}

impl<T: Dismantle> Default for Incarnations<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Dismantle> Opening<T> {
    /// The open incarnation and its gate, to be adopted (I4). Otherwise [`Opening::open`] closes it, and callers find
    /// it until then.
    pub fn current(&self) -> Option<(Gate<T>, &T)> {
        let current = &self.gate.0.incarnations.current;
        // SAFETY: a thread that removes it from there holds the lock, and this thread has the lock (I5).
        let open = unsafe { current.load(Ordering::Acquire).as_ref() }?;
        Some((open.gate.clone(), &open.opened))
    }

    /// The gate of the incarnation that will be opened. It leads nowhere before that.
    pub fn gate(&self) -> Gate<T> {
        self.gate.clone()
    }

    /// Opens an incarnation, and closes the previous one.
    pub fn open(mut self, opened: T) {
        let target = self.gate.0.clone();
        let incarnation = Arc::new(Incarnation {
            gate: self.gate,
            opened,
        });
        let fresh = Arc::into_raw(incarnation).cast_mut();
        // First the gate (I1): a caller finds the incarnation by `current`, and the callback of its death by the gate.
        target.open.store(fresh, Ordering::Release);
        let ordering = ordering("i1_opened_relaxed", Ordering::AcqRel);
        let previous = target.incarnations.current.swap(fresh, ordering);
        // SAFETY: it was open until now, so it is alive, and stays alive while this thread has the lock (I5).
        let previous = unsafe { previous.as_ref() };
        if let Some(previous) = previous {
            previous.gate.0.clone().close(&mut self.closed, |_| ());
        }
    }
}

impl<T: Dismantle> Gate<T> {
    /// The incarnation, while it is open.
    pub fn incarnation<'a>(&self, pin: &'a Pin) -> Option<&'a T> {
        Some(&self.0.incarnation(pin)?.opened)
    }

    /// Closes the incarnation, if it is still open. `before_close` is called while callers still find it. It must not
    /// panic.
    pub fn close(&self, before_close: impl FnOnce(&T)) {
        self.close_if(|_| true, before_close);
    }

    /// Closes the incarnation, if it is still open and `decide` returns true. No process opens, adopts or closes it
    /// between both (I4).
    pub fn close_if(&self, decide: impl FnOnce(&T) -> bool, before_close: impl FnOnce(&T)) {
        let mut closed = self.0.incarnations.closed.lock();
        inject::panic();
        if self.incarnation(&pin()).is_some_and(decide) {
            self.0.close(&mut closed, before_close);
        }
    }
}

impl<T> Clone for Gate<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Target<T> {
    fn incarnation<'a>(&self, _pin: &'a Pin) -> Option<&'a Incarnation<T>> {
        // SAFETY: as in `Incarnations::current`.
        unsafe { self.open.load(Ordering::Acquire).as_ref() }
    }

    fn close(&self, closed: &mut Vec<Closed<T>>, before_close: impl FnOnce(&T)) {
        // SAFETY: a thread that removes it from there holds the lock, and this thread has the lock (I5).
        let Some(open) = (unsafe { self.open.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        before_close(&open.opened);
        let incarnation = self.open.swap(ptr::null_mut(), Ordering::AcqRel);
        // A failed exchange means that another incarnation has been opened: that one stays.
        let _ = self.incarnations.current.compare_exchange(
            incarnation,
            ptr::null_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        // SAFETY: the pointer is from `Arc::into_raw` in `Opening::open`. This thread has just removed it from the
        // gate, so no other thread can.
        let incarnation = unsafe { Arc::from_raw(incarnation) };
        // The list has reserved memory (I5).
        closed.push(Closed {
            stamp: stamp(),
            is_emptied: false,
            incarnation,
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Nothing;
    impl Dismantle for Nothing {
        fn dismantle(&mut self) -> bool {
            false
        }
    }

    /// I5: closing allocates nothing, whatever the number of closed incarnations.
    #[test]
    fn i5_closing_needs_no_allocation() {
        static OWN: Incarnations<Nothing> = Incarnations::new();
        for closed in 0..20 {
            let opening = OWN.opening().unwrap();
            opening.open(Nothing);
            let list = OWN.closed.lock();
            assert_eq!(list.len(), closed);
            assert!(list.capacity() > closed, "no memory for the open one");
        }
        // valgrind would report the last one as lost: while it is open, `OWN` has no pointer to its beginning.
        let last = OWN.opening().unwrap();
        let gate = last.gate();
        last.open(Nothing);
        gate.close(|_| ());
    }
}
