//! Holders on other nodes.
//!
//! The VM lets a native library watch local processes only. So those of other nodes are watched by the manager, which
//! takes and releases permits for them, one call at a time. What must outlive a manager that crashes is kept here,
//! with the table: who they are, by which connection, and which of their calls are not over yet.
//!
//! A **call** is a process on the other node that asks for a permit on behalf of the holder and lives until it has
//! heard that we know that it has the answer. As long as it is on record, the permit that it brought is the call's to
//! lose: if it dies before it confirms, its holder never heard of the permit, and it is taken back.
//!
//! - **R1** A permit and the call that brought it are recorded in one native call, which the death of the manager
//!   cannot interrupt.
//! - **R2** Everything here happens under one lock, table included: so no two calls on behalf of one holder overlap.
//! - **R3** A holder is known by a number that is never given again; with no permits and no calls it is forgotten.

use crate::arguments::{with_kept, with_key, WithKey};
use crate::enif::{self, Here};
use crate::key::TermKey;
use crate::raised::Raised;
use parking_lot::Mutex;
use permit_table::{fault, make_room, pin, Acquired, Capacity, Holder, OutOfMemory, Query, Table};
use rustler::sys::ErlNifTerm;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The word of a local pid has both of its lowest bits set. The words of these holders have none of the lowest four.
const WORD_SHIFT: u32 = 4;

/// A term in the external format. For a pid of another node these are the same bytes each time, on one VM.
type External = Box<[u8]>;

/// The holders on other nodes that one table knows.
///
/// A panic inside the lock (a bug of ours) leaves it free, and the registry as it was before the call: what can go
/// wrong comes before a permit is taken or given back, and nothing between that and the record of it can panic. A
/// holder that came with the call is forgotten again.
#[derive(Default)]
pub(crate) struct Remotes(Mutex<Registry>);

#[derive(Default)]
struct Registry {
    numbers: HashMap<External, u64>,
    remotes: HashMap<u64, Remote>,
    last_number: u64,
}

struct Remote {
    pid: External,
    /// What it was connected by when it came, whatever that is to the manager.
    connection: External,
    permits: u64,
    calls: Vec<Call>,
}

/// A call that has brought a permit, and has not confirmed it yet.
struct Call {
    process: External,
    key: TermKey,
}

/// Whether a holder still has permits or calls: if not, it is forgotten, and need not be watched any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remains(pub(crate) bool);

impl Remotes {
    /// Takes a permit for the process `pid`, which is connected by `connection`, asked for by the process `call`.
    pub(crate) fn acquire(
        &self,
        here: Here<'_>,
        table: &Table<TermKey>,
        (pid, connection): (ErlNifTerm, ErlNifTerm),
        call: ErlNifTerm,
        key: ErlNifTerm,
        capacity: Capacity,
    ) -> Result<Acquired, Raised> {
        struct Take<'a>(&'a Table<TermKey>, Holder, Capacity);

        impl WithKey for Take<'_> {
            type Answer = (Acquired, TermKey);

            fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<Self::Answer, Raised> {
                let Take(table, holder, capacity) = self;
                let stored = key.to_key()?;
                let watched = || Ok::<(), OutOfMemory>(());
                let acquired = table.acquire(&pin(), holder, key, capacity, watched)?;
                Ok((acquired, stored))
            }
        }

        /// A holder that may be new, and is forgotten if nothing comes of its call, however that ends (R3).
        struct Guest<'a>(
            parking_lot::MutexGuard<'a, Registry>,
            &'a Table<TermKey>,
            u64,
        );

        impl Drop for Guest<'_> {
            fn drop(&mut self) {
                // A second panic must not leave a destructor: that would end the VM. The holder stays on record then.
                let _ = catch_unwind(AssertUnwindSafe(|| self.0.forget_if_idle(self.1, self.2)));
            }
        }

        let process = external(here, call)?;
        let mut registry = self.0.lock();
        let number = registry.number(external(here, pid)?, external(here, connection)?)?;
        let mut guest = Guest(registry, table, number);
        fault::point();
        let registry = &mut guest.0;
        registry.room_for_call(number)?;
        let (acquired, key) = with_key(here, key, Take(table, holder(number), capacity))?;
        let remote = registry.remotes.get_mut(&number);
        if let (Acquired::Permit(_), Some(remote)) = (acquired, remote) {
            remote.permits += 1;
            remote.calls.push(Call { process, key });
        }
        Ok(acquired)
    }

    /// A call is over. If it has confirmed, its holder has heard of the permit that it brought; otherwise it has died,
    /// and the permit is taken back.
    pub(crate) fn end_call(
        &self,
        here: Here<'_>,
        table: &Table<TermKey>,
        pid: ErlNifTerm,
        call: ErlNifTerm,
        confirmed: bool,
    ) -> Result<Remains, Raised> {
        let process = external(here, call)?;
        let (mut registry, number) = self.find(here, pid)?;
        let Some(number) = number else {
            return Ok(Remains(false));
        };
        let Some(call) = registry.call(number, &process) else {
            return Ok(registry.forget_if_idle(table, number));
        };
        fault::point();
        if !confirmed {
            // Its holder may have heard of the permit all the same, and released it.
            let release = Release {
                table,
                holder: holder(number),
                expected: false,
            };
            let released = with_kept(here, &call.key, release)?;
            registry.note_release(number, released);
        }
        registry.forget_call(number, &process);
        Ok(registry.forget_if_idle(table, number))
    }

    /// Gives one permit back; answers whether there was one.
    pub(crate) fn release(
        &self,
        here: Here<'_>,
        table: &Table<TermKey>,
        pid: ErlNifTerm,
        key: ErlNifTerm,
    ) -> Result<(bool, Remains), Raised> {
        let (mut registry, number) = self.find(here, pid)?;
        // One that is not known holds nothing, under any number: the table counts the mistake.
        let known = number.unwrap_or(0);
        let release = Release {
            table,
            holder: holder(known),
            expected: true,
        };
        let released = with_key(here, key, release)?;
        registry.note_release(known, released);
        Ok((released, registry.forget_if_idle(table, known)))
    }

    /// Gives back everything that a holder has, and forgets it and its calls.
    pub(crate) fn give_back(
        &self,
        here: Here<'_>,
        table: &Table<TermKey>,
        pid: ErlNifTerm,
    ) -> Result<(), Raised> {
        let (mut registry, number) = self.find(here, pid)?;
        if let Some(number) = number {
            registry.forget(table, number);
        }
        Ok(())
    }

    /// All holders, as `[{Pid, Connection, [Call]}]`, with the calls that are not over.
    pub(crate) fn list(&self, here: Here<'_>) -> Result<ErlNifTerm, Raised> {
        let registry = self.0.lock();
        let mut holders = Vec::new();
        let mut calls = Vec::new();
        for remote in registry.remotes.values() {
            calls.clear();
            for call in &remote.calls {
                push(&mut calls, internal(here, &call.process)?)?;
            }
            let holder = [
                internal(here, &remote.pid)?,
                internal(here, &remote.connection)?,
                enif::list(here, &calls, enif::nil(here)),
            ];
            push(&mut holders, enif::tuple(here, &holder))?;
        }
        Ok(enif::list(here, &holders, enif::nil(here)))
    }

    /// Frees up to so many of them, of a table that is closed; answers whether any are left.
    pub(crate) fn dismantle(&mut self, limit: usize) -> bool {
        let registry = self.0.get_mut();
        registry
            .numbers
            .extract_if(|_, _| true)
            .take(limit)
            .for_each(drop);
        registry
            .remotes
            .extract_if(|_, _| true)
            .take(limit)
            .for_each(drop);
        !(registry.numbers.is_empty() && registry.remotes.is_empty())
    }

    /// The pid that an identity word stands for, if it is one of these, and not forgotten.
    pub(crate) fn pid(&self, here: Here<'_>, word: u64) -> Option<ErlNifTerm> {
        let registry = self.0.lock();
        let remote = registry.remotes.get(&(word >> WORD_SHIFT))?;
        internal(here, &remote.pid).ok()
    }

    /// Such a holder, to look at.
    pub(crate) fn holder(&self, here: Here<'_>, pid: ErlNifTerm) -> Result<Option<Holder>, Raised> {
        Ok(self.find(here, pid)?.1.map(holder))
    }

    fn find(
        &self,
        here: Here<'_>,
        pid: ErlNifTerm,
    ) -> Result<(parking_lot::MutexGuard<'_, Registry>, Option<u64>), Raised> {
        let pid = external(here, pid)?;
        let registry = self.0.lock();
        fault::point();
        let number = registry.numbers.get(&pid).copied();
        Ok((registry, number))
    }
}

impl Registry {
    /// The number of a holder, known or new.
    fn number(&mut self, pid: External, connection: External) -> Result<u64, OutOfMemory> {
        if let Some(number) = self.numbers.get(&pid) {
            return Ok(*number);
        }
        fault::memory()?;
        self.numbers.try_reserve(1).map_err(|_| OutOfMemory)?;
        fault::memory()?;
        self.remotes.try_reserve(1).map_err(|_| OutOfMemory)?;
        let remote = Remote {
            pid: copy(&pid)?,
            connection,
            permits: 0,
            calls: Vec::new(),
        };
        self.last_number += 1;
        self.numbers.insert(pid, self.last_number);
        self.remotes.insert(self.last_number, remote);
        Ok(self.last_number)
    }

    fn room_for_call(&mut self, number: u64) -> Result<(), Raised> {
        match self.remotes.get_mut(&number) {
            Some(remote) => Ok(make_room(&mut remote.calls, 1)?),
            None => Ok(()),
        }
    }

    fn call(&self, number: u64, process: &External) -> Option<&Call> {
        let remote = self.remotes.get(&number)?;
        remote.calls.iter().find(|call| call.process == *process)
    }

    fn forget_call(&mut self, number: u64, process: &External) {
        if let Some(remote) = self.remotes.get_mut(&number) {
            remote.calls.retain(|call| call.process != *process);
        }
    }

    fn note_release(&mut self, number: u64, released: bool) {
        if let (true, Some(remote)) = (released, self.remotes.get_mut(&number)) {
            remote.permits -= 1;
        }
    }

    fn forget_if_idle(&mut self, table: &Table<TermKey>, number: u64) -> Remains {
        match self.remotes.get(&number) {
            Some(remote) if remote.permits > 0 || !remote.calls.is_empty() => Remains(true),
            _ => {
                self.forget(table, number);
                Remains(false)
            }
        }
    }

    fn forget(&mut self, table: &Table<TermKey>, number: u64) {
        if !self.remotes.contains_key(&number) {
            return;
        }
        // First what may panic: what is still on record can be given back by the next try.
        table.give_back(&pin(), holder(number));
        if let Some(remote) = self.remotes.remove(&number) {
            self.numbers.remove(&remote.pid);
            if self.remotes.is_empty() {
                // A crowd may have been here.
                (self.numbers, self.remotes) = Default::default();
            }
        }
    }
}

/// Gives a permit back; answers whether there was one. If there should have been, it counts as a mistake.
struct Release<'a> {
    table: &'a Table<TermKey>,
    holder: Holder,
    expected: bool,
}

impl WithKey for Release<'_> {
    type Answer = bool;

    fn call<Q: Query<TermKey>>(self, key: &Q) -> Result<bool, Raised> {
        let Release { table, holder, .. } = self;
        Ok(if self.expected {
            table.release(&pin(), holder, key).is_ok()
        } else {
            table.release_known(&pin(), holder, key)
        })
    }
}

/// The holder with a number; 0 is nobody's.
fn holder(number: u64) -> Holder {
    let word = NonZeroU64::new(number << WORD_SHIFT).unwrap_or(NOBODY);
    // SAFETY: calls on behalf of one come one at a time, and none comes after `give_back` (R2, R3). Nobody holds
    // nothing, so nobody's record is never made.
    unsafe { Holder::without_place(word) }
}

/// No pid's word, and no holder's here.
const NOBODY: NonZeroU64 = NonZeroU64::MIN;

fn external(here: Here<'_>, term: ErlNifTerm) -> Result<External, Raised> {
    let bytes = enif::with_external_format(here.term(term), copy);
    Ok(bytes.ok_or(OutOfMemory)??)
}

fn internal(here: Here<'_>, bytes: &External) -> Result<ErlNifTerm, Raised> {
    let (term, _) = here.env().binary_to_term(bytes).ok_or(OutOfMemory)?;
    Ok(term.as_c_arg())
}

fn push(list: &mut Vec<ErlNifTerm>, term: ErlNifTerm) -> Result<(), OutOfMemory> {
    make_room(list, 1)?;
    list.push(term);
    Ok(())
}

fn copy(bytes: &[u8]) -> Result<External, OutOfMemory> {
    fault::memory()?;
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())
        .map_err(|_| OutOfMemory)?;
    copy.extend_from_slice(bytes);
    Ok(copy.into_boxed_slice())
}
