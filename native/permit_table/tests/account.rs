//! The account of a table's memory: it has the bytes that the table has allocated, after each call.
#![cfg(not(loom))]

mod common;

use common::*;
use permit_table::{pin, Waited};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with a sum per thread.
struct Counting;

impl Counting {
    fn count(bytes: usize, sign: isize) {
        ALLOCATED.set(ALLOCATED.get() + sign * isize::try_from(bytes).unwrap());
    }
}

// SAFETY: every call is passed on unchanged, so the system's allocator keeps the contract. Counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size(), 1);
        // SAFETY: the caller keeps the contract of this method, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Self::count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const HOLDERS: u64 = 40;
const KEYS: u64 = 400;

/// Random calls of one thread: enough keys and holders for lists with several leaves. Without the sweep, whose own
/// lists are on no account, because they are bounded.
#[test]
fn p8_account_has_what_is_allocated() {
    // The first ones allocate the record of the thread, and the seeds of the hashes.
    drop((pin(), Table::<Name>::new(16).unwrap()));
    let mailbox = Mailbox::default();
    let mut waiting = Vec::with_capacity(rounds(100_000) as usize);
    let before = ALLOCATED.get();
    let table = Table::new(16).unwrap();
    let mut dice = Dice(7);
    for round in 0..rounds(100_000) {
        // All call for some time, then all release and cancel.
        let is_growing = round / 10_000 % 2 == 0;
        let (key, number) = (dice.roll(KEYS), dice.roll(HOLDERS));
        // Some share their places.
        let process = |number: u64| displaced_holder(number, number % (HOLDERS - 5));
        let (caller, other) = (process(number), process(dice.roll(HOLDERS)));
        match dice.roll(20) {
            0..6 if is_growing => drop(acquire(&table, caller, key, 3)),
            6..14 if is_growing => {
                let of = demand(1 + dice.roll(2), 3);
                if wait(&table, caller, key, ask(&mailbox, round, of)) == Waited::Waiting {
                    waiting.push((number, round));
                }
            }
            14..16 => drop(give(&table, caller, other, key, 1)),
            16 if dice.roll(20) == 0 => drop(die(&table, caller)),
            17 if !waiting.is_empty() => {
                let index = dice.roll(waiting.len() as u64) as usize;
                let (number, request) = waiting.swap_remove(index);
                cancel(&table, process(number), request);
            }
            _ => drop(release(&table, caller, key)),
        }
        drop(mailbox.read());
        let allocated = ALLOCATED.get() - before;
        assert_eq!(table.usage().memory as isize, allocated, "round {round}");
    }
    drop(table);
    assert_eq!(ALLOCATED.get(), before);
}
