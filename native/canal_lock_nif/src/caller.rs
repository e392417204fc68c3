//! Local processes as holders.
//!
//! A holder is identified by the word of its pid. A local pid has only 28 bits on a 32-bit VM and before OTP 26, so a
//! process can get the pid of another one whose death is not reported yet. `holder.rs` ("Identity") has the rules, and
//! `Incarnation::watch_if_alive` asks the VM. Since OTP 26 a pid has 60 bits on 64-bit machines: a VM that starts a
//! million processes per second reuses one after 36,000 years.

use crate::enif::{self, CallEnv, ErlNifTerm};
use permit_table::{Holder, OutOfMemory};
use rustler::sys::ErlNifPid;
use rustler::Term;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pids are numbered above a type tag of four bits. Here and below, a wrong number would only affect speed and memory:
/// see `Holder::new`.
const PID_TAG_BITS: u32 = 4;

/// Consecutive processes of a VM since OTP 26 have distant entries in its process table, on different cache lines: the
/// index of an entry is the number, rotated by three bits within the bits of the table (`erts_ptab_data2pix` in
/// `erl_ptab.h`). Their pids contain the index instead of the number. To have the number, `Caller::number` rotates it
/// back. Otherwise 1000 processes would use the slots of 8000.
const ROTATED_BITS: u32 = 3;

/// The bits of the index, how far the index is rotated, and how far back. [`learn_numbers`] sets them at load.
static INDEX_MASK: AtomicU64 = AtomicU64::new(u64::MAX);
static DOWN: AtomicU32 = AtomicU32::new(0);
static UP: AtomicU32 = AtomicU32::new(63);

/// Finds out what the VM's pids contain, from one of them. To be called first.
pub(crate) fn learn_numbers(pid: Term<'_>, process_limit: u64) -> Result<(), OutOfMemory> {
    // The external format ends with the number, the serial and the creation, of four bytes each.
    let bytes = enif::external_format(pid)?;
    let number = bytes[bytes.len() - 12..].first_chunk().expect("12 bytes");
    let number = u64::from(u32::from_be_bytes(*number));
    let index = enif::word(pid.as_c_arg()) >> PID_TAG_BITS;
    // The size of the process table.
    let bits = process_limit.next_power_of_two().trailing_zeros();
    let (mask, up) = ((1 << bits) - 1, bits.saturating_sub(ROTATED_BITS));
    if rotated(index, mask, ROTATED_BITS, up) & mask == number & mask {
        INDEX_MASK.store(mask, Ordering::Relaxed);
        DOWN.store(ROTATED_BITS, Ordering::Relaxed);
        UP.store(up, Ordering::Relaxed);
    }
    Ok(())
}

/// Rotated within the mask, which is wider than `up`. Bits above the mask have no meaning.
#[inline(always)]
fn rotated(index: u64, mask: u64, down: u32, up: u32) -> u64 {
    (index & mask) >> down | index << up
}

/// A local process, by the word of its pid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller(NonZeroU64);

impl Caller {
    /// The calling process.
    #[inline(always)]
    pub(crate) fn of(call: CallEnv<'_>) -> Self {
        Self::from_pid(&enif::self_pid(call))
    }

    #[inline(always)]
    pub(crate) fn from_pid(pid: &ErlNifPid) -> Self {
        Self(enif::pid_word(pid))
    }

    /// From the word of a holder in a table.
    pub(crate) fn from_word(word: u64) -> Self {
        Self(NonZeroU64::new(word).expect("no holder has the word 0"))
    }

    pub(crate) fn word(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn pid(self) -> ErlNifTerm {
        // SAFETY: the word of a local pid determines the term, whether the process is alive or not.
        unsafe { enif::from_word(self.word()) }
    }

    /// The process's number, which selects a watch and the slot that the table tries first. Its upper bits have no
    /// meaning.
    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        rotated(
            self.word() >> PID_TAG_BITS,
            INDEX_MASK.load(Ordering::Relaxed),
            DOWN.load(Ordering::Relaxed),
            UP.load(Ordering::Relaxed),
        )
    }

    #[inline(always)]
    pub(crate) fn holder(self) -> Holder {
        // SAFETY:
        // - The word of a pid has the tag of pids in its lowest bits. The two greatest numbers do not have that tag.
        // - A process runs on one thread at a time, and the VM synchronizes each move to another thread. The process
        //   calls only in normal NIFs, and cannot be killed inside of one. The next process with the pid starts when
        //   this one has left the process table, after its last call.
        // - The process that starts another one writes it into the process table. It then makes the new process
        //   runnable by a compare-and-swap that is a full fence (`change_proc_schedule_state` in `erl_process.c`).
        // - The VM reports a death once to each watch, after the last call. `enif_is_process_alive` reads the process
        //   table, and does not count a process that is exiting, which makes no more calls.
        unsafe { Holder::new(self.0, self.number()) }
    }
}
