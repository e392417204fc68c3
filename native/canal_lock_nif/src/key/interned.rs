//! Keys that take long to read: read once per call, by a dirty scheduler, and known by their address from then on.
//!
//! A call may not hold a scheduler for long, and a call that counts may not run on a dirty one. So a call that finds
//! its key to be long ([`CallError::Long`]) returns before it has taken anything, and the Erlang side has the key
//! **interned**: a dirty scheduler reads it and looks for an equal one among all that are in use. With a handle on
//! that one the call is made again, on a normal scheduler, and compares addresses. After the call the handle is
//! emptied: on the heap of a process that does not collect its garbage, it would keep the key for as long as the
//! process lives.
//!
//! ```text
//!   acquire(Key, ..)  -- long -->  intern(Key)  -- handle -->  acquire(Handle, ..)  -- Arc -->  a key of the table
//!     normal                         dirty                       normal
//! ```
//!
//! - **N1** Of two equal long keys that are in use, be it by a table or a handle, there is one `Interned`: so the same
//!   address says the same key. It is found as long as anybody has it, because who looks for it gets hold of it or
//!   sees it gone for good (`Weak::upgrade`), and a new one goes in only if no other has since the search began.
//! - **N2** Whether a key is long depends on nothing but its value: so equal keys are interned all, or none of them.
//! - **N3** The lock is held for microseconds (`sorted_list.rs`, S2), never while a key is read, compared, made or
//!   freed. A dirty scheduler also frees keys that are not in use ([`free_unused`]): to return a gigabyte to the system
//!   takes long.
//!
//! The handle of a process that is killed in between goes with the other terms of the process.
//!
//! A panic under the lock (a bug of ours) leaves it free, and at most an entry without a key.

use super::encoding::tag;
use super::read::{with_term, Care, Reading};
use super::TermKey;
use crate::enif::{CallEnv, ErlNifTerm};
use crate::error::CallError;
use crate::incarnation::contain_panic;
use equivalent::Equivalent;
use parking_lot::Mutex;
use permit_table::{fault, make_room, Ordered, OutOfMemory, Query, SortedList};
use rustler::{Env, Resource};
use std::mem;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, LazyLock, Weak};

/// A long key. It is nobody's but the tables' and the handles' that share it.
pub(crate) struct Interned {
    /// As it would be stored if it were not long.
    pub(super) key: TermKey,
    digest: u64,
}

/// What a call has of a long key, until it is emptied; to Erlang, a reference.
pub(crate) struct Handle(Mutex<Option<Arc<Interned>>>);

#[rustler::resource_impl]
impl Resource for Handle {
    const IMPLEMENTS_DESTRUCTOR: bool = true;

    fn destructor(self, _: Env<'_>) {
        let _ = contain_panic(|| drop(self));
    }
}

// A panic leaves it full, or empty.
impl RefUnwindSafe for Handle {}

#[derive(Default)]
struct Registry {
    registered: SortedList<Registered>,
    /// How many have been put in so far.
    additions: u64,
    /// Not used any more, to be freed.
    unused: Vec<TermKey>,
}

struct Registered {
    digest: u64,
    interned: Weak<Interned>,
}

impl Ordered for Registered {
    fn order(&self) -> u64 {
        self.digest
    }
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

impl Handle {
    /// The long key that the term is, for a call on a normal scheduler. To be called on a dirty one.
    pub(crate) fn of(call: CallEnv<'_>, term: ErlNifTerm) -> Result<Self, CallError> {
        free_unused();
        match with_term(call, term, Care::Sure, |_| ()) {
            Err(CallError::Long) => {}
            // Interned, it would be another key than the one that calls make of it (N2).
            Ok(()) => return Err(CallError::BadArg),
            Err(other) => return Err(other),
        }
        let interned = with_term(call, term, Care::Thorough, intern)??;
        Ok(Self(Mutex::new(Some(interned))))
    }

    /// Calls with the key, which is kept as long as the call lasts.
    ///
    /// # Errors
    /// [`CallError::BadArg`], if the handle has been emptied.
    pub(crate) fn read<T>(&self, with: impl FnOnce(&Reading<'_>) -> T) -> Result<T, CallError> {
        let interned = self.0.lock().clone().ok_or(CallError::BadArg)?;
        let address = Arc::as_ptr(&interned).expose_provenance();
        Ok(with(&Reading::of(&[tag::INTERNED, address as u64])))
    }

    /// The call that needed the handle is over.
    pub(crate) fn empty(&self) {
        fault::point();
        let interned = self.0.lock().take();
        drop(interned);
    }
}

/// The one of this key (N1).
fn intern(reading: &Reading<'_>) -> Result<Arc<Interned>, OutOfMemory> {
    let digest = reading.digest();
    let mut new = None;
    loop {
        let (candidates, additions) = candidates(digest)?;
        let mut candidates = candidates.iter().filter_map(Weak::upgrade);
        if let Some(found) = candidates.find(|other| reading.equivalent(&other.key)) {
            return Ok(found);
        }
        let own = match new.take() {
            Some(own) => own,
            None => Arc::new(Interned {
                key: reading.to_key()?,
                digest,
            }),
        };
        if REGISTRY.lock().add(&own, additions)? {
            return Ok(own);
        }
        new = Some(own);
    }
}

/// All that may be the key with this digest, and how many keys had been put in by then.
fn candidates(digest: u64) -> Result<(Vec<Weak<Interned>>, u64), OutOfMemory> {
    let registry = REGISTRY.lock();
    let mut candidates = Vec::new();
    let registered = registry.registered.from(digest);
    for same in registered.take_while(|other| other.digest == digest) {
        make_room(&mut candidates, 1)?;
        candidates.push(same.interned.clone());
    }
    Ok((candidates, registry.additions))
}

impl Registry {
    /// Adds one, unless others have been since there were so many; answers whether it did.
    fn add(&mut self, new: &Arc<Interned>, additions: u64) -> Result<bool, OutOfMemory> {
        if self.additions != additions {
            return Ok(false);
        }
        self.registered.reserve(new.digest)?.insert(Registered {
            digest: new.digest,
            interned: Arc::downgrade(new),
        });
        self.additions += 1;
        Ok(true)
    }
}

impl Drop for Interned {
    fn drop(&mut self) {
        let mut registry = REGISTRY.lock();
        // It may be another one of this digest that is gone, whose drop then removes this one.
        let is_gone = |other: &Registered| other.interned.strong_count() == 0;
        registry.registered.remove(self.digest, is_gone);
        // Without room for it, it is freed right here.
        if registry.unused.try_reserve(1).is_ok() {
            let key = mem::replace(&mut self.key, TermKey::inline(&[]));
            registry.unused.push(key);
        }
    }
}

/// Is there anything for [`free_unused`]?
pub(crate) fn has_unused() -> bool {
    !REGISTRY.lock().unused.is_empty()
}

/// Frees the long keys that nobody uses any more. To be called on a dirty scheduler.
pub(crate) fn free_unused() {
    fault::point();
    let unused = mem::take(&mut REGISTRY.lock().unused);
    drop(unused);
}
