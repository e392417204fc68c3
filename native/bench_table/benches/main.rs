//! How long the calls of a table take, by 1, 2, 4... threads and as many as the machine runs at a time.
//!
//! `make bench-table` builds this as one program that needs nothing beside it, to be taken to other machines:
//!
//! ```text
//!   bench_table --bench                 all of it, in minutes; the options are criterion's (--help)
//!   bench_table --bench 'pair/one'      what has this in its name (a regular expression)
//!   bench_table --list                  the names
//!   bench_table                         each once, to see that it runs
//!
//!   BENCH_TABLE_THREADS=64              the most threads, instead of as many as the machine runs at a time
//!   CRITERION_HOME=FOLDER               where the results go (JSON), instead of ./criterion
//! ```
//!
//! The last part of a name is the number of threads. The time is what passes until all of them have done the same
//! number of calls, divided by that number: with the same time at twice the threads, twice as much has been done. The
//! threads are free to move between cores, as the VM's schedulers are unless somebody binds them.
//!
//! | room | what it measures |
//! |---|---|
//! | `pairs.rs` | acquire and release: on one key, on a key each, on any of a million; beside bare words |
//! | `refused.rs` | acquire of a key that is full |
//! | `lives.rs` | holders that come and go |
//! | `held.rs` | acquire and release by those who hold other keys |
//!
//! Unless a name says "one pin", each call pins, as those of the library do, and the sweep goes on beside them.

mod held;
mod lives;
mod pairs;
mod refused;
mod subject;

use criterion::Criterion;
use std::time::Duration;

/// Of criterion; where the options do not say otherwise. Times between threads waver from sample to sample, not within
/// one, so many short samples say more than a few long ones.
fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50)
        .without_plots()
        .configure_from_args()
}

fn main() {
    // Otherwise criterion asks a cargo, which may not be there.
    if std::env::var_os("CRITERION_HOME").is_none() {
        std::env::set_var("CRITERION_HOME", "criterion");
    }
    let measures = |argument: &String| ["--bench", "--list", "--help"].contains(&argument.as_str());
    if !std::env::args().any(|argument| measures(&argument)) {
        eprintln!("each runs once, to see that it does; to measure, say: bench_table --bench");
    }
    let mut criterion = criterion();
    pairs::bench(&mut criterion);
    refused::bench(&mut criterion);
    lives::bench(&mut criterion);
    held::bench(&mut criterion);
    criterion.final_summary();
}
