//! The protocol bugs of the machines that a test creates.

use quorum::protocol_bug::ProtocolBugs;
use std::cell::Cell;

thread_local! {
    static BUGS: Cell<ProtocolBugs> = const { Cell::new(ProtocolBugs::NONE) };
}

/// Those that are enabled in this thread.
pub fn bugs() -> ProtocolBugs {
    BUGS.get()
}

/// From now on, in this thread.
pub fn enable(bugs: ProtocolBugs) {
    BUGS.set(bugs);
}
