//! Injected panics and failures: tests use them to check P9 at every place where a call can fail.
//!
//! [`panic`](panic()) marks the places where a panic would do the most harm: inside a lock, inside a caller's closure,
//! between two steps that belong together. [`out_of_memory`] precedes each allocation that can fail, `refused_barrier`
//! each memory barrier that the kernel can refuse. In a release build all three are empty. Only the tests of this crate
//! and the feature `faults`, which is for tests only, give them a body.
//!
//! None of them stands between the change of a count and the record of that change. Code there must not panic, because
//! nothing could repair the difference. Those lines say so in a comment.

use crate::out_of_memory::OutOfMemory;

/// Panics if a test asks for it.
#[inline(always)]
pub fn panic() {
    #[cfg(any(test, feature = "faults"))]
    if armed::fails(&[Failure::Panic]) {
        // Prints nothing: the output of intended panics would hide unintended ones.
        std::panic::resume_unwind(Box::new("injected panic"));
    }
}

/// Precedes an allocation. Fails or panics if a test asks for it.
///
/// # Errors
/// [`OutOfMemory`], if a test asks for it.
#[inline(always)]
pub fn out_of_memory() -> Result<(), OutOfMemory> {
    panic();
    #[cfg(any(test, feature = "faults"))]
    if armed::fails(&[Failure::Allocation, Failure::Memory]) {
        return Err(OutOfMemory);
    }
    Ok(())
}

/// Whether a test asks for a refused barrier (`barrier.rs`).
#[inline(always)]
pub(crate) fn refused_barrier() -> bool {
    #[cfg(any(test, feature = "faults"))]
    return armed::fails(&[Failure::Barriers]);
    #[cfg(not(any(test, feature = "faults")))]
    false
}

#[cfg(any(test, feature = "faults"))]
pub use armed::{arm, disarm, Failure};

#[cfg(any(test, feature = "faults"))]
mod armed {
    use parking_lot::Mutex;

    /// What a test injects.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Failure {
        /// One panic.
        Panic,
        /// One failed allocation.
        Allocation,
        /// From one allocation on, all fail.
        Memory,
        /// From one barrier on, the kernel refuses all.
        Barriers,
    }

    struct Plan {
        failure: Option<Failure>,
        /// Places of this kind that succeed before the first failure.
        grants: usize,
        hits: usize,
    }

    const NONE: Plan = Plan {
        failure: None,
        grants: 0,
        hits: 0,
    };

    // The unit tests of this crate run in parallel, each on its own thread. In a VM, a call and the callbacks that
    // follow from it run on several threads.
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

    /// Injects the failure after `grants` places of its kind have succeeded.
    pub fn arm(failure: Failure, grants: usize) {
        with_plan(|plan| {
            plan.failure = Some(failure);
            (plan.grants, plan.hits) = (grants, 0);
        });
    }

    /// Ends the injection. Returns how many failures were injected.
    pub fn disarm() -> usize {
        with_plan(|plan| std::mem::replace(plan, NONE).hits)
    }

    /// Whether a place that has failures of these kinds fails.
    pub(super) fn fails(kinds: &[Failure]) -> bool {
        with_plan(|plan| {
            let Some(failure) = plan.failure.filter(|failure| kinds.contains(failure)) else {
                return false;
            };
            if plan.grants > 0 {
                plan.grants -= 1;
                return false;
            }
            plan.hits += 1;
            if matches!(failure, Failure::Panic | Failure::Allocation) {
                plan.failure = None;
            }
            true
        })
    }
}
