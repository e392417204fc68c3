//! Histories in which the members change: an operator changes the list again and again while clients lock, nodes crash,
//! lose their files, are cut off, and members that left return with their old files.
//!
//! | file | content |
//! |---|---|
//! | `plan.rs` | what a history has, drawn from its seed |
//! | `world.rs` | the nodes, the network, and the queue of events |
//! | `machines.rs` | calls of the machines, and their outputs |
//! | `faults.rs` | crashes, lost files, links that are cut |
//! | `operator.rs` | changes of the members, and what their answers promise |
//! | `resets.rs` | a majority is lost, and the operator resets to the survivors |
//! | `questions.rs` | which names have votes |
//! | `records.rs` | what a history remembers |
//! | `checks.rs` | one holder, growing fences, and progress when all faults are over |
//!
//! The machines are [`NodeVoter`](quorum::node_voter::NodeVoter) and [`NodeAgent`](quorum::node_agent::NodeAgent), as
//! the library runs them. Clock, network and random numbers are those of [`simulation`](crate::simulation).

mod checks;
mod faults;
mod machines;
mod operator;
pub mod plan;
mod questions;
mod records;
mod resets;
mod world;

pub use plan::{Options, Plan, Setting};
pub use records::Broken;
pub use world::{run, Outcome};
