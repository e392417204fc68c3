//! The time that leases are counted by: nanoseconds of a clock that never goes back, is not set by anybody, and goes
//! on while the machine sleeps. (One that stood still meanwhile would have a holder believe that its lease goes on
//! after voters elsewhere have dropped it.)

use quorum::time::Time;

/// Linux has a clock of its own for it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn now() -> Time {
    use rustix::time::{clock_gettime, ClockId};
    let time = clock_gettime(ClockId::Boottime);
    Time(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

/// What the standard library reads goes on in sleep on Windows. On other systems it may stand still then:
/// `docs/quorum.md` says so.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn now() -> Time {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed();
    Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// `now() -> nanoseconds` since a moment that is the same for all VMs of a machine, on Linux.
#[rustler::nif(name = "now")]
fn now_nif() -> i64 {
    now().0
}
