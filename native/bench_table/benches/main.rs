//! The time that the calls of a table take, with 1, 2, 4... threads up to the parallelism of the machine.
//!
//! `make bench WHAT=table` builds this as one program without dependencies, which can be copied to other machines:
//!
//! ```text
//!   bench_table --bench                 runs all, in minutes; the options are criterion's (--help)
//!   bench_table --bench 'pair/one'      runs those whose name matches the regular expression
//!   bench_table --list                  prints the names
//!   bench_table                         runs each once, as a test
//!
//!   BENCH_TABLE_THREADS=64              the maximal number of threads (default: the parallelism of the machine)
//!   CRITERION_HOME=FOLDER               the folder for the results in JSON (default: ./criterion)
//! ```
//!
//! The last part of a name is the number of threads. The time is that until all threads have made the same number of
//! calls, divided by that number. So the same time with twice the threads means twice the throughput. Threads can move
//! between cores, like the VM's schedulers unless they are bound.
//!
//! | benchmark group | what it measures |
//! |---|---|
//! | `pairs.rs` | acquire and release: on one key, one key per thread, a random one of a million; on bare words |
//! | `refused.rs` | acquire of a full key |
//! | `lives.rs` | short-lived holders |
//! | `held.rs` | acquire and release by holders of other keys |
//!
//! Unless a name contains "one pin", each call pins, as in the library, and the sweep runs at the same time.

mod held;
mod lives;
mod pairs;
mod refused;
mod subject;

use criterion::Criterion;
use std::time::Duration;

/// The default settings of criterion. With several threads, times vary from sample to sample, not within one.
/// Therefore many short samples say more than a few long ones.
fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
        .without_plots()
        .configure_from_args()
}

fn main() {
    // Without this, criterion runs cargo, which may not be installed.
    if std::env::var_os("CRITERION_HOME").is_none() {
        std::env::set_var("CRITERION_HOME", "criterion");
    }
    let measures = |argument: &String| ["--bench", "--list", "--help"].contains(&argument.as_str());
    if !std::env::args().any(|argument| measures(&argument)) {
        eprintln!("each benchmark runs once, as a test; to measure, run: bench_table --bench");
    }
    let mut criterion = criterion();
    pairs::bench(&mut criterion);
    refused::bench(&mut criterion);
    lives::bench(&mut criterion);
    held::bench(&mut criterion);
    criterion.final_summary();
}
