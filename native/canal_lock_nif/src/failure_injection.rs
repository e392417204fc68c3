//! Injected panics and failures, for tests. A library with the feature `faults` has them, and is never released.

use permit_table::inject::{self, Failure};
use rustler::{Error, NifResult, Term};

/// `arm(panic | allocation | memory | barriers | none, Passes) -> Hits`: `Passes` injection points of this kind
/// succeed. Then the next one panics (`panic`) or fails (`allocation`), or all later allocations (`memory`) or barriers
/// of the kernel (`barriers`) fail. Returns how often the previous injection took effect.
#[rustler::nif]
fn arm(failure: Term<'_>, passes: usize) -> NifResult<usize> {
    let hits = inject::disarm();
    let failure = match failure.atom_to_string()?.as_str() {
        "panic" => Failure::Panic,
        "allocation" => Failure::Allocation,
        "memory" => Failure::Memory,
        "barriers" => Failure::Barriers,
        "none" => return Ok(hits),
        _ => return Err(Error::BadArg),
    };
    inject::arm(failure, passes);
    Ok(hits)
}
