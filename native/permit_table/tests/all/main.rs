//! The tests of the table, in one program, which links faster than one for each file. Tools select them by module:
//! `cargo test -p permit_table --test all -- storms::`.
//!
//! `../loom/` is a program of its own, because the models need another build.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod histories;
mod incarnations;
mod linearizable;
mod promises;
mod sharing;
mod specification;
mod storms;
mod waiting;
