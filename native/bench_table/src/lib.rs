//! What [`permit_table::Table`] costs by itself, without a VM around it.
//!
//! | room | what it is |
//! |---|---|
//! | `benches/` | how long a call takes, by one thread and by many (`make bench-table`) |
//! | `src/bin/table_instructions/` | how many instructions it takes, by one thread (`scripts/instructions.sh`) |
//! | [`word_key`] | keys like those of the native library |
//! | [`caller`] | what a process is there: a holder that takes and gives back |
//! | [`crowd`] | many threads that begin at once |
//! | [`sweeper`] | the sweep beside them |
//!
//! All of it goes by the public functions of the table, and calls them as the native library does, so that the figures
//! mean something for it. What is missing here is what the library does besides: to read terms, to make terms, and the
//! VM's own call of a native function.

pub mod caller;
pub mod crowd;
pub mod sweeper;
pub mod word_key;
