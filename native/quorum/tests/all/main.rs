//! The tests of the machines and of their frames, in one program, which links faster than one for each file.
//! `../frame_allocation.rs` is a program of its own, because it replaces the allocator.

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "model")]
mod controls;
mod frame_bounds;
mod frame_golden;
mod frame_sizes;
mod frames;
mod lost_answers;
mod scenarios;
mod view_frames;
mod views;
