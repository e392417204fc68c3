//! For tests of a library that is never shipped (feature `faults`): they say what goes wrong.

use permit_table::fault::{arm as arm_fault, disarm, Fault};
use rustler::{Atom, Error, NifResult};

mod atoms {
    rustler::atoms! { allocation, barriers, memory, none, panic }
}

/// `arm(panic | allocation | memory | barriers | none, Grants) -> Hits`: after so many places one of them panics, one
/// allocation fails, all allocations fail, all barriers are refused, or nothing goes wrong. Returns how often what was
/// armed before has gone wrong.
#[rustler::nif]
fn arm(what: Atom, grants: usize) -> NifResult<usize> {
    let hits = disarm();
    let fault = [
        (atoms::panic(), Fault::Panic),
        (atoms::allocation(), Fault::Allocation),
        (atoms::memory(), Fault::Memory),
        (atoms::barriers(), Fault::Barriers),
    ]
    .into_iter()
    .find_map(|(atom, fault)| (atom == what).then_some(fault));
    match fault {
        Some(fault) => arm_fault(fault, grants),
        None if what == atoms::none() => {}
        None => return Err(Error::BadArg),
    }
    Ok(hits)
}
