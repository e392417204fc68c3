//! A local process, as the table knows it: the identity of a holder.
//!
//! It is the word of the pid, as the VM has it. Of the processes in the VM's process table no two have the same one.
//! But a process leaves that table before its monitors are handled, and a local pid has few bits where the VM is of
//! 32 bits, or of OTP 25 and before: 28. Then another process can get the pid before the death of the first is
//! reported. It holds what the first one held until it releases that or dies; `holders.rs` ("Identity") has the
//! rules, and `Incarnation::watch_next` asks the VM. Since OTP 26 a pid has 60 bits on 64-bit machines: a VM that
//! starts a million processes a second reuses one after 36,000 years.

use crate::enif::{self, CallEnv, ErlNifTerm};
use permit_table::Holder;
use rustler::sys::ErlNifPid;
use std::num::NonZeroU64;

/// Pids are numbered above four bits of type tag. Only a hint: see `Holder::new`.
const PID_TAG_BITS: u32 = 4;

/// A local process, by the word of its pid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller(NonZeroU64);

impl Caller {
    /// The calling process.
    #[inline(always)]
    pub(crate) fn of(call: CallEnv<'_>) -> Self {
        Self::from_pid(&enif::self_pid(call))
    }

    /// A local process.
    #[inline(always)]
    pub(crate) fn from_pid(pid: &ErlNifPid) -> Self {
        Self(enif::pid_word(pid))
    }

    /// A holder of the table.
    pub(crate) fn from_word(word: u64) -> Self {
        Self(NonZeroU64::new(word).expect("no holder has the word 0"))
    }

    pub(crate) fn word(self) -> u64 {
        self.0.get()
    }

    /// Its pid.
    pub(crate) fn pid(self) -> ErlNifTerm {
        // SAFETY: the word of a local pid is the whole of the term, whether the process lives or not.
        unsafe { enif::from_word(self.word()) }
    }

    /// Where the table looks for its slot first.
    #[inline(always)]
    pub(crate) fn place(self) -> u64 {
        self.word() >> PID_TAG_BITS
    }

    #[inline(always)]
    pub(crate) fn holder(self) -> Holder {
        // SAFETY:
        // - The word of a pid has the tag of pids in its lowest bits, which the two greatest numbers do not have.
        // - A process runs on one thread at a time, the VM hands it from one to the next, and it calls only in normal
        //   NIFs, which it cannot be killed inside of. The next process with the pid starts when this one has left the
        //   process table, after its last call.
        // - The process that starts another one writes it into the process table, and then changes its state to
        //   runnable by a compare-and-swap that is a full fence (`change_proc_schedule_state` in `erl_process.c`).
        // - The VM reports a death once to each watch, after the last call. `enif_is_process_alive` reads the process
        //   table, and does not count a process that is exiting, which makes no more calls.
        unsafe { Holder::new(self.0, self.place()) }
    }
}
