//! The model: every sequence of actions of a small cluster, explored by [stateright](https://stateright.rs).
//!
//! # Terms
//!
//! - A *setting* ([`setting`]) names the members, what each client does, and how often each fault may happen.
//! - A *state* (`state.rs`) holds real agents and voters, the frames in flight, and the clients.
//! - An *action* ([`action`]) calls one machine or injects one fault. A *transition* (`transition.rs`) performs it.
//! - A *property* (`properties.rs`) must hold in every state ("always"), or be seen in one state ("sometimes").
//! - A *search* ([`search`]) visits states until a property is violated, every state was visited, or a bound is
//!   reached. It visits each state once, those with the shortest histories first; or it takes random walks.
//! - *Quiescence* (`quiescence.rs`) is what follows a state if no further fault happens. It plays two continuations:
//!   the frames in flight arrive, or they are lost. It is the check of liveness.
//! - The [`settings`] are those of the correct protocol. The [`controls`] enable protocol bugs, which must be found.
//!   `quorum_model.rs` is a setting as a stateright model.
//!
//! # A first search
//!
//! In `first`, two members without faults each have a client that locks and unlocks the same name.
//!
//! ```text
//! $ cd native && cargo run --profile test -p quorum_check --bin explore -- first
//! first: 258 states (295 generated), depth 29, complete, 0.0 s, 90255 states/s
//!   never seen: two readers hold
//! ```
//!
//! So 258 states can be reached, the last ones by 28 actions. All properties hold. *Complete*: the bounds of the
//! setting allow no other state. "Never seen" lists events that occur in no state: here, no client reads.
//!
//! `explore --control UnlockKeepsHeld` shows a violation, and each action that leads to it with its outputs.
//!
//! # What is searched
//!
//! *Time* passes in whole units of the setting's rules, for all machines at once. Within a unit, actions happen in any
//! order. (Clocks that drift are part of the simulation only.)
//!
//! *Frames* arrive within the unit in which they were sent, unless they are delayed: a delayed frame arrives at any
//! later time, or never. Frames may overtake each other: without limit in the smallest settings, in the others as often
//! as the budget allows ([`Order`](setting::Order)). Loss is no action: a lost frame is one that has not
//! arrived yet, and the search explores what follows while it is in flight. The setting bounds the number of delayed
//! frames, crashes, duplicates and time units ([`Budget`](setting::Budget)). A search that visited every state has seen
//! every history within these bounds.
//!
//! *A voter's crash* is one action with its restart. A voter that is down for some time equals a voter whose frames
//! are delayed until it starts. *Timers* fire in the unit in which they are due, before any other action of that unit.
//! If the machine is stalled, its timer fires when the machine is scheduled again.
//!
//! # What is left out, and why that hides nothing
//!
//! - Of two equal frames in flight, both are delivered, in one order.
//! - A duplicate is made when the frame arrives for the first time. Before that it makes no difference.
//! - Answers to an earlier lifetime of an agent are dropped when the agent crashes, and frames to machines that do not
//!   run are dropped when they are sent. A machine ignores frames that name another lifetime.
//! - A stamp older than the holder's lease is set to the age of the lease. Neither stamp extends the lease.
//! - When all clients are done, no lock is held and none will be granted. The search ends there, and the quiescence
//!   check shows what the tables still contain.
//! - Timers of several machines that are due at the same time fire in one order. Each timer changes only its own
//!   machine, and the frames that it sends may be delivered in any order.
//!
//! Voters number guests in the same way, and a number is never used for another guest. (In the simulation it is.)
//!
//! The search does not use symmetry. Agents differ, because of two with equal clocks the one with the lower lifetime is
//! older, and because each shares its member with one voter.

pub mod action;
pub mod controls;
mod properties;
mod quiescence;
mod quorum_model;
pub mod search;
pub mod setting;
pub mod settings;
mod state;
mod transition;
