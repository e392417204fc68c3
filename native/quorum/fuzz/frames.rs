//! F1 and F2, of bytes that a fuzzer (libFuzzer) makes so that they reach as much of the code as they can.
//!
//! In this directory, with a C++ compiler, for a minute:
//!
//! ```text
//! mkdir -p ../../../_build/fuzz
//! cargo run --release --locked -- ../../../_build/fuzz -max_len=20000 -max_total_time=60
//! ```
//!
//! What it finds it writes into a file `crash-…`; the same command with the file in place of the directory shows it
//! again. Then it becomes a test beside the others, and the file goes.

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
