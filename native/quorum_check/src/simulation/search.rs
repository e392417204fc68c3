//! Many histories, on several threads, until one breaks a promise.

use super::summary::Summary;
use super::{run, Settings};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Which histories.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The first seed; the others follow.
    pub from: u64,
    /// At most so many.
    pub histories: u64,
    /// Not for longer.
    pub until: Option<Instant>,
    /// By so many threads.
    pub threads: usize,
}

/// What happened in them, and the lowest seed that was found to break a promise, if one did. Threads take one seed
/// after the other and stop when one has failed; those below it are finished, so the answer does not hang on the
/// threads.
#[must_use]
pub fn search(settings: &Settings, wanted: Search) -> (Summary, Option<u64>) {
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(u64::MAX);
    let mut total = Summary::default();
    thread::scope(|scope| {
        let work = || {
            let mut summary = Summary::default();
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let late = wanted.until.is_some_and(|until| Instant::now() >= until);
                if place >= wanted.histories || place >= failed.load(Ordering::Relaxed) || late {
                    return summary;
                }
                let outcome = run(wanted.from + place, settings);
                summary += &outcome.summary;
                if outcome.violation.is_some() {
                    failed.fetch_min(place, Ordering::Relaxed);
                }
            }
        };
        let threads: Vec<_> = (0..wanted.threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(summary) => total += &summary,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    let failed = failed.into_inner();
    (total, (failed < u64::MAX).then(|| wanted.from + failed))
}
