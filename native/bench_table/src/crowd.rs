//! Runs threads that start at the same time.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// The environment variable with the maximal number of threads. The default is the parallelism of the machine.
pub const THREADS: &str = "BENCH_TABLE_THREADS";

/// 1, 2, 4... and the maximum.
///
/// # Panics
/// If [`THREADS`] is set and is not a positive number.
pub fn sizes() -> Vec<usize> {
    let most = match std::env::var(THREADS) {
        Ok(number) => number
            .parse()
            .ok()
            .filter(|&most| most > 0)
            .unwrap_or_else(|| panic!("{THREADS} is {number:?}, not a positive number")),
        Err(_) => thread::available_parallelism().map_or(1, usize::from),
    };
    up_to(most)
}

fn up_to(most: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|bits| 1 << bits);
    powers
        .take_while(|&size| size < most)
        .chain([most])
        .collect()
}

/// The time from the start of the first thread to the end of the last one. Each thread prepares, waits for the others,
/// and runs.
pub fn time<T>(
    threads: usize,
    prepare: impl Fn(usize) -> T + Sync,
    run: impl Fn(&mut T) + Sync,
) -> Duration {
    let ready = Barrier::new(threads);
    let (ready, prepare, run) = (&ready, &prepare, &run);
    let live = move |number: usize| {
        let _all_or_none = AllOrNone;
        let mut own = prepare(number);
        ready.wait();
        let begin = Instant::now();
        run(&mut own);
        (begin, Instant::now())
    };
    let spans: Vec<_> = thread::scope(|scope| {
        let crowd: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || live(number)))
            .collect();
        crowd
            .into_iter()
            .map(|one| one.join().expect("a measured thread has panicked"))
            .collect()
    });
    let first = spans.iter().map(|(begin, _)| *begin).min();
    let last = spans.iter().map(|(_, end)| *end).max();
    match (first, last) {
        (Some(first), Some(last)) => last - first,
        _ => Duration::ZERO,
    }
}

/// A thread that panics ends the program: the others would wait for it forever.
struct AllOrNone;

impl Drop for AllOrNone {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}
