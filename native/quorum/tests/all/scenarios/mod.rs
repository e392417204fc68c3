//! Step-by-step scenarios in a small cluster, one per test. `quorum_check` searches for failures under arbitrary
//! faults.

mod clients;
mod cluster;
mod conflicts;
mod fences;
mod full;
mod groups;
mod leases;
mod lives;
mod locks;
mod pace;
mod passing;
mod restarts;
mod revoked;
mod sequencers;
mod status;
mod taken_over;
mod unlocks;
mod waiting;
