//! Shared by the test programs. The fuzzer uses `judge` and `counting`, too.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod bugs;
pub mod counting;
pub mod frames;
pub mod judge;
pub mod raw;
