//! The machines of `quorum`, the real ones, where everything goes wrong that can: users never build this.
//!
//! ```text
//!   model        all that can happen to two or three clients and a few voters, as far as there is time: stateright
//!     settings     what is searched               controls   protocols with a rule broken, which must be refuted
//!     state, turn  one state, and what comes next promises   Q1 to Q11 of a state
//!   simulation   long histories of whole clusters, from seeds: clocks, links, faults, clients
//!   invariants   what no history may break: Q1 to Q11, of answers and of frames
//! ```
//!
//! `explore` and `simulate` are their programs, `tests/` what `make test` runs of them. `docs/quorum.md` says what
//! came of it.

pub mod invariants;
pub mod model;
pub mod simulation;
