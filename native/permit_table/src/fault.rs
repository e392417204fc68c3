//! Where something may go wrong, so that a test can make it go wrong there (P9).
//!
//! [`point`] stands where a panic would be worst: inside a lock, inside somebody's closure, between two steps that
//! belong together. [`memory`] stands before each allocation that may fail, `barrier` before each barrier that the
//! kernel may refuse. In the library that is shipped all are empty: only the tests of this crate and the feature
//! `faults`, which only tests ask for, give them a body.
//!
//! None stands between the change of a count and the record of it. Nothing there can panic, and nothing could be
//! mended there: those lines say so themselves.

use crate::memory::OutOfMemory;

/// A place where a panic would do harm.
#[inline(always)]
pub fn point() {
    #[cfg(any(test, feature = "faults"))]
    armed::point();
}

/// A place where the allocator may have no memory; and where a panic may come from.
///
/// # Errors
/// [`OutOfMemory`], when a test wants it.
#[inline(always)]
pub fn memory() -> Result<(), OutOfMemory> {
    #[cfg(any(test, feature = "faults"))]
    armed::memory()?;
    Ok(())
}

/// Where the kernel may refuse a barrier (`barrier.rs`): does it?
#[inline(always)]
pub(crate) fn barrier() -> bool {
    #[cfg(any(test, feature = "faults"))]
    return armed::barrier();
    #[cfg(not(any(test, feature = "faults")))]
    false
}

#[cfg(any(test, feature = "faults"))]
pub use armed::{arm, disarm, Fault};

#[cfg(any(test, feature = "faults"))]
mod armed {
    use super::OutOfMemory;
    use parking_lot::Mutex;

    /// What goes wrong.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Fault {
        /// One place panics.
        Panic,
        /// One allocation fails.
        Allocation,
        /// All allocations fail from then on.
        Memory,
        /// The kernel refuses all barriers from then on.
        Barriers,
    }

    #[derive(Clone, Copy)]
    struct Plan {
        fault: Option<Fault>,
        /// Places to pass before it.
        grants: usize,
        hits: usize,
    }

    const NONE: Plan = Plan {
        fault: None,
        grants: 0,
        hits: 0,
    };

    // The unit tests of this crate run side by side, each on a thread of its own. In a VM a call and the callbacks
    // that follow from it run on many.
    #[cfg(test)]
    thread_local! {
        static PLAN: Mutex<Plan> = const { Mutex::new(NONE) };
    }
    #[cfg(not(test))]
    static PLAN: Mutex<Plan> = Mutex::new(NONE);

    fn with_plan<T>(with: impl FnOnce(&mut Plan) -> T) -> T {
        #[cfg(test)]
        return PLAN.with(|plan| with(&mut plan.lock()));
        #[cfg(not(test))]
        with(&mut PLAN.lock())
    }

    /// After so many places of its kind the fault comes.
    pub fn arm(fault: Fault, grants: usize) {
        let fault = Some(fault);
        with_plan(|plan| {
            *plan = Plan {
                fault,
                grants,
                ..NONE
            }
        });
    }

    /// Nothing goes wrong any more; answers how often it has.
    pub fn disarm() -> usize {
        with_plan(|plan| std::mem::replace(plan, NONE).hits)
    }

    pub(super) fn point() {
        if goes_wrong(|fault| fault == Fault::Panic) {
            // Says nothing on standard error, where a panic that is meant would only hide others.
            std::panic::resume_unwind(Box::new("a fault made on purpose"));
        }
    }

    pub(super) fn memory() -> Result<(), OutOfMemory> {
        point();
        match goes_wrong(|fault| matches!(fault, Fault::Allocation | Fault::Memory)) {
            true => Err(OutOfMemory),
            false => Ok(()),
        }
    }

    pub(super) fn barrier() -> bool {
        goes_wrong(|fault| fault == Fault::Barriers)
    }

    fn goes_wrong(is_of_this_kind: impl FnOnce(Fault) -> bool) -> bool {
        with_plan(|plan| {
            let Some(fault) = plan.fault.filter(|fault| is_of_this_kind(*fault)) else {
                return false;
            };
            if plan.grants > 0 {
                plan.grants -= 1;
                return false;
            }
            plan.hits += 1;
            if matches!(fault, Fault::Panic | Fault::Allocation) {
                plan.fault = None;
            }
            true
        })
    }
}
