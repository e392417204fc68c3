//! Measures [`permit_table::Table`] alone, without a VM.
//!
//! | part | content |
//! |---|---|
//! | `benches/` | the time per call, with one thread and with many (`make bench WHAT=table`) |
//! | `src/bin/table_instructions/` | the instructions per call, with one thread (`scripts/instructions.sh`) |
//! | [`word_key`] | keys like those of the native library |
//! | [`caller`] | a simulated process: a holder that acquires and releases |
//! | [`crowd`] | threads that start at the same time |
//! | [`sweeper`] | the sweep during the calls |
//!
//! The measurements use the public functions of the table in the same way as the native library does. They do not
//! include its other work: reading and building terms, and the VM's call of a native function.

pub mod caller;
pub mod crowd;
pub mod sweeper;
pub mod word_key;
