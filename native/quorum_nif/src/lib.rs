//! The interface between the BEAM and `quorum`: terms, resources, the clock, and the state file. It contains no
//! lock logic.
//!
//! | file | content |
//! |---|---|
//! | `agent.rs` | the NIFs of this node's agent: events in, outputs out, in steps |
//! | `voter.rs` | the NIFs of this node's voter |
//! | `lock.rs` | the handle of a lock: whether it is held, its release, and what both share with the agent |
//! | `state_file.rs` | replaces the file with what a voter must know after a restart |
//! | `state_lock.rs` | keeps other VMs away from that file |
//! | `setup.rs` | the setup of both machines |
//! | `machine.rs` | code that both machines share: one current machine per VM, steps, messages |
//! | `nodes.rs` | the names of nodes as atoms and as text |
//! | `clock.rs` | the clock of the leases |
//! | `error.rs` | the reasons why a NIF raises |
//!
//! The agent's and the voter's process (`src/quorum/canal_lock_quorum_agent.erl`, `..._voter.erl`) collect the
//! messages of their mailboxes and pass them to a machine in one call, a *step*. A step takes a bounded number of
//! events and reports its duration to the scheduler.
//!
//! Unlike the permits library, this one allocates with the C library, not with the VM's allocators. A step allocates
//! and frees many small blocks, and its process moves between schedulers. The VM's allocators return each block to
//! the scheduler that allocated it, which makes four nodes a sixth slower.
//!
//! Usual steps run on normal schedulers. The VM reports a process that is killed inside such a NIF as dead only after
//! the NIF has returned, so an old process does not run a step after its successor has started.
//!
//! With thousands of locks, a step that changes the list of members takes several milliseconds, and runs on a dirty
//! scheduler. When its process is killed, the successor may start before the step ends. The VM drops the outputs of the
//! step, and the successor has ended the lease of the old agent (`Lease::end`). So the step changes nothing that others
//! see.

mod agent;
mod clock;
mod error;
mod lock;
mod machine;
mod nodes;
mod setup;
mod state_file;
mod state_lock;
mod voter;

rustler::init!("canal_lock_quorum_nif");
