//! The clock of the leases: nanoseconds of a clock that never goes back, cannot be set, and runs while the
//! machine sleeps. With a clock that stops during sleep, a holder would count on its lease after the voters have
//! dropped its votes.

use quorum::time::Time;

/// Linux has a clock with these properties.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn now() -> Time {
    use rustix::time::{clock_gettime, ClockId};
    let time = clock_gettime(ClockId::Boottime);
    Time(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

/// On systems other than Linux, the clock of the standard library may stop during sleep: see `docs/quorum.md`.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn now() -> Time {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed();
    Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// `now() -> Nanoseconds` since a fixed moment. On Linux it is the same for all VMs of a machine.
#[rustler::nif(name = "now")]
fn now_nif() -> i64 {
    now().0
}
