//! The model of changes: all histories in which members change and a few faults happen, each at any moment.
//!
//! Machines run as in [`views`](crate::views). Without faults they have one history: messages and writes arrive in the
//! order in which they were sent, clients go on when nothing is in flight, and then time passes to the next deadline of
//! a machine. At each moment of it, a [`Fault`](setting::Fault) may happen instead, as often as the setting allows. The
//! search visits all histories with these faults (Emmi, Qadeer, Rakamaric, "Delay-bounded scheduling", 2011).
//!
//! | file | content |
//! |---|---|
//! | `setting.rs` | the nodes, what each client does, and the faults |
//! | `settings.rs` | the settings, by name |
//! | `state.rs` | machines, files, clients, and what is in flight |
//! | `transition.rs`, `outputs.rs` | what happens next, a fault, and what the machines request |
//! | `search.rs` | the settings as models of stateright |

mod outputs;
pub mod search;
pub mod setting;
pub mod settings;
mod state;
mod transition;
