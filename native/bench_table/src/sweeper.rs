//! The sweep during the measured calls.

use crate::caller::WordTable;
use permit_table::{Budget, Progress};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Keys per step, as in the manager of the library.
const BUDGET: usize = 256;

/// The pause between two steps. The manager runs the steps of a pass without pauses, and starts a pass every five
/// seconds. Here the sweep never ends, and must leave the processor to the measured threads, of which there is one per
/// core.
const REST: Duration = Duration::from_millis(1);

/// Runs `body` while the sweep repeatedly walks the table.
pub fn beside<R>(table: &WordTable, body: impl FnOnce() -> R) -> R {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                table.sweep_step(&mut Budget::of(BUDGET));
                thread::sleep(REST);
            }
        });
        let _end = End(&over);
        body()
    })
}

/// Ends the sweep, even if the body panics, because the scope waits for it.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One pass without pauses.
pub fn pass(table: &WordTable) {
    while table.sweep_step(&mut Budget::of(BUDGET)) != Progress::Done {}
}
