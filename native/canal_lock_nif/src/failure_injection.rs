//! Injected panics and failures, for tests. A library with the feature `faults` has them, and is never released.

use permit_table::inject::{arm as arm_failure, disarm, Failure};
use rustler::{Atom, Error, NifResult};

mod atoms {
    rustler::atoms! { allocation, barriers, memory, none, panic }
}

/// `arm(panic | allocation | memory | barriers | none, Passes) -> Hits`: `Passes` injection points of this kind
/// succeed. Then the next one panics (`panic`) or fails (`allocation`), or all later allocations (`memory`) or barriers
/// of the kernel (`barriers`) fail. Returns how often the previous injection took effect.
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
