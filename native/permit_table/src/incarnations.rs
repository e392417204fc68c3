//! Incarnations: what is opened, one at a time, and freed after it has been closed.
//!
//! Each begins anew, and what is in it ends with it. What it is does not matter here: for `canal_lock` it is a table
//! with those who watch its holders.
//!
//! ```text
//!   Incarnations                                              closed   [ (stamp, *), (stamp, *), ... ]
//!     current ------------.                                                     |            |
//!                         v                                                     v            v
//!                    Incarnation  <------------ way                        Incarnation  Incarnation <--.
//!                    what is opened              ^  ^  ^                                               |
//!                         '----------------------'  |  |                      null <--- way       Shared
//!                                                 Gate Gate                              ^
//!                                        one for each who watches                       Gate
//! ```
//!
//! # Invariants
//! - **I1** The way to an incarnation is `current` for callers, and its own gate for those who watch for it. A death
//!   that was watched for acts on the incarnation that it was watched for, never on one that was opened since: the
//!   next one may be open before the death of the process that opened the last one is reported. The gate leads there
//!   before `current` does: a caller can take permits, die, and have its death reported as soon as it finds the
//!   incarnation.
//! - **I2** To close is to take both ways away, once. Whoever is inside by then finishes its call on what is closed,
//!   and what it does there is void. It is freed when nobody is inside any more: neither by a pin that is older than
//!   the stamp that was given after both ways had gone (`epochs.rs`), nor by a [`Shared`].
//! - **I3** What comes through the gate of a closed incarnation finds nobody, and changes nothing.
//! - **I4** One that is kept stays open when who opened it dies. The next who wants to keep one adopts it, by the
//!   same gate; any other opens a new one, which closes it.
//! - **I5** Whoever opens, closes or frees holds the lock on `closed`. Between opening and closing there is room on
//!   that list for each that is open, so to close cannot fail.
//!
//! # Orderings
//! Both ways are stored with Release and loaded with Acquire: whoever finds an incarnation sees what it is made of.
//! That nobody finds it after its stamp needs no more than that the ways are taken away before the stamp is given,
//! and is for E2 and E3 to ensure. What was done inside comes before the freeing: by E4 for pins, and for a
//! [`Shared`] by its count, which is given up with Release and found to be the last with Acquire.

use crate::epochs::{pin, quiet_before, stamp, Pin};
use crate::inject;
use crate::memory::reserve;
use crate::out_of_memory::OutOfMemory;
use crate::sweep::Progress;
use crate::sync::{
    const_unless_loom, ordering, seeded, yield_now, Arc, AtomicPtr, Mutex, MutexGuard, Ordering,
};
use std::ops::Deref;
use std::panic::RefUnwindSafe;
use std::ptr;

/// In place of the stamp of a closed incarnation: nobody is inside any more. Stamps start above it.
const QUIET: u64 = 0;

/// What can be opened.
pub trait Dismantle: Send + Sync + 'static {
    /// Frees a part of it that has to go step by step; returns whether there are more. The rest is dropped afterwards.
    /// It is closed, and no other thread is inside any more.
    fn dismantle(&mut self) -> bool;
}

/// At most one open `T`, and the closed ones that are not freed yet. It lives in a static:
///
/// ```
/// use permit_table::{pin, Dismantle, Incarnations, OutOfMemory, Progress};
///
/// struct Room(u64);
/// impl Dismantle for Room {
///     fn dismantle(&mut self) -> bool {
///         false
///     }
/// }
///
/// static ROOMS: Incarnations<Room> = Incarnations::new();
/// let number = || ROOMS.current(&pin()).map(|room| room.0);
///
/// let opening = ROOMS.opening(false)?;
/// let first = opening.gate();
/// opening.open(Room(1));
/// assert_eq!(number(), Some(1));
///
/// let opening = ROOMS.opening(false)?;
/// let second = opening.gate();
/// opening.open(Room(2));
/// first.close();
/// assert_eq!(number(), Some(2), "the first was closed by the second");
///
/// second.close();
/// assert_eq!(number(), None);
/// while ROOMS.dismantle_step() != Progress::Done {}
/// ROOMS.drop_emptied();
/// # Ok::<(), OutOfMemory>(())
/// ```
pub struct Incarnations<T: 'static> {
    /// The open one, or null. Counted as an [`Arc`].
    current: AtomicPtr<Incarnation<T>>,
    /// In the order of their closing.
    ///
    /// A panic inside the lock (a bug of ours) leaves it free, and each incarnation either open or closed: whatever may
    /// go wrong comes before the ways to one are changed.
    closed: Mutex<Vec<Closed<T>>>,
}

struct Incarnation<T: 'static> {
    gate: Gate<T>,
    /// It stays open when who opened it dies (I4).
    kept: bool,
    opened: T,
}

struct Closed<T: 'static> {
    /// Or [`QUIET`].
    stamp: u64,
    /// It is dismantled, and has to be dropped.
    is_emptied: bool,
    incarnation: Arc<Incarnation<T>>,
}

/// The way to one incarnation, for those who watch for it, as long as it is open.
pub struct Gate<T: 'static>(Arc<Way<T>>);

struct Way<T: 'static> {
    incarnations: &'static Incarnations<T>,
    /// Null before it is opened, and after it is closed.
    open: AtomicPtr<Incarnation<T>>,
}

/// The right to open. As long as one has it, nobody else opens, closes or frees.
pub struct Opening<T: 'static> {
    closed: MutexGuard<'static, Vec<Closed<T>>>,
    keep: bool,
    gate: Gate<T>,
}

/// An incarnation that is not freed as long as one has this, open or not.
pub struct Shared<T: 'static>(Arc<Incarnation<T>>);

impl<T: Dismantle> Incarnations<T> {
    const_unless_loom! {
        /// None is open.
        pub fn new() -> Self {
            Self {
                current: AtomicPtr::new(ptr::null_mut()),
                closed: Mutex::new(Vec::new()),
            }
        }
    }

    /// The open one.
    ///
    /// # Cost
    /// One load.
    #[inline(always)]
    pub fn current<'a>(&self, _pin: &'a Pin) -> Option<&'a T> {
        // SAFETY: it is freed only when nobody is inside who was when it left this place (I2).
        let open = unsafe { self.current.load(Ordering::Acquire).as_ref() };
        open.map(|open| &open.opened)
    }

    /// The open one, for longer than a pin should be held.
    pub fn shared(&self) -> Option<Shared<T>> {
        let pin = pin();
        let open = self.current.load(Ordering::Acquire).cast_const();
        if seeded("i2_shared_outside_the_pin") {
            drop(pin);
            // By itself loom stops nobody before he counts an `Arc` up.
            yield_now();
        }
        if open.is_null() {
            return None;
        }
        // SAFETY: from `Arc::into_raw` in `Opening::open`. What is open or closed has a count of its own, and keeps
        // it while we are inside (I2).
        unsafe {
            Arc::increment_strong_count(open);
            Some(Shared(Arc::from_raw(open)))
        }
    }

    /// The right to open one, which is `keep`, or not (I4).
    ///
    /// # Errors
    /// [`OutOfMemory`]: nothing has changed.
    pub fn opening(&'static self, keep: bool) -> Result<Opening<T>, OutOfMemory> {
        let mut closed = self.closed.lock();
        // For the one that is open, and for the next (I5).
        reserve(&mut closed, 2)?;
        let gate = Gate(Arc::new(Way {
            incarnations: self,
            open: AtomicPtr::new(ptr::null_mut()),
        }));
        Ok(Opening { closed, keep, gate })
    }

    /// Frees a part of what has been closed, the oldest first. What is left of it is for
    /// [`Incarnations::drop_emptied`].
    pub fn dismantle_step(&self) -> Progress {
        let mut closed = self.closed.lock();
        inject::panic();
        let Some(oldest) = closed.iter_mut().find(|closed| !closed.is_emptied) else {
            return Progress::Done;
        };
        if oldest.stamp != QUIET && !seeded("i2_freed_without_waiting") {
            if oldest.stamp >= quiet_before() {
                return Progress::Waiting;
            }
            // To ask again at each step would interrupt all processors each time.
            oldest.stamp = QUIET;
        }
        // Nobody is inside by a pin; somebody may still be by a `Shared`.
        let Some(alone) = Arc::get_mut(&mut oldest.incarnation) else {
            return Progress::Waiting;
        };
        inject::panic();
        oldest.is_emptied = !alone.opened.dismantle();
        Progress::More
    }

    /// Is there anything for [`Incarnations::drop_emptied`]?
    pub fn has_emptied(&self) -> bool {
        self.closed.lock().iter().any(|closed| closed.is_emptied)
    }

    /// Drops what is left of the closed ones that have been dismantled. That may take long; other threads can open in
    /// this time.
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

// Each change is one step: what somebody who panics leaves behind is open or closed, and at worst never freed.
impl<T> RefUnwindSafe for Incarnations<T> {}

impl<T: Dismantle> Default for Incarnations<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Dismantle> Opening<T> {
    /// The open one and its gate, if it is kept and the next one is to be, too: then it is to be adopted, not opened
    /// anew (I4).
    pub fn adopted(&self) -> Option<(Gate<T>, &T)> {
        let current = &self.gate.0.incarnations.current;
        // SAFETY: whoever takes it out of there holds the lock, which is ours (I5).
        let open = unsafe { current.load(Ordering::Acquire).as_ref() }?;
        (self.keep && open.kept).then(|| (open.gate.clone(), &open.opened))
    }

    /// The way to what is going to be opened. It leads nowhere before.
    pub fn gate(&self) -> Gate<T> {
        self.gate.clone()
    }

    /// Opens, and closes the one before.
    pub fn open(self, opened: T) {
        let Self {
            mut closed,
            keep,
            gate,
        } = self;
        let way = gate.0.clone();
        let incarnation = Arc::new(Incarnation {
            gate,
            kept: keep,
            opened,
        });
        let fresh = Arc::into_raw(incarnation).cast_mut();
        // First the gate (I1): a caller finds it by `current`, and the caller's death by the gate.
        let too_late = seeded("i1_current_before_its_gate");
        if !too_late {
            way.open.store(fresh, Ordering::Release);
        }
        let order = ordering("i1_opened_relaxed", Ordering::AcqRel);
        let previous = way.incarnations.current.swap(fresh, order);
        if too_late {
            way.open.store(fresh, Ordering::Release);
        }
        // SAFETY: it was open until now, so it is alive, and stays so while we hold the lock (I5).
        let previous = unsafe { previous.as_ref() };
        if let Some(previous) = previous.filter(|_| !seeded("i2_the_one_before_left_open")) {
            previous.gate.0.clone().close(&mut closed);
        }
    }
}

impl<T: Dismantle> Gate<T> {
    /// What it leads to, as long as that is open.
    pub fn incarnation<'a>(&self, pin: &'a Pin) -> Option<&'a T> {
        Some(&self.0.incarnation(pin)?.opened)
    }

    /// Closes what it leads to, if that is still open.
    pub fn close(&self) {
        let mut closed = self.0.incarnations.closed.lock();
        inject::panic();
        self.0.close(&mut closed);
    }

    /// Who opened or adopted it has died: closes it, unless it is kept (I4).
    pub fn abandon(&self) {
        let kept = self.0.incarnation(&pin()).is_some_and(|open| open.kept);
        if !kept || seeded("i4_a_death_closes_what_is_kept") {
            self.close();
        }
    }
}

impl<T> Clone for Gate<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Way<T> {
    fn incarnation<'a>(&self, _pin: &'a Pin) -> Option<&'a Incarnation<T>> {
        let way = if seeded("i1_a_death_acts_on_the_current_one") {
            &self.incarnations.current
        } else {
            &self.open
        };
        // SAFETY: as in `Incarnations::current`.
        unsafe { way.load(Ordering::Acquire).as_ref() }
    }

    fn close(&self, closed: &mut Vec<Closed<T>>) {
        let too_soon = seeded("i2_stamped_before_it_was_closed").then(stamp);
        let incarnation = if seeded("i3_closed_and_its_way_left_open") {
            self.open.load(Ordering::Acquire)
        } else {
            self.open.swap(ptr::null_mut(), Ordering::AcqRel)
        };
        if incarnation.is_null() {
            return;
        }
        if !seeded("i2_closed_and_still_current") {
            // Failing means that another one has been opened: it stays.
            let _ = self.incarnations.current.compare_exchange(
                incarnation,
                ptr::null_mut(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
        // SAFETY: from `Arc::into_raw` in `Opening::open`; the way gave it up just now, to nobody but us.
        let incarnation = unsafe { Arc::from_raw(incarnation) };
        // There is room (I5).
        closed.push(Closed {
            stamp: too_soon.unwrap_or_else(stamp),
            is_emptied: false,
            incarnation,
        });
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.opened
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

    /// I5: to close asks for no memory, however many are closed already.
    #[test]
    fn i5_there_is_room_to_close_each_that_is_open() {
        static OWN: Incarnations<Nothing> = Incarnations::new();
        for closed in 0..20 {
            let opening = OWN.opening(false).unwrap();
            opening.open(Nothing);
            let list = OWN.closed.lock();
            assert_eq!(list.len(), closed);
            assert!(list.capacity() > closed, "no room for the open one");
        }
    }
}
