//! What the machines do in a small cluster, step by step: one story a test. What they do when everything goes wrong
//! at once is looked for by `quorum_check`.

mod cluster;
mod contention;
mod fences;
mod full;
mod leases;
mod locks;
mod passing;
mod restarts;
mod revoked;
mod status;
mod taken_over;
mod unlocks;
mod waiting;
