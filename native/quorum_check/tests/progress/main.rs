//! PR3, PR4, PR7: how much a cluster achieves, and how long its requests wait, under load. Each test is deterministic:
//! links have simulated latencies. The controls enable protocol bugs that slow a cluster down, which must be found.

// For its allocator.
use quorum_check as _;

mod choice;
mod clients;
mod contention;
mod figures;
mod load;
mod own_names;
mod several_names;
mod sick;
