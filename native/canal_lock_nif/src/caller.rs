//! A local process, as the table knows it.

use crate::enif::{self, ErlNifTerm, Here};
use permit_table::Holder;
use rustler::sys::ErlNifPid;
use std::num::NonZeroU64;

/// Pids are numbered above four bits of type tag. Only a hint: see `Holder::new`.
const PID_TAG_BITS: u32 = 4;

/// A local process, by the word of its pid. No two processes that are in the VM's table at a time have the same word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller(NonZeroU64);

impl Caller {
    /// The calling process.
    #[inline(always)]
    pub(crate) fn of(here: Here<'_>) -> Self {
        Self::from_pid(&enif::self_pid(here))
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
        // SAFETY: a process runs on one thread at a time, the VM hands it from one to the next, and calls from it
        // only in normal NIFs, which it cannot be killed inside of; its death is told after the last of them, and
        // once.
        unsafe { Holder::new(self.0, self.place()) }
    }
}
