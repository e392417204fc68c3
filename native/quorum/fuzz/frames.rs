//! Checks F1 and F2 for bytes that libFuzzer generates to reach as much code as possible.
//!
//! Run it for one minute in this directory, with a C++ compiler:
//!
//! ```text
//! mkdir -p ../../../_build/fuzz
//! cargo run --release --locked -- ../../../_build/fuzz -max_len=20000 -max_total_time=60
//! ```
//!
//! If it fails, it writes the input to a file `crash-…`. Run the same command with this file in place of the
//! directory to reproduce the failure. Then add the input as a test and delete the file.

#![no_main]

#[path = "../tests/common/counting.rs"]
mod counting;
#[path = "../tests/common/judge.rs"]
mod judge;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    counting::bounded(bytes);
    judge::judge(bytes);
});
