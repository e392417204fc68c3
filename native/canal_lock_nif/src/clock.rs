//! The clock of the tables. It goes on from one table to the next.

use std::sync::LazyLock;
use std::time::Instant;

/// Microseconds since the first call.
pub(crate) fn now_us() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_micros() as u64
}
