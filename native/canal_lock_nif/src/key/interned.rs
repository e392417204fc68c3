//! Keys that take long to read: read once per call, by a dirty scheduler, and known by their address from then on.
//!
//! A call may not hold a scheduler for long, and a call that counts may not run on a dirty one. So a call that finds
//! its key to be long ([`Stop::Long`]) returns before it has taken anything, and the Erlang side has the key
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
//! - **N3** The lock is held for some pointers' time, never while a key is read, compared, made or freed. What nobody
//!   uses any more is freed by a dirty scheduler too ([`free_unused`]): to give back a gigabyte takes the system long.
//!
//! The handle of a process that is killed in between goes with the other terms of the process.
//!
//! A panic under the lock (a bug of ours) leaves it free, and at most a digest without a key, which is nobody's.

use super::read::{with_interned, with_term, Care, Reading, Stop};
use super::TermKey;
use crate::enif::{ErlNifTerm, Here};
use crate::incarnation::contain_panic;
use crate::raised::Raised;
use equivalent::Equivalent;
use parking_lot::Mutex;
use permit_table::{fault, make_room, OutOfMemory, Query};
use rustler::{Env, Resource};
use std::collections::HashMap;
use std::mem;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, LazyLock, Weak};

/// A long key. It is nobody's but the tables' and the handles' that share it.
pub(crate) struct Interned {
    key: TermKey,
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
    by_digest: HashMap<u64, Vec<Weak<Interned>>>,
    /// How many have been put in so far.
    additions: u64,
    /// Not used any more, to be freed.
    unused: Vec<TermKey>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

impl Handle {
    /// The long key that the term is, for a call on a normal scheduler. To be called on a dirty one.
    pub(crate) fn of(here: Here<'_>, term: ErlNifTerm) -> Result<Self, Raised> {
        free_unused();
        match with_term(here, term, Care::Sure, |_| ()) {
            Err(Stop::Long) => {}
            // Interned, it would be another key than the one that calls make of it (N2).
            Ok(()) => return Err(Raised::BadArg),
            Err(other) => return Err(other.into()),
        }
        let interned = with_term(here, term, Care::Thorough, intern)??;
        Ok(Self(Mutex::new(Some(interned))))
    }

    /// Calls with the key.
    ///
    /// # Errors
    /// [`Raised::BadArg`], if the handle has been emptied.
    pub(crate) fn read<T>(&self, with: impl FnOnce(&Reading<'_>) -> T) -> Result<T, Raised> {
        let interned = self.0.lock().clone().ok_or(Raised::BadArg)?;
        Ok(with_interned(&interned, with))
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
    if let Some(same) = registry.by_digest.get(&digest) {
        make_room(&mut candidates, same.len())?;
        candidates.extend_from_slice(same);
    }
    Ok((candidates, registry.additions))
}

impl Registry {
    /// Adds one, unless others have been since there were so many; answers whether it did.
    fn add(&mut self, new: &Arc<Interned>, additions: u64) -> Result<bool, OutOfMemory> {
        if self.additions != additions {
            return Ok(false);
        }
        fault::memory()?;
        self.by_digest.try_reserve(1).map_err(|_| OutOfMemory)?;
        let same = self.by_digest.entry(new.digest).or_default();
        make_room(same, 1)?;
        same.push(Arc::downgrade(new));
        self.additions += 1;
        Ok(true)
    }

    fn forget_unused(&mut self, digest: u64) {
        if let Some(same) = self.by_digest.get_mut(&digest) {
            same.retain(|other| other.strong_count() > 0);
            if same.is_empty() {
                self.by_digest.remove(&digest);
            }
        }
        if self.by_digest.is_empty() {
            // A crowd may have been here.
            self.by_digest = HashMap::new();
        }
    }
}

impl Drop for Interned {
    fn drop(&mut self) {
        let mut registry = REGISTRY.lock();
        registry.forget_unused(self.digest);
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

impl Interned {
    /// The key itself, as it would be stored if it were not long.
    pub(crate) fn key(&self) -> &TermKey {
        &self.key
    }
}
