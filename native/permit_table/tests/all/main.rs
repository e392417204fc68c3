//! The tests of the table, in one program, which links faster than one for each file. Tools select them by module:
//! `cargo test -p permit_table --test all -- storms::`.
//!
//! `../loom/` and `../account.rs` are programs of their own: the models need another build, and the account of memory
//! another allocator.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod histories;
mod incarnations;
mod linearizable;
mod promises;
mod specification;
mod storms;
mod waiting;
