//! Checks of the state machines of `quorum`: model checkers and simulations. Users never build this crate.
//!
//! They call the agent and the voter that run in production, and nothing else of the library.
//!
//! - [`model`] explores every sequence of actions of two or three clients and a few voters, within bounds.
//! - [`changes`] explores all histories of some changes of members, with one or two faults at any moment.
//! - [`simulation`] plays long random histories of whole clusters, each reproducible from its seed.
//! - [`views`] plays random histories in which members change.
//!
//! Words that both use:
//!
//! - *Machine*: an agent or a voter.
//! - *Client*: a process that locks, by the agent of its node.
//! - *Guest*: a node that has an agent and no voter. The protocol calls it a client, too
//!   ([`Node::client`](quorum::members::Node::client)), so it has another name here.
//! - *Lifetime*: the time from the start of a machine to its crash. Each has a lifetime of its own.
//! - *Trace*: the actions and outputs that lead to a violation, as text.
//! - *Control*: a protocol or a cluster with one deliberate defect. A check that misses the defect is too weak.
//!
//! The programs are `explore` (model), `simulate` (simulation) and `change` (views). `tests/` is the part that
//! `make test` runs. `docs/quorum.md` lists the invariants, `docs/proof.md` the results.

pub mod changes;
mod frame_text;
pub mod model;
mod random;
mod shared;
pub mod simulation;
pub mod views;
mod votes;

/// The searches allocate all the time: with this allocator they take two thirds of the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
