//! Plays many histories on several threads, until one violates an invariant.

use crate::simulation::history::run;
use crate::simulation::options::Options;
use crate::simulation::summary::Summary;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Search {
    pub from: u64,
    pub histories: u64,
    pub until: Option<Instant>,
    pub threads: usize,
}

/// Returns the summary, and the lowest seed with a violation. When a thread finds one, the histories of lower seeds are
/// still finished, so the result does not depend on the number of threads.
pub fn search(options: &Options, search: Search) -> (Summary, Option<u64>) {
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(u64::MAX);
    let mut total = Summary::default();
    thread::scope(|scope| {
        let work = || {
            let mut summary = Summary::default();
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let late = search.until.is_some_and(|until| Instant::now() >= until);
                if place >= search.histories || place >= failed.load(Ordering::Relaxed) || late {
                    return summary;
                }
                let outcome = run(search.from + place, options);
                summary += &outcome.summary;
                if outcome.violation.is_some() {
                    failed.fetch_min(place, Ordering::Relaxed);
                }
            }
        };
        let threads: Vec<_> = (0..search.threads.max(1))
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
    (total, (failed < u64::MAX).then(|| search.from + failed))
}
