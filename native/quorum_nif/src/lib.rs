//! The border between the BEAM and `quorum`: terms, resources, the clock, the file of the fences. No logic of locks.
//!
//! | room | what it does |
//! |---|---|
//! | `agent.rs` | the agent of this node: what goes in and comes out, in steps |
//! | `voter.rs` | the voter of this node, which outlives the process that runs it |
//! | `lock.rs` | a lock in the hands of its holder: is it mine, and give it back |
//! | `fences.rs` | the mark that fences are reserved up to, on disk |
//! | `setup.rs` | what both machines are started with |
//! | `machine.rs` | at most one of each in a VM; what they have in common at the border |
//! | `clock.rs` | the time that leases are counted by |
//! | `error.rs` | what goes wrong |
//!
//! The processes around it (`src/quorum/canal_lock_quorum_agent.erl`, `..._voter.erl`) gather what is in their
//! mailboxes and hand it over in one call, a *step*. A step takes a bounded number of events, and tells the scheduler
//! how long it took.
//!
//! Memory comes from the C library, not from the VM as that of the other library does: a step takes and frees many
//! small pieces, and the process that takes them moves from scheduler to scheduler, for which the VM's allocators send
//! each piece home. With them four nodes do a sixth less.
//!
//! All NIFs but those that write to the disk run on normal schedulers: a process that is killed inside of one is not
//! announced dead before it has returned, so nothing goes on behind the back of its successor.

mod agent;
mod clock;
mod error;
mod fences;
mod lock;
mod machine;
mod setup;
mod voter;

rustler::init!("canal_lock_quorum_nif");
