//! Shared by the test programs. (`judge` and `counting` by the fuzzer as well.)

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod counting;
pub mod frames;
pub mod judge;
pub mod raw;
