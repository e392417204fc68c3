//! The sweep beside those who call.

use crate::caller::WordTable;
use permit_table::{Budget, Progress};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Keys that a step looks at: as many as the library's manager has it look at.
const BUDGET: usize = 256;

/// Between two steps. The manager takes one after the other, and begins anew every five seconds; here the sweep never
/// ends, and leaves the processor to those who are measured, of whom there are as many as it has cores.
const REST: Duration = Duration::from_millis(1);

/// Runs something while the sweep goes through the table again and again.
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

/// Ends the sweep however the body ends, because the scope waits for it.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One pass, as fast as it goes.
pub fn pass(table: &WordTable) {
    while table.sweep_step(&mut Budget::of(BUDGET)) != Progress::Done {}
}
