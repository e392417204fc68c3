//! The simulation: long random histories of a cluster, each reproducible from its seed.
//!
//! A history has nodes with clocks that drift, a network that loses, duplicates, delays and reorders frames, machines
//! that crash and pause, and clients that lock. The machines and the bytes between them are those of production.
//! Everything else is drawn from the seed, so a seed that violates an invariant does so again.
//!
//! # Words
//!
//! - A *plan* ([`plan`]) is the kind of a history: its size, network, faults and load. [`Options`](options::Options)
//!   fix some of it.
//! - The *world* (`world.rs`) is the state of a history: the nodes and the queue of events.
//! - A *fault* ([`fault`]) is injected at random times and followed by its *recovery*.
//! - *Healed*: after the active part of a history, no fault is injected and every open one has recovered. From then on
//!   the cluster must become *quiescent*: all requests are answered and all tables are empty.
//! - *Fault-free*: a history without faults. More is checked in it, because nothing excuses a lost lock.
//! - The *checker* ([`invariants`]) checks the invariants after each event.
//! - *Real* time is the time of the simulation, in nanoseconds. No node can read it.

mod clients;
pub mod clock;
mod event;
pub mod fault;
pub mod history;
mod injection;
pub mod invariants;
mod live;
mod machines;
pub mod network;
mod node;
pub mod options;
pub mod plan;
pub mod search;
pub mod summary;
mod trace;
mod world;
