//! Step-by-step scenarios in a small cluster, one per test. `quorum_check` searches for failures under arbitrary
//! faults.

mod clients;
mod cluster;
mod fences;
mod full;
mod given;
mod leases;
mod live;
mod lives;
mod locks;
mod passing;
mod restarts;
mod revoked;
mod status;
mod unlocks;
mod views;
pub mod views_agent;
mod waiting;
