//! Injected panics and failures, for tests. Only a library with the feature `faults` has them; it is never shipped.

use permit_table::inject::{arm as arm_failure, disarm, Failure};
use rustler::{Atom, Error, NifResult};

mod atoms {
    rustler::atoms! { allocation, barriers, memory, none, panic }
}

/// `arm(panic | allocation | memory | barriers | none, Passes) -> Hits`: after this many passed injection points, one
/// of them panics, one allocation fails, all allocations fail, the kernel refuses all barriers, or nothing fails.
/// Returns how often the previous injection took effect.
#[rustler::nif]
fn arm(failure: Atom, passes: usize) -> NifResult<usize> {
    let hits = disarm();
    let injected = [
        (atoms::panic(), Failure::Panic),
        (atoms::allocation(), Failure::Allocation),
        (atoms::memory(), Failure::Memory),
        (atoms::barriers(), Failure::Barriers),
    ]
    .into_iter()
    .find_map(|(atom, injected)| (atom == failure).then_some(injected));
    match injected {
        Some(injected) => arm_failure(injected, passes),
        None if failure == atoms::none() => {}
        None => return Err(Error::BadArg),
    }
    Ok(hits)
}
